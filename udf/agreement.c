// SPDX-License-Identifier: MIT
/*
 * agreement.c: agree (what rows every daemon has) and apply (the one decision for all of them). How
 * uneven the rows lie on the hosts is measured in between: class skew costs more accuracy than the
 * choice of a merge function (docs/merge.md), so that it is removed by an exchange of rows, or
 * told.
 */
#include "gpu_cnn.h"

#include <math.h>

#define SKEW_RESHUFFLE .1 /* total variation distance between a host's labels and all */
#define SKEW_WARNING .2
#define RATIO_RESHUFFLE 1.5 /* of the largest and the smallest host's rows */

struct skew {
	double *distance, ratio;
};

/* No row is left: the table of bad rows goes with the transaction, so the error says the reasons.
 */
static void raise_no_rows(struct driver *driver, const struct err *err)
{
	int64 n;
	char *reasons = driver_bad_reasons(driver, &n);

	if (n)
		ereport(ERROR,
			(errcode(ERRCODE_DATA_EXCEPTION),
			 errmsg("%s", cstring_of(str_of(err->message))), errdetail("%s", reasons)));
	daemon_raise(err);
}

static int decode_and_merge(bytea *const *blob, size_t n, struct agree_block *part,
			    struct agree_block *out, struct skew *skew, struct err *err)
{
	size_t i, k;
	int rc = 0;

	for (i = 0; i < n && !rc; i++)
		rc = agree_decode(VARDATA_ANY(blob[i]), VARSIZE_ANY_EXHDR(blob[i]), &part[i], err);
	if (!rc)
		rc = agree_merge(part, n, out, err);
	if (!rc)
		rc = agree_skew(part, n, skew->distance, &skew->ratio, err);
	for (k = 0; k < n; k++)
		agree_free(&part[k]);
	return rc;
}

Datum agreed_bytes(const struct agree_block *block)
{
	uint8 *blob = NULL;
	bytea *out = NULL;
	long bytes = agree_encode(block, &blob);

	if (bytes < 0)
		elog(ERROR, "cannot encode the agreed block: %s", strerror((int)-bytes));
	PG_TRY();
	{
		out = bytes_of(blob, (size_t)bytes);
	}
	PG_CATCH();
	{
		free(blob);
		PG_RE_THROW();
	}
	PG_END_TRY();
	free(blob);
	return PointerGetDatum(out);
}

static void keep_skew(struct driver *driver, const struct skew *skew, int n)
{
	int i, worst = 0;

	for (i = 1; i < n; i++)
		if (skew->distance[i] > skew->distance[worst])
			worst = i;
	driver->skew_distance = n ? skew->distance[worst] : 0;
	driver->skew_ratio = skew->ratio;
	driver->skewed_host = worst;
}

void driver_agree(struct driver *driver, struct agree_block **out, Datum *blob)
{
	struct args args;
	struct answer answer;
	struct err err = {0};
	struct agree_block *part;
	struct skew skew;
	bytea **parts;
	int i, n;

	driver_args(driver, &args);
	driver_call(driver, "gpu_cnn_agree", &args, &answer);
	n = answer.n;
	if (n != driver->n_hosts)
		elog(ERROR, "%d hosts, but %d answers to agree", driver->n_hosts, n);
	parts = palloc(sizeof(*parts) * (size_t)(n + 1));
	part = palloc0(sizeof(*part) * (size_t)(n + 1));
	skew.distance = palloc0(sizeof(double) * (size_t)(n + 1));
	skew.ratio = 1;
	for (i = 0; i < n; i++)
		parts[i] = answer_bytes(&answer, i, 2);
	answer_free(&answer);
	/* malloc'd memory: nothing is raised in between; the watch connection owns the result */
	if (decode_and_merge(parts, (size_t)n, part, &driver->watch->block, &skew, &err)) {
		if (err.kind == ERR_DATA)
			raise_no_rows(driver, &err);
		daemon_raise(&err);
	}
	keep_skew(driver, &skew, n);
	*blob = agreed_bytes(&driver->watch->block);
	*out = &driver->watch->block;
}

/* ---- apply ---- */

static bool wants_reshuffle(const struct driver *d, enum reshuffle wanted)
{
	if (d->n_hosts < 2 || d->kind != CTL_TRAIN || wanted == RESHUFFLE_OFF)
		return false;
	return wanted == RESHUFFLE_ON || d->skew_distance > SKEW_RESHUFFLE ||
	       d->skew_ratio > RATIO_RESHUFFLE;
}

