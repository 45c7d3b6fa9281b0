// SPDX-License-Identifier: MIT
/*
 * source.c: what the user names as a source of rows: a table or view, or one SELECT, VALUES or
 * TABLE statement; and which of its columns are image, label, id and weight. Everything here runs
 * with the caller's rights and the caller's search_path.
 */
#include "gpu_cnn.h"

bool name_parse(const char *text, char **nsp, char **name)
{
	List *names;
	bool good = SplitIdentifierString(pstrdup(text), '.', &names);

	*nsp = NULL;
	if (!good || names == NIL)
		return false;
	if (list_length(names) > 2)
		ereport(ERROR,
			(errcode(ERRCODE_SYNTAX_ERROR),
			 errmsg("improper qualified name (too many dotted names): %s", text)));
	if (list_length(names) == 2) {
		*nsp = pstrdup(linitial(names));
		*name = pstrdup(lsecond(names));
	} else {
		*name = pstrdup(linitial(names));
	}
	return true;
}

/* ---- one statement ---- */

static void refuse(const struct source *s, const char *why)
{
	ereport(ERROR, (errcode(ERRCODE_INVALID_PARAMETER_VALUE),
			errmsg("%s is neither a table's name nor one query", s->what),
			errdetail("%s", why),
			errhint("Give a table or view, or exactly one SELECT, VALUES or TABLE "
				"statement that does not change data.")));
}

static void check_with(const struct source *s, SelectStmt *select)
{
	ListCell *cell;

	if (!select->withClause)
		return;
	foreach (cell, select->withClause->ctes) {
		CommonTableExpr *cte = (CommonTableExpr *)lfirst(cell);

		if (!IsA(cte->ctequery, SelectStmt))
			refuse(s, "It has a WITH clause that changes data.");
	}
}

/* A syntax error's place is one in the source, not one in the statement that called us. */
static void parse_error(void *arg)
{
	int position = geterrposition();

	if (position <= 0)
		return;
	errposition(0);
	internalerrposition(position);
	internalerrquery(arg);
}

static List *parse(const struct source *s)
{
	ErrorContextCallback callback;
	List *raw;

	callback.callback = parse_error;
	callback.arg = (void *)s->text;
	callback.previous = error_context_stack;
	error_context_stack = &callback;
	raw = pg_parse_query(s->text);
	error_context_stack = callback.previous;
	return raw;
}

/* The text of the one statement, without what follows it. */
static char *check_query(const struct source *s)
{
	List *raw = parse(s);
	SelectStmt *select;
	Node *statement;
	char *query;
	int start, end;
	size_t n;

	if (list_length(raw) != 1)
		refuse(s, raw == NIL ? "It is empty." : "It holds more than one statement.");
	statement = compat_statement((Node *)linitial(raw), &start, &end);
	if (!IsA(statement, SelectStmt))
		refuse(s, "It is no SELECT, VALUES or TABLE statement.");
	select = (SelectStmt *)statement;
	if (select->intoClause)
		refuse(s, "It has an INTO clause.");
	if (select->lockingClause != NIL)
		refuse(s, "It locks rows.");
	check_with(s, select);
	query = pstrdup(s->text + start);
	n = end < 0 ? strlen(query) : (size_t)(end - start);
	/* servers before 10 do not say where the statement ends */
	while (n && (isspace((unsigned char)query[n - 1]) || query[n - 1] == ';'))
		n--;
	query[n] = '\0';
	return query;
}

/* ---- relation ---- */

static const char *row_id_expression(Oid relid, char kind)
{
	bool plain = kind == RELKIND_RELATION || kind == RELKIND_MATVIEW ||
		     kind == RELKIND_PARTITIONED_TABLE;

	/* with rights on single columns only, the system columns cannot be read */
	if (!plain || pg_class_aclcheck(relid, GetUserId(), ACL_SELECT) != ACLCHECK_OK)
		return NULL;
	if (kind == RELKIND_PARTITIONED_TABLE || has_subclass(relid))
		return "ROW(t.tableoid, t.ctid)";
	return "t.ctid";
}

static const char *primary_key(Oid relid)
{
	struct args args = {0};

	args_add(&args, OIDOID, ObjectIdGetDatum(relid), false);
	sql_args(SPI_OK_SELECT, &args,
		 "SELECT a.attname::pg_catalog.text FROM pg_catalog.pg_index i JOIN "
		 "pg_catalog.pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = i.indkey[0] "
		 "WHERE i.indrelid = $1 AND i.indisprimary AND i.indnatts = 1");
	return SPI_processed ? sql_text(0, 1) : NULL;
}

