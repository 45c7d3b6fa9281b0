// SPDX-License-Identifier: MIT
/*
 * load.c: `cnnctl load`: images into a table by COPY BINARY. Rows go in transactions of --batch
 * rows and carry an id in the order of the files, so that an interrupted load goes on where it
 * stopped.
 */
#include "cnnctl.h"

#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char text[] =
	"cnnctl load [-d CONNINFO] -t TABLE [options] FILE...\n"
	"  FILE       an IDX image file and its label file (MNIST family), CIFAR binary files, or\n"
	"             folders or tars of JPEG and PNG files in one folder per class; compressed or "
	"not\n"
	"  -d, --dbname CONNINFO  connection string or database name\n"
	"  -t, --table TABLE      created as (id bigint, x bytea, y integer), or for files of "
	"images\n"
	"                         (id bigint, x bytea, y text, path text)\n"
	"  -f, --format FORMAT    idx, cifar10, cifar100, files; default: by the first file\n"
	"  -p, --only PREFIX      of a folder or tar, only paths that start with PREFIX\n"
	"  -c, --classes A,B,...  names for the labels 0, 1, ...: y becomes text\n"
	"  -r, --resume           go on with a load that was interrupted\n"
	"      --replace          drop the table first, if there is one\n"
	"  -b, --batch N          rows in one transaction (default 5000)\n"
	"  -q, --quiet            no progress line\n";

struct load {
	const char *conninfo, *table, *only;
	char *classes;
	char **class_name;
	int n_classes;
	enum source_format format;
	bool resume, replace, quiet;
	long batch;
	PGconn *db;
	struct source *source;
	char *quoted; /* the table's name, quoted */
	uint64_t skip, rows, bad;
	/* one tuple */
	uint8_t *buf;
	size_t capacity;
};

static int parse_format(const char *name, enum source_format *out)
{
	static const char *const names[] = {"auto", "idx", "cifar10", "cifar100", "files"};

	for (int i = 0; i < 5; i++) {
		if (!strcmp(name, names[i])) {
			*out = (enum source_format)i;
			return 0;
		}
	}
	return -1;
}

static int parse_options(struct load *l, int argc, char **argv)
{
	static const struct option longs[] = {
		{"dbname", 1, NULL, 'd'},  {"table", 1, NULL, 't'},   {"format", 1, NULL, 'f'},
		{"only", 1, NULL, 'p'},	   {"classes", 1, NULL, 'c'}, {"resume", 0, NULL, 'r'},
		{"replace", 0, NULL, 'R'}, {"batch", 1, NULL, 'b'},   {"quiet", 0, NULL, 'q'},
		{"help", 0, NULL, 'h'},	   {NULL, 0, NULL, 0}};
	char *end;
	int c;

	l->batch = 5000;
	while ((c = getopt_long(argc, argv, "d:t:f:p:c:rb:qh", longs, NULL)) != -1) {
		switch (c) {
		case 'd':
			l->conninfo = optarg;
			break;
		case 't':
			l->table = optarg;
			break;
		case 'f':
			if (parse_format(optarg, &l->format))
				return usage(text, "there is no format '%s'", optarg);
			break;
		case 'p':
			l->only = optarg;
			break;
		case 'c':
			l->classes = optarg;
			break;
		case 'r':
			l->resume = true;
			break;
		case 'R':
			l->replace = true;
			break;
		case 'b':
			l->batch = strtol(optarg, &end, 10);
			if (*end || l->batch < 1 || l->batch > 10000000)
				return usage(text, "--batch %s: wanted 1 to 10000000", optarg);
			break;
		case 'q':
			l->quiet = true;
			break;
		case 'h':
			usage(text, NULL);
			return -1;
		default:
			return usage(text, "see the options");
		}
	}
	if (!l->table)
		return usage(text, "a table is wanted (-t)");
	if (l->resume && l->replace)
		return usage(text, "--resume and --replace exclude each other");
	if (optind == argc)
		return usage(text, "files are wanted");
	return 0;
}

static int split_classes(struct load *l)
{
	char *p = l->classes;

	if (!p)
		return 0;
	l->class_name = calloc(strlen(p) / 2 + 2, sizeof(*l->class_name));
	if (!l->class_name)
		return fail("out of memory");
	while (p) {
		l->class_name[l->n_classes++] = strsep(&p, ",");
	}
	return 0;
}

