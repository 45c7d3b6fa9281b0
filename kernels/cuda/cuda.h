/* SPDX-License-Identifier: MIT */
/*
 * cuda.h: the host part of the CUDA back end, from the inside. A backend is one device with its
 * library handles; a net is one plan (plan.h) with its memory, streams and captured graphs; a shape
 * is what depends on the number of rows.
 */
#ifndef CUDA_CUDA_H
#define CUDA_CUDA_H

#include <cublasLt.h>
#include <cuda_runtime_api.h>
#include <cudnn.h>
#include <sys/queue.h>

#include "../ops.h"
#include "launch.h"
#include "plan.h"

#define SLOTS 2		     /* of staged batches */
#define SCALE_START 32768.0f /* loss scale of f16, as Keras' LossScaleOptimizer */
#define SHAPES_MAX 8	     /* numbers of rows that are kept */
#define RECORDINGS_MAX 8     /* of one shape */

struct cuda_backend {
	struct backend base;
	int device, capability, multiprocessors;
	enum cuda_type type; /* of activations */
	bool lost, hung;     /* hung: something on it never ends */
	uint32_t timeout_ms;
	char why[160];	/* it is lost */
	uint64_t bytes; /* device memory held */
	LIST_HEAD(, cuda_net) nets;
	bool read_only;	 /* memory can be pinned for reading alone */
	struct pin *pin; /* n_pins of them, by address */
	uint32_t n_pins, pins_capacity;
	cudnnHandle_t dnn;
	cublasLtHandle_t lt;
	cudnnActivationDescriptor_t relu, identity;
	struct choice *choice; /* conv_choose.c: algorithms found so far */
	uint32_t n_choices;
};

/* One of a convolution's three operations. */
struct algorithm {
	bool ok;    /* cuDNN does it; else own kernels */
	bool fused; /* forward: with bias and activation */
	int algo;
	cudnnMathType_t math;
	size_t workspace;
};
enum direction { FORWARD = 0, DATA, FILTER, DIRECTIONS };

/* A convolution in cuDNN's terms, for every number of rows. */
struct conv {
	cudnnFilterDescriptor_t filter;
	cudnnConvolutionDescriptor_t conv;
	cudnnTensorDescriptor_t bias;
	cudnnMathType_t math; /* the widest that the precision allows */
	bool padded;	      /* x is copied with its zeros first */
	struct image in;      /* as cuDNN sees it: with them */
};

struct conv_shape {
	cudnnTensorDescriptor_t x, y;
	struct algorithm algorithm[DIRECTIONS];
};

struct product {
	cublasLtMatmulDesc_t desc;
	cublasLtMatmulAlgo_t algo;
	bool ok;
};
/* forward; forward with epilogue; input gradient; weight gradient */
enum dense_product { DENSE_PLAIN = 0, DENSE_FUSED, DENSE_DATA, DENSE_FILTER, DENSE_PRODUCTS };
struct dense_shape {
	cublasLtMatrixLayout_t w, x, y, dw, dy;
	struct product product[DENSE_PRODUCTS];
};

/* A sequence of calls that was captured; segments where the caller is told of buckets. */
struct key {
	uint32_t kind, flags; /* flags: KEY_* */
	float loss_scale;
	uint32_t pad;
};
#define KEY_ACCUMULATE 1u
#define KEY_OUTPUTS 2u
#define KEY_BUCKETS 4u
#define KEY_OTHER 8u /* parameters from elsewhere */
struct recording {
	struct key key;
	uint32_t runs, n;
	cudaGraphExec_t *segment; /* n; NULL: not captured yet */
};

struct shape {
	uint32_t n;
	uint64_t used;		   /* clock of the last use */
	struct conv_shape *conv;   /* [group] */
	struct dense_shape *dense; /* [group] */
	struct recording recording[RECORDINGS_MAX];
	uint32_t n_recordings;
};

/* A staged batch: pinned memory and its place on the device. */
struct slot {
	char *host, *device;
	cudaEvent_t ready;
	bool sent;		    /* a copy was begun, and nobody has waited for it */
	bool full, want;	    /* holds `batch`; with labels or targets */
	struct backend_batch batch; /* what it holds */
	const void **x;		    /* copy of the row pointers */
	struct step_block block;    /* the pointers of it */
};

