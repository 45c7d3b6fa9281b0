/* SPDX-License-Identifier: MIT */
/*
 * copy.c: the model as it would be if all hosts merged now, for evaluation. Nothing is staged and
 * nothing committed: the merge goes on as if this had not happened.
 */
#include <string.h>
#include "engine.h"

static int copy_params(struct merge *m, struct merge_net *net, const struct merge_arenas *arenas,
		       const uint64_t *samples, float *out, struct merge_error *error)
{
	enum merge_kind kind = m->config.kind;
	bool first = kind == MERGE_NONE || kind == MERGE_GRADIENT;
	/* equal replicas stay equal to the last bit only if nothing is added up */
	struct merge_reduce r = {.op = first ? MERGE_REDUCE_FIRST : MERGE_REDUCE_MEAN,
				 .n = net->size,
				 .weight = samples,
				 .table = first ? NULL : &m->table};

	if (kind == MERGE_EASGD) {
		memcpy(out, m->x, m->table.param_floats * sizeof(float));
		return 0;
	}
	return merge_reduce_all(net, &r, arenas->param, out, m->table.param_floats, NULL, error);
}

int merge_copy(struct merge *m, struct merge_net *net, const struct merge_arenas *arenas,
	       uint64_t samples, float *param_out, float *stat_out, struct merge_error *error)
{
	uint64_t all[MERGE_HOSTS_MAX];
	/* another word than that of a merge: a host that merges meanwhile is told apart */
	struct merge_tell tell = {.number = m->number,
				  .config = m->config_hash ^ 2,
				  .samples = samples,
				  .stat = m->table.stat_floats ? arenas->stat : NULL,
				  .stat_out = stat_out,
				  .first = m->config.kind == MERGE_NONE,
				  .all_samples = all};
	int rc;

	if (!arenas->param || !param_out || (m->table.stat_floats && (!arenas->stat || !stat_out)))
		return merge_fail(error, -EINVAL, MERGE_NO_HOST, "an arena is missing");
	if (m->config.kind == MERGE_EASGD && !m->started)
		return merge_fail(error, -EINVAL, MERGE_NO_HOST, "merge_start was not called");
	rc = merge_work(m, net->size, error);
	if (rc)
		return rc;
	net->number = m->number;
	net->lent = m->scratch;
	net->lent_bytes = merge_reduce_scratch(m->table.param_floats, m->hosts);
	rc = merge_tell(m, net, &tell, error);
	if (!rc)
		rc = copy_params(m, net, arenas, all, param_out, error);
	net->lent_bytes = 0;
	return rc;
}
