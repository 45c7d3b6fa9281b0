/* SPDX-License-Identifier: MIT */
/*
 * rig.h: a training made of the real parts, with rows in memory: rows go through a feeder as they
 * would from a ring, are agreed on and applied, and a training is made of them.
 */
#ifndef TRAIN_RIG_H
#define TRAIN_RIG_H

#include <errno.h>
#include <unistd.h>

#include "../../../userspace/train/internal.h"
#include "../../tap.h"

/* Rows as a table has them. One of the y is given, or none. */
struct rig_rows {
	uint32_t n, h, w, c;
	const uint8_t *u8; /* n * h * w * c, or */
	const float *f32;
	const int32_t *y_int;
	const char *const *y_text;
	const double *y_double;
	const float *y_array; /* n * targets */
	uint32_t targets;
	const double *weight;	 /* NULL: no column */
	const uint32_t *arrival; /* the order in which they come; NULL: as they stand */
};

/* Replicas with a back end and a thread of their own that the next rigs have; 0: none. */
#define RIG_APART_MAX 8
static uint32_t rig_apart, rig_timeout_ms;
static bool rig_resident;
/* Where rows past rig_memory go; NULL: nowhere, there is room for all. */
static const char *rig_spill;
static uint64_t rig_memory;
/* Their back end; NULL: the spec's. The options but for the device, which counts from rig_device;
 * rig_device_step is added to that for the next rig. */
static const char *rig_each;
static struct backend_options rig_options;
static uint32_t rig_device, rig_device_step;

struct rig {
	struct train_config config;
	struct model *model;
	struct backend_pool *pool;
	struct backend *backend;
	struct backend *each[RIG_APART_MAX]; /* apart of them */
	uint32_t apart, device[RIG_APART_MAX], timeout_ms;
	bool resident;
	struct data_decoder *decoder;
	struct data_set *data;
	struct agree_block agreed;
	struct train *train;
	char *notice;
	bool inference;
	struct merge_net *net; /* several hosts: hosts.h */
	void (*on_merge)(void *context, const struct merge_result *result);
	void *context;
};

/* A network of Dense layers on a row of numbers, as Keras JSON: "dense:8:relu,dropout:25,
 * norm:90,dense:3:softmax" (dropout, and momentum of batch norm, in per cent); ridge is a dense
 * layer with l2 = .05. 64 inputs are an image of 8 x 8. malloc'd. */
static inline char *rig_dense(uint32_t inputs, const char *layers)
{
	size_t size = 8192, used;
	char *json = malloc(size), name[32], activation[32];
	const char *side = inputs == 64 ? "8, 8" : "1, 1";
	unsigned int value, k = 0;
	int n;

	inputs = inputs == 64 ? 1 : inputs;

	used = (size_t)snprintf(json, size,
				"{\"class_name\": \"Sequential\", \"config\": {\"name\": \"m\", "
				"\"layers\": [{\"class_name\": \"InputLayer\", \"config\": {"
				"\"name\": \"in\", \"batch_input_shape\": [null, %s, %u]}}, "
				"{\"class_name\": \"Flatten\", \"config\": {\"name\": \"flat\"}}",
				side, inputs);
	while (sscanf(layers, "%31[a-z]:%u%n", name, &value, &n) == 2) {
		layers += n;
		if (!strcmp(name, "dropout")) {
			used += (size_t)snprintf(json + used, size - used,
						 ", {\"class_name\": \"Dropout\", \"config\": {"
						 "\"name\": \"drop%u\", \"rate\": %g}}",
						 k++, value / 100.0);
		} else if (!strcmp(name, "norm")) {
			used += (size_t)snprintf(json + used, size - used,
						 ", {\"class_name\": \"BatchNormalization\", "
						 "\"config\": {\"name\": \"norm%u\", \"momentum\": "
						 "%g}}",
						 k++, value / 100.0);
		} else if (sscanf(layers, ":%31[a-z_]%n", activation, &n) == 1) {
			layers += n;
			used += (size_t)snprintf(
				json + used, size - used,
				", {\"class_name\": \"Dense\", \"config\": {\"name\": \"dense%u\", "
				"\"units\": %u, \"activation\": \"%s\"%s}}",
				k++, value, activation,
				strcmp(name, "ridge") != 0
					? ""
					: ", \"kernel_regularizer\": {\"class_name\": \"L2\", "
					  "\"config\": {\"l2\": 0.05}}");
		}
		layers += *layers == ',';
	}
	snprintf(json + used, size - used, "]}}");
	return json;
}

