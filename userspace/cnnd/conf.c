// SPDX-License-Identifier: MIT
/* conf.c: the table of keys and the reading of the file. See conf.h. */
#include "conf.h"

#include <ctype.h>
#include <errno.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include "conf_value.h"

#define MAX_LINE 4096
#define MAX_LINES 10000u
#define KEYS (sizeof(keys) / sizeof(keys[0]))

enum kind {
	K_PATH = 0, /* absolute */
	K_SPILL,    /* absolute, "none", or nothing */
	K_UINT,	    /* uint32_t */
	K_BYTES,    /* uint64_t */
	K_RING,	    /* bytes, a power of two */
	K_AMOUNT,
	K_BOOL,
	K_WORD,
	K_USERS,
	K_GROUP,
	K_DEVICES,
	K_ADDRESS,
	K_PORTS,
	K_CONGESTION,
	K_LIST /* names with commas between them, or nothing */
};

struct key {
	const char *name;
	enum kind kind;
	bool reload;
	size_t offset;
	uint64_t min, max; /* K_PATH: max is the size of the array */
	const char *value;
	const char *words;
};

#define AT(member) offsetof(struct conf, member)
#define KIB UINT64_C(1024)
#define MIB (KIB << 10)
#define GIB (MIB << 10)

/* clang-format off */
static const struct key keys[] = {
	{"socket", K_PATH, false, AT(socket), 0, sizeof(((struct conf *)0)->socket), "/run/cnnd/cnnd.sock", NULL},
	{"socket_group", K_GROUP, false, AT(socket_group), 0, 0, "gpu_cnn", NULL},
	{"state_dir", K_PATH, false, AT(state_dir), 0, CONF_PATH, "/var/lib/cnnd", NULL},
	{"spill_dir", K_SPILL, false, AT(spill_dir), 0, CONF_PATH, "", NULL},
	{"spill_max", K_BYTES, true, AT(spill_max), 0, UINT64_C(1) << 50, "0", NULL},
	{"spill_min_free", K_BYTES, true, AT(spill_min_free), 0, UINT64_C(1) << 50, "1G", NULL},
	{"database_uids", K_USERS, true, AT(database_uids), 0, 0, "postgres gpadmin", NULL},
	{"admin_uids", K_USERS, true, AT(admin_uids), 0, 0, "root", NULL},
	{"devices", K_DEVICES, false, AT(devices), 0, 0, "auto", NULL},
	{"memory", K_AMOUNT, true, AT(memory), 32 * MIB, 0, "25%", NULL},
	{"memory_per_role", K_AMOUNT, true, AT(memory_per_role), 16 * MIB, 0, "50%", NULL},
	{"ring", K_WORD, true, AT(ring), 0, 0, "auto", "auto|memfd|device"},
	{"ring_bytes", K_RING, true, AT(ring_bytes), 64 * KIB, GIB, "8M", NULL},
	{"ring_total", K_BYTES, true, AT(ring_total), 64 * KIB, UINT64_C(1) << 50, "1G", NULL},
	{"max_value", K_BYTES, true, AT(max_value), 64 * KIB, 16 * GIB, "1G", NULL},
	{"max_trainings", K_UINT, true, AT(max_trainings), 1, 1024, "1", NULL},
	{"max_predictions", K_UINT, true, AT(max_predictions), 1, 1024, "16", NULL},
	{"max_jobs_per_role", K_UINT, true, AT(max_jobs_per_role), 1, 1024, "8", NULL},
	{"max_queue", K_UINT, true, AT(max_queue), 1, 4096, "32", NULL},
	{"max_connections", K_UINT, true, AT(max_connections), 2, 65536, "512", NULL},
	{"max_connections_per_uid", K_UINT, true, AT(max_connections_per_uid), 1, 65536, "256", NULL},
	{"job_time_max", K_UINT, true, AT(job_time_max), 0, 31536000, "0", NULL},
	{"orphan_timeout", K_UINT, true, AT(orphan_timeout), 1, 86400, "60", NULL},
	{"stop_timeout", K_UINT, true, AT(stop_timeout), 0, 86400, "60", NULL},
	{"decode_workers", K_UINT, false, AT(decode_workers), 0, 1024, "0", NULL},
	{"decode_sandbox", K_BOOL, false, AT(decode_sandbox), 0, 0, "on", NULL},
	{"max_image_pixels", K_BYTES, false, AT(max_image_pixels), 1, 4 * GIB, "64M", NULL},
	{"max_image_bytes", K_BYTES, false, AT(max_image_bytes), 1, GIB, "64M", NULL},
	{"image_timeout", K_UINT, false, AT(image_timeout), 10, 600000, "2000", NULL},
	{"merge_listen", K_ADDRESS, true, AT(merge_listen), 0, CONF_ADDRESS, "127.0.0.1", NULL},
	{"merge_ports", K_PORTS, true, AT(merge_ports), 0, 0, "0", NULL},
	{"merge_mac", K_BOOL, true, AT(merge_mac), 0, 0, "on", NULL},
	{"merge_timeout", K_UINT, true, AT(merge_timeout), 1, 3600, "60", NULL},
	{"rejoin_timeout", K_UINT, true, AT(rejoin_timeout), 5, 3600, "60", NULL},
	{"merge_congestion", K_CONGESTION, true, AT(merge_congestion), 0, 16, "", NULL},
	{"merge_transport", K_WORD, true, AT(merge_transport), 0, 0, "tcp", "tcp|ucx"},
	{"merge_ucx_tls", K_LIST, true, AT(merge_ucx_tls), 0, CONF_LIST, "", NULL},
	{"merge_ucx_devices", K_LIST, true, AT(merge_ucx_devices), 0, CONF_LIST, "", NULL},
	{"debug", K_BOOL, true, AT(debug), 0, 0, "off", NULL},
};
/* clang-format on */

