// SPDX-License-Identifier: MIT
/* iteration.c: one run call on all segments, its row, and the row's metrics as JSON. */
#include "gpu_cnn.h"

#include <math.h>

/* Columns of gpu_cnn_run's rows, from 1. */
enum {
	C_STATE = 2,
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
	C_NAMES,
	C_METRIC,
	C_METRIC_VALIDATION,
	C_NOTE
};

static void read_metrics(struct ctl_run_row *r)
{
	bool null;
	ArrayType *names = DatumGetArrayTypeP(sql_get(0, C_NAMES, &null));
	ArrayType *train = DatumGetArrayTypeP(sql_get(0, C_METRIC, &null));
	ArrayType *validation = DatumGetArrayTypeP(sql_get(0, C_METRIC_VALIDATION, &null));
	Datum *v;
	bool *nulls;
	int n, i;

	deconstruct_array(names, TEXTOID, -1, false, 'i', &v, &nulls, &n);
	r->metrics = (uint32)Min(n, CTL_METRICS);
	for (i = 0; i < (int)r->metrics; i++) {
		snprintf(r->metric[i].name, sizeof(r->metric[i].name), "%s",
			 TextDatumGetCString(v[i]));
		r->metric[i].train = ((double *)ARR_DATA_PTR(train))[i];
		r->metric[i].validation = ((double *)ARR_DATA_PTR(validation))[i];
	}
}

void driver_run(struct driver *driver, uint32 first, uint32 count, double lr_factor, uint32 flags,
		struct ctl_run_row *r)
{
	struct args args = {0};

	args_add(&args, TEXTOID, driver->token, false);
	args_add(&args, INT4ARRAYOID, PointerGetDatum(driver->speakers), false);
	args_add(&args, INT4OID, Int32GetDatum((int32)first), false);
	args_add(&args, INT4OID, Int32GetDatum((int32)count), false);
	args_add(&args, FLOAT8OID, Float8GetDatum(lr_factor), false);
	args_add(&args, INT4OID, Int32GetDatum((int32)flags), false);
	sql_args(SPI_OK_SELECT, &args,
		 "SELECT * FROM %s.gpu_cnn_run($1, $2, $3, $4, $5, $6) ORDER BY segindex",
		 driver->schema);
	if (strcmp(sql_text(0, C_STATE), "done"))
		ereport(ERROR,
			(errcode(ERRCODE_CONNECTION_FAILURE), errmsg("%s", sql_text(0, C_NOTE)),
			 errhint("cnnd may have been stopped or killed; its log says why. The "
				 "database is not affected.")));
	memset(r, 0, sizeof(*r));
	r->epoch = (uint32)sql_int(0, C_EPOCH);
	r->flags = (uint32)sql_int(0, C_FLAGS);
	r->steps = (uint64)sql_int(0, C_STEPS);
	r->rows = (uint64)sql_int(0, C_ROWS);
	r->loss = sql_double(0, C_LOSS);
	r->validation_loss = sql_double(0, C_VALIDATION);
	r->lr = sql_double(0, C_LR);
	r->lr_factor = sql_double(0, C_LR_FACTOR);
	r->seconds_train = sql_double(0, C_TRAIN);
	r->seconds_merge = sql_double(0, C_MERGE);
	r->seconds_evaluate = sql_double(0, C_EVALUATE);
	r->note = str_of(sql_text(0, C_NOTE));
	read_metrics(r);
	SPI_freetuptable(SPI_tuptable);
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
