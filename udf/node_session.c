// SPDX-License-Identifier: MIT
/*
 * node_session.c: opening sessions on other servers: connecting, settings that no role or database
 * there may change, one transaction for the whole job, the extension's place and version.
 */
#include "nodes.h"

/* ---- opening ---- */

static void connect_start(struct nodes *g, struct node *n, const struct node_login *l)
{
	nodes_count_fd(compat_acquire_fd());
	n->counted++;
	n->conn = PQconnectStartParams(l->keyword, l->value, 0);
	if (!n->conn)
		ereport(ERROR, (errcode(ERRCODE_OUT_OF_MEMORY), errmsg("out of memory")));
	PQsetNoticeReceiver(n->conn, node_keep_notice, n);
	(void)g;
}

static void connect_failed(const struct node *n, const char *why)
{
	char *detail = pstrdup(why);
	size_t len = strlen(detail);

	while (len && detail[len - 1] == '\n')
		detail[--len] = '\0';
	ereport(ERROR, (errcode(ERRCODE_SQLCLIENT_UNABLE_TO_ESTABLISH_SQLCONNECTION),
			errmsg("could not connect to node \"%s\"", n->name),
			*detail ? errdetail_internal("%s", detail) : 0));
}

/* true: there is nothing left to wait for. */
static bool connect_step(struct nodes *g, struct node *n)
{
	if (PQstatus(n->conn) == CONNECTION_OK)
		return true;
	if (PQstatus(n->conn) == CONNECTION_BAD)
		connect_failed(n, PQerrorMessage(n->conn));
	switch (PQconnectPoll(n->conn)) {
	case PGRES_POLLING_OK:
		node_unwatch(g, n);
		return true;
	case PGRES_POLLING_READING:
		node_watch(g, n, true, false);
		return false;
	case PGRES_POLLING_WRITING:
		node_watch(g, n, false, true);
		return false;
	default:
		connect_failed(n, PQerrorMessage(n->conn));
		return false;
	}
}

/* A server that asked for none has let in whoever this server runs as. */
static void check_password(const struct node *n)
{
	if (!superuser() && !PQconnectionUsedPassword(n->conn))
		ereport(ERROR,
			(errcode(ERRCODE_S_R_E_PROHIBITED_SQL_STATEMENT_ATTEMPTED),
			 errmsg("password is required"),
			 errdetail("Node \"%s\" did not ask for a password, and users who are no "
				   "superusers connect by password only.",
				   n->name),
			 errhint("Let its pg_hba.conf ask for one.")));
}

static void connect_all(struct nodes *g, const struct node_login *login)
{
	int64 start = wait_now();
	int i, left = 1;

	for (i = 0; i < g->n; i++)
		if (!g->node[i].here)
			connect_start(g, &g->node[i], &login[i]);
	while (left) {
		left = 0;
		for (i = 0; i < g->n; i++) {
			struct node *n = &g->node[i];

			if (n->here || connect_step(g, n))
				continue;
			left++;
			if (wait_now() - start > (int64)(login[i].timeout * 1000))
				connect_failed(n, "timeout expired");
		}
		if (left)
			wait_for(g->epoll, WL_SOCKET_READABLE, wait_now() + WAIT_SLICE_MS,
				 "connect to nodes");
	}
	for (i = 0; i < g->n; i++)
		if (!g->node[i].here) {
			check_password(&g->node[i]);
			PQsetnonblocking(g->node[i].conn, 1);
		}
}

/* ---- a session ---- */

void nodes_path(struct nodes *g, const char *path)
{
	struct args args = {0};
	int i;

	args_text(&args, path ? path : "pg_catalog, pg_temp");
	for (i = 0; i < g->n; i++)
		node_send(g, i, "SELECT pg_catalog.set_config('search_path', $1, true)", &args);
	nodes_await(g, "settings of nodes", NULL);
	nodes_done(g);
}

static void everywhere(struct nodes *g, const char *text, const struct args *args, const char *name)
{
	int i;

	for (i = 0; i < g->n; i++)
		node_send(g, i, text, args);
	nodes_await(g, name, NULL);
}

/* Settings that a server may not have yet. */
static void set_from(struct nodes *g, int version, const char *text)
{
	struct args none = {0};
	int i;

	for (i = 0; i < g->n; i++)
		if (g->node[i].conn && PQserverVersion(g->node[i].conn) >= version)
			node_send(g, i, text, &none);
	nodes_await(g, "settings of nodes", NULL);
	nodes_done(g);
}

