// SPDX-License-Identifier: MIT
/*
 * source_nodes.c: what a source is on other servers. Each node is asked by gpu_cnn_source, which is
 * source.c run there: its tables, its rights, its search_path being the caller's. Types are told by
 * one that every server has: enums and domains have other numbers elsewhere.
 */
#include "nodes.h"

enum { S_POSITION = 1, S_NAME, S_TYPE, S_BASE, S_KEY, S_FROM, S_ROW_ID };

/* The type that column_form sees; VOIDOID: of no use as image, label or weight. */
static Oid common_type(Oid type)
{
	Oid base = getBaseType(type), element = get_element_type(base);

	if (OidIsValid(element)) {
		Oid array = get_array_type(getBaseType(element));

		return array < FirstNormalObjectId ? array : VOIDOID;
	}
	if (type_is_enum(base))
		return TEXTOID;
	return base < FirstNormalObjectId ? base : VOIDOID;
}

SQL_FUNCTION(gpu_cnn_source);
Datum gpu_cnn_source(PG_FUNCTION_ARGS)
{
	struct driver driver;
	struct source s;
	struct rows rows;
	int i;

	rows_begin(fcinfo, &rows);
	if (PG_ARGISNULL(0) || PG_ARGISNULL(1))
		elog(ERROR, "source must not be NULL");
	driver_start(fcinfo, &driver);
	source_open_here(&driver, text_to_cstring(PG_GETARG_TEXT_PP(0)),
			 text_to_cstring(PG_GETARG_TEXT_PP(1)), &s);
	for (i = 1; i <= s.desc->natts; i++) {
		Datum v[7];
		bool null[7] = {false};

		if (TupleDescAttr(s.desc, i - 1)->attisdropped)
			continue;
		v[0] = Int32GetDatum(i);
		v[1] = CStringGetTextDatum(source_name(&s, i));
		v[2] = CStringGetTextDatum(s.type[i - 1]);
		v[3] = Int32GetDatum((int32)common_type(TupleDescAttr(s.desc, i - 1)->atttypid));
		v[4] = BoolGetDatum(s.key && !strcmp(s.key, source_name(&s, i)));
		v[5] = CStringGetTextDatum(s.from);
		null[6] = !s.row_id;
		v[6] = s.row_id ? CStringGetTextDatum(s.row_id) : (Datum)0;
		rows_add(&rows, v, null);
	}
	driver_finish(&driver);
	return (Datum)0;
}

/* ---- asking ---- */

static TupleDesc columns_desc(void)
{
	TupleDesc desc = compat_tuple_desc(7);

	TupleDescInitEntry(desc, S_POSITION, "position", INT4OID, -1, 0);
	TupleDescInitEntry(desc, S_NAME, "name", TEXTOID, -1, 0);
	TupleDescInitEntry(desc, S_TYPE, "type", TEXTOID, -1, 0);
	TupleDescInitEntry(desc, S_BASE, "base", INT4OID, -1, 0);
	TupleDescInitEntry(desc, S_KEY, "is_key", BOOLOID, -1, 0);
	TupleDescInitEntry(desc, S_FROM, "from_item", TEXTOID, -1, 0);
	TupleDescInitEntry(desc, S_ROW_ID, "row_id", TEXTOID, -1, 0);
	return desc;
}

struct remote_column {
	char *name, *type, *from, *row_id;
	Oid base;
	bool key;
};

static int read_columns(const struct node *n, struct remote_column **out)
{
	TupleDesc desc = columns_desc();
	int rows = PQntuples(n->result), i, k;
	Datum v[7];
	bool null[7];

	node_check(n, n->result, desc);
	*out = palloc0(sizeof(**out) * (size_t)(rows + 1));
	for (i = 0; i < rows; i++) {
		struct remote_column *c = &(*out)[i];

		node_decode(n, n->result, i, desc, v, null);
		for (k = 0; k < S_ROW_ID - 1; k++)
			if (null[k])
				elog(ERROR, "node \"%s\" described a column by NULL", n->name);
		c->name = TextDatumGetCString(v[S_NAME - 1]);
		c->type = TextDatumGetCString(v[S_TYPE - 1]);
		c->base = (Oid)DatumGetInt32(v[S_BASE - 1]);
		c->key = DatumGetBool(v[S_KEY - 1]);
		c->from = TextDatumGetCString(v[S_FROM - 1]);
		c->row_id = null[S_ROW_ID - 1] ? NULL : TextDatumGetCString(v[S_ROW_ID - 1]);
		if (strlen(c->name) >= NAMEDATALEN || !get_typisdefined(c->base))
			elog(ERROR, "node \"%s\" described an impossible column", n->name);
	}
	return rows;
}

/* The source as the first node says that it is. */
static void take_columns(struct source *s, const struct remote_column *c, int n)
{
	int i;

	s->desc = compat_tuple_desc(n);
	s->type = palloc0(sizeof(*s->type) * (size_t)(n + 1));
	for (i = 0; i < n; i++) {
		TupleDescInitEntry(s->desc, (AttrNumber)(i + 1), c[i].name, c[i].base, -1, 0);
		s->type[i] = c[i].type;
		if (c[i].key)
			s->key = c[i].name;
	}
}

/* Every column that is used must be there; it is not known yet which are, so a missing one is
 * found by its name only where it is used, by the node itself. Types are compared for all. */
static void compare_columns(const struct source *s, const struct node *node,
			    const struct remote_column *c, int n)
{
	int i, k;

	for (i = 0; i < n; i++)
		for (k = 1; k <= s->desc->natts; k++) {
			Oid type = TupleDescAttr(s->desc, k - 1)->atttypid;

			if (TupleDescAttr(s->desc, k - 1)->attisdropped ||
			    strcmp(source_name(s, k), c[i].name) || common_type(type) == c[i].base)
				continue;
			ereport(ERROR,
				(errcode(ERRCODE_DATATYPE_MISMATCH),
				 errmsg("%s: column \"%s\" is of type %s on node \"%s\", and of "
					"type %s before",
					s->what, c[i].name, c[i].type, node->name, s->type[k - 1]),
				 errhint("A source has the same columns on all nodes.")));
		}
}

void source_open_nodes(struct driver *driver, const char *text, const char *what, struct source *s)
{
	struct nodes *g = driver->nodes;
	struct args args = {0};
	int i;

	s->n_nodes = g->n;
	s->there = palloc0(sizeof(*s->there) * (size_t)g->n);
	args_text(&args, text);
	args_text(&args, what);
	nodes_path(g, driver->caller_path);
	for (i = 0; i < g->n; i++)
		if (!g->node[i].here)
			node_send(g, i,
				  psprintf("SELECT * FROM %s.gpu_cnn_source($1, $2)",
					   g->node[i].schema),
				  &args);
	nodes_await(g, "source on nodes", NULL);
	for (i = 0; i < g->n; i++) {
		struct remote_column *c;
		int n;

		if (!g->node[i].result)
			continue;
		n = read_columns(&g->node[i], &c);
		if (!n)
			ereport(ERROR, (errcode(ERRCODE_UNDEFINED_COLUMN),
					errmsg("%s has no columns on node \"%s\"", what,
					       g->node[i].name)));
		if (!s->desc)
			take_columns(s, c, n);
		else
			compare_columns(s, &g->node[i], c, n);
		s->there[i].from = c[0].from;
		s->there[i].row_id = c[0].row_id;
	}
	nodes_done(g);
	nodes_path(g, NULL);
}
