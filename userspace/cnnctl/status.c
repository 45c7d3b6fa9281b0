// SPDX-License-Identifier: MIT
/* status.c: `cnnctl status`, `drain`, `undrain`: talks to a daemon by the control protocol. */
#include "cnnctl.h"

#include "../ctl/ctl.h"

#include <getopt.h>
#include <jansson.h>
#include <pwd.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const char text[] = "cnnctl status [-S SOCKET] [--json]\n"
			   "cnnctl drain | undrain [-S SOCKET]\n"
			   "  -S, --socket PATH  default " CTL_DEFAULT_SOCKET "\n"
			   "  -j, --json         one JSON object: version, jobs, devices\n";

static int report(const struct err *err)
{
	fail("%s", err->message);
	if (err->hint[0])
		fprintf(stderr, "HINT:  %s\n", err->hint);
	return 1;
}

static struct ctl_conn *open_daemon(const char *path, struct err *err)
{
	struct passwd *pw = getpwuid(getuid());
	struct ctl_conn *conn = NULL;

	/* any owner: the caller named the socket, and nothing secret is sent */
	if (ctl_open(path, (unsigned int)-1, "cnnctl " CNN_VERSION, pw ? pw->pw_name : "", &conn,
		     err))
		return NULL;
	return conn;
}

static json_t *str(struct ctl_str s)
{
	json_t *j = json_stringn(s.p ? s.p : "", s.n);

	return j ? j : json_string("");
}

static json_t *job_json(const struct ctl_msg *m)
{
	static const char *const kinds[] = {"train", "predict", "evaluate"};
	const struct ctl_job *e = &m->u.entry;
	char id[2 * CTL_ID + 1];
	json_t *j;

	for (int i = 0; i < CTL_ID; i++)
		snprintf(id + 2 * i, 3, "%02x", e->id[i]);
	j = json_pack("{s:s, s:s, s:b, s:i, s:i, s:I, s:I, s:I, s:f, s:I, s:i}", "id", id, "kind",
		      kinds[e->kind < 3 ? e->kind : 0], "own", e->own, "epoch", (int)e->epoch,
		      "epochs", (int)e->epochs, "step", (json_int_t)e->step, "steps",
		      (json_int_t)e->steps, "rows", (json_int_t)e->rows, "seconds", e->seconds,
		      "memory", (json_int_t)e->memory, "merges", (int)e->merges);
	json_object_set_new(j, "loss", e->loss == e->loss ? json_real(e->loss) : json_null());
	json_object_set_new(j, "ended", json_boolean(e->ended));
	/* of the last committed merge; as text: JSON's numbers have no 64 bits everywhere */
	json_object_set_new(j, "checksum",
			    e->checksum ? json_sprintf("%016llx", (unsigned long long)e->checksum)
					: json_null());
	json_object_set_new(j, "role", str(e->role));
	json_object_set_new(j, "database", str(e->database));
	json_object_set_new(j, "state", str(e->state));
	json_object_set_new(j, "wait", str(e->wait));
	json_object_set_new(j, "reason", e->ended ? str(e->wait) : json_null());
	json_object_set_new(j, "device", str(e->device));
	json_object_set_new(j, "model", str(e->model));
	return j;
}

static json_t *device_json(const struct ctl_msg *m)
{
	const struct ctl_device *d = &m->u.device;
	json_t *j = json_pack("{s:i, s:I, s:I, s:i}", "index", (int)d->index, "memory",
			      (json_int_t)d->memory, "free_memory", (json_int_t)d->free_memory,
			      "jobs", (int)d->jobs);

	json_object_set_new(j, "name", str(d->name));
	json_object_set_new(j, "kind", str(d->kind));
	json_object_set_new(j, "info", str(d->info));
	return j;
}

/* Asks for one list; its rows are appended to a JSON array. */
static int list(struct ctl_conn *conn, enum ctl_type ask, json_t *array, struct err *err)
{
	struct ctl_msg m = {.type = ask};
	int rc = ctl_call(conn, &m, &m, 5000, err);

	while (!rc && m.type != CTL_DONE) {
		if (m.type == CTL_JOB)
			json_array_append_new(array, job_json(&m));
		else if (m.type == CTL_DEVICE)
			json_array_append_new(array, device_json(&m));
		rc = ctl_wait(conn, &m, 5000, err);
	}
	return rc;
}

static const char *get(json_t *j, const char *key)
{
	const char *s = json_string_value(json_object_get(j, key));

	return s ? s : "";
}

static double num(json_t *j, const char *key)
{
	return json_number_value(json_object_get(j, key));
}

static bool is_ended(json_t *j)
{
	return json_is_true(json_object_get(j, "ended"));
}

