// SPDX-License-Identifier: MIT
/*
 * nodes.c: sessions on other servers, by asynchronous libpq: one query at a time on each of them at
 * once, results, the end; node_session.c opens them. A session is entered in a list with its
 * resource owner before it is opened, as daemon.c's connections are; aborting closes the sockets
 * (PQcancel, which blocks on a cut link, is never used: the job ends through cnnd, and with it the
 * query).
 */
#include "nodes.h"

#include <errno.h>
#include <linux/sockios.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>

/* Once one node has answered, the others get so much longer, and ten times what it took. */
#define STRAGGLER_MS 120000

static struct nodes *open_nodes;

/* ---- registry ---- */

void node_unwatch(struct nodes *g, struct node *n)
{
	if (n->watched && n->conn && PQsocket(n->conn) >= 0)
		epoll_ctl(g->epoll, EPOLL_CTL_DEL, PQsocket(n->conn), NULL);
	n->watched = false;
}

static void disconnect(struct nodes *g, struct node *n)
{
	node_unwatch(g, n);
	PQclear(n->result);
	PQclear(n->row);
	n->result = n->row = NULL;
	PQfinish(n->conn);
	n->conn = NULL;
	n->state = NODE_IDLE;
	while (n->counted-- > 0)
		compat_release_fd();
	n->counted = 0;
}

void nodes_close(struct nodes *g)
{
	struct nodes **p;
	int i;

	for (p = &open_nodes; *p; p = &(*p)->next)
		if (*p == g) {
			*p = g->next;
			break;
		}
	for (i = 0; i < g->n; i++)
		disconnect(g, &g->node[i]);
	node_free_notices(g);
	if (g->epoll >= 0)
		close(g->epoll);
	if (g->counted)
		compat_release_fd();
	MemoryContextDelete(g->context);
}

static void release(ResourceReleasePhase phase, bool is_commit, bool is_top, void *arg)
{
	struct nodes *g, *next;

	(void)is_commit;
	(void)is_top;
	(void)arg;
	if (phase != RESOURCE_RELEASE_BEFORE_LOCKS)
		return;
	for (g = open_nodes; g; g = next) {
		next = g->next;
		if (g->owner == CurrentResourceOwner)
			nodes_close(g);
	}
}

void nodes_init(void)
{
	RegisterResourceReleaseCallback(release, NULL);
}

int nodes_count(const struct nodes *g)
{
	return g->n;
}

int nodes_here(const struct nodes *g)
{
	return g->here;
}

const char *nodes_name(const struct nodes *g, int i)
{
	return i >= 0 && i < g->n ? g->node[i].name : "?";
}

const char *nodes_machine(const struct nodes *g, int i)
{
	return i >= 0 && i < g->n ? g->node[i].machine : NULL;
}

const char *nodes_why(const struct nodes *g, int i)
{
	return i >= 0 && i < g->n && *g->node[i].why ? g->node[i].why : "no answer";
}

void nodes_leave_lost(struct nodes *g)
{
	int i;

	for (i = 0; i < g->n; i++)
		g->node[i].left = g->node[i].lost;
}

struct nodes *nodes_find(const struct job *job)
{
	struct nodes *g;

	for (g = open_nodes; g; g = g->next)
		if (!memcmp(&g->job, job, sizeof(*job)))
			return g;
	return NULL;
}

void nodes_count_fd(bool got)
{
	if (!got)
		ereport(ERROR, (errcode(ERRCODE_INSUFFICIENT_RESOURCES),
				errmsg("too many open files for sessions on other servers"),
				errhint("Raise max_files_per_process.")));
}

struct nodes *nodes_enter(const struct driver *driver, int n)
{
	MemoryContext context = compat_context(TopMemoryContext, "gpu_cnn nodes");
	struct nodes *g = MemoryContextAllocZero(context, sizeof(*g));
	int i;

	g->node = MemoryContextAllocZero(context, sizeof(*g->node) * (size_t)n);
	g->n = n;
	g->context = context;
	g->owner = CurrentResourceOwner;
	g->job = driver->job;
	g->here = -1;
	g->epoll = -1;
	g->last_notice = &g->notice;
	for (i = 0; i < n; i++)
		g->node[i].group = g;
	g->next = open_nodes;
	open_nodes = g;
	nodes_count_fd(compat_acquire_fd());
	g->counted = true;
	g->epoll = epoll_create1(EPOLL_CLOEXEC);
	if (g->epoll < 0)
		elog(ERROR, "epoll_create1: %m");
	return g;
}

/* ---- what became of a query ---- */

/* The last line, say, of libpq's words, without its newline. */
static void set_why(struct node *n, const char *text)
{
	size_t len;

	snprintf(n->why, sizeof(n->why), "%s", text);
	len = strlen(n->why);
	while (len && n->why[len - 1] == '\n')
		n->why[--len] = '\0';
}

