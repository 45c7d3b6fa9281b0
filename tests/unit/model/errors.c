// SPDX-License-Identifier: MIT
/*
 * errors.c: every wrong architecture is refused with its line, its path, the layer's name and a
 * reason; nothing of any size or depth does harm.
 */
#include "../../../userspace/model/internal.h"
#include "../../tap.h"

static struct err err;

static int open_text(const char *text, size_t length, const struct model_bind *bind)
{
	struct model *model = NULL;
	int rc;

	memset(&err, 0, sizeof(err));
	rc = model_open(text, length, bind, &model, &err);
	if (!rc)
		model_free(model);
	return rc;
}

static void refuse(const char *text, const char *piece, const char *name)
{
	int rc = open_text(text, strlen(text), NULL);

	if (!ok(rc < 0 && err.kind == ERR_ARCH && strstr(err.message, piece), "%s", name))
		printf("#   %d: %s\n#   wanted: %s\n", rc, err.message, piece);
}

static void accept(const char *text, const char *name)
{
	if (!ok(open_text(text, strlen(text), NULL) == 0, "%s", name))
		printf("#   %s\n", err.message);
}

#define HEAD "{\"class_name\": \"Sequential\", \"config\": {\"name\": \"s\", \"layers\": [\n"
#define IN                                                                                  \
	"{\"class_name\": \"InputLayer\", \"config\": {\"name\": \"in\", \"batch_shape\": " \
	"[null, 8, 8, 3]}},\n"
#define LAYER(class, keys) \
	"{\"class_name\": \"" class "\", \"config\": {\"name\": \"x\",\n" keys "}}\n"
#define TAIL "]}}"
#define ONE(class, keys)           \
	HEAD IN LAYER(class, keys) \
	TAIL

struct wrong {
	const char *text, *piece, *name;
};

