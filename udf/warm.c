// SPDX-License-Identifier: MIT
/*
 * warm.c: warm_start: weights of another model of the caller's as the start, with the scale that
 * their inputs had.
 */
#include "training.h"

#include <math.h>

char *parameter_text(const char *json, const char *key)
{
	struct args args = {0};

	args_text(&args, json);
	args_text(&args, key);
	sql_args(SPI_OK_SELECT, &args, "SELECT $1::pg_catalog.json ->> $2");
	return sql_text(0, 1);
}

void warm_start_find(struct training *t)
{
	char *name = arguments_text(&t->args, "warm_start");

	if (!name)
		return;
	model_find(&t->driver, name, &t->warm_model);
	model_read(&t->warm_model, &t->warm);
	t->has_warm = true;
}

/* ---- normalization ---- */

static bool near(double a, double b)
{
	return fabs(a - b) <= .01 * fmax(fabs(b), 1e-6);
}

/* A mean of other rows differs a little. */
static bool same_scale(const struct agree_block *b, const struct model_summary *s)
{
	uint32 i;

	for (i = 0; i < b->n_channels; i++)
		if (!near(b->mul[i], s->mul[i]) ||
		    fabs(b->add[i] - s->add[i]) > .01 + .01 * fabs(s->add[i]))
			return false;
	return true;
}

static void take_scale(struct agree_block *b, const struct model_summary *s)
{
	b->normalize = s->normalize;
	b->normalizing_const = s->normalizing_const;
	memcpy(b->mul, s->mul, sizeof(double) * b->n_channels);
	memcpy(b->add, s->add, sizeof(double) * b->n_channels);
}

void warm_start_agree(struct training *t)
{
	char *wanted = arguments_text(&t->args, "normalization");
	double ignored;

	/* with another number of channels the weights do not fit, which cnnd says */
	if (!t->has_warm || t->agreed->n_channels != t->warm.n_channels)
		return;
	if ((!wanted || !pg_strcasecmp(wanted, "auto")) &&
	    !arguments_number(&t->args, "normalizing_const", &ignored)) {
		take_scale(t->agreed, &t->warm);
		t->agreed_blob = agreed_bytes(t->agreed);
	} else if (!same_scale(t->agreed, &t->warm)) {
		ereport(WARNING,
			(errmsg("model \"%s\" was trained on values that were normalized otherwise",
				t->warm_model.name),
			 errhint("With normalization := 'auto' its scale and offset are taken "
				 "over.")));
	}
}

/* ---- classes ---- */

/* Outputs mean classes by their order. */
static void compare_classes(const struct training *t)
{
	Datum ours = model_classes(t->agreed), *a, *b;
	int n, m, i;

	if (!t->warm.n_classes || !ours)
		return;
	deconstruct_array(DatumGetArrayTypeP(t->warm.classes), TEXTOID, -1, false, 'i', &a, NULL,
			  &n);
	deconstruct_array(DatumGetArrayTypeP(ours), TEXTOID, -1, false, 'i', &b, NULL, &m);
	if (n != m) {
		ereport(WARNING, (errmsg("model \"%s\" knows %d classes, the rows have %d",
					 t->warm_model.name, n, m)));
		return;
	}
	for (i = 0; i < n; i++) {
		char *x = TextDatumGetCString(a[i]), *y = TextDatumGetCString(b[i]);

		if (!strcmp(x, y))
			continue;
		ereport(WARNING, (errmsg("model \"%s\" knows other classes than the rows have: its "
					 "class number %d is \"%s\", theirs \"%s\"",
					 t->warm_model.name, i + 1, x, y)));
		return;
	}
}

/* ---- weights ---- */

void warm_start_put(struct training *t)
{
	char *theirs, *ours;

	if (!t->has_warm) {
		if (t->start_weights)
			driver_put_bytes(&t->driver, CTL_WEIGHTS,
					 DatumGetByteaPP(t->start_weights));
		return;
	}
	if (!model_send(&t->driver, &t->warm_model, "weights", CTL_WEIGHTS))
		ereport(ERROR, (errcode(ERRCODE_DATA_CORRUPTED),
				errmsg("model \"%s\" holds no weights", t->warm_model.name)));
	theirs = t->warm.parameters ? parameter_text(t->warm.parameters, "optimizer") : NULL;
	ours = parameter_text(t->spec, "optimizer");
	if (theirs && ours && !strcmp(theirs, ours))
		model_send(&t->driver, &t->warm_model, "optimizer", CTL_OPTIMIZER);
	compare_classes(t);
}
