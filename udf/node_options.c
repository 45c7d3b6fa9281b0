// SPDX-License-Identifier: MIT
/*
 * node_options.c: who the nodes are: the table gpu_cnn_nodes names foreign servers of the wrapper
 * gpu_cnn, whose options and the caller's user mapping say how to reach them.
 */
#include "nodes.h"

#include "access/reloptions.h"
#include "commands/defrem.h"

#define CONNECT_TIMEOUT 15

/* What libpq knows and is harmless in anybody's hands: no file of this server but certificates that
 * are read, no service, no password file. */
static const struct {
	const char *name;
	Oid where;
} known[] = {
	{"host", ForeignServerRelationId},
	{"hostaddr", ForeignServerRelationId},
	{"port", ForeignServerRelationId},
	{"dbname", ForeignServerRelationId},
	{"connect_timeout", ForeignServerRelationId},
	{"sslmode", ForeignServerRelationId},
	{"sslrootcert", ForeignServerRelationId},
	{"sslcrl", ForeignServerRelationId},
	{"requirepeer", ForeignServerRelationId},
	{"channel_binding", ForeignServerRelationId},
	{"gssencmode", ForeignServerRelationId},
	{"krbsrvname", ForeignServerRelationId},
	{"user", UserMappingRelationId},
	{"password", UserMappingRelationId},
};

static bool is_known(const char *name, Oid where)
{
	size_t i;

	for (i = 0; i < lengthof(known); i++)
		if (!strcmp(known[i].name, name) && known[i].where == where)
			return true;
	return false;
}

static char *all_known(Oid where)
{
	StringInfoData s;
	size_t i;

	initStringInfo(&s);
	for (i = 0; i < lengthof(known); i++)
		if (known[i].where == where)
			appendStringInfo(&s, "%s%s", s.len ? ", " : "", known[i].name);
	return s.data;
}

SQL_FUNCTION(gpu_cnn_fdw_validator);
Datum gpu_cnn_fdw_validator(PG_FUNCTION_ARGS)
{
	List *options = untransformRelOptions(PG_GETARG_DATUM(0));
	Oid where = PG_GETARG_OID(1);
	ListCell *cell;

	foreach (cell, options) {
		DefElem *option = (DefElem *)lfirst(cell);

		if (!is_known(option->defname, where))
			ereport(ERROR,
				(errcode(ERRCODE_FDW_INVALID_OPTION_NAME),
				 errmsg("invalid option \"%s\"", option->defname),
				 *all_known(where)
					 ? errhint("Valid options here: %s.", all_known(where))
					 : errhint("There are no valid options here.")));
		if (!strcmp(option->defname, "connect_timeout") && atoi(defGetString(option)) < 1)
			ereport(ERROR, (errcode(ERRCODE_FDW_INVALID_ATTRIBUTE_VALUE),
					errmsg("connect_timeout must be at least 1")));
	}
	PG_RETURN_VOID();
}

/* ---- logins ---- */

static void add(struct node_login *l, const char *keyword, const char *value)
{
	l->keyword[l->n] = keyword;
	l->value[l->n++] = value;
}

static void add_options(struct node_login *l, List *options, bool *has_password)
{
	ListCell *cell;

	foreach (cell, options) {
		DefElem *option = (DefElem *)lfirst(cell);
		const char *value = defGetString(option);

		if (!strcmp(option->defname, "connect_timeout"))
			l->timeout = atoi(value);
		if (!strcmp(option->defname, "password"))
			*has_password = *value != '\0';
		add(l, option->defname, value);
	}
}

static bool libpq_knows(const char *keyword)
{
	PQconninfoOption *all = PQconndefaults(), *o;
	bool found = false;

	for (o = all; o && o->keyword; o++)
		found = found || !strcmp(o->keyword, keyword);
	PQconninfoFree(all);
	return found;
}

