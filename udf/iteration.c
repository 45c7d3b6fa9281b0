// SPDX-License-Identifier: MIT
/* iteration.c: one run call on all segments, its row, and the row's metrics as JSON. */
#include "gpu_cnn.h"

#include <math.h>

/* Columns of gpu_cnn_run's rows, from 1. */
enum {
	C_SEGINDEX = 1,
	C_STATE,
	C_EPOCH,
	C_FLAGS,
	C_STEPS,
	C_ROWS,
	C_LOSS,
	C_VALIDATION,
	C_LR,
	C_LR_FACTOR,
	C_TRAIN,
	C_MERGE,
	C_EVALUATE,
	C_HOSTS,
	C_MERGE_AUTO,
	C_MERGES,
	C_MERGE_BYTES,
	C_MERGE_NUMBER,
	C_MERGE_CHECKSUM,
	C_DISTANCE,
	C_NAMES,
	C_METRIC,
	C_METRIC_VALIDATION,
	C_NOTE
};

static void read_metrics(const struct answer *a, int row, struct ctl_run_row *r)
{
	ArrayType *names = answer_array(a, row, C_NAMES, TEXTARRAYOID);
	ArrayType *train = answer_array(a, row, C_METRIC, FLOAT8ARRAYOID);
	ArrayType *validation = answer_array(a, row, C_METRIC_VALIDATION, FLOAT8ARRAYOID);
	Datum *v;
	bool *nulls;
	int n, i;

	deconstruct_array(names, TEXTOID, -1, false, 'i', &v, &nulls, &n);
	n = Min(n, ArrayGetNItems(ARR_NDIM(train), ARR_DIMS(train)));
	n = Min(n, ArrayGetNItems(ARR_NDIM(validation), ARR_DIMS(validation)));
	r->metrics = (uint32)Min(n, CTL_METRICS);
	for (i = 0; i < (int)r->metrics; i++) {
		snprintf(r->metric[i].name, sizeof(r->metric[i].name), "%s",
			 TextDatumGetCString(v[i]));
		r->metric[i].train = ((double *)ARR_DATA_PTR(train))[i];
		r->metric[i].validation = ((double *)ARR_DATA_PTR(validation))[i];
	}
}

static void read_row(const struct answer *a, int row, struct ctl_run_row *r)
{
	memset(r, 0, sizeof(*r));
	r->epoch = (uint32)answer_int(a, row, C_EPOCH);
	r->flags = (uint32)answer_int(a, row, C_FLAGS);
	r->steps = (uint64)answer_int(a, row, C_STEPS);
	r->rows = (uint64)answer_int(a, row, C_ROWS);
	r->loss = answer_double(a, row, C_LOSS);
	r->validation_loss = answer_double(a, row, C_VALIDATION);
	r->lr = answer_double(a, row, C_LR);
	r->lr_factor = answer_double(a, row, C_LR_FACTOR);
	r->hosts = (uint32)answer_int(a, row, C_HOSTS);
	r->merge_auto = (uint32)answer_int(a, row, C_MERGE_AUTO);
	r->merges = (uint64)answer_int(a, row, C_MERGES);
	r->merge_number = (uint64)answer_int(a, row, C_MERGE_NUMBER);
	r->merge_checksum = (uint64)answer_int(a, row, C_MERGE_CHECKSUM);
	r->distance = answer_double(a, row, C_DISTANCE);
	r->note = str_of(answer_text(a, row, C_NOTE));
	read_metrics(a, row, r);
}

static void add_row(const struct answer *a, int row, struct ctl_run_row *r)
{
	r->merge_bytes += (uint64)answer_int(a, row, C_MERGE_BYTES);
	r->seconds_train = fmax(r->seconds_train, answer_double(a, row, C_TRAIN));
	r->seconds_merge = fmax(r->seconds_merge, answer_double(a, row, C_MERGE));
	r->seconds_evaluate = fmax(r->seconds_evaluate, answer_double(a, row, C_EVALUATE));
}

