// SPDX-License-Identifier: MIT
/*
 * apply.c: the decision for all daemons comes back: labels become class indices. What does not fit
 * is an error that names a row, before any weight changes.
 */
#include <endian.h>
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "set.h"

static const char *kind_name(uint32_t labels)
{
	static const char *const names[] = {"none",    "integers", "text",
					    "boolean", "arrays",   "numbers"};

	return labels < sizeof(names) / sizeof(names[0]) ? names[labels] : "unknown";
}

static int64_t label_int(const uint8_t *value)
{
	uint64_t bits;

	memcpy(&bits, value, sizeof(bits));
	return (int64_t)le64toh(bits);
}

/* A label as people write it. */
static void label_show(const struct data_set *data, int32_t label, char *out, size_t size)
{
	uint32_t bytes;
	const uint8_t *value = label_text(&data->label, (uint32_t)label, &bytes);
	char text[80];

	switch (data->labels) {
	case AGREE_INT:
		snprintf(out, size, "%" PRId64, label_int(value));
		break;
	case AGREE_BOOL:
		snprintf(out, size, "%s", *value ? "true" : "false");
		break;
	default:
		utf8_clean(text, sizeof(text), value, bytes);
		snprintf(out, size, "'%s'", text);
		break;
	}
}

/* The first row in canonical order, training rows first, whose label is marked. */
static bool find_row(const struct data_set *data, const bool *marked, uint32_t *index)
{
	for (int s = ROW_TRAIN; s <= ROW_VALIDATION; s++)
		for (uint64_t i = 0; i < data->rows[s]; i++) {
			*index = data->order[s][i];
			if (marked[set_row(data, *index)->label])
				return true;
		}
	return false;
}

/* More classes than outputs: names an integer label that no output can stand for, if there is one.
 */
static int too_many(const struct data_set *data, const struct agree_block *agreed, uint32_t outputs,
		    struct err *err)
{
	bool *outside = calloc(data->label.n + 1, sizeof(*outside));
	char id[SET_NAME], label[96];
	uint32_t index, bytes;

	for (uint32_t i = 0; outside && i < data->label.n && data->labels == AGREE_INT; i++) {
		int64_t v = label_int(label_text(&data->label, i, &bytes));

		outside[i] = v < 0 || v >= outputs;
	}
	if (outside && find_row(data, outside, &index)) {
		set_row_name(data, index, id);
		label_show(data, set_row(data, index)->label, label, sizeof(label));
		err_set(err, ERR_DATA, -ERANGE,
			"row %.80s: label %s is outside 0..%u: the network has %u outputs, the "
			"rows "
			"have %u different labels",
			id, label, outputs - 1, outputs, agreed->n_labels);
	} else {
		err_set(err, ERR_DATA, -ERANGE,
			"the rows have %u different labels, the network has %u outputs",
			agreed->n_labels, outputs);
	}
	err_hint(err, "The last layer must have as many units as there are classes.");
	free(outside);
	return -ERANGE;
}

/* Numbers of the label table to class indices, in every row. */
static int map_labels(struct data_set *data, const struct agree_block *agreed, struct err *err)
{
	int32_t *map = malloc((data->label.n + 1) * sizeof(*map));
	bool *missing = calloc(data->label.n + 1, sizeof(*missing)), any = false;
	char id[SET_NAME], label[96];
	uint32_t index, bytes;
	int rc = 0;

	if (!map || !missing) {
		rc = err_set(err, ERR_LIMIT, -ENOMEM, "out of memory for labels");
		goto end;
	}
	for (uint32_t i = 0; i < data->label.n; i++) {
		const uint8_t *value = label_text(&data->label, i, &bytes);

		map[i] = agree_find(agreed, value, bytes);
		missing[i] = map[i] < 0;
		any |= missing[i];
	}
	if (any && find_row(data, missing, &index)) {
		set_row_name(data, index, id);
		label_show(data, set_row(data, index)->label, label, sizeof(label));
		rc = err_set(err, ERR_DATA, -ERANGE,
			     "row %.80s: label %s is not one of the %u classes of the model", id,
			     label, agreed->n_labels);
		goto end;
	}
	for (int s = ROW_TRAIN; s <= ROW_VALIDATION && !rc; s++)
		for (uint64_t i = 0; i < data->rows[s] && !rc; i++) {
			struct row *row = set_row(data, data->order[s][i]);

			if (!(i % SET_LOOK))
				rc = set_canceled(data, err);
			row->label = map[row->label];
		}
end:
	free(map);
	free(missing);
	return rc;
}

