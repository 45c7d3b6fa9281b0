// SPDX-License-Identifier: GPL-2.0
/*
 * ring.c: a ring's memory: admission, allocation, what was moved, the end. Files and calls are in
 * dev.c. Nothing here reads shared memory but cnnring_count, and that for statistics only.
 */
#include <linux/cred.h>
#include <linux/gfp.h>
#include <linux/log2.h>
#include <linux/mm.h>
#include <linux/sched/signal.h>
#include <linux/sched/user.h>
#include <linux/slab.h>

#include "cnnring.h"
#include "trace.h"

/*
 * RETRY_MAYFAIL: at a control group's limit the call fails; without it the OOM killer would take
 * the caller.
 */
#define CNNRING_GFP	(GFP_KERNEL_ACCOUNT | __GFP_ZERO | __GFP_NOWARN | __GFP_RETRY_MAYFAIL)
/* COMP: get_page on a page inside needs it. NORETRY: large pages are a bonus, not worth reclaim. */
#define CNNRING_GFP_HUGE (GFP_KERNEL_ACCOUNT | __GFP_ZERO | __GFP_NOWARN | __GFP_NORETRY | \
			  __GFP_COMP)
#define CNNRING_HUGE_ORDER (PMD_SHIFT - PAGE_SHIFT)
#define CNNRING_HUGE_PAGES (PMD_SIZE / PAGE_SIZE)

static void cnnring_end_init(struct cnnring *ring, u32 role)
{
	struct cnnring_end *end = &ring->ends[role];

	end->ring = ring;
	end->role = role;
	init_waitqueue_head(&end->wait);
}

struct cnnring *cnnring_new(void)
{
	static atomic_t last_id = ATOMIC_INIT(0);
	struct cnnring *ring = kzalloc(sizeof(*ring), GFP_KERNEL_ACCOUNT);

	if (!ring)
		return NULL;
	kref_init(&ring->ref);
	spin_lock_init(&ring->count_lock);
	ring->id = atomic_inc_return(&last_id);
	cnnring_end_init(ring, CNNRING_PRODUCER);
	cnnring_end_init(ring, CNNRING_CONSUMER);
	return ring;
}

void cnnring_get(struct cnnring *ring)
{
	kref_get(&ring->ref);
}

/* ---- admission ---- */

static int cnnring_refuse(struct cnnring_create *arg, u32 limit, u64 value, u64 used, int error)
{
	arg->limit = limit;
	arg->limit_bytes = value;
	arg->used_bytes = used;
	return error;
}

static int cnnring_charge_total(u64 bytes, struct cnnring_create *arg)
{
	u64 max = cnnring_total_max();
	s64 used = atomic64_read(&cnnring_stats.bytes);

	do {
		if (used + bytes > max)
			return cnnring_refuse(arg, CNNRING_LIMIT_TOTAL, max, used, -ENOSPC);
	} while (!atomic64_try_cmpxchg(&cnnring_stats.bytes, &used, used + bytes));
	return 0;
}

/* As other pinned memory: by user, against RLIMIT_MEMLOCK, not for who may lock anything. */
static int cnnring_charge_user(struct cnnring *ring, u64 bytes, struct cnnring_create *arg)
{
	unsigned long max = rlimit(RLIMIT_MEMLOCK) >> PAGE_SHIFT;
	unsigned long pages = bytes >> PAGE_SHIFT;
	const struct cred *payer;
	long used;

	if (capable(CAP_IPC_LOCK))
		return 0;
	payer = get_current_cred();
	used = atomic_long_read(&payer->user->locked_vm);
	do {
		if (used + pages > max) {
			put_cred(payer);
			return cnnring_refuse(arg, CNNRING_LIMIT_MEMLOCK, (u64)max << PAGE_SHIFT,
					      (u64)used << PAGE_SHIFT, -EDQUOT);
		}
	} while (!atomic_long_try_cmpxchg(&payer->user->locked_vm, &used, used + pages));
	ring->payer = payer;
	return 0;
}

static int cnnring_charge(struct cnnring *ring, u64 bytes, struct cnnring_create *arg)
{
	u64 max = cnnring_ring_max();
	int error;

	arg->want_bytes = bytes;
	if (arg->data_bytes > max)
		return cnnring_refuse(arg, CNNRING_LIMIT_RING, max, 0, -ENOSPC);
	error = cnnring_charge_total(bytes, arg);
	if (error)
		return error;
	error = cnnring_charge_user(ring, bytes, arg);
	if (error)
		atomic64_sub(bytes, &cnnring_stats.bytes);
	return error;
}

static void cnnring_uncharge(struct cnnring *ring, u64 bytes)
{
	atomic64_sub(bytes, &cnnring_stats.bytes);
	if (!ring->payer)
		return;
	atomic_long_sub(bytes >> PAGE_SHIFT, &ring->payer->user->locked_vm);
	put_cred(ring->payer);
	ring->payer = NULL;
}

/* ---- pages ---- */

static void cnnring_free_pages(struct cnnring *ring, unsigned long n)
{
	unsigned long i = 0;

	while (i < n) {
		struct page *page = ring->pages[i];

		i += 1UL << compound_order(page);
		put_page(page);
		cond_resched();
	}
	kvfree(ring->pages);
	ring->pages = NULL;
	ring->n_pages = 0;
	ring->huge_pages = 0;
}

