/* SPDX-License-Identifier: MIT */
/*
 * refuse.c: what backend_graph_check, backend_layout and backend_compile must not let through. A
 * good graph is made, one thing is spoilt, and the message must speak of it.
 */
#include "../../tap.h"
#include "cases.h"

enum {
	IN,
	CONV,
	NORM,
	ACT,
	POOL,
	DEPTH,
	DROP,
	RESCALE,
	UP,
	PAD,
	CROP,
	SHIFT,
	ADD,
	CONCAT,
	FLAT,
	DENSE,
	SOFT
};

static void good(struct build *b)
{
	int x = b_conv(b, b_input(b, 8, 8, 4), 6, b_same(3, 1, 1, 8, 8), 2, true), y;

	x = b_act(b, b_norm(b, x, true, true, false), BACKEND_RELU, 0);
	x = b_pool(b, x, BACKEND_MAXPOOL, b_valid(2, 2));
	x = b_depthwise(b, x, 1, b_same(3, 1, 1, 4, 4), true);
	x = b_rescale(b, b_dropout(b, x, 0.5f), NULL, NULL, 2.0f, 1.0f);
	x = b_pad(b, b_upsample(b, x, 2, 2, false), 1, 1, 1, 1);
	y = b_shift(b, b_crop(b, x, 8, 8), 0.1f, 0.1f);
	x = b_concat(b, b_add(b, y, y, -1), y, 2);
	b_act(b, b_dense(b, b_flatten(b, x), 5, true), BACKEND_SOFTMAX, 0);
}

static struct build *b;

static void begin(void)
{
	good(b);
	if (b_finish(b))
		BAIL("layout of the good graph");
}

static void refused(const char *what, const char *message)
{
	struct backend_error error = {""};
	int rc = backend_graph_check(&b->graph, &error);

	ok(rc == -EINVAL || rc == -EOVERFLOW, "%s is refused", what);
	like(error.message, message, "  and the message says so");
	begin();
}

