// SPDX-License-Identifier: MIT
/*
 * import.c: gpu_cnn_import_weights: a model from Keras architecture JSON and a weight blob that
 * were made elsewhere. The class map and the normalisation, which a training agrees on, are given
 * as arguments.
 */
#include "gpu_cnn.h"

#include <math.h>

struct import {
	struct driver driver;
	struct arguments args;
	struct model model;
	char *architecture, *json;
	bytea *weights;
	Datum classes; /* text[] or 0 */
	Datum *class_value;
	int n_classes;
	struct ctl_describe_ok net; /* without its strings */
};

static void read_classes(struct import *in, FunctionCallInfo fcinfo, int i)
{
	bool *nulls;
	int k;

	if (PG_ARGISNULL(i))
		return;
	deconstruct_array(PG_GETARG_ARRAYTYPE_P(i), TEXTOID, -1, false, 'i', &in->class_value,
			  &nulls, &in->n_classes);
	for (k = 0; k < in->n_classes; k++)
		if (nulls[k])
			ereport(ERROR, (errcode(ERRCODE_NULL_VALUE_NOT_ALLOWED),
					errmsg("classes holds a NULL")));
	if (in->n_classes)
		in->classes = PG_GETARG_DATUM(i);
}

static void describe(struct import *in)
{
	struct ctl_describe none = {0};
	struct daemon *d;
	struct ctl_msg m;
	Datum ignored;

	in->architecture = architecture_find(&in->driver,
					     arguments_wanted(&in->args, "architecture"), &ignored);
	architecture_describe(in->architecture, &none, &d, &m);
	in->net = m.u.describe_ok;
	in->json = cstring_of(m.u.describe_ok.json);
	if (!in->net.h || !in->net.w || !in->net.c || !in->net.outputs)
		ereport(ERROR, (errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				errmsg("the architecture does not say its input's shape or its "
				       "number of outputs"),
				errhint("Give Keras JSON with an input shape.")));
	architecture_check_weights(&m.u.describe_ok, in->weights);
	daemon_close(d);
	if (in->n_classes && in->n_classes != (int)in->net.outputs &&
	    !(in->n_classes == 2 && in->net.outputs == 1))
		ereport(ERROR, (errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				errmsg("%d classes, but the architecture has %u outputs",
				       in->n_classes, in->net.outputs)));
}

static bool rising_texts(const struct import *in)
{
	int i;

	for (i = 1; i < in->n_classes; i++) {
		text *a = DatumGetTextPP(in->class_value[i - 1]);
		text *b = DatumGetTextPP(in->class_value[i]);
		int n = (int)Min(VARSIZE_ANY_EXHDR(a), VARSIZE_ANY_EXHDR(b));
		int c = memcmp(VARDATA_ANY(a), VARDATA_ANY(b), (size_t)n);

		if (c > 0 || (!c && VARSIZE_ANY_EXHDR(a) >= VARSIZE_ANY_EXHDR(b)))
			return false;
	}
	return true;
}

/* The class map: texts where they are in the order that a training would give them, so that the
 * model can be evaluated on labels of text; else their numbers, 0 ... */
static void label_map(struct import *in, struct agree_block *b)
{
	bool texts = in->n_classes && rising_texts(in);
	uint32 n = in->n_classes ? (uint32)in->n_classes : in->net.outputs, i;
	int64 *number = palloc0(sizeof(int64) * (n + 1));

	b->labels = texts ? AGREE_TEXT : AGREE_INT;
	b->n_labels = n;
	b->outputs = n;
	b->label = palloc0(sizeof(*b->label) * (n + 1));
	for (i = 0; i < n; i++) {
		struct agree_label *l = &b->label[i];
		text *t = texts ? DatumGetTextPP(in->class_value[i]) : NULL;

		number[i] = i;
		l->bytes = t ? (uint32)VARSIZE_ANY_EXHDR(t) : sizeof(int64);
		l->value = t ? (const uint8 *)VARDATA_ANY(t) : (const uint8 *)&number[i];
		l->weight = 1;
	}
}

