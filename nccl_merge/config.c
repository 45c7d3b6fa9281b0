/* SPDX-License-Identifier: MIT */
/*
 * config.c: the merge functions by name, and when a merge is due.
 */
#include <stdlib.h>
#include <string.h>
#include "engine.h"

/* slowmo's momentum grows with the number of hosts: below 4 it only adds noise. */
static double slowmo_mu(uint32_t hosts)
{
	if (hosts < 4)
		return 0;
	if (hosts < 8)
		return .2;
	return hosts < 16 ? .5 : .6;
}

static const struct preset {
	const char *name;
	struct merge_config c;
} presets[] = {
	{"gradient", {.kind = MERGE_GRADIENT, .every = 1}},
	/* Momenta are averaged with the weights: docs/convergence.md, "What follows". */
	{"average",
	 {.kind = MERGE_AVERAGE,
	  .every = 8,
	  .momentum = MERGE_AVERAGE_SLOTS,
	  .default_warmup = true}},
	{"madlib", {.kind = MERGE_AVERAGE, .unit = MERGE_EPOCHS, .every = 1}},
	{"local_sgd", {.kind = MERGE_AVERAGE, .every = 8, .momentum = MERGE_AVERAGE_SLOTS}},
	{"post_local_sgd",
	 {.kind = MERGE_AVERAGE,
	  .every = 8,
	  .momentum = MERGE_AVERAGE_SLOTS,
	  .default_warmup = true}},
	{"outer", {.kind = MERGE_OUTER, .every = 8, .eta = 1, .default_warmup = true}},
	{"slowmo",
	 {.kind = MERGE_OUTER,
	  .every = 8,
	  .eta = 1,
	  .scale_by_lr = true,
	  .momentum = MERGE_RESET,
	  .default_warmup = true}},
	{"bmuf",
	 {.kind = MERGE_OUTER,
	  .every = 64,
	  .eta = 1,
	  .momentum = MERGE_RESET,
	  .default_warmup = true}},
	{"diloco",
	 {.kind = MERGE_OUTER,
	  .every = 64,
	  .eta = .7,
	  .mu = .9,
	  .nesterov = true,
	  .default_warmup = true}},
	{"lookahead", {.kind = MERGE_OUTER, .every = 5, .eta = .5, .default_warmup = true}},
	{"easgd", {.kind = MERGE_EASGD, .every = 10, .b = .9, .default_warmup = true}},
	{"adasum", {.kind = MERGE_ADASUM, .every = 8, .default_warmup = true}},
	{"trimmed_mean", {.kind = MERGE_TRIMMED, .every = 8, .trim = 1, .default_warmup = true}},
	{"median", {.kind = MERGE_MEDIAN, .every = 8, .default_warmup = true}},
	{"none", {.kind = MERGE_NONE, .every = 1}},
};

#define N_PRESETS (sizeof(presets) / sizeof(presets[0]))

const char *merge_preset_name(uint32_t i)
{
	return i < N_PRESETS ? presets[i].name : NULL;
}

int merge_preset(const char *name, uint32_t hosts, struct merge_config *out,
		 struct merge_error *error)
{
	for (size_t i = 0; i < N_PRESETS; i++) {
		struct merge_config c = presets[i].c;
		int rc;

		if (strcmp(name, presets[i].name))
			continue;
		if (!strcmp(name, "slowmo"))
			c.mu = slowmo_mu(hosts);
		if (!strcmp(name, "bmuf"))
			c.mu = hosts ? 1 - 1. / hosts : 0;
		rc = merge_config_check(&c, hosts, error);
		if (!rc)
			*out = c;
		return rc;
	}
	return merge_fail(error, -EINVAL, MERGE_NO_HOST, "no merge function is called '%.64s'",
			  name);
}

/* docs/merge.md says why each of them */
static int check_wire(const struct merge_config *c, struct merge_error *error)
{
	if (c->wire == MERGE_F32)
		return 0;
	if (c->kind == MERGE_EASGD || c->kind == MERGE_GRADIENT)
		return merge_fail(error, -EINVAL, MERGE_NO_HOST,
				  "bf16 deltas need a common start, which %s does not have",
				  c->kind == MERGE_EASGD ? "easgd" : "gradient");
	if (c->kind == MERGE_ADASUM)
		return merge_fail(error, -EINVAL, MERGE_NO_HOST,
				  "adasum rounds at every halving, with nobody to keep the rest: "
				  "f32 only");
	return 0;
}

