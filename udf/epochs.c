// SPDX-License-Identifier: MIT
/*
 * epochs.c: the iterations of a training: a run call each, its row in MODEL_history and its NOTICE,
 * and the coordinator's decisions: when to keep a copy, when to stop, which weights to take.
 */
#include "training.h"

#include <math.h>

double milliseconds(double seconds)
{
	return rint(seconds * 1000) / 1000;
}

/* ---- the row of an iteration ---- */

void args_number(struct args *args, double v)
{
	args_add(args, FLOAT8OID, Float8GetDatum(v), isnan(v));
}

static void insert_history(struct training *t, uint32 epoch, const char *metrics)
{
	const struct ctl_run_row *r = &t->last;
	struct args args = {0};
	bool one = r->metrics > 0;

	args_add(&args, INT4OID, Int32GetDatum((int32)epoch), false);
	args_number(&args, r->lr);
	args_add(&args, INT8OID, Int64GetDatum((int64)r->steps), false);
	args_add(&args, INT8OID, Int64GetDatum((int64)r->rows), false);
	args_number(&args, r->loss);
	args_number(&args, r->validation_loss);
	args_text(&args, one ? r->metric[0].name : NULL);
	args_number(&args, one ? r->metric[0].train : NAN);
	args_number(&args, one ? r->metric[0].validation : NAN);
	args_text(&args, metrics);
	args_number(&args, milliseconds(r->seconds_train));
	args_number(&args, milliseconds(r->seconds_merge));
	args_number(&args, milliseconds(r->seconds_evaluate));
	args_add(&args, INT4OID, Int32GetDatum((int32)r->hosts), false);
	args_add(&args, INT8OID, Int64GetDatum((int64)r->merges), false);
	args_add(&args, INT8OID, Int64GetDatum((int64)r->merge_bytes), false);
	args_number(&args, r->distance);
	args_text(&args, r->note.n ? r->note.p : NULL);
	sql_args(SPI_OK_INSERT, &args,
		 "INSERT INTO %s VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10::pg_catalog.json, "
		 "$11, $12, $13, $14, $15, $16, $17, $18)",
		 t->model.history);
}

static void show_figure(StringInfo s, const char *prefix, const char *name, double v)
{
	if (!isnan(v))
		appendStringInfo(s, fabs(v) < 1e6 ? "%s %s%s %.4f" : "%s %s%s %.4g",
				 strchr(s->data, ':') ? "," : ":", prefix, name, v);
}

static void show_iteration(struct training *t, uint32 epoch, uint32 epochs)
{
	const struct ctl_run_row *r = &t->last;
	StringInfoData s;
	double seconds = r->seconds_train + r->seconds_merge;
	uint32 i;

	initStringInfo(&s);
	appendStringInfo(&s, "epoch %u/%u", epoch, epochs);
	show_figure(&s, "", "loss", r->loss);
	for (i = 0; i < r->metrics; i++)
		show_figure(&s, "", r->metric[i].name, r->metric[i].train);
	show_figure(&s, "val_", "loss", r->validation_loss);
	for (i = 0; i < r->metrics; i++)
		show_figure(&s, "val_", r->metric[i].name, r->metric[i].validation);
	if (seconds > 0)
		appendStringInfo(&s, " (%.0f images/s)", (double)r->rows / seconds);
	if (r->note.n)
		appendStringInfo(&s, "; %s", r->note.p);
	if (r->flags & CTL_ROW_NAN)
		ereport(WARNING, (errmsg("training stopped: %s", r->note.n ? r->note.p : "NaN")));
	else
		ereport(NOTICE, (errmsg("%s", s.data)));
}

/* ---- figures ---- */

/* In the memory of the training, not of the iteration. */
static void keep_figures(struct figures *f, const struct ctl_run_row *r, uint32 epoch,
			 const char *metrics, MemoryContext context)
{
	if (f->metrics)
		pfree(f->metrics);
	f->epoch = epoch;
	f->loss = r->loss;
	f->validation_loss = r->validation_loss;
	f->metrics = MemoryContextStrdup(context, metrics);
}

/* ---- the run ---- */

struct plan {
	uint32 epochs, every, done, flags;
	double lr_factor;
	bool improved;
	MemoryContext context; /* of the training */
};

