/* SPDX-License-Identifier: MIT */
/*
 * internal.h: what the files of userspace/model share. The way of a text: read.c makes nets (one
 * for each model or nested model) of members (layers), order.c puts them in Keras' order, flatten.c
 * turns the tree into calls (one for each use of a layer) in topological order, infer.c gives every
 * call its shape, lower.c makes the graph. layer*.c know the single layers.
 */
#ifndef MODEL_INTERNAL_H
#define MODEL_INTERNAL_H

#include "jread.h"
#include "model.h"

#define MAX_NESTED 16u			 /* models inside models */
#define MAX_CALLS (4 * MODEL_MAX_LAYERS) /* shared layers are called more than once */
#define MAX_INPUTS (4 * MAX_CALLS)
#define MAX_SIZE 16777216u	  /* filters, units */
#define MAX_WINDOW 65536u	  /* kernel, stride, dilation, padding */
#define MAX_ELEMENTS (1ull << 30) /* of one activation of one row; as kernels/check.c */

/* A Keras shape without the batch: rank 1 (c), 2 (a, c) or 3 (h, w, c). rank 0: nothing is known;
 * dimension 0: Keras' None. */
struct shape {
	uint32_t rank;
	uint32_t dim[3];
};

enum init_kind {
	INIT_CONSTANT,	/* a */
	INIT_UNIFORM,	/* [a, b) */
	INIT_NORMAL,	/* mean a, stddev b */
	INIT_TRUNCATED, /* mean a, stddev b of the untruncated normal, cut at two stddev */
	INIT_SCALING,	/* scale a, by fan and distribution */
};
enum init_fan { FAN_IN, FAN_OUT, FAN_AVG };

struct init {
	enum init_kind kind;
	enum init_fan fan;
	enum init_kind distribution; /* of INIT_SCALING */
	double a, b;
	bool seeded;
	uint64_t seed;
};

struct regularizer {
	float l1, l2;
};

struct activation {
	enum backend_activation kind;
	float alpha, max_value, threshold;
	bool keras2_hard_sigmoid; /* clip(.2 x + .5): another function than Keras 3's */
};

struct layer;
struct lower;
struct call;

/* One row of the table of layers (layer.c). */
struct layer_class {
	const char *name;
	const char *keys; /* of its configuration, besides those that every layer has */
	bool image;	  /* wants (h, w, c) */
	bool merges;	  /* takes two or more inputs */
	int (*read)(struct reader *r, struct layer *layer, struct place config);
	int (*infer)(struct reader *r, struct layer *layer, const struct shape *in, uint32_t n,
		     struct shape *out);
	/* Declares the tensors; in: the shape of its input. NULL: none. */
	int (*tensors)(struct lower *lower, struct layer *layer, const struct shape *in);
	int (*lower)(struct lower *lower, struct layer *layer, struct call *call);
};

#define LAYER_TENSORS 4

struct layer {
	const struct layer_class *cls;
	const char *name; /* "outer/inner" inside nested models */
	const struct jpath *path;
	uint32_t index; /* in Keras' order */
	uint32_t calls, last_call;
	bool trainable;
	struct shape in, out; /* of its last call */
	int32_t tensor[LAYER_TENSORS];
	uint64_t parameters;

	struct shape input; /* InputLayer: as declared */
	uint32_t units;	    /* or filters */
	uint32_t kernel[2], stride[2], dilation[2], groups, multiplier;
	uint32_t pad[4]; /* top, bottom, left, right */
	bool same, bias, center, scaled, keepdims, bilinear, horizontal, vertical;
	int32_t axis;
	uint32_t n_target;
	int64_t target[3]; /* Reshape; -1: the rest */
	struct activation activation;
	float rate[2], momentum, epsilon;
	uint32_t n_scale, n_offset; /* Rescaling: 1 or c */
	float *rescale, *offset;
	struct init init[LAYER_TENSORS];
	struct regularizer regularizer[LAYER_TENSORS];
};

/* One use of a layer. */
struct call {
	struct layer *layer;
	bool inference; /* always as in evaluation */
	uint32_t n_in;
	uint32_t *in; /* earlier calls */
	struct shape out;
	uint32_t node;	   /* in the graph */
	uint32_t previous; /* call of the same layer; itself: none */
};

struct ref {
	uint32_t member, node;
};

struct inbound {
	bool inference; /* called with training=False */
	uint32_t n;
	struct ref *ref;
};

struct net;
struct member {
	const char *name;
	struct layer *layer; /* or */
	struct net *net;
	const struct jpath *path;
	uint32_t n_nodes;
	struct inbound *node; /* one for each call; an input has one without inputs */
};

