// SPDX-License-Identifier: MIT
/* node_error.c: errors and notices of other servers become ones of this session. */
#include "nodes.h"

#define NOTICES_MAX 100

struct node_notice {
	struct node_notice *next;
	const char *node;
	bool warning;
	char text[1024];
};

/* A text of another server, which need not be in our encoding. */
static char *clean(const char *text)
{
	char *s = pstrdup(text), *p;

	if (!pg_verify_mbstr(GetDatabaseEncoding(), s, (int)strlen(s), true))
		for (p = s; *p; p++)
			if (*p & 0x80)
				*p = '?';
	return s;
}

/* ---- errors ---- */

static char *field(const PGresult *result, int which)
{
	const char *s = PQresultErrorField(result, which);

	return s ? clean(s) : NULL;
}

void node_raise(const struct node *n)
{
	const char *state = n->result ? PQresultErrorField(n->result, PG_DIAG_SQLSTATE) : NULL;
	int code = ERRCODE_CONNECTION_FAILURE;
	char *message, *detail, *hint;

	if (!n->result) {
		ereport(ERROR,
			(errcode(code), errmsg("lost the connection to node \"%s\"", n->name),
			 *n->why ? errdetail_internal("%s", clean(n->why)) : 0));
		pg_unreachable();
	}
	if (state && strlen(state) == 5)
		code = MAKE_SQLSTATE(state[0], state[1], state[2], state[3], state[4]);
	message = field(n->result, PG_DIAG_MESSAGE_PRIMARY);
	detail = field(n->result, PG_DIAG_MESSAGE_DETAIL);
	hint = field(n->result, PG_DIAG_MESSAGE_HINT);
	if (!message)
		message = clean(PQresultErrorMessage(n->result));
	ereport(ERROR, (errcode(code), errmsg("%s", message), detail ? errdetail("%s", detail) : 0,
			hint ? errhint("%s", hint) : 0, errcontext("node \"%s\"", n->name)));
	pg_unreachable();
}

/* ---- notices ---- */

/* Within libpq nothing may be raised: they are kept until the query is over. */
void node_keep_notice(void *arg, const PGresult *result)
{
	struct node_notice *t;
	const struct node *n = arg;
	struct nodes *g = n->group;
	const char *severity = PQresultErrorField(result, PG_DIAG_SEVERITY);
	const char *message = PQresultErrorField(result, PG_DIAG_MESSAGE_PRIMARY);

	if (!message || g->n_notices >= NOTICES_MAX)
		return;
	t = calloc(1, sizeof(*t));
	if (!t)
		return;
	t->node = n->name;
	t->warning = severity && !strcmp(severity, "WARNING");
	snprintf(t->text, sizeof(t->text), "%s", message);
	*g->last_notice = t;
	g->last_notice = &t->next;
	g->n_notices++;
}

void node_free_notices(struct nodes *g)
{
	struct node_notice *t;

	while ((t = g->notice)) {
		g->notice = t->next;
		free(t);
	}
	g->last_notice = &g->notice;
	g->n_notices = 0;
}

void node_show_notices(struct nodes *g)
{
	struct node_notice *t;

	for (t = g->notice; t; t = t->next) {
		ereport(t->warning ? WARNING : NOTICE,
			(errmsg("%s", clean(t->text)), errcontext("node \"%s\"", t->node)));
	}
	node_free_notices(g);
}