/* false: there is no such relation. */
static bool open_relation(struct source *s)
{
	char *nsp, *name, kind;
	RangeVar *rv;

	if (!name_parse(s->text, &nsp, &name))
		return false;
	rv = makeRangeVar(nsp, name, -1);
	s->relid = RangeVarGetRelid(rv, AccessShareLock, true);
	if (!OidIsValid(s->relid))
		ereport(ERROR, (errcode(ERRCODE_UNDEFINED_TABLE),
				errmsg("%s: relation \"%s%s%s\" does not exist", s->what,
				       nsp ? nsp : "", nsp ? "." : "", name)));
	kind = get_rel_relkind(s->relid);
	if (!strchr("rvmfp", kind))
		ereport(ERROR, (errcode(ERRCODE_WRONG_OBJECT_TYPE),
				errmsg("%s: \"%s\" is no table or view", s->what, s->text)));
	s->row_id = row_id_expression(s->relid, kind);
	s->from = quote_qualified_identifier(get_namespace_name(get_rel_namespace(s->relid)),
					     get_rel_name(s->relid));
	return true;
}

static void name_types(struct source *s)
{
	int i;

	s->type = palloc0(sizeof(*s->type) * (size_t)(s->desc->natts + 1));
	for (i = 0; i < s->desc->natts; i++) {
		Form_pg_attribute a = TupleDescAttr(s->desc, i);

		if (!a->attisdropped)
			s->type[i] = format_type_with_typemod(a->atttypid, a->atttypmod);
	}
}

void source_open_here(struct driver *driver, const char *text, const char *what, struct source *out)
{
	MemoryContext context = CurrentMemoryContext;
	int nest;

	memset(out, 0, sizeof(*out));
	out->what = what;
	out->text = text;
	driver_caller_path(driver, &nest);
	if (!open_relation(out))
		out->from = psprintf("(%s\n)", check_query(out));
	/* names, types and rights; the executor checks the latter at its start */
	sql(SPI_OK_SELECT, "SELECT * FROM %s AS t LIMIT 0", out->from);
	MemoryContextSwitchTo(context);
	out->desc = CreateTupleDescCopy(SPI_tuptable->tupdesc);
	SPI_freetuptable(SPI_tuptable);
	AtEOXact_GUC(true, nest);
	if (OidIsValid(out->relid))
		out->key = primary_key(out->relid);
	name_types(out);
}

void source_open(struct driver *driver, const char *text, const char *what, struct source *out)
{
	memset(out, 0, sizeof(*out));
	out->what = what;
	out->text = text;
	if (!driver->nodes || nodes_here(driver->nodes) >= 0)
		source_open_here(driver, text, what, out);
	if (driver->nodes)
		source_open_nodes(driver, text, what, out);
	source_check_scope(driver, out);
}

/* ---- columns ---- */

const char *source_name(const struct source *s, int attnum)
{
	return NameStr(TupleDescAttr(s->desc, attnum - 1)->attname);
}

static char *all_columns(const struct source *s)
{
	StringInfoData list;
	int i;

	initStringInfo(&list);
	for (i = 1; i <= s->desc->natts; i++)
		if (!TupleDescAttr(s->desc, i - 1)->attisdropped)
			appendStringInfo(&list, "%s%s", list.len ? ", " : "",
					 quote_identifier(source_name(s, i)));
	return list.data;
}

static int find_column(const struct source *s, const char *name)
{
	int i;

	for (i = 1; i <= s->desc->natts; i++)
		if (!TupleDescAttr(s->desc, i - 1)->attisdropped &&
		    !strcmp(source_name(s, i), name))
			return i;
	return 0;
}

int source_column(const struct source *s, const char *name, const char *argument)
{
	char *nsp, *parsed;
	int attnum = find_column(s, name);

	if (!attnum && name_parse(name, &nsp, &parsed) && !nsp)
		attnum = find_column(s, parsed);
	if (!attnum)
		ereport(ERROR, (errcode(ERRCODE_UNDEFINED_COLUMN),
				errmsg("%s: %s has no column \"%s\"", argument, s->what, name),
				errhint("Its columns: %s.", all_columns(s))));
	return attnum;
}

static Oid column_type(const struct source *s, int attnum)
{
	return TupleDescAttr(s->desc, attnum - 1)->atttypid;
}

/* Collects the candidates for a role; skip: attribute numbers that are taken. */
static int candidates(const struct source *s, bool image, bool arrays, const int *skip, int n_skip,
		      int *found, StringInfo list)
{
	struct column form;
	int n = 0, i, k;

	for (i = 1; i <= s->desc->natts; i++) {
		bool taken = false;

		for (k = 0; k < n_skip; k++)
			taken = taken || skip[k] == i;
		if (taken || TupleDescAttr(s->desc, i - 1)->attisdropped ||
		    !column_form(column_type(s, i), image, &form) ||
		    (!image && arrays != OidIsValid(form.element)))
			continue;
		n++;
		*found = i;
		appendStringInfo(list, "%s%s (%s)", list->len ? ", " : "",
				 quote_identifier(source_name(s, i)),
				 format_type_be(column_type(s, i)));
	}
	return n;
}

