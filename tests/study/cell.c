/* SPDX-License-Identifier: MIT */
/*
 * cell.c: one run of the convergence study: a training on several hosts, each a thread with its own
 * rows, net and place in a local mesh, made of the product's own library. Prints JSON, one object a
 * line: one for each epoch, then the result over the test set, which is read once, at the end.
 *
 *   cell train=FILE test=FILE h= w= c= classes= train_rows= test_rows= rows= held= hosts= epochs=
 *        shards=even|skewed|sorted apart=0|1 spec=JSON
 *
 * spec is what gpu_cnn_train takes. The rows are the first of a fixed permutation of the training
 * file, the rows held out its last; a seed changes initial weights and the order within epochs.
 */
#include <errno.h>
#include <math.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "study.h"

#define DISTANCES 4096u

struct host {
	struct cell *cell;
	uint32_t rank;
	struct data_set *data;
	struct backend *backend;
	struct model *model;
	struct train *train;
	pthread_t thread;
	int rc;
	struct err err;
	struct ctl_run_row row;
};

struct cell {
	struct study_args args;
	struct train_config config;
	struct study_rows train_rows, test_rows;
	struct agree_block part[STUDY_HOSTS], agreed;
	double skew;
	struct host host[STUDY_HOSTS];
	struct merge_net *net[STUDY_HOSTS];
	uint32_t epoch; /* to be run */
	double start;
	uint64_t merges; /* of weights; synchronous steps are not counted here */
	uint32_t n_distances;
	double distance[DISTANCES];
	struct study_judge *judge; /* over the rows held out; merge 'none' */
};

/* ---- arguments ---- */

static uint32_t number(const char *name, const char *text)
{
	char *end;
	unsigned long v = strtoul(text, &end, 10);

	if (!*text || *end || v > 1u << 30)
		study_die(name, "not a number");
	return (uint32_t)v;
}

static void parse(struct study_args *a, int argc, char **argv)
{
	const struct {
		const char *name;
		uint32_t *value;
	} numbers[] = {{"h", &a->h},
		       {"w", &a->w},
		       {"c", &a->c},
		       {"classes", &a->classes},
		       {"train_rows", &a->train_rows},
		       {"test_rows", &a->test_rows},
		       {"rows", &a->rows},
		       {"held", &a->held},
		       {"hosts", &a->hosts},
		       {"epochs", &a->epochs}};

	for (int i = 1; i < argc; i++) {
		char *value = strchr(argv[i], '=');
		bool known = false;

		if (!value)
			study_die(argv[i], "an argument is name=value");
		*value++ = '\0';
		for (size_t k = 0; k < sizeof(numbers) / sizeof(numbers[0]); k++)
			if (!strcmp(argv[i], numbers[k].name)) {
				*numbers[k].value = number(argv[i], value);
				known = true;
			}
		if (!strcmp(argv[i], "train"))
			a->train = value;
		else if (!strcmp(argv[i], "test"))
			a->test = value;
		else if (!strcmp(argv[i], "spec"))
			a->spec = value;
		else if (!strcmp(argv[i], "apart"))
			a->apart = number("apart", value);
		else if (!strcmp(argv[i], "shards"))
			a->shards = !strcmp(value, "sorted")   ? SHARDS_SORTED
				    : !strcmp(value, "skewed") ? SHARDS_SKEWED
							       : SHARDS_EVEN;
		else if (!known)
			study_die(argv[i], "no such argument");
	}
	if (!a->train || !a->test || !a->spec || !a->hosts || a->hosts > STUDY_HOSTS ||
	    (uint64_t)a->rows + a->held > a->train_rows || a->rows < a->hosts)
		study_die("arguments", "something is missing, or there are too few rows");
}

/* ---- hosts ---- */

static void on_merge(void *context, const struct merge_result *result)
{
	struct cell *cell = context;

	if (result->distance <= 0)
		return; /* of gradients, or of equal weights */
	cell->merges++;
	if (cell->n_distances < DISTANCES)
		cell->distance[cell->n_distances++] = result->distance;
}

static void *create(void *context)
{
	struct host *h = context;
	struct cell *c = h->cell;
	const struct model_bind bind = {c->args.h, c->args.w, c->args.c, c->args.classes};
	const struct backend_options options = {NULL}; /* the thread itself computes */
	struct backend_error error;
	struct train_setup setup = {.config = &c->config,
				    .data = h->data,
				    .agreed = &c->agreed,
				    .net = c->net[h->rank],
				    .on_merge = h->rank ? NULL : on_merge,
				    .context = c};
	char *notice = NULL;

	if (backend_open("cpu", &options, &h->backend, &error))
		study_die("back end", error.message);
	h->rc = model_open(c->config.architecture, strlen(c->config.architecture), &bind, &h->model,
			   &h->err);
	setup.model = h->model;
	setup.backend = h->backend;
	if (!h->rc)
		h->rc = train_create(&setup, &h->train, &notice, &h->err);
	free(notice);
	return NULL;
}