int merge_config_check(const struct merge_config *c, uint32_t hosts, struct merge_error *error)
{
	uint32_t least = c->kind == MERGE_TRIMMED || c->kind == MERGE_MEDIAN ? 3 : 1;

	if ((unsigned)c->kind >= MERGE_KIND_COUNT || (unsigned)c->momentum > MERGE_RESET ||
	    (unsigned)c->wire > MERGE_BF16 || (unsigned)c->unit > MERGE_AUTO ||
	    c->slots > MERGE_MAX_SLOTS)
		return merge_fail(error, -EINVAL, MERGE_NO_HOST, "bad merge configuration");
	if (!hosts || hosts > MERGE_HOSTS_MAX)
		return merge_fail(error, -EINVAL, MERGE_NO_HOST, "%u hosts, allowed are 1 to %u",
				  hosts, MERGE_HOSTS_MAX);
	if (hosts < least)
		return merge_fail(error, -EINVAL, MERGE_NO_HOST,
				  "this merge function needs at least %u hosts, there are %u",
				  least, hosts);
	if (c->kind == MERGE_TRIMMED && c->trim >= (hosts + 1) / 2)
		return merge_fail(error, -EINVAL, MERGE_NO_HOST,
				  "trimming %u values at each end leaves none of %u", c->trim,
				  hosts);
	if (c->kind == MERGE_OUTER && !(c->eta > 0 && c->eta <= 10 && c->mu >= 0 && c->mu < 1))
		return merge_fail(error, -EINVAL, MERGE_NO_HOST,
				  "outer merge: eta %g (0 to 10), mu %g (0 to below 1)", c->eta,
				  c->mu);
	if (c->kind == MERGE_EASGD && !(c->b > 0 && c->b <= 1))
		return merge_fail(error, -EINVAL, MERGE_NO_HOST, "easgd: b is %g, wanted is 0 to 1",
				  c->b);
	if (!c->every && c->unit != MERGE_AUTO)
		return merge_fail(error, -EINVAL, MERGE_NO_HOST, "merge_every is 0");
	return check_wire(c, error);
}

int merge_every_parse(const char *text, struct merge_config *c, struct merge_error *error)
{
	char *end = NULL;
	unsigned long long v;

	if (!strcmp(text, "epoch")) {
		c->unit = MERGE_EPOCHS;
		c->every = 1;
		return 0;
	}
	if (!strcmp(text, "auto")) {
		c->unit = MERGE_AUTO;
		c->every = 0;
		return 0;
	}
	errno = 0;
	v = text[0] >= '0' && text[0] <= '9' ? strtoull(text, &end, 10) : 0;
	if (!v || errno || v > 1u << 30 ||
	    (*end && strcmp(end, " epochs") && strcmp(end, " epoch")))
		return merge_fail(
			error, -EINVAL, MERGE_NO_HOST,
			"merge_every is '%.64s'; a number of steps, 'epoch', 'K epochs' or 'auto'",
			text);
	c->unit = *end ? MERGE_EPOCHS : MERGE_STEPS;
	c->every = v;
	return 0;
}

enum merge_action merge_schedule(const struct merge_config *c, uint64_t s, uint64_t steps_per_epoch)
{
	uint64_t warmup = c->warmup_given ? c->warmup : c->default_warmup ? steps_per_epoch : 0;
	uint64_t h = c->every ? c->every : 1;

	if (c->kind == MERGE_GRADIENT)
		return MERGE_SYNC_STEP;
	if (c->kind == MERGE_NONE)
		return MERGE_LOCAL;
	if (s < warmup)
		return s + 1 == warmup ? MERGE_SYNC_STEP_LAST : MERGE_SYNC_STEP;
	/* epochs are those of the data, so that a merge falls on an epoch's end */
	if (c->unit == MERGE_EPOCHS)
		return (s + 1) % (h * steps_per_epoch) ? MERGE_LOCAL : MERGE_NOW;
	return (s + 1 - warmup) % h ? MERGE_LOCAL : MERGE_NOW;
}

uint64_t merge_auto_interval(double seconds_per_step, double seconds_per_merge)
{
	double h;

	if (!(seconds_per_step > 0) || !(seconds_per_merge > 0))
		return 1;
	h = seconds_per_merge / (.05 * seconds_per_step);
	if (h >= 65536)
		return 65536;
	/* the quotient of decimal inputs lies an ulp above the integer that is meant */
	return h <= 1 ? 1 : (uint64_t)(h * (1 - 1e-12)) + 1;
}
