// SPDX-License-Identifier: MIT
/* devices.c: see devices.h. */
#include "devices.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct devices {
	struct backend_pool *pool;
	struct backend *cpu;
	uint32_t threads; /* 0: no device */
	char name[32];
};

static int open_backend(const char *name, struct backend_pool *pool, struct backend **out,
			struct err *err)
{
	struct backend_options options = {.pool = pool};
	struct backend_error e = {{0}};
	int rc = backend_open(name, &options, out, &e);

	if (rc)
		return err_set(err, ERR_INTERNAL, rc, "cannot open the back end '%s': %s", name,
			       e.message);
	return 0;
}

int devices_open(bool none, uint32_t threads, unsigned int cpus, struct devices **out,
		 struct err *err)
{
	struct devices *d = calloc(1, sizeof(*d));
	int rc;

	if (!d)
		return err_set(err, ERR_LIMIT, -ENOMEM, "out of memory");
	snprintf(d->name, sizeof(d->name), "none");
	if (!none) {
		d->threads = threads ? threads : cpus;
		snprintf(d->name, sizeof(d->name), "cpu:%u", d->threads);
		rc = backend_pool_create(d->threads, &d->pool);
		if (rc)
			err_set(err, ERR_LIMIT, rc, "cannot start %u threads: %s", d->threads,
				strerror(-rc));
		else
			rc = open_backend("cpu", d->pool, &d->cpu, err);
		if (rc) {
			devices_close(d);
			return rc;
		}
	}
	*out = d;
	return 0;
}

void devices_close(struct devices *d)
{
	if (!d)
		return;
	if (d->cpu)
		backend_close(d->cpu);
	if (d->pool)
		backend_pool_free(d->pool);
	free(d);
}

unsigned int devices_count(const struct devices *d)
{
	return d->threads ? 1 : 0;
}

const char *devices_name(const struct devices *d)
{
	return d->name;
}

const char *devices_info(const struct devices *d)
{
	return d->cpu ? backend_info(d->cpu) : "";
}

/* The number of threads that is asked for; the whole device unless "cpu:N" says less. */
static int asked_threads(const struct devices *d, const char *asked, uint32_t *out, struct err *err)
{
	unsigned long n;
	char *end;

	*out = d->threads;
	if (!asked || !asked[0] || !strcmp(asked, "auto") || !strcmp(asked, "cpu"))
		return 0;
	if (!strcmp(asked, "none"))
		return err_set(err, ERR_PARAM, -EINVAL,
			       "devices is 'none', and a job needs a device");
	if (strncmp(asked, "cpu:", 4))
		return err_set(err, ERR_PARAM, -ENODEV, "devices is '%.64s', this host has %s",
			       asked, d->name);
	errno = 0;
	n = strtoul(asked + 4, &end, 10);
	if (errno || end == asked + 4 || *end || n < 1 || n > d->threads)
		return err_set(err, ERR_PARAM, -EINVAL, "devices is '%.64s', this host gives %s",
			       asked, d->name);
	*out = (uint32_t)n;
	return 0;
}

static int own_backend(const char *name, uint32_t threads, bool pool, struct device_use *use,
		       struct err *err)
{
	int rc = pool ? backend_pool_create(threads, &use->pool) : 0;

	if (rc)
		return err_set(err, ERR_LIMIT, rc, "cannot start %u threads: %s", threads,
			       strerror(-rc));
	rc = open_backend(name, use->pool, &use->backend, err);
	if (rc) {
		if (use->pool)
			backend_pool_free(use->pool);
		return rc;
	}
	use->own = true;
	return 0;
}

int devices_use(struct devices *d, const char *backend, const char *asked, struct device_use *out,
		struct err *err)
{
	struct device_use use = {.backend = d->cpu};
	uint32_t threads;
	bool ref = backend && !strcmp(backend, "ref");
	int rc;

	if (!d->threads) {
		err_set(err, ERR_LIMIT, -ENODEV, "this host has no device: devices = none");
		err_hint(err, "Set devices = auto in its cnnd.conf, or keep rows off this host.");
		return -ENODEV;
	}
	if (backend && backend[0] && !ref && strcmp(backend, "cpu"))
		return err_set(err, ERR_PARAM, -EINVAL, "backend is '%.64s', must be cpu or ref",
			       backend);
	rc = asked_threads(d, asked, &threads, err);
	if (rc)
		return rc;
	snprintf(use.name, sizeof(use.name), "cpu:%u", threads);
	/* ref computes on the calling thread */
	if (ref)
		rc = own_backend("ref", 1, false, &use, err);
	else if (threads != d->threads)
		rc = own_backend("cpu", threads, true, &use, err);
	if (rc)
		return rc;
	*out = use;
	return 0;
}

void devices_unuse(struct device_use *use)
{
	if (use->own)
		backend_close(use->backend);
	if (use->pool)
		backend_pool_free(use->pool);
	memset(use, 0, sizeof(*use));
}