static bool cnnring_alloc_huge(struct cnnring *ring, unsigned long at, int node)
{
	struct page *page = alloc_pages_node(node, CNNRING_GFP_HUGE, CNNRING_HUGE_ORDER);
	unsigned long i;

	if (!page)
		return false;
	for (i = 0; i < CNNRING_HUGE_PAGES; i++)
		ring->pages[at + i] = page + i;
	ring->huge_pages++;
	return true;
}

static int cnnring_alloc_pages(struct cnnring *ring, unsigned long n, bool huge, u32 wanted)
{
	int node = wanted == CNNRING_NODE_ANY ? NUMA_NO_NODE : (int)wanted;
	unsigned long i = 0;

	ring->pages = kvcalloc(n, sizeof(*ring->pages), GFP_KERNEL_ACCOUNT | __GFP_NOWARN);
	if (!ring->pages)
		return -ENOMEM;
	while (i < n) {
		if (fatal_signal_pending(current)) {
			cnnring_free_pages(ring, i);
			return -EINTR;
		}
		cond_resched();
		if (huge && i >= CNNRING_DATA_PAGE && n - i >= CNNRING_HUGE_PAGES) {
			huge = cnnring_alloc_huge(ring, i, node);
			i += huge ? CNNRING_HUGE_PAGES : 0;
			continue;
		}
		ring->pages[i] = alloc_pages_node(node, CNNRING_GFP, 0);
		if (!ring->pages[i]) {
			cnnring_free_pages(ring, i);
			return -ENOMEM;
		}
		i++;
	}
	ring->n_pages = n;
	return 0;
}

static void cnnring_write_geometry(struct cnnring *ring)
{
	struct cnnring_geometry *g = page_address(ring->pages[CNNRING_GEOMETRY_PAGE]);

	g->magic = CNNRING_MAGIC;
	g->version = CNNRING_LAYOUT;
	g->page_bytes = PAGE_SIZE;
	g->data_bytes = ring->data_bytes;
}

static int cnnring_fill_once(struct cnnring *ring, struct cnnring_create *arg)
{
	unsigned long n = CNNRING_DATA_PAGE + (arg->data_bytes >> PAGE_SHIFT);
	u64 bytes = (u64)n << PAGE_SHIFT;
	int error;

	error = cnnring_charge(ring, bytes, arg);
	if (error)
		return error;
	error = cnnring_alloc_pages(ring, n, arg->flags & CNNRING_CREATE_HUGE, arg->node);
	if (error) {
		cnnring_uncharge(ring, bytes);
		if (error == -ENOMEM)
			cnnring_refuse(arg, CNNRING_LIMIT_MEMORY, 0, 0, error);
		return error;
	}
	ring->data_bytes = arg->data_bytes;
	ring->node = arg->node;
	cnnring_write_geometry(ring);
	return 0;
}

/* Gives the ring its memory, once; arg is checked. */
int cnnring_fill(struct cnnring *ring, struct cnnring_create *arg)
{
	int error;

	if (cmpxchg(&ring->state, CNNRING_EMPTY, CNNRING_FILLING) != CNNRING_EMPTY)
		return -EBUSY;
	arg->limit = CNNRING_LIMIT_NONE;
	arg->pad_out = 0;
	arg->limit_bytes = 0;
	arg->used_bytes = 0;
	error = cnnring_fill_once(ring, arg);
	if (error) {
		trace_cnnring_refuse(ring, arg, error);
		atomic64_inc(&cnnring_stats.refused);
		/* pairs with cmpxchg above: the next try finds everything put back */
		smp_store_release(&ring->state, CNNRING_EMPTY);
		return error;
	}
	atomic64_inc(&cnnring_stats.rings);
	atomic64_inc(&cnnring_stats.created);
	trace_cnnring_create(ring);
	cnnring_debugfs_add(ring);
	/* pairs with the acquire in cnnring_ready */
	smp_store_release(&ring->state, CNNRING_READY);
	return 0;
}

/* ---- statistics ---- */

static u64 cnnring_index(const struct cnnring *ring, unsigned int page)
{
	return READ_ONCE(*(u64 *)page_address(ring->pages[page]));
}

/*
 * Adds what the producer says that it has written since the last look, if it can be: no more is in
 * the ring than the ring holds. The consumer's position is read first, it is the smaller one.
 */
void cnnring_count(struct cnnring *ring)
{
	u64 tail = cnnring_index(ring, CNNRING_CONSUMER_PAGE);
	u64 head = cnnring_index(ring, CNNRING_PRODUCER_PAGE);

	if (head - tail > ring->data_bytes)
		return;
	spin_lock(&ring->count_lock);
	if (head > ring->moved) {
		atomic64_add(head - ring->moved, &cnnring_stats.moved);
		ring->moved = head;
	}
	spin_unlock(&ring->count_lock);
}

u64 cnnring_moved(struct cnnring *ring)
{
	u64 moved;

	cnnring_count(ring);
	spin_lock(&ring->count_lock);
	moved = ring->moved;
	spin_unlock(&ring->count_lock);
	return moved;
}

/* ---- the end ---- */

static void cnnring_free(struct kref *ref)
{
	struct cnnring *ring = container_of(ref, struct cnnring, ref);
	u64 bytes = cnnring_bytes(ring);

	if (cnnring_ready(ring)) {
		cnnring_debugfs_del(ring);
		cnnring_count(ring);
		trace_cnnring_free(ring);
		cnnring_free_pages(ring, ring->n_pages);
		cnnring_uncharge(ring, bytes);
		atomic64_dec(&cnnring_stats.rings);
	}
	kfree(ring);
}

void cnnring_put(struct cnnring *ring)
{
	kref_put(&ring->ref, cnnring_free);
}
