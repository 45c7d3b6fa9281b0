// SPDX-License-Identifier: MIT
/*
 * schedule.c: the learning rate plan. Time is counted in planned updates (steps / accumulate), so
 * that accumulate = k follows the same plan as a batch k times as large. Stateless: any update of
 * any epoch can be asked for, so that a resumed training goes on where it was.
 *
 *   warm-up: factor (u + 1) / W for the first W updates (W = warmup epochs), then 1.
 *   step, exponential: the epoch count includes the warm-up; cosine begins after it.
 */
#include "internal.h"

#include <math.h>

void train_schedule_init(struct schedule *schedule, const struct train_config *config,
			 double update_batch, uint64_t updates_per_epoch)
{
	double scale = 1;

	if (config->lr_scaling && update_batch > 0)
		scale = config->lr_scaling == 1 ? update_batch / 128 : sqrt(update_batch / 128);
	schedule->kind = config->schedule;
	schedule->lr = config->learning_rate * scale;
	schedule->gamma = config->gamma;
	schedule->every = config->schedule_every * (double)updates_per_epoch;
	schedule->min_lr = fmin(config->min_lr, schedule->lr);
	schedule->per_epoch = updates_per_epoch;
	schedule->total = updates_per_epoch * config->epochs;
	schedule->warmup = (uint64_t)llround(config->warmup * (double)updates_per_epoch);
}

static double cosine(const struct schedule *s, uint64_t update)
{
	double t, span;

	if (update < s->warmup)
		return s->lr;
	span = s->total > s->warmup ? (double)(s->total - s->warmup) : 1;
	t = fmin((double)(update - s->warmup), span);
	return s->min_lr + (s->lr - s->min_lr) * (1 + cos(M_PI * t / span)) / 2;
}

double train_schedule_lr(const struct schedule *s, uint64_t update, double factor)
{
	double lr = s->lr;

	switch (s->kind) {
	case TRAIN_CONSTANT:
		break;
	case TRAIN_STEP:
		lr *= pow(s->gamma, floor((double)update / s->every));
		break;
	case TRAIN_EXPONENTIAL:
		lr *= pow(s->gamma, (double)update / (double)s->per_epoch);
		break;
	case TRAIN_COSINE:
		lr = cosine(s, update);
		break;
	case TRAIN_PLATEAU:
		lr = fmax(lr * factor, s->min_lr);
		break;
	}
	if (update < s->warmup)
		lr *= (double)(update + 1) / (double)s->warmup;
	return lr;
}
