// SPDX-License-Identifier: MIT
/*
 * train.c: `cnnctl train`: runs SELECT * FROM gpu_cnn_train(...) and shows a progress line
 * meanwhile, read from gpu_cnn_progress() on a second connection. Ctrl-C cancels the statement,
 * which ends the job.
 */
#include "cnnctl.h"

#include <ctype.h>
#include <errno.h>
#include <getopt.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char text[] = "cnnctl train [-d CONNINFO] -t SOURCE -m MODEL [name=value ...]\n"
			   "  -d, --dbname CONNINFO  connection string or database name\n"
			   "  -t, --source SOURCE    table, view or one SELECT\n"
			   "  -m, --model MODEL      name of the model's tables\n"
			   "  -e, --echo             print the statement\n"
			   "  -q, --quiet            no progress line\n"
			   "  name=value             any argument of gpu_cnn_train, for example "
			   "epochs=6 optimizer=adam\n";

struct run {
	const char *conninfo, *source, *model;
	bool echo, quiet;
	PGconn *db, *watch;
	struct bar bar;
	bool bar_on;
	char stage[64];
};

struct text_buf {
	char *p;
	size_t n, capacity;
	bool failed;
};

static void add(struct text_buf *t, const char *s)
{
	size_t k = strlen(s);
	char *p;

	if (t->n + k + 1 > t->capacity) {
		p = realloc(t->p, 2 * (t->n + k + 1));
		if (!p) {
			t->failed = true;
			return;
		}
		t->p = p;
		t->capacity = 2 * (t->n + k + 1);
	}
	memcpy(t->p + t->n, s, k + 1);
	t->n += k;
}

/* , name := 'value' */
static int add_argument(struct run *r, struct text_buf *t, const char *name, size_t name_bytes,
			const char *value)
{
	char *literal = PQescapeLiteral(r->db, value, strlen(value)), key[80];
	const char *quote;

	if (!literal)
		return fail("%s", PQerrorMessage(r->db));
	/* "precision" is a word of SQL's grammar; the other names need no quotes */
	quote = name_bytes == 9 && !strncmp(name, "precision", 9) ? "\"" : "";
	snprintf(key, sizeof(key), "%s%.*s%s := ", quote, (int)name_bytes, name, quote);
	add(t, t->p[t->n - 1] == '(' ? "\n  " : ",\n  ");
	add(t, key);
	add(t, literal);
	PQfreemem(literal);
	return 0;
}

static int build(struct run *r, int argc, char **argv, struct text_buf *t)
{
	add(t, "SELECT * FROM gpu_cnn_train(");
	if (t->failed || add_argument(r, t, "source", 6, r->source) ||
	    add_argument(r, t, "model_table", 11, r->model))
		return 1;
	for (int i = 0; i < argc; i++) {
		size_t n = strcspn(argv[i], "=");

		if (!argv[i][n] || !n || n > 60)
			return usage(text, "'%s' is not name=value", argv[i]);
		for (size_t k = 0; k < n; k++)
			if (!islower((unsigned char)argv[i][k]) &&
			    !isdigit((unsigned char)argv[i][k]) && argv[i][k] != '_')
				return usage(text, "'%.*s' is not the name of an argument", (int)n,
					     argv[i]);
		if (add_argument(r, t, argv[i], n, argv[i] + n + 1))
			return 1;
	}
	add(t, ")");
	return t->failed ? fail("out of memory") : 0;
}

static void on_notice(void *arg, const PGresult *result)
{
	struct run *r = arg;
	const char *severity = PQresultErrorField(result, PG_DIAG_SEVERITY);
	const char *message = PQresultErrorField(result, PG_DIAG_MESSAGE_PRIMARY);

	if (r->bar_on)
		bar_clear(&r->bar);
	if (severity && strcmp(severity, "NOTICE") && strcmp(severity, "INFO"))
		fprintf(stderr, "%s: ", severity);
	fprintf(stderr, "%s\n", message ? message : "");
}

/* One look at the daemon through the second connection. */
static void show_progress(struct run *r)
{
	const char *v[] = {r->model};
	char more[96], title[48];
	double epoch, epochs, step, steps;
	PGresult *q;

	q = PQexecParams(
		r->watch,
		"SELECT state, coalesce(epoch, 0), coalesce(epochs, 0), coalesce(step, 0), "
		"coalesce(steps, 0), coalesce(rows, 0), loss FROM gpu_cnn_progress() WHERE "
		"model = $1 LIMIT 1",
		1, NULL, v, NULL, NULL, 0);
	if (PQresultStatus(q) != PGRES_TUPLES_OK || !PQntuples(q)) {
		PQclear(q);
		return;
	}
	epoch = atof(PQgetvalue(q, 0, 1));
	epochs = atof(PQgetvalue(q, 0, 2));
	step = atof(PQgetvalue(q, 0, 3));
	steps = atof(PQgetvalue(q, 0, 4));
	if (epoch > 0 && epochs > 0 && steps > 0) {
		snprintf(title, sizeof(title), "epoch %.0f/%.0f", epoch, epochs);
		if (!r->bar_on || r->bar.total <= 0) {
			bar_begin(&r->bar, r->stage, "steps", epochs * steps);
			r->bar_on = true;
		}
		snprintf(r->stage, sizeof(r->stage), "%s", title);
		snprintf(more, sizeof(more), PQgetisnull(q, 0, 6) ? "" : "loss %.4f",
			 atof(PQgetvalue(q, 0, 6)));
		bar_show(&r->bar, (epoch - 1) * steps + step, more, false);
	} else {
		if (!r->bar_on) {
			bar_begin(&r->bar, r->stage, "rows", 0);
			r->bar_on = true;
		}
		snprintf(r->stage, sizeof(r->stage), "%.40s, rows", PQgetvalue(q, 0, 0));
		bar_show(&r->bar, atof(PQgetvalue(q, 0, 5)), "", false);
	}
	PQclear(q);
}

