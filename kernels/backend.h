/* SPDX-License-Identifier: MIT */
/*
 * backend.h: the compute seam. A back end compiles a graph of layers and computes gradients,
 * optimizer updates and evaluations on it. Opaque handles in front, an ops table behind
 * (kernels/ops.h). "ref" is the oracle in plain C with double accumulation, "cpu" the fast one
 * (oneDNN, own kernels), "cuda" (cuDNN, cuBLASLt, own kernels) a shared object that is loaded with
 * dlopen. The same numeric conventions hold in all of them: Keras 3 (docs/architecture.md, "Numeric
 * conventions").
 *
 * All tensors are f32. Activations are NHWC, flat activations have h = w = 1. Kernels are HWIO,
 * dense kernels (in, out), as Keras. Errors are 0 or -errno with a message; nothing aborts.
 * One thread at a time per net; nets of one backend may be used from several threads in turn.
 *
 * -ENOTRECOVERABLE from any call: the device has failed for good (an illegal address, a lost
 * device, a step that does not end). Free the nets, close the back end, open a new one; other
 * devices are not concerned. -ENOMEM of a device tells needed and free bytes in its message.
 */
#ifndef BACKEND_H
#define BACKEND_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define BACKEND_NAME_MAX 128
#define BACKEND_ALIGN 64 /* bytes; every tensor of an arena starts at a multiple; gaps are zero */

struct backend_error {
	char message[512];
};

/* ---- graph ------------------------------------------------------------------------------- */

enum backend_op {
	BACKEND_INPUT = 0,
	BACKEND_CONV2D,	   /* tensors: kernel (kh,kw,cin/groups,cout), bias (cout) or -1 */
	BACKEND_DEPTHWISE, /* tensors: kernel (kh,kw,c,mult), bias (c*mult) or -1 */
	BACKEND_DENSE,	   /* on the last axis; tensors: kernel (in,out), bias (out) or -1 */
	BACKEND_MAXPOOL,
	BACKEND_AVGPOOL, /* padding is left out of the mean */
	BACKEND_GLOBAL_AVGPOOL,
	BACKEND_GLOBAL_MAXPOOL,
	BACKEND_BATCHNORM, /* over n,h,w; tensors: gamma, beta (or -1), moving mean, moving variance
			    */
	BACKEND_ACTIVATION,
	BACKEND_ADD,	  /* 2 or more inputs of one shape */
	BACKEND_CONCAT,	  /* axis 0 h, 1 w, 2 c */
	BACKEND_PAD,	  /* zeros; window.pad_* */
	BACKEND_UPSAMPLE, /* window.stride_h/w = factors; nearest, or bilinear */
	BACKEND_RESHAPE,  /* same elements in the same order (Flatten, Reshape) */
	BACKEND_DROPOUT,
	BACKEND_RESCALE, /* y = x * scale + offset */
	BACKEND_FLIP,	 /* RandomFlip: training only */
	BACKEND_SHIFT,	 /* RandomTranslation / RandomCrop after padding: training only */
	BACKEND_CROP,	 /* RandomCrop: window.kh,kw = output size; centre crop in evaluation */
	BACKEND_OP_COUNT
};

enum backend_activation {
	BACKEND_LINEAR = 0,
	BACKEND_RELU,	    /* Keras ReLU: max_value (INFINITY: none), negative_slope, threshold */
	BACKEND_LEAKY_RELU, /* alpha */
	BACKEND_ELU,	    /* alpha */
	BACKEND_SELU,
	BACKEND_SIGMOID,
	BACKEND_HARD_SIGMOID, /* Keras 3: relu6(x + 3) / 6 */
	BACKEND_TANH,
	BACKEND_SOFTPLUS,
	BACKEND_SOFTSIGN,
	BACKEND_SWISH, /* silu */
	BACKEND_GELU,  /* exact (erf) unless approximate */
	BACKEND_GELU_TANH,
	BACKEND_EXPONENTIAL,
	BACKEND_SOFTMAX, /* over the last axis */
	BACKEND_LOG_SOFTMAX,
	BACKEND_ACTIVATION_COUNT
};

