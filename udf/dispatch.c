// SPDX-License-Identifier: MIT
/*
 * dispatch.c: one call of a job on all segments, whatever they are: this server's own and, on
 * Greenplum, all of its segments (by SPI), and nodes (by libpq). All are asked at once, since
 * in some calls their daemons wait for one another; the rows of all come back as one table.
 */
#include "nodes.h"

/* ---- the table of rows ---- */

static void answer_open(struct answer *a, TupleDesc desc)
{
	MemoryContext old;

	if (!a->context)
		a->context = compat_context(CurrentMemoryContext, "gpu_cnn answer");
	old = MemoryContextSwitchTo(a->context);
	if (!a->desc)
		a->desc = CreateTupleDescCopy(desc);
	MemoryContextSwitchTo(old);
}

static void answer_room(struct answer *a, uint64 more)
{
	if (a->n + more > PG_INT32_MAX / sizeof(HeapTuple))
		elog(ERROR, "too many rows of a call");
	if (!a->row)
		a->row = MemoryContextAlloc(a->context, sizeof(HeapTuple) * (size_t)(more + 1));
	else
		a->row = repalloc(a->row, sizeof(HeapTuple) * (size_t)(a->n + more + 1));
}

static void answer_sort(struct answer *a)
{
	int i, k;

	for (i = 1; i < a->n; i++)
		for (k = i; k && answer_int(a, k, 1) < answer_int(a, k - 1, 1); k--) {
			HeapTuple t = a->row[k];

			a->row[k] = a->row[k - 1];
			a->row[k - 1] = t;
		}
}

static void answer_add_spi(struct answer *a)
{
	MemoryContext old;
	uint64 i;

	answer_open(a, SPI_tuptable->tupdesc);
	answer_room(a, SPI_processed);
	old = MemoryContextSwitchTo(a->context);
	for (i = 0; i < SPI_processed; i++)
		a->row[a->n++] = heap_copytuple(SPI_tuptable->vals[i]);
	MemoryContextSwitchTo(old);
	SPI_freetuptable(SPI_tuptable);
}

/* The first column of every call's rows is the segment that they come from. */
static void answer_add_node(struct answer *a, const struct node *n, int segindex)
{
	int rows = PQntuples(n->result), i;
	Datum *value = palloc(sizeof(Datum) * (size_t)(a->desc->natts + 1));
	bool *null = palloc(sizeof(bool) * (size_t)(a->desc->natts + 1));
	MemoryContext old;

	node_check(n, n->result, a->desc);
	answer_room(a, (uint64)rows);
	old = MemoryContextSwitchTo(a->context);
	for (i = 0; i < rows; i++) {
		node_decode(n, n->result, i, a->desc, value, null);
		if (null[0] || DatumGetInt32(value[0]) != segindex)
			elog(ERROR, "node \"%s\" answered for another segment", n->name);
		a->row[a->n++] = heap_form_tuple(a->desc, value, null);
	}
	MemoryContextSwitchTo(old);
}

void answer_free(struct answer *a)
{
	if (a->context)
		MemoryContextDelete(a->context);
	memset(a, 0, sizeof(*a));
}

Datum answer_get(const struct answer *a, int row, int column, bool *null)
{
	if (row >= a->n)
		elog(ERROR, "no segment answered");
	return heap_getattr(a->row[row], column, a->desc, null);
}

static Datum present(const struct answer *a, int row, int column, Oid type)
{
	bool null;
	Datum d = answer_get(a, row, column, &null);

	if (TupleDescAttr(a->desc, column - 1)->atttypid != type)
		elog(ERROR, "column %d of an answer has an unexpected type", column);
	if (null)
		elog(ERROR, "column %d of an answer is NULL", column);
	return d;
}

int64 answer_int(const struct answer *a, int row, int column)
{
	switch (TupleDescAttr(a->desc, column - 1)->atttypid) {
	case BOOLOID:
		return DatumGetBool(present(a, row, column, BOOLOID)) ? 1 : 0;
	case INT4OID:
		return DatumGetInt32(present(a, row, column, INT4OID));
	default:
		return DatumGetInt64(present(a, row, column, INT8OID));
	}
}

double answer_double(const struct answer *a, int row, int column)
{
	return DatumGetFloat8(present(a, row, column, FLOAT8OID));
}

char *answer_text(const struct answer *a, int row, int column)
{
	bool null;

	answer_get(a, row, column, &null);
	return null ? NULL : TextDatumGetCString(present(a, row, column, TEXTOID));
}

bytea *answer_bytes(const struct answer *a, int row, int column)
{
	return DatumGetByteaPCopy(present(a, row, column, BYTEAOID));
}

