// SPDX-License-Identifier: MIT
/*
 * predict.c: predictions in feeding order with their ids, one row at a time, evaluation and the
 * confusion matrix, against sums computed here from the weights.
 */
#include "rig.h"

#define ROWS 70
#define CLASSES 3

static float x[ROWS * 2];
static int32_t y[ROWS];
static double weight[ROWS];
static char *architecture;

/* softmax of a dense layer, in double, from the packed weights */
static void forward(const float *w, const float *row, double p[CLASSES])
{
	double sum = 0;

	for (int j = 0; j < CLASSES; j++) {
		p[j] = exp((double)w[6 + j] + row[0] * w[j] + row[1] * w[3 + j]);
		sum += p[j];
	}
	for (int j = 0; j < CLASSES; j++)
		p[j] /= sum;
}

static int argmax(const double p[CLASSES])
{
	int best = 0;

	for (int j = 1; j < CLASSES; j++)
		if (p[j] > p[best])
			best = j;
	return best;
}

struct sink {
	uint32_t n, stop_at;
	double worst;
	bool in_order;
	const float *w;
};

static int take(void *context, const char *id, uint32_t id_bytes, const float *value,
		uint32_t outputs)
{
	struct sink *s = context;
	double p[CLASSES];
	char want[16];

	snprintf(want, sizeof(want), "row%u", s->n);
	s->in_order &=
		id_bytes == strlen(want) && !memcmp(id, want, id_bytes) && outputs == CLASSES;
	forward(s->w, x + 2 * s->n, p);
	for (int j = 0; j < CLASSES; j++)
		s->worst = fmax(s->worst, fabs(value[j] - p[j]));
	return ++s->n == s->stop_at;
}

/* A second rig without training: the other one's class map, normalisation and weights. */
static void open_inference(struct rig *r, struct rig *from, const char *spec,
			   const struct rig_rows *rows, enum row_set set, const float *w)
{
	struct train_setup setup;
	struct agree_block part;
	struct err err = {0};
	uint8_t *blob;
	long bytes;

	memset(r, 0, sizeof(*r));
	r->inference = true;
	if (train_config_parse(spec, strlen(spec), &r->config, &err) ||
	    rig_model(r, architecture, rows, &err) || rig_data(r, NULL, rows, set, &err) ||
	    data_collect(r->data, &part, &err))
		BAIL("%s", err.message);
	agree_free(&part);
	bytes = agree_encode(&from->agreed, &blob); /* as stored with a model */
	if (bytes < 0 || agree_decode(blob, (size_t)bytes, &r->agreed, &err) ||
	    data_apply(r->data, &r->agreed, CLASSES, &err))
		BAIL("%s", err.message);
	free(blob);
	setup = rig_setup(r);
	if (train_create(&setup, &r->train, &r->notice, &err) ||
	    rig_put(r, CTL_WEIGHTS, w, 9 * sizeof(float), &err))
		BAIL("%s", err.message);
}

static void predictions(struct rig *from, const float *w, const char *backend)
{
	struct rig_rows rows = {.n = ROWS, .h = 1, .w = 1, .c = 2, .f32 = x};
	struct sink s = {.in_order = true, .w = w};
	struct ctl_run run = {.count = 1, .lr_factor = 1};
	struct ctl_run_row row;
	struct err err = {0};
	double p[CLASSES], worst = 0;
	float value[CLASSES];
	char spec[128];
	struct rig r;

	snprintf(spec, sizeof(spec), "{\"backend\": \"%s\", \"batch_size\": 16}", backend);
	open_inference(&r, from, spec, &rows, ROW_PREDICT, w);
	is(train_predict(r.train, take, &s, &err), 0, "predictions");
	ok(s.n == ROWS && s.in_order, "%s: of every row, in feeding order, with its id", backend);
	ok(s.worst < 1e-5, "%s: are the softmax of the dense layer (%.1e)", backend, s.worst);
	for (int i = 0; i < ROWS; i += 7) {
		is(train_predict_one(r.train, x + 2 * i, value, &err), 0, "one row");
		forward(w, x + 2 * i, p);
		for (int j = 0; j < CLASSES; j++)
			worst = fmax(worst, fabs(value[j] - p[j]));
	}
	ok(worst < 1e-5, "%s: and single rows too", backend);
	s.n = 0;
	s.stop_at = 20;
	ok(train_predict(r.train, take, &s, &err) < 0 && s.n == 20, "a sink that is gone ends it");
	is(train_run(r.train, &run, &row, &err), -EINVAL, "such a job does not train");
	is(train_evaluate(r.train, ROW_VALIDATION, &row, &err), -ENODATA, "nothing to evaluate");
	rig_end(&r);
}