bool conf_key(unsigned int i, struct conf_key_info *out)
{
	if (i >= KEYS)
		return false;
	*out = (struct conf_key_info){keys[i].name, keys[i].value, keys[i].reload};
	return true;
}

static int set_path(const struct key *k, const char *text, char *out, char why[CONF_WHY])
{
	if (k->kind == K_SPILL && (!text[0] || !strcmp(text, "none"))) {
		strcpy(out, text);
		return 0;
	}
	if (text[0] != '/') {
		snprintf(why, CONF_WHY, "an absolute path is wanted");
		return -EINVAL;
	}
	if (strlen(text) >= k->max) {
		snprintf(why, CONF_WHY, "longer than %zu bytes", (size_t)k->max - 1);
		return -EINVAL;
	}
	strcpy(out, text);
	return 0;
}

static int set_uint(const struct key *k, const char *text, uint32_t *out, char why[CONF_WHY])
{
	uint64_t v;

	if (conf_uint(text, k->min, k->max, &v, why))
		return -EINVAL;
	*out = (uint32_t)v;
	return 0;
}

static int set_ring(const struct key *k, const char *text, uint64_t *out, char why[CONF_WHY])
{
	uint64_t v;

	if (conf_bytes(text, k->min, k->max, &v, why))
		return -EINVAL;
	if (v & (v - 1)) {
		snprintf(why, CONF_WHY, "a power of two is wanted");
		return -EINVAL;
	}
	*out = v;
	return 0;
}

static int set_word(const struct key *k, const char *text, uint32_t *out, char why[CONF_WHY])
{
	uint32_t v;

	if (conf_word(text, k->words, &v, why))
		return -EINVAL;
	*out = v;
	return 0;
}

static int set_named(const struct key *k, const char *text, struct conf *c, char why[CONF_WHY])
{
	char *name = (char *)c + k->offset;

	if (strlen(text) >= sizeof(c->devices)) {
		snprintf(why, CONF_WHY, "longer than %zu bytes", sizeof(c->devices) - 1);
		return -EINVAL;
	}
	if (k->kind == K_GROUP ? conf_group(text, &c->socket_gid, why)
			       : conf_devices(text, &c->device, why))
		return -EINVAL;
	strcpy(name, text);
	return 0;
}

