/* SPDX-License-Identifier: (GPL-2.0 WITH Linux-syscall-note) OR MIT */
/*
 * cnnring.h: the interface of /dev/cnnring, and its specification.
 *
 * A ring is memory shared by one producer and one consumer. The module owns its pages, gives each
 * side access to its own part, wakes a side that sleeps, and tells each side when the other one is
 * gone. What the pages hold is the business of both sides; the module acts on nothing in them.
 *
 * Ends
 *   An open /dev/cnnring is a consumer's end without memory. CREATE gives it its memory, once.
 *   PEER_FD gives, once, a second file: the producer's end. It is meant to be passed on by
 *   SCM_RIGHTS; the receiver needs no right on the device. The creator closes its copy: only then
 *   does the end of the receiver's process end the file. An end is gone when its last file
 *   descriptor and mapping are gone, or after DETACH (a mapping, also a child's, keeps a file that
 *   was closed). The pages live until both ends and all exported dma-bufs are gone.
 *
 * Offsets for mmap(MAP_SHARED), in pages of the system
 *   0    geometry, written once by CREATE    both ends: read-only
 *   1    the producer's page                 producer: read and write, consumer: read-only
 *   2    the consumer's page                 consumer: read and write, producer: read-only
 *   3..  data area, data_bytes long          producer: read and write, consumer: read-only
 *   A mapping lies within one of the four, is never executable, cannot grow (mremap), is not
 *   inherited by fork and not dumped. mprotect cannot widen it. Wherever mmap succeeded, access
 *   never raises SIGBUS. All pages are zero at first, but for the geometry:
 *   struct cnnring_geometry.
 *
 * Statistics
 *   The first 8 bytes of page 1 are taken as the producer's position (bytes written so far), those
 *   at the beginning of page 2 as the consumer's. They are used for QUERY's moved_bytes and the
 *   module's counters, and nothing else.
 *
 * poll, epoll, select
 *   EPOLLIN   a wake-up is pending. ACK takes it away.
 *   EPOLLHUP  (with EPOLLRDHUP) the other end is gone, or this one is detached; stays. A
 *             wake-up becomes pending at that moment too.
 *   EPOLLERR  no memory yet.
 *   A consumer whose PEER_FD was not called has no other end that could be gone.
 *
 * Versions
 *   VERSION works on every file of this module. The caller states its ABI and the features that
 *   it cannot do without; the module answers with its own, also if the call fails: EPROTO another
 *   ABI, EOPNOTSUPP a feature is missing. CREATE checks the ABI once more.
 *
 * Calls: who may use them, and errors beside EFAULT (arg) and EINVAL (a flag that is not known, a
 * pad that is not 0, a value out of range)
 *   ENOTTY  an unknown call, or of the other end; or EXPORT in a kernel without dma-buf
 *   VERSION both     EPROTO, EOPNOTSUPP
 *   CREATE  consumer EBUSY: has memory already. EPROTO: ABI. EINTR: killed. On ENOMEM, EDQUOT and
 *                    ENOSPC `limit` says what was in the way: see CNNRING_LIMIT_*.
 *   PEER_FD consumer returns the descriptor, close-on-exec. EBUSY: was called. ENXIO: no memory
 *   WAKE    both     makes a wake-up pending at the other end. EPIPE: it is gone, or this one is
 *                    detached. ENXIO: no memory
 *   ACK     both     takes the own pending wake-up away; says what is the case
 *   DETACH  both     this end is gone from now on. Again: 0. Mappings stay. ENXIO: no memory
 *   QUERY   both     ENXIO: no memory
 *   EXPORT  consumer returns a dma-buf descriptor of the data area, close-on-exec. ENXIO
 * mmap: EINVAL (range, MAP_PRIVATE), EPERM (executable), EACCES (writing to what is read-only),
 * ENXIO no memory, EPIPE detached.
 *
 * All structures have one size for 32 and 64 bit. The size is part of the call's number, so a
 * longer structure is a new call.
 */
#ifndef _UAPI_LINUX_CNNRING_H
#define _UAPI_LINUX_CNNRING_H

#include <linux/ioctl.h>
#include <linux/types.h>

#define CNNRING_ABI 1

/* feature words */
#define CNNRING_FEATURE_DMABUF	0x1ULL	/* EXPORT */
#define CNNRING_FEATURE_HUGE	0x2ULL	/* CNNRING_CREATE_HUGE has an effect */

struct cnnring_version {
	__u32 abi;		/* in: caller's, out: module's */
	__u32 pad;		/* 0 */
	__u64 features;		/* in: required, out: all that there are */
};

#define CNNRING_MAGIC		0x31474e49524e4e43ULL	/* "CNNRING1" */
#define CNNRING_LAYOUT		1

