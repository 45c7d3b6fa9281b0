// SPDX-License-Identifier: MIT
/*
 * config_merge.c: from the keys merge, merge_* to what nccl_merge wants: a preset by name, and what
 * the spec says otherwise. What a merge function does not have is refused, as with optimizers.
 */
#include "internal.h"

#include <ctype.h>
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

static const char *merge_name(const struct train_config *c)
{
	return c->merge ? c->merge : "average";
}

/* N, 'epoch', 'K epochs', 'auto' */
int train_config_merge_every(struct train_config *c, const char *text, struct err *err)
{
	struct merge_config parsed;
	struct merge_error error;
	char *copy = strdup(text);

	if (!copy)
		return err_set(err, ERR_LIMIT, -ENOMEM, "out of memory");
	for (char *p = copy; *p; p++)
		*p = (char)tolower((unsigned char)*p);
	if (merge_every_parse(copy, &parsed, &error)) {
		free(copy);
		return err_set(err, ERR_PARAM, -EINVAL,
			       "merge_every is '%.60s', must be a number of updates in "
			       "[1, 1073741824], 'epoch', 'K epochs' or 'auto'",
			       text);
	}
	free(c->merge_every);
	c->merge_every = copy;
	return 0;
}

/* 'none', 'ema(decay=.999)', 'swa(start=8)' */
int train_config_average(struct train_config *c, const char *text, struct err *err)
{
	static const char *const none[] = {NULL}, *const ema[] = {"decay", NULL},
				 *const swa[] = {"start", NULL};
	const char *const *names = none;
	struct options o;
	int rc = train_options_parse("model_average", text, true, &o, err);

	if (rc)
		return rc;
	c->average_decay = .999;
	c->average_start = UINT32_MAX;
	if (!strcasecmp(o.name, "ema")) {
		names = ema;
		c->average = TRAIN_EMA;
		rc = train_options_number(&o, "decay", (struct options_bound){0, 1, true, true},
					  &c->average_decay, err);
	} else if (!strcasecmp(o.name, "swa")) {
		names = swa;
		c->average = TRAIN_SWA;
		rc = train_options_integer(&o, "start", 0, 99999, &c->average_start, err);
	} else if (strcasecmp(o.name, "none") != 0) {
		rc = err_set(err, ERR_PARAM, -EINVAL,
			     "model_average is '%.60s', must be 'none', 'ema(decay=...)' or "
			     "'swa(start=...)'",
			     text);
	}
	if (!rc)
		rc = train_options_rest(&o, names, err);
	train_options_free(&o);
	return rc;
}

/* Settings over the preset. hosts: enough for any function where only keys are checked. */
static int configure(const struct train_config *c, uint32_t hosts, struct merge_config *m,
		     struct err *err)
{
	struct merge_error error = {0};
	int rc = merge_preset(merge_name(c), hosts, m, &error);

	if (rc)
		return err_set(err, ERR_PARAM, -EINVAL, "merge is '%s': %s", merge_name(c),
			       error.message);
	if (c->merge_every && merge_every_parse(c->merge_every, m, &error))
		return err_set(err, ERR_PARAM, -EINVAL, "%s", error.message);
	if (c->merge_momentum != UINT32_MAX)
		m->momentum = (enum merge_momentum)c->merge_momentum;
	if (c->merge_wire != UINT32_MAX)
		m->wire = (enum merge_wire)c->merge_wire;
	if (!isnan(c->merge_eta))
		m->eta = c->merge_eta;
	if (!isnan(c->merge_mu))
		m->mu = c->merge_mu;
	if (!isnan(c->merge_b))
		m->b = c->merge_b;
	if (c->merge_trim)
		m->trim = c->merge_trim;
	return 0;
}

int train_config_merge(const struct train_config *c, uint32_t hosts, uint64_t updates,
		       struct merge_config *out, struct err *err)
{
	struct merge_error error = {0};
	struct merge_config m;
	int rc = configure(c, hosts, &m, err);

	if (rc)
		return rc;
	if (!isnan(c->merge_warmup)) {
		m.warmup_given = true;
		m.warmup = (uint64_t)llround(c->merge_warmup * (double)updates);
	}
	if (merge_config_check(&m, hosts, &error))
		return err_set(err, ERR_PARAM, -EINVAL, "merge is '%s': %s", merge_name(c),
			       error.message);
	*out = m;
	return 0;
}

/* "merge_mu has no meaning with merge 'average', it belongs to ..." */
static int stranger(const struct train_config *c, const char *key, const char *whose,
		    struct err *err)
{
	return err_set(err, ERR_PARAM, -EINVAL,
		       "%s has no meaning with merge '%s', it belongs to %s", key, merge_name(c),
		       whose);
}

int train_config_merge_keys(const struct train_config *c, struct err *err)
{
	struct merge_error error = {0};
	struct merge_config m;
	int rc = configure(c, MERGE_HOSTS_MAX, &m, err);

	if (rc)
		return rc;
	if (c->average == TRAIN_SWA && c->average_start != UINT32_MAX &&
	    c->average_start >= c->epochs)
		return err_set(err, ERR_PARAM, -EINVAL,
			       "model_average: start is %u, must be below epochs, %u",
			       c->average_start, c->epochs);
	if (!isnan(c->merge_eta) && m.kind != MERGE_OUTER)
		return stranger(c, "merge_eta", "outer, slowmo, bmuf, diloco and lookahead", err);
	if (!isnan(c->merge_mu) && m.kind != MERGE_OUTER)
		return stranger(c, "merge_mu", "outer, slowmo, bmuf, diloco and lookahead", err);
	if (!isnan(c->merge_b) && m.kind != MERGE_EASGD)
		return stranger(c, "merge_b", "easgd", err);
	if (c->merge_trim && m.kind != MERGE_TRIMMED)
		return stranger(c, "merge_trim", "trimmed_mean", err);
	if (c->merge_every && (m.kind == MERGE_GRADIENT || m.kind == MERGE_NONE))
		return stranger(c, "merge_every", "functions that merge weights", err);
	if (!isnan(c->merge_warmup) && (m.kind == MERGE_GRADIENT || m.kind == MERGE_NONE))
		return stranger(c, "merge_warmup", "functions that merge weights", err);
	if (m.wire == MERGE_BF16 && (m.kind == MERGE_GRADIENT || m.kind == MERGE_EASGD ||
				     m.kind == MERGE_NONE || m.kind == MERGE_ADASUM))
		return err_set(err, ERR_PARAM, -EINVAL,
			       "merge_wire is 'bf16', must be 'f32' with merge '%s'",
			       merge_name(c));
	if (merge_config_check(&m, MERGE_HOSTS_MAX, &error))
		return err_set(err, ERR_PARAM, -EINVAL, "merge is '%s': %s", merge_name(c),
			       error.message);
	return 0;
}