struct backend_shape {
	uint32_t h, w, c;
};

struct backend_window {
	uint32_t kh, kw;
	uint32_t stride_h, stride_w;
	uint32_t dilation_h, dilation_w;
	uint32_t pad_top, pad_bottom, pad_left, pad_right; /* 'same' is resolved by the model */
};

struct backend_node {
	enum backend_op op;
	uint32_t n_in;
	const uint32_t *in; /* indices of earlier nodes */
	struct backend_shape out;
	int32_t tensor[4]; /* indices into graph->tensor, -1: none */
	struct backend_window window;
	uint32_t groups;		    /* conv2d */
	uint32_t multiplier;		    /* depthwise */
	uint32_t axis;			    /* concat */
	enum backend_activation activation; /* BACKEND_ACTIVATION only */
	float alpha;			    /* leaky, elu; relu: negative_slope */
	float max_value;		    /* relu; INFINITY: none */
	float threshold;		    /* relu */
	float rate;			    /* dropout; shift: largest share of h */
	float rate_w;			    /* shift: largest share of w */
	float epsilon, momentum;	    /* batch norm */
	const float *scale;		    /* rescale: c values or NULL for scale1/offset1 */
	const float *offset;
	float scale1, offset1;
	bool bilinear;		     /* upsample */
	bool horizontal, vertical;   /* flip */
	bool frozen;		     /* batch norm in inference mode, no statistics update */
	uint32_t layer;		     /* index of the Keras layer; key of random numbers */
	char name[BACKEND_NAME_MAX]; /* layer name, for messages */
};

enum backend_arena { BACKEND_PARAM = 0, BACKEND_STAT = 1, BACKEND_GRAD = 2, BACKEND_SLOT = 3 };

struct backend_tensor {
	char name[BACKEND_NAME_MAX]; /* "layer/kernel" */
	enum backend_arena arena;    /* BACKEND_PARAM or BACKEND_STAT */
	bool trainable;
	uint32_t rank;
	uint32_t dim[4];
	uint64_t count;	 /* elements */
	uint64_t offset; /* in floats, within its arena */
	float l1, l2;	 /* regulariser: l1*sum|w| + l2*sum w^2 (Keras) */
	bool decay;	 /* weight_decay of the optimizer applies (Keras: every trainable tensor) */
};

/* Tensors stand in Keras get_weights order; offsets follow from it (backend_layout). */
struct backend_graph {
	uint32_t n_nodes;
	const struct backend_node *node; /* topological; node[0] is the input */
	uint32_t output;		 /* index of the output node */
	uint32_t n_tensors;
	const struct backend_tensor *tensor;
	uint64_t param_floats, stat_floats; /* sizes of the arenas */
};

/* Fills count and offset of n tensors and the two arena sizes. -EOVERFLOW past 2^40 floats. */
int backend_layout(struct backend_tensor *tensor, uint32_t n, uint64_t *param_floats,
		   uint64_t *stat_floats);
/* Checks every index, shape and attribute of a graph (shapes recomputed from the inputs). */
int backend_graph_check(const struct backend_graph *graph, struct backend_error *error);
/* 64-bit hash of the tensor table: names, shapes, offsets. */
uint64_t backend_graph_hash(const struct backend_graph *graph);

/* ---- random numbers ---------------------------------------------------------------------- */