/* Inside the one layer x: its class stands in line 3, its keys in line 4. */
static const struct wrong keys[] = {
	{ONE("Conv2D", "\"filters\": 0, \"kernel_size\": 3"),
	 "line 4 column 1, config.layers[1].config.filters (layer 'x'): must be an integer from 1 "
	 "to "
	 "16777216, not 0",
	 "no filters"},
	{ONE("Conv2D", "\"filters\": 4,\n \"kernel_size\": [3, \"a\"]"),
	 "line 5 column 21, config.layers[1].config.kernel_size[1] (layer 'x'): must be an integer",
	 "a word as kernel size, in the line where it stands"},
	{ONE("Conv2D", "\"filters\": 4.5, \"kernel_size\": 3"), "must be an integer",
	 "half a filter"},
	{ONE("Conv2D", "\"filters\": 99999999999, \"kernel_size\": 3"), "not 99999999999",
	 "too many filters"},
	{ONE("Conv2D", "\"kernel_size\": 3"), "'filters' is missing", "filters missing"},
	{ONE("Conv2D", "\"filters\": 4"), "'kernel_size' is missing", "kernel size missing"},
	{ONE("Conv2D", "\"filters\": 4, \"kernel_size\": [3, 3, 3]"),
	 "must be one number or a list of two", "three kernel sizes"},
	{ONE("Conv2D", "\"filters\": 4, \"kernel_size\": 9"),
	 "(layer 'x'): a window of 9 does not fit the height 8", "kernel larger than the image"},
	{ONE("Conv2D", "\"filters\": 4, \"kernel_size\": 3, \"padding\": \"causal\""),
	 "config.padding (layer 'x'): must be 'valid' or 'same', not 'causal'", "causal padding"},
	{ONE("Conv2D", "\"filters\": 4, \"kernel_size\": 3, \"groups\": 2"),
	 "3 input channels cannot be divided into 2 groups", "groups and channels"},
	{ONE("Conv2D", "\"filters\": 4, \"kernel_size\": 3, \"groups\": 3"),
	 "4 filters cannot be divided into 3 groups", "groups and filters"},
	{ONE("Conv2D", "\"filters\": 4, \"kernel_size\": 3, \"strides\": 2, \"dilation_rate\": 2"),
	 "cannot both be above 1", "strides and dilation"},
	{ONE("Conv2D", "\"filters\": 4, \"kernel_size\": 3, \"data_format\": \"channels_first\""),
	 "data_format must be 'channels_last', not 'channels_first'", "channels first"},
	{ONE("Conv2D", "\"filters\": 4, \"kernel_size\": 3, \"use_bias\": 1"),
	 "use_bias (layer 'x'): must be true or false", "a number as truth"},
	{ONE("Conv2D", "\"filters\": 4, \"kernel_size\": 3, \"activation\": \"mish\""),
	 "activation 'mish' is not supported", "unknown activation"},
	{ONE("Conv2D", "\"filters\": 4, \"kernel_size\": 3, \"activation\": 7"),
	 "must be a name or an object", "a number as activation"},
	{ONE("Conv2D",
	     "\"filters\": 4, \"kernel_size\": 3, \"kernel_initializer\": \"orthogonal\""),
	 "initializer 'orthogonal' is not supported", "unknown initializer"},
	{ONE("Conv2D",
	     "\"filters\": 4, \"kernel_size\": 3, \"kernel_initializer\": {\"class_name\": "
	     "\"RandomUniform\", \"config\": {\"minval\": 1, \"maxval\": 0}}"),
	 "'minval' is above 'maxval'", "initializer's range"},
	{ONE("Conv2D",
	     "\"filters\": 4, \"kernel_size\": 3, \"kernel_initializer\": {\"class_name\": "
	     "\"HeNormal\", \"config\": {\"seed\": \"x\"}}"),
	 "kernel_initializer.config.seed (layer 'x'): must be an integer", "initializer's seed"},
	{ONE("Conv2D",
	     "\"filters\": 4, \"kernel_size\": 3, \"kernel_regularizer\": {\"class_name\": "
	     "\"L2\", \"config\": {\"l2\": -1}}"),
	 "kernel_regularizer.config.l2 (layer 'x'): must be a number from 0", "negative penalty"},
	{ONE("Conv2D",
	     "\"filters\": 4, \"kernel_size\": 3, \"kernel_regularizer\": \"orthogonal\""),
	 "regularizer 'orthogonal' is not supported", "unknown regularizer"},
	{ONE("Conv2D", "\"filters\": 4, \"kernel_size\": 3, \"activity_regularizer\": \"l2\""),
	 "activity regularizers are not supported", "activity regularizer"},
	{ONE("Conv2D",
	     "\"filters\": 4, \"kernel_size\": 3, \"kernel_constraint\": {\"class_name\": "
	     "\"MaxNorm\", \"config\": {}}"),
	 "constraints on weights are not supported", "constraint"},
	{ONE("Conv2D", "\"filters\": 4, \"kernel_size\": 3, \"lora_rank\": 4"),
	 "lora_rank (layer 'x'): unknown key of Conv2D", "unknown key"},
	{ONE("Conv2D", "\"nb_filter\": 4, \"nb_row\": 3, \"nb_col\": 3"),
	 "'nb_filter' is a key of Keras 1 ('filters' since Keras 2)", "Keras 1 key"},
	{ONE("Dense", "\"output_dim\": 4"), "'output_dim' is a key of Keras 1", "Keras 1 dense"},
	{ONE("Dense", "\"units\": 4, \"dtype\": \"float64\""), "dtype 'float64' is not supported",
	 "dtype"},
	{ONE("Dense", "\"units\": 4, \"trainable\": \"yes\""),
	 "trainable (layer 'x'): must be true", "a word as truth"},
	{ONE("DepthwiseConv2D", "\"kernel_size\": 3, \"depth_multiplier\": 16777216"),
	 "50331648 output channels", "depth multiplier"},
	{ONE("MaxPooling2D", "\"pool_size\": [9, 9]"), "a window of 9 does not fit", "large pool"},
	{ONE("MaxPooling2D", "\"pool_size\": -2"), "must be an integer from 1", "negative pool"},
	{ONE("BatchNormalization", "\"axis\": 1"), "axis must be the last one (-1 or 3), not 1",
	 "axis of a batch norm"},
	{ONE("BatchNormalization", "\"axis\": [1, 3]"), "must be one axis", "two axes"},
	{ONE("BatchNormalization", "\"momentum\": 1.5"), "must be a number from 0 to 1, not 1.5",
	 "momentum"},
	{ONE("BatchNormalization", "\"renorm\": true"), "'renorm' is not supported", "renorm"},
	{ONE("BatchNormalization", "\"synchronized\": true"), "'synchronized' is not supported",
	 "synchronized"},
	{ONE("Dropout", "\"rate\": 1"), "must be a number from 0 to 0.999999, not 1", "rate 1"},
	{ONE("Dropout", "\"rate\": 0.5, \"noise_shape\": [null, 1, 1, 3]"),
	 "'noise_shape' is not supported", "noise shape"},
	{ONE("Dropout", "\"seed\": 1"), "'rate' is missing", "rate missing"},
	{ONE("ReLU", "\"max_value\": -1"), "max_value (layer 'x'): must be a number from 0",
	 "negative cap"},
	{ONE("Softmax", "\"axis\": 1"), "axis must be the last one", "softmax over the height"},
	{ONE("Activation", "\"dtype\": null"), "'activation' is missing", "activation missing"},
	{ONE("Reshape", "\"target_shape\": [5, -1]"), "with its 192 elements cannot take",
	 "reshape"},
	{ONE("Reshape", "\"target_shape\": [-1, -1]"), "one of them may be -1", "two open sizes"},
	{ONE("Reshape", "\"target_shape\": [0, -1]"), "sizes must be positive", "size 0"},
	{ONE("Reshape", "\"target_shape\": [2, 2, 2, 24]"), "list of 1 to 3 sizes", "four sizes"},
	{ONE("Reshape", "\"target_shape\": [2147483647, 2147483647, 2147483647]"), "too large",
	 "reshape that overflows"},
	{ONE("ZeroPadding2D", "\"padding\": [[1, 2], 3]"), "must be a number, two, or two pairs",
	 "padding"},
	{ONE("ZeroPadding2D", "\"padding\": [1, 70000]"), "from 0 to 65536, not 70000",
	 "large padding"},
	{ONE("UpSampling2D", "\"interpolation\": \"lanczos3\""), "not 'lanczos3'", "interpolation"},
	{ONE("Rescaling", "\"scale\": [1, 2]"), "2 scales and 1 offsets for 3 channels", "scales"},
	{ONE("Rescaling", "\"offset\": 2"), "'scale' is missing", "scale missing"},
	{ONE("RandomFlip", "\"mode\": \"diagonal\""), "must be 'horizontal'", "flip"},
	{ONE("RandomTranslation", "\"height_factor\": 0.1, \"width_factor\": 0.1"),
	 "fill_mode 'reflect'", "fill mode"},
	{ONE("RandomTranslation",
	     "\"height_factor\": [-0.1, 0.3], \"width_factor\": 0.1, \"fill_mode\": \"constant\""),
	 "must be the same to both sides", "lopsided shift"},
	{ONE("RandomCrop", "\"height\": 9, \"width\": 4"), "cannot crop 9x4 out of (None, 8, 8, 3)",
	 "crop"},
	{ONE("Lambda", "\"function\": [\"abc\"]"),
	 "line 3 column 1, config.layers[1] (layer 'x'): Lambda layers hold Python code", "Lambda"},
	{ONE("MyLayer", "\"n\": 1"), "layers of class 'MyLayer' are not supported", "own class"},
	{ONE("Custom>Dense", "\"units\": 1"), "custom class 'Custom>Dense' is refused",
	 "registered class"},
	{ONE("Conv3D", "\"filters\": 1"), "'Conv3D' are not supported", "Conv3D"},
	{ONE("TFOpLambda", "\"function\": \"math.add\""), "is an operation on tensors",
	 "operation"},
	{ONE("InputLayer", "\"batch_shape\": [null, 4, 4, 3]"), "an InputLayer must come first",
	 "input in the middle"},
	{ONE("Flatten", "\"name2\": \"y\""), "unknown key of Flatten", "unknown key of Flatten"},
};

