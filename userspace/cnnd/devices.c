// SPDX-License-Identifier: MIT
/* devices.c: see devices.h. */
#include "devices.h"

#include <errno.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "../../nccl_merge/merge.h"

#define PENDING_MAX 32u

struct gpu {
	struct backend_device about;
	char name[16], info[96];
	uint32_t users;
	uint64_t reserved;
	/* Its context is broken. These close last, and with it they make it anew; until then nobody
	 * is let in. */
	bool rebuilding;
	struct backend *pending[PENDING_MAX];
	uint32_t n_pending;
};

struct devices {
	pthread_mutex_t lock; /* users, reserved, rebuilding, pending */
	struct backend_pool *pool;
	struct backend *cpu;
	uint32_t threads; /* 0: no processor */
	uint32_t n_gpus;
	struct gpu gpu[GPU_LIST_MAX];
	char name[DEVICES_NAME], info[256];
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

/* ---- the list ---- */

/* "cuda:0,2,5" of places in the list; cut where it does not fit. */
static void list_name(const struct devices *d, const uint32_t *place, uint32_t n, char *out)
{
	size_t at = (size_t)snprintf(out, DEVICES_NAME, "cuda:");

	for (uint32_t i = 0; i < n; i++) {
		char one[16];
		int k = snprintf(one, sizeof(one), "%s%u", i ? "," : "",
				 d->gpu[place ? place[i] : i].about.index);

		if (at + (size_t)k + 4 > DEVICES_NAME) {
			memcpy(out + at, "...", 4);
			return;
		}
		memcpy(out + at, one, (size_t)k + 1);
		at += (size_t)k;
	}
}

static void add_gpu(struct devices *d, const struct backend_device *about)
{
	struct gpu *g = &d->gpu[d->n_gpus++];

	g->about = *about;
	snprintf(g->name, sizeof(g->name), "cuda:%u", about->index);
	snprintf(g->info, sizeof(g->info), "%s, sm_%u, %" PRIu64 " MB", about->name,
		 about->capability, about->total_bytes >> 20);
}

static const struct backend_device *found_gpu(const struct gpus *found, uint32_t index)
{
	for (uint32_t i = 0; i < found->n; i++)
		if (found->gpu[i].index == index)
			return &found->gpu[i];
	return NULL;
}

static int open_gpus(struct devices *d, const struct gpu_list *wanted, const struct gpus *found,
		     struct err *err)
{
	size_t at;