static void begin_transaction(struct nodes *g)
{
	static const char *const statement[] = {
		"BEGIN TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY",
		"SET LOCAL search_path = pg_catalog, pg_temp",
		"SET LOCAL statement_timeout = 0",
		"SET LOCAL lock_timeout = '30s'",
		"SET LOCAL DateStyle = 'ISO, YMD'",
		"SET LOCAL IntervalStyle = postgres",
		"SET LOCAL bytea_output = hex",
		"SET LOCAL extra_float_digits = 3",
	};
	static const struct {
		int version;
		const char *text;
	} later[] = {
		{90600, "SET LOCAL idle_in_transaction_session_timeout = 0"},
		{90600, "SET LOCAL parallel_setup_cost = 0"},
		{90600, "SET LOCAL parallel_tuple_cost = 0"},
		{100000, "SET LOCAL min_parallel_table_scan_size = 0"},
		{140000, "SET LOCAL client_connection_check_interval = 500"},
		{170000, "SET LOCAL transaction_timeout = 0"},
	};
	struct args none = {0};
	size_t i;

	for (i = 0; i < lengthof(statement); i++) {
		everywhere(g, statement[i], &none, "settings of nodes");
		nodes_done(g);
	}
	for (i = 0; i < lengthof(later); i++)
		set_from(g, later[i].version, later[i].text);
}

static char *text_column(const PGresult *r, int column)
{
	return PQgetisnull(r, 0, column)
		       ? NULL
		       : pnstrdup(PQgetvalue(r, 0, column), (size_t)PQgetlength(r, 0, column));
}

static void check_extension(struct nodes *g, struct node *n)
{
	MemoryContext old;
	char *version;

	if (!PQntuples(n->result))
		ereport(ERROR,
			(errcode(ERRCODE_UNDEFINED_OBJECT),
			 errmsg("extension gpu_cnn is not installed on node \"%s\"", n->name),
			 errhint("CREATE EXTENSION gpu_cnn in its database.")));
	version = text_column(n->result, 1);
	if (strcmp(version, CNN_VERSION))
		ereport(ERROR,
			(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
			 errmsg("node \"%s\" has version %s of extension gpu_cnn, this server "
				"has " CNN_VERSION,
				n->name, version),
			 errhint("ALTER EXTENSION gpu_cnn UPDATE where it is older.")));
	/* see check_feed in driver.c */
	if (strcmp(text_column(n->result, 2), "1"))
		ereport(ERROR,
			(errcode(ERRCODE_AMBIGUOUS_FUNCTION),
			 errmsg("the schema of gpu_cnn on node \"%s\" holds another "
				"function gpu_cnn_feed",
				n->name),
			 errhint("Drop it, and let nobody create functions in that schema.")));
	old = MemoryContextSwitchTo(g->context);
	n->schema = pstrdup(quote_identifier(text_column(n->result, 0)));
	MemoryContextSwitchTo(old);
}

static void find_extension(struct nodes *g)
{
	static const char text[] =
		"SELECT n.nspname::text, e.extversion::text, (SELECT count(*)::text FROM pg_proc p "
		"WHERE p.pronamespace = n.oid AND p.proname = 'gpu_cnn_feed'), "
		"set_config('gpu_cnn.segindex', $1, true), set_config('TimeZone', $2, true) FROM "
		"pg_extension e JOIN pg_namespace n ON n.oid = e.extnamespace WHERE e.extname = "
		"'gpu_cnn'";
	int i;

	for (i = 0; i < g->n; i++) {
		struct args args = {0};

		args_text(&args, psprintf("%d", i));
		args_text(&args, GetConfigOption("TimeZone", false, false));
		node_send(g, i, text, &args);
	}
	nodes_await(g, "look for the extension on nodes", NULL);
	for (i = 0; i < g->n; i++)
		if (!g->node[i].here)
			check_extension(g, &g->node[i]);
	nodes_done(g);
}

/* What each daemon calls its host; a daemon that is not there is begin's to complain about. */
static void find_machines(struct nodes *g)
{
	struct args none = {0};
	int i;

	for (i = 0; i < g->n; i++)
		if (!g->node[i].here)
			node_send(
				g, i,
				psprintf(
					"SELECT detail FROM %s.gpu_cnn_version() WHERE component = "
					"'daemon' AND fits",
					g->node[i].schema),
				&none);
	nodes_await(g, "look for the nodes' daemons", NULL);
	for (i = 0; i < g->n; i++) {
		struct node *n = &g->node[i];
		MemoryContext old = MemoryContextSwitchTo(g->context);

		if (!n->here && PQntuples(n->result))
			n->machine = text_column(n->result, 0);
		MemoryContextSwitchTo(old);
	}
	nodes_done(g);
}

struct nodes *nodes_open(struct driver *driver, const struct node_login *login, int n)
{
	struct nodes *g = nodes_enter(driver, n);
	int i;

	for (i = 0; i < n; i++) {
		g->node[i].here = !login[i].name;
		g->node[i].name = MemoryContextStrdup(g->context, login[i].name ? login[i].name
										: "this server");
		if (!login[i].name)
			g->here = i;
	}
	connect_all(g, login);
	begin_transaction(g);
	find_extension(g);
	find_machines(g);
	return g;
}