#define TWO(a, b) "{\"class_name\": \"Sequential\", \"config\": {\"layers\": [" a ", " b "]}}"
#define DENSE(n, more) \
	"{\"class_name\": \"Dense\", \"config\": {\"name\": \"" n "\", \"units\": 2" more "}}"

static const struct wrong documents[] = {
	{"", "neither Keras JSON nor the name", "empty text"},
	{"resnet50", "neither Keras JSON nor the name", "unknown name"},
	{"[1]", "neither Keras JSON nor", "a list"},
	{"{}", "'class_name' is missing", "empty object"},
	{"{\"class_name\": 3}", "'class_name' is missing or no string", "class is a number"},
	{"{\"class_name\": \"MyModel\", \"config\": {}}", "'MyModel' is neither Sequential nor",
	 "subclassed model"},
	{"{\"class_name\": \"Sequential\"}", "'config' is missing", "no configuration"},
	{"{\"class_name\": \"Sequential\", \"config\": 3}",
	 "config: a Sequential model needs a list", "configuration is a number"},
	{"{\"class_name\": \"Sequential\", \"config\": []}", "the model has no layers",
	 "no layers"},
	{"{\"class_name\": \"Sequential\", \"config\": {\"layers\": [3]}}",
	 "config.layers[0]: must be an object that describes a layer", "layer is a number"},
	{"{\"class_name\": \"Sequential\", \"config\": {\"layers\": [{}]}}",
	 "'class_name' is missing", "layer without class"},
	{"{\"class_name\": \"Sequential\", \"config\": {\"layers\": [{\"class_name\": "
	 "\"Dense\"}]}}",
	 "'config' must be an object", "layer without configuration"},
	{TWO(DENSE("a", ""), DENSE("a", "")), "two layers have the name 'a'", "one name twice"},
	{TWO(DENSE("a\\nb", ""), DENSE("c", "")), "control character in a layer's name",
	 "line break in a name"},
	{"{\"class_name\": \"Sequential\",\n\"config\": {\n\"layers\": [NaN]}}",
	 "line 3 column 14: invalid token near 'NaN'", "NaN"},
	{"{\"class_name\": \"Sequential\", \"x\": 1e999}", "real number overflow", "overflow"},
	{"{\"class_name\": \"Sequential\", \"x\": -Infinity}", "invalid token", "Infinity"},
	{"{\"class_name\": \"Sequential\", \"x\": 99999999999999999999}", "too big integer",
	 "large integer"},
	{"{\"class_name\": \"Sequential\",\n \"config\": [],\n \"config\": []}",
	 "line 3 column 9: duplicate object key near '\"config\"'", "duplicate key"},
	{"{\"class_name\": \"Sequential\"", "line 1 column 27: '}' expected", "cut text"},
	{"{\"class_name\": \"Sequential\"} x", "end of file expected", "text behind the end"},
	{"{\"class_name\": \"\xff\xfe\"}", "unable to decode byte 0xff", "no UTF-8"},
	{"{\"class_name\": \"Sequential\", \"keras_version\": \"1.2.2\", \"config\": []}",
	 "written by Keras 1.2.2", "Keras 1"},
	{HEAD "{\"class_name\": \"InputLayer\", \"config\": {\"batch_shape\": [null]}}, "
	      "{\"class_name\": \"Flatten\", \"config\": {}}" TAIL,
	 "must be a list of 2 to 4 sizes", "input of one size"},
	{HEAD "{\"class_name\": \"InputLayer\", \"config\": {\"batch_shape\": [null, 0, 3]}}, "
	      "{\"class_name\": \"Flatten\", \"config\": {}}" TAIL,
	 "batch_shape[1] (layer", "input of size 0"},
	{HEAD "{\"class_name\": \"InputLayer\", \"config\": {\"batch_shape\": [null, 2000000000, "
	      "2000000000, 2000000000]}}, {\"class_name\": \"Flatten\", \"config\": {}}" TAIL,
	 "too large", "input of 8e27"},
	{HEAD
	 "{\"class_name\": \"InputLayer\", \"config\": {\"batch_shape\": [null, 4], \"sparse\": "
	 "true}}, {\"class_name\": \"Flatten\", \"config\": {}}" TAIL,
	 "sparse and ragged", "sparse input"},
	{HEAD "{\"class_name\": \"InputLayer\", \"config\": {\"batch_shape\": [null, 4]}}, "
	      "{\"class_name\": \"Conv2D\", \"config\": {\"filters\": 1, \"kernel_size\": 1}}" TAIL,
	 "needs (height, width, channels) as its input, not (None, 4)", "convolution of a vector"},
	{HEAD IN LAYER("Flatten", "\"dtype\": null") ", "
						     "{\"class_name\": \"Dense\", \"config\": "
						     "{\"units\": 16777216}}" TAIL,
	 "the model has more than 1000000000 parameters", "parameters"},
	{HEAD IN "{\"class_name\": \"UpSampling2D\", \"config\": {\"size\": 1024}},"
		 "{\"class_name\": \"UpSampling2D\", \"config\": {\"name\": \"big\", \"size\": "
		 "1024}}" TAIL,
	 "(layer 'big'): its output (None, 8388608, 8388608, 3) has more than", "huge activation"},
	{HEAD IN
	 "{\"class_name\": \"UpSampling2D\", \"config\": {\"name\": \"a\", \"size\": 1024}},"
	 "{\"class_name\": \"UpSampling2D\", \"config\": {\"name\": \"b\", \"size\": 1024}},"
	 "{\"class_name\": \"UpSampling2D\", \"config\": {\"name\": \"c\", \"size\": "
	 "1024}}" TAIL,
	 "(layer 'b')", "huge activation, first place named"},
};

