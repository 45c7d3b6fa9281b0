/* SPDX-License-Identifier: MIT */
/*
 * step.c: images/s of a training step on a GPU: synthetic uint8 rows that lie on the device,
 * flipped and normalised on the way in, shuffled anew for every step; momentum SGD. One JSON line.
 *
 * step CASE PRECISION BATCH SECONDS	CASE: keras_cnn, resnet20, resnet50
 *
 * Exit status 77: there is no GPU.
 */
#define BUILD_NODES 256
#define BUILD_TENSORS 512
#include <time.h>

#include "../../unit/kernels/builder.h"

#define ROWS 2048

static double now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void fail(const char *what, const char *why)
{
	fprintf(stderr, "step: %s: %s\n", what, why);
	exit(1);
}

static void need_gpu(void)
{
	struct backend_device device;
	struct backend_error error = {""};
	uint32_t n = 0;

	if (backend_devices("cuda", &device, 1, &n, &error))
		fail("devices", error.message);
	if (n)
		return;
	fprintf(stderr, "no GPU: the driver lists no device\n");
	exit(77);
}

/* ---- networks ------------------------------------------------------------------------------- */

static void keras_cnn(struct build *b)
{
	int x = b_conv(b, b_input(b, 28, 28, 1), 32, b_valid(3, 1), 1, true);

	x = b_act(b, x, BACKEND_RELU, 0);
	x = b_act(b, b_conv(b, x, 64, b_valid(3, 1), 1, true), BACKEND_RELU, 0);
	x = b_flatten(b, b_pool(b, x, BACKEND_MAXPOOL, b_valid(2, 2)));
	x = b_act(b, b_dense(b, x, 128, true), BACKEND_RELU, 0);
	b_act(b, b_dense(b, x, 10, true), BACKEND_SOFTMAX, 0);
}

static int conv_norm(struct build *b, int x, uint32_t c, uint32_t k, uint32_t stride)
{
	struct backend_shape s = b->node[x].out;

	return b_norm(b, b_conv(b, x, c, b_same(k, stride, 1, s.h, s.w), 1, false), true, true,
		      false);
}

static int basic(struct build *b, int x, uint32_t c, uint32_t stride)
{
	int y = b_act(b, conv_norm(b, x, c, 3, stride), BACKEND_RELU, 0);

	y = conv_norm(b, y, c, 3, 1);
	if (stride > 1)
		x = conv_norm(b, x, c, 1, stride);
	return b_act(b, b_add(b, y, x, -1), BACKEND_RELU, 0);
}

static void resnet20(struct build *b)
{
	int x = b_act(b, conv_norm(b, b_input(b, 32, 32, 3), 16, 3, 1), BACKEND_RELU, 0);

	for (uint32_t stage = 0; stage < 3; stage++)
		for (uint32_t i = 0; i < 3; i++)
			x = basic(b, x, 16u << stage, stage && !i ? 2 : 1);
	x = b_global(b, x, BACKEND_GLOBAL_AVGPOOL);
	b_act(b, b_dense(b, x, 10, true), BACKEND_SOFTMAX, 0);
}

/* 1 x 1, 3 x 3 (with the stride), 1 x 1 to four times the channels. */
static int bottleneck(struct build *b, int x, uint32_t c, uint32_t stride, bool project)
{
	int y = b_act(b, conv_norm(b, x, c, 1, 1), BACKEND_RELU, 0);

	y = b_act(b, conv_norm(b, y, c, 3, stride), BACKEND_RELU, 0);
	y = conv_norm(b, y, 4 * c, 1, 1);
	if (project)
		x = conv_norm(b, x, 4 * c, 1, stride);
	return b_act(b, b_add(b, y, x, -1), BACKEND_RELU, 0);
}

static void resnet50(struct build *b)
{
	static const uint32_t blocks[4] = {3, 4, 6, 3};
	int x = b_act(b, conv_norm(b, b_input(b, 224, 224, 3), 64, 7, 2), BACKEND_RELU, 0);

	x = b_pool(b, x, BACKEND_MAXPOOL, b_same(3, 2, 1, 112, 112));
	for (uint32_t stage = 0; stage < 4; stage++)
		for (uint32_t i = 0; i < blocks[stage]; i++)
			x = bottleneck(b, x, 64u << stage, stage && !i ? 2 : 1, !i);
	x = b_global(b, x, BACKEND_GLOBAL_AVGPOOL);
	b_act(b, b_dense(b, x, 1000, true), BACKEND_SOFTMAX, 0);
}

static const struct {
	const char *name;
	void (*build)(struct build *b);
} cases[] = {{"keras_cnn", keras_cnn}, {"resnet20", resnet20}, {"resnet50", resnet50}};

/* ---- run ------------------------------------------------------------------------------------ */

struct run {
	struct build b;
	struct backend *backend;
	struct backend_net *net;
	uint8_t *pixels;
	const void *x[ROWS];
	int32_t *label[2];
	uint32_t *index[2];
	uint64_t state;
	uint32_t batch;
	bool resident;
	const void **row[2];
};

static void make_params(struct run *r)
{
	const struct backend_graph *g = &r->b.graph;
	float *param = calloc(g->param_floats + 1, sizeof(float));
	float *stat = calloc(g->stat_floats + 1, sizeof(float));

	if (!param || !stat)
		fail("parameters", "no memory");
	for (uint32_t i = 0; i < g->n_tensors; i++) {
		const struct backend_tensor *t = &g->tensor[i];
		float *to = (t->arena == BACKEND_STAT ? stat : param) + t->offset;
		bool kernel = strstr(t->name, "/kernel"),
		     one = strstr(t->name, "gamma") || strstr(t->name, "variance");
		float high = sqrtf(6.0f * (float)t->dim[t->rank - 1] / (float)t->count);

		for (uint64_t k = 0; k < t->count; k++)
			to[k] = kernel ? made_up_float(&r->state, -high, high) : one;
	}
	if (backend_write(r->net, BACKEND_PARAM, 0, g->param_floats, param) ||
	    backend_write(r->net, BACKEND_STAT, 0, g->stat_floats, stat))
		fail("parameters", "not written");
	free(param);
	free(stat);
}

