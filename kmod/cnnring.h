/* SPDX-License-Identifier: GPL-2.0 */
/*
 * cnnring.h: inside of the module. A ring has two ends, each end is the private data of one file;
 * ring.c owns memory and accounting, dev.c files and calls, dmabuf.c the export, main.c parameters
 * and statistics.
 *
 * Life: the ring is counted (ref): one for each end's file, one for each dma-buf. Its pages are put
 * when the count falls to 0. Who faults a page in holds a mapping, that holds the file, that holds
 * the ring.
 *
 * Locks: none on the way of calls. `state` is set to READY once, with release; who has seen that
 * with acquire may read pages, n_pages, data_bytes. An end's flags are changed by atomic bit
 * operations. count_lock (a leaf, never held over a sleep or an access to user memory) guards
 * `moved`.
 */
#ifndef CNNRING_H
#define CNNRING_H

#include <linux/atomic.h>
#include <linux/bits.h>
#include <linux/kref.h>
#include <linux/mm_types.h>
#include <linux/spinlock.h>
#include <linux/types.h>
#include <linux/wait.h>

#include "uapi/linux/cnnring.h"

#define CNNRING_GEOMETRY_PAGE	0
#define CNNRING_PRODUCER_PAGE	1
#define CNNRING_CONSUMER_PAGE	2
#define CNNRING_DATA_PAGE	3

struct cnnring;
struct cred;
struct dentry;
struct file;

enum { CNNRING_END_PENDING, CNNRING_END_MADE, CNNRING_END_GONE };

struct cnnring_end {
	struct cnnring *ring;
	u32 role;		/* CNNRING_PRODUCER | CNNRING_CONSUMER */
	unsigned long flags;	/* bits CNNRING_END_* */
	wait_queue_head_t wait;
	atomic64_t wakes;
};

enum cnnring_memory { CNNRING_EMPTY, CNNRING_FILLING, CNNRING_READY };

struct cnnring {
	struct kref ref;
	int state;		/* enum cnnring_memory */
	u32 id;
	struct cnnring_end ends[2];

	struct page **pages;	/* every page of 4 KiB, also those within one of 2 MiB */
	unsigned long n_pages;
	u64 data_bytes;
	u32 node, huge_pages;
	const struct cred *payer; /* whose user's locked_vm was charged; NULL: nobody's */

	spinlock_t count_lock;	/* guards moved */
	u64 moved;		/* the producer's position as last believed */
	struct dentry *debugfs;
};

/* Of the whole module. */
struct cnnring_stats {
	atomic64_t rings;	/* with memory, now */
	atomic64_t bytes;	/* of their pages, now */
	atomic64_t created, refused, wakes, exports, moved;
};

/* main.c */
extern struct cnnring_stats cnnring_stats;
u64 cnnring_total_max(void);
u64 cnnring_ring_max(void);
void cnnring_debugfs_add(struct cnnring *ring);
void cnnring_debugfs_del(struct cnnring *ring);

/* ring.c */
struct cnnring *cnnring_new(void);
void cnnring_get(struct cnnring *ring);
void cnnring_put(struct cnnring *ring);
int cnnring_fill(struct cnnring *ring, struct cnnring_create *arg);
void cnnring_count(struct cnnring *ring);
u64 cnnring_moved(struct cnnring *ring);

static inline bool cnnring_ready(const struct cnnring *ring)
{
	/* pairs with the release in cnnring_fill: who sees READY sees the pages */
	return smp_load_acquire(&ring->state) == CNNRING_READY;
}

static inline u64 cnnring_bytes(const struct cnnring *ring)
{
	return (u64)ring->n_pages << PAGE_SHIFT;
}

/* dev.c */
int cnnring_dev_init(void);
void cnnring_dev_exit(void);
u32 cnnring_end_state(const struct cnnring_end *end);

/* dmabuf.c: a descriptor, or -errno */
#if IS_ENABLED(CONFIG_DMA_SHARED_BUFFER)
#define CNNRING_FEATURES (CNNRING_FEATURE_DMABUF | CNNRING_FEATURE_HUGE)
int cnnring_export_fd(struct cnnring *ring);
#else
#define CNNRING_FEATURES CNNRING_FEATURE_HUGE
static inline int cnnring_export_fd(struct cnnring *ring)
{
	return -ENOTTY;
}
#endif

#endif
