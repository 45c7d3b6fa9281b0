/* SPDX-License-Identifier: MIT */
/*
 * ring_impl.h: inside of the ring, for ring.c (the protocol), the back ends behind it (memfd.c,
 * device.c, and map.c for both) and tests that need both ends on one mapping. Not for users of
 * ring.h.
 *
 * Pages of the shared memory: geometry, producer's, consumer's, then the data area, which each end
 * maps twice back to back. Positions are bytes since the beginning and never wrap; a record starts
 * at a multiple of RING_ALIGN.
 */
#ifndef RING_IMPL_H
#define RING_IMPL_H

#include <stdalign.h>
#include <stdatomic.h>

#include "ring.h"

#define RING_MAGIC 0x31474e49524e4e43ull /* "CNNRING1" */
#define RING_ALIGN 16u
#define RING_HEADER 16u
#define RING_PAGES 3 /* before the data */

/*
 * The one place that names memory orders. A publisher stores its index and then looks at the peer's
 * wait word; a sleeper changes its wait word and then looks at the peer's index. Neither may see
 * the old value of both: that needs a single total order, which release and acquire do not give.
 * RING_WEAK_ORDER exists to show that a test notices.
 */
#ifdef RING_WEAK_ORDER
#define RING_STORE memory_order_release
#define RING_LOAD memory_order_acquire
#define RING_ADD memory_order_acq_rel
#else
#define RING_STORE memory_order_seq_cst
#define RING_LOAD memory_order_seq_cst
#define RING_ADD memory_order_seq_cst
#endif

struct ring_geometry {
	uint64_t magic;
	uint32_t version;
	uint32_t page_bytes;
	uint64_t data_bytes;
	uint64_t reserved[5]; /* 0 */
};

/*
 * A side's own page: written by that side only. The words are apart (two lines, for processors that
 * fetch lines in pairs): index changes with every record, wait with every sleep, closed once.
 */
struct ring_side {
	alignas(128) _Atomic uint64_t index; /* head or tail */
	alignas(128) _Atomic uint64_t wait;  /* odd: asleep; only ever incremented */
	alignas(128) _Atomic uint32_t closed;
};

struct ring_header {
	uint32_t length;
	uint16_t type;
	uint16_t flags;
	uint64_t sequence;
};
_Static_assert(sizeof(struct ring_header) == RING_HEADER, "record header");

enum ring_role { RING_PRODUCER, RING_CONSUMER };

/* What differs between back ends. None of them blocks. */
struct ring_ops {
	const char *name;
	int (*export)(const struct ring *ring, int fds[RING_FDS]);
	void (*kick)(struct ring *ring);     /* make the peer's descriptor readable */
	void (*exported)(struct ring *ring); /* NULL: nothing to give up */
	void (*drain)(struct ring *ring);    /* make our own unreadable; may set peer_gone */
	void (*release)(struct ring *ring);  /* unmap, close */
};

struct ring {
	const struct ring_ops *ops;
	enum ring_role role;
	struct ring_side *self;
	struct ring_side *peer; /* mapped read-only */
	uint8_t *data;		/* mapped read-only by the consumer */
	uint64_t size;		/* of the data area */

	uint64_t position;  /* our index: this copy counts, the shared one is only told */
	uint64_t published; /* as last told; the consumer tells in larger steps */
	uint64_t seen;	    /* peer's index as last read and checked */
	uint64_t kicked;    /* peer's wait word that was answered */
	uint64_t sequence;
	uint64_t need;	   /* producer: bytes waited for */
	uint32_t reserved; /* producer: payload of the open reservation */
	bool has_reservation;
	bool has_record; /* consumer: record is the checked header at position */
	bool waiting;
	bool peer_gone; /* the device says so; a memfd cannot */
	int broken;	/* -EPROTO once the peer has broken the protocol; stays */
	struct ring_record record;
	struct ring_stats stats;

	int memory, wake_self, wake_peer; /* descriptors, -1: none */
	void *region;
	size_t region_bytes;
};

/* Zeroed but for role, ops and descriptors (-1). NULL: out of memory. */
struct ring *ring_new(enum ring_role role, const struct ring_ops *ops);
bool ring_legal_bytes(uint64_t bytes);

/* map.c. The windows of the file, as role and size say; on failure ring_close cleans up. */
uint64_t ring_page_bytes(void);
int ring_map(struct ring *ring, int fd);
void ring_unmap(struct ring *ring);
void ring_close_fd(int *fd);
bool ring_fd_is(int fd, const char *link); /* what /proc says, "anon_inode:[eventfd]" */

/* The back ends; attach as ring_attach, but for the closing of fds on failure. */
int ring_memfd_create(size_t bytes, struct ring **out);
int ring_memfd_attach(const int fds[RING_FDS], size_t max_bytes, struct ring *ring);
extern const struct ring_ops ring_memfd_ops;
int ring_device_create(size_t bytes, struct ring **out, char why[RING_WHY]);
bool ring_device_is(int fd);
int ring_device_attach(const int fds[RING_FDS], size_t max_bytes, struct ring *ring);
extern const struct ring_ops ring_device_ops;

#endif
