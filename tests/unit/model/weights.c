// SPDX-License-Identifier: MIT
/*
 * weights.c: initial values against the formulas of each initializer (bounds, mean, variance, shape
 * of the distribution), seeds, gaps of the arenas; weight blobs in and out in pieces.
 */
#include <errno.h>

#include "../../../userspace/model/internal.h"
#include "../../tap.h"

static struct model *open_or_stop(const char *text)
{
	struct model *model;
	struct err err;

	if (model_open(text, strlen(text), NULL, &model, &err))
		BAIL("%s", err.message);
	return model;
}

static struct model *dense(uint32_t in, uint32_t out, const char *init)
{
	char text[1000];

	snprintf(text, sizeof(text),
		 "{\"class_name\": \"Sequential\", \"config\": [{\"class_name\": \"Dense\", "
		 "\"config\": {\"name\": \"d\", \"batch_input_shape\": [null, %u], \"units\": %u, "
		 "\"kernel_initializer\": %s, \"bias_initializer\": \"ones\"}}]}",
		 in, out, init);
	return open_or_stop(text);
}

struct arenas {
	float *param, *stat;
};

static struct arenas fill(const struct model *m, uint64_t seed)
{
	const struct backend_graph *g = model_graph(m);
	struct arenas a = {malloc(g->param_floats * sizeof(float) + 4),
			   malloc(g->stat_floats * sizeof(float) + 4)};
	struct err err;

	memset(a.param, 0xff, g->param_floats * sizeof(float));
	memset(a.stat, 0xff, g->stat_floats * sizeof(float));
	if (model_init(m, seed, a.param, a.stat, &err))
		BAIL("%s", err.message);
	return a;
}

static void drop(struct arenas a)
{
	free(a.param);
	free(a.stat);
}

struct moments {
	double mean, variance, low, high, fourth;
};

static struct moments moments(const float *x, uint64_t n)
{
	struct moments m = {0, 0, INFINITY, -INFINITY, 0};

	for (uint64_t i = 0; i < n; i++) {
		m.mean += x[i] / (double)n;
		m.low = fmin(m.low, x[i]);
		m.high = fmax(m.high, x[i]);
	}
	for (uint64_t i = 0; i < n; i++) {
		double d = x[i] - m.mean;

		m.variance += d * d / (double)n;
		m.fourth += d * d * d * d / (double)n;
	}
	return m;
}

/* kurtosis: fourth moment over the squared variance: 1.8 uniform, 3 normal, 2.3655 cut at 2. */
struct expected {
	const char *init;
	double mean, stddev, bound, kurtosis;
};

