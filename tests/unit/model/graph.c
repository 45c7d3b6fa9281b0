// SPDX-License-Identifier: MIT
/*
 * graph.c: what the lowering puts into nodes and tensors: attributes, arenas, frozen layers, input
 * shapes taken from the data, built-ins, summary and JSON.
 */
#include "../../../userspace/model/internal.h"
#include "../../tap.h"

static struct model *open_or_stop(const char *text, const struct model_bind *bind)
{
	struct model *model;
	struct err err;

	if (model_open(text, strlen(text), bind, &model, &err))
		BAIL("%s", err.message);
	return model;
}

static const struct backend_node *node(const struct model *m, const char *name, enum backend_op op)
{
	const struct backend_graph *g = model_graph(m);

	for (uint32_t i = 0; i < g->n_nodes; i++)
		if (!strcmp(g->node[i].name, name) && g->node[i].op == op)
			return &g->node[i];
	BAIL("no node %s with operator %d", name, op);
}

static const struct backend_tensor *tensor(const struct model *m, const char *name)
{
	const struct backend_graph *g = model_graph(m);

	for (uint32_t i = 0; i < g->n_tensors; i++)
		if (!strcmp(g->tensor[i].name, name))
			return &g->tensor[i];
	BAIL("no tensor %s", name);
}

static bool is_shape(struct backend_shape s, uint32_t h, uint32_t w, uint32_t c)
{
	return s.h == h && s.w == w && s.c == c;
}

#define SEQ(layers) "{\"class_name\": \"Sequential\", \"config\": [" layers "]}"
#define IN(shape)                                                                                 \
	"{\"class_name\": \"InputLayer\", \"config\": {\"name\": \"in\", \"batch_input_shape\": " \
	"[null, " shape "]}},"
#define L(class, name, keys) \
	"{\"class_name\": \"" class "\", \"config\": {\"name\": \"" name "\"" keys "}}"

/* clang-format off */
static const char many[] = SEQ(
	IN("9, 8, 4")
	L("Rescaling", "r1", ", \"scale\": 0.5, \"offset\": -1") ","
	L("Rescaling", "r2", ", \"scale\": [1, 2, 3, 4], \"offset\": 7") ","
	L("RandomFlip", "flip", ", \"mode\": \"vertical\", \"seed\": 3") ","
	L("RandomTranslation", "shift", ", \"height_factor\": [-0.2, 0.2], "
	  "\"width_factor\": 0.1, \"fill_mode\": \"constant\"") ","
	L("ZeroPadding2D", "pad", ", \"padding\": [[1, 2], [3, 4]]") ","
	L("RandomCrop", "crop", ", \"height\": 10, \"width\": 11") ","
	L("Conv2D", "c", ", \"filters\": 6, \"kernel_size\": [3, 2], \"strides\": [2, 3], "
	  "\"padding\": \"same\", \"groups\": 2, \"activation\": \"elu\", "
	  "\"kernel_regularizer\": \"l2\", \"bias_regularizer\": \"l1\"") ","
	L("BatchNormalization", "bn", ", \"momentum\": 0.9, \"epsilon\": 1e-5, "
	  "\"scale\": false, \"beta_regularizer\": {\"class_name\": \"L1L2\", \"config\": "
	  "{\"l1\": 0.5, \"l2\": 0.25}}") ","
	L("ReLU", "relu", ", \"max_value\": 6, \"negative_slope\": 0.1, \"threshold\": 0.2") ","
	L("LeakyReLU", "leaky", "") ","
	L("Dropout", "drop", ", \"rate\": 0.25") ","
	L("Dropout", "none", ", \"rate\": 0") ","
	L("UpSampling2D", "up", ", \"size\": [1, 2], \"interpolation\": \"bilinear\"") ","
	L("Activation", "lin", ", \"activation\": \"linear\"") ","
	L("AveragePooling2D", "avg", ", \"pool_size\": [3, 1], \"strides\": null"));
/* clang-format on */