static void warn_of_skew(const struct driver *d, bool reshuffled)
{
	if (reshuffled || d->n_hosts < 2 || d->kind != CTL_TRAIN ||
	    !(d->skew_distance > SKEW_WARNING))
		return;
	ereport(WARNING, (errmsg("labels lie unevenly on the hosts: those of host \"%s\" are %.2f "
				 "from those "
				 "of all",
				 d->host[d->skewed_host].name, d->skew_distance),
			  errdetail("0 is the same distribution, 1 is no label in common."),
			  errhint("Where rows may leave their host, reshuffle := 'auto' exchanges "
				  "them once; "
				  "where not, merge := 'gradient' is not harmed by it.")));
}

/* Columns of gpu_cnn_apply's rows. */
enum {
	APPLY_PARAMETERS = 2,
	APPLY_HEIGHT,
	APPLY_WIDTH,
	APPLY_CHANNELS,
	APPLY_OUTPUTS,
	APPLY_BATCH,
	APPLY_STEPS,
	APPLY_EFFECTIVE,
	APPLY_BYTES,
	APPLY_ROWS,
	APPLY_MOVED,
	APPLY_SECONDS,
	APPLY_NOTICE
};

static void read_applied(const struct answer *a, struct ctl_apply_ok *out)
{
	memset(out, 0, sizeof(*out));
	out->parameters = (uint64)answer_int(a, 0, APPLY_PARAMETERS);
	out->h = (uint32)answer_int(a, 0, APPLY_HEIGHT);
	out->w = (uint32)answer_int(a, 0, APPLY_WIDTH);
	out->c = (uint32)answer_int(a, 0, APPLY_CHANNELS);
	out->outputs = (uint32)answer_int(a, 0, APPLY_OUTPUTS);
	out->batch_size = (uint32)answer_int(a, 0, APPLY_BATCH);
	out->steps = (uint64)answer_int(a, 0, APPLY_STEPS);
	out->effective_batch = answer_double(a, 0, APPLY_EFFECTIVE);
}

/* What every host says for itself. */
static void add_applied(struct driver *d, const struct answer *a, int row, struct ctl_apply_ok *out)
{
	double seconds = answer_double(a, row, APPLY_SECONDS);
	char *notice = answer_text(a, row, APPLY_NOTICE);

	out->bytes += (uint64)answer_int(a, row, APPLY_BYTES);
	out->rows += (uint64)answer_int(a, row, APPLY_ROWS);
	out->rows_moved += (uint64)answer_int(a, row, APPLY_MOVED);
	out->seconds_exchange = fmax(out->seconds_exchange, seconds);
	/* what all hosts say is said once */
	if (notice && (!row || !answer_text(a, 0, APPLY_NOTICE) ||
		       strcmp(notice, answer_text(a, 0, APPLY_NOTICE))))
		daemon_notice_lines(notice);
	(void)d;
}

static void tell_exchange(const struct driver *d, const struct ctl_apply_ok *out)
{
	char *ratio = isfinite(d->skew_ratio)
			      ? psprintf("the largest host had %.1f times the rows of the smallest",
					 d->skew_ratio)
			      : pstrdup("a host had no rows");

	ereport(NOTICE,
		(errmsg(UINT64_FORMAT " of " UINT64_FORMAT " rows moved to another host in %.1f s",
			out->rows_moved, out->rows, out->seconds_exchange),
		 errdetail("A host's labels were up to %.2f from those of all, %s.",
			   d->skew_distance, ratio)));
}

void driver_apply(struct driver *driver, Datum blob, enum reshuffle wanted,
		  struct ctl_apply_ok *out)
{
	bool exchange = wants_reshuffle(driver, wanted);
	struct args args;
	struct answer a;
	int i;

	warn_of_skew(driver, exchange);
	driver_args(driver, &args);
	args_add(&args, BYTEAOID, blob, false);
	args_add(&args, BOOLOID, BoolGetDatum(exchange), false);
	/* predictions need nobody else */
	args_text(&args, driver->kind == CTL_PREDICTION ? "" : hosts_peers(driver));
	driver_call(driver, "gpu_cnn_apply", &args, &a);
	if (a.n != driver->n_hosts)
		elog(ERROR, "%d hosts, but %d answers to apply", driver->n_hosts, a.n);
	read_applied(&a, out);
	for (i = 0; i < a.n; i++)
		add_applied(driver, &a, i, out);
	answer_free(&a);
	driver->rows_moved = (int64)out->rows_moved;
	driver->seconds_exchange = out->seconds_exchange;
	if (exchange)
		tell_exchange(driver, out);
}