ArrayType *answer_array(const struct answer *a, int row, int column, Oid type)
{
	return DatumGetArrayTypePCopy(present(a, row, column, type));
}

/* ---- calls ---- */

static Oid function_of(const struct driver *d, const char *function, const struct args *args)
{
	List *name = list_make2(makeString(d->schema_name), makeString(pstrdup(function)));

	return LookupFuncName(name, args->n, args->type, false);
}

/* What rows of a function look like, on all servers. */
static TupleDesc row_type(Oid function)
{
	HeapTuple tuple = SearchSysCache1(PROCOID, ObjectIdGetDatum(function));
	TupleDesc desc;

	if (!HeapTupleIsValid(tuple))
		elog(ERROR, "cache lookup failed for function %u", function);
	desc = build_function_result_tupdesc_t(tuple);
	ReleaseSysCache(tuple);
	if (!desc)
		elog(ERROR, "function %u returns no rows", function);
	return desc;
}

static char *call_text(const char *schema, const char *function, int n)
{
	StringInfoData s;
	int i;

	initStringInfo(&s);
	appendStringInfo(&s, "SELECT * FROM %s.%s(", schema, function);
	for (i = 1; i <= n; i++)
		appendStringInfo(&s, "%s$%d", i > 1 ? ", " : "", i);
	appendStringInfoChar(&s, ')');
	return s.data;
}

static void call_here(struct driver *d, const char *function, const struct args *args,
		      struct answer *out)
{
	sql_args(SPI_OK_SELECT, (struct args *)args, "%s", call_text(d->schema, function, args->n));
	answer_add_spi(out);
	answer_sort(out);
}

/* only: the segment to ask; -1: all. */
static void call(struct driver *d, const char *function, const struct args *args, int only,
		 bool may_lose, struct answer *out)
{
	struct nodes *g = d->nodes;
	int i;

	memset(out, 0, sizeof(*out));
	if (!g) {
		call_here(d, function, args, out);
		return;
	}
	answer_open(out, row_type(function_of(d, function, args)));
	g->may_lose = may_lose;
	for (i = 0; i < g->n; i++)
		if (only < 0 || only == i)
			node_send(g, i, call_text(g->node[i].schema, function, args->n), args);
	nodes_flush(g, function);
	if (g->here >= 0 && (only < 0 || only == g->here))
		call_here(d, function, args, out);
	nodes_await(g, function, d->watch);
	for (i = 0; i < g->n; i++)
		if (g->node[i].result)
			answer_add_node(out, &g->node[i], i);
	answer_sort(out);
	nodes_done(g);
}

void driver_call(struct driver *d, const char *function, const struct args *args,
		 struct answer *out)
{
	call(d, function, args, -1, false, out);
}

void driver_call_one(struct driver *d, int segindex, const char *function, const struct args *args,
		     struct answer *out)
{
	call(d, function, args, segindex, false, out);
}

void driver_call_losing(struct driver *d, const char *function, const struct args *args,
			struct answer *out)
{
	call(d, function, args, -1, true, out);
}

/* ---- streams ---- */

void rows_ask_nodes(FunctionCallInfo fcinfo, const struct job *job, const char *function)
{
	struct nodes *g = nodes_find(job);
	struct args args = {0};
	int i;

	if (!g)
		return;
	for (i = 0; i < PG_NARGS(); i++)
		args_add(&args, get_fn_expr_argtype(fcinfo->flinfo, i), PG_GETARG_DATUM(i), false);
	g->streams = true;
	for (i = 0; i < g->n; i++)
		if (!g->node[i].here)
			node_send(g, i, call_text(g->node[i].schema, function, args.n), &args);
	nodes_flush(g, function);
}

void rows_take_nodes(struct rows *rows, const struct job *job, const char *function)
{
	struct nodes *g = nodes_find(job);
	Datum *value = palloc(sizeof(Datum) * (size_t)rows->desc->natts);
	bool *null = palloc(sizeof(bool) * (size_t)rows->desc->natts);
	MemoryContext context, old;
	PGresult *r;
	int i;

	if (!g)
		return;
	context = compat_context(CurrentMemoryContext, "gpu_cnn row of a node");
	old = MemoryContextSwitchTo(context);
	while (nodes_next(g, function, &i, &r)) {
		/* owned by the node while something may be raised */
		PQclear(g->node[i].row);
		g->node[i].row = r;
		node_check(&g->node[i], r, rows->desc);
		node_decode(&g->node[i], r, 0, rows->desc, value, null);
		rows_add(rows, value, null);
		MemoryContextReset(context);
	}
	MemoryContextSwitchTo(old);
	MemoryContextDelete(context);
	nodes_done(g);
}