/* Parameters to compute with. */
struct weights {
	const float *param;
	float *stat;
	void *packed;
};

struct cuda_net {
	struct backend_net base;
	LIST_ENTRY(cuda_net) of_gpu;
	bool listed;
	struct cuda_backend *gpu;
	struct plan plan;
	cudaStream_t stream, copy;
	cudaEvent_t done;
	cudaEvent_t *bucket_ready; /* one per bucket */
	struct conv *conv;	   /* [group] */
	struct shape *shape[SHAPES_MAX];
	struct shape *no_rows; /* of calls that do not depend on rows */
	bool ready;	       /* base and gpu are set up */
	uint64_t clock;
	bool graphs; /* captured sequences are in use */
	size_t workspace_limit;
	void *memory, *pinned; /* all device memory but gradients and resident rows; all pinned */
	uint64_t memory_bytes, cleared; /* cleared: bytes that begin as zeros */
	/* device memory */
	float *arena[4];
	struct weights own, other;
	char *values, *scratch;
	void *workspace;
	size_t scratch_bytes, workspace_bytes;
	float *input_scaling; /* mul, add */
	float *rescale_table; /* scale, offset of RESCALE nodes, one after the other */
	float **rescale;      /* [node] its place there, or NULL */
	float *outputs;	      /* max_batch * outputs */
	double *row_loss;
	void *resident;
	uint64_t resident_bytes;
	/* packed copies */
	uint64_t *packed_at; /* [tensor] element offset, or UINT64_MAX */
	uint64_t packed_elements;
	struct pack_tile *tiles;
	uint32_t n_tiles;
	bool stale; /* the own packed copies */
	/* optimizer */
	struct update_args update;
	float loss_scale;
	uint32_t good_steps;
	/* pinned, and their places on the device */
	struct step_block *block, *device_block;
	struct step_result *result, *device_result;
	float *host_outputs;
	char *bounce; /* for read and write */
	uint64_t bounce_bytes;
	struct slot slot[SLOTS];
	uint32_t next_slot;
	uint64_t pitch;	   /* of a row in a slot */
	bool grad_foreign; /* the gradient arena is the caller's allocator's */
};

/* One pass of calls. */
struct pass {
	struct cuda_net *net;
	struct shape *shape;
	struct weights w;
	bool training, accumulate, outputs;
	struct backend_error *error;
};

/* ---- device.c: errors and memory ------------------------------------------------------------ */

/* Code and message for a failed call of the runtime; notes when the device is lost. */
int cuda_failed(struct cuda_backend *gpu, int code, const char *what, struct backend_error *error);
int cudnn_failed(struct cuda_backend *gpu, cudnnStatus_t code, const char *what,
		 struct backend_error *error);
int cublas_failed(struct cuda_backend *gpu, cublasStatus_t code, const char *what,
		  struct backend_error *error);
/* Makes the device current for this thread; refuses a lost one. */
int cuda_enter(struct cuda_backend *gpu, struct backend_error *error);
/* Device memory, counted; -ENOMEM tells what was needed and what is free. */
int cuda_alloc(struct cuda_backend *gpu, uint64_t bytes, void **out, struct backend_error *error);
void cuda_release(struct cuda_backend *gpu, void *memory, uint64_t bytes);
/* Until an event has come, or the deadline has passed (the device is lost then). */
int cuda_wait(struct cuda_backend *gpu, cudaEvent_t event, const char *what,
	      struct backend_error *error);

/* ---- the parts of a net ---------------------------------------------------------------------- */

