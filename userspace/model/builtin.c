// SPDX-License-Identifier: MIT
/*
 * builtin.c: the built-in architectures, written as Keras 3 JSON and then read like a user's. Sizes
 * that are not known yet (0) are null.
 */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "internal.h"

struct writer {
	FILE *f;
	bool functional;
	uint32_t n; /* layers so far */
	struct backend_shape shape;
	bool flat;
	char last[48]; /* name of the newest layer */
	char skip[48]; /* of the branch that Add joins */
	uint32_t outputs;
};

static void number(FILE *f, uint32_t v)
{
	if (v)
		fprintf(f, "%u", v);
	else
		fputs("null", f);
}

static void shape(struct writer *w)
{
	fputs("[null, ", w->f);
	if (!w->flat) {
		number(w->f, w->shape.h);
		fputs(", ", w->f);
		number(w->f, w->shape.w);
		fputs(", ", w->f);
	}
	number(w->f, w->shape.c);
	fputs("]", w->f);
}

static void tensor(struct writer *w, const char *name)
{
	fputs("{\"class_name\": \"__keras_tensor__\", \"config\": {\"shape\": ", w->f);
	shape(w);
	fprintf(w->f, ", \"dtype\": \"float32\", \"keras_history\": [\"%s\", 0, 0]}}", name);
}

static void begin_layer(struct writer *w, const char *class_name, const char *name)
{
	fprintf(w->f,
		"%s\n    {\"module\": \"keras.layers\", \"class_name\": \"%s\", \"config\": "
		"{\"name\": \"%s\", ",
		w->n++ ? "," : "", class_name, name);
	if (strcmp(class_name, "InputLayer"))
		fputs("\"trainable\": true, ", w->f);
	fputs("\"dtype\": \"float32\"", w->f);
}

/* from, from2: the layers that feed it; NULL: none. */
static void end_layer(struct writer *w, const char *name, const char *from, const char *from2)
{
	fputs("}, \"registered_name\": null", w->f);
	if (w->functional) {
		fprintf(w->f, ", \"name\": \"%s\",\n     \"inbound_nodes\": [", name);
		if (from) {
			fprintf(w->f, "{\"args\": [%s", from2 ? "[" : "");
			tensor(w, from);
			if (from2) {
				fputs(", ", w->f);
				tensor(w, from2);
			}
			fprintf(w->f, "%s], \"kwargs\": {}}", from2 ? "]" : "");
		}
		fputs("]", w->f);
	}
	fputs("}", w->f);
	snprintf(w->last, sizeof(w->last), "%s", name);
}

/* A layer after the newest one; fmt: its own keys, each with a comma in front. */
static __attribute__((format(printf, 4, 5))) void layer(struct writer *w, const char *class_name,
							const char *name, const char *fmt, ...)
{
	char from[48];
	va_list ap;

	memcpy(from, w->last, sizeof(from));
	begin_layer(w, class_name, name);
	va_start(ap, fmt);
	vfprintf(w->f, fmt, ap);
	va_end(ap);
	end_layer(w, name, from, NULL);
}

static void conv(struct writer *w, const char *name, uint32_t filters, uint32_t kernel,
		 const char *rest)
{
	layer(w, "Conv2D", name, ", \"filters\": %u, \"kernel_size\": [%u, %u]%s", filters, kernel,
	      kernel, rest);
	w->shape.c = filters;
}

static void flatten(struct writer *w)
{
	layer(w, "Flatten", "flatten", "%s", "");
	w->flat = true;
}

static void dense(struct writer *w, const char *name, uint32_t units, const char *rest)
{
	layer(w, "Dense", name, ", \"units\": %u%s", units, rest);
}

static void classes(struct writer *w, const char *name)
{
	char units[24] = "null";

	if (w->outputs)
		snprintf(units, sizeof(units), "%u", w->outputs);
	layer(w, "Dense", name, ", \"units\": %s, \"activation\": \"softmax\"", units);
}