static void attributes(void)
{
	struct model *m = open_or_stop(many, NULL);
	const struct backend_graph *g = model_graph(m);
	const struct backend_node *n = node(m, "r1", BACKEND_RESCALE);

	ok(n->scale1 == 0.5f && n->offset1 == -1 && !n->scale && !n->offset, "one scale");
	n = node(m, "r2", BACKEND_RESCALE);
	ok(n->scale[3] == 4 && n->offset[0] == 7 && n->offset[3] == 7, "a scale for each channel");
	n = node(m, "flip", BACKEND_FLIP);
	ok(n->vertical && !n->horizontal, "flip");
	n = node(m, "shift", BACKEND_SHIFT);
	ok(n->rate == 0.2f && n->rate_w == 0.1f, "shift");
	n = node(m, "pad", BACKEND_PAD);
	ok(n->window.pad_top == 1 && n->window.pad_bottom == 2 && n->window.pad_left == 3 &&
		   n->window.pad_right == 4 && is_shape(n->out, 12, 15, 4),
	   "padding");
	n = node(m, "crop", BACKEND_CROP);
	ok(n->window.kh == 10 && n->window.kw == 11 && is_shape(n->out, 10, 11, 4), "crop");
	n = node(m, "c", BACKEND_CONV2D);
	ok(n->groups == 2 && n->window.stride_h == 2 && n->window.stride_w == 3 &&
		   is_shape(n->out, 5, 4, 6),
	   "convolution");
	/* height: (5-1)*2+3-10 = 1, behind; width: (4-1)*3+2-11 = 0 */
	ok(n->window.pad_top == 0 && n->window.pad_bottom == 1 && n->window.pad_left == 0 &&
		   n->window.pad_right == 0,
	   "same padding puts the odd row at the end");
	ok(node(m, "c", BACKEND_ACTIVATION)->activation == BACKEND_ELU, "its activation is a node");
	near(node(m, "c", BACKEND_ACTIVATION)->alpha, 1, 0, "alpha of elu");
	ok(tensor(m, "c/kernel")->l2 == 0.01f && tensor(m, "c/kernel")->l1 == 0 &&
		   tensor(m, "c/bias")->l1 == 0.01f,
	   "regularizers by name");
	is(tensor(m, "c/kernel")->dim[2], 2, "input channels of a group");
	n = node(m, "bn", BACKEND_BATCHNORM);
	ok(n->momentum == 0.9f && n->epsilon == 1e-5f && !n->frozen, "batch norm");
	ok(n->tensor[0] == -1 && n->tensor[1] >= 0 && n->tensor[2] == n->tensor[1] + 1 &&
		   n->tensor[3] == n->tensor[1] + 2,
	   "tensors of a batch norm without gamma");
	ok(tensor(m, "bn/beta")->l1 == 0.5f && tensor(m, "bn/beta")->l2 == 0.25f, "l1_l2");
	ok(tensor(m, "bn/moving_mean")->arena == BACKEND_STAT &&
		   !tensor(m, "bn/moving_mean")->trainable &&
		   tensor(m, "bn/beta")->arena == BACKEND_PARAM,
	   "arenas");
	n = node(m, "relu", BACKEND_ACTIVATION);
	ok(n->max_value == 6 && n->alpha == 0.1f && n->threshold == 0.2f, "ReLU");
	near(node(m, "leaky", BACKEND_ACTIVATION)->alpha, 0.3, 1e-7, "LeakyReLU's default");
	near(node(m, "drop", BACKEND_DROPOUT)->rate, 0.25, 0, "dropout");
	is(node(m, "drop", BACKEND_DROPOUT)->layer, 10, "number of the layer in Keras' order");
	n = node(m, "up", BACKEND_UPSAMPLE);
	ok(n->bilinear && n->window.stride_h == 1 && n->window.stride_w == 2, "upsampling");
	n = node(m, "avg", BACKEND_AVGPOOL);
	ok(n->window.kh == 3 && n->window.stride_h == 3 && n->window.stride_w == 1 &&
		   n->window.dilation_h == 1,
	   "strides null is the pool size");
	ok(g->node[g->output].op == BACKEND_AVGPOOL && &g->node[g->output] == n, "output node");
	is(model_info(m)->last, BACKEND_LINEAR, "no activation at the end");
	is(model_info(m)->outputs, 1 * 8 * 6, "elements of the output");
	is(model_info(m)->layers, 15,
	   "layers, without the input, as Keras counts a Sequential one");
	model_free(m);
}

