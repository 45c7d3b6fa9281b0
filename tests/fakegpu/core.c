// SPDX-License-Identifier: MIT
/* core.c: devices, their memory, pinned memory, the counts, the end of a context. */
#define _GNU_SOURCE
#include "exec.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define RESERVE (1ull << 36) /* addresses of one device; never given out twice */
#define PAGE 4096ull
#define GRAIN 256ull /* cudaMalloc's alignment */
#define POISON 0xff  /* NaN as f32, f16 and bf16 */
#define HOOKS_MAX 4
#define SCRIBBLE (64u << 10)

struct block {
	LIST_ENTRY(block) link;
	char *p;
	size_t bytes;
	int device;		    /* -1: host memory */
	int owner;		    /* the device whose context it belongs to */
	bool registered, read_only; /* pinned, and somebody else's */
	void *map;
	size_t map_bytes;
};

struct fake fake = {.lock = PTHREAD_MUTEX_INITIALIZER};
static LIST_HEAD(, block) blocks = LIST_HEAD_INITIALIZER(blocks);
static pthread_once_t once = PTHREAD_ONCE_INIT;
static void (*hook[HOOKS_MAX])(int device);

static const char *const count_name[FAKE_COUNTS] = {
	"device_memory", "pinned_memory",    "streams",	    "events",
	"graphs",	 "graph_execs",	     "dnn_handles", "dnn_descriptors",
	"blas_handles",	 "blas_descriptors", "comms",	    "registered_memory",
};

int *fake_current(void)
{
	static _Thread_local int current;

	return &current;
}

uint64_t fake_random(void)
{
	fake.random ^= fake.random << 13;
	fake.random ^= fake.random >> 7;
	fake.random ^= fake.random << 17;
	return fake.random;
}

void fake_add(enum fake_count what, int n)
{
	pthread_mutex_lock(&fake.lock);
	fake.live[what] += n;
	pthread_mutex_unlock(&fake.lock);
}

void fake_violation(const char *fmt, ...)
{
	va_list ap;

	fputs("fakegpu: wrong use: ", stderr);
	va_start(ap, fmt);
	vfprintf(stderr, fmt, ap);
	va_end(ap);
	fputc('\n', stderr);
	__atomic_add_fetch(&fake.violations, 1, __ATOMIC_RELAXED);
	if (getenv("FAKEGPU_ABORT"))
		abort();
}

/* ---- start, end ---- */

static uint64_t number(const char *name, uint64_t otherwise)
{
	const char *text = getenv(name);

	return text && *text ? strtoull(text, NULL, 0) : otherwise;
}

int fakegpu_report(char *out, size_t size)
{
	int n = snprintf(out, size,
			 "{\"fakegpu\":1,\"pkeys\":%s,\"violations\":%llu,\"kernels\":%llu,"
			 "\"copies\":%llu",
			 fake.pkey >= 0 ? "true" : "false", (unsigned long long)fake.violations,
			 (unsigned long long)fake.kernels, (unsigned long long)fake.copies);

	for (int i = 0; i < FAKE_COUNTS && n > 0 && (size_t)n < size; i++)
		n += snprintf(out + n, size - (size_t)n, ",\"%s\":%lld", count_name[i],
			      (long long)fake.live[i]);
	if (n > 0 && (size_t)n < size)
		n += snprintf(out + n, size - (size_t)n, ",\"peak\":%llu}\n",
			      (unsigned long long)fake.device[0].peak);
	return n;
}

int64_t fakegpu_live(void)
{
	int64_t all = 0;

	pthread_mutex_lock(&fake.lock);
	for (int i = 0; i < FAKE_COUNTS; i++)
		all += fake.live[i];
	pthread_mutex_unlock(&fake.lock);
	return all;
}

uint64_t fakegpu_violations(void)
{
	return __atomic_load_n(&fake.violations, __ATOMIC_RELAXED);
}