#define SAME ", \"padding\": \"same\""
#define RELU ", \"activation\": \"relu\""
#define TANH ", \"activation\": \"tanh\""
#define HE_UNIFORM ", \"kernel_initializer\": \"he_uniform\""
#define POOL2 ", \"pool_size\": [2, 2]"

/* The network of Keras' MNIST and Fashion-MNIST examples, without dropout. */
static void keras_cnn(struct writer *w)
{
	conv(w, "conv2d", 32, 3, RELU);
	conv(w, "conv2d_1", 64, 3, RELU);
	layer(w, "MaxPooling2D", "max_pooling2d", "%s", POOL2);
	flatten(w);
	dense(w, "dense", 128, RELU);
	classes(w, "dense_1");
}

/* LeNet-5 (LeCun et al. 1998) with average pooling, tanh and a softmax. */
static void lenet(struct writer *w)
{
	conv(w, "conv2d", 6, 5, SAME TANH);
	layer(w, "AveragePooling2D", "average_pooling2d", "%s", POOL2);
	conv(w, "conv2d_1", 16, 5, TANH);
	layer(w, "AveragePooling2D", "average_pooling2d_1", "%s", POOL2);
	flatten(w);
	dense(w, "dense", 120, TANH);
	dense(w, "dense_1", 84, TANH);
	classes(w, "dense_2");
}

/* Three blocks of two 3x3 convolutions (after Simonyan and Zisserman 2015). */
static void vgg_small(struct writer *w)
{
	for (uint32_t block = 0; block < 3; block++) {
		char name[48];

		for (uint32_t i = 0; i < 2; i++) {
			snprintf(name, sizeof(name), "block%u_conv%u", block + 1, i + 1);
			conv(w, name, 32u << block, 3, SAME RELU HE_UNIFORM);
		}
		snprintf(name, sizeof(name), "block%u_pool", block + 1);
		layer(w, "MaxPooling2D", name, "%s", POOL2);
	}
	flatten(w);
	dense(w, "fc1", 128, RELU HE_UNIFORM);
	layer(w, "Dropout", "dropout", ", \"rate\": 0.5");
	classes(w, "predictions");
}

/* A convolution without bias, then batch norm; the way He et al. train it. */
static void conv_norm(struct writer *w, const char *name, uint32_t filters, uint32_t kernel,
		      uint32_t stride)
{
	char norm[64];

	layer(w, "Conv2D", name,
	      ", \"filters\": %u, \"kernel_size\": [%u, %u], \"strides\": [%u, %u], \"padding\": "
	      "\"same\", \"use_bias\": false, \"kernel_initializer\": {\"module\": "
	      "\"keras.initializers\", \"class_name\": \"HeNormal\", \"config\": {\"seed\": null}, "
	      "\"registered_name\": null}, \"kernel_regularizer\": {\"module\": "
	      "\"keras.regularizers\", \"class_name\": \"L2\", \"config\": {\"l2\": 0.0001}, "
	      "\"registered_name\": null}",
	      filters, kernel, kernel, stride, stride);
	w->shape.c = filters;
	w->shape.h = (w->shape.h + stride - 1) / stride;
	w->shape.w = (w->shape.w + stride - 1) / stride;
	snprintf(norm, sizeof(norm), "%.40s_bn", name);
	layer(w, "BatchNormalization", norm, "%s", "");
}

static void relu(struct writer *w, const char *name)
{
	layer(w, "Activation", name, RELU);
}