static inline uint32_t rig_row(const struct rig_rows *rows, uint32_t i, uint8_t *to)
{
	uint32_t elements = rows->h * rows->w * rows->c;
	struct row_head head = {.weight = rows->weight ? rows->weight[i] : 1};
	uint8_t *p = to + ROW_HEAD;
	const void *y = NULL;
	char id[16];

	head.id_bytes = (uint32_t)snprintf(id, sizeof(id), "row%u", i);
	memcpy(p, id, head.id_bytes);
	p += head.id_bytes;
	if (rows->y_int) {
		y = &rows->y_int[i];
		head.y_bytes = 4;
	} else if (rows->y_text) {
		y = rows->y_text[i];
		head.y_bytes = (uint32_t)strlen(rows->y_text[i]);
	} else if (rows->y_double) {
		y = &rows->y_double[i];
		head.y_bytes = 8;
	} else if (rows->y_array) {
		y = rows->y_array + (size_t)i * rows->targets;
		head.y_bytes = 4 * rows->targets;
		head.y_dims = 1;
	}
	if (y)
		memcpy(p, y, head.y_bytes);
	else
		head.flags |= ROW_Y_NULL;
	p += head.y_bytes;
	if (rows->f32) {
		head.x_dims = 3;
		head.x_dim[0] = rows->h;
		head.x_dim[1] = rows->w;
		head.x_dim[2] = rows->c;
		head.x_bytes = 4ull * elements;
		memcpy(p, rows->f32 + (size_t)i * elements, head.x_bytes);
	} else {
		head.x_bytes = elements;
		memcpy(p, rows->u8 + (size_t)i * elements, elements);
	}
	row_head_encode(&head, to);
	return (uint32_t)(p + head.x_bytes - to);
}

static inline int rig_feed(struct data_set *data, enum row_set set, const struct rig_rows *rows,
			   struct err *err)
{
	struct data_feed feed = {
		.set = set,
		.x_type = rows->f32 ? ROW_F32 : ROW_BYTES,
		.x_array = rows->f32 != NULL,
		.y_type = rows->y_int	   ? ROW_I32
			  : rows->y_text   ? ROW_TEXT
			  : rows->y_double ? ROW_F64
			  : rows->y_array  ? ROW_F32
					   : ROW_NONE,
		.y_array = rows->y_array != NULL,
		.has_y = rows->y_int || rows->y_text || rows->y_double || rows->y_array,
		.has_weight = rows->weight != NULL,
		.has_id = true,
	};
	uint8_t *value = malloc(ROW_HEAD + 64 + 4096 + 8ull * rows->h * rows->w * rows->c +
				4ull * rows->targets);
	struct data_feeder *feeder;
	struct data_counts counts;
	int rc = data_feeder_open(data, &feed, &feeder, err);

	for (uint32_t i = 0; !rc && i < rows->n; i++) {
		uint32_t bytes = rig_row(rows, rows->arrival ? rows->arrival[i] : i, value);
		void *place;

		rc = data_feeder_row(feeder, bytes, &place, err);
		if (!rc) {
			memcpy(place, value, bytes);
			rc = data_feeder_row_end(feeder, err);
		}
		if (rc)
			data_feeder_abort(feeder);
	}
	if (!rc)
		rc = data_feeder_close(feeder, &counts, err);
	free(value);
	return rc;
}