static void distributions(void)
{
	const double fan_in = 300, fan_out = 500, avg = 400;
	/* deviation of a standard normal cut at 2: sqrt(1 - 4 phi(2) / (2 Phi(2) - 1)) */
	const double cut = 0.87962566103423978;
	const struct expected e[] = {
		{"\"glorot_uniform\"", 0, sqrt(1 / avg), sqrt(3 / avg), 1.8},
		{"\"glorot_normal\"", 0, sqrt(1 / avg), 2 * sqrt(1 / avg) / cut, 2.3655},
		{"\"he_uniform\"", 0, sqrt(2 / fan_in), sqrt(6 / fan_in), 1.8},
		{"{\"class_name\": \"HeNormal\", \"config\": {\"seed\": null}}", 0,
		 sqrt(2 / fan_in), 2 * sqrt(2 / fan_in) / cut, 2.3655},
		{"\"lecun_uniform\"", 0, sqrt(1 / fan_in), sqrt(3 / fan_in), 1.8},
		{"\"LecunNormal\"", 0, sqrt(1 / fan_in), 2 * sqrt(1 / fan_in) / cut, 2.3655},
		{"{\"class_name\": \"VarianceScaling\", \"config\": {\"scale\": 3, \"mode\": "
		 "\"fan_out\", \"distribution\": \"untruncated_normal\"}}",
		 0, sqrt(3 / fan_out), 6 * sqrt(3 / fan_out), 3},
		{"{\"class_name\": \"VarianceScaling\", \"config\": {\"scale\": 1.0, \"mode\": "
		 "\"fan_avg\", \"distribution\": \"uniform\", \"seed\": null}}",
		 0, sqrt(1 / avg), sqrt(3 / avg), 1.8},
		{"\"random_uniform\"", 0, 0.1 / sqrt(12), 0.05, 1.8},
		{"{\"class_name\": \"RandomUniform\", \"config\": {\"minval\": 1, \"maxval\": 3}}",
		 2, 2 / sqrt(12), 1, 1.8},
		{"\"random_normal\"", 0, 0.05, 0.3, 3},
		{"{\"class_name\": \"RandomNormal\", \"config\": {\"mean\": -1, \"stddev\": 0.5}}",
		 -1, 0.5, 3, 3},
		{"{\"class_name\": \"TruncatedNormal\", \"config\": {\"mean\": 2, \"stddev\": "
		 "0.5}}",
		 2, 0.5 * cut, 1, 2.3655},
		{"\"zeros\"", 0, 0, 0, 0},
		{"\"ones\"", 1, 0, 0, 0},
		{"{\"class_name\": \"Constant\", \"config\": {\"value\": -2.5}}", -2.5, 0, 0, 0},
	};
	const double n = fan_in * fan_out;

	for (size_t i = 0; i < sizeof(e) / sizeof(e[0]); i++) {
		struct model *m = dense(300, 500, e[i].init);
		struct arenas a = fill(m, 1234);
		struct moments x = moments(a.param, (uint64_t)n);
		double sd = e[i].stddev, edge = e[i].bound * (1 + 1e-6);
		bool bounded = x.low >= e[i].mean - edge && x.high <= e[i].mean + edge;
		/* the largest of 150,000 draws lies close to a hard bound */
		bool reached = e[i].kurtosis == 3 || x.high >= e[i].mean + 0.995 * e[i].bound;

		ok(fabs(x.mean - e[i].mean) <= 4 * sd / sqrt(n) + 1e-8, "mean of %s", e[i].init);
		ok(fabs(x.variance - sd * sd) <= 4 * sd * sd * sqrt(2 / n) + 1e-8, "variance");
		ok(bounded && reached, "bounds %g..%g", x.low, x.high);
		if (e[i].kurtosis > 0)
			near(x.fourth / (x.variance * x.variance), e[i].kurtosis,
			     e[i].kurtosis == 3 ? 0.06 : 0.02, "form of the distribution");
		drop(a);
		model_free(m);
	}
}

/* The fans of kernels with a receptive field, as keras' compute_fans. */
static void fans(void)
{
	struct model *m = open_or_stop(
		"{\"class_name\": \"Sequential\", \"config\": ["
		"{\"class_name\": \"Conv2D\", \"config\": {\"name\": \"c\", \"filters\": 64, "
		"\"kernel_size\": [3, 5], \"batch_input_shape\": [null, 8, 8, 32], \"groups\": "
		"2}}, "
		"{\"class_name\": \"DepthwiseConv2D\", \"config\": {\"name\": \"d\", "
		"\"kernel_size\": 4, \"depth_multiplier\": 3}}, "
		"{\"class_name\": \"BatchNormalization\", \"config\": {\"name\": \"b\", "
		"\"beta_initializer\": \"he_uniform\"}}]}");
	struct arenas a = fill(m, 9);
	const struct backend_graph *g = model_graph(m);
	struct moments x = moments(a.param, g->tensor[0].count);

	near(x.high, sqrt(3.0 / (15 * (16 + 64) / 2.0)), 1e-4, "grouped convolution");
	near(x.low, -sqrt(3.0 / (15 * (16 + 64) / 2.0)), 1e-4, "both bounds");
	x = moments(a.param + g->tensor[2].offset, g->tensor[2].count);
	near(x.high, sqrt(3.0 / (16 * (64 + 3) / 2.0)), 1e-4, "depthwise: (kh, kw, c, multiplier)");
	is_str(g->tensor[5].name, "b/beta", "a vector");
	x = moments(a.param + g->tensor[5].offset, g->tensor[5].count);
	near(x.high, sqrt(6.0 / 192), 0.004, "fan of a vector is its length");
	near(a.param[g->tensor[4].offset + 7], 1, 0, "gamma starts at 1");
	near(a.stat[g->tensor[6].offset + 7], 0, 0, "moving mean at 0");
	near(a.stat[g->tensor[7].offset + 7], 1, 0, "moving variance at 1");
	drop(a);
	model_free(m);
}

