// SPDX-License-Identifier: MIT
/*
 * plan.c: early stopping and reduce-on-plateau, with the meaning of Keras 3's callbacks
 * (keras/src/callbacks/early_stopping.py, reduce_lr_on_plateau.py). Time is counted in iterations:
 * evaluate_every epochs each. This is advice in the row's flags; the caller decides, once for all
 * hosts.
 */
#include "internal.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

/* What can be monitored, for the message. */
static void legal_monitors(const struct metric *metric, uint32_t n, bool validation, char *text,
			   size_t size)
{
	size_t used = (size_t)snprintf(text, size, "loss%s", validation ? ", val_loss" : "");

	for (uint32_t i = 0; i < n && used < size; i++)
		used += (size_t)snprintf(text + used, size - used,
					 validation ? ", %s, val_%s" : ", %s", metric[i].name,
					 metric[i].name);
}

static int resolve(struct plan_rule *rule, const char *key, const char *wanted,
		   const struct metric *metric, uint32_t n, bool validation, struct err *err)
{
	const char *name = *wanted ? wanted : validation ? "val_loss" : "loss";
	bool val = !strncmp(name, "val_", 4), known;
	char legal[512];

	known = !strcmp(name + (val ? 4 : 0), "loss");
	for (uint32_t i = 0; i < n; i++)
		known |= !strcmp(name + (val ? 4 : 0), metric[i].name);
	if (known && (!val || validation)) {
		snprintf(rule->monitor, sizeof(rule->monitor), "%s", name);
		rule->max = train_metric_more_is_better(name);
		rule->on = true;
		return 0;
	}
	legal_monitors(metric, n, validation, legal, sizeof(legal));
	err_set(err, ERR_PARAM, -EINVAL, "%s monitors '%s', must be one of %s", key, name, legal);
	if (known)
		err_hint(err, "There are no validation rows: give validation_source or "
			      "validation_fraction.");
	else
		err_hint(err, "A metric must be named in metrics to be monitored.");
	return -EINVAL;
}

int train_plan_init(struct plan *plan, const struct train_config *config,
		    const struct metric *metric, uint32_t n_metrics, bool validation, double lr,
		    struct err *err)
{
	int rc;

	memset(plan, 0, sizeof(*plan));
	plan->factor = config->plateau_factor;
	plan->min_factor = lr > 0 ? fmin(config->min_lr / lr, 1) : 0;
	plan->restore = config->early_restore;
	if (config->early_stop) {
		plan->early.patience = config->early_patience;
		plan->early.min_delta = config->early_min_delta;
		rc = resolve(&plan->early, "early_stop", config->early_monitor, metric, n_metrics,
			     validation, err);
		if (rc)
			return rc;
	}
	if (config->schedule == TRAIN_PLATEAU) {
		plan->plateau.patience = config->plateau_patience;
		plan->plateau.min_delta = config->plateau_min_delta;
		plan->plateau.cooldown = config->plateau_cooldown;
		rc = resolve(&plan->plateau, "lr_schedule", config->plateau_monitor, metric,
			     n_metrics, validation, err);
		if (rc)
			return rc;
	}
	return 0;
}

static double figure(const struct ctl_run_row *row, const char *name)
{
	bool val = !strncmp(name, "val_", 4);

	if (val)
		name += 4;
	if (!strcmp(name, "loss"))
		return val ? row->validation_loss : row->loss;
	for (uint32_t i = 0; i < row->metrics; i++)
		if (!strcmp(row->metric[i].name, name))
			return val ? row->metric[i].validation : row->metric[i].train;
	return NAN;
}

/* Better than the best so far by more than min_delta; NaN never is. */
static bool improves(struct plan_rule *rule, double value)
{
	bool better;

	if (isnan(value))
		return false;
	better = !rule->seen || (rule->max ? value > rule->best + rule->min_delta
					   : value < rule->best - rule->min_delta);
	if (better) {
		rule->best = value;
		rule->seen = true;
	}
	return better;
}

static void advise_early(struct plan *plan, struct ctl_run_row *row)
{
	struct plan_rule *rule = &plan->early;
	bool first = !rule->seen;

	rule->wait++;
	plan->best_is_last = improves(rule, figure(row, rule->monitor));
	if (plan->best_is_last) {
		rule->wait = 0;
		plan->best_epoch = row->epoch;
		row->flags |= CTL_ROW_IMPROVED;
	} else if (!first && rule->wait >= rule->patience) {
		row->flags |= CTL_ROW_FINISH;
	}
	if (plan->restore && rule->seen && !plan->best_is_last)
		row->flags |= CTL_ROW_RESTORE;
}

static void advise_plateau(struct plan *plan, struct ctl_run_row *row)
{
	struct plan_rule *rule = &plan->plateau;

	if (rule->cooling) {
		rule->cooling--;
		rule->wait = 0;
	}
	if (improves(rule, figure(row, rule->monitor))) {
		rule->wait = 0;
	} else if (!rule->cooling && ++rule->wait >= rule->patience &&
		   row->lr_factor > plan->min_factor) {
		row->lr_factor = fmax(row->lr_factor * plan->factor, plan->min_factor);
		rule->cooling = rule->cooldown;
		rule->wait = 0;
	}
}

void train_plan_advise(struct plan *plan, struct ctl_run_row *row)
{
	if (plan->early.on)
		advise_early(plan, row);
	if (plan->plateau.on)
		advise_plateau(plan, row);
}
