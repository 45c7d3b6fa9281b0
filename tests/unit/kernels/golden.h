/* SPDX-License-Identifier: MIT */
/*
 * golden.h: reads the files of tests/golden/kernels: a case is a graph in lines (make.py writes
 * them), and numbers in the .f32 file in the order of the lines "data WHAT COUNT".
 */
#ifndef TEST_GOLDEN_H
#define TEST_GOLDEN_H

#include "../../tap.h"
#include "trial.h"

#define GOLDEN_FOLDER "tests/golden/kernels/"
#define GOLDEN_WORDS 24
#define GOLDEN_ITEMS 64

struct golden_item {
	char what[32];
	bool number; /* one value from the text; else count values from the raw file */
	double value;
	uint64_t count;
	float *data;
};

struct golden_case {
	char name[96];
	struct build *build;
	struct backend_loss_config loss;
	struct backend_optimizer_config optimizer;
	float l1, l2;
	double rate[16];
	uint32_t rows;
	uint32_t n_items;
	struct golden_item item[GOLDEN_ITEMS];
};

struct golden {
	FILE *text, *raw;
	struct golden_case now;
};

static inline void golden_open(struct golden *g, const char *name)
{
	char path[128];

	memset(g, 0, sizeof(*g));
	snprintf(path, sizeof(path), GOLDEN_FOLDER "%s.txt", name);
	g->text = fopen(path, "r");
	snprintf(path, sizeof(path), GOLDEN_FOLDER "%s.f32", name);
	g->raw = fopen(path, "rb");
	if (!g->text || !g->raw)
		BAIL("%s is not there; run from the root of the project", path);
}

static inline void golden_clear(struct golden_case *c)
{
	for (uint32_t i = 0; i < c->n_items; i++)
		free(c->item[i].data);
	free(c->build);
	memset(c, 0, sizeof(*c));
}

static inline void golden_close(struct golden *g)
{
	golden_clear(&g->now);
	fclose(g->text);
	fclose(g->raw);
}

static inline enum backend_activation golden_activation(const char *name)
{
	static const char *const names[BACKEND_ACTIVATION_COUNT] = {
		"linear",	"relu",	       "leaky_relu", "elu",	    "selu", "sigmoid",
		"hard_sigmoid", "tanh",	       "softplus",   "softsign",    "silu", "gelu",
		"gelu_tanh",	"exponential", "softmax",    "log_softmax",
	};

	for (int i = 0; i < BACKEND_ACTIVATION_COUNT; i++)
		if (!strcmp(name, names[i]))
			return i;
	BAIL("golden file: activation %s", name);
}

/* The numbers of a line after its first word. */
struct golden_line {
	int n;
	char *word[GOLDEN_WORDS];
	double v[GOLDEN_WORDS];
};

static inline struct backend_window golden_window(const double *v)
{
	return (struct backend_window){v[0], v[1], v[2], v[3], v[4], v[5], v[6], v[7], v[8], v[9]};
}

static inline void golden_batchnorm(struct build *b, const double *v)
{
	int x = b_norm(b, v[0], v[3] != 0, v[4] != 0, v[5] != 0);

	b->node[x].momentum = (float)v[1];
	b->node[x].epsilon = (float)v[2];
	for (int k = 0; k < 2; k++) /* a frozen layer has no trainable tensors in Keras */
		if (b->node[x].frozen && b->node[x].tensor[k] >= 0)
			b->tensor[b->node[x].tensor[k]].trainable = false;
}

static inline void golden_relu(struct build *b, const struct golden_line *l)
{
	enum backend_activation a = golden_activation(l->word[2]);
	/* "elu" as a name has alpha 1 in Keras; the layer states its own */
	int x = b_act(b, l->v[1], a, a == BACKEND_ELU && l->v[3] == 0 ? 1.0f : (float)l->v[3]);

	b->node[x].max_value = (float)l->v[4];
	b->node[x].threshold = (float)l->v[5];
}