static void lose(struct nodes *g, struct node *n)
{
	set_why(n, n->result && PQresultErrorField(n->result, PG_DIAG_MESSAGE_PRIMARY)
			   ? PQresultErrorField(n->result, PG_DIAG_MESSAGE_PRIMARY)
			   : PQerrorMessage(n->conn));
	disconnect(g, n);
	n->lost = true;
}

static bool is_error(const PGresult *r)
{
	ExecStatusType status = PQresultStatus(r);

	return status != PGRES_TUPLES_OK && status != PGRES_COMMAND_OK &&
	       status != PGRES_SINGLE_TUPLE;
}

static bool failed(const struct nodes *g, const struct node *n)
{
	return n->lost ? !g->may_lose && !n->left : n->result && is_error(n->result);
}

/* ---- the socket ---- */

void node_watch(struct nodes *g, struct node *n, bool read, bool write)
{
	struct epoll_event e = {.events = (read ? EPOLLIN : 0) | (write ? EPOLLOUT : 0)};
	int fd = PQsocket(n->conn);

	if (fd < 0 || (!epoll_ctl(g->epoll, EPOLL_CTL_MOD, fd, &e)))
		return;
	/* libpq has opened another socket, or this is the first time */
	if (errno != ENOENT || epoll_ctl(g->epoll, EPOLL_CTL_ADD, fd, &e))
		elog(ERROR, "epoll_ctl: %m");
	n->watched = true;
}

/* The first error stays, else the last result. */
static void keep_result(struct node *n, PGresult *r)
{
	if (n->result && is_error(n->result)) {
		PQclear(r);
		return;
	}
	PQclear(n->result);
	n->result = r;
}

/* The session there was ended by its server: 57P01, 57P02, 57P03. */
static bool is_farewell(const PGresult *r)
{
	const char *state = PQresultErrorField(r, PG_DIAG_SQLSTATE);

	return state && !strncmp(state, "57P0", 4);
}

static void query_over(struct nodes *g, struct node *n)
{
	n->state = NODE_IDLE;
	node_unwatch(g, n);
	if (PQstatus(n->conn) == CONNECTION_BAD)
		lose(g, n);
}

/* Notes when bytes come or go: a session whose process stands still moves none. */
static void note_life(struct node *n)
{
	int in = 0, out = 0, fd = PQsocket(n->conn);

	if (fd < 0 || ioctl(fd, FIONREAD, &in) || ioctl(fd, SIOCOUTQ, &out))
		return;
	if (in || out != n->unsent)
		n->heard = wait_now();
	n->unsent = out;
}

/* What can be done without waiting. With streams rows stay in libpq until they are asked for. */
static void step(struct nodes *g, struct node *n)
{
	int rc;

	if (n->state != NODE_BUSY)
		return;
	note_life(n);
	rc = PQflush(n->conn);
	if (rc < 0 || ((!g->streams || PQisBusy(n->conn)) && !PQconsumeInput(n->conn))) {
		lose(g, n);
		return;
	}
	while (!g->streams && !PQisBusy(n->conn)) {
		PGresult *r = PQgetResult(n->conn);
		bool bye;

		if (!r) {
			query_over(g, n);
			return;
		}
		bye = is_farewell(r);
		keep_result(n, r);
		if (bye) {
			lose(g, n);
			return;
		}
	}
	node_watch(g, n, true, rc > 0);
}

static bool step_all(struct nodes *g)
{
	bool busy = false;
	int i;

	for (i = 0; i < g->n; i++) {
		step(g, &g->node[i]);
		if (failed(g, &g->node[i]))
			node_raise(&g->node[i]);
		busy = busy || g->node[i].state == NODE_BUSY;
	}
	return busy;
}

/* Looks at the nodes while something else is waited for, so that their errors are not. */
void nodes_look(void)
{
	struct nodes *g;

	for (g = open_nodes; g; g = g->next)
		if (!g->streams)
			step_all(g);
}

static bool wait_slice(struct nodes *g, const char *name)
{
	return wait_for(g->epoll, WL_SOCKET_READABLE, wait_now() + WAIT_SLICE_MS, name) != 0;
}

/* ---- queries ---- */

void node_send(struct nodes *g, int i, const char *text, const struct args *args)
{
	struct node *n = &g->node[i];
	struct node_params p;

	if (n->here || n->lost)
		return;
	node_encode(args, &p);
	PQclear(n->result);
	n->result = NULL;
	if (!PQsendQueryParams(n->conn, text, p.n, p.type, p.value, p.length, p.format, 1)) {
		lose(g, n);
		return;
	}
	n->state = NODE_BUSY;
	n->heard = wait_now();
	n->unsent = 0;
	if (!g->since)
		g->since = wait_now();
	if (g->streams)
		PQsetSingleRowMode(n->conn);
	step(g, n);
}

