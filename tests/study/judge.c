/* SPDX-License-Identifier: MIT */
/*
 * judge.c: the score of a set of weights over rows that no training saw. It is a training of one
 * host for evaluation only: the code between hosts has no part in it.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "study.h"

struct study_judge {
	struct data_set *data;
	struct model *model;
	struct backend *backend;
	struct train *train;
};

struct study_judge *study_judge_new(const struct study_args *a, const struct train_config *config,
				    const struct agree_block *agreed, const struct study_rows *rows,
				    uint32_t first, uint32_t last)
{
	const struct model_bind bind = {a->h, a->w, a->c, a->classes};
	const struct backend_options options = {NULL};
	struct study_judge *j = calloc(1, sizeof(*j));
	struct train_setup setup = {.config = config, .agreed = agreed, .inference = true};
	struct agree_block part;
	struct backend_error error;
	char *notice = NULL;
	struct err err;

	if (!j)
		study_die("a judge", "no memory");
	j->data = study_set(a, NULL, NULL, 0, rows, first, last, 1);
	if (data_collect(j->data, &part, &err) || data_apply(j->data, agreed, a->classes, &err) ||
	    model_open(config->architecture, strlen(config->architecture), &bind, &j->model, &err))
		study_die("a judge", err.message);
	agree_free(&part);
	if (backend_open("cpu", &options, &j->backend, &error))
		study_die("a judge", error.message);
	setup.model = j->model;
	setup.backend = j->backend;
	setup.data = j->data;
	if (train_create(&setup, &j->train, &notice, &err))
		study_die("a judge", err.message);
	free(notice);
	return j;
}

void study_judge_free(struct study_judge *j)
{
	if (!j)
		return;
	train_free(j->train);
	backend_close(j->backend);
	model_free(j->model);
	data_free(j->data);
	free(j);
}

float *study_weights(struct train *train, uint64_t *floats)
{
	uint8_t *all = NULL;
	uint64_t at = 0;
	struct ctl_part part = {.parts = 1};
	struct err err;

	for (uint32_t p = 0; p < part.parts; p++) {
		if (train_get(train, CTL_WEIGHTS, p, &part, &err))
			study_die("weights", err.message);
		if (!p)
			all = malloc(part.total + 1);
		if (!all)
			study_die("weights", "no memory");
		memcpy(all + at, part.data.p, part.data.n);
		at += part.data.n;
	}
	*floats = at / sizeof(float);
	return (float *)all;
}

struct study_score study_judge_ask(struct study_judge *j, const float *blob, uint64_t floats)
{
	const uint64_t bytes = floats * sizeof(float);
	uint32_t parts = (uint32_t)((bytes + CTL_PART_MAX - 1) / CTL_PART_MAX);
	struct study_score score = {NAN, NAN};
	struct ctl_run_row row;
	struct err err;

	for (uint64_t i = 0; i < floats; i++)
		if (!isfinite(blob[i]))
			return score;
	for (uint32_t p = 0; p < parts; p++) {
		uint64_t at = (uint64_t)p * CTL_PART_MAX;
		uint64_t n = bytes - at < CTL_PART_MAX ? bytes - at : CTL_PART_MAX;
		struct ctl_part part = {.kind = CTL_WEIGHTS,
					.part = p,
					.parts = parts,
					.total = bytes,
					.data = ctl_str((const char *)blob + at, n)};

		if (train_put(j->train, &part, &err))
			study_die("weights", err.message);
	}
	if (train_evaluate(j->train, ROW_VALIDATION, &row, &err))
		return score;
	score.loss = row.validation_loss;
	for (uint32_t i = 0; i < row.metrics; i++)
		if (!strcmp(row.metric[i].name, "accuracy"))
			score.accuracy = row.metric[i].validation;
	return score;
}