/* A node line; false: something else. */
static inline bool golden_node(struct build *b, const struct golden_line *l)
{
	const double *v = l->v + 1;
	const char *op = l->word[0];

	if (!strcmp(op, "input"))
		b_input(b, v[0], v[1], v[2]);
	else if (!strcmp(op, "conv2d"))
		b_conv(b, v[0], v[1], golden_window(v + 2), v[12], v[13] != 0);
	else if (!strcmp(op, "depthwise"))
		b_depthwise(b, v[0], v[1], golden_window(v + 2), v[12] != 0);
	else if (!strcmp(op, "dense"))
		b_dense(b, v[0], v[1], v[2] != 0);
	else if (!strcmp(op, "maxpool"))
		b_pool(b, v[0], BACKEND_MAXPOOL, golden_window(v + 1));
	else if (!strcmp(op, "avgpool"))
		b_pool(b, v[0], BACKEND_AVGPOOL, golden_window(v + 1));
	else if (!strcmp(op, "global_avgpool"))
		b_global(b, v[0], BACKEND_GLOBAL_AVGPOOL);
	else if (!strcmp(op, "global_maxpool"))
		b_global(b, v[0], BACKEND_GLOBAL_MAXPOOL);
	else if (!strcmp(op, "batchnorm"))
		golden_batchnorm(b, v);
	else if (!strcmp(op, "activation"))
		golden_relu(b, l);
	else if (!strcmp(op, "add"))
		b_add(b, v[1], v[2], v[0] == 3 ? (int)v[3] : -1);
	else if (!strcmp(op, "concat"))
		b_concat(b, v[0], v[1], v[2]);
	else if (!strcmp(op, "pad"))
		b_pad(b, v[0], v[1], v[2], v[3], v[4]);
	else if (!strcmp(op, "upsample"))
		b_upsample(b, v[0], v[1], v[2], v[3] != 0);
	else if (!strcmp(op, "rescale"))
		b_rescale(b, v[0], NULL, NULL, (float)v[1], (float)v[2]);
	else if (!strcmp(op, "reshape"))
		b_reshape(b, v[0], v[1], v[2], v[3]);
	else
		return false;
	return true;
}

static inline void golden_optimizer(struct golden_case *c, const struct golden_line *l)
{
	static const char *const names[BACKEND_OPTIMIZER_COUNT] = {
		"sgd", "adam", "adamw", "rmsprop", "adagrad", "adadelta"};
	const double *v = l->v + 2;

	c->optimizer = (struct backend_optimizer_config){
		.kind = BACKEND_OPTIMIZER_COUNT,
		.momentum = (float)v[0],
		.nesterov = v[1] != 0,
		.beta1 = (float)v[2],
		.beta2 = (float)v[3],
		.rho = (float)v[4],
		.epsilon = (float)v[5],
		.amsgrad = v[6] != 0,
		.centered = v[7] != 0,
		.initial_accumulator = (float)v[8],
		.weight_decay = (float)v[9],
		.clipnorm = (float)v[10],
		.clipvalue = (float)v[11],
		.global_clipnorm = (float)v[12],
	};
	for (int i = 0; i < BACKEND_OPTIMIZER_COUNT; i++)
		if (!strcmp(l->word[1], names[i]))
			c->optimizer.kind = i;
}

static inline void golden_item(struct golden *g, const struct golden_line *l)
{
	struct golden_case *c = &g->now;
	struct golden_item *item = &c->item[c->n_items++];

	if (c->n_items >= GOLDEN_ITEMS)
		BAIL("golden file: too many items");
	snprintf(item->what, sizeof(item->what), "%s", l->word[1]);
	item->number = !strcmp(l->word[0], "number");
	item->value = l->v[2];
	if (item->number)
		return;
	item->count = (uint64_t)l->v[2];
	item->data = calloc(item->count + 1, sizeof(float));
	if (!item->data || fread(item->data, sizeof(float), item->count, g->raw) != item->count)
		BAIL("golden file: raw data ends early");
}