/* ---- functional -------------------------------------------------------------------------- */

#define F(layers, in, out)                                                                      \
	"{\"class_name\": \"Functional\", \"config\": {\"name\": \"f\", \"layers\": [\n" layers \
	"],\n\"input_layers\": " in ", \"output_layers\": " out "}}"
#define FIN(n)                                                                              \
	"{\"class_name\": \"InputLayer\", \"name\": \"" n "\", \"config\": {\"name\": \"" n \
	"\", \"batch_input_shape\": [null, 4, 4, 2]}, \"inbound_nodes\": []},\n"
#define FL(class, n, keys, nodes)                                                          \
	"{\"class_name\": \"" class "\", \"name\": \"" n "\", \"config\": {\"name\": \"" n \
				    "\"" keys "}, \"inbound_nodes\": [" nodes "]}"
#define RELU(n, from) FL("ReLU", n, "", "[[\"" from "\", 0, 0, {}]]")
#define CONV(n, from) \
	FL("Conv2D", n, ", \"filters\": 2, \"kernel_size\": 1", "[[\"" from "\", 0, 0, {}]]")
#define END(n) "[[\"" n "\", 0, 0]]"

static const struct wrong graphs[] = {
	{F(FIN("i") RELU("a", "b") ",\n" RELU("b", "a"), END("i"), END("b")),
	 "line 3 column 1, config.layers[1]: layers 'a' and 'b' are part of a cycle", "cycle"},
	{F(FIN("i") RELU("a", "a"), END("i"), END("a")), "layers 'a' and 'a' are part of a cycle",
	 "cycle of one"},
	{F(FIN("i") RELU("a", "nobody"), END("i"), END("a")),
	 "inbound_nodes[0][0][0] (layer 'a'): there is no layer 'nobody'", "unknown layer"},
	{F(FIN("i") FL("ReLU", "a", "", "[[\"i\", 1, 0, {}]]"), END("i"), END("a")),
	 "refers to call 1 of layer 'i', which is called 1 times", "call that is not there"},
	{F(FIN("i") FL("ReLU", "a", "", "[[\"i\", 0, 1, {}]]"), END("i"), END("a")),
	 "layer 'i' has one output, not 2", "second output"},
	{F(FIN("i") FL("ReLU", "a", "", "[[\"i\", -1, 0, {}]]"), END("i"), END("a")),
	 "must be an integer from 0", "negative call"},
	{F(FIN("i") FL("ReLU", "a", "", "[[\"i\"]]"), END("i"), END("a")),
	 "must be a list of a layer's name", "short reference"},
	{F(FIN("i") FL("ReLU", "a", "", "7"), END("i"), END("a")), "must be a list or an object",
	 "a number as node"},
	{F(FIN("i") FL("ReLU", "a", "", ""), END("i"), END("a")), "'a' is not connected",
	 "output without input"},
	{F(FIN("i") FL("ReLU", "a", "", "[]"), END("i"), END("a")), "takes one input, not 0",
	 "call without input"},
	{F(FIN("i") FL("ReLU", "a", "", "[[\"i\", 0, 0, {}], [\"i\", 0, 0, {}]]"), END("i"),
	   END("a")),
	 "layer 'a' takes one input, not 2", "two inputs"},
	{F(FIN("i") FL("Add", "a", "", "[[\"i\", 0, 0, {}]]"), END("i"), END("a")),
	 "layer 'a' takes two or more inputs, not 1", "Add of one"},
	{F(FIN("i") CONV("a", "i") "," FL("Flatten", "b", "", "[[\"i\", 0, 0, {}]]") "," FL(
		   "Add", "c", "", "[[\"a\", 0, 0, {}], [\"b\", 0, 0, {}]]"),
	   END("i"), END("c")),
	 "(layer 'c'): the inputs (None, 4, 4, 2) and (None, 32) do not fit together", "Add"},
	{F(FIN("i") FL("Concatenate", "c", ", \"axis\": 0",
		       "[[\"i\", 0, 0, {}], [\"i\", 0, 0, {}]]"),
	   END("i"), END("c")),
	 "axis 0 is the batch", "Concatenate over the batch"},
	{F(FIN("i") FL("Flatten", "f", "", "[[\"i\", 0, 0, {}]]") "," FL(
		   "Concatenate", "c", ", \"axis\": 2", "[[\"f\", 0, 0, {}], [\"f\", 0, 0, {}]]"),
	   END("i"), END("c")),
	 "axis 2 of an input with 2 dimensions", "Concatenate over no axis"},
	{F(FIN("i") FIN("j") FL("Add", "a", "", "[[\"i\", 0, 0, {}], [\"j\", 0, 0, {}]]"),
	   "[[\"i\", 0, 0], [\"j\", 0, 0]]", END("a")),
	 "config.input_layers: the model has 2 of them; models with one input", "two inputs"},
	{F(FIN("i") FIN("j") FL("Add", "a", "", "[[\"i\", 0, 0, {}], [\"j\", 0, 0, {}]]"), END("i"),
	   END("a")),
	 "a second input, 'j'", "second input"},
	{F(FIN("i") RELU("a", "i") "," RELU("b", "a"), END("i"), "[[\"a\", 0, 0], [\"b\", 0, 0]]"),
	 "the model has 2 of them", "two outputs"},
	{F(FIN("i") FIN("j") RELU("a", "j"), END("i"), END("a")), "does not lead to the output",
	 "input beside the way"},
	{F(FIN("i") RELU("a", "i"), END("a"), END("a")), "the input 'a' is no InputLayer",
	 "layer as input"},
	{F(FIN("i") RELU("a", "i") "," RELU("a", "i"), END("i"), END("a")),
	 "two layers have the name 'a'", "one name twice"},
	{F(FIN("i") FL("Conv2D", "a", ", \"filters\": 2, \"kernel_size\": 1",
		       "[[\"i\", 0, 0, {}]], [[\"a\", 0, 0, {}]]"),
	   END("i"), "[[\"a\", 1, 0]]"),
	 "(layer 'a'): is called more than once; only layers without weights", "shared weights"},
	{F(FIN("i") FL("Dropout", "a", ", \"rate\": 0.5", "[[\"i\", 0, 0, {\"training\": true}]]"),
	   END("i"), END("a")),
	 "inbound_nodes[0][0][3].training (layer 'a'): calling a layer with the argument",
	 "training forced in Keras 2"},
	{F(FIN("i") FL("ReLU", "a", "",
		       "{\"args\": [{\"class_name\": \"__keras_tensor__\", \"config\": "
		       "{\"keras_history\": [\"i\", 0, 0]}}, 2.0], \"kwargs\": {}}"),
	   END("i"), END("a")),
	 "args[1] (layer 'a'): only tensors can be a layer's input", "number as input"},
	{F(FIN("i") FL("ReLU", "a", "", "{\"kwargs\": {}}"), END("i"), END("a")),
	 "'args' must be a list", "no arguments"},
	{"{\"class_name\": \"Functional\", \"config\": {\"layers\": []}}", "needs a list of layers",
	 "no layers"},
	{"{\"class_name\": \"Model\", \"config\": []}", "config: must be an object", "list"},
	{"{\"class_name\": \"Model\", \"config\": {\"layers\": [" FIN("i") RELU("a", "i") "]}}",
	 "'input_layers' is missing", "no input named"},
};