static inline int rig_data(struct rig *r, const struct rig_rows *train,
			   const struct rig_rows *other, enum row_set other_set, struct err *err)
{
	const struct rig_rows *any = train ? train : other;
	struct data_limits limits = {.max_image_pixels = 1u << 20,
				     .max_image_bytes = 1u << 20,
				     .image_ms = 2000,
				     .workers = 1};
	struct data_config config = {
		.memory = rig_spill ? rig_memory : 256u << 20,
		.spill_dir = rig_spill,
		.shape = {any->h, any->w, any->c},
		.max_bad_rows = r->config.max_bad_rows,
		.need_labels = other_set != ROW_PREDICT,
		.regression = any->y_double != NULL,
		.validation_fraction = r->config.validation_fraction,
		.seed = r->config.seed,
	};
	int rc = data_decoder_create(&limits, &r->decoder, err);

	config.decoder = r->decoder;
	if (!rc)
		rc = data_create(&config, &r->data, err);
	if (!rc && train)
		rc = rig_feed(r->data, ROW_TRAIN, train, err);
	if (!rc && other)
		rc = rig_feed(r->data, other_set, other, err);
	return rc;
}

static inline int rig_agree(struct rig *r, struct err *err)
{
	struct agree_block part;
	uint32_t outputs = model_info(r->model)->outputs;
	int rc = data_collect(r->data, &part, err);

	if (rc)
		return rc;
	rc = train_config_policy(&r->config, &part, err);
	if (!rc)
		rc = agree_merge(&part, 1, &r->agreed, err);
	agree_free(&part);
	return rc ? rc : data_apply(r->data, &r->agreed, outputs, err);
}

static inline int rig_model(struct rig *r, const char *architecture, const struct rig_rows *rows,
			    struct err *err)
{
	struct model_bind bind = {rows->h, rows->w, rows->c, 0};
	struct backend_options options = {0};
	struct backend_error error;
	const char *name = r->config.backend ? r->config.backend : "ref";
	int rc = model_open(architecture, strlen(architecture), &bind, &r->model, err);

	if (rc)
		return rc;
	if (!strcmp(name, "cpu") && backend_pool_create(2, &r->pool))
		BAIL("no pool of threads");
	options.pool = r->pool;
	if (backend_open(name, &options, &r->backend, &error))
		BAIL("back end %s: %s", name, error.message);
	r->apart = rig_apart;
	r->timeout_ms = rig_timeout_ms;
	r->resident = rig_resident;
	rig_device += rig_device_step;
	for (uint32_t k = 0; k < r->apart; k++) {
		options = rig_options;
		options.device = r->device[k] = rig_device - rig_device_step + k;
		if (backend_open(rig_each ? rig_each : name, &options, &r->each[k], &error))
			BAIL("back end %s: %s", rig_each ? rig_each : name, error.message);
	}
	return 0;
}

static inline struct train_setup rig_setup(const struct rig *r)
{
	return (struct train_setup){
		.config = &r->config,
		.model = r->model,
		.backend = r->backend,
		.backends = r->apart ? r->each : NULL,
		.n_backends = r->apart,
		.device = r->apart ? r->device : NULL,
		.collective = rig_options.alloc != NULL,
		.resident = r->resident,
		.timeout_ms = r->timeout_ms,
		.data = r->data,
		.agreed = &r->agreed,
		.inference = r->inference,
		.net = r->net,
		.on_merge = r->on_merge,
		.context = r->context,
	};
}

/* Everything up to a training. On an error the rig is to be ended all the same. */
static inline int rig_start(struct rig *r, const char *spec, const char *architecture,
			    const struct rig_rows *train, const struct rig_rows *validation,
			    struct err *err)
{
	struct train_setup setup;
	int rc;

	memset(r, 0, sizeof(*r));
	memset(err, 0, sizeof(*err));
	rc = train_config_parse(spec, strlen(spec), &r->config, err);
	if (!rc)
		rc = rig_model(r, architecture, train, err);
	if (!rc)
		rc = rig_data(r, train, validation, ROW_VALIDATION, err);
	if (!rc)
		rc = rig_agree(r, err);
	setup = rig_setup(r);
	return rc ? rc : train_create(&setup, &r->train, &r->notice, err);
}

