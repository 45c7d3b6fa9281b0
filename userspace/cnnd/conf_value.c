// SPDX-License-Identifier: MIT
/* conf_value.c: see conf_value.h. */
#include "conf_value.h"

#include <ctype.h>
#include <errno.h>
#include <grp.h>
#include <inttypes.h>
#include <pwd.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#define MAX_CPU_THREADS 1024u

static int bad(char why[CONF_WHY], const char *fmt, ...) __attribute__((format(printf, 2, 3)));

static int bad(char why[CONF_WHY], const char *fmt, ...)
{
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(why, CONF_WHY, fmt, ap);
	va_end(ap);
	return -EINVAL;
}

/* Digits only: strtoull alone would take signs and spaces. */
static int digits(const char *text, uint64_t *out, const char **end)
{
	char *stop;

	if (!isdigit((unsigned char)text[0]))
		return -EINVAL;
	errno = 0;
	*out = strtoull(text, &stop, 10);
	*end = stop;
	return errno ? -EINVAL : 0;
}

int conf_uint(const char *text, uint64_t min, uint64_t max, uint64_t *out, char why[CONF_WHY])
{
	const char *end;
	uint64_t v;

	if (digits(text, &v, &end) || *end)
		return bad(why, "a whole number is wanted");
	if (v < min || v > max)
		return bad(why, "out of range %" PRIu64 " .. %" PRIu64, min, max);
	*out = v;
	return 0;
}

static void bytes_text(uint64_t v, char out[24])
{
	static const char suffix[] = "KMGT";
	int i = -1;

	while (v && !(v & 1023) && i < 3) {
		v >>= 10;
		i++;
	}
	if (i < 0)
		snprintf(out, 24, "%" PRIu64, v);
	else
		snprintf(out, 24, "%" PRIu64 "%c", v, suffix[i]);
}

int conf_bytes(const char *text, uint64_t min, uint64_t max, uint64_t *out, char why[CONF_WHY])
{
	static const char suffix[] = "KMGT";
	const char *end, *at;
	char low[24], high[24];
	uint64_t v;

	if (digits(text, &v, &end))
		return bad(why, "a size is wanted: a number with an optional K, M, G or T");
	if (*end) {
		at = strchr(suffix, toupper((unsigned char)*end));
		if (!at || end[1])
			return bad(why, "a size is wanted: a number with an optional K, M, G or T");
		if (__builtin_mul_overflow(v, UINT64_C(1) << (10 * (at - suffix + 1)), &v))
			return bad(why, "too large");
	}
	if (v < min || v > max) {
		bytes_text(min, low);
		bytes_text(max, high);
		return bad(why, "out of range %s .. %s", low, high);
	}
	*out = v;
	return 0;
}

int conf_bytes_or_percent(const char *text, uint64_t min, struct conf_amount *out,
			  char why[CONF_WHY])
{
	struct conf_amount a = {0};
	const char *end;

	if (!digits(text, &a.value, &end) && !strcmp(end, "%")) {
		if (a.value < 1 || a.value > 100)
			return bad(why, "out of range 1%% .. 100%%");
		a.percent = true;
	} else if (conf_bytes(text, min, UINT64_C(1) << 50, &a.value, why)) {
		return -EINVAL;
	}
	*out = a;
	return 0;
}

int conf_bool(const char *text, bool *out, char why[CONF_WHY])
{
	if (!strcasecmp(text, "on") || !strcasecmp(text, "yes") || !strcasecmp(text, "true"))
		*out = true;
	else if (!strcasecmp(text, "off") || !strcasecmp(text, "no") || !strcasecmp(text, "false"))
		*out = false;
	else
		return bad(why, "on or off is wanted");
	return 0;
}

int conf_word(const char *text, const char *words, uint32_t *out, char why[CONF_WHY])
{
	size_t n = strlen(text);
	uint32_t i = 0;

	for (const char *w = words;; w++, i++) {
		size_t k = strcspn(w, "|");

		if (k == n && !strncmp(w, text, n)) {
			*out = i;
			return 0;
		}
		w += k;
		if (!*w)
			return bad(why, "one of %s is wanted", words);
	}
}

static int user_id(const char *name, uid_t *out)
{
	struct passwd pw, *found = NULL;
	char buffer[16384];
	const char *end;
	uint64_t v;

	if (!digits(name, &v, &end) && !*end) {
		if (v >= UINT32_MAX)
			return -EINVAL;
		*out = (uid_t)v;
		return 0;
	}
	if (getpwnam_r(name, &pw, buffer, sizeof(buffer), &found) || !found)
		return -ENOENT;
	*out = pw.pw_uid;
	return 0;
}

int conf_users(const char *text, bool lenient, struct conf_uids *out, char why[CONF_WHY])
{
	struct conf_uids uids = {.n = 0};
	char copy[CONF_PATH], *save = NULL;

	if (strlen(text) >= sizeof(copy))
		return bad(why, "too long");
	strcpy(copy, text);
	for (char *w = strtok_r(copy, " ,\t", &save); w; w = strtok_r(NULL, " ,\t", &save)) {
		uid_t uid;
		int rc = user_id(w, &uid);

		if (rc && lenient)
			continue;
		if (rc)
			return bad(why, "there is no user '%.64s'", w);
		if (uids.n == CONF_MAX_UIDS)
			return bad(why, "more than %d users", CONF_MAX_UIDS);
		uids.uid[uids.n++] = uid;
	}
	*out = uids;
	return 0;
}

int conf_group(const char *text, gid_t *out, char why[CONF_WHY])
{
	struct group gr, *found = NULL;
	char buffer[16384];
	const char *end;
	uint64_t v;

	if (!text[0]) {
		*out = (gid_t)-1;
		return 0;
	}
	if (!digits(text, &v, &end) && !*end && v < UINT32_MAX) {
		*out = (gid_t)v;
		return 0;
	}
	if (getgrnam_r(text, &gr, buffer, sizeof(buffer), &found) || !found)
		return bad(why,
			   "there is no group '%.64s'; create it, name another one, or leave the "
			   "value empty for the daemon's own group",
			   text);
	*out = gr.gr_gid;
	return 0;
}

int conf_devices(const char *text, struct conf_devices *out, char why[CONF_WHY])
{
	struct conf_devices d = {.kind = CONF_DEVICES_AUTO};
	uint64_t n = 0;

	if (!strcmp(text, "none")) {
		d.kind = CONF_DEVICES_NONE;
	} else if (!strncmp(text, "cpu:", 4)) {
		if (conf_uint(text + 4, 1, MAX_CPU_THREADS, &n, why))
			return -EINVAL;
		d.kind = CONF_DEVICES_CPU;
		d.threads = (uint32_t)n;
	} else if (!strncmp(text, "cuda", 4)) {
		if (gpu_list_parse(text, &d.gpus))
			return bad(why,
				   "cuda:all, or cuda: and the numbers of GPUs with commas between "
				   "them, each once, is wanted");
		d.kind = CONF_DEVICES_GPU;
	} else if (strcmp(text, "auto") != 0) {
		return bad(why, "one of none, auto, cpu:N, cuda:i,j, cuda:all is wanted");
	}
	*out = d;
	return 0;
}
