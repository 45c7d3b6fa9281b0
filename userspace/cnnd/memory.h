/* SPDX-License-Identifier: MIT */
/*
 * memory.h: how much memory and how many processors the host lets this process use, and who of the
 * jobs holds how much of it. The accounting is of what the daemon has promised, not of what malloc
 * has done; each refusal names limit and value. Not locked: the callers hold the daemon's lock.
 */
#ifndef CNND_MEMORY_H
#define CNND_MEMORY_H

#include <stdint.h>

#include "../base/err.h"

struct memory_host {
	uint64_t bytes;	   /* the smaller of MemTotal and every memory.max above this process */
	unsigned int cpus; /* allowed by affinity and by cpu.max, rounded up */
};
/* root: "" for the real /proc and /sys (tests give a folder). */
void memory_host_read(const char *root, struct memory_host *out);

enum memory_use { MEMORY_RINGS = 0, MEMORY_ROWS, MEMORY_NET, MEMORY_VALUES, MEMORY_USES };

struct memory;
struct memory_account; /* of one job */

int memory_create(uint64_t limit, uint64_t per_role, struct memory **out);
void memory_free(struct memory *m);
void memory_set_limits(struct memory *m, uint64_t limit, uint64_t per_role);

int memory_account_open(struct memory *m, const char *role, struct memory_account **out);
/* Gives everything back. NULL is legal. */
void memory_account_close(struct memory_account *a);

/* Adds bytes to a use. 0, or -ENOMEM with ERR_LIMIT naming limit, needed and free. */
int memory_take(struct memory_account *a, enum memory_use use, uint64_t bytes, struct err *err);
void memory_give(struct memory_account *a, enum memory_use use, uint64_t bytes);
/* Sets a use to a smaller amount; a larger one is ignored. */
void memory_shrink(struct memory_account *a, enum memory_use use, uint64_t bytes);

uint64_t memory_used(const struct memory_account *a);
uint64_t memory_used_for(const struct memory_account *a, enum memory_use use);
uint64_t memory_limit(const struct memory *m);
uint64_t memory_total(const struct memory *m); /* held by all jobs */
uint64_t memory_total_for(const struct memory *m, enum memory_use use);
uint64_t memory_of_role(const struct memory *m, const char *role);
/* What a job of that role could still take; alone: if it were the only job. */
uint64_t memory_free_for(const struct memory *m, const char *role);
uint64_t memory_free_alone(const struct memory *m);

#endif