/* Philox4x32-10 (Salmon et al. 2011, Random123): out = philox(counter, key). */
void backend_philox(const uint32_t counter[4], const uint32_t key[2], uint32_t out[4]);
/* 24 bits to [0,1). */
static inline float backend_uniform(uint32_t bits)
{
	return (float)(bits >> 8) * (1.0f / 16777216.0f);
}
/*
 * Purposes, in counter word 3, keep the streams apart. key = low, high word of the seed.
 * dropout: counter = {element / 4, position (row in the global batch), step (low 32), PURPOSE |
 * layer}; word element % 4 of the output; an element is dropped when uniform < rate, else
 * multiplied by 1 / (1 - rate). flip, shift, crop layers: the same with element = 0.
 * augmentation: counter = {row hash low, row hash high, epoch, PURPOSE}.
 */
enum backend_random {
	BACKEND_RANDOM_DROPOUT = 1u << 24,
	BACKEND_RANDOM_AUGMENT = 2u << 24,
	BACKEND_RANDOM_INIT = 3u << 24,
	BACKEND_RANDOM_ORDER = 4u << 24,
	BACKEND_RANDOM_LAYER = 5u << 24,
};

/* ---- input ------------------------------------------------------------------------------- */

enum backend_dtype {
	BACKEND_U8 = 0,
	BACKEND_I16,
	BACKEND_I32,
	BACKEND_F32,
	BACKEND_F64,
	BACKEND_DTYPE_COUNT
};
size_t backend_dtype_bytes(enum backend_dtype dtype);

/*
 * What stands between a stored row and the input node: x = raw * mul[c] + add[c] (two f32
 * roundings), then, in training only: horizontal flip with probability 1/2; pad with zeros (in
 * normalised units) by `pad` on each side and crop back at a random place; cutout: a square of
 * `cutout` pixels set to zero at a random centre. Random words r0..r3 of the augmentation
 * counter: flip = r0 & 1; dy = r1 % (2 pad + 1), dx = r2 % (2 pad + 1); centre = (r3 & 0xffff) %
 * h, (r3 >> 16) % w.
 */
struct backend_input {
	enum backend_dtype dtype;
	struct backend_shape shape;
	const float *mul; /* shape.c values */
	const float *add;
	bool flip;
	uint32_t pad;
	uint32_t cutout;
};

/* One row to f32 NHWC at out; augment: apply the training part. The shared definition of ref and
 * cpu. hash: two words of the row's key. */
void backend_input_row(const struct backend_input *input, const void *row, bool augment,
		       uint64_t seed, uint32_t epoch, uint64_t hash, float *out);

struct backend_batch {
	uint32_t n;	      /* rows, 0 <= n <= max_batch */
	const void *const *x; /* n rows as stored (shape.h * shape.w * shape.c elements) */
	const uint64_t *hash; /* n row hashes (augmentation), NULL: zeros */
	const int32_t *label; /* n class indices; for the sparse loss */
	const float *target;  /* n * outputs; for every other loss */
	const float *weight;  /* n sample weights, NULL: ones */
	uint64_t seed;
	uint32_t epoch;
	uint64_t step;	   /* global step; key of dropout */
	uint64_t position; /* of the first row in the global batch of this step */
	/* n indices into the rows given to backend_resident; x may then be NULL */
	const uint32_t *index;
	/* A hint: the batch of the next call, so that a device can fetch its rows while it computes
	 * this one. Its arrays and rows stay as they are until that call. NULL: not known. */
	const struct backend_batch *next;
};

/* ---- loss and optimizer ------------------------------------------------------------------ */

enum backend_loss {
	BACKEND_SPARSE_CROSSENTROPY = 0,  /* label */
	BACKEND_CATEGORICAL_CROSSENTROPY, /* target, rows of probabilities */
	BACKEND_BINARY_CROSSENTROPY,
	BACKEND_MSE,
	BACKEND_MAE,
	BACKEND_LOSS_COUNT
};

/*
 * Loss of a sample: Keras 3, mean over the outputs for the last three. from_logits: the output
 * node is linear and the loss applies softmax or sigmoid itself; evaluate then returns the
 * activated values. Where the output node is a softmax (sigmoid) and the loss a cross-entropy, the
 * pair is computed from the logits in one stable step; otherwise probabilities are clipped to
 * [1e-7, 1 - 1e-7].
 */