static inline void rig_end(struct rig *r)
{
	train_free(r->train);
	free(r->notice);
	if (r->data)
		data_free(r->data);
	if (r->decoder)
		data_decoder_free(r->decoder);
	agree_free(&r->agreed);
	if (r->backend)
		backend_close(r->backend);
	for (uint32_t k = 0; k < r->apart; k++)
		backend_close(r->each[k]);
	if (r->pool)
		backend_pool_free(r->pool);
	model_free(r->model);
	train_config_free(&r->config);
	memset(r, 0, sizeof(*r));
}

static inline int rig_run(struct rig *r, uint32_t first, uint32_t count, struct ctl_run_row *row,
			  struct err *err)
{
	struct ctl_run run = {.first_epoch = first, .count = count, .lr_factor = 1};

	return train_run(r->train, &run, row, err);
}

/* All parts of a kind in one piece, malloc'd; NULL where there are none. */
static inline uint8_t *rig_get(struct rig *r, uint32_t kind, uint64_t *bytes)
{
	uint8_t *all = NULL;
	struct ctl_part part;
	struct err err;

	*bytes = 0;
	for (uint32_t p = 0; !p || p < part.parts; p++) {
		if (train_get(r->train, kind, p, &part, &err)) {
			free(all);
			return NULL;
		}
		if (!p)
			all = malloc(part.total + 1);
		memcpy(all + *bytes, part.data.p, part.data.n);
		*bytes += part.data.n;
	}
	return all;
}

static inline int rig_put(struct rig *r, uint32_t kind, const void *data, uint64_t bytes,
			  struct err *err)
{
	uint32_t parts = (uint32_t)((bytes + CTL_PART_MAX - 1) / CTL_PART_MAX);
	int rc = 0;

	for (uint32_t p = 0; !rc && p < parts; p++) {
		uint64_t at = (uint64_t)p * CTL_PART_MAX;
		struct ctl_part part = {.kind = kind, .part = p, .parts = parts, .total = bytes};

		part.data = ctl_str((const char *)data + at,
				    bytes - at < CTL_PART_MAX ? bytes - at : CTL_PART_MAX);
		rc = train_put(r->train, &part, err);
	}
	return rc;
}

/* Whether two trainings hold the same bits of a kind. */
static inline bool rig_same(struct rig *a, struct rig *b, uint32_t kind)
{
	uint64_t n, m;
	uint8_t *x = rig_get(a, kind, &n), *y = rig_get(b, kind, &m);
	bool same = x && y && n == m && !memcmp(x, y, n);

	free(x);
	free(y);
	return same;
}

/* Largest |a - b| / (1 + |a|) of the weights. */
static inline double rig_distance(struct rig *a, struct rig *b)
{
	uint64_t n, m;
	float *x = (float *)rig_get(a, CTL_WEIGHTS, &n), *y = (float *)rig_get(b, CTL_WEIGHTS, &m);
	double worst = x && y && n == m ? 0 : INFINITY;

	for (uint64_t i = 0; isfinite(worst) && i < n / 4; i++) {
		double d = fabs((double)x[i] - y[i]) / (1 + fabs(x[i]));

		worst = d > worst ? d : worst;
	}
	free(x);
	free(y);
	return worst;
}

/* A small generator for rows, so that tests need no library's. */
static inline uint32_t rig_random(uint64_t *state)
{
	*state = *state * 6364136223846793005ull + 1442695040888963407ull;
	return (uint32_t)(*state >> 33);
}

/* n images of 8 x 8 in which one of four bands is bright, the class that it stands for, weights. */
#define RIG_PIXELS 64u
static inline void rig_pictures(uint8_t *image, int32_t *label, double *weight, uint32_t n)
{
	uint64_t state = 5;

	for (uint32_t i = 0; i < n; i++) {
		label[i] = (int32_t)(rig_random(&state) % 4);
		weight[i] = .25 * (1 + rig_random(&state) % 8);
		for (uint32_t j = 0; j < RIG_PIXELS; j++)
			image[i * RIG_PIXELS + j] =
				(uint8_t)(rig_random(&state) % 160 +
					  (j / 16 == (uint32_t)label[i] ? 90 : 0));
	}
}

/* A thread that cancels a training in its middle. */
static inline void *rig_cancel_soon(void *train)
{
	usleep(300000);
	train_cancel(train);
	return NULL;
}

#endif