struct cnnring_geometry {
	__u64 magic;
	__u32 version;		/* CNNRING_LAYOUT */
	__u32 page_bytes;
	__u64 data_bytes;
	__u64 reserved[5];	/* 0 */
};

#define CNNRING_MIN_BYTES	0x10000U
#define CNNRING_MAX_BYTES	0x40000000U

#define CNNRING_CREATE_HUGE	0x1U	/* pages of 2 MiB where there are some */
#define CNNRING_NODE_ANY	0xffffffffU

#define CNNRING_LIMIT_NONE	0
#define CNNRING_LIMIT_MEMORY	1	/* ENOMEM: the system's or the control group's memory */
#define CNNRING_LIMIT_MEMLOCK	2	/* EDQUOT: RLIMIT_MEMLOCK, per user */
#define CNNRING_LIMIT_TOTAL	3	/* ENOSPC: module parameter total_bytes */
#define CNNRING_LIMIT_RING	4	/* ENOSPC: module parameter ring_bytes_max */

struct cnnring_create {
	__u32 abi;		/* CNNRING_ABI */
	__u32 flags;		/* CNNRING_CREATE_* */
	__u64 data_bytes;	/* power of two, CNNRING_MIN_BYTES..CNNRING_MAX_BYTES */
	__u32 node;		/* preferred NUMA node, CNNRING_NODE_ANY */
	__u32 pad;		/* 0 */
	/* out, set on success and on ENOMEM, EDQUOT, ENOSPC */
	__u32 limit;		/* CNNRING_LIMIT_* */
	__u32 pad_out;
	__u64 limit_bytes;	/* its value; 0: not known */
	__u64 used_bytes;	/* of it, before this call */
	__u64 want_bytes;	/* what this call needs, all pages */
};

struct cnnring_peer_fd {
	__u32 flags;		/* 0 */
	__u32 pad;		/* 0 */
};

#define CNNRING_STATE_PENDING	0x1U	/* ACK: there was a wake-up, now taken */
#define CNNRING_STATE_PEER	0x2U	/* the other end exists or has existed */
#define CNNRING_STATE_PEER_GONE	0x4U
#define CNNRING_STATE_DETACHED	0x8U	/* this end */

struct cnnring_ack {
	__u32 state;		/* out: CNNRING_STATE_* */
	__u32 pad;		/* out: 0 */
};

#define CNNRING_PRODUCER	0
#define CNNRING_CONSUMER	1

struct cnnring_query {
	__u32 flags;		/* in: 0 */
	__u32 pad;		/* in: 0 */
	__u32 role;		/* out, all below: CNNRING_PRODUCER | CNNRING_CONSUMER, this end */
	__u32 state;		/* CNNRING_STATE_*; a pending wake-up stays */
	__u64 data_bytes;
	__u64 total_bytes;	/* all pages of the ring */
	__u64 moved_bytes;	/* growth of the producer's position, as far as it was credible */
	__u64 wakes[2];		/* WAKE calls by producer and by consumer */
	__u32 page_bytes;
	__u32 node;		/* as asked for */
	__u32 huge_pages;	/* pages of 2 MiB in the data area */
	__u32 id;		/* number in debugfs and in tracepoints */
	__u64 reserved[4];	/* 0 */
};

struct cnnring_export {
	__u32 flags;		/* 0 */
	__u32 pad;		/* 0 */
};

/* 0xD6: free in Documentation/userspace-api/ioctl/ioctl-number.rst */
#define CNNRING_IOC_MAGIC	0xD6
#define CNNRING_IOC_VERSION	_IOWR(CNNRING_IOC_MAGIC, 0x01, struct cnnring_version)
#define CNNRING_IOC_CREATE	_IOWR(CNNRING_IOC_MAGIC, 0x02, struct cnnring_create)
#define CNNRING_IOC_PEER_FD	_IOW(CNNRING_IOC_MAGIC, 0x03, struct cnnring_peer_fd)
#define CNNRING_IOC_WAKE	_IO(CNNRING_IOC_MAGIC, 0x04)
#define CNNRING_IOC_ACK		_IOR(CNNRING_IOC_MAGIC, 0x05, struct cnnring_ack)
#define CNNRING_IOC_DETACH	_IO(CNNRING_IOC_MAGIC, 0x06)
#define CNNRING_IOC_QUERY	_IOWR(CNNRING_IOC_MAGIC, 0x07, struct cnnring_query)
#define CNNRING_IOC_EXPORT	_IOW(CNNRING_IOC_MAGIC, 0x08, struct cnnring_export)

#endif /* _UAPI_LINUX_CNNRING_H */