static double correlation(const float *x, const float *y, uint64_t n)
{
	struct moments a = moments(x, n), b = moments(y, n);
	double sum = 0;

	for (uint64_t i = 0; i < n; i++)
		sum += (x[i] - a.mean) * (y[i] - b.mean) / (double)n;
	return sum / sqrt(a.variance * b.variance);
}

static void seeds(void)
{
	struct model *m = open_or_stop(
		"{\"class_name\": \"Sequential\", \"config\": ["
		"{\"class_name\": \"Dense\", \"config\": {\"name\": \"a\", \"units\": 64, "
		"\"batch_input_shape\": [null, 64]}}, "
		"{\"class_name\": \"Dense\", \"config\": {\"name\": \"b\", \"units\": 64}}, "
		"{\"class_name\": \"Dense\", \"config\": {\"name\": \"c\", \"units\": 64, "
		"\"kernel_initializer\": {\"class_name\": \"HeNormal\", \"config\": {\"seed\": "
		"5}}}}, "
		"{\"class_name\": \"Dense\", \"config\": {\"name\": \"d\", \"units\": 64, "
		"\"kernel_initializer\": {\"class_name\": \"HeNormal\", \"config\": {\"seed\": "
		"{\"class_name\": \"SeedGenerator\", \"config\": {\"seed\": 5}}}}}}]}");
	const struct backend_graph *g = model_graph(m);
	struct arenas one = fill(m, 1), same = fill(m, 1), two = fill(m, 2);
	const float *w[4], *v[4];
	size_t bytes = 4096 * sizeof(float);

	for (int i = 0; i < 4; i++) {
		w[i] = one.param + g->tensor[2 * i].offset;
		v[i] = two.param + g->tensor[2 * i].offset;
	}
	ok(!memcmp(one.param, same.param, g->param_floats * sizeof(float)), "one seed, one result");
	ok(fabs(correlation(w[0], v[0], 4096)) < 0.08, "another seed, other values");
	ok(fabs(correlation(w[0], w[1], 4096)) < 0.08, "two layers are independent");
	ok(!memcmp(w[2], w[3], bytes), "layers with one seed of their own are the same");
	ok(!memcmp(w[2], v[2], bytes), "and do not follow the run's seed");
	/* neighbours within a block of the generator, and blocks */
	ok(fabs(correlation(w[2], w[2] + 1, 4095)) < 0.08 &&
		   fabs(correlation(w[2], w[2] + 4, 4092)) < 0.08,
	   "neighbours are independent");
	drop(one);
	drop(same);
	drop(two);
	model_free(m);
}

/* ---- blobs ------------------------------------------------------------------------------- */

static const char net[] =
	"{\"class_name\": \"Sequential\", \"config\": ["
	"{\"class_name\": \"Conv2D\", \"config\": {\"name\": \"c\", \"filters\": 3, "
	"\"kernel_size\": 3, \"batch_input_shape\": [null, 5, 5, 2]}}, "
	"{\"class_name\": \"BatchNormalization\", \"config\": {\"name\": \"bn\"}}, "
	"{\"class_name\": \"Flatten\", \"config\": {\"name\": \"f\"}}, "
	"{\"class_name\": \"Dense\", \"config\": {\"name\": \"d\", \"units\": 5}}]}";