static void frozen(void)
{
	struct model *m = open_or_stop(
		SEQ(IN("4, 4, 2") L(
			"Conv2D", "c",
			", \"filters\": 3, \"kernel_size\": 1, "
			"\"trainable\": false, \"kernel_regularizer\": "
			"\"l2\"") "," L("BatchNormalization", "bn",
					", \"trainable\": false") "," L("Batc"
									"hNor"
									"mali"
									"zati"
									"on",
									"bn2",
									"") "," L("Dense", "d",
										  ", \"units\": 2, "
										  "\"activation\": "
										  "{\"class_name\":"
										  " \"function\", "
										  "\"config\": "
										  "\"softmax\"}")),
		NULL);
	const struct backend_tensor *t = tensor(m, "c/kernel");

	ok(t->arena == BACKEND_PARAM && !t->trainable && !t->decay && t->l2 == 0,
	   "a frozen kernel: a parameter that neither moves nor is penalised");
	ok(!tensor(m, "bn/gamma")->trainable && node(m, "bn", BACKEND_BATCHNORM)->frozen,
	   "a frozen batch norm runs in inference mode");
	ok(tensor(m, "bn2/gamma")->trainable && !node(m, "bn2", BACKEND_BATCHNORM)->frozen,
	   "another does not");
	ok(node(m, "bn2", BACKEND_BATCHNORM)->momentum == 0.99f &&
		   node(m, "bn2", BACKEND_BATCHNORM)->epsilon == 1e-3f,
	   "its defaults");
	is(model_info(m)->trainable, 6 + 8, "trainable parameters");
	is(model_info(m)->frozen, 9 + 12 + 6, "others, statistics among them");
	is(model_info(m)->last, BACKEND_SOFTMAX, "activation at the end");
	ok(tensor(m, "d/kernel")->decay, "weight decay applies to what is trained");
	model_free(m);
}

#define FUNCTIONAL(middle, out)                                                                  \
	"{\"class_name\": \"Model\", \"config\": {\"name\": \"f\", \"layers\": ["                \
	"{\"class_name\": \"InputLayer\", \"name\": \"i\", \"config\": {\"batch_input_shape\": " \
	"[null, 4, 4, 2]}, \"inbound_nodes\": []}, " middle "], \"input_layers\": [[\"i\", 0, "  \
	"0]], \"output_layers\": [[\"" out "\", 0, 0]]}}"
#define BN_AND_DROPOUT                                                                     \
	"{\"class_name\": \"Sequential\", \"name\": \"s\", \"config\": {\"name\": \"s\", " \
	"\"layers\": [" L("BatchNormalization", "b",                                       \
			  "") ", " L("Dropout", "d", ", \"rate\": 0.5") "]}, \"inbound_nodes\": "

static void inference_mode(void)
{
	struct model *m = open_or_stop(
		FUNCTIONAL(BN_AND_DROPOUT "[[[\"i\", 0, 0, {\"training\": false}]]]}", "s"), NULL);
	const struct backend_graph *g = model_graph(m);

	ok(node(m, "s/b", BACKEND_BATCHNORM)->frozen && tensor(m, "s/b/gamma")->trainable,
	   "Keras 2: a model called with training=False keeps its batch norm in inference mode");
	ok(g->node[g->output].op == BACKEND_BATCHNORM, "and its dropout out");
	model_free(m);
	m = open_or_stop(
		FUNCTIONAL(BN_AND_DROPOUT
			   "[{\"args\": [{\"class_name\": \"__keras_tensor__\", \"config\": "
			   "{\"keras_history\": [\"i\", 0, 0]}}], \"kwargs\": {\"training\": "
			   "false}}]}",
			   "s"),
		NULL);
	ok(!node(m, "s/b", BACKEND_BATCHNORM)->frozen && node(m, "s/d", BACKEND_DROPOUT),
	   "Keras 3: fit() overrides it");
	model_free(m);
}