static int set(const struct key *k, const char *text, bool lenient, struct conf *c,
	       char why[CONF_WHY])
{
	void *at = (char *)c + k->offset;

	switch (k->kind) {
	case K_PATH:
	case K_SPILL:
		return set_path(k, text, at, why);
	case K_UINT:
		return set_uint(k, text, at, why);
	case K_BYTES:
		return conf_bytes(text, k->min, k->max, at, why);
	case K_RING:
		return set_ring(k, text, at, why);
	case K_AMOUNT:
		return conf_bytes_or_percent(text, k->min, at, why);
	case K_BOOL:
		return conf_bool(text, at, why);
	case K_WORD:
		return set_word(k, text, at, why);
	case K_USERS:
		return conf_users(text, lenient, at, why);
	case K_GROUP:
	case K_DEVICES:
		return set_named(k, text, c, why);
	case K_ADDRESS:
		return conf_address(text, at, why);
	case K_PORTS:
		return conf_ports(text, at, why);
	case K_CONGESTION:
		return conf_congestion(text, at, why);
	case K_LIST:
		return conf_list(text, at, why);
	}
	return -EINVAL;
}

struct reader {
	const char *file;
	unsigned int line, faults;
	conf_report_fn report;
	void *context;
	unsigned int seen[KEYS]; /* line of each key */
};

