// SPDX-License-Identifier: MIT
/* fault.c: faults that are injected at the Nth call of a function. */
#define _GNU_SOURCE
#include "fake.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define FAULTS_MAX 16

static struct {
	char name[64];
	int device; /* -1: any */
	uint64_t n, seen;
	enum fake_fault kind;
} fault[FAULTS_MAX];
static int n_faults;

static enum fake_fault kind_of(const char *text)
{
	static const char *const name[] = {"none",  "oom",  "illegal",
					   "error", "hang", "unsupported"};

	for (int i = 0; i < 6; i++)
		if (!strcmp(text, name[i]))
			return (enum fake_fault)i;
	fprintf(stderr, "fakegpu: unknown kind of fault '%s'\n", text);
	abort();
}

void fakegpu_fault(const char *spec)
{
	char copy[1024], *save = NULL, *item;

	pthread_mutex_lock(&fake.lock);
	n_faults = 0;
	snprintf(copy, sizeof(copy), "%s", spec ? spec : "");
	for (item = strtok_r(copy, ";", &save); item && n_faults < FAULTS_MAX;
	     item = strtok_r(NULL, ";", &save)) {
		char name[64], kind[32], *at;
		unsigned long long n;

		if (sscanf(item, "%63[^:]:%llu:%31s", name, &n, kind) != 3) {
			fprintf(stderr, "fakegpu: cannot read the fault '%s'\n", item);
			abort();
		}
		memset(&fault[n_faults], 0, sizeof(fault[0]));
		at = strchr(name, '@');
		fault[n_faults].device = at ? atoi(at + 1) : -1;
		if (at)
			*at = '\0';
		memcpy(fault[n_faults].name, name, sizeof(name));
		fault[n_faults].n = n;
		fault[n_faults++].kind = kind_of(kind);
	}
	pthread_mutex_unlock(&fake.lock);
}

enum fake_fault fake_fault(const char *name)
{
	enum fake_fault kind = FAKE_NONE;

	pthread_mutex_lock(&fake.lock);
	fake.calls++;
	for (int i = 0; i < n_faults; i++)
		if (!strcmp(fault[i].name, name) &&
		    (fault[i].device < 0 || fault[i].device == *fake_current()) &&
		    ++fault[i].seen == fault[i].n)
			kind = fault[i].kind;
	pthread_mutex_unlock(&fake.lock);
	return kind;
}
