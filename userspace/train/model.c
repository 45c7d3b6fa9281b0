// SPDX-License-Identifier: MIT
/*
 * model.c: the merged copy: the model as it would be if all replicas and hosts merged now. It is
 * what is evaluated, stored and kept as the best; making it changes nothing of the training.
 */
#include "hosts.h"

#include <errno.h>
#include <math.h>
#include <string.h>
#include <xxhash.h>

/* Said with the statistics by each host while all should hold the same parameters. */
struct said {
	uint64_t samples, checksum;
};

int train_model_pool(struct train *t, const float *param, uint64_t rows, bool *equal,
		     struct err *err)
{
	struct hosts *h = t->hosts;
	uint64_t stat_bytes = t->graph->stat_floats * sizeof(float), samples[MERGE_HOSTS_MAX];
	struct said mine = {rows, XXH3_64bits(param, t->graph->param_floats * sizeof(float))};
	const float *stat[MERGE_HOSTS_MAX];
	const uint8_t *out;
	uint32_t n;
	int rc;

	memcpy(h->say, &mine, sizeof(mine));
	memcpy(h->say + sizeof(mine), t->pool_stat, stat_bytes);
	rc = train_hosts_gather(t, h->say, sizeof(mine) + stat_bytes, &out, &n, err);
	if (rc)
		return rc;
	*equal = true;
	for (uint32_t r = 0; r < n; r++) {
		const uint8_t *at = out + r * (sizeof(mine) + stat_bytes);
		struct said other;

		memcpy(&other, at, sizeof(other));
		samples[r] = other.samples;
		stat[r] = (const float *)(at + sizeof(other));
		*equal &= other.checksum == mine.checksum;
	}
	memcpy(t->copy_stat, t->pool_stat, stat_bytes);
	if (stat_bytes)
		merge_statistics(&t->table, n, stat, samples, t->copy_stat);
	return 0;
}

/* Parameters of rank 0 in place of those that should be equal: processors round differently. */
static int take_first(struct train *t, const float *param, struct err *err)
{
	struct hosts *h = t->hosts;
	uint64_t floats = t->graph->param_floats, most = h->gather_bytes / sizeof(float);
	const uint8_t *out;
	uint32_t n;

	for (uint64_t at = 0; at < floats; at += most) {
		uint64_t m = floats - at < most ? floats - at : most;
		int rc = train_hosts_gather(t, param + at, m * sizeof(float), &out, &n, err);

		if (rc)
			return rc;
		memcpy(t->copy_param + at, out, m * sizeof(float));
	}
	return 0;
}

int train_model_equalize(struct train *t, const float **param, struct err *err)
{
	uint64_t mine = XXH3_64bits(*param, t->graph->param_floats * sizeof(float)), one;
	bool equal = true;
	const uint8_t *out;
	uint32_t n;
	int rc = train_hosts_gather(t, &mine, sizeof(mine), &out, &n, err);

	for (uint32_t r = 0; !rc && r < n; r++) {
		memcpy(&one, out + r * sizeof(one), sizeof(one));
		equal &= one == mine;
	}
	if (rc || equal)
		return rc;
	rc = take_first(t, *param, err);
	*param = t->copy_param;
	return rc;
}

int train_model_make(struct train *t, struct err *err)
{
	struct hosts *h = t->hosts;
	const float *param = train_host_arena(t, 0, BACKEND_PARAM);
	bool equal = false;
	int rc = train_stage_in(t, 0, BACKEND_PARAM, err);

	if (!rc)
		rc = train_replicas_pool(t, t->pool_stat, err);
	if (!rc && !h) {
		t->model_param = param;
		t->model_stat = t->pool_stat;
		return 0;
	}
	if (!rc && !h->apart)
		rc = train_model_pool(t, param, h->samples, &equal, err);
	if (rc)
		return rc;
	t->model_param = equal ? param : t->copy_param;
	if (h->apart)
		rc = train_hosts_copy(t, t->pool_stat, err);
	else if (!equal)
		rc = take_first(t, param, err);
	t->model_stat = t->copy_stat;
	if (rc)
		t->model_param = t->model_stat = NULL;
	return rc;
}

int train_model_settle(struct train *t, struct err *err)
{
	const float *own = train_host_arena(t, 0, BACKEND_PARAM);

	memset(t->replica_rows, 0, sizeof(t->replica_rows));
	if (t->hosts)
		t->hosts->samples = 0;
	return train_write_net(t, t->model_param == own ? NULL : t->model_param, t->model_stat,
			       NULL, err);
}

double train_model_penalty(const struct train *t, const float *param)
{
	double sum = 0;

	for (uint32_t i = 0; i < t->graph->n_tensors; i++) {
		const struct backend_tensor *tensor = &t->graph->tensor[i];
		const float *w = param + tensor->offset;
		double l1 = 0, l2 = 0;

		if (tensor->arena != BACKEND_PARAM || !tensor->trainable ||
		    (tensor->l1 == 0.0f && tensor->l2 == 0.0f))
			continue;
		for (uint64_t k = 0; k < tensor->count; k++) {
			l1 += fabs((double)w[k]);
			l2 += (double)w[k] * w[k];
		}
		sum += tensor->l1 * l1 + tensor->l2 * l2;
	}
	return sum;
}