static void fault(struct reader *r, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

static void fault(struct reader *r, const char *fmt, ...)
{
	char text[1024];
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(text, sizeof(text), fmt, ap);
	va_end(ap);
	r->faults++;
	if (r->report)
		r->report(r->context, r->file, r->line, text);
}

static char *trim(char *s)
{
	size_t n;

	while (isspace((unsigned char)*s))
		s++;
	n = strlen(s);
	while (n && isspace((unsigned char)s[n - 1]))
		s[--n] = '\0';
	return s;
}

static void read_line(struct reader *r, char *line, struct conf *c)
{
	char *comment = strchr(line, '#'), *equals, *name, *value, why[CONF_WHY];
	size_t i;

	if (comment)
		*comment = '\0';
	name = trim(line);
	if (!*name)
		return;
	equals = strchr(name, '=');
	if (!equals) {
		fault(r, "'%.80s' is not a line of the form key = value", name);
		return;
	}
	*equals = '\0';
	name = trim(name);
	value = trim(equals + 1);
	for (i = 0; i < KEYS; i++)
		if (!strcmp(name, keys[i].name))
			break;
	if (i == KEYS) {
		fault(r, "unknown key '%.80s'", name);
		return;
	}
	if (r->seen[i]) {
		fault(r, "%s is set already, in line %u", name, r->seen[i]);
		return;
	}
	r->seen[i] = r->line;
	if (set(&keys[i], value, false, c, why))
		fault(r, "%s = %.200s: %s", name, value, why);
}

static void read_lines(struct reader *r, FILE *f, struct conf *c)
{
	char line[MAX_LINE];

	while (fgets(line, sizeof(line), f)) {
		size_t n = strlen(line);

		r->line++;
		if (r->line > MAX_LINES) {
			fault(r, "more than %u lines", MAX_LINES);
			return;
		}
		/* no newline: the last line, a line too long, or a NUL byte in the middle */
		if ((!n || line[n - 1] != '\n') && !feof(f)) {
			fault(r, "a line of more than %d bytes, or with a NUL byte", MAX_LINE - 2);
			return;
		}
		read_line(r, line, c);
	}
	if (ferror(f))
		fault(r, "cannot read: %s", strerror(errno));
}

/* Values that are right each by itself and not together. */
static void check_together(struct reader *r, const struct conf *c)
{
	r->line = 0;
	if (c->ring_bytes > c->ring_total)
		fault(r, "ring_bytes is larger than ring_total");
	if (c->max_connections_per_uid > c->max_connections)
		fault(r, "max_connections_per_uid is larger than max_connections");
}

static void set_defaults(struct reader *r, struct conf *c)
{
	char why[CONF_WHY];

	memset(c, 0, sizeof(*c));
	for (size_t i = 0; i < KEYS; i++) {
		if (!set(&keys[i], keys[i].value, true, c, why))
			continue;
		/* only a name can fail here; the file may still give another one */
		if (keys[i].kind != K_GROUP)
			fault(r, "%s = %s (the default): %s", keys[i].name, keys[i].value, why);
	}
}

/* The default group need not exist where the file names another one. */
static void check_group(struct reader *r, const struct conf *c)
{
	char why[CONF_WHY];
	gid_t gid;

	for (size_t i = 0; i < KEYS; i++)
		if (keys[i].kind == K_GROUP && !r->seen[i] &&
		    conf_group(keys[i].value, &gid, why)) {
			r->line = 0;
			fault(r, "%s = %s (the default): %s", keys[i].name, keys[i].value, why);
		}
}

int conf_defaults(struct conf *out, conf_report_fn report, void *context)
{
	struct reader r = {.file = "defaults", .report = report, .context = context};
	struct conf c;

	set_defaults(&r, &c);
	check_group(&r, &c);
	if (r.faults)
		return -EINVAL;
	*out = c;
	return 0;
}

int conf_read(const char *file, struct conf *out, conf_report_fn report, void *context)
{
	struct reader r = {.file = file, .report = report, .context = context};
	struct conf c;
	FILE *f = fopen(file, "re");
	int code;

	if (!f) {
		code = -errno;
		fault(&r, "cannot open: %s", strerror(errno));
		return code;
	}
	set_defaults(&r, &c);
	read_lines(&r, f, &c);
	fclose(f);
	check_group(&r, &c);
	check_together(&r, &c);
	if (r.faults)
		return -EINVAL;
	*out = c;
	return 0;
}

static size_t value_size(const struct key *k)
{
	switch (k->kind) {
	case K_PATH:
	case K_SPILL:
		return (size_t)k->max;
	case K_UINT:
	case K_WORD:
		return sizeof(uint32_t);
	case K_BYTES:
	case K_RING:
		return sizeof(uint64_t);
	case K_AMOUNT:
		return sizeof(struct conf_amount);
	case K_BOOL:
		return sizeof(bool);
	case K_USERS:
		return sizeof(struct conf_uids);
	case K_GROUP:
	case K_DEVICES:
		return sizeof(((struct conf *)0)->devices);
	case K_ADDRESS:
	case K_CONGESTION:
	case K_LIST:
		return (size_t)k->max;
	case K_PORTS:
		return sizeof(struct conf_ports);
	}
	return 0;
}

void conf_reload(struct conf *current, const struct conf *fresh, const char *file,
		 conf_report_fn report, void *context)
{
	char text[256];

	for (size_t i = 0; i < KEYS; i++) {
		const struct key *k = &keys[i];
		char *to = (char *)current + k->offset;
		const char *from = (const char *)fresh + k->offset;

		/* both were cleared before they were filled, so padding compares equal */
		if (!memcmp(to, from, value_size(k)))
			continue;
		if (k->reload) {
			memcpy(to, from, value_size(k));
			continue;
		}
		snprintf(text, sizeof(text), "%s has changed and takes effect at the next start",
			 k->name);
		if (report)
			report(context, file, 0, text);
	}
}

bool conf_has_uid(const struct conf_uids *uids, uid_t uid)
{
	for (unsigned int i = 0; i < uids->n; i++)
		if (uids->uid[i] == uid)
			return true;
	return false;
}

uint64_t conf_amount(const struct conf_amount *amount, uint64_t whole)
{
	if (!amount->percent)
		return amount->value;
	return whole / 100 * amount->value + whole % 100 * amount->value / 100;
}