struct backend_loss_config {
	enum backend_loss loss;
	float label_smoothing;
	bool from_logits;
};

enum backend_optimizer {
	BACKEND_SGD =
		0, /* momentum 0: no slot. v = mu*v - lr*g; w += v; Nesterov: w += mu*v - lr*g */
	BACKEND_ADAM,
	BACKEND_ADAMW,
	BACKEND_RMSPROP,
	BACKEND_ADAGRAD,
	BACKEND_ADADELTA,
	BACKEND_OPTIMIZER_COUNT
};

/* Formulas: Keras 3 keras/src/optimizers. weight_decay is decoupled: w -= lr * weight_decay * w
 * before the update. Clipping: at most one of the three is non-zero. */
struct backend_optimizer_config {
	enum backend_optimizer kind;
	float momentum; /* sgd, rmsprop */
	bool nesterov;
	float beta1, beta2; /* adam: .9, .999 */
	float rho;	    /* rmsprop .9, adadelta .95 */
	float epsilon;	    /* 1e-7 */
	bool amsgrad, centered;
	float initial_accumulator; /* adagrad .1 */
	float weight_decay;
	float clipnorm;	       /* per tensor */
	float clipvalue;       /* per element */
	float global_clipnorm; /* over all trainable tensors */
};

/* ---- backend, net ------------------------------------------------------------------------ */

struct backend;
struct backend_net;
struct backend_pool;

/* A pool of threads shared by every net of the process; threads 0: one per allowed core. */
int backend_pool_create(unsigned int threads, struct backend_pool **out);
void backend_pool_free(struct backend_pool *pool);
unsigned int backend_pool_threads(const struct backend_pool *pool);

/* What a device computes with; parameters, gradients and optimizer are f32 in all of them. */
enum backend_precision {
	BACKEND_PRECISION_F32 = 0, /* products and sums f32, never TF32 */
	BACKEND_PRECISION_TF32,	   /* f32 activations, products on tensor cores */
	BACKEND_PRECISION_BF16,	   /* bf16 activations, f32 sums */
	BACKEND_PRECISION_F16,	   /* f16 activations, f32 sums, dynamic loss scale */
	BACKEND_PRECISION_COUNT
};

/* For tests: the same results by other ways. */
#define BACKEND_NO_GRAPHS 1u  /* nothing is captured */
#define BACKEND_NO_FUSION 2u  /* one operator at a time */
#define BACKEND_NO_LIBRARY 4u /* own convolutions in place of the library's */

struct backend_options {
	struct backend_pool *pool; /* cpu: NULL = the calling thread alone; others ignore it */
	/* devices only; ref and cpu ignore the rest */
	uint32_t device; /* index, as backend_devices counts */
	enum backend_precision precision;
	uint32_t flags;	       /* BACKEND_NO_* */
	uint64_t bucket_bytes; /* least size of a gradient bucket; 0: 4 MiB */
	uint32_t timeout_ms;   /* of a wait for the device; 0: 60 s */
	/* Where the gradient arena comes from (memory that a collective library knows); NULL: the
	 * back end's own. Called with the device current. */
	int (*alloc)(void *context, size_t bytes, void **out);
	void (*release)(void *context, void *memory);
	void *alloc_context;
};

struct backend_device {
	char name[64];
	uint32_t index;
	uint32_t capability; /* CUDA: 10 * major + minor */
	uint64_t total_bytes, free_bytes;
};
/* Lists up to max devices of a back end; *n is how many there are. This touches the driver: a
 * daemon calls it in a child. -ENOENT: the back end's library is not there; *n = 0: no device. */
int backend_devices(const char *name, struct backend_device *out, uint32_t max, uint32_t *n,
		    struct backend_error *error);