static void *run(void *context)
{
	struct host *h = context;
	const struct ctl_run run = {.first_epoch = h->cell->epoch, .count = 1, .lr_factor = 1};

	h->rc = train_run(h->train, &run, &h->row, &h->err);
	return NULL;
}

static void on_all(struct cell *c, void *(*what)(void *))
{
	for (uint32_t k = 0; k < c->args.hosts; k++)
		if (pthread_create(&c->host[k].thread, NULL, what, &c->host[k]))
			study_die("a thread", "cannot be made");
	for (uint32_t k = 0; k < c->args.hosts; k++)
		pthread_join(c->host[k].thread, NULL);
	for (uint32_t k = 0; k < c->args.hosts; k++)
		if (c->host[k].rc)
			study_die("a host", c->host[k].err.message);
}

static void prepare(struct cell *c)
{
	const struct study_args *a = &c->args;
	uint32_t *host = malloc(a->rows * sizeof(*host));
	double distance[STUDY_HOSTS], ratio;
	struct merge_error error;
	struct err err;

	if (!host)
		study_die("shards", "no memory");
	study_rows_read(a, a->train, a->train_rows, true, &c->train_rows);
	study_rows_read(a, a->test, a->test_rows, false, &c->test_rows);
	study_divide(a, &c->train_rows, host);
	for (uint32_t k = 0; k < a->hosts; k++) {
		struct host *h = &c->host[k];

		h->cell = c;
		h->rank = k;
		h->data = study_set(a, &c->train_rows, host, k, &c->train_rows,
				    a->train_rows - (a->apart ? 0 : a->held), a->train_rows,
				    a->hosts);
		if (data_collect(h->data, &c->part[k], &err) ||
		    train_config_policy(&c->config, &c->part[k], &err))
			study_die("rows", err.message);
	}
	if (agree_merge(c->part, a->hosts, &c->agreed, &err) ||
	    agree_skew(c->part, a->hosts, distance, &ratio, &err))
		study_die("agreement", err.message);
	for (uint32_t k = 0; k < a->hosts; k++) {
		c->skew = distance[k] > c->skew ? distance[k] : c->skew;
		if (data_apply(c->host[k].data, &c->agreed, a->classes, &err))
			study_die("rows", err.message);
	}
	if (a->hosts > 1 && !a->apart && merge_local_open(a->hosts, c->net, &error))
		study_die("mesh", error.message);
	if (a->apart && a->held)
		c->judge = study_judge_new(a, &c->config, &c->agreed, &c->train_rows,
					   a->train_rows - a->held, a->train_rows);
	free(host);
}

/* ---- results ---- */

static void json_number(const char *name, double v)
{
	if (isfinite(v))
		printf(", \"%s\": %.9g", name, v);
	else
		printf(", \"%s\": null", name);
}

static double accuracy_of(const struct ctl_run_row *row)
{
	for (uint32_t i = 0; i < row->metrics; i++)
		if (!strcmp(row->metric[i].name, "accuracy"))
			return row->metric[i].validation;
	return NAN;
}

/* Weights of every host; out: their mean in f64, rounded. */
static float *mean_weights(struct cell *c, float *weights[], uint64_t *floats)
{
	uint32_t n = c->args.hosts;
	float *mean;

	for (uint32_t k = 0; k < n; k++)
		weights[k] = study_weights(c->host[k].train, floats);
	mean = malloc(*floats * sizeof(*mean) + 1);
	if (!mean)
		study_die("weights", "no memory");
	for (uint64_t i = 0; i < *floats; i++) {
		double sum = 0;

		for (uint32_t k = 0; k < n; k++)
			sum += weights[k][i];
		mean[i] = (float)(sum / n);
	}
	return mean;
}

/* Hosts that stayed apart: each of them, their mean, and the mean of their weights. */
static void print_apart(struct cell *c, struct study_judge *judge, const char *prefix)
{
	float *weights[STUDY_HOSTS], *mean;
	struct study_score sum = {0}, s;
	double square = 0;
	uint64_t floats = 0;
	char name[64];

	mean = mean_weights(c, weights, &floats);
	printf(", \"%sreplicas\": [", prefix);
	for (uint32_t k = 0; k < c->args.hosts; k++) {
		s = study_judge_ask(judge, weights[k], floats);
		printf("%s{\"replica\": %u", k ? ", " : "", k);
		json_number("loss", s.loss);
		json_number("accuracy", s.accuracy);
		printf("}");
		sum.loss += s.loss / c->args.hosts;
		sum.accuracy += s.accuracy / c->args.hosts;
		for (uint64_t i = 0; i < floats; i++)
			square += pow((double)weights[k][i] - mean[i], 2) / c->args.hosts;
		free(weights[k]);
	}
	printf("]");
	snprintf(name, sizeof(name), "%sloss", prefix);
	json_number(name, sum.loss);
	snprintf(name, sizeof(name), "%saccuracy", prefix);
	json_number(name, sum.accuracy);
	s = study_judge_ask(judge, mean, floats);
	snprintf(name, sizeof(name), "%saveraged_weights_loss", prefix);
	json_number(name, s.loss);
	snprintf(name, sizeof(name), "%saveraged_weights_accuracy", prefix);
	json_number(name, s.accuracy);
	json_number("distance", sqrt(square));
	free(mean);
}