/* hard_sigmoid is clip(.2 x + .5) in Keras 2, relu6(x + 3) / 6 in Keras 3. */
static void generations(void)
{
	struct model *m = open_or_stop(
		SEQ(IN("3") L("Dense", "d", ", \"units\": 1, \"activation\": \"hard_sigmoid\"")),
		NULL);
	const struct backend_node *n = node(m, "d", BACKEND_RESCALE);

	ok(n->scale1 == 0.2f && n->offset1 == 0.5f, "Keras 2: .2 x + .5");
	n = node(m, "d", BACKEND_ACTIVATION);
	ok(n->activation == BACKEND_RELU && n->max_value == 1 && n->alpha == 0, "cut to 0..1");
	model_free(m);
	m = open_or_stop(
		"{\"module\": \"keras\", \"class_name\": \"Sequential\", \"config\": "
		"{\"name\": \"s\", \"layers\": [" IN("3")
			L("Dense", "d", ", \"units\": 1, \"activation\": \"hard_sigmoid\"") "]}}",
		NULL);
	is(node(m, "d", BACKEND_ACTIVATION)->activation, BACKEND_HARD_SIGMOID, "Keras 3: its own");
	model_free(m);
}

/* clang-format off */
#define TUPLE(items) "{\"class_name\": \"__tuple__\", \"items\": [" items "]}"
static const char forms_json[] = SEQ(
	L("Conv2D", "c", ", \"filters\": 2.0, \"input_shape\": [6, 6, 2], \"kernel_size\": "
	  TUPLE("3, 2") ", \"strides\": " TUPLE("1, 2") ", \"dtype\": {\"class_name\": "
	  "\"Policy\", \"config\": \"mixed_float16\"}, \"bias_constraint\": {}, \"activation\": "
	  "{\"class_name\": \"ReLU\", \"config\": {\"max_value\": 3}}") ","
	L("BatchNormalizationV1", "bn", ", \"axis\": " TUPLE("3") ", \"fused\": null, "
	  "\"gamma_initializer\": \"one\"") ","
	L("Activation", "a", ", \"activation\": {\"class_name\": \"swish\", \"config\": {}}") ","
	L("Dense", "d", ", \"units\": 2, \"kernel_initializer\": {\"class_name\": "
	  "\"VarianceScaling\", \"config\": {\"mode\": \"fan_in\", \"distribution\": \"normal\"}}")
	"," L("Reshape", "r", ", \"target_shape\": " TUPLE("-1, 4")));
/* clang-format on */

/* The older and rarer ways to write the same. */
static void forms(void)
{
	struct model *m = open_or_stop(forms_json, NULL);
	const struct backend_node *n = node(m, "c", BACKEND_CONV2D);

	ok(n->window.kh == 3 && n->window.kw == 2 && n->window.stride_w == 2 &&
		   is_shape(n->out, 4, 3, 2),
	   "tuples");
	ok(is_shape(model_info(m)->input, 6, 6, 2), "input_shape without the batch");
	near(node(m, "c", BACKEND_ACTIVATION)->max_value, 3, 0, "a layer as activation");
	ok(node(m, "bn", BACKEND_BATCHNORM), "BatchNormalizationV1");
	is(node(m, "a", BACKEND_ACTIVATION)->activation, BACKEND_SWISH, "an object as activation");
	ok(m->init[6].fan == FAN_IN && m->init[6].distribution == INIT_TRUNCATED,
	   "VarianceScaling of Keras 2.1");
	is(model_info(m)->outputs, 24, "outputs of a reshape");
	model_free(m);
}