/* The table's name as SQL text, from [schema.]table as a user writes it. */
static int quote_table(struct load *l)
{
	const char *v[] = {l->table};
	PGresult *r = db_query(l->db,
			       "SELECT string_agg(quote_ident(p), '.' ORDER BY o) FROM "
			       "unnest(parse_ident($1)) WITH ORDINALITY AS u(p, o)",
			       1, v);

	if (!r)
		return 1;
	l->quoted = strdup(PQgetvalue(r, 0, 0));
	PQclear(r);
	return l->quoted ? 0 : fail("out of memory");
}

static int run(struct load *l, const char *fmt)
{
	char sql[2048];
	PGresult *r;
	bool good;

	snprintf(sql, sizeof(sql), fmt, l->quoted);
	r = PQexec(l->db, sql);
	good = db_good(l->db, r);
	PQclear(r);
	return good ? 0 : 1;
}

static int prepare_table(struct load *l)
{
	const char *v[] = {l->quoted};
	bool paths = source_has_paths(l->source), there;
	char sql[512];
	PGresult *r = db_query(l->db, "SELECT to_regclass($1) IS NOT NULL", 1, v);

	if (!r)
		return 1;
	there = *PQgetvalue(r, 0, 0) == 't';
	PQclear(r);
	if (there && l->replace && run(l, "DROP TABLE %s"))
		return 1;
	if (there && l->resume) {
		snprintf(sql, sizeof(sql), "SELECT coalesce(max(id) + 1, 0) FROM %s", l->quoted);
		r = db_query(l->db, sql, 0, NULL);
		if (!r)
			return 1;
		l->skip = strtoull(PQgetvalue(r, 0, 0), NULL, 10);
		PQclear(r);
		return 0;
	}
	if (there && !l->replace)
		return fail("table %s exists; --resume goes on with an interrupted load, --replace "
			    "starts anew",
			    l->quoted);
	if (paths)
		return run(l,
			   "CREATE TABLE %s (id bigint PRIMARY KEY, x bytea NOT NULL, y text NOT "
			   "NULL, path text)") ||
		       run(l, "ALTER TABLE %s ALTER x SET STORAGE EXTERNAL");
	if (run(l, l->n_classes
			   ? "CREATE TABLE %s (id bigint PRIMARY KEY, x bytea NOT NULL, y text "
			     "NOT NULL)"
			   : "CREATE TABLE %s (id bigint PRIMARY KEY, x bytea NOT NULL, y integer "
			     "NOT NULL)"))
		return 1;
	return 0;
}

/* ---- COPY BINARY ---- */

static uint8_t *put_be(uint8_t *p, uint64_t v, int n)
{
	for (int i = n - 1; i >= 0; i--)
		*p++ = (uint8_t)(v >> (8 * i));
	return p;
}

static uint8_t *put_field(uint8_t *p, const void *data, size_t n)
{
	p = put_be(p, n, 4);
	memcpy(p, data, n);
	return p + n;
}

static int copy_begin(struct load *l)
{
	static const char head[19] = "PGCOPY\n\377\r\n\0\0\0\0\0\0\0\0\0";
	char sql[2048];
	PGresult *r;
	bool good;

	snprintf(sql, sizeof(sql), "COPY %s (id, x, y%s) FROM STDIN (FORMAT binary)", l->quoted,
		 source_has_paths(l->source) ? ", path" : "");
	r = PQexec(l->db, sql);
	good = db_good(l->db, r);
	PQclear(r);
	if (!good)
		return 1;
	if (PQputCopyData(l->db, head, sizeof(head)) != 1)
		return fail("%s", PQerrorMessage(l->db));
	return 0;
}

/* error: NULL commits. */
static int copy_end(struct load *l, const char *error)
{
	static const char trailer[2] = "\377\377";
	PGresult *r;
	bool good = true;

	if (!error && PQputCopyData(l->db, trailer, 2) != 1)
		good = false;
	if (PQputCopyEnd(l->db, error) != 1)
		good = false;
	while ((r = PQgetResult(l->db))) {
		if (!error && !db_good(l->db, r))
			good = false;
		PQclear(r);
	}
	return good ? 0 : 1;
}

