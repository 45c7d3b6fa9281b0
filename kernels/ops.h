/* SPDX-License-Identifier: MIT */
/*
 * ops.h: what stands behind backend.h. A back end is a table of functions; kernels/backend.c checks
 * the arguments of every public call and then goes through the table, so that a back end sees only
 * checked graphs, options and batches. For back ends only: users of a back end include backend.h.
 */
#ifndef BACKEND_OPS_H
#define BACKEND_OPS_H

#include <errno.h>

#include "backend.h"

/* Raised whenever a struct or a signature below changes; a table of another version is refused. */
#define BACKEND_OPS_VERSION 5
#define BACKEND_SLOTS_MAX 3
#define BACKEND_ALIGN_FLOATS (BACKEND_ALIGN / sizeof(float))

struct backend_ops {
	uint32_t version; /* BACKEND_OPS_VERSION */
	const char *name;
	/* The back end's struct begins with struct backend; open fills info, the front ops and
	 * options. */
	int (*open)(const struct backend_options *options, struct backend **out,
		    struct backend_error *error);
	void (*close)(struct backend *backend);
	int (*estimate)(struct backend *backend, const struct backend_graph *graph,
			const struct backend_net_options *options, uint64_t *bytes);
	/* The back end's struct begins with struct backend_net, set up by backend_net_init. */
	int (*compile)(struct backend *backend, const struct backend_graph *graph,
		       const struct backend_net_options *options, struct backend_net **out,
		       struct backend_error *error);
	void (*free)(struct backend_net *net);
	/* optional (NULL: memcpy from and to net->arena); the range is checked already */
	int (*read)(struct backend_net *net, enum backend_arena arena, uint64_t offset, uint64_t n,
		    float *destination);
	int (*write)(struct backend_net *net, enum backend_arena arena, uint64_t offset, uint64_t n,
		     const float *source);
	/* optional: the caller has written to a host arena */
	void (*touch)(struct backend_net *net, enum backend_arena arena);
	int (*gradient)(struct backend_net *net, const struct backend_batch *batch, float scale,
			bool accumulate, backend_bucket_fn on_bucket, void *context,
			struct backend_sums *sums, float *outputs, struct backend_error *error);
	/* May use the gradient arena as it likes (regularisers are added there). */
	int (*apply)(struct backend_net *net, double lr, uint64_t t,
		     struct backend_applied *applied, struct backend_error *error);
	/* optional (NULL: gradient, then apply) */
	int (*step)(struct backend_net *net, const struct backend_batch *batch, float scale,
		    double lr, uint64_t t, struct backend_sums *sums, float *outputs,
		    struct backend_applied *applied, struct backend_error *error);
	/* optional (NULL: from net->arena) */
	double (*penalty)(struct backend_net *net);
	/* param and stat: both given, or both NULL; n > 0 or not; sums only with label or target */
	int (*evaluate)(struct backend_net *net, const float *param, const float *stat,
			const struct backend_batch *batch, struct backend_sums *sums,
			float *outputs, struct backend_error *error);
	/* optional: backend_resident sets net->resident_rows to n after it */
	int (*resident)(struct backend_net *net, const void *const *x, uint32_t n,
			struct backend_error *error);
	/* optional */
	float *(*device_arena)(struct backend_net *net, enum backend_arena arena);
	/* optional */
	int (*merge)(struct backend *backend, const struct backend_merge *merge,
		     struct backend_error *error);
	/* optional; without lost a back end never is */
	bool (*lost)(const struct backend *backend);
	int (*host_register)(struct backend *backend, const void *memory, size_t bytes,
			     struct backend_error *error);
	void (*host_unregister)(struct backend *backend, const void *memory);
	/* optional */
	int (*devices)(struct backend_device *out, uint32_t max, uint32_t *n,
		       struct backend_error *error);
};

extern const struct backend_ops backend_ref_ops;
extern const struct backend_ops backend_cpu_ops;

/* A back end in a shared object exports this name; NULL: it has another version. */
#define BACKEND_ENTRY "backend_entry"
typedef const struct backend_ops *(*backend_entry_fn)(uint32_t version);
/* plugin.c: -ENOENT where no object is found. It stays loaded. */
int backend_plugin(const char *name, const struct backend_ops **out, struct backend_error *error);

struct backend {
	const struct backend_ops *ops;
	struct backend_options options;
	char info[256];
};

/*
 * The front guarantees: sums, outputs and applied of gradient, apply and step may be NULL only
 * where backend.h allows NULL (outputs); the front hands in its own struct where the caller gave
 * NULL. batch->n <= max_batch; x, label or target are there; labels are in range.
 */
struct backend_net {
	struct backend *backend;
	struct backend_graph graph;	    /* own copy */
	struct backend_net_options options; /* own copy */
	uint64_t outputs;		    /* elements of one row of the output node */
	uint32_t n_slots;
	const char *slot_name[BACKEND_SLOTS_MAX];
	uint64_t bytes; /* what backend_net_bytes tells; set by the back end */
	uint32_t resident_rows;
	/* host arenas, BACKEND_ALIGN-aligned, indexed by enum backend_arena; the slots lie one
	 * after the other, param_floats each; NULL where absent (inference) or kept elsewhere */
	float *arena[4];
	void *memory; /* holds the copies of graph and options */
};

/* Formats the message; returns code. error may be NULL. */
int backend_fail(struct backend_error *error, int code, const char *fmt, ...)
	__attribute__((format(printf, 3, 4)));

/* Copies graph and options, counts the slots. Undone by backend_net_fini, which leaves the arenas
 * alone. net must be zeroed. */
int backend_net_init(struct backend_net *net, struct backend *backend,
		     const struct backend_graph *graph, const struct backend_net_options *options,
		     struct backend_error *error);
void backend_net_fini(struct backend_net *net);
/* Floats of an arena, present or not: param_floats, stat_floats, n_slots * param_floats. */
uint64_t backend_net_floats(const struct backend_net *net, enum backend_arena arena);
/* Writes the start values of the optimizer's slots (zero; Adagrad: initial_accumulator). slot: the
 * host slot arena. */
void backend_net_init_slots(const struct backend_net *net, float *slot);
/* Names of the slots that an optimizer needs; returns their number. */
uint32_t backend_optimizer_slots(const struct backend_optimizer_config *config,
				 const char *name[BACKEND_SLOTS_MAX]);

static inline uint64_t backend_shape_count(struct backend_shape shape)
{
	return (uint64_t)shape.h * shape.w * shape.c;
}

#endif