static void table(const struct wrong *w, size_t n)
{
	for (size_t i = 0; i < n; i++)
		refuse(w[i].text, w[i].piece, w[i].name);
}

/* ---- sizes ------------------------------------------------------------------------------- */

static char *repeat(const char *before, const char *piece, size_t n, const char *after)
{
	size_t a = strlen(before), p = strlen(piece), z = strlen(after);
	char *text = malloc(a + n * p + z + 1), *at = text;

	memcpy(at, before, a);
	at += a;
	for (size_t i = 0; i < n; i++, at += p)
		memcpy(at, piece, p);
	memcpy(at, after, z + 1);
	return text;
}

static void deep(void)
{
	char *text = repeat("{\"class_name\": ", "[", 10000, "");

	refuse(text, "maximum parsing depth reached", "10,000 lists inside each other");
	free(text);
	text = repeat("{\"class_name\": \"Sequential\", \"config\":",
		      "[{\"class_name\": \"Sequential\", \"config\":", 400, "0");
	refuse(text, "line 1 column", "400 models inside each other, cut off");
	free(text);
}

/* n models around a Sequential one with one layer. */
static void nested_models(uint32_t n)
{
	char *open = repeat("{\"class_name\": \"Sequential\", \"config\": {\"layers\": [",
			    "{\"class_name\": \"Sequential\", \"name\": \"m\", \"config\": "
			    "{\"layers\": [",
			    n, DENSE("d", ", \"batch_input_shape\": [null, 4]"));
	char *text = repeat(open, "]}}", n + 1, "");

	if (n <= MAX_NESTED)
		accept(text, "models inside models");
	else
		refuse(text, "models are nested more than 16 deep", "models nested too deep");
	free(open);
	free(text);
}