static int apply_classes(struct data_set *data, const struct agree_block *agreed, uint32_t outputs,
			 struct err *err)
{
	int rc;

	/* one output stands for two classes */
	if (agreed->n_labels > outputs && !(outputs == 1 && agreed->n_labels == 2))
		return too_many(data, agreed, outputs, err);
	data->class_weight = malloc((agreed->n_labels + 1) * sizeof(float));
	if (!data->class_weight)
		return err_set(err, ERR_LIMIT, -ENOMEM, "out of memory for labels");
	for (uint32_t i = 0; i < agreed->n_labels; i++) {
		double w = agreed->label[i].weight;

		data->class_weight[i] = isnan(w) ? 1.0f : (float)w;
	}
	rc = map_labels(data, agreed, err);
	if (!rc)
		data->n_classes = agreed->n_labels;
	return rc;
}

static int apply_vectors(const struct data_set *data, uint32_t outputs, struct err *err)
{
	char id[SET_NAME];

	for (int s = ROW_TRAIN; s <= ROW_VALIDATION; s++)
		for (uint64_t i = 0; i < data->rows[s]; i++) {
			uint32_t n = set_row(data, data->order[s][i])->y_count;

			if (n == outputs)
				continue;
			set_row_name(data, data->order[s][i], id);
			return err_set(err, ERR_DATA, -ERANGE,
				       "row %.80s: the label array has %u elements, the network %u "
				       "outputs",
				       id, n, outputs);
		}
	return 0;
}

/* A daemon without rows takes shape and type from the others. */
static int apply_shape(struct data_set *data, const struct agree_block *agreed, struct err *err)
{
	struct backend_shape want = {agreed->h, agreed->w, agreed->c}, is = data->rows_shape;

	if (!data->rows[0] && !data->rows[1] && !data->rows[2]) {
		data->rows_shape = want;
		if (agreed->dtype >= BACKEND_DTYPE_COUNT)
			return err_set(err, ERR_PROTOCOL, -EPROTO, "unknown type of rows");
		data->dtype = (enum backend_dtype)agreed->dtype;
		return 0;
	}
	if (is.h == want.h && is.w == want.w && is.c == want.c)
		return 0;
	return err_set(err, ERR_DATA, -EINVAL, "images are %ux%ux%u, the model wants %ux%ux%u",
		       is.h, is.w, is.c, want.h, want.w, want.c);
}

int data_apply(struct data_set *data, const struct agree_block *agreed, uint32_t outputs,
	       struct err *err)
{
	int rc;

	if (data->phase != DATA_COLLECTED || !outputs)
		return err_set(err, ERR_INTERNAL, -EINVAL, "rows are not counted yet, or applied");
	rc = set_canceled(data, err);
	if (!rc)
		rc = apply_shape(data, agreed, err);
	if (rc)
		return rc;
	if (data->labels != AGREE_NO_LABELS && data->labels != agreed->labels &&
	    (data->rows[ROW_TRAIN] || data->rows[ROW_VALIDATION])) {
		return err_set(err, ERR_DATA, -EINVAL, "labels are %s, those of the model are %s",
			       kind_name(data->labels), kind_name(agreed->labels));
	}
	if (data->config.need_labels) {
		data->labels = agreed->labels;
		switch (agreed->labels) {
		case AGREE_NO_LABELS:
			break;
		case AGREE_FLOAT:
			if (outputs != 1)
				rc = err_set(err, ERR_DATA, -ERANGE,
					     "a row has one target, the network %u outputs",
					     outputs);
			break;
		case AGREE_VECTOR:
			rc = apply_vectors(data, outputs, err);
			break;
		default:
			rc = apply_classes(data, agreed, outputs, err);
			break;
		}
	}
	if (rc)
		return rc;
	data->outputs = outputs;
	data->phase = DATA_APPLIED;
	return 0;
}