static void print_merge(json_t *j)
{
	if (num(j, "merges") > 0)
		printf("  merge %.0f %s", num(j, "merges"), get(j, "checksum"));
}

static void print_running(json_t *j)
{
	char a[16];

	printf("  %.8s  %-8s  %-9s  epoch %.0f/%.0f  step %.0f/%.0f", get(j, "id"), get(j, "kind"),
	       get(j, "state"), num(j, "epoch"), num(j, "epochs"), num(j, "step"), num(j, "steps"));
	if (json_is_real(json_object_get(j, "loss")))
		printf("  loss %.4f", num(j, "loss"));
	printf("  %s  %s  memory %sB  %.0f s", get(j, "role"), get(j, "model"),
	       human(num(j, "memory"), a, sizeof(a)), num(j, "seconds"));
	print_merge(j);
	if (*get(j, "wait"))
		printf("  waits for %s", get(j, "wait"));
	putchar('\n');
}

static void print_ended(json_t *jobs)
{
	bool any = false;
	json_t *j;
	size_t i;

	json_array_foreach(jobs, i, j)
	{
		if (!is_ended(j))
			continue;
		if (!any)
			printf("ended\n");
		any = true;
		printf("  %s  %-8s  %s  %s  %.0f s", get(j, "id"), get(j, "kind"), get(j, "role"),
		       get(j, "model"), num(j, "seconds"));
		print_merge(j);
		printf("  %s\n", get(j, "reason"));
	}
}

static void print_text(json_t *root)
{
	json_t *jobs = json_object_get(root, "jobs"), *devices = json_object_get(root, "devices"),
	       *j;
	char a[16], b[16];
	bool any = false;
	size_t i;

	printf("devices\n");
	json_array_foreach(devices, i, j)
		printf("  %s  %s  jobs %.0f  memory %sB, free %sB\n", get(j, "name"),
		       get(j, "info"), num(j, "jobs"), human(num(j, "memory"), a, sizeof(a)),
		       human(num(j, "free_memory"), b, sizeof(b)));
	printf("jobs\n");
	json_array_foreach(jobs, i, j)
	{
		if (is_ended(j))
			continue;
		any = true;
		print_running(j);
	}
	if (!any)
		printf("  none\n");
	print_ended(jobs);
}

static int parse(int argc, char **argv, const char **path, bool *json)
{
	static const struct option longs[] = {{"socket", 1, NULL, 'S'},
					      {"json", 0, NULL, 'j'},
					      {"help", 0, NULL, 'h'},
					      {NULL, 0, NULL, 0}};
	int c;

	*path = CTL_DEFAULT_SOCKET;
	while ((c = getopt_long(argc, argv, "S:jh", longs, NULL)) != -1) {
		if (c == 'S')
			*path = optarg;
		else if (c == 'j' && json)
			*json = true;
		else if (c == 'h')
			return usage(text, NULL) - 1;
		else
			return usage(text, "see the options");
	}
	if (optind != argc)
		return usage(text, "'%s' is too much", argv[optind]);
	return 0;
}

int cmd_status(int argc, char **argv)
{
	const char *path;
	bool json = false;
	struct err err = {0};
	struct ctl_conn *conn;
	json_t *root, *jobs, *devices;
	int rc = parse(argc, argv, &path, &json);

	if (rc)
		return rc < 0 ? 0 : rc;
	conn = open_daemon(path, &err);
	if (!conn)
		return report(&err);
	root = json_object();
	jobs = json_array();
	devices = json_array();
	json_object_set_new(root, "socket", json_string(path));
	json_object_set_new(root, "jobs", jobs);
	json_object_set_new(root, "devices", devices);
	rc = list(conn, CTL_DEVICES, devices, &err);
	if (!rc)
		rc = list(conn, CTL_STATUS, jobs, &err);
	if (rc) {
		report(&err);
	} else if (json) {
		json_dumpf(root, stdout, JSON_INDENT(1));
		putchar('\n');
	} else {
		print_text(root);
	}
	json_decref(root);
	ctl_conn_free(conn);
	return rc ? 1 : 0;
}

int cmd_drain(int argc, char **argv)
{
	struct ctl_msg m = {.type = CTL_DRAIN};
	struct err err = {0};
	struct ctl_conn *conn;
	const char *path;
	int rc;

	m.u.drain.on = !strcmp(argv[0], "drain");
	rc = parse(argc, argv, &path, NULL);
	if (rc)
		return rc < 0 ? 0 : rc;
	conn = open_daemon(path, &err);
	if (!conn)
		return report(&err);
	rc = ctl_call(conn, &m, &m, 5000, &err);
	ctl_conn_free(conn);
	return rc ? report(&err) : 0;
}
