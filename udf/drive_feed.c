// SPDX-License-Identifier: MIT
/*
 * drive_feed.c: the feed of a source's rows, as the coordinator starts it: one aggregate here (on
 * Greenplum in two phases on all segments) and the same on every node, all at once.
 */
#include "nodes.h"

static char *column_expression(const struct source *source, int attnum)
{
	return attnum ? psprintf("t.%s", quote_identifier(source_name(source, attnum))) : "NULL";
}

static void add_counts(ArrayType *array, struct fed *fed)
{
	int64 *v = (int64 *)ARR_DATA_PTR(array);

	if (ArrayGetNItems(ARR_NDIM(array), ARR_DIMS(array)) != 5 || ARR_HASNULL(array))
		elog(ERROR, "malformed counts of a feed");
	fed->rows += v[0];
	fed->held += v[1];
	fed->bad += v[2];
	fed->bytes += v[3];
	fed->feeders += (int)v[4];
	if (v[0] != v[1] + v[2])
		ereport(ERROR, (errcode(ERRCODE_PROTOCOL_VIOLATION),
				errmsg(INT64_FORMAT " rows were fed, but cnnd holds " INT64_FORMAT
						    " and left out " INT64_FORMAT,
				       v[0], v[1], v[2])));
}

/*
 * The aggregate takes arguments of any type, so that a function of the same name and with the exact
 * types, made by whoever may create in the extension's schema, would be called instead of it, with
 * the job's secret.
 */
static void check_feed(struct driver *driver, SPIPlanPtr plan)
{
	Oid types[6] = {TEXTOID, INT4OID, ANYOID, ANYOID, ANYOID, ANYOID};
	List *name = list_make2(makeString(driver->schema_name), makeString("gpu_cnn_feed"));
	CachedPlanSource *source = (CachedPlanSource *)linitial(SPI_plan_get_plan_sources(plan));
	Query *query = (Query *)linitial(source->query_list);
	TargetEntry *entry = (TargetEntry *)linitial(query->targetList);

	if (!IsA(entry->expr, Aggref) ||
	    ((Aggref *)entry->expr)->aggfnoid != LookupFuncName(name, 6, types, false))
		ereport(ERROR,
			(errcode(ERRCODE_AMBIGUOUS_FUNCTION),
			 errmsg("schema %s holds another function gpu_cnn_feed, which would be "
				"called instead",
				driver->schema),
			 errhint("Drop it, and let nobody create functions in that schema.")));
}

/* node: whose rows these are, where there are several; a row's place says little without it. */
static char *feed_text(const struct source *source, const struct columns *columns,
		       const char *schema, const char *from, const char *row_id, const char *node)
{
	const char *id = columns->id	  ? column_expression(source, columns->id)
			 : row_id && node ? psprintf("%s || ' ' || %s::pg_catalog.text",
						     quote_literal_cstr(node), row_id)
			 : row_id	  ? row_id
					  : "NULL";

	return psprintf("SELECT %s.gpu_cnn_feed($1, $2, %s, %s, %s, %s) FROM %s AS t", schema, id,
			column_expression(source, columns->x),
			column_expression(source, columns->y),
			column_expression(source, columns->weight), from);
}

static void feed_here(struct driver *driver, enum row_set set, const char *text, struct fed *fed)
{
	Oid types[2] = {TEXTOID, INT4OID};
	Datum values[2];
	int nest, rc;
	bool null;
	SPIPlanPtr plan;

	values[0] = driver->token;
	values[1] = Int32GetDatum((int32)set);
	driver_caller_path(driver, &nest);
	compat_favour_parallel();
	compat_watch_client(nest);
	plan = SPI_prepare_cursor(text, 2, types, CURSOR_OPT_PARALLEL_OK);
	if (!plan)
		elog(ERROR, "cannot prepare \"%s\": %s", text, SPI_result_code_string(SPI_result));
	check_feed(driver, plan);
	rc = SPI_execute_snapshot(plan, values, NULL, driver->snapshot, InvalidSnapshot, true,
				  false, 0);
	if (rc != SPI_OK_SELECT)
		elog(ERROR, "unexpected result %s of the feed", SPI_result_code_string(rc));
	add_counts(DatumGetArrayTypeP(sql_get(0, 1, &null)), fed);
	SPI_freetuptable(SPI_tuptable);
	SPI_freeplan(plan);
	AtEOXact_GUC(true, nest);
}

/* ---- nodes ---- */

static void start_nodes(struct driver *driver, enum row_set set, const struct source *source,
			const struct columns *columns)
{
	struct nodes *g = driver->nodes;
	struct args args = {0};
	int i;

	args_add(&args, TEXTOID, driver->token, false);
	args_add(&args, INT4OID, Int32GetDatum((int32)set), false);
	nodes_path(g, driver->caller_path);
	for (i = 0; i < g->n; i++)
		node_send(g, i,
			  feed_text(source, columns, g->node[i].schema, source->there[i].from,
				    source->there[i].row_id, g->node[i].name),
			  &args);
	nodes_flush(g, "feed");
}

static TupleDesc counts_desc(void)
{
	TupleDesc desc = compat_tuple_desc(1);

	TupleDescInitEntry(desc, 1, "counts", INT8ARRAYOID, -1, 0);
	return desc;
}

static void finish_nodes(struct driver *driver, struct fed *fed)
{
	struct nodes *g = driver->nodes;
	TupleDesc desc = counts_desc();
	int i;

	nodes_await(g, "feed", driver->watch);
	for (i = 0; i < g->n; i++) {
		const struct node *n = &g->node[i];
		Datum value;
		bool null;

		if (!n->result)
			continue;
		node_check(n, n->result, desc);
		if (PQntuples(n->result) != 1)
			elog(ERROR, "node \"%s\" gave no counts of a feed", n->name);
		node_decode(n, n->result, 0, desc, &value, &null);
		if (null)
			elog(ERROR, "node \"%s\" gave no counts of a feed", n->name);
		add_counts(DatumGetArrayTypeP(value), fed);
	}
	nodes_done(g);
	nodes_path(g, NULL);
}

void driver_feed(struct driver *driver, enum row_set set, const struct source *source,
		 const struct columns *columns, struct fed *fed)
{
	memset(fed, 0, sizeof(*fed));
	if (driver->nodes)
		start_nodes(driver, set, source, columns);
	if (!driver->nodes || driver->nodes->here >= 0)
		feed_here(driver, set,
			  feed_text(source, columns, driver->schema, source->from, source->row_id,
				    driver->nodes ? "this server" : NULL),
			  fed);
	if (driver->nodes)
		finish_nodes(driver, fed);
}
