// SPDX-License-Identifier: MIT
/*
 * plot.c: `cnnctl plot`: the history of a model as a PNG or SVG, drawn by gnuplot: loss on the
 * left, the first metric on the right, training and validation.
 */
#include "cnnctl.h"

#include <errno.h>
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static const char text[] = "cnnctl plot [-d CONNINFO] -m MODEL -o FILE\n"
			   "  -d, --dbname CONNINFO  connection string or database name\n"
			   "  -m, --model MODEL      a trained model\n"
			   "  -o, --output FILE      .png or .svg\n";

/* Writes one curve's data inline; points without a value are left out. Returns their number. */
static int column(FILE *f, const PGresult *r, int c)
{
	int n = 0;

	for (int i = 0; i < PQntuples(r); i++) {
		if (PQgetisnull(r, i, c) || !strcmp(PQgetvalue(r, i, c), "NaN"))
			continue;
		fprintf(f, "%s %s\n", PQgetvalue(r, i, 0), PQgetvalue(r, i, c));
		n++;
	}
	return n;
}

static bool has_values(const PGresult *r, int c)
{
	for (int i = 0; i < PQntuples(r); i++)
		if (!PQgetisnull(r, i, c) && strcmp(PQgetvalue(r, i, c), "NaN"))
			return true;
	return false;
}

/* gnuplot's text in double quotes: backslash, quote and control characters out. */
static void quoted(FILE *f, const char *s)
{
	fputc('"', f);
	for (; *s; s++)
		if ((unsigned char)*s >= 32 && *s != '"' && *s != '\\' && *s != '`')
			fputc(*s, f);
	fputc('"', f);
}

static void panel(FILE *f, const PGresult *r, const char *title, int train, int validation)
{
	const char *sep = "";

	fprintf(f, "set title ");
	quoted(f, title);
	fprintf(f, "\nplot ");
	if (has_values(r, train)) {
		fprintf(f, "'-' using 1:2 with linespoints lw 2 pt 7 ps .7 lc rgb '#1f77b4' title "
			   "'training'");
		sep = ", ";
	}
	if (has_values(r, validation))
		fprintf(f,
			"%s'-' using 1:2 with linespoints lw 2 pt 5 ps .7 lc rgb '#d62728' title "
			"'validation'",
			sep);
	fputc('\n', f);
	if (has_values(r, train)) {
		column(f, r, train);
		fprintf(f, "e\n");
	}
	if (has_values(r, validation)) {
		column(f, r, validation);
		fprintf(f, "e\n");
	}
}

static int draw(const PGresult *r, const char *model, const char *output)
{
	size_t n = strlen(output);
	bool svg = n > 4 && !strcmp(output + n - 4, ".svg");
	bool metric = has_values(r, 4) || has_values(r, 5);
	int last = atoi(PQgetvalue(r, PQntuples(r) - 1, 0));
	FILE *f;
	int rc;

	f = popen("gnuplot", "we");
	if (!f)
		return fail("cannot start gnuplot: %s", strerror(errno));
	fprintf(f, "set terminal %s size %d,420 %s\n", svg ? "svg" : "pngcairo",
		metric ? 1000 : 560, svg ? "font 'sans,12'" : "font 'sans,10'");
	fprintf(f, "set output ");
	quoted(f, output);
	fprintf(f,
		"\nset grid lc rgb '#dddddd'\nset key top right\nset xlabel 'epoch'\n"
		"set xtics %d nomirror\nset ytics nomirror\nset border 3\nset xrange [0.5:%g]\n"
		"set multiplot layout 1,%d title ",
		last <= 12 ? 1 : (last + 9) / 10, last + .5, metric ? 2 : 1);
	quoted(f, model);
	fprintf(f, " noenhanced\n");
	panel(f, r, "loss", 2, 3);
	if (metric) {
		fprintf(f, "set key bottom right\n");
		panel(f, r, PQgetvalue(r, PQntuples(r) - 1, 1), 4, 5);
	}
	fprintf(f, "unset multiplot\n");
	if (fflush(f) || ferror(f)) {
		pclose(f);
		return fail("gnuplot ended early; is gnuplot-nox installed?");
	}
	rc = pclose(f);
	if (rc)
		return fail(WIFEXITED(rc) && WEXITSTATUS(rc) == 127
				    ? "gnuplot is not installed (package gnuplot-nox)"
				    : "gnuplot failed");
	if (access(output, R_OK))
		return fail("gnuplot wrote no \"%s\"", output);
	return 0;
}

int cmd_plot(int argc, char **argv)
{
	static const struct option longs[] = {{"dbname", 1, NULL, 'd'},
					      {"model", 1, NULL, 'm'},
					      {"output", 1, NULL, 'o'},
					      {"help", 0, NULL, 'h'},
					      {NULL, 0, NULL, 0}};
	const char *conninfo = NULL, *model = NULL, *output = NULL, *v[1];
	PGconn *db;
	PGresult *r;
	int c, rc = 1;

	while ((c = getopt_long(argc, argv, "d:m:o:h", longs, NULL)) != -1) {
		if (c == 'd')
			conninfo = optarg;
		else if (c == 'm')
			model = optarg;
		else if (c == 'o')
			output = optarg;
		else
			return c == 'h' ? usage(text, NULL) : usage(text, "see the options");
	}
	if (!model || !output || optind != argc)
		return usage(text, "a model (-m) and an output file (-o) are wanted");
	db = db_open(conninfo);
	if (!db)
		return 1;
	v[0] = model;
	r = db_query(db,
		     "SELECT epoch, metric_name, loss, validation_loss, metric, validation_metric "
		     "FROM gpu_cnn_history($1) ORDER BY epoch",
		     1, v);
	if (r && !PQntuples(r))
		rc = fail("model %s has no history", model);
	else if (r)
		rc = draw(r, model, output);
	PQclear(r);
	PQfinish(db);
	return rc;
}