static void make_rows(struct run *r)
{
	struct backend_shape in = r->b.node[0].out;
	uint64_t bytes = (uint64_t)in.h * in.w * in.c;
	struct backend_error error = {""};

	r->pixels = malloc(ROWS * bytes);
	if (!r->pixels)
		fail("rows", "no memory");
	for (uint64_t i = 0; i < ROWS * bytes; i++)
		r->pixels[i] = (uint8_t)(made_up(&r->state) >> 56);
	for (uint32_t i = 0; i < ROWS; i++)
		r->x[i] = r->pixels + i * bytes;
	for (int k = 0; k < 2; k++) {
		r->label[k] = calloc(r->batch, sizeof(**r->label));
		r->index[k] = calloc(r->batch, sizeof(**r->index));
		r->row[k] = calloc(r->batch, sizeof(**r->row));
		if (!r->label[k] || !r->index[k] || !r->row[k])
			fail("rows", "no memory");
	}
	r->resident = !backend_resident(r->net, r->x, ROWS, &error);
}

static void shuffle(struct run *r, int slot, struct backend_batch *batch, uint64_t step)
{
	uint32_t classes = r->b.node[r->b.graph.output].out.c;

	for (uint32_t i = 0; i < r->batch; i++) {
		r->index[slot][i] = (uint32_t)(made_up(&r->state) % ROWS);
		r->label[slot][i] = (int32_t)(r->index[slot][i] % classes);
		r->row[slot][i] = r->x[r->index[slot][i]];
	}
	*batch = (struct backend_batch){.n = r->batch,
					.x = r->row[slot],
					.index = r->resident ? r->index[slot] : NULL,
					.label = r->label[slot],
					.step = step};
}

static void open_net(struct run *r, const char *name, enum backend_precision precision)
{
	static const float mul[3] = {1 / 255.0f, 1 / 255.0f, 1 / 255.0f}, add[3] = {0, 0, 0};
	const struct backend_options how = {.precision = precision};
	struct backend_error error = {""};
	struct backend_net_options options = {
		.max_batch = r->batch,
		.input = {.dtype = BACKEND_U8, .mul = mul, .add = add, .flip = true},
		.loss = {BACKEND_SPARSE_CROSSENTROPY, 0, false},
		.optimizer = {.kind = BACKEND_SGD, .momentum = 0.9f, .epsilon = 1e-7f},
		.deterministic = getenv("BENCH_DETERMINISTIC") != NULL,
	};

	for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++)
		if (!strcmp(cases[i].name, name))
			cases[i].build(&r->b);
	if (!r->b.n_nodes || b_finish(&r->b))
		fail(name, "no such case");
	options.input.shape = r->b.node[0].out;
	if (backend_open("cuda", &how, &r->backend, &error) ||
	    backend_compile(r->backend, &r->b.graph, &options, &r->net, &error))
		fail(name, error.message);
}

/* Steps for so many seconds; images/s. */
static double drive(struct run *r, double seconds, uint64_t *step)
{
	struct backend_error error = {""};
	struct backend_batch batch[2];
	double begin = now();
	uint64_t images = 0;

	shuffle(r, 0, &batch[0], *step);
	for (int k = 0; now() - begin < seconds; k ^= 1) {
		shuffle(r, k ^ 1, &batch[k ^ 1], *step + 1);
		batch[k].next = &batch[k ^ 1];
		++*step;
		if (backend_step(r->net, &batch[k], 1.0f / (float)r->batch, 0.01, *step, NULL, NULL,
				 NULL, &error))
			fail("step", error.message);
		images += r->batch;
	}
	return (double)images / (now() - begin);
}

int main(int argc, char **argv)
{
	static const char *const name[] = {"f32", "tf32", "bf16", "f16"};
	struct run *r = calloc(1, sizeof(*r));
	uint64_t step = 0;
	int precision = 0;

	if (argc != 5 || !r)
		fail("usage", "step CASE PRECISION BATCH SECONDS");
	while (precision < 4 && strcmp(argv[2], name[precision]))
		precision++;
	r->batch = (uint32_t)atoi(argv[3]);
	r->state = 1;
	if (precision == 4 || !r->batch)
		fail("usage", "precision or batch");
	need_gpu();
	open_net(r, argv[1], precision);
	make_params(r);
	make_rows(r);
	drive(r, fmin(2, atof(argv[4])), &step); /* choice of algorithms, capture, clocks */
	printf("{\"case\":\"%s\",\"precision\":\"%s\",\"batch\":%u,\"images_per_s\":%.1f,"
	       "\"resident\":%s,\"bytes\":%llu,\"device\":\"%s\"}\n",
	       argv[1], argv[2], r->batch, drive(r, atof(argv[4]), &step),
	       r->resident ? "true" : "false", (unsigned long long)backend_net_bytes(r->net),
	       backend_info(r->backend));
	backend_net_free(r->net);
	backend_close(r->backend);
	for (int k = 0; k < 2; k++) {
		free(r->label[k]);
		free(r->index[k]);
		free(r->row[k]);
	}
	free(r->pixels);
	free(r);
	return 0;
}