/* Where a node's value, gradient, a buffer lies. */
static inline void *net_buffer(const struct cuda_net *net, uint32_t buffer)
{
	return buffer == NONE ? NULL : net->values + net->plan.buffer[buffer].offset;
}
static inline void *net_value(const struct cuda_net *net, uint32_t node)
{
	return net_buffer(net, net->plan.value[node]);
}
static inline void *net_gradient(const struct cuda_net *net, uint32_t node)
{
	return net_buffer(net, net->plan.gradient[node]);
}
static inline const struct backend_node *net_node(const struct cuda_net *net, uint32_t node)
{
	return &net->base.graph.node[node];
}
static inline struct image image_of(struct backend_shape s)
{
	return (struct image){s.h, s.w, s.c};
}
struct window window_of(const struct backend_node *node);
struct act act_of(const struct cuda_net *net, uint32_t node); /* NONE: linear */
/* rows x c, cut for this device; wide: four columns a thread where they divide */
struct cols cols_of(const struct cuda_backend *gpu, uint64_t rows, uint32_t c, bool wide);
/* The most chunks that these or fewer rows are cut into. */
uint64_t cols_most(const struct cuda_backend *gpu, uint64_t rows, uint32_t c, bool wide);
/* Tensor k of a node: f32 parameter or statistic of the pass, NULL: none. */
const float *pass_tensor(const struct pass *p, const struct backend_node *node, int k);
/* Its packed copy, or the f32 one where there is none. */
const void *pass_packed(const struct pass *p, const struct backend_node *node, int k);
/* Place of its gradient, NULL where it is not trained; *add: to what is there. */
float *pass_gradient(const struct pass *p, const struct group *g, int k, bool *add);

/* conv.c, conv_choose.c, dense.c */
int conv_prepare(struct cuda_net *net, struct backend_error *error);
void conv_release(struct cuda_net *net);
int conv_shape_make(struct cuda_net *net, struct shape *shape, uint32_t group,
		    struct backend_error *error);
void conv_shape_free(struct conv_shape *shape);
int conv_choose(struct cuda_net *net, struct shape *shape, uint32_t group,
		struct backend_error *error);
/* Of the copy of x with its zeros; 0: cuDNN pads. */
uint64_t conv_padded_bytes(const struct cuda_net *net, const struct backend_node *node, uint32_t n);
uint64_t conv_scratch(const struct cuda_net *net, const struct backend_node *node, uint32_t n);
int conv_forward(const struct pass *p, uint32_t group);
int conv_backward(const struct pass *p, uint32_t group);
int dense_shape_make(struct cuda_net *net, struct shape *shape, uint32_t group,
		     struct backend_error *error);
void dense_shape_free(struct dense_shape *shape);
size_t dense_workspace(const struct cuda_backend *gpu);
int dense_forward(const struct pass *p, uint32_t group);
int dense_backward(const struct pass *p, uint32_t group);

/* linear.c: what is common to convolutions and dense layers. Bias and activation forward; slope
 * and gradient of the bias backward. */
int linear_finish(const struct pass *p, const struct group *g, bool bias);
int linear_begin_backward(const struct pass *p, const struct group *g);
uint64_t linear_scratch(const struct cuda_net *net, const struct backend_node *node, uint32_t n);
int depthwise_forward(const struct pass *p, const struct group *g);
int depthwise_backward(const struct pass *p, const struct group *g);
uint64_t depthwise_scratch(const struct cuda_net *net, const struct backend_node *node, uint32_t n);

/* norm.c, other.c */
int norm_forward(const struct pass *p, const struct group *g);
int norm_backward(const struct pass *p, const struct group *g);
uint64_t norm_scratch(const struct cuda_net *net, const struct backend_node *node, uint32_t n);
int sum_forward(const struct pass *p, const struct group *g);
int sum_backward(const struct pass *p, const struct group *g);
int other_forward(const struct pass *p, const struct group *g);
int other_backward(const struct pass *p, const struct group *g);

/* exec.c: the passes, all only enqueue */
int exec_forward(const struct pass *p);
int exec_loss(const struct pass *p, bool gradient);
/* Backward parts of groups [last, first], downwards. */
int exec_backward(const struct pass *p, uint32_t first, uint32_t last);
int exec_clear(const struct pass *p); /* gradients that nobody writes */
int exec_update(const struct pass *p);
int exec_pack(struct cuda_net *net, const struct weights *w, struct backend_error *error);

/* stage.c */
uint64_t stage_bytes(const struct cuda_net *net); /* of a slot */
/* Rows of a batch to the device, where they are not there already; want: labels or targets too. The
 * net's stream waits for them. */