/* What a session of ours needs: a dead line is found within seconds; texts in our encoding. */
static void add_fixed(struct node_login *l)
{
	add(l, "fallback_application_name", "gpu_cnn");
	add(l, "client_encoding", GetDatabaseEncodingName());
	add(l, "keepalives", "1");
	add(l, "keepalives_idle", "1");
	add(l, "keepalives_interval", "1");
	add(l, "keepalives_count", "3");
	if (libpq_knows("tcp_user_timeout")) /* from 12 */
		add(l, "tcp_user_timeout", "4000");
	add(l, NULL, NULL);
}

static void read_login(const char *name, struct node_login *l)
{
	ForeignServer *server = GetForeignServerByName(name, false);
	ForeignDataWrapper *wrapper = GetForeignDataWrapper(server->fdwid);
	UserMapping *mapping;
	bool has_password = false;

	if (strcmp(wrapper->fdwname, "gpu_cnn"))
		ereport(ERROR, (errcode(ERRCODE_WRONG_OBJECT_TYPE),
				errmsg("server \"%s\" in gpu_cnn_nodes is one of wrapper \"%s\"",
				       name, wrapper->fdwname),
				errhint("A node is a server of FOREIGN DATA WRAPPER gpu_cnn.")));
	if (!compat_may_use_server(server->serverid, GetUserId()))
		ereport(ERROR, (errcode(ERRCODE_INSUFFICIENT_PRIVILEGE),
				errmsg("permission denied for foreign server %s", name),
				errhint("The server is a node: who trains needs USAGE on it.")));
	mapping = GetUserMapping(GetUserId(), server->serverid);
	l->name = pstrdup(name);
	l->timeout = CONNECT_TIMEOUT;
	l->keyword = palloc(sizeof(char *) * (lengthof(known) + 16));
	l->value = palloc(sizeof(char *) * (lengthof(known) + 16));
	add_options(l, server->options, &has_password);
	add_options(l, mapping->options, &has_password);
	/* else the operating system user that the server runs as, or its files, would vouch */
	if (!has_password && !superuser())
		ereport(ERROR,
			(errcode(ERRCODE_S_R_E_PROHIBITED_SQL_STATEMENT_ATTEMPTED),
			 errmsg("password is required"),
			 errdetail("Users who are no superusers must give a password in the user "
				   "mapping for node \"%s\".",
				   name)));
	add_fixed(l);
}

int node_logins(struct driver *driver, struct node_login **out)
{
	int n, i, k, here = 0;
	char **name;

	sql(SPI_OK_SELECT, "SELECT server::pg_catalog.text FROM %s.gpu_cnn_nodes ORDER BY ord",
	    driver->schema);
	if (SPI_processed > (uint64)NODE_MAX)
		ereport(ERROR,
			(errcode(ERRCODE_PROGRAM_LIMIT_EXCEEDED),
			 errmsg("gpu_cnn_nodes has more than %d rows, the most hosts of a job",
				NODE_MAX)));
	n = (int)SPI_processed;
	name = palloc(sizeof(*name) * (size_t)(n + 1));
	*out = palloc0(sizeof(**out) * (size_t)(n + 1));
	for (i = 0; i < n; i++)
		name[i] = sql_text((uint64)i, 1);
	SPI_freetuptable(SPI_tuptable);
	for (i = 0; i < n; i++) {
		here += !name[i];
		for (k = 0; k < i; k++)
			if ((!name[i] && here > 1) ||
			    (name[i] && name[k] && !strcmp(name[i], name[k])))
				ereport(ERROR, (errcode(ERRCODE_DUPLICATE_OBJECT),
						errmsg("gpu_cnn_nodes names %s%s%s twice",
						       name[i] ? "\"" : "",
						       name[i] ? name[i] : "this server",
						       name[i] ? "\"" : ""),
						errdetail("Its rows would be read twice.")));
		if (name[i])
			read_login(name[i], &(*out)[i]);
	}
	return n;
}
