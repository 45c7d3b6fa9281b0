/* SPDX-License-Identifier: MIT */
/*
 * fake.h: what the simulated libraries share. tests/fakegpu stands in for libcudart, libcudnn,
 * libcublasLt and libnccl on a machine without a GPU, so that the very objects built by nvcc run in
 * CI. It is a test instrument: it checks arguments as the real libraries do, runs streams
 * asynchronously and in an order chosen by a seed, poisons fresh memory, injects faults and counts
 * every resource. It says nothing about speed or about the real libraries' own limits.
 *
 * Device memory can be touched by the executor thread alone, which runs kernels, copies and library
 * calls: by a memory protection key where the processor has them, else by taking all rights from
 * the pages whenever the executor rests. Host code that dereferences a device pointer dies as it
 * would on a real host.
 *
 * Environment: FAKEGPU_DEVICES (1), FAKEGPU_MEMORY bytes per device (1 GiB), FAKEGPU_SEED (1),
 * FAKEGPU_EAGER=1 run work at once,
 * FAKEGPU_READ_ONLY=0 no registrations that are read-only to the device, FAKEGPU_FAULT
 * (fake_fault), FAKEGPU_KERNELS path of the host build of the kernels, FAKEGPU_REPORT path of a
 * file that gets one JSON line at exit.
 */
#ifndef FAKEGPU_FAKE_H
#define FAKEGPU_FAKE_H

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/queue.h>

#include <cuda_runtime_api.h>

#define FAKE_DEVICES_MAX 16

/* ---- core.c: devices, memory, faults, counts ---- */

enum fake_count {
	FAKE_DEVICE_MEMORY = 0, /* allocations */
	FAKE_PINNED_MEMORY,
	FAKE_STREAMS,
	FAKE_EVENTS,
	FAKE_GRAPHS,
	FAKE_GRAPH_EXECS,
	FAKE_DNN_HANDLES,
	FAKE_DNN_DESCRIPTORS,
	FAKE_BLAS_HANDLES,
	FAKE_BLAS_DESCRIPTORS,
	FAKE_COMMS,
	FAKE_REGISTERED_MEMORY,
	FAKE_COUNTS
};

struct fake_device {
	uint64_t limit, used, peak;
	char *base; /* reserved addresses */
	uint64_t next;
	cudaError_t sticky; /* the context is broken until cudaDeviceReset */
};

struct fake {
	pthread_mutex_t lock; /* guards everything here */
	int n_devices;
	struct fake_device device[FAKE_DEVICES_MAX];
	int64_t live[FAKE_COUNTS];
	uint64_t violations, kernels, copies, calls;
	uint64_t random;
	int pkey;  /* -1: the processor has none */
	bool open; /* without keys: the executor works, the pages may be touched */
	bool eager;
};
extern struct fake fake;

void fake_init(void);	    /* idempotent; every entry point calls it */
int *fake_current(void);    /* this thread's device */
uint64_t fake_random(void); /* lock held */
void fake_add(enum fake_count what, int n);
/* A wrong use of the interface: printed, counted, and the test fails by the count. */
void fake_violation(const char *fmt, ...) __attribute__((format(printf, 1, 2)));

cudaError_t fake_alloc(int device, size_t bytes, void **out);
cudaError_t fake_free(void *p);
/* Around work of the executor; lock held. */
void fake_open_memory(void);
void fake_close_memory(void);
cudaError_t fake_alloc_pinned(size_t bytes, void **out);
cudaError_t fake_free_pinned(void *p);
/* [p, p + bytes) lies in one live allocation of that device (-1: any); else a violation. */
bool fake_device_range(int device, const void *p, size_t bytes, const char *what);
/* Pinned by an allocation or by a registration; write: and not read-only to the device. */
bool fake_pinned_range(const void *p, size_t bytes, bool write);
cudaError_t fake_register(void *p, size_t bytes, bool read_only);
cudaError_t fake_unregister(void *p);
/* What a library does to its workspace: begin and end of a large one, which costs less. */
void fake_scribble(void *p, size_t bytes);
/* Which device an address belongs to; -1: none. */
int fake_device_of(const void *p);

/* The Nth call of a name is to fail. FAKEGPU_FAULT and fakegpu_fault: "name[@D]:n:kind[;...]", name
 * a function's or 'kernel' or 'kernel.NAME'; @D: the Nth with device D current; kinds below by
 * their names. */
enum fake_fault {
	FAKE_NONE = 0,
	FAKE_OOM,	 /* oom: out of memory */
	FAKE_ILLEGAL,	 /* illegal: an illegal address, sticky */
	FAKE_ERROR,	 /* error: the library's internal error */
	FAKE_HANG,	 /* hang: the work never ends */
	FAKE_UNSUPPORTED /* unsupported: not supported */
};
enum fake_fault fake_fault(const char *name);
void fakegpu_fault(const char *spec); /* for tests; NULL or "": none */
/* The JSON line; at exit it goes to FAKEGPU_REPORT. */
int fakegpu_report(char *out, size_t size);
/* Live objects of all kinds together. */
int64_t fakegpu_live(void);
uint64_t fakegpu_violations(void);

/* ---- exec.c: streams, events, graphs, the executor ---- */

struct CUstream_st;
struct fake_op {
	TAILQ_ENTRY(fake_op) link;
	const char *name;
	int device;
	/* On the executor, without the lock; may read and write device memory. */
	cudaError_t (*run)(struct fake_op *op);
	/* With the lock; NULL: always. */
	bool (*ready)(struct fake_op *op);
	/* With the lock, when the operation is done or dropped; NULL: nothing. */
	void (*end)(struct fake_op *op);
	size_t bytes; /* of data */
	_Alignas(16) unsigned char data[];
};
TAILQ_HEAD(fake_ops, fake_op);

/*
 * Puts an operation with a copy of data at the end of a stream, or into the graph that it is being
 * captured into.
 */
cudaError_t fake_submit(cudaStream_t stream, const char *name, cudaError_t (*run)(struct fake_op *),
			bool (*ready)(struct fake_op *), void (*end)(struct fake_op *),
			const void *data, size_t bytes);
/* The stream is alive; its device. -1: a violation. */
int fake_stream_device(cudaStream_t stream, const char *what);
bool fake_capturing_here(void); /* this thread captures: unsafe calls must fail */
void fake_wake(void);		/* something has become ready; lock held */
cudaError_t fake_break(int device, cudaError_t error); /* makes it sticky; lock not held */
cudaError_t fake_sticky(int device);
/* cudaDeviceReset: work, memory, streams, events, graphs and the sticky error go. */
void fake_reset(int device);
/* What a library has on a device goes with its context: end is called by every reset, lock held. */
void fake_on_reset(void (*end)(int device));

/* ---- kernels.c ---- */

cudaError_t fake_launch(const char *name, dim3 grid, dim3 block, void **args, size_t shared,
			cudaStream_t stream);

#endif