static void block(struct writer *w, uint32_t stage, uint32_t i, uint32_t filters)
{
	uint32_t stride = stage > 1 && i == 1 ? 2 : 1;
	struct backend_shape in = w->shape;
	char name[48], main[48];

	snprintf(w->skip, sizeof(w->skip), "%.47s", w->last);
	snprintf(name, sizeof(name), "stage%u_block%u_conv1", stage, i);
	conv_norm(w, name, filters, 3, stride);
	snprintf(name, sizeof(name), "stage%u_block%u_relu1", stage, i);
	relu(w, name);
	snprintf(name, sizeof(name), "stage%u_block%u_conv2", stage, i);
	conv_norm(w, name, filters, 3, 1);
	snprintf(main, sizeof(main), "%.47s", w->last);
	if (stride > 1) { /* projection; zero padding of channels needs code in Keras */
		memcpy(w->last, w->skip, sizeof(w->last));
		w->shape = in;
		snprintf(name, sizeof(name), "stage%u_block%u_shortcut", stage, i);
		conv_norm(w, name, filters, 1, stride);
		memcpy(w->skip, w->last, sizeof(w->skip));
	}
	snprintf(name, sizeof(name), "stage%u_block%u_add", stage, i);
	begin_layer(w, "Add", name);
	end_layer(w, name, main, w->skip);
	snprintf(name, sizeof(name), "stage%u_block%u_relu2", stage, i);
	relu(w, name);
}

/* He et al. 2016, section 4.2, n = 3: 20 layers for CIFAR. */
static void resnet20(struct writer *w)
{
	conv_norm(w, "conv1", 16, 3, 1);
	relu(w, "conv1_relu");
	for (uint32_t stage = 1; stage <= 3; stage++)
		for (uint32_t i = 1; i <= 3; i++)
			block(w, stage, i, 8u << stage);
	layer(w, "GlobalAveragePooling2D", "avg_pool", "%s", "");
	w->flat = true;
	classes(w, "predictions");
}

static const struct {
	const char *name;
	bool functional;
	void (*write)(struct writer *w);
} builtins[] = {
	{"keras_cnn", false, keras_cnn},
	{"lenet", false, lenet},
	{"resnet20", true, resnet20},
	{"vgg_small", false, vgg_small},
};

size_t model_builtin_count(void)
{
	return sizeof(builtins) / sizeof(builtins[0]);
}

const char *model_builtin_name(size_t i)
{
	return i < model_builtin_count() ? builtins[i].name : NULL;
}

bool builtin_known(const char *text, size_t length, const char **name)
{
	for (size_t i = 0; i < model_builtin_count(); i++)
		if (strlen(builtins[i].name) == length && !memcmp(builtins[i].name, text, length)) {
			*name = builtins[i].name;
			return true;
		}
	return false;
}

static void write_model(struct writer *w, const char *name, void (*body)(struct writer *w))
{
	fprintf(w->f,
		"{\"module\": \"%s\", \"class_name\": \"%s\", \"config\": {\"name\": \"%s\", "
		"\"trainable\": true,\n  \"layers\": [",
		w->functional ? "keras.src.models.functional" : "keras",
		w->functional ? "Functional" : "Sequential", name);
	begin_layer(w, "InputLayer", "input");
	fputs(", \"batch_shape\": ", w->f);
	shape(w);
	end_layer(w, "input", NULL, NULL);
	body(w);
	fputs("\n  ]", w->f);
	if (w->functional)
		fprintf(w->f,
			",\n  \"input_layers\": [\"input\", 0, 0], \"output_layers\": [\"%s\", 0, "
			"0]",
			w->last);
	fprintf(w->f, "},\n \"registered_name\": %s}\n", w->functional ? "\"Functional\"" : "null");
}

char *builtin_json(const char *name, const struct model_bind *bind)
{
	struct writer w = {0};
	char *text = NULL;
	size_t size;
	bool failed;

	w.f = open_memstream(&text, &size);
	if (!w.f)
		return NULL;
	if (bind) {
		w.shape = (struct backend_shape){bind->h, bind->w, bind->c};
		w.outputs = bind->outputs;
	}
	for (size_t i = 0; i < model_builtin_count(); i++)
		if (!strcmp(name, builtins[i].name)) {
			w.functional = builtins[i].functional;
			write_model(&w, name, builtins[i].write);
		}
	failed = ferror(w.f);
	if (fclose(w.f) || failed) {
		free(text);
		return NULL;
	}
	return text;
}