static inline void golden_loss(struct golden_case *c, const struct golden_line *l)
{
	static const char *const names[BACKEND_LOSS_COUNT] = {"sparse", "categorical", "binary",
							      "mse", "mae"};

	for (int i = 0; i < BACKEND_LOSS_COUNT; i++)
		if (!strcmp(l->word[1], names[i]))
			c->loss.loss = i;
	c->loss.label_smoothing = (float)l->v[2];
	c->loss.from_logits = l->v[3] != 0;
}

static inline void golden_split(char *text, struct golden_line *l)
{
	memset(l, 0, sizeof(*l));
	for (char *w = strtok(text, " \n"); w && l->n < GOLDEN_WORDS; w = strtok(NULL, " \n")) {
		l->word[l->n] = w;
		l->v[l->n++] = strtod(w, NULL);
	}
}

/* Reads the next case into g->now; false at the end. */
static inline bool golden_next(struct golden *g)
{
	struct golden_case *c = &g->now;
	struct golden_line l;
	char text[512];

	golden_clear(c);
	c->build = calloc(1, sizeof(*c->build));
	if (!c->build)
		BAIL("no memory");
	while (fgets(text, sizeof(text), g->text)) {
		golden_split(text, &l);
		if (l.n == 0 || l.word[0][0] == '#')
			continue;
		if (!strcmp(l.word[0], "end"))
			return true;
		if (!strcmp(l.word[0], "case"))
			snprintf(c->name, sizeof(c->name), "%s", l.word[1]);
		else if (!strcmp(l.word[0], "loss"))
			golden_loss(c, &l);
		else if (!strcmp(l.word[0], "rows"))
			c->rows = (uint32_t)l.v[1];
		else if (!strcmp(l.word[0], "optimizer"))
			golden_optimizer(c, &l);
		else if (!strcmp(l.word[0], "penalty")) {
			c->l1 = (float)l.v[1];
			c->l2 = (float)l.v[2];
		} else if (!strcmp(l.word[0], "rates")) {
			memcpy(c->rate, l.v + 1, sizeof(c->rate));
		} else if (!strcmp(l.word[0], "data") || !strcmp(l.word[0], "number")) {
			golden_item(g, &l);
		} else if (!golden_node(c->build, &l)) {
			BAIL("golden file: %s", l.word[0]);
		}
	}
	return false;
}

/* Item number k (from 0) of that name. */
static inline const struct golden_item *golden_get(const struct golden_case *c, const char *what,
						   uint32_t k)
{
	for (uint32_t i = 0; i < c->n_items; i++)
		if (!strcmp(c->item[i].what, what) && k-- == 0)
			return &c->item[i];
	return NULL;
}

/* ---- packed blobs (Keras get_weights order) ----------------------------------------------- */

/* A packed blob into the arenas of a net: read or write (write: net -> blob when get). */
static inline int golden_move(struct backend_net *net, const struct backend_graph *graph,
			      const int arena[2], bool get, float *blob)
{
	for (uint32_t i = 0; i < graph->n_tensors; i++) {
		const struct backend_tensor *t = &graph->tensor[i];
		int to = arena[t->arena], rc = 0;

		if (to >= 0)
			rc = get ? backend_read(net, to, t->offset, t->count, blob)
				 : backend_write(net, to, t->offset, t->count, blob);
		if (rc)
			return rc;
		blob += t->count;
	}
	return 0;
}

/* Largest |a - b| / (1e-2 * largest |b| + |b|): relative, forgiving for the smallest values. */
static inline double golden_distance(const float *a, const float *b, uint64_t n)
{
	double largest = 1e-6, worst = 0;

	for (uint64_t i = 0; i < n; i++)
		largest = fmax(largest, fabs((double)b[i]));
	for (uint64_t i = 0; i < n; i++) {
		double d = fabs((double)a[i] - b[i]) / (1e-2 * largest + fabs((double)b[i]));

		if (!(d <= worst))
			worst = d;
	}
	return worst;
}

#endif