static void ambiguous(const struct source *s, const char *argument, int n, const char *list)
{
	if (n)
		ereport(ERROR,
			(errcode(ERRCODE_AMBIGUOUS_COLUMN),
			 errmsg("%s: %s has %d columns that it could be", argument, s->what, n),
			 errdetail("Candidates: %s.", list),
			 errhint("Name one, for example %s := 'column'.", argument)));
	ereport(ERROR,
		(errcode(ERRCODE_UNDEFINED_COLUMN),
		 errmsg("%s: %s has no column of a type that it could be", argument, s->what),
		 errhint("%s Its columns: %s.",
			 !strcmp(argument, "independent") ? "Images are bytea or arrays of numbers."
							  : "Labels are integers, text, boolean, "
							    "an enum, floats or arrays of "
							    "numbers.",
			 all_columns(s))));
}

/* Arrays are labels only where nothing else is. */
static int labels(const struct source *s, const int *skip, int n_skip, int *found, StringInfo list)
{
	int n = candidates(s, false, false, skip, n_skip, found, list);

	return n ? n : candidates(s, false, true, skip, n_skip, found, list);
}

/* Where several columns could be the image, one that is the only possible label is none of them;
 * that is never the primary key (key: its number or 0). */
static int only_image(const struct source *s, const int skip[3], bool want_y, int key)
{
	int taken[4] = {skip[0], skip[1], skip[2], key}, found = 0, label, n;
	StringInfoData list, ignored;

	initStringInfo(&list);
	initStringInfo(&ignored);
	n = candidates(s, true, false, skip, 3, &found, &list);
	if (n > 1 && want_y && labels(s, taken, 4, &label, &ignored) == 1) {
		taken[3] = label;
		resetStringInfo(&list);
		n = candidates(s, true, false, taken, 4, &found, &list);
	}
	if (n != 1)
		ambiguous(s, "independent", n, list.data);
	return found;
}

static int only_label(const struct source *s, const int *skip, int n_skip)
{
	StringInfoData list;
	int found = 0, n;

	initStringInfo(&list);
	n = labels(s, skip, n_skip, &found, &list);
	if (n != 1)
		ambiguous(s, "dependent", n, list.data);
	return found;
}

/* A column that was named has a type that it can have. */
static void check_type(const struct source *s, int attnum, bool image, const char *argument)
{
	struct column form;

	if (attnum)
		column_open(column_type(s, attnum), image,
			    psprintf("%s: column %s", argument,
				     quote_identifier(source_name(s, attnum))),
			    &form);
}

static void check_weight(const struct source *s, int attnum)
{
	struct column form;

	if (!attnum)
		return;
	if (!column_form(column_type(s, attnum), false, &form) || OidIsValid(form.element) ||
	    form.form == ROW_TEXT || form.form == ROW_BOOL)
		ereport(ERROR, (errcode(ERRCODE_DATATYPE_MISMATCH),
				errmsg("sample_weight: column %s of type %s cannot be used",
				       quote_identifier(source_name(s, attnum)),
				       format_type_be(column_type(s, attnum))),
				errhint("Sample weights are numbers.")));
}

void source_columns(const struct source *s, const char *independent, const char *dependent,
		    const char *id, const char *weight, bool want_y, struct columns *out)
{
	int skip[5] = {0};

	memset(out, 0, sizeof(*out));
	out->id = id ? source_column(s, id, "id_column") : 0;
	out->weight = weight ? source_column(s, weight, "sample_weight") : 0;
	out->y = want_y && dependent ? source_column(s, dependent, "dependent") : 0;
	check_type(s, out->y, false, "dependent");
	check_weight(s, out->weight);
	if (independent)
		check_type(s, source_column(s, independent, "independent"), true, "independent");
	skip[0] = out->id;
	skip[1] = out->weight;
	skip[2] = out->y;
	/* a label is hardly ever the primary key, unless it is named */
	skip[3] = s->key ? find_column(s, s->key) : 0;
	out->x = independent ? source_column(s, independent, "independent")
			     : only_image(s, skip, want_y && !out->y, skip[3]);
	skip[4] = out->x;
	if (want_y && !out->y)
		out->y = only_label(s, skip, 5);
	if (out->x == out->y)
		ereport(ERROR, (errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				errmsg("independent and dependent are the same column \"%s\"",
				       source_name(s, out->x))));
}