/* ---- input shapes ------------------------------------------------------------------------ */

static void input_case(const char *text, struct model_bind bind, struct backend_shape want,
		       uint32_t outputs, const char *json, const char *name)
{
	struct model *m = open_or_stop(text, &bind);
	const struct backend_graph *g = model_graph(m);
	char *out = model_json(m);

	if (ok(g && is_shape(g->node[0].out, want.h, want.w, want.c) &&
		       is_shape(model_info(m)->input, want.h, want.w, want.c) &&
		       model_info(m)->outputs == outputs,
	       "%s", name))
		like(out, json, "and goes into the JSON");
	free(out);
	model_free(m);
}

static void inputs(void)
{
	const char *none = SEQ(L("Conv2D", "c", ", \"filters\": 2, \"kernel_size\": 3") "," L(
		"GlobalMaxPooling2D", "g", ""));
	const char *dense = SEQ(L("Dense", "d", ", \"units\": 2"));
	struct model *m = open_or_stop(none, NULL);
	char *text = model_summary(m);

	ok(!model_info(m)->shape_known && !model_graph(m), "without any shape there is no graph");
	like(text, "not known before the input shape is", "the summary says so");
	free(text);
	text = model_json(m);
	is_str(text, none, "the JSON is the text");
	free(text);
	is(model_blob_bytes(m), 0, "no blob yet");
	model_free(m);
	input_case(none, (struct model_bind){5, 6, 3, 0}, (struct backend_shape){5, 6, 3}, 2,
		   "\"batch_input_shape\": [null, 5, 6, 3]", "shape from the data");
	input_case(dense, (struct model_bind){1, 1, 7, 0}, (struct backend_shape){1, 1, 7}, 2,
		   "\"batch_input_shape\": [null, 7]", "vectors from the data");
	input_case(dense, (struct model_bind){5, 6, 7, 0}, (struct backend_shape){5, 6, 7}, 60,
		   "\"batch_input_shape\": [null, 5, 6, 7]", "dense on the last axis of images");
	input_case(SEQ(IN("null, null, 3") L("GlobalAveragePooling2D", "g", "")),
		   (struct model_bind){9, 8, 0, 0}, (struct backend_shape){9, 8, 3}, 3,
		   "[null, 9, 8, 3]", "None filled in");
	input_case(SEQ(IN("6, 4") L("Flatten", "f", "")), (struct model_bind){6, 4, 1, 0},
		   (struct backend_shape){6, 4, 1}, 24, "[null, 6, 4]", "images of two dimensions");
	input_case(SEQ(IN("6, 4") L("Dense", "f", ", \"units\": 3")), (struct model_bind){0},
		   (struct backend_shape){6, 4, 1}, 18, "[null, 6, 4]", "rows folded as declared");
	input_case(SEQ(IN("48") L("Dense", "f", ", \"units\": 3")), (struct model_bind){4, 4, 3, 0},
		   (struct backend_shape){4, 4, 3}, 3, "[null, 48]", "images as vectors");
	input_case(SEQ(IN("4, 4, 3") L("Flatten", "f", "")), (struct model_bind){1, 1, 48, 0},
		   (struct backend_shape){4, 4, 3}, 48, "[null, 4, 4, 3]", "vectors as images");
	input_case(SEQ(IN("null, null") L("Dense", "f", ", \"units\": 2")),
		   (struct model_bind){6, 4, 3, 0}, (struct backend_shape){6, 4, 3}, 12,
		   "[null, 6, 12]", "images as rows of any length");
	input_case(
		"{\"module\": \"keras\", \"class_name\": \"Sequential\", \"config\": {\"layers\": "
		"[" L("GlobalAveragePooling2D", "g", "") "]}}",
		(struct model_bind){3, 4, 2, 0}, (struct backend_shape){3, 4, 2}, 2,
		"{\"batch_shape\": [null, 3, 4, 2], \"name\": \"input_layer\"",
		"Keras 3: an InputLayer");
	m = open_or_stop(SEQ(IN("null, null, 3") L("Conv2D", "c",
						   ", \"filters\": 2, "
						   "\"kernel_size\": 3")),
			 NULL);
	text = model_summary(m);
	like(text, "(None, None, None, 2)", "open sizes spread");
	free(text);
	model_free(m);
}

