// SPDX-License-Identifier: MIT
/*
 * limits.c: texts of any size, depth and multiplicity do no harm; rows that contradict the
 * architecture; lines and columns of errors.
 */
#include "texts.h"

static void accept(const char *text, const char *name)
{
	if (!ok(open_text(text, strlen(text), NULL) == 0, "%s", name))
		printf("#   %s\n", err.message);
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
	return done();
}
