// SPDX-License-Identifier: MIT
/* memory.c: the accounting of memory.h. */
#include "memory.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/queue.h>

struct memory_account {
	LIST_ENTRY(memory_account) link;
	struct memory *memory;
	char *role;
	uint64_t bytes[MEMORY_USES];
};

struct memory {
	uint64_t limit, per_role;
	LIST_HEAD(, memory_account) accounts;
};

int memory_create(uint64_t limit, uint64_t per_role, struct memory **out)
{
	struct memory *m = calloc(1, sizeof(*m));

	if (!m)
		return -ENOMEM;
	m->limit = limit;
	m->per_role = per_role;
	LIST_INIT(&m->accounts);
	*out = m;
	return 0;
}

void memory_free(struct memory *m)
{
	struct memory_account *a;

	if (!m)
		return;
	while ((a = LIST_FIRST(&m->accounts)))
		memory_account_close(a);
	free(m);
}

void memory_set_limits(struct memory *m, uint64_t limit, uint64_t per_role)
{
	m->limit = limit;
	m->per_role = per_role;
}

int memory_account_open(struct memory *m, const char *role, struct memory_account **out)
{
	struct memory_account *a = calloc(1, sizeof(*a));

	if (!a)
		return -ENOMEM;
	a->role = strdup(role);
	if (!a->role) {
		free(a);
		return -ENOMEM;
	}
	a->memory = m;
	LIST_INSERT_HEAD(&m->accounts, a, link);
	*out = a;
	return 0;
}

void memory_account_close(struct memory_account *a)
{
	if (!a)
		return;
	LIST_REMOVE(a, link);
	free(a->role);
	free(a);
}

uint64_t memory_used(const struct memory_account *a)
{
	uint64_t sum = 0;

	for (int i = 0; i < MEMORY_USES; i++)
		sum += a->bytes[i];
	return sum;
}

uint64_t memory_used_for(const struct memory_account *a, enum memory_use use)
{
	return a->bytes[use];
}

uint64_t memory_limit(const struct memory *m)
{
	return m->limit;
}

uint64_t memory_total(const struct memory *m)
{
	const struct memory_account *a;
	uint64_t sum = 0;

	LIST_FOREACH (a, &m->accounts, link)
		sum += memory_used(a);
	return sum;
}

uint64_t memory_total_for(const struct memory *m, enum memory_use use)
{
	const struct memory_account *a;
	uint64_t sum = 0;

	LIST_FOREACH (a, &m->accounts, link)
		sum += a->bytes[use];
	return sum;
}

uint64_t memory_of_role(const struct memory *m, const char *role)
{
	const struct memory_account *a;
	uint64_t sum = 0;

	LIST_FOREACH (a, &m->accounts, link)
		if (!strcmp(a->role, role))
			sum += memory_used(a);
	return sum;
}

static uint64_t left(uint64_t limit, uint64_t used)
{
	return used < limit ? limit - used : 0;
}

uint64_t memory_free_for(const struct memory *m, const char *role)
{
	uint64_t all = left(m->limit, memory_total(m)),
		 own = left(m->per_role, memory_of_role(m, role));

	return all < own ? all : own;
}

uint64_t memory_free_alone(const struct memory *m)
{
	return m->limit < m->per_role ? m->limit : m->per_role;
}

int memory_take(struct memory_account *a, enum memory_use use, uint64_t bytes, struct err *err)
{
	const struct memory *m = a->memory;
	uint64_t all = left(m->limit, memory_total(m)),
		 own = left(m->per_role, memory_of_role(m, a->role));

	if (bytes > all) {
		err_set(err, ERR_LIMIT, -ENOMEM,
			"cnnd's memory limit: %" PRIu64 " MB more are needed, %" PRIu64
			" MB of memory = %" PRIu64 " MB are free",
			(bytes >> 20) + 1, all >> 20, m->limit >> 20);
		err_hint(err, "Raise memory in cnnd.conf, or wait for the other jobs to end.");
		return -ENOMEM;
	}
	if (bytes > own) {
		err_set(err, ERR_LIMIT, -ENOMEM,
			"cnnd's memory limit for a role: %" PRIu64 " MB more are needed, %" PRIu64
			" MB of memory_per_role = %" PRIu64 " MB are free",
			(bytes >> 20) + 1, own >> 20, m->per_role >> 20);
		err_hint(err, "Raise memory_per_role in cnnd.conf, or end the role's other jobs.");
		return -ENOMEM;
	}
	a->bytes[use] += bytes;
	return 0;
}

void memory_give(struct memory_account *a, enum memory_use use, uint64_t bytes)
{
	a->bytes[use] = left(a->bytes[use], bytes);
}

void memory_shrink(struct memory_account *a, enum memory_use use, uint64_t bytes)
{
	if (bytes < a->bytes[use])
		a->bytes[use] = bytes;
}