static void cancel(struct run *r)
{
	char error[256];
	PGcancel *c = PQgetCancel(r->db);

	if (r->bar_on)
		bar_clear(&r->bar);
	fprintf(stderr, "cancelling ...\n");
	if (c && !PQcancel(c, error, sizeof(error)))
		fail("%s", error);
	PQfreeCancel(c);
}

/* Waits for the statement's result. NULL: the connection is lost, or no answer to a cancel in 30 s.
 */
static PGresult *wait_result(struct run *r)
{
	struct pollfd p = {PQsocket(r->db), POLLIN, 0};
	double cancelled = 0;

	while (PQisBusy(r->db)) {
		if (poll(&p, 1, 250) < 0 && errno != EINTR)
			return NULL;
		if (interrupted() && cancelled <= 0) {
			cancel(r);
			cancelled = now_seconds();
		}
		if (cancelled > 0 && now_seconds() - cancelled > 30) {
			fail("no answer to the cancel request within 30 s");
			return NULL;
		}
		if (!PQconsumeInput(r->db)) {
			fail("%s", PQerrorMessage(r->db));
			return NULL;
		}
		if (!r->quiet && cancelled <= 0)
			show_progress(r);
	}
	return PQgetResult(r->db);
}

static int execute(struct run *r, const char *sql)
{
	PGresult *q, *rest;
	int rc = 1;

	if (r->echo)
		printf("%s;\n", sql);
	fflush(stdout);
	if (!PQsendQuery(r->db, sql))
		return fail("%s", PQerrorMessage(r->db));
	q = wait_result(r);
	if (r->bar_on)
		bar_clear(&r->bar);
	if (!q)
		return interrupted() ? 130 : 1;
	if (PQresultStatus(q) == PGRES_TUPLES_OK) {
		for (int c = 0; c < PQnfields(q) && PQntuples(q); c++)
			printf("%-18s %s\n", PQfname(q, c), PQgetvalue(q, 0, c));
		rc = 0;
	} else if (!interrupted()) {
		db_good(r->db, q);
	}
	PQclear(q);
	while ((rest = PQgetResult(r->db)))
		PQclear(rest);
	if (interrupted() && rc) {
		fprintf(stderr, "cancelled; nothing was stored\n");
		return 130;
	}
	return rc;
}

static int parse_options(struct run *r, int argc, char **argv)
{
	static const struct option longs[] = {{"dbname", 1, NULL, 'd'}, {"source", 1, NULL, 't'},
					      {"model", 1, NULL, 'm'},	{"echo", 0, NULL, 'e'},
					      {"quiet", 0, NULL, 'q'},	{"help", 0, NULL, 'h'},
					      {NULL, 0, NULL, 0}};
	int c;

	while ((c = getopt_long(argc, argv, "d:t:m:eqh", longs, NULL)) != -1) {
		switch (c) {
		case 'd':
			r->conninfo = optarg;
			break;
		case 't':
			r->source = optarg;
			break;
		case 'm':
			r->model = optarg;
			break;
		case 'e':
			r->echo = true;
			break;
		case 'q':
			r->quiet = true;
			break;
		case 'h':
			usage(text, NULL);
			return -1;
		default:
			return usage(text, "see the options");
		}
	}
	if (!r->source || !r->model)
		return usage(text, "a source (-t) and a model (-m) are wanted");
	return 0;
}

int cmd_train(int argc, char **argv)
{
	struct run r = {0};
	struct text_buf sql = {0};
	int rc = parse_options(&r, argc, argv);

	if (rc)
		return rc < 0 ? 0 : rc;
	catch_interrupts();
	rc = 1;
	r.db = db_open(r.conninfo);
	r.watch = r.db ? db_open(r.conninfo) : NULL;
	if (r.watch) {
		PQsetNoticeReceiver(r.db, on_notice, &r);
		rc = build(&r, argc - optind, argv + optind, &sql);
		if (!rc)
			rc = execute(&r, sql.p);
	}
	PQfinish(r.db);
	PQfinish(r.watch);
	free(sql.p);
	return rc;
}
