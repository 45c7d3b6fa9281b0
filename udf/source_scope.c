// SPDX-License-Identifier: MIT
/*
 * source_scope.c: sources that mean more than one segment's rows. On several servers a query runs
 * on each of them by itself, so that LIMIT, window functions and joins are of each server: said
 * once. On Greenplum the feed must run on the segments where the rows are; where the plan would run
 * it elsewhere (LIMIT, window functions, a replicated table, one value list), the source is made a
 * temporary table that is spread over the segments.
 */
#include "gpu_cnn.h"

/* ---- several servers ---- */

struct scope {
	bool limit, window, join, aggregate;
};

static bool look(Node *node, void *arg)
{
	struct scope *s = arg;

	if (!node)
		return false;
	if (IsA(node, SelectStmt)) {
		SelectStmt *select = (SelectStmt *)node;

		s->limit = s->limit || select->limitCount || select->limitOffset;
		s->join = s->join || list_length(select->fromClause) > 1;
		s->aggregate = s->aggregate || select->groupClause || select->distinctClause ||
			       select->op != SETOP_NONE;
	} else if (IsA(node, JoinExpr)) {
		s->join = true;
	} else if (IsA(node, FuncCall)) {
		s->window = s->window || ((FuncCall *)node)->over;
	}
	return raw_expression_tree_walker(node, look, arg);
}

static bool is_query(const struct source *s)
{
	char *nsp, *name;

	return !OidIsValid(s->relid) && !name_parse(s->text, &nsp, &name);
}

static void tell_scope(const struct source *s)
{
	struct scope scope = {0};
	ListCell *cell;
	int start, end;

	foreach (cell, pg_parse_query(s->text))
		look(compat_statement((Node *)lfirst(cell), &start, &end), &scope);
	if (!scope.limit && !scope.window && !scope.join && !scope.aggregate)
		return;
	ereport(NOTICE,
		(errmsg("%s runs on each node by itself:%s%s%s%s%s%s%s see the rows of "
			"one node",
			s->what, scope.limit ? " LIMIT" : "",
			scope.limit && (scope.window || scope.join || scope.aggregate) ? "," : "",
			scope.window ? " window functions" : "",
			scope.window && (scope.join || scope.aggregate) ? "," : "",
			scope.join ? " joins" : "", scope.join && scope.aggregate ? "," : "",
			scope.aggregate ? " groups and set operations" : "")));
}

/* ---- Greenplum ---- */

/*
 * Two phases on all segments: an aggregate, then a motion that gathers from all of them, then an
 * aggregate. By the words of EXPLAIN, which are alike in all versions.
 */
static bool runs_on_segments(struct driver *driver, const struct source *s)
{
	char *motion = psprintf("Motion %d:1", COMPAT_SEGMENTS), *line[3] = {"", "", ""};
	bool good;
	int nest, i;

	driver_caller_path(driver, &nest);
	sql(SPI_OK_UTILITY,
	    "EXPLAIN (COSTS off) SELECT %s.gpu_cnn_feed(NULL::pg_catalog.text, 0, NULL, t, NULL, "
	    "NULL) FROM %s AS t",
	    driver->schema, s->from);
	for (i = 0; i < 3 && (uint64)i < SPI_processed; i++)
		line[i] = sql_text((uint64)i, 1);
	good = strstr(line[0], "Aggregate") && strstr(line[1], motion) &&
	       strstr(line[2], "Aggregate");
	SPI_freetuptable(SPI_tuptable);
	AtEOXact_GUC(true, nest);
	return good;
}

static void spread(struct driver *driver, struct source *s)
{
	char *name = psprintf("gpu_cnn_%s_%s", s->what, job_hex(driver->job.id, 4));
	int nest;

	ereport(NOTICE,
		(errmsg("%s is copied into a temporary table first", s->what),
		 errdetail("Its rows do not come from all segments: it has a LIMIT, a window "
			   "function, values or a table that every segment has.")));
	driver_caller_path(driver, &nest);
	sql(SPI_OK_UTILITY, "CREATE TEMP TABLE %s ON COMMIT DROP AS SELECT * FROM %s AS t%s", name,
	    s->from, COMPAT_RANDOMLY);
	AtEOXact_GUC(true, nest);
	s->from = psprintf("pg_temp.%s", name);
	s->row_id = NULL; /* the places of the copy tell nobody anything */
}

void source_check_scope(struct driver *driver, struct source *s)
{
	if (driver->nodes && is_query(s))
		tell_scope(s);
	if (COMPAT_GREENPLUM && !runs_on_segments(driver, s))
		spread(driver, s);
}