/* Spoils one thing: refused(..) makes the next good graph. */
#define BAD(statement, message)               \
	do {                                  \
		statement;                    \
		refused(#statement, message); \
	} while (0)

static void bad_graphs(void)
{
	uint32_t late = SOFT;

	BAD(b->graph.n_nodes = 0, "no nodes");
	BAD(b->graph.node = NULL, "no nodes");
	BAD(b->graph.tensor = NULL, "no tensor table");
	BAD(b->graph.output = SOFT + 1, "output node");
	BAD(b->graph.param_floats++, "arena sizes");
	BAD(b->graph.stat_floats -= 16, "arena sizes");
	BAD(b->node[CONV].op = BACKEND_OP_COUNT, "unknown operator");
	BAD(b->node[CONV].op = BACKEND_INPUT, "only input");
	BAD(b->node[IN].op = BACKEND_FLIP, "only input");
	BAD(b->node[ACT].in = &late, "before it");
	BAD(b->in[ACT][0] = ACT, "before it");
	BAD(b->node[ACT].n_in = 2, "number of inputs");
	BAD(b->node[ACT].n_in = 0, "number of inputs");
	BAD(b->node[ADD].n_in = 1, "number of inputs");
	BAD(b->node[CONCAT].n_in = 0xffffffff, "number of inputs");
	BAD(b->node[ACT].in = NULL, "number of inputs");
	BAD(b->node[ACT].layer = 1 << 24, "layer number");
	BAD(memset(b->node[ACT].name, 'x', BACKEND_NAME_MAX), "does not end");
	BAD(b->node[IN].out.h = 0, "too large");
	BAD(b->node[IN].out.w = 1u << 30, "too large");
	BAD(b->node[ACT].out.c = 7, "its inputs give");
	BAD(b->node[POOL].out.h = 5, "its inputs give");
}

static void bad_tensors(void)
{
	BAD(b->tensor[0].offset = 16, "count or offset");
	BAD(b->tensor[1].count--, "count or offset");
	BAD(b->tensor[0].rank = 5, "shape or an arena");
	BAD(b->tensor[0].rank = 0, "shape or an arena");
	BAD(b->tensor[0].dim[1] = 0, "shape or an arena");
	BAD(b->tensor[0].arena = BACKEND_GRAD, "shape or an arena");
	BAD(memset(b->tensor[2].name, 'x', BACKEND_NAME_MAX), "does not end");
	BAD(b->tensor[0].l1 = -1, "regulariser");
	BAD(b->tensor[0].l2 = NAN, "regulariser");
	BAD(b->tensor[4].trainable = true, "not trainable");
	BAD(b->node[CONV].tensor[0] = -1, "has index -1");
	BAD(b->node[CONV].tensor[0] = 99, "has index 99");
	BAD(b->node[CONV].tensor[1] = -2, "has index -2");
	BAD(b->node[CONV].tensor[0] = 1, "shape of the layer");
	BAD(b->node[CONV].tensor[2] = 0, "does not know");
	BAD(b->node[ACT].tensor[0] = 0, "does not know");
	BAD(b->node[NORM].tensor[2] = -1, "has index -1");
	BAD(b->node[NORM].tensor[2] = b->node[NORM].tensor[0], "wrong arena");
	BAD(b->node[NORM].tensor[0] = b->node[NORM].tensor[2], "wrong arena");
	BAD(b->node[DENSE].tensor[0] = b->node[CONV].tensor[0], "shape of the layer");
}

static void bad_attributes(void)
{
	static float scale[6] = {1, 1, 1, INFINITY, 1, 1};

	BAD(b->node[CONV].window.stride_h = 0, "does not fit");
	BAD(b->node[CONV].window.kw = 0, "does not fit");
	BAD(b->node[CONV].window.dilation_w = 0, "does not fit");
	BAD(b->node[CONV].window.dilation_h = 9, "does not fit");
	BAD(b->node[CONV].window.pad_left = 0xffffffff, "does not fit");
	BAD(b->node[CONV].groups = 0, "groups");
	BAD(b->node[CONV].groups = 3, "groups");
	BAD(b->node[CONV].groups = 1, "shape of the layer");
	BAD(b->node[DEPTH].multiplier = 0, "multiplier");
	BAD(b->node[DEPTH].multiplier = 2, "shape of the layer");
	BAD(b->node[POOL].window.pad_top = 2, "as large as the pooling window");
	BAD(b->node[POOL].window.dilation_h = 2, "no dilation");
	BAD(b->node[NORM].epsilon = -1e-3f, "epsilon");
	BAD(b->node[NORM].epsilon = NAN, "epsilon");
	BAD(b->node[NORM].momentum = 1.5f, "momentum");
	BAD(b->node[ACT].activation = BACKEND_ACTIVATION_COUNT, "unknown activation");
	BAD(b->node[ACT].alpha = NAN, "alpha");
	BAD(b->node[ACT].max_value = -1, "max_value");
	BAD(b->node[ACT].max_value = NAN, "max_value");
	BAD(b->node[ACT].threshold = INFINITY, "threshold");
	BAD(b->node[DROP].rate = 1.0f, "rate");
	BAD(b->node[DROP].rate = -0.1f, "rate");
	BAD(b->node[DROP].rate = NAN, "rate");
	BAD(b->node[RESCALE].scale = scale, "scale or offset");
	BAD(b->node[RESCALE].offset1 = NAN, "scale or offset");
	BAD(b->node[UP].window.stride_h = 0, "factor");
	BAD(b->node[UP].window.stride_w = 1u << 31, "factor");
	BAD(b->node[PAD].window.pad_left = 1u << 20, "padding is too large");
	BAD(b->node[CROP].window.kh = 11, "crops more");
	BAD(b->node[CROP].window.kw = 0, "crops more");
	BAD(b->node[SHIFT].rate = 1.1f, "share to shift");
	BAD(b->in[ADD][1] = POOL, "different shapes");
	BAD(b->in[CONCAT][1] = POOL, "different shapes");
	BAD(b->node[CONCAT].axis = 3, "axis");
	BAD(b->node[FLAT].out.c++, "number of elements");
}

/* ---- options ----------------------------------------------------------------------------- */

static const struct op_case usual = {"good", good, {BACKEND_SPARSE_CROSSENTROPY, 0, false}, false};
static struct backend *backend;
static struct backend_net_options options;

static void no_net(const char *what, const char *message)
{
	struct backend_error error = {""};
	struct backend_net *net = NULL;
	uint64_t bytes;
	int rc = backend_compile(backend, &b->graph, &options, &net, &error);

	ok(rc < 0 && !net, "%s is refused", what);
	like(error.message, message, "  and the message says so");
	ok(backend_estimate(backend, &b->graph, &options, &bytes) < 0, "  by the estimate too");
	begin();
	options = trial_options(&b->graph, &usual, 4);
}

#define BADNET(statement, message)           \
	do {                                 \
		statement;                   \
		no_net(#statement, message); \
	} while (0)

static void bad_options(void)
{
	struct backend_optimizer_config *o = &options.optimizer;

	options = trial_options(&b->graph, &usual, 4);
	BADNET(options.max_batch = 0, "max_batch");
	BADNET(options.max_batch = 0xffffffff, "max_batch");
	BADNET(options.input.dtype = BACKEND_DTYPE_COUNT, "element type");
	BADNET(options.input.shape.c = 3, "the input of the network");
	BADNET(options.input.mul = NULL, "scaling");
	BADNET(options.input.pad = 9, "augmentation");
	BADNET(options.loss.loss = BACKEND_LOSS_COUNT, "unknown loss");
	BADNET(options.loss.label_smoothing = 1.5f, "label_smoothing");
	BADNET(options.loss.label_smoothing = NAN, "label_smoothing");
	BADNET(options.loss.from_logits = true, "already applies");
	BADNET(options.loss.loss = BACKEND_MSE; options.loss.from_logits = true, "from_logits");
	BADNET(b->graph.output = CONV, "wants a flat output");
	BADNET(o->kind = BACKEND_OPTIMIZER_COUNT, "unknown optimizer");
	BADNET(o->momentum = -1, "momentum");
	BADNET(o->kind = BACKEND_ADAM; o->beta1 = 1, "beta");
	BADNET(o->kind = BACKEND_RMSPROP; o->rho = NAN, "rho");
	BADNET(o->epsilon = -1, "epsilon");
	BADNET(o->weight_decay = INFINITY, "weight_decay");
	BADNET(o->clipnorm = -1, "clipnorm");
	BADNET(o->clipnorm = o->clipvalue = 1, "exclude each other");
}

/* ---- layout, hash ------------------------------------------------------------------------ */

static void layout(void)
{
	struct backend_tensor t[3] = {{.rank = 2, .dim = {3, 5}},
				      {.rank = 1, .dim = {16}, .arena = BACKEND_STAT},
				      {.rank = 4, .dim = {1, 1, 1, 17}}};
	uint64_t param, stat;

	is(backend_layout(t, 3, &param, &stat), 0, "a layout");
	ok(t[0].count == 15 && t[0].offset == 0 && t[2].offset == 16 && t[2].count == 17,
	   "tensors at multiples of 64 bytes");
	ok(t[1].offset == 0 && param == 48 && stat == 16, "sizes of the arenas");
	t[2] = (struct backend_tensor){.rank = 4, .dim = {1u << 31, 1u << 31, 1u << 31, 4}};
	is(backend_layout(t, 3, &param, &stat), -EOVERFLOW, "a product that overflows");
	t[2] = (struct backend_tensor){.rank = 2, .dim = {1u << 20, (1u << 20) + 1}};
	is(backend_layout(t, 3, &param, &stat), -EOVERFLOW, "more than 2^40 floats");
	t[2] = t[0] = (struct backend_tensor){.rank = 2, .dim = {1u << 20, 1u << 19}};
	is(backend_layout(t, 3, &param, &stat), 0, "2^40 floats");
	t[1].arena = BACKEND_PARAM;
	is(backend_layout(t, 3, &param, &stat), -EOVERFLOW, "2^40 floats and 16 more");
}

static void hash(void)
{
	uint64_t usual_hash, h;

	begin();
	usual_hash = backend_graph_hash(&b->graph);
	is(backend_graph_hash(&b->graph), usual_hash, "the hash is a function");
#define DIFFERS(statement)                                        \
	do {                                                      \
		statement;                                        \
		h = backend_graph_hash(&b->graph);                \
		ok(h != usual_hash, "the hash sees " #statement); \
		begin();                                          \
	} while (0)
	DIFFERS(b->tensor[0].name[0] = 'm');
	DIFFERS(b->tensor[0].dim[0] = 4);
	DIFFERS(b->tensor[3].offset += 16);
	DIFFERS(b->tensor[1].arena = BACKEND_STAT);
	DIFFERS(b->graph.n_tensors--);
	DIFFERS(b->graph.param_floats += 16);
	b->node[ACT].alpha = 0.5f;
	is(backend_graph_hash(&b->graph), usual_hash, "and nothing but the tensor table");
	begin();
}

int main(void)
{
	struct backend_error error = {""};

	b = malloc(sizeof(*b));
	if (!b || backend_open("ref", NULL, &backend, &error))
		BAIL("no back end");
	begin();
	ok(backend_graph_check(&b->graph, &error) == 0, "the good graph is good: %s",
	   error.message);
	bad_graphs();
	bad_tensors();
	bad_attributes();
	bad_options();
	layout();
	hash();
	ok(backend_open("cuda9", NULL, &backend, &error) == -ENOENT, "no back end of that name");
	like(error.message, "cuda9", "  and the message names it");
	backend_close(backend);
	free(b);
	return done();
}