static void blobs(void)
{
	struct model *m = open_or_stop(net);
	const struct backend_graph *g = model_graph(m);
	uint64_t bytes = model_blob_bytes(m), numbers = 54 + 3 + 4 * 3 + 27 * 5 + 5;
	float *in = malloc(bytes), *out = malloc(bytes);
	struct arenas a = {calloc(g->param_floats, sizeof(float)),
			   calloc(g->stat_floats, sizeof(float))};
	uint64_t gaps = 0;
	bool same = true;

	is(bytes, numbers * 4, "size of a blob");
	for (uint64_t i = 0; i < numbers; i++)
		in[i] = (float)i + 1;
	is(model_blob_write(m, a.param, a.stat, 0, in, bytes), 0, "written");
	/* by hand: kernel 54, bias 3, gamma 3, beta 3, mean 3, variance 3, dense 135, bias 5 */
	ok(a.param[g->tensor[0].offset] == 1 && a.param[g->tensor[1].offset] == 55 &&
		   a.param[g->tensor[2].offset] == 58 && a.param[g->tensor[3].offset] == 61 &&
		   a.stat[g->tensor[4].offset] == 64 && a.stat[g->tensor[5].offset + 2] == 69 &&
		   a.param[g->tensor[6].offset] == 70 && a.param[g->tensor[7].offset + 4] == 209,
	   "statistics stand in their layer's place");
	for (uint64_t i = 0; i < g->param_floats; i++)
		gaps += a.param[i] == 0;
	is(gaps, g->param_floats - (numbers - 6), "gaps stay zero");
	is(model_blob_read(m, a.param, a.stat, 0, out, bytes), 0, "read");
	ok(!memcmp(in, out, bytes), "the same numbers");
	for (uint64_t step = 1; step < 150; step += 7) {
		memset(out, 0, bytes);
		for (uint64_t at = 0; at < bytes; at += step) {
			uint64_t n = bytes - at < step ? bytes - at : step;

			same &= !model_blob_read(m, a.param, a.stat, at, (char *)out + at, n);
		}
		same &= !memcmp(in, out, bytes);
		memset(a.param, 0, g->param_floats * sizeof(float));
		memset(a.stat, 0, g->stat_floats * sizeof(float));
		for (uint64_t at = 0; at < numbers; at += step) {
			uint64_t n = numbers - at < step ? numbers - at : step;

			same &= !model_blob_write(m, a.param, a.stat, at * 4, in + at, n * 4);
		}
	}
	ok(same, "in pieces of any size");
	is(model_blob_read(m, a.param, a.stat, bytes, out, 0), 0, "nothing at the end");
	is(model_blob_read(m, a.param, a.stat, bytes - 4, out, 8), -ERANGE, "past the end");
	is(model_blob_read(m, a.param, a.stat, UINT64_MAX, out, 8), -ERANGE, "far past the end");
	is(model_blob_write(m, a.param, a.stat, 8, in, UINT64_MAX - 3), -ERANGE, "huge length");
	is(model_blob_write(m, a.param, a.stat, 2, in, 4), -EINVAL, "half a number");
	free(in);
	free(out);
	drop(a);
	model_free(m);
}

static void blob_check(void)
{
	struct model *m = open_or_stop(net);
	struct model_bind bind = {32, 32, 3, 10};
	struct err err;

	is(model_blob_check(m, model_blob_bytes(m), &err), 0, "a blob that fits");
	is(model_blob_check(m, 100, &err), -EINVAL, "one that does not");
	is(err.kind, ERR_ARCH, "kind");
	like(err.message,
	     "weights of 100 bytes (25 numbers) do not fit the architecture, which has "
	     "209 numbers:\n  c/kernel (3,3,2,3) 54\n  c/bias (3) 3\n",
	     "with the expected shapes");
	like(err.message, "\n  d/kernel (27,5) 135\n  d/bias (5) 5", "to the last");
	is(model_blob_check(m, 839, &err), -EINVAL, "a piece of a number");
	like(err.message, "and a piece", "is said");
	model_free(m);
	if (model_open("resnet20", 8, &bind, &m, &err))
		BAIL("%s", err.message);
	model_blob_check(m, 4, &err);
	like(err.message, "\n  ... and ", "a long table is cut");
	ok(strlen(err.message) < sizeof(err.message) - 1, "within the message");
	model_free(m);
}

int main(void)
{
	distributions();
	fans();
	seeds();
	blobs();
	blob_check();
	return done();
}
