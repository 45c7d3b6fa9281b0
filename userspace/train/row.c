// SPDX-License-Identifier: MIT
/* row.c: what a run tells: figures over all hosts, added in the order of ranks so that all have the
 * same row, and the note for the user. */
#include "run.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

void train_row_start(const struct ctl_run *run, struct ctl_run_row *row)
{
	memset(row, 0, sizeof(*row));
	row->epoch = run->first_epoch;
	row->loss = row->validation_loss = row->lr = row->distance = NAN;
	row->lr_factor = run->lr_factor;
	row->hosts = 1;
	for (uint32_t i = 0; i < CTL_METRICS; i++)
		row->metric[i].train = row->metric[i].validation = NAN;
}

/* ---- NaN and Inf ---- */

int train_row_gather_bad(struct run *r, struct err *err)
{
	struct run_bad one, first = {0};
	const uint8_t *out;
	uint32_t n, found = 0;
	int rc;

	if (!r->t->hosts)
		return 0;
	rc = train_hosts_gather(r->t, &r->bad, sizeof(r->bad), &out, &n, err);
	for (uint32_t i = 0; !rc && i < n; i++) {
		memcpy(&one, out + i * sizeof(one), sizeof(one));
		if (!one.what)
			continue;
		if (!found++)
			first = one;
	}
	if (rc || !found)
		return rc;
	/* a sum that is NaN is so on all hosts: nobody's in particular */
	if (found == n || first.host >= r->t->hosts->n_start)
		first.host = MERGE_NO_HOST;
	r->bad = first;
	return 0;
}

void train_row_bad(struct run *r, struct ctl_run_row *row)
{
	static const char *const names[] = {"", "loss", "gradient", "weight", "validation loss"};
	const struct run_bad *bad = &r->bad;
	struct train *t = r->t;
	const char *what = bad->what <= BAD_VALIDATION ? names[bad->what] : "loss";
	const char *value = bad->infinite ? "infinite" : "NaN", *name;
	char where[96], host[128] = "", room[32];

	if (bad->what == BAD_GRADIENT || bad->what == BAD_WEIGHT)
		value = "NaN or infinite";
	if (bad->what == BAD_VALIDATION)
		snprintf(where, sizeof(where), "after epoch %u", bad->epoch + 1);
	else
		snprintf(where, sizeof(where), "in epoch %u, step %" PRIu64 " of %" PRIu64,
			 bad->epoch + 1, bad->step + 1, t->steps);
	if (t->hosts && bad->what != BAD_VALIDATION && bad->host != MERGE_NO_HOST) {
		name = train_hosts_name(t, bad->host, room);
		snprintf(host, sizeof(host), "on %s ", name);
	}
	snprintf(t->note, sizeof(t->note),
		 "%s is %s %s%s, learning rate %g; the weights are %s. A lower learning_rate, "
		 "clipnorm or a look at extreme values in the rows may help.",
		 what, value, host, where, r->lr, t->kept);
	row->note = ctl_str(t->note, strlen(t->note));
	row->flags |= CTL_ROW_NAN;
	if (t->plan.restore && t->plan.early.on && t->has_best)
		row->flags |= CTL_ROW_RESTORE;
}

/* ---- the end ---- */

/* Asked to stop: in the middle of an epoch the row counts complete epochs only. */
void train_row_stopped(struct run *r, struct ctl_run_row *row)
{
	struct train *t = r->t;

	row->flags |= CTL_ROW_STOPPED;
	if (r->epoch_steps && row->epoch == r->epoch)
		snprintf(t->note, sizeof(t->note),
			 "stopped in epoch %u, after step %" PRIu64 " of %" PRIu64, r->epoch + 1,
			 r->step + 1, t->steps);
	else if (row->epoch)
		snprintf(t->note, sizeof(t->note), "stopped after epoch %u", row->epoch);
	else
		snprintf(t->note, sizeof(t->note), "stopped before the first step");
	row->note = ctl_str(t->note, strlen(t->note));
}