static int copy_row(struct load *l, const struct source_item *item, uint64_t id)
{
	const char *class = item->class;
	size_t path = item->path ? strlen(item->path) : 0, want;
	uint8_t *p, be[4];

	if (!class && l->n_classes) {
		if (item->label < 0 || item->label >= l->n_classes)
			return fail("label %d of item %llu has no name: --classes has %d",
				    item->label, (unsigned long long)id, l->n_classes);
		class = l->class_name[item->label];
	}
	want = 2 + 12 + 4 + item->x_bytes + 4 + (class ? strlen(class) : 4) + 4 + path;
	if (want > l->capacity) {
		p = realloc(l->buf, want);
		if (!p)
			return fail("out of memory");
		l->buf = p;
		l->capacity = want;
	}
	p = put_be(l->buf, item->path ? 4 : 3, 2);
	p = put_be(p, 8, 4);
	p = put_be(p, id, 8);
	p = put_field(p, item->x, item->x_bytes);
	if (class) {
		p = put_field(p, class, strlen(class));
	} else {
		put_be(be, (uint32_t)item->label, 4);
		p = put_field(p, be, 4);
	}
	if (item->path)
		p = put_field(p, item->path, path);
	if (PQputCopyData(l->db, (const char *)l->buf, (int)(p - l->buf)) != 1)
		return fail("%s", PQerrorMessage(l->db));
	return 0;
}

/* One transaction: up to batch rows. 1 more to come, 0 the end, -1 failed or interrupted. */
static int load_batch(struct load *l, struct bar *bar, uint64_t *seen)
{
	struct source_item item;
	struct source_bad bad;
	char error[5120];
	uint64_t rows = 0;
	bool stopped;
	int rc = 1;

	if (copy_begin(l))
		return -1;
	while (rows < (uint64_t)l->batch && !interrupted()) {
		rc = source_next(l->source, &item, &bad, error, sizeof(error));
		if (rc <= 0)
			break;
		if (rc == 2) {
			l->bad++;
			bar_clear(bar);
			fprintf(stderr, "bad file: %s %s\n", bad.path, bad.reason);
			continue;
		}
		if ((*seen)++ < l->skip)
			continue;
		if (copy_row(l, &item, *seen - 1)) {
			copy_end(l, "load failed");
			return -1;
		}
		rows++;
		if (!l->quiet)
			bar_show(bar, (double)(*seen), "", false);
	}
	if (rc < 0)
		fail("%s", error);
	/* what came before a broken place is kept; one look, so that the count is what was
	 * committed */
	stopped = interrupted();
	if (copy_end(l, stopped ? "interrupted" : NULL) || stopped)
		return -1;
	l->rows += rows;
	return rc < 0 ? -1 : rc != 0;
}

static int load_all(struct load *l)
{
	struct bar bar;
	uint64_t seen = 0;
	double start = now_seconds();
	int rc;

	bar_begin(&bar, l->table, "images", (double)source_total(l->source));
	do {
		rc = load_batch(l, &bar, &seen);
	} while (rc > 0);
	bar_clear(&bar);
	printf("%llu rows loaded into %s in %.1f s%s", (unsigned long long)l->rows, l->quoted,
	       now_seconds() - start, l->skip ? "" : "\n");
	if (l->skip)
		printf(" (%llu were there)\n", (unsigned long long)l->skip);
	if (l->bad)
		printf("%llu bad files were left out (listed above)\n", (unsigned long long)l->bad);
	if (interrupted()) {
		fail("interrupted; the same command with --resume goes on");
		return 130;
	}
	if (rc < 0)
		return 1;
	return run(l, "ANALYZE %s");
}

int cmd_load(int argc, char **argv)
{
	struct load l = {0};
	char error[5120];
	int rc = parse_options(&l, argc, argv);

	if (rc)
		return rc < 0 ? 0 : rc;
	catch_interrupts();
	rc = split_classes(&l);
	if (rc)
		goto out;
	l.source =
		source_open(l.format, argv + optind, argc - optind, l.only, error, sizeof(error));
	if (!l.source) {
		rc = fail("%s", error);
		goto out;
	}
	rc = 1;
	l.db = db_open(l.conninfo);
	if (l.db && !quote_table(&l) && !prepare_table(&l))
		rc = load_all(&l);
out:
	source_close(l.source);
	PQfinish(l.db);
	free(l.class_name);
	free(l.quoted);
	free(l.buf);
	return rc;
}