/* What is filled in goes into the JSON and must change nothing else: not the made-up names either.
 */
static void filled(void)
{
	static const char *const texts[] = {
		SEQ("{\"class_name\": \"Conv2D\", \"config\": {\"filters\": 2, \"kernel_size\": "
		    "1}}, "
		    "{\"class_name\": \"Dense\", \"config\": {\"units\": 2}}"),
		"{\"module\": \"keras\", \"class_name\": \"Sequential\", \"config\": {\"layers\": "
		"[" L("Dense", "input_layer", ", \"units\": 2") ", {\"class_name\": \"Dense\", "
								"\"config\": {\"units\": 2}}]}}",
	};
	struct model_bind bind = {3, 4, 2, 0};

	for (size_t i = 0; i < 2; i++) {
		struct model *m = open_or_stop(texts[i], &bind), *again;
		char *json = model_json(m);

		again = open_or_stop(json, NULL);
		is(backend_graph_hash(model_graph(again)), backend_graph_hash(model_graph(m)),
		   "the JSON with the filled shape has the same tensors");
		free(json);
		model_free(m);
		model_free(again);
	}
}

/* ---- built-ins --------------------------------------------------------------------------- */

static void builtins(void)
{
	/* counted by Keras from the same layers */
	static const struct {
		const char *name;
		struct model_bind bind;
		uint64_t trainable, frozen;
	} want[] = {{"keras_cnn", {28, 28, 1, 10}, 1199882, 0},
		    {"lenet", {28, 28, 1, 10}, 61706, 0},
		    {"resnet20", {32, 32, 3, 10}, 272474, 1568},
		    {"vgg_small", {32, 32, 3, 10}, 550570, 0}};

	is(model_builtin_count(), 4, "four built-ins");
	ok(model_builtin_name(4) == NULL, "no fifth");
	for (size_t i = 0; i < 4; i++) {
		struct model *m = open_or_stop(want[i].name, &want[i].bind), *again;
		char *json = model_json(m), *first = model_summary(m), *second;

		ok(model_info(m)->trainable == want[i].trainable &&
			   model_info(m)->frozen == want[i].frozen && model_info(m)->builtin,
		   "%s has Keras' number of parameters", want[i].name);
		is(model_info(m)->outputs, 10, "classes");
		is(model_info(m)->last, BACKEND_SOFTMAX, "softmax at the end");
		again = open_or_stop(json, NULL);
		second = model_summary(again);
		is_str(second, first, "its JSON gives the same model");
		is(backend_graph_hash(model_graph(again)), backend_graph_hash(model_graph(m)),
		   "with the same tensors");
		model_free(again);
		model_free(m);
		free(json);
		free(first);
		free(second);
	}
}

static void builtin_details(void)
{
	struct model_bind bind = {32, 32, 3, 10};
	struct model *m = open_or_stop(" resnet20\n", &bind);
	char *text;

	is_str(model_info(m)->name, "resnet20", "spaces around a name are fine");
	near(tensor(m, "conv1/kernel")->l2, 1e-4, 1e-10, "resnet20 has weight decay");
	ok(m->init[0].kind == INIT_SCALING && m->init[0].a == 2 && m->init[0].fan == FAN_IN,
	   "and he_normal");
	model_free(m);
	m = open_or_stop("keras_cnn", NULL);
	ok(!model_info(m)->shape_known && !model_json(m), "a built-in without sizes has no JSON");
	text = model_summary(m);
	like(text, "dense_1 (Dense)", "but a summary");
	free(text);
	model_free(m);
}

int main(void)
{
	attributes();
	frozen();
	inference_mode();
	generations();
	forms();
	inputs();
	filled();
	builtins();
	builtin_details();
	return done();
}
