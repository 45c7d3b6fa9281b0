/* SPDX-License-Identifier: MIT */
/*
 * nodes.h: the other servers of a job (docs/architecture.md, section 3): node_options.c reads who
 * they are, node_session.c opens a session on each, nodes.c does one query at a time on all of them
 * at once, node_values.c turns parameters and results from and into libpq's binary form. Only these
 * files and dispatch.c know of libpq. Nothing here blocks: all waiting is wait.c's.
 */
#ifndef GPU_CNN_NODES_H
#define GPU_CNN_NODES_H

#include "gpu_cnn.h"

#include <libpq-fe.h>

#define NODE_MAX ((int)CTL_HOSTS_MAX)

enum node_state { NODE_IDLE = 0, NODE_BUSY };

struct nodes;

struct node {
	struct nodes *group;
	char *name; /* of the server; "this server" */
	bool here;  /* through SPI, without a connection */
	bool lost;  /* its connection broke: not asked any more */
	bool left;  /* and the job goes on without it */
	int counted;
	PGconn *conn;
	char *schema;  /* of the extension there, quoted */
	char *machine; /* what its daemon calls its host; NULL: not known */

	enum node_state state;
	bool wants_write; /* what epoll was told */
	bool watched;
	int64 heard;	  /* when bytes came or went last */
	int unsent;	  /* bytes that its server has not taken */
	PGresult *result; /* of the query that is over: rows, or an error */
	PGresult *row;	  /* of a stream, in work */
	char why[256];	  /* lost: what happened */
};

struct node_notice;

struct nodes {
	struct nodes *next;
	ResourceOwner owner;
	MemoryContext context;
	struct job job;
	int epoll;
	bool counted;
	bool may_lose; /* a node that breaks during this query is no error */
	int64 since;   /* when the queries in work were sent */
	bool streams;  /* rows are taken one by one: nodes_next */
	struct node_notice *notice, **last_notice;
	int n_notices;
	int here; /* number of the node that is this server, -1: none */
	int n;
	struct node *node;
};

/* ---- node_options.c ---- */

struct node_login {
	char *name; /* NULL: this server */
	int n;
	const char **keyword, **value; /* for PQconnectStartParams, NULL at the end */
	double timeout;		       /* seconds to connect in */
};
/* The rows of gpu_cnn_nodes in their order, with the caller's logins; returns how many. */
int node_logins(struct driver *driver, struct node_login **out);

/* ---- node_session.c ---- */

/* Opens a session on each, in one transaction that lasts until nodes_close. */
struct nodes *nodes_open(struct driver *driver, const struct node_login *login, int n);
/* Queries are read with that search_path; NULL: with the pinned one again. */
void nodes_path(struct nodes *nodes, const char *path);

/* ---- nodes.c ---- */

/* An entry in the list of this session, which the end of the resource owner closes. */
struct nodes *nodes_enter(const struct driver *driver, int n);
/* Raises unless the server could count another descriptor. */
void nodes_count_fd(bool got);
/* Which events of a node's socket wake the wait on all of them. */
void node_watch(struct nodes *nodes, struct node *node, bool read, bool write);
void node_unwatch(struct nodes *nodes, struct node *node);
void nodes_close(struct nodes *nodes);
/* The nodes of a job that this session drives; NULL: none. */
struct nodes *nodes_find(const struct job *job);

/* Sends a query to one node. */
void node_send(struct nodes *nodes, int i, const char *text, const struct args *args);
/* Until everything that was sent has left this server: then a call here may wait for the nodes. */
void nodes_flush(struct nodes *nodes, const char *name);
/* Until all queries are over; raises the first error, and that of daemon (may be NULL). */
void nodes_await(struct nodes *nodes, const char *name, struct daemon *watch);
/* With streams: the next row of whichever node has one, for the caller to free; false: all are
 * over. */
bool nodes_next(struct nodes *nodes, const char *name, int *node, PGresult **row);
/* Drops results and raises the notices that came. */
void nodes_done(struct nodes *nodes);

/* ---- node_error.c ---- */

/* Raises what a node reported as an error of its own. */
void node_raise(const struct node *node) pg_attribute_noreturn();
/* libpq's notice receiver: within libpq nothing may be raised, so notices are kept. */
void node_keep_notice(void *node, const PGresult *result);
void node_show_notices(struct nodes *nodes);
void node_free_notices(struct nodes *nodes);

/* ---- node_values.c ---- */

struct node_params {
	int n;
	Oid *type;
	const char **value;
	int *length, *format;
};
void node_encode(const struct args *args, struct node_params *out);
/* Checks that a result has these columns. */
void node_check(const struct node *node, const PGresult *result, TupleDesc desc);
/* One row; values in the current memory context. */
void node_decode(const struct node *node, const PGresult *result, int row, TupleDesc desc,
		 Datum *value, bool *null);

#endif