struct net {
	const char *name;
	bool sequential;
	uint32_t n;
	struct member *member;
	uint32_t input;
	struct ref output;
	uint32_t n_order;
	uint32_t *order; /* members in the order of model.layers */
	uint32_t n_topo;
	struct ref *topo; /* nodes, inputs first */
	const struct jpath *path;
};

struct model {
	struct arena arena;
	struct model_info info;
	const char *text; /* architecture as given or made */
	size_t length;
	char *json;	 /* with the input shape filled in, or NULL: the text */
	bool sequential; /* one chain: the summary needs no list of connections */
	bool input_filled;
	uint32_t n_layers;
	struct layer **layer; /* Keras' order */
	uint32_t n_calls;
	struct call *call; /* topological order; call 0 is the input */
	uint32_t output;   /* call */
	struct backend_shape input;
	struct backend_graph graph;
	const struct init *init; /* of each tensor */
	const uint64_t *blob;	 /* n_tensors + 1: float offset of each tensor in a blob */
};

/* read.c: the document to a tree of nets. */
int model_read(struct reader *r, json_t *root, struct net **out);
/* read_functional.c: layers and connections of a Functional model. */
int net_read_functional(struct reader *r, struct place config, const char *prefix, bool trainable,
			uint32_t depth, struct net *net);
int net_read_member(struct reader *r, struct place at, const char *prefix, bool trainable,
		    uint32_t depth, struct member *member);
/* order.c */
int net_order(struct reader *r, struct net *net);
/* flatten.c */
int model_flatten(struct reader *r, struct model *model, const struct net *net);
/* infer.c: shapes of all calls; the input from the declaration and from what is known of the data.
 */
int model_infer(struct reader *r, struct model *model, const struct model_bind *bind);
bool shape_complete(const struct shape *shape);
uint64_t shape_elements(const struct shape *shape);
/* "(None, 28, 28, 1)" */
const char *shape_text(const struct shape *shape, char out[64]);

/* layer.c */
const struct layer_class *layer_class_find(const char *name);
int layer_read(struct reader *r, struct place at, const char *class_name, const char *name,
	       bool trainable, struct layer *layer);
extern const struct layer_class layer_input;
/* layer_conv.c, layer_pool.c, layer_norm.c, layer_other.c */
extern const struct layer_class layer_conv[], layer_pool[], layer_norm[], layer_merge[],
	layer_augment[];
/* A shape with the batch in front; nothing where it is missing. */
int layer_read_shape(struct reader *r, struct place at, struct shape *out);
int layer_padding(struct reader *r, struct layer *layer, struct place config);
int layer_window(struct reader *r, struct layer *layer, const struct shape *in, struct shape *out);
struct backend_window layer_window_lower(const struct layer *layer, const struct shape *in,
					 const struct shape *out);

/* activation.c, init.c */
int activation_read(struct reader *r, struct place object, const char *key, struct activation *out);
int activation_layer(struct reader *r, const char *class_name, struct place config,
		     struct activation *out);
int regularizer_read(struct reader *r, struct place object, const char *key,
		     struct regularizer *out);
int init_read(struct reader *r, struct place object, const char *key, const char *standard,
	      struct init *out);

/* lower.c */
int model_lower(struct reader *r, struct model *model);
struct backend_shape shape_lower(const struct shape *shape);
/* A new node of the call's layer that takes node `in`; NULL: out of memory. */
struct backend_node *lower_node(struct lower *lower, const struct layer *layer, enum backend_op op,
				uint32_t in, struct backend_shape out);
uint32_t lower_last(const struct lower *lower);
const struct call *lower_call(const struct lower *lower, uint32_t call);
int lower_fail(struct lower *lower); /* out of memory */
struct reader *lower_reader(const struct lower *lower);
/* Adds nothing for a linear activation; returns the node that holds the result in *node. */
int lower_activation(struct lower *lower, const struct layer *layer, const struct activation *a,
		     uint32_t *node);
/* Declares one tensor in the next slot of the layer; trained: by its nature (not a statistic). */
int lower_tensor(struct lower *lower, struct layer *layer, int slot, const char *name,
		 uint32_t rank, const uint32_t *dim, bool trained);

/* builtin.c: the architecture text of a built-in; malloc'd. */
char *builtin_json(const char *name, const struct model_bind *bind);
bool builtin_known(const char *text, size_t length, const char **name);

/* export.c: model->json, the user's document with the input shape that was filled in. */
int model_fill_json(struct reader *r, struct model *model, json_t *root);

#endif