int stage_batch(struct cuda_net *net, const struct backend_batch *batch, bool want,
		struct slot **out, struct backend_error *error);
/* Those of the call after this one, if they are known. */
int stage_ahead(struct cuda_net *net, const struct backend_batch *next,
		struct backend_error *error);
uint64_t stage_row(const struct cuda_net *net); /* bytes of a row as stored */
int stage_resident(struct backend_net *net, const void *const *x, uint32_t n,
		   struct backend_error *error);

/* pin.c: host memory that is pinned, and may be copied from as it lies */
int pin_register(struct backend *backend, const void *memory, size_t bytes,
		 struct backend_error *error);
void pin_unregister(struct backend *backend, const void *memory);
void pin_release(struct cuda_backend *gpu); /* all of it */
bool pin_holds(const struct cuda_backend *gpu, const void *memory, size_t bytes);

/* record.c: runs segments 0 .. n - 1 of a sequence, captured from the second time on. */
struct sequence {
	int (*segment)(void *context, uint32_t k); /* enqueues */
	int (*after)(void *context, uint32_t k); /* on the host, once it is enqueued; may be NULL */
	void *context;
	uint32_t n;
};
int record_run(struct cuda_net *net, struct shape *shape, const struct key *key,
	       const struct sequence *sequence, struct backend_error *error);
void record_free(struct shape *shape, bool hung);
int shape_make(struct cuda_net *net, uint32_t n, bool products, struct shape **out,
	       struct backend_error *error);
/* One of the shapes that are kept, or a new one in place of the oldest. */
int shape_get(struct cuda_net *net, uint32_t n, struct shape **out, struct backend_error *error);
void shape_free(struct cuda_net *net, struct shape *shape);

/* step.c */
int cuda_gradient(struct backend_net *net, const struct backend_batch *batch, float scale,
		  bool accumulate, backend_bucket_fn on_bucket, void *context,
		  struct backend_sums *sums, float *outputs, struct backend_error *error);
int cuda_apply(struct backend_net *net, double lr, uint64_t t, struct backend_applied *applied,
	       struct backend_error *error);
int cuda_step(struct backend_net *net, const struct backend_batch *batch, float scale, double lr,
	      uint64_t t, struct backend_sums *sums, float *outputs,
	      struct backend_applied *applied, struct backend_error *error);
int cuda_evaluate(struct backend_net *net, const float *param, const float *stat,
		  const struct backend_batch *batch, struct backend_sums *sums, float *outputs,
		  struct backend_error *error);
double cuda_penalty(struct backend_net *net);

/* packed.c: offsets of the packed copies and, in *tile, the table of tiles */
int packed_plan(struct cuda_net *net, struct pack_tile **tile, struct backend_error *error);

/* tables.c: their sizes; their contents to the device; the arguments of the optimizer */
void tables_count(struct cuda_net *net);
int tables_upload(struct cuda_net *net, const struct pack_tile *tile, struct backend_error *error);
void tables_use(struct cuda_net *net);

/* arith.c */
int cuda_merge(struct backend *backend, const struct backend_merge *merge,
	       struct backend_error *error);

/* net.c, transfer.c */
int cuda_estimate(struct backend *backend, const struct backend_graph *graph,
		  const struct backend_net_options *options, uint64_t *bytes);
int cuda_compile(struct backend *backend, const struct backend_graph *graph,
		 const struct backend_net_options *options, struct backend_net **out,
		 struct backend_error *error);
void cuda_free(struct backend_net *net);
int cuda_read(struct backend_net *net, enum backend_arena arena, uint64_t offset, uint64_t n,
	      float *destination);
int cuda_write(struct backend_net *net, enum backend_arena arena, uint64_t offset, uint64_t n,
	       const float *source);
/* Host memory to device memory, in pieces through the bounce buffer; and back. */
int cuda_upload(struct cuda_net *net, void *to, const void *from, uint64_t bytes,
		struct backend_error *error);
int cuda_download(struct cuda_net *net, void *to, const void *from, uint64_t bytes,
		  struct backend_error *error);

#endif