	if (!found->n)
		return err_set(err, ERR_PARAM, -ENODEV,
			       "GPUs are asked for, and this host has none");
	for (uint32_t i = 0; i < (wanted->n ? wanted->n : found->n); i++) {
		const struct backend_device *one =
			wanted->n ? found_gpu(found, wanted->index[i]) : &found->gpu[i];

		if (!one)
			return err_set(err, ERR_PARAM, -ENODEV,
				       "cuda:%u is asked for, and this host has %u GPUs, from 0",
				       wanted->index[i], found->n);
		add_gpu(d, one);
	}
	list_name(d, NULL, d->n_gpus, d->name);
	at = (size_t)snprintf(d->info, sizeof(d->info), "%s", d->gpu[0].info);
	if (d->n_gpus > 1)
		snprintf(d->info + at, sizeof(d->info) - at, ", %u more", d->n_gpus - 1);
	return 0;
}

static int open_cpu(struct devices *d, uint32_t threads, struct err *err)
{
	int rc = backend_pool_create(threads, &d->pool);

	d->threads = threads;
	snprintf(d->name, sizeof(d->name), "cpu:%u", threads);
	if (rc)
		return err_set(err, ERR_LIMIT, rc, "cannot start %u threads: %s", threads,
			       strerror(-rc));
	rc = open_backend("cpu", d->pool, &d->cpu, err);
	if (!rc)
		snprintf(d->info, sizeof(d->info), "%s", backend_info(d->cpu));
	return rc;
}

int devices_open(const struct conf_devices *conf, const struct gpus *found, const struct err *why,
		 unsigned int cpus, struct devices **out, struct err *err)
{
	struct devices *d = calloc(1, sizeof(*d));
	int rc = 0;

	if (!d)
		return err_set(err, ERR_LIMIT, -ENOMEM, "out of memory");
	pthread_mutex_init(&d->lock, NULL);
	snprintf(d->name, sizeof(d->name), "none");
	if (conf->kind == CONF_DEVICES_GPU && why && why->kind)
		rc = err_set(err, why->kind, -ENODEV, "GPUs are asked for: %s", why->message);
	else if (conf->kind == CONF_DEVICES_GPU || (conf->kind == CONF_DEVICES_AUTO && found->n))
		rc = open_gpus(d, &conf->gpus, found, err);
	else if (conf->kind != CONF_DEVICES_NONE)
		rc = open_cpu(d, conf->threads ? conf->threads : cpus, err);
	if (rc) {
		devices_close(d);
		return rc;
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
	pthread_mutex_destroy(&d->lock);
	free(d);
}

const char *devices_name(const struct devices *d)
{
	return d->name;
}

const char *devices_info(const struct devices *d)
{
	return d->info;
}

bool devices_are_gpus(const struct devices *d)
{
	return d->n_gpus != 0;
}

bool devices_view(struct devices *d, uint32_t i, struct device_view *out)
{
	struct gpu *g = &d->gpu[i < GPU_LIST_MAX ? i : 0];
	uint64_t left;

	if (i >= d->n_gpus) {
		*out = (struct device_view){.name = d->name, .kind = "cpu", .info = d->info};
		return !i && d->threads;
	}
	pthread_mutex_lock(&d->lock);
	/* what others of this host held at the start is taken to be theirs still */
	left = g->about.free_bytes > g->reserved ? g->about.free_bytes - g->reserved : 0;
	*out = (struct device_view){
		.name = g->name,
		.kind = "cuda",
		.info = g->info,
		.index = g->about.index,
		.jobs = g->users,
		.memory = g->about.total_bytes,
		.free_memory = left,
	};
	pthread_mutex_unlock(&d->lock);
	return true;
}

/* ---- a job's share: processor ---- */

static bool whole(const char *asked)
{
	return !asked || !asked[0] || !strcasecmp(asked, "auto");
}

/* The number of threads that is asked for; the whole device unless "cpu:N" says less. */
static int asked_threads(const struct devices *d, const char *asked, uint32_t *out, struct err *err)
{
	unsigned long n;
	char *end;

	*out = d->threads;
	if (whole(asked) || !strcasecmp(asked, "cpu"))
		return 0;
	if (strncasecmp(asked, "cpu:", 4) != 0)
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
	rc = open_backend(name, use->pool, &use->backend[0], err);
	if (rc) {
		if (use->pool)
			backend_pool_free(use->pool);
		return rc;
	}
	use->own = true;
	return 0;
}

static int use_cpu(struct devices *d, const struct device_ask *ask, struct device_use *use,
		   struct err *err)
{
	bool ref = ask->backend && !strcasecmp(ask->backend, "ref");
	uint32_t threads;
	int rc = asked_threads(d, ask->devices, &threads, err);

	if (rc)
		return rc;
	if (ask->precision != BACKEND_PRECISION_F32) {
		err_set(err, ERR_PARAM, -EINVAL,
			"precision is not f32, and this host computes on %s, which has f32 alone",
			d->name);
		err_hint(err, "Other precisions need a GPU.");
		return -EINVAL;
	}
	use->backend[0] = d->cpu;
	use->n = 1;
	use->replicas = ask->replicas ? ask->replicas : 1;
	snprintf(use->name, sizeof(use->name), "cpu:%u", threads);
	/* ref computes on the calling thread */
	if (ref)
		return own_backend("ref", 1, false, use, err);
	return threads != d->threads ? own_backend("cpu", threads, true, use, err) : 0;
}

/* ---- a job's share: GPUs ---- */

static int asked_gpus(const struct devices *d, const char *asked, uint32_t *place, uint32_t *n,
		      struct err *err)
{
	struct gpu_list list = {.all = true};

	if (!whole(asked) && gpu_list_parse(asked, &list))
		return err_set(err, ERR_PARAM, -ENODEV, "devices is '%.64s', this host gives %s",
			       asked, d->name);
	*n = list.n ? list.n : d->n_gpus;
	for (uint32_t i = 0; i < *n; i++) {
		uint32_t k = list.n ? 0 : i;

		while (list.n && k < d->n_gpus && d->gpu[k].about.index != list.index[i])
			k++;
		if (k == d->n_gpus)
			return err_set(err, ERR_PARAM, -ENODEV,
				       "devices is '%.64s', this host gives %s", asked, d->name);
		place[i] = k;
	}
	return 0;
}

/* Fewer replicas than GPUs: those with the fewest jobs come first. Lock held. */
static void least_used(const struct devices *d, uint32_t *place, uint32_t n)
{
	for (uint32_t i = 1; i < n; i++)
		for (uint32_t k = i; k && d->gpu[place[k]].users < d->gpu[place[k - 1]].users;
		     k--) {
			uint32_t other = place[k];

			place[k] = place[k - 1];
			place[k - 1] = other;
		}
}

static int use_gpus(struct devices *d, const struct device_ask *ask, struct device_use *use,
		    struct err *err)
{
	uint32_t wanted = ask->inference ? 1 : ask->replicas, n = 0;
	int rc = asked_gpus(d, ask->devices, use->place, &n, err);

	if (rc)
		return rc;
	if (ask->backend && ask->backend[0])
		return err_set(err, ERR_PARAM, -ENODEV,
			       "backend is '%.40s', and this host computes on %s", ask->backend,
			       d->name);
	if (wanted > n)
		return err_set(err, ERR_PARAM, -EINVAL,
			       "replicas is %u, and a GPU runs one: this job has %u GPUs (%s)",
			       wanted, n, d->name);
	if (wanted && wanted < n) {
		pthread_mutex_lock(&d->lock);
		least_used(d, use->place, n);
		pthread_mutex_unlock(&d->lock);
		n = wanted;
	}
	use->n = use->replicas = n;
	use->gpus = d;
	use->own = true;
	use->precision = ask->precision;
	use->train = !ask->inference;
	for (uint32_t i = 0; i < n; i++)
		use->index[i] = d->gpu[use->place[i]].about.index;
	list_name(d, use->place, n, use->name);
	return 0;
}

int devices_use(struct devices *d, const struct device_ask *ask, struct device_use *out,
		struct err *err)
{
	const char *backend = ask->backend;
	struct device_use use = {.n = 0};
	int rc;

	if (!d->threads && !d->n_gpus) {
		err_set(err, ERR_LIMIT, -ENODEV, "this host has no device: devices = none");
		err_hint(err, "Set devices = auto in its cnnd.conf, or keep rows off this host.");
		return -ENODEV;
	}
	if (backend && backend[0] && strcasecmp(backend, "ref") && strcasecmp(backend, "cpu"))
		return err_set(err, ERR_PARAM, -EINVAL, "backend is '%.64s', must be cpu or ref",
			       backend);
	if (ask->devices && !strcasecmp(ask->devices, "none"))
		return err_set(err, ERR_PARAM, -EINVAL,
			       "devices is 'none', and a job needs a device");
	rc = d->n_gpus ? use_gpus(d, ask, &use, err) : use_cpu(d, ask, &use, err);
	if (!rc)
		*out = use;
	return rc;
}

static int enter(struct devices *d, struct gpu *g, struct err *err)
{
	int rc = 0;

	pthread_mutex_lock(&d->lock);
	if (g->rebuilding)
		rc = err_set(err, ERR_BUSY, -EAGAIN,
			     "%s has failed, and is made anew once the jobs on it have ended",
			     g->name);
	else
		g->users++;
	pthread_mutex_unlock(&d->lock);
	return rc;
}

/* The last one to leave a broken device closes what keeps its context. */
static void leave(struct devices *d, struct gpu *g, uint64_t reserved)
{
	pthread_mutex_lock(&d->lock);
	g->reserved -= reserved;
	g->users--;
	while (!g->users && g->n_pending) {
		struct backend *last = g->pending[--g->n_pending];

		pthread_mutex_unlock(&d->lock);
		backend_close(last);
		pthread_mutex_lock(&d->lock);
	}
	if (!g->users)
		g->rebuilding = false;
	pthread_mutex_unlock(&d->lock);
}

/* Others still have handles of a context that closing a lost device takes away. */
static bool defer(struct devices *d, struct gpu *g, struct backend *lost)
{
	bool later;

	pthread_mutex_lock(&d->lock);
	later = g->users > 1 && g->n_pending < PENDING_MAX;
	if (later) {
		g->rebuilding = true;
		g->pending[g->n_pending++] = lost;
	}
	pthread_mutex_unlock(&d->lock);
	return later;
}

static int open_gpu(struct device_use *use, uint32_t i, struct err *err)
{
	struct gpu *g = &use->gpus->gpu[use->place[i]];
	struct backend_options options = {.device = g->about.index,
					  .precision = use->precision,
					  .timeout_ms = use->timeout_ms};
	struct backend_error e = {{0}};
	int rc = enter(use->gpus, g, err);

	options.alloc = use->collective ? merge_device_alloc : NULL;
	options.release = merge_device_release;
	if (rc)
		return rc;
	rc = backend_open("cuda", &options, &use->backend[i], &e);
	if (!rc)
		return 0;
	use->backend[i] = NULL;
	leave(use->gpus, g, 0);
	return err_set(err,
		       rc == -ENOMEM	   ? ERR_LIMIT
		       : rc == -EOPNOTSUPP ? ERR_PARAM
					   : ERR_INTERNAL,
		       rc, "%s cannot be opened: %s", g->name, e.message);
}

int devices_start(struct device_use *use, struct err *err)
{
	int rc = 0;

	use->collective = use->gpus && use->train && use->n > 1 && !merge_intra_find("nccl", NULL);
	for (uint32_t i = 0; use->gpus && !rc && i < use->n; i++)
		if (!use->backend[i])
			rc = open_gpu(use, i, err);
	return rc;
}

int devices_reserve(struct device_use *use, uint64_t bytes, bool leave, struct err *err)
{
	struct devices *d = use->gpus;
	int rc = 0;

	if (!d)
		return 0;
	pthread_mutex_lock(&d->lock);
	for (uint32_t i = 0; !rc && i < use->n; i++) {
		struct gpu *g = &d->gpu[use->place[i]];
		uint64_t others = g->reserved - use->reserved[i], total = g->about.total_bytes;
		uint64_t left = total > others ? total - others : 0;

		if (bytes > (leave ? left - left / 8 : left)) {
			rc = err_set(err, ERR_LIMIT, -ENOMEM,
				     "%s has not enough memory: needed %" PRIu64 " bytes, free "
				     "%" PRIu64 " of %" PRIu64 " (other jobs hold %" PRIu64 ")",
				     g->name, bytes, left, total, others);
			err_hint(err, "A smaller batch_size needs less.");
			break;
		}
		g->reserved = others + bytes;
		use->reserved[i] = bytes;
	}
	pthread_mutex_unlock(&d->lock);
	return rc;
}

void devices_unuse(struct device_use *use)
{
	for (uint32_t i = 0; use->own && i < use->n; i++) {
		struct gpu *g = use->gpus ? &use->gpus->gpu[use->place[i]] : NULL;

		if (!use->backend[i])
			continue;
		/* of several GPUs only that one which is lost */
		if (!(g && use->lost && backend_lost(use->backend[i]) &&
		      defer(use->gpus, g, use->backend[i])))
			backend_close(use->backend[i]);
		if (g)
			leave(use->gpus, g, use->reserved[i]);
	}
	if (use->pool)
		backend_pool_free(use->pool);
	memset(use, 0, sizeof(*use));
}