/* name: "ref", "cpu", "cuda". info (for the log) gives library versions and the instruction set.
 * "cuda" is looked for as $CNN_CUDA_LIBRARY, else libcnn_cuda.so beside the program, in ../lib of
 * it, and where the loader looks. */
int backend_open(const char *name, const struct backend_options *options, struct backend **out,
		 struct backend_error *error);
void backend_close(struct backend *backend);
const char *backend_name(const struct backend *backend);
const char *backend_info(const struct backend *backend);
/* Arenas of its nets lie on a device. */
bool backend_on_device(const struct backend *backend);
/* A call has given -ENOTRECOVERABLE: no other will do. */
bool backend_lost(const struct backend *backend);

/*
 * Memory of this process that rows will be read from, whole pages that stay where they are: pins it
 * for the device, which then fetches rows from it by itself. Every back end that reads from it is
 * told; the first one pins it for all, so it is the last to be told of the end. Calls are as those
 * of a net of the back end: one thread at a time. -EOPNOTSUPP: nothing is gained (ref, cpu; all
 * nets keep their rows on the device; or rows are smaller than BACKEND_PIN_ROW bytes, which the
 * processor gathers as quickly as a copy of each is begun). Any other error: it is not pinned, and
 * rows are read from it all the same.
 */
#define BACKEND_PIN_ROW 16384u
int backend_host_register(struct backend *backend, const void *memory, size_t bytes,
			  struct backend_error *error);
/* Before it is unmapped; waits for copies that are under way. */
void backend_host_unregister(struct backend *backend, const void *memory);

struct backend_net_options {
	uint32_t max_batch; /* rows of one gradient or evaluate call */
	struct backend_input input;
	struct backend_loss_config loss;
	struct backend_optimizer_config optimizer;
	bool inference;	    /* no gradient, no slots: evaluate only */
	bool deterministic; /* default of the callers: true */
	/* For backend_estimate: so many rows will be kept by backend_resident. */
	uint32_t resident_rows;
};

/* Bytes a net will take, before it is made. */
int backend_estimate(struct backend *backend, const struct backend_graph *graph,
		     const struct backend_net_options *options, uint64_t *bytes);
/* Allocates everything a step needs; the graph is copied as needed. */
int backend_compile(struct backend *backend, const struct backend_graph *graph,
		    const struct backend_net_options *options, struct backend_net **out,
		    struct backend_error *error);
void backend_net_free(struct backend_net *net);
uint64_t backend_net_bytes(const struct backend_net *net);

/* Arenas. slots: n_slots arenas of param_floats each, one after the other, named. */
uint32_t backend_slot_count(const struct backend_net *net);
const char *backend_slot_name(const struct backend_net *net, uint32_t slot);
/* Copies floats [offset, offset + n) of an arena out or in. */
int backend_read(struct backend_net *net, enum backend_arena arena, uint64_t offset, uint64_t n,
		 float *destination);
int backend_write(struct backend_net *net, enum backend_arena arena, uint64_t offset, uint64_t n,
		  const float *source);
uint64_t backend_arena_floats(const struct backend_net *net, enum backend_arena arena);
/* The arena itself where it lies in host memory (ref, cpu), for the merge to work in place; NULL:
 * it lies on a device, use backend_read and backend_write. Slots lie one after the other. Writing
 * to it is allowed between calls; the back end notices (packed copies are made anew by the next
 * call after backend_touch). */
float *backend_host_arena(struct backend_net *net, enum backend_arena arena);
/* Tells that the caller has written to a host arena. */
void backend_touch(struct backend_net *net, enum backend_arena arena);

struct backend_sums {
	uint64_t n;    /* rows */
	double weight; /* sum of sample weights */
	double loss;   /* sum of w_i * l_i, regularisers not included */
};

/*
 * Keeps n rows (as stored, in the net's input type) where the net computes, so that a batch may
 * name them by index. -ENOSPC: they do not fit, go on with pointers; -EOPNOTSUPP: no use here.
 * n = 0 drops them.
 */