static void many_layers(void)
{
	char *text = repeat("{\"class_name\": \"Sequential\", \"config\": {\"layers\": [",
			    "{\"class_name\": \"ReLU\", \"config\": {}},", 10000,
			    "{\"class_name\": \"ReLU\", \"config\": {}}]}}");
	char *exact = repeat("{\"class_name\": \"Sequential\", \"config\": {\"layers\": [",
			     "{\"class_name\": \"ReLU\", \"config\": {}},", 9999,
			     "{\"class_name\": \"ReLU\", \"config\": {}}]}}");

	refuse(text, "more than 10000 layers", "10,001 layers");
	accept(exact, "10,000 layers");
	free(text);
	free(exact);
}

static void large_texts(void)
{
	size_t size = MODEL_MAX_JSON + 1;
	char *text = malloc(size);
	char *empty = repeat("{\"class_name\": [", "{},", 700000, "0]}");

	memset(text, ' ', size);
	ok(open_text(text, size, NULL) < 0 && strstr(err.message, "at most 16777216"),
	   "text over the limit");
	refuse(empty, "at most 600000", "more objects than any model has");
	free(text);
	free(empty);
}

/* A model of shared models multiplies out: levels of four calls each. */
static char *multiplied(int levels)
{
	char *inner = strdup("{\"class_name\": \"ReLU\", \"name\": \"m\", \"config\": "
			     "{\"name\": \"m\"}");

	for (int level = 0; level < levels; level++) {
		int shift = level > 0; /* Keras 2 counts a model's own definition */
		char *text;

		if (asprintf(&text,
			     "{\"class_name\": \"Functional\", \"name\": \"m\", \"config\": {"
			     "\"name\": \"m\", \"layers\": [" FIN(
				     "i") "%s, \"inbound_nodes\": [[[\"i\", 0, 0, {}]], [[\"m\", "
					  "%d, 0, {}]], "
					  "[[\"m\", %d, 0, {}]], [[\"m\", %d, 0, {}]]]}], "
					  "\"input_layers\": "
					  "[[\"i\", 0, 0]], \"output_layers\": [[\"m\", %d, 0]]}",
			     inner, shift, 1 + shift, 2 + shift, 3 + shift) < 0)
			BAIL("out of memory");
		free(inner);
		inner = text;
	}
	inner = realloc(inner, strlen(inner) + 2);
	return strcat(inner, "}");
}