static void open_plan(const struct training *t, struct plan *p)
{
	double number;

	memset(p, 0, sizeof(*p));
	p->epochs = arguments_number(&t->args, "epochs", &number) ? (uint32)number : 10;
	p->every = arguments_number(&t->args, "evaluate_every", &number) ? (uint32)number : 1;
	p->lr_factor = 1;
	p->context = CurrentMemoryContext;
}

static void add_seconds(struct training *t)
{
	t->merges += t->last.merges;
	t->merge_bytes += t->last.merge_bytes;
	t->seconds_train += t->last.seconds_train;
	t->seconds_merge += t->last.seconds_merge;
	t->seconds_evaluate += t->last.seconds_evaluate;
}

/*
 * cnnd's row counts complete epochs. A run that ended in the middle of its first epoch has a row of
 * that epoch all the same, unless it was stopped before its first step. After a NaN the weights
 * are older ones, and so are the figures that are kept: those of the iteration before.
 */
static void end_iteration(struct training *t, struct plan *p)
{
	const struct ctl_run_row *r = &t->last;
	uint32 epoch = r->epoch > p->done ? r->epoch : p->done + 1;
	bool nan = (r->flags & CTL_ROW_NAN) != 0;
	char *metrics = driver_metrics(r, true);

	if (r->epoch <= p->done && !(r->flags & (CTL_ROW_STOPPED | CTL_ROW_NAN)))
		elog(ERROR, "cnnd ran no epoch");
	if (r->epoch <= p->done && !nan && !r->steps) {
		if (r->note.n)
			ereport(NOTICE, (errmsg("%s", r->note.p)));
		return;
	}
	insert_history(t, epoch, metrics);
	show_iteration(t, epoch, p->epochs);
	if (!nan)
		keep_figures(&t->kept, r, epoch, metrics, p->context);
	p->improved = (r->flags & CTL_ROW_IMPROVED) != 0;
	if (p->improved)
		keep_figures(&t->best, r, epoch, metrics, p->context);
}

/* Which weights are stored; the figures of the result are theirs. */
static void choose_weights(struct training *t, const struct plan *p)
{
	/* when the last iteration was the best one, its weights are the ones that are there */
	t->restore = (t->last.flags & CTL_ROW_RESTORE) && t->has_best && !p->improved;
	if (!t->restore || !t->best.metrics)
		return;
	t->kept = t->best;
	if (t->last.flags & CTL_ROW_NAN) /* else cnnd's note says it */
		ereport(NOTICE, (errmsg("the best weights, those after epoch %u, are kept",
					t->best.epoch)));
}

static void run_once(struct training *t, const struct plan *p, uint32 count)
{
	struct ctl_run run = {.first_epoch = p->done,
			      .count = count,
			      .lr_factor = p->lr_factor,
			      .flags = p->flags,
			      .merge_every = t->merge_every};

	driver_run(&t->driver, &run, &t->last);
	if (!p->done)
		t->learning_rate = t->last.lr;
	/* merge_every = 'auto': the first measurement holds for the rest */
	if (!t->merge_every && t->last.merge_auto) {
		t->merge_every = t->last.merge_auto;
		if (t->driver.n_hosts > 1)
			ereport(NOTICE, (errmsg("merge_every := 'auto': a merge every %u steps",
						t->merge_every)));
	}
}

void training_run(struct training *t)
{
	const uint32 over = CTL_ROW_STOPPED | CTL_ROW_NAN | CTL_ROW_FINISH;
	struct plan p;
	MemoryContext context, old;

	open_plan(t, &p);
	t->kept.loss = t->kept.validation_loss = NAN;
	context = compat_context(CurrentMemoryContext, "gpu_cnn iteration");
	old = MemoryContextSwitchTo(context);
	while (p.done < p.epochs) {
		uint32 count = Min(p.every, p.epochs - p.done);

		MemoryContextReset(context);
		if (p.done && !t->cache)
			training_feed(t);
		run_once(t, &p, count);
		t->has_best = t->has_best || (p.flags & CTL_RUN_SNAPSHOT);
		add_seconds(t);
		end_iteration(t, &p);
		p.flags = p.improved ? CTL_RUN_SNAPSHOT : 0;
		p.lr_factor = t->last.lr_factor;
		p.done = t->last.epoch;
		if (t->last.flags & over)
			break;
	}
	t->epochs = p.done;
	t->last.note = ctl_str("", 0);
	MemoryContextSwitchTo(old);
	MemoryContextDelete(context);
	choose_weights(t, &p);
	if (!t->kept.metrics)
		t->kept.metrics = pstrdup("{}");
}
