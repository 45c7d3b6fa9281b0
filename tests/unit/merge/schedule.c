/* SPDX-License-Identifier: MIT */
/*
 * schedule.c: presets by name, when a merge is due, merge_every.
 */
#include "group.h"

static void presets(void)
{
	struct merge_config c;
	struct merge_error e;
	uint32_t i;

	for (i = 0; merge_preset_name(i); i++)
		is(merge_preset(merge_preset_name(i), 8, &c, &e), 0, merge_preset_name(i));
	is(i, 15, "number of presets");
	is(merge_preset("avarage", 4, &c, &e), -EINVAL, "an unknown name");
	like(e.message, "avarage", "the message names it");
	is(merge_preset("median", 2, &c, &e), -EINVAL, "a median of two");
	is(merge_preset("trimmed_mean", 2, &c, &e), -EINVAL, "a trimmed mean of two");
	merge_preset("slowmo", 2, &c, NULL);
	ok(c.mu == 0 && c.momentum == MERGE_RESET && c.scale_by_lr, "slowmo below 4 hosts");
	merge_preset("slowmo", 4, &c, NULL);
	ok(c.mu == .2, "slowmo, 4 hosts");
	merge_preset("slowmo", 8, &c, NULL);
	ok(c.mu == .5, "slowmo, 8 hosts");
	merge_preset("slowmo", 16, &c, NULL);
	ok(c.mu == .6, "slowmo, 16 hosts");
	merge_preset("bmuf", 4, &c, NULL);
	ok(c.mu == .75 && c.eta == 1 && c.every == 64 && c.momentum == MERGE_RESET,
	   "bmuf, 4 hosts");
	merge_preset("diloco", 4, &c, NULL);
	ok(c.mu == .9 && c.eta == .7 && c.nesterov && c.every == 64, "diloco");
	merge_preset("lookahead", 4, &c, NULL);
	ok(c.mu == 0 && c.eta == .5 && c.every == 5, "lookahead");
	merge_preset("easgd", 4, &c, NULL);
	ok(c.b == .9 && c.every == 10, "easgd");
	merge_preset("trimmed_mean", 5, &c, NULL);
	c.trim = 3;
	is(merge_config_check(&c, 5, NULL), -EINVAL, "trimming 3 of 5 at each end");
	c.trim = 2;
	is(merge_config_check(&c, 5, NULL), 0, "2 of 5 leaves the median");
	is(merge_config_check(&c, 4, NULL), -EINVAL, "2 of 4 leaves none");
	is(merge_config_check(&c, 0, NULL), -EINVAL, "no hosts");
	merge_preset("easgd", 4, &c, NULL);
	c.wire = MERGE_BF16;
	is(merge_config_check(&c, 4, NULL), -EINVAL, "easgd does not send deltas");
	c.kind = MERGE_GRADIENT;
	is(merge_config_check(&c, 4, NULL), -EINVAL, "gradients are no deltas");
	c.kind = MERGE_ADASUM;
	is(merge_config_check(&c, 4, NULL), -EINVAL, "adasum would round at every halving");
	c.kind = MERGE_AVERAGE;
	is(merge_config_check(&c, 4, NULL), 0, "an average may send bf16");
	c.slots = 5;
	is(merge_config_check(&c, 4, NULL), -EINVAL, "more optimizer slots than there can be");
	merge_preset("outer", 4, &c, NULL);
	c.mu = NAN;
	is(merge_config_check(&c, 4, NULL), -EINVAL, "mu is not a number");
}

/* one letter per step: s synchronous, S the last of them, . local, M merge */
static const char *course(const struct merge_config *c, uint64_t steps, uint64_t epoch)
{
	static char text[64];
	uint64_t s;

	for (s = 0; s < steps && s < sizeof(text) - 1; s++)
		text[s] = ".sMS"[merge_schedule(c, s, epoch)];
	text[s] = 0;
	return text;
}

static void schedules(void)
{
	struct merge_config c;

	merge_preset("gradient", 4, &c, NULL);
	is_str(course(&c, 8, 4), "ssssssss", "gradient");
	merge_preset("none", 4, &c, NULL);
	is_str(course(&c, 8, 4), "........", "none");
	merge_preset("local_sgd", 4, &c, NULL);
	c.every = 3;
	is_str(course(&c, 12, 4), "..M..M..M..M", "local SGD");
	merge_preset("post_local_sgd", 4, &c, NULL);
	c.every = 3;
	is_str(course(&c, 12, 5), "ssssS..M..M.", "post-local SGD: one epoch of gradients first");
	c.warmup_given = true;
	c.warmup = 2;
	is_str(course(&c, 12, 5), "sS..M..M..M.", "a given warm-up");
	c.warmup = 0;
	is_str(course(&c, 12, 5), "..M..M..M..M", "no warm-up");
	merge_preset("madlib", 4, &c, NULL);
	is_str(course(&c, 12, 4), "...M...M...M", "MADlib's rule");
	c.every = 3;
	is_str(course(&c, 13, 4), "...........M.", "once in three epochs");
	merge_preset("average", 4, &c, NULL);
	c.unit = MERGE_EPOCHS;
	c.every = 1;
	is_str(course(&c, 12, 4), "sssS...M...M", "warm-up and epochs");
}

static void every(void)
{
	static const char *bad[] = {"",	      "0",	     "-1",	  "+3", "3x",
				    "epochs", "99999999999", "3 epochsx", " 3"};
	struct merge_config c = {0};
	struct merge_error e;

	is(merge_every_parse("16", &c, NULL), 0, "16");
	ok(c.unit == MERGE_STEPS && c.every == 16, "16 steps");
	is(merge_every_parse("epoch", &c, NULL), 0, "epoch");
	ok(c.unit == MERGE_EPOCHS && c.every == 1, "one epoch");
	is(merge_every_parse("3 epochs", &c, NULL), 0, "3 epochs");
	ok(c.unit == MERGE_EPOCHS && c.every == 3, "three epochs");
	is(merge_every_parse("auto", &c, NULL), 0, "auto");
	ok(c.unit == MERGE_AUTO, "by time");
	for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++)
		is(merge_every_parse(bad[i], &c, &e), -EINVAL, bad[i]);
	/* .1 s a merge, .1 s a step: 5 % is reached at H = 20 */
	is(merge_auto_interval(.1, .1), 20, "auto: the smallest H within 5 %");
	is(merge_auto_interval(.1, .101), 21, "auto: the next above");
	is(merge_auto_interval(.1, .001), 1, "auto: cheap merges, every step");
	is(merge_auto_interval(1e-9, 1), 65536, "auto: a bound");
	is(merge_auto_interval(0, 0), 1, "auto: nothing measured");
}

int main(void)
{
	presets();
	schedules();
	every();
	return done();
}