/* A sum of 200 inputs inside a model that is called 1,000 times. */
static void wide_shared(void)
{
	char *refs = repeat("[[\"i\", 0, 0, {}]", ", [\"i\", 0, 0, {}]", 199, "]");
	char *calls = repeat("[[\"i\", 0, 0, {}]]", ", [[\"i\", 0, 0, {}]]", 999, "");
	char *used = repeat("[[\"m\", 0, 0, {}]", "", 0, ""), *text;

	for (int i = 1; i < 1000; i++) {
		char *more;

		if (asprintf(&more, "%s, [\"m\", %d, 0, {}]", used, i + 1) < 0)
			BAIL("out of memory");
		free(used);
		used = more;
	}
	if (asprintf(&text,
		     F(FIN("i") "{\"class_name\": \"Functional\", \"name\": \"m\", \"config\": "
				"{\"name\": \"m\", \"layers\": [" FIN("i")
					FL("Add", "a", "", "%s") "], \"input_layers\": " END(
						"i") ", \"output_layers\": " END("a") "}, "
										      "\"inbound"
										      "_nodes\":"
										      " [%s]},"
										      " " FL("Ad"
											     "d",
											     "su"
											     "m",
											     "",
											     "%s"
											     "]"),
		       END("i"), END("sum")),
		     refs, calls, used) < 0)
		BAIL("out of memory");
	refuse(text, "or 160000 inputs of them", "a wide sum, called 1,000 times");
	free(refs);
	free(calls);
	free(used);
	free(text);
}