static void give_up(struct nodes *g, struct node *n, int64 since, const char *what,
		    const char *name)
{
	snprintf(n->why, sizeof(n->why), "%s for %d s (%s)", what,
		 (int)((wait_now() - since) / 1000), name);
	disconnect(g, n);
	n->lost = true;
}

static bool too_long(int64 since)
{
	return wait_now() - since > (int64)gpu_cnn_node_timeout * 1000;
}

void nodes_flush(struct nodes *g, const char *name)
{
	for (;;) {
		bool left = false;
		int i;

		step_all(g);
		for (i = 0; i < g->n; i++) {
			struct node *n = &g->node[i];

			/* sending is over when a second flush has nothing to do */
			if (n->state != NODE_BUSY || PQflush(n->conn) <= 0)
				continue;
			left = true;
			if (too_long(n->heard))
				give_up(g, n, n->heard, "it takes no data", name);
		}
		if (!left)
			return;
		wait_slice(g, name);
	}
}

static int count_busy(const struct nodes *g)
{
	int busy = 0, i;

	for (i = 0; i < g->n; i++)
		busy += g->node[i].state == NODE_BUSY;
	return busy;
}

/* What takes no longer than the way there and back: nothing is computed, nobody waited for. */
static bool is_short(const char *name)
{
	static const char *const all[] = {"settings of nodes",
					  "look for the extension on nodes",
					  "look for the nodes' daemons",
					  "gpu_cnn_begin",
					  "gpu_cnn_get",
					  "gpu_cnn_put",
					  "gpu_cnn_end"};
	size_t i;

	for (i = 0; i < lengthof(all); i++)
		if (!strcmp(all[i], name))
			return true;
	return false;
}

/* The daemons wait for one another at the end of these: all sessions hear of it at once. */
static bool ends_together(const char *name)
{
	return !strcmp(name, "gpu_cnn_run") || !strcmp(name, "gpu_cnn_apply");
}

/*
 * A daemon that stands still is found by the others; nobody but this waits for a session. One that
 * moves no byte for node_timeout is given up where its answer is due: after a short call, and when
 * the others have theirs. Else the others' time is the measure: one has answered long ago, and what
 * the rest do cannot take so much longer. Rows are fed for as long as it takes: a table may lie on
 * one node alone.
 */
static void check_silent(struct nodes *g, int64 start, int64 first, const char *name)
{
	int i;

	for (i = 0; i < g->n; i++) {
		struct node *n = &g->node[i];
		int64 since = ends_together(name) && first > n->heard ? first : n->heard;

		if (n->state != NODE_BUSY)
			continue;
		if ((is_short(name) || (ends_together(name) && first)) && too_long(since))
			give_up(g, n, since, "no answer", name);
		else if (first && strcmp(name, "feed") &&
			 wait_now() - first > STRAGGLER_MS + 10 * (first - start))
			give_up(g, n, first, "no answer after the others'", name);
	}
}

void nodes_await(struct nodes *g, const char *name, struct daemon *daemon)
{
	int64 start = g->since, first = 0;
	int all = count_busy(g);

	while (step_all(g)) {
		if (!first && (count_busy(g) < all || g->here >= 0))
			first = wait_now();
		check_silent(g, start, first, name);
		if (daemon && !wait_slice(g, name))
			daemon_poll(daemon, name);
		else if (!daemon)
			wait_slice(g, name);
	}
}

bool nodes_next(struct nodes *g, const char *name, int *node, PGresult **row)
{
	for (;;) {
		int i;

		step_all(g);
		for (i = 0; i < g->n; i++) {
			struct node *n = &g->node[i];
			PGresult *r;

			if (n->state != NODE_BUSY || PQisBusy(n->conn))
				continue;
			r = PQgetResult(n->conn);
			if (r && PQresultStatus(r) == PGRES_SINGLE_TUPLE) {
				*node = i;
				*row = r;
				return true;
			}
			if (r)
				keep_result(n, r);
			else
				query_over(g, n);
			i = -1; /* again: what is over may have failed */
			if (failed(g, n))
				node_raise(n);
		}
		if (!count_busy(g))
			return false;
		wait_slice(g, name);
	}
}

void nodes_done(struct nodes *g)
{
	int i;

	for (i = 0; i < g->n; i++) {
		PQclear(g->node[i].result);
		g->node[i].result = NULL;
	}
	g->may_lose = g->streams = false;
	g->since = 0;
	node_show_notices(g);
}