int backend_resident(struct backend_net *net, const void *const *x, uint32_t n,
		     struct backend_error *error);
/* The arena where it lies on a device, for a collective between devices; NULL: it does not. */
float *backend_device_arena(struct backend_net *net, enum backend_arena arena);

/*
 * Merge arithmetic on device memory (arenas of nets of this back end's device), in double and in
 * the order of operations of nccl_merge/, so that the results have the same bits. -EOPNOTSUPP: the
 * back end has no memory of its own.
 */
enum backend_merge_kind {
	BACKEND_MERGE_MEAN = 0, /* out = sum_k weight[k] in[k] / total */
	BACKEND_MERGE_OUTER,	/* delta = x - in[0]; m = mu m + delta; x -= eta m (Nesterov: eta
				   (delta + mu m)); x is out, m is out2 */
	BACKEND_MERGE_MOMENTS,	/* out = mean, out2 = variance of in[], in2[] by shares weight[] */
	BACKEND_MERGE_ENCODE,	/* d = in[0] - in[1] + out2; wire = bf16(d), out2 = d - wire */
	BACKEND_MERGE_DECODE	/* out = in[0] - wire */
};
#define BACKEND_MERGE_INPUTS 16
struct backend_merge {
	enum backend_merge_kind kind;
	uint32_t n; /* inputs of mean and moments */
	const float *in[BACKEND_MERGE_INPUTS], *in2[BACKEND_MERGE_INPUTS];
	double weight[BACKEND_MERGE_INPUTS], total;
	float *out, *out2;
	uint16_t *wire;
	uint64_t count;
	double eta, mu;
	bool nesterov;
};
int backend_merge(struct backend *backend, const struct backend_merge *merge,
		  struct backend_error *error);

/* Called as each bucket [offset, offset + length) floats of the gradient arena is final, in the
 * same order on every replica; ready: an event of the back end, NULL on a CPU. */
typedef int (*backend_bucket_fn)(void *context, uint64_t offset, uint64_t length, void *ready);

/*
 * Forward and backward: gradient arena = scale * sum_i w_i * d l_i / d w (accumulate: added to
 * what is there). Batch norm uses and updates statistics from all n rows. n = 0 clears (or, with
 * accumulate, leaves) the gradient. outputs: when not NULL, receives n * outputs activated values
 * (probabilities), for metrics.
 */
int backend_gradient(struct backend_net *net, const struct backend_batch *batch, float scale,
		     bool accumulate, backend_bucket_fn on_bucket, void *context,
		     struct backend_sums *sums, float *outputs, struct backend_error *error);

struct backend_applied {
	bool finite;	  /* false: NaN or Inf in the gradient, nothing was changed */
	double grad_norm; /* global, before clipping, regularisers included; 0 where not computed */
};

/* checks Inf/NaN, adds l1/l2, clips, updates. t: applied updates so far, plus one (Adam's t). */
int backend_apply(struct backend_net *net, double lr, uint64_t t, struct backend_applied *applied,
		  struct backend_error *error);
/* gradient + apply in one, where a back end can fuse them; the same result. */
int backend_step(struct backend_net *net, const struct backend_batch *batch, float scale, double lr,
		 uint64_t t, struct backend_sums *sums, float *outputs,
		 struct backend_applied *applied, struct backend_error *error);

/* sum over tensors of l1*sum|w| + l2*sum w^2 of the net's parameters: what Keras adds to the loss.
 */
double backend_penalty(struct backend_net *net);

/*
 * Inference on n rows with the given parameters and statistics (host pointers in arena layout;
 * both NULL: the net's own). sums and label/target may be NULL/absent when only outputs are wanted.
 * outputs: n * output elements, activated. Does not disturb training.
 */
int backend_evaluate(struct backend_net *net, const float *param, const float *stat,
		     const struct backend_batch *batch, struct backend_sums *sums, float *outputs,
		     struct backend_error *error);

#endif