/* At the end of an early-stopped training: which weights are kept, and why it is the end. */
void train_row_best(struct train *t, struct ctl_run_row *row)
{
	const struct plan *plan = &t->plan;
	bool finish = row->flags & CTL_ROW_FINISH;
	size_t n = row->note.n;

	if (!finish && !(row->flags & CTL_ROW_STOPPED) && row->epoch < t->setup.config->epochs)
		return;
	if (!finish && !(row->flags & CTL_ROW_RESTORE))
		return;
	if (finish)
		n += (size_t)snprintf(t->note + n, sizeof(t->note) - n,
				      "%sstopped early, %s is no better than %.6g", n ? "; " : "",
				      plan->early.monitor, plan->early.best);
	if (row->flags & CTL_ROW_RESTORE)
		n += (size_t)snprintf(t->note + n, sizeof(t->note) - n,
				      "%sthe best weights are those after epoch %u", n ? "; " : "",
				      plan->best_epoch);
	row->note = ctl_str(t->note, n);
}

/* ---- figures ---- */

/* What each host says of its part; then the metrics' sums. */
struct tally {
	double loss, step_seconds, merge_seconds;
	uint64_t epoch_rows, rows;
	struct metric_sums metric[CTL_METRICS];
};

static void tally_here(const struct run *r, struct tally *mine)
{
	const struct train *t = r->t;
	const struct hosts *h = t->hosts;

	memset(mine, 0, sizeof(*mine));
	mine->loss = r->loss;
	mine->epoch_rows = r->epoch_rows;
	mine->rows = r->rows;
	mine->step_seconds = r->steps ? r->compute / (double)r->steps : 0;
	mine->merge_seconds = h && h->merges ? h->seconds / (double)h->merges : 0;
	for (uint32_t i = 0; i < t->n_metrics; i++)
		mine->metric[i] = t->metric[i].train;
}

static void tally_add(struct tally *sum, const struct tally *one, uint32_t metrics)
{
	sum->loss += one->loss;
	sum->epoch_rows += one->epoch_rows;
	sum->rows += one->rows;
	/* the slowest host computes longest and waits least: its merges are communication alone */
	sum->step_seconds = fmax(sum->step_seconds, one->step_seconds);
	sum->merge_seconds = fmin(sum->merge_seconds, one->merge_seconds);
	for (uint32_t i = 0; i < metrics; i++)
		train_metric_merge(&sum->metric[i], &one->metric[i]);
}

static void fill_hosts(const struct run *r, const struct tally *sum, struct ctl_run_row *row)
{
	const struct hosts *h = r->t->hosts;

	row->hosts = h->n;
	row->merges = h->merges;
	row->merge_bytes = h->bytes;
	row->merge_number = h->last.number;
	row->merge_checksum = h->last.checksum;
	row->distance = h->distance;
	if (h->config.unit == MERGE_AUTO && r->steps && h->merges)
		row->merge_auto =
			(uint32_t)merge_auto_interval(sum->step_seconds, sum->merge_seconds);
}

int train_row_fill(struct run *r, struct ctl_run_row *row, struct err *err)
{
	struct train *t = r->t;
	struct tally sum, one;
	const uint8_t *out;
	uint32_t n;
	int rc = 0;

	tally_here(r, &sum);
	if (t->hosts) {
		rc = train_hosts_gather(t, &sum, sizeof(sum), &out, &n, err);
		if (rc)
			return rc;
		for (uint32_t i = 0; i < n; i++) {
			memcpy(&one, out + i * sizeof(one), sizeof(one));
			if (i)
				tally_add(&sum, &one, t->n_metrics);
			else
				sum = one;
		}
		fill_hosts(r, &sum, row);
	}
	row->steps = r->steps;
	row->rows = sum.rows;
	row->loss = sum.epoch_rows ? sum.loss / (double)sum.epoch_rows : NAN;
	row->lr = r->lr;
	row->metrics = t->n_metrics;
	for (uint32_t i = 0; i < t->n_metrics; i++) {
		snprintf(row->metric[i].name, sizeof(row->metric[i].name), "%s", t->metric[i].name);
		row->metric[i].train =
			sum.epoch_rows ? train_metric_value(&t->metric[i], &sum.metric[i]) : NAN;
	}
	return 0;
}