static Datum agreed_blob(struct import *in, bool classes)
{
	struct agree_block b;
	double k = 255;
	uint32 i;

	memset(&b, 0, sizeof(b));
	arguments_number(&in->args, "normalizing_const", &k);
	if (!(k > 0) || !isfinite(k))
		ereport(ERROR, (errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				errmsg("normalizing_const is %g, must be positive", k)));
	b.h = in->net.h;
	b.w = in->net.w;
	b.c = in->net.c;
	b.outputs = 1;
	b.labels = AGREE_FLOAT;
	if (classes)
		label_map(in, &b);
	else if (in->net.outputs > 1) {
		b.labels = AGREE_VECTOR;
		b.outputs = in->net.outputs;
	}
	b.normalize = AGREE_SCALE;
	b.normalizing_const = k;
	b.batch_size = 128;
	b.replicas = 1;
	b.steps = 1;
	b.agreed = 1;
	b.n_channels = b.c;
	b.sum = palloc0(sizeof(double) * b.c);
	b.sum2 = palloc0(sizeof(double) * b.c);
	b.mul = palloc0(sizeof(double) * b.c);
	b.add = palloc0(sizeof(double) * b.c);
	for (i = 0; i < b.c; i++)
		b.mul[i] = 1 / k;
	return agreed_bytes(&b);
}

static void store(struct import *in, bool classes, Datum agreed)
{
	struct args args = {0};
	Datum shape[3];
	char *name = arguments_text(&in->args, "dependent");
	int part;
	int64 total = (int64)VARSIZE_ANY_EXHDR(in->weights);

	for (part = 0; part == 0 || (int64)part * CTL_PART_MAX < total; part++) {
		int64 at = (int64)part * CTL_PART_MAX;
		struct args one = {0};

		args_add(&one, INT4OID, Int32GetDatum(part), false);
		args_add(&one, BYTEAOID,
			 PointerGetDatum(bytes_of(VARDATA_ANY(in->weights) + at,
						  (size_t)Min(total - at, (int64)CTL_PART_MAX))),
			 false);
		sql_args(SPI_OK_INSERT, &one,
			 "INSERT INTO %s (kind, part, data) VALUES ('weights', $1, $2)",
			 in->model.weights);
	}
	shape[0] = Int32GetDatum((int32)in->net.h);
	shape[1] = Int32GetDatum((int32)in->net.w);
	shape[2] = Int32GetDatum((int32)in->net.c);
	args_text(&args, in->model.name);
	args_text(&args, name);
	args_text(&args, classes ? "classification" : "regression");
	args_add(&args, TEXTARRAYOID, in->classes, !in->classes);
	args_add(&args, INT4OID, Int32GetDatum((int32)in->net.outputs), false);
	args_add(&args, INT4ARRAYOID,
		 PointerGetDatum(construct_array(shape, 3, INT4OID, sizeof(int32), true, 'i')),
		 false);
	args_text(&args, in->json);
	args_add(&args, INT8OID, Int64GetDatum((int64)(in->net.trainable + in->net.frozen)), false);
	args_add(&args, BYTEAOID, agreed, false);
	sql_args(SPI_OK_INSERT, &args,
		 "INSERT INTO %s (model, dependent, task, classes, outputs, input_shape, "
		 "architecture, "
		 "parameters, weights_count, rows, skipped, epochs, extension_version, "
		 "format_version, agreed) VALUES ($1, $2, $3, $4, $5, $6, $7::json, '{}', $8, 0, "
		 "0, 0, "
		 "'" CNN_VERSION "', %d, $9)",
		 in->model.summary, MODEL_FORMAT);
}

/* gpu_cnn_import_weights(model_table, architecture, weights, classes, normalizing_const, dependent,
 * on_exists) */
SQL_FUNCTION(gpu_cnn_import_weights);
Datum gpu_cnn_import_weights(PG_FUNCTION_ARGS)
{
	struct import in;
	char *on_exists, *name;
	bool classes;

	memset(&in, 0, sizeof(in));
	driver_start(fcinfo, &in.driver);
	arguments_read(fcinfo, &in.args);
	on_exists = arguments_text(&in.args, "on_exists");
	if (PG_ARGISNULL(2))
		ereport(ERROR,
			(errcode(ERRCODE_NULL_VALUE_NOT_ALLOWED), errmsg("weights must be given")));
	in.weights = PG_GETARG_BYTEA_PP(2);
	model_claim(&in.driver, arguments_wanted(&in.args, "model_table"),
		    on_exists ? on_exists : "error", &in.model);
	read_classes(&in, fcinfo, 3);
	describe(&in);
	classes = in.n_classes || in.net.outputs > 1;
	model_create(&in.model);
	store(&in, classes, agreed_blob(&in, classes));
	name = MemoryContextStrdup(in.driver.outer, in.model.weights);
	driver_finish(&in.driver);
	PG_RETURN_TEXT_P(cstring_to_text(name));
}