static void write_report(void)
{
	const char *path = getenv("FAKEGPU_REPORT");
	char text[1024];
	FILE *f;

	if (!path || !*path)
		return;
	fakegpu_report(text, sizeof(text));
	f = fopen(path, "a");
	if (!f)
		return;
	fputs(text, f);
	fclose(f);
}

static void start(void)
{
	fake.n_devices = (int)number("FAKEGPU_DEVICES", 1);
	if (fake.n_devices > FAKE_DEVICES_MAX)
		fake.n_devices = FAKE_DEVICES_MAX;
	fake.random = number("FAKEGPU_SEED", 1) * 0x9e3779b97f4a7c15ull + 1;
	fake.eager = number("FAKEGPU_EAGER", 0) != 0;
	fake.pkey = pkey_alloc(0, PKEY_DISABLE_ACCESS);
	for (int i = 0; i < fake.n_devices; i++) {
		struct fake_device *d = &fake.device[i];

		d->limit = number("FAKEGPU_MEMORY", 1ull << 30);
		d->base = mmap(NULL, RESERVE, PROT_NONE,
			       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
		if (d->base == MAP_FAILED) {
			perror("fakegpu: reserving addresses");
			abort();
		}
	}
	fakegpu_fault(getenv("FAKEGPU_FAULT"));
	atexit(write_report);
}

void fake_init(void)
{
	pthread_once(&once, start);
}

/* ---- device memory ---- */

/*
 * The allocation ends at a page's end, up to GRAIN, and a page without access follows: an access
 * past it is caught at once. Addresses are never used twice, so that a use after free is, too.
 */
cudaError_t fake_alloc(int device, size_t bytes, void **out)
{
	struct fake_device *d = &fake.device[device];
	uint64_t size = (bytes + GRAIN - 1) & ~(GRAIN - 1);
	uint64_t map = (size + PAGE - 1) & ~(PAGE - 1);
	struct block *b = calloc(1, sizeof(*b));
	cudaError_t rc = b ? cudaSuccess : cudaErrorMemoryAllocation;

	pthread_mutex_lock(&fake.lock);
	if (!rc && (d->used + map > d->limit || d->next + map + PAGE > RESERVE))
		rc = cudaErrorMemoryAllocation;
	if (!rc) {
		b->map = d->base + d->next;
		b->map_bytes = map;
		b->p = (char *)b->map + (map - size);
		b->bytes = bytes;
		b->device = b->owner = device;
		if (mprotect(b->map, map, PROT_READ | PROT_WRITE))
			rc = cudaErrorMemoryAllocation;
		else
			memset(b->map, POISON, map);
		if (!rc && fake.pkey >= 0)
			pkey_mprotect(b->map, map, PROT_READ | PROT_WRITE, fake.pkey);
		else if (!rc && !fake.open)
			mprotect(b->map, map, PROT_NONE);
	}
	if (!rc) {
		d->next += map + PAGE;
		d->used += map;
		if (d->used > d->peak)
			d->peak = d->used;
		LIST_INSERT_HEAD(&blocks, b, link);
		fake.live[FAKE_DEVICE_MEMORY]++;
	}
	pthread_mutex_unlock(&fake.lock);
	if (rc) {
		free(b);
		return rc;
	}
	*out = b->p;
	return cudaSuccess;
}

static void set_rights(int rights)
{
	struct block *b;

	LIST_FOREACH (b, &blocks, link)
		if (b->device >= 0)
			mprotect(b->map, b->map_bytes, rights);
	fake.open = rights != PROT_NONE;
}

void fake_open_memory(void)
{
	if (fake.pkey < 0 && !fake.open)
		set_rights(PROT_READ | PROT_WRITE);
}

void fake_close_memory(void)
{
	if (fake.pkey < 0 && fake.open)
		set_rights(PROT_NONE);
}

static struct block *find(const void *p, int device)
{
	const char *c = p;
	struct block *b;

	LIST_FOREACH (b, &blocks, link)
		if (c >= b->p && c < b->p + b->bytes && (device == -2 || b->device == device))
			return b;
	return NULL;
}

static void unmap(struct block *b)
{
	mmap(b->map, b->map_bytes, PROT_NONE,
	     MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
	free(b);
}

cudaError_t fake_free(void *p)
{
	struct block *b;

	if (!p)
		return cudaSuccess;
	pthread_mutex_lock(&fake.lock);
	b = find(p, -2);
	if (b && (b->p != p || b->device < 0))
		b = NULL;
	if (b) {
		LIST_REMOVE(b, link);
		fake.device[b->device].used -= b->map_bytes;
		fake.live[FAKE_DEVICE_MEMORY]--;
	}
	pthread_mutex_unlock(&fake.lock);
	if (!b) {
		fake_violation("cudaFree of %p, which is no live device allocation", p);
		return cudaErrorInvalidValue;
	}
	unmap(b);
	return cudaSuccess;
}

cudaError_t fake_alloc_pinned(size_t bytes, void **out)
{
	struct block *b = calloc(1, sizeof(*b));

	if (!b)
		return cudaErrorMemoryAllocation;
	b->p = aligned_alloc(PAGE, (bytes + PAGE - 1) & ~(PAGE - 1));
	if (!b->p) {
		free(b);
		return cudaErrorMemoryAllocation;
	}
	memset(b->p, POISON, bytes);
	b->bytes = bytes;
	b->device = -1;
	b->owner = *fake_current();
	pthread_mutex_lock(&fake.lock);
	LIST_INSERT_HEAD(&blocks, b, link);
	fake.live[FAKE_PINNED_MEMORY]++;
	pthread_mutex_unlock(&fake.lock);
	*out = b->p;
	return cudaSuccess;
}

cudaError_t fake_free_pinned(void *p)
{
	struct block *b;

	if (!p)
		return cudaSuccess;
	pthread_mutex_lock(&fake.lock);
	b = find(p, -1);
	if (b && b->p == p && !b->registered) {
		LIST_REMOVE(b, link);
		fake.live[FAKE_PINNED_MEMORY]--;
	} else {
		b = NULL;
	}
	pthread_mutex_unlock(&fake.lock);
	if (!b) {
		fake_violation("cudaFreeHost of %p, which is no live pinned allocation", p);
		return cudaErrorInvalidValue;
	}
	free(b->p);
	free(b);
	return cudaSuccess;
}

/* ---- host memory that is somebody else's, pinned ---- */

/* Pages of this process, all of them. */
static bool mapped(const void *p, size_t bytes)
{
	size_t pages = bytes / PAGE;
	unsigned char *in = malloc(pages);
	bool all = in && !mincore((void *)(uintptr_t)p, bytes, in);

	free(in);
	return all;
}

/* cudaHostRegister takes any address and pins the pages around it; here whole pages are wanted, so
 * that no page is in two registrations. */
cudaError_t fake_register(void *p, size_t bytes, bool read_only)
{
	struct block *b, *other;
	cudaError_t rc = cudaSuccess;

	if ((uintptr_t)p % PAGE || bytes % PAGE) {
		fake_violation("cudaHostRegister of %zu bytes at %p: not whole pages", bytes, p);
		return cudaErrorInvalidValue;
	}
	if (!p || !bytes || !mapped(p, bytes))
		return cudaErrorInvalidValue;
	b = calloc(1, sizeof(*b));
	if (!b)
		return cudaErrorMemoryAllocation;
	*b = (struct block){.p = p,
			    .bytes = bytes,
			    .device = -1,
			    .owner = *fake_current(),
			    .registered = true,
			    .read_only = read_only};
	pthread_mutex_lock(&fake.lock);
	LIST_FOREACH (other, &blocks, link)
		if (other->device < 0 && other->p < b->p + bytes && b->p < other->p + other->bytes)
			rc = cudaErrorHostMemoryAlreadyRegistered;
	if (!rc) {
		LIST_INSERT_HEAD(&blocks, b, link);
		fake.live[FAKE_REGISTERED_MEMORY]++;
	}
	pthread_mutex_unlock(&fake.lock);
	if (rc)
		free(b);
	return rc;
}

cudaError_t fake_unregister(void *p)
{
	struct block *b;

	pthread_mutex_lock(&fake.lock);
	b = find(p, -1);
	if (b && (b->p != p || !b->registered))
		b = NULL;
	if (b) {
		LIST_REMOVE(b, link);
		fake.live[FAKE_REGISTERED_MEMORY]--;
	}
	pthread_mutex_unlock(&fake.lock);
	if (!b) {
		fake_violation("cudaHostUnregister of %p, which is not registered", p);
		return cudaErrorHostMemoryNotRegistered;
	}
	if (!mapped(b->p, b->bytes))
		fake_violation("cudaHostUnregister of %p after its memory was unmapped", p);
	free(b);
	return cudaSuccess;
}

static void drop_memory(int device)
{
	struct block *b, *next;

	for (b = LIST_FIRST(&blocks); b; b = next) {
		next = LIST_NEXT(b, link);
		if (b->owner != device)
			continue;
		LIST_REMOVE(b, link);
		fake.live[b->registered	  ? FAKE_REGISTERED_MEMORY
			  : b->device < 0 ? FAKE_PINNED_MEMORY
					  : FAKE_DEVICE_MEMORY]--;
		if (b->device >= 0) {
			unmap(b);
			continue;
		}
		if (!b->registered)
			free(b->p);
		free(b);
	}
	fake.device[device].used = 0;
}

/* ---- the end of a device's context ---- */

void fake_on_reset(void (*end)(int device))
{
	pthread_mutex_lock(&fake.lock);
	for (int i = 0; i < HOOKS_MAX; i++) {
		if (hook[i] && hook[i] != end)
			continue;
		hook[i] = end;
		break;
	}
	pthread_mutex_unlock(&fake.lock);
}

void fake_reset(int device)
{
	pthread_mutex_lock(&fake.lock);
	for (int i = 0; i < HOOKS_MAX && hook[i]; i++)
		hook[i](device);
	exec_reset(device);
	exec_reset_events(device);
	exec_reset_graphs(device);
	drop_memory(device);
	fake.device[device].sticky = cudaSuccess;
	fake_wake();
	pthread_mutex_unlock(&fake.lock);
}

bool fake_device_range(int device, const void *p, size_t bytes, const char *what)
{
	struct block *b;
	bool good;

	if (!bytes)
		return true;
	pthread_mutex_lock(&fake.lock);
	b = find(p, -2);
	good = b && b->device >= 0 && (device < 0 || b->device == device) &&
	       bytes <= (size_t)(b->p + b->bytes - (const char *)p);
	pthread_mutex_unlock(&fake.lock);
	if (!good)
		fake_violation("%s: %zu bytes at %p are not in one live allocation of device %d%s",
			       what, bytes, p, device,
			       b && b->device < 0 ? " (it is host memory)" : "");
	return good;
}

bool fake_pinned_range(const void *p, size_t bytes, bool write)
{
	struct block *b;
	bool good;

	pthread_mutex_lock(&fake.lock);
	b = find(p, -1);
	good = b && bytes <= (size_t)(b->p + b->bytes - (const char *)p) &&
	       !(write && b->read_only);
	pthread_mutex_unlock(&fake.lock);
	return good;
}

void fake_scribble(void *p, size_t bytes)
{
	size_t part = bytes < SCRIBBLE ? bytes : SCRIBBLE;

	if (!part)
		return;
	memset(p, POISON, part);
	memset((char *)p + bytes - part, POISON, part);
}

int fake_device_of(const void *p)
{
	for (int i = 0; i < fake.n_devices; i++)
		if ((const char *)p >= fake.device[i].base &&
		    (const char *)p < fake.device[i].base + RESERVE)
			return i;
	return -1;
}
