/* SPDX-License-Identifier: MIT */
/*
 * devices.h: what this daemon computes on. In this version: nothing, or one device "cpu:N", a pool
 * of N threads that every job shares. A job that asks for fewer threads gets a pool of its own of
 * exactly that size. Opened once at the start; the calls after that may come from any thread.
 */
#ifndef CNND_DEVICES_H
#define CNND_DEVICES_H

#include <stdbool.h>
#include <stdint.h>

#include "../../kernels/backend.h"
#include "../base/err.h"

struct devices;

/* threads 0: `cpus` of them. none: no device at all. */
int devices_open(bool none, uint32_t threads, unsigned int cpus, struct devices **out,
		 struct err *err);
void devices_close(struct devices *d);

unsigned int devices_count(const struct devices *d);
const char *devices_name(const struct devices *d); /* "cpu:2", "none" */
const char *devices_info(const struct devices *d); /* library versions, instruction set */

/* A job's share. */
struct device_use {
	struct backend *backend;
	struct backend_pool *pool; /* of this job alone, or NULL */
	bool own;		   /* backend is of this job alone */
	char name[32];
};
/*
 * backend: "cpu", "ref" or NULL. asked: NULL, "", "auto", "cpu", "cpu:N" or "none"; more than the
 * host gives is ERR_PARAM that says what it gives, a device it has not ERR_LIMIT.
 */
int devices_use(struct devices *d, const char *backend, const char *asked, struct device_use *out,
		struct err *err);
void devices_unuse(struct device_use *use);

#endif
