// SPDX-License-Identifier: MIT
/*
 * sql.c: statements through SPI with formatted text and typed parameters; anything but the
 * expected kind of result is an error. Values of the last result by row and column (from 1).
 */
#include "gpu_cnn.h"

static char *vformat(const char *fmt, va_list ap) __attribute__((format(printf, 1, 0)));

static char *vformat(const char *fmt, va_list ap)
{
	StringInfoData s;

	initStringInfo(&s);
	for (;;) {
		va_list copy;
		int need;

		va_copy(copy, ap);
		need = appendStringInfoVA(&s, fmt, copy);
		va_end(copy);
		if (!need)
			return s.data;
		enlargeStringInfo(&s, need);
	}
}

static void check(int rc, int expected, const char *text)
{
	if (rc == expected || (expected == SPI_OK_INSERT && rc == SPI_OK_UPDATE))
		return;
	elog(ERROR, "unexpected result %s of \"%s\"", SPI_result_code_string(rc), text);
}

void sql(int expected, const char *fmt, ...)
{
	char *text;
	va_list ap;

	va_start(ap, fmt);
	text = vformat(fmt, ap);
	va_end(ap);
	check(SPI_execute(text, false, 0), expected, text);
}

void args_add(struct args *args, Oid type, Datum value, bool null)
{
	if (args->n >= (int)lengthof(args->type))
		elog(ERROR, "too many parameters of a statement");
	args->type[args->n] = type;
	args->value[args->n] = value;
	args->null[args->n++] = null ? 'n' : ' ';
}

void args_text(struct args *args, const char *s)
{
	args_add(args, TEXTOID, s ? CStringGetTextDatum(s) : (Datum)0, !s);
}

void sql_args(int expected, struct args *args, const char *fmt, ...)
{
	char *text;
	va_list ap;

	va_start(ap, fmt);
	text = vformat(fmt, ap);
	va_end(ap);
	check(SPI_execute_with_args(text, args->n, args->type, args->value, args->null, false, 0),
	      expected, text);
}

Datum sql_get(uint64 row, int column, bool *null)
{
	if (row >= SPI_processed)
		elog(ERROR, "a statement returned no row");
	return SPI_getbinval(SPI_tuptable->vals[row], SPI_tuptable->tupdesc, column, null);
}

static Datum present(uint64 row, int column)
{
	bool null;
	Datum d = sql_get(row, column, &null);

	if (null)
		elog(ERROR, "column %d of a statement's result is NULL", column);
	return d;
}

int64 sql_int(uint64 row, int column)
{
	Datum d = present(row, column);

	switch (SPI_gettypeid(SPI_tuptable->tupdesc, column)) {
	case INT2OID:
		return DatumGetInt16(d);
	case INT4OID:
		return DatumGetInt32(d);
	case BOOLOID:
		return DatumGetBool(d) ? 1 : 0;
	case INT8OID:
		return DatumGetInt64(d);
	default:
		elog(ERROR, "column %d of a statement's result is no integer", column);
		return 0;
	}
}

static void check_type(int column, Oid wanted)
{
	if (SPI_gettypeid(SPI_tuptable->tupdesc, column) != wanted)
		elog(ERROR, "column %d of a statement's result has an unexpected type", column);
}

double sql_double(uint64 row, int column)
{
	check_type(column, FLOAT8OID);
	return DatumGetFloat8(present(row, column));
}

char *sql_text(uint64 row, int column)
{
	if (row >= SPI_processed)
		elog(ERROR, "a statement returned no row");
	return SPI_getvalue(SPI_tuptable->vals[row], SPI_tuptable->tupdesc, column);
}

Datum sql_bytes_or_null(uint64 row, int column)
{
	bool null;
	Datum d = sql_get(row, column, &null);

	check_type(column, BYTEAOID);
	return null ? (Datum)0 : PointerGetDatum(PG_DETOAST_DATUM_COPY(d));
}

Datum sql_bytes(uint64 row, int column)
{
	present(row, column);
	return sql_bytes_or_null(row, column);
}
