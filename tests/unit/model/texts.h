/* SPDX-License-Identifier: MIT */
/* texts.h: architecture texts of the tests, put together by macros, and what opens them. */
#ifndef TEXTS_H
#define TEXTS_H

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

#define TWO(a, b) "{\"class_name\": \"Sequential\", \"config\": {\"layers\": [" a ", " b "]}}"
#define DENSE(n, more) \
	"{\"class_name\": \"Dense\", \"config\": {\"name\": \"" n "\", \"units\": 2" more "}}"

/* Functional models, in the form of Keras 2. */
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

#endif