static void evaluation(struct rig *from, const float *w, const char *backend)
{
	struct rig_rows rows = {
		.n = ROWS, .h = 1, .w = 1, .c = 2, .f32 = x, .y_int = y, .weight = weight};
	uint64_t want[9] = {0}, bytes, got[9];
	double loss = 0, hits = 0, p[CLASSES];
	struct ctl_run_row row;
	uint32_t classes = 0;
	struct err err = {0};
	uint8_t *matrix;
	char spec[256];
	struct rig r;

	snprintf(spec, sizeof(spec),
		 "{\"backend\": \"%s\", \"batch_size\": 16, \"metrics\": \"accuracy,top_k(k=2)\"}",
		 backend);
	open_inference(&r, from, spec, &rows, ROW_VALIDATION, w);
	for (int i = 0; i < ROWS; i++) {
		forward(w, x + 2 * i, p);
		loss -= weight[i] * log(p[y[i]]);
		hits += argmax(p) == y[i];
		want[y[i] * CLASSES + argmax(p)]++;
	}
	is(train_evaluate(r.train, ROW_VALIDATION, &row, &err) |
		   train_evaluate(r.train, ROW_VALIDATION, &row, &err),
	   0, "evaluation, twice");
	ok(fabs(row.validation_loss - loss / ROWS) < 1e-5, "%s: loss = sum w l / n, %.6f", backend,
	   row.validation_loss);
	ok(row.metrics == 2 && !strcmp(row.metric[0].name, "accuracy") &&
		   fabs(row.metric[0].validation - hits / ROWS) < 1e-12 &&
		   isnan(row.metric[0].train),
	   "%s: accuracy counts rows, unweighted", backend);
	ok(!strcmp(row.metric[1].name, "top_2") &&
		   row.metric[1].validation >= row.metric[0].validation,
	   "%s: a second metric", backend);
	matrix = rig_get(&r, CTL_CONFUSION, &bytes);
	if (matrix && bytes == 4 + sizeof(got)) {
		memcpy(&classes, matrix, 4);
		memcpy(got, matrix + 4, sizeof(got));
	}
	ok(classes == CLASSES && !memcmp(got, want, sizeof(got)), "%s: confusion matrix", backend);
	free(matrix);
	rig_end(&r);
}

int main(void)
{
	struct rig_rows rows = {.n = ROWS, .h = 1, .w = 1, .c = 2, .f32 = x, .y_int = y};
	static const char *const backends[] = {"ref", "cpu"};
	uint64_t state = 99, bytes;
	struct ctl_run_row row;
	struct err err;
	struct rig r;
	float *w;

	for (int i = 0; i < ROWS; i++) {
		x[2 * i] = (float)(rig_random(&state) % 1000) / 250 - 2;
		x[2 * i + 1] = (float)(rig_random(&state) % 1000) / 250 - 2;
		y[i] = (int32_t)(rig_random(&state) % 3);
		weight[i] = .5 + rig_random(&state) % 4;
	}
	architecture = rig_dense(2, "dense:3:softmax");
	for (int b = 0; b < 2; b++) {
		char spec[64];

		snprintf(spec, sizeof(spec), "{\"backend\": \"%s\"}", backends[b]);
		if (rig_start(&r, spec, architecture, &rows, NULL, &err) ||
		    rig_run(&r, 0, 5, &row, &err))
			BAIL("%s", err.message);
		w = (float *)rig_get(&r, CTL_WEIGHTS, &bytes);
		predictions(&r, w, backends[b]);
		evaluation(&r, w, backends[b]);
		free(w);
		rig_end(&r);
	}
	free(architecture);
	return done();
}