static void shared_models(void)
{
	char *few = multiplied(4), *many = multiplied(12);

	accept(few, "models called four times, in each other");
	refuse(many, "more than 40000 calls of layers", "too many times");
	free(few);
	free(many);
}

/* ---- the data against the architecture --------------------------------------------------- */

static void contradictions(void)
{
	const char *text = ONE("Flatten", "\"dtype\": null");
	struct model_bind bind = {32, 32, 3, 10};

	ok(open_text(text, strlen(text), &bind) < 0, "rows of another shape");
	like(err.message,
	     "line 2 column 1, config.layers[0]: the input shape is (None, 8, 8, 3), the data's "
	     "rows "
	     "are 32x32x3",
	     "both shapes are named");
	bind = (struct model_bind){8, 8, 1, 0};
	ok(open_text(text, strlen(text), &bind) < 0, "rows with other channels");
	bind = (struct model_bind){1, 1, 192, 0};
	ok(open_text(text, strlen(text), &bind) == 0, "rows that are vectors of as many elements");
	bind = (struct model_bind){1, 1, 191, 0};
	ok(open_text(text, strlen(text), &bind) < 0, "rows that are shorter vectors");
	bind = (struct model_bind){2, 2, 3, 10};
	ok(open_text("vgg_small", 9, &bind) < 0, "image too small for a built-in");
	like(err.message, "(layer 'block2_pool')", "with the layer where it ends");
	bind = (struct model_bind){UINT32_MAX, UINT32_MAX, UINT32_MAX, UINT32_MAX};
	ok(open_text("keras_cnn", 9, &bind) < 0, "absurd sizes");
}

static void positions(void)
{
	/* an escaped key and an escaped name, in a document over several lines */
	refuse("{\"class_name\": \"Sequential\",\n \"con\\u0066ig\": {\"la\\u0079ers\": [\n"
	       "{\"class_name\": \"Dense\",\n\"config\": {\"name\": \"q\\\"\\\\\",\n"
	       "\"\\u0075nits\": 0}}]}}",
	       "line 5 column 1, config.layers[0].config.units (layer 'q\"\\')",
	       "escapes in keys and names");
	refuse("  \n\n {\"class_name\": 1}", "line 3 column 2",
	       "lines are those of the text as given");
	refuse(HEAD "{\"class_name\": \"Dense\", \"config\": {\"name\": \"\xc3\xa4\", \"units\": "
		    "0}}" TAIL,
	       "(layer '\xc3\xa4')", "name in UTF-8");
	refuse(HEAD
	       "{\"class_name\": \"Dense\", \"config\": {\"name\": "
	       "\"xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx"
	       "xxxxxxxxxxxxxxxxx\xc3\xa4\", \"units\": 0}}" TAIL,
	       "xxxxx?')", "a cut name stays valid UTF-8");
}

int main(void)
{
	table(keys, sizeof(keys) / sizeof(keys[0]));
	table(documents, sizeof(documents) / sizeof(documents[0]));
	table(graphs, sizeof(graphs) / sizeof(graphs[0]));
	deep();
	nested_models(3);
	nested_models(16);
	nested_models(17);
	many_layers();
	large_texts();
	shared_models();
	wide_shared();
	contradictions();
	positions();
	ok(model_open("{", 1, NULL, &(struct model *){NULL}, NULL) < 0, "no place for the error");
	return done();
}
