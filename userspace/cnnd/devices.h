/* SPDX-License-Identifier: MIT */
/*
 * devices.h: what this daemon computes on: nothing; one device "cpu:N", a pool of N threads that
 * every job shares (a job that asks for fewer threads gets a pool of its own of exactly that size);
 * or GPUs, "cuda:I" each. A GPU is opened for a job and closed at its end, so that its memory is
 * free between jobs, and one that no job has asked for is never touched. The list is made once at
 * the start; the calls after that may come from any thread.
 */
#ifndef CNND_DEVICES_H
#define CNND_DEVICES_H

#include <stdbool.h>
#include <stdint.h>

#include "../../kernels/backend.h"
#include "../base/err.h"
#include "conf.h"
#include "gpus.h"

#define DEVICES_NAME 64

struct devices;

/*
 * Chooses among what gpus_find has found; *why, where it failed, is of interest only where GPUs are
 * asked for by name. cpus: of "auto" without a GPU.
 */
int devices_open(const struct conf_devices *conf, const struct gpus *found, const struct err *why,
		 unsigned int cpus, struct devices **out, struct err *err);
void devices_close(struct devices *d);

const char *devices_name(const struct devices *d); /* "cpu:2", "cuda:0,1", "none" */
const char *devices_info(const struct devices *d); /* library versions, or the GPUs' names */
bool devices_are_gpus(const struct devices *d);

/* One of them, as it is now. memory: of a GPU, 0 for cpu. */
struct device_view {
	const char *name, *kind, *info;
	uint32_t index, jobs; /* jobs: that have a GPU open */
	uint64_t memory, free_memory;
};
/* false past the end. */
bool devices_view(struct devices *d, uint32_t i, struct device_view *out);

/* What a job asks for. */
struct device_ask {
	const char *backend; /* "cpu", "ref" or NULL */
	const char *devices; /* NULL, "", "auto", "cpu", "cpu:N", "cuda:I,J", "cuda:all" */
	enum backend_precision precision;
	uint32_t replicas; /* 0: one for each device */
	bool inference;	   /* one device will do */
};

/* A job's share. */
struct device_use {
	struct backend *backend[GPU_LIST_MAX];
	uint32_t n;		   /* devices; replicas go to them in turn */
	struct backend_pool *pool; /* of this job alone, or NULL */
	bool own;		   /* the backends are of this job alone */
	bool lost;		   /* a device has failed for good: set by who has seen it */
	enum backend_precision precision;
	struct devices *gpus;		 /* NULL: not on GPUs */
	uint32_t place[GPU_LIST_MAX];	 /* in the list */
	uint64_t reserved[GPU_LIST_MAX]; /* bytes */
	uint32_t index[GPU_LIST_MAX];	 /* as backend_devices counts */
	uint32_t timeout_ms;		 /* of a wait for a GPU; 0: 60 s */
	bool train;			 /* gradients are summed between them */
	bool collective;		 /* gradient arenas are of NCCL's memory */
	uint32_t replicas;		 /* as asked, or one for each device */
	char name[DEVICES_NAME];
};
/*
 * Checks and names; threads start, GPUs stay untouched. More than the host gives is ERR_PARAM that
 * says what it gives, a device it has not ERR_LIMIT, more replicas than GPUs ERR_PARAM.
 */
int devices_use(struct devices *d, const struct device_ask *ask, struct device_use *out,
		struct err *err);
/* Opens the GPUs, if it is GPUs; may take seconds. */
int devices_start(struct device_use *use, struct err *err);
/* What a job will take of each of its GPUs; ERR_LIMIT where that is more than there is, or, with
 * leave, than there is but for an eighth, which is for short jobs of others. */
int devices_reserve(struct device_use *use, uint64_t bytes, bool leave, struct err *err);
/* A device that is lost is made anew once nobody uses it any more. */
void devices_unuse(struct device_use *use);

#endif