/* The row of a host; -1: its node did not answer. */
static int row_of(const struct answer *a, const struct host *h)
{
	int i;

	for (i = 0; i < a->n; i++)
		if (answer_int(a, i, C_SEGINDEX) == h->segindex)
			return i;
	return -1;
}

static bool has_state(const struct answer *a, int row, const char *state)
{
	const char *s = answer_text(a, row, C_STATE);

	return s && !strcmp(s, state);
}

/*
 * States: done; lost, its daemon is gone; out, its daemon lives but has lost the others, or they
 * it. Where nobody is done the words are those of a host that is gone, which tell more.
 */
static void lose_hosts(struct driver *d, const struct answer *a)
{
	bool done = false, gone = false;
	int i, row;

	for (i = 0; i < d->n_hosts; i++) {
		if (d->host[i].lost)
			continue;
		row = row_of(a, &d->host[i]);
		done = done || (row >= 0 && has_state(a, row, "done"));
		gone = gone || row < 0 || has_state(a, row, "lost");
	}
	for (i = 0; i < d->n_hosts; i++) {
		if (d->host[i].lost)
			continue;
		row = row_of(a, &d->host[i]);
		if (row >= 0 && has_state(a, row, "done"))
			continue;
		if (!done && !gone)
			ereport(ERROR, (errcode(ERRCODE_CONNECTION_FAILURE),
					errmsg("%s", answer_text(a, row, C_NOTE))));
		if (!done && row >= 0 && has_state(a, row, "out"))
			continue;
		hosts_lose(d, i,
			   row >= 0 ? answer_text(a, row, C_NOTE)
				    : psprintf("the session there ended: %s",
					       nodes_why(d->nodes, d->host[i].segindex)));
	}
	if (d->nodes)
		nodes_leave_lost(d->nodes);
	if (!done)
		ereport(ERROR, (errcode(ERRCODE_CONNECTION_FAILURE),
				errmsg("no host is left that could go on")));
}

void driver_run(struct driver *driver, const struct ctl_run *run, struct ctl_run_row *r)
{
	struct args args;
	struct answer a;
	bool first = true;
	int i;

	driver_args(driver, &args);
	args_add(&args, INT4OID, Int32GetDatum((int32)run->first_epoch), false);
	args_add(&args, INT4OID, Int32GetDatum((int32)run->count), false);
	args_add(&args, FLOAT8OID, Float8GetDatum(run->lr_factor), false);
	args_add(&args, INT4OID, Int32GetDatum((int32)run->flags), false);
	args_add(&args, INT4OID, Int32GetDatum((int32)run->merge_every), false);
	driver_call_losing(driver, "gpu_cnn_run", &args, &a);
	lose_hosts(driver, &a);
	for (i = 0; i < driver->n_hosts; i++) {
		int row = driver->host[i].lost ? -1 : row_of(&a, &driver->host[i]);

		if (row < 0)
			continue;
		if (first)
			read_row(&a, row, r);
		first = false;
		add_row(&a, row, r);
	}
	answer_free(&a);
}

static void add_metric(StringInfo out, const char *prefix, const char *name, double v)
{
	if (isnan(v))
		return;
	appendStringInfoString(out, out->len > 1 ? ", " : "");
	json_text(out, psprintf("%s%s", prefix, name));
	appendStringInfoString(out, ": ");
	json_number(out, v);
}

char *driver_metrics(const struct ctl_run_row *r, bool both)
{
	StringInfoData out;
	uint32 i;

	initStringInfo(&out);
	appendStringInfoChar(&out, '{');
	for (i = 0; both && i < r->metrics; i++)
		add_metric(&out, "", r->metric[i].name, r->metric[i].train);
	for (i = 0; i < r->metrics; i++)
		add_metric(&out, both ? "val_" : "", r->metric[i].name, r->metric[i].validation);
	appendStringInfoChar(&out, '}');
	return out.data;
}