static void print_epoch(struct cell *c)
{
	const struct ctl_run_row *row = &c->host[0].row;
	double loss = 0;
	uint64_t bytes = 0;

	for (uint32_t k = 0; k < c->args.hosts; k++) {
		loss += c->host[k].row.loss / c->args.hosts;
		bytes += c->host[k].row.merge_bytes;
	}
	printf("{\"epoch\": %u, \"steps\": %llu", c->epoch + 1, (unsigned long long)row->steps);
	json_number("loss", c->args.apart ? loss : row->loss);
	if (c->args.apart && c->judge) {
		print_apart(c, c->judge, "held_");
	} else {
		json_number("held_loss", row->validation_loss);
		json_number("held_accuracy", accuracy_of(row));
		json_number("distance", row->distance);
	}
	json_number("lr", row->lr);
	json_number("seconds", study_seconds() - c->start);
	json_number("seconds_merge", row->seconds_merge);
	printf(", \"bytes\": %llu, \"merges\": %llu, \"flags\": %u}\n", (unsigned long long)bytes,
	       (unsigned long long)c->merges, row->flags);
	fflush(stdout);
}

/* All hosts hold the same bits: weights as they would be stored. */
static bool identical(struct cell *c)
{
	uint64_t n, m;
	float *first = study_weights(c->host[0].train, &n);
	bool same = true;

	for (uint32_t k = 1; k < c->args.hosts; k++) {
		float *other = study_weights(c->host[k].train, &m);

		same &= n == m && !memcmp(first, other, n * sizeof(*first));
		free(other);
	}
	free(first);
	return same;
}

static double cpu_seconds(void)
{
	struct timespec t;

	clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
	return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void print_result(struct cell *c)
{
	struct study_judge *judge = study_judge_new(&c->args, &c->config, &c->agreed, &c->test_rows,
						    0, c->args.test_rows);
	double took = study_seconds() - c->start;
	struct ctl_apply_ok ok;

	train_apply_ok(c->host[0].train, &ok);
	printf("{\"result\": true");
	if (c->args.apart) {
		print_apart(c, judge, "test_");
	} else {
		uint64_t floats;
		float *weights = study_weights(c->host[0].train, &floats);
		struct study_score s = study_judge_ask(judge, weights, floats);

		json_number("test_loss", s.loss);
		json_number("test_accuracy", s.accuracy);
		printf(", \"identical\": %s", identical(c) ? "true" : "false");
		free(weights);
	}
	json_number("skew", c->skew);
	json_number("seconds", took);
	json_number("cpu_seconds", cpu_seconds());
	printf(", \"parameters\": %llu, \"steps\": %llu, \"distances\": [",
	       (unsigned long long)ok.parameters, (unsigned long long)ok.steps);
	for (uint32_t i = 0; i < c->n_distances; i++)
		printf("%s%.6g", i ? ", " : "", c->distance[i]);
	printf("]}\n");
	study_judge_free(judge);
}

static void finish(struct cell *c)
{
	for (uint32_t k = 0; k < c->args.hosts; k++) {
		struct host *h = &c->host[k];

		train_free(h->train);
		backend_close(h->backend);
		model_free(h->model);
		data_free(h->data);
		if (c->net[k])
			merge_net_close(c->net[k]);
		agree_free(&c->part[k]);
	}
	study_judge_free(c->judge);
	agree_free(&c->agreed);
	train_config_free(&c->config);
	free(c->train_rows.x);
	free(c->train_rows.order);
	free(c->test_rows.x);
	free(c->test_rows.order);
	free(c);
}

int main(int argc, char **argv)
{
	struct cell *c = calloc(1, sizeof(*c));
	struct err err;

	if (!getenv("OMP_NUM_THREADS")) { /* read when libraries are loaded */
		setenv("OMP_NUM_THREADS", "1", 1);
		execv("/proc/self/exe", argv);
	}
	if (!c)
		study_die("a cell", "no memory");
	parse(&c->args, argc, argv);
	if (train_config_parse(c->args.spec, strlen(c->args.spec), &c->config, &err))
		study_die("spec", err.message);
	prepare(c);
	on_all(c, create);
	c->start = study_seconds();
	for (c->epoch = 0; c->epoch < c->args.epochs; c->epoch++) {
		on_all(c, run);
		print_epoch(c);
		if (c->host[0].row.flags & CTL_ROW_NAN)
			break; /* divergence is a result */
	}
	print_result(c);
	finish(c);
	return 0;
}
