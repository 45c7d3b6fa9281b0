// SPDX-License-Identifier: MIT
/*
 * host.c: what the kernel lets this process use: MemTotal, the memory.max and cpu.max of its cgroup
 * and of every cgroup above (version 2, and version 1's limit_in_bytes and cfs quota), and the
 * affinity mask. A container's limits are seen this way; nproc and MemTotal alone miss them.
 */
#include <inttypes.h>
#include <sched.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "memory.h"

#define PATH 4096

static bool read_text(const char *path, char *out, size_t capacity)
{
	FILE *f = fopen(path, "re");
	size_t n;

	if (!f)
		return false;
	n = fread(out, 1, capacity - 1, f);
	fclose(f);
	out[n] = '\0';
	return n > 0;
}

static uint64_t mem_total(const char *root)
{
	char path[PATH], text[8192];
	const char *at;
	uint64_t kb;

	snprintf(path, sizeof(path), "%s/proc/meminfo", root);
	if (read_text(path, text, sizeof(text)) && (at = strstr(text, "MemTotal:")) &&
	    sscanf(at, "MemTotal: %" SCNu64, &kb) == 1 && kb)
		return kb << 10;
	return (uint64_t)sysconf(_SC_PHYS_PAGES) * (uint64_t)sysconf(_SC_PAGESIZE);
}

static void take_memory(const char *path, struct memory_host *out)
{
	char text[64];
	uint64_t v;

	if (read_text(path, text, sizeof(text)) && sscanf(text, "%" SCNu64, &v) == 1 && v &&
	    v < out->bytes)
		out->bytes = v;
}

static void take_cpus(uint64_t quota, uint64_t period, struct memory_host *out)
{
	uint64_t n;

	if (!quota || !period)
		return;
	n = (quota + period - 1) / period;
	if (n < out->cpus)
		out->cpus = (unsigned int)n;
}

/* One cgroup folder of version 2. */
static void look_v2(const char *folder, struct memory_host *out)
{
	char path[PATH + 16], text[64];
	uint64_t quota, period;

	snprintf(path, sizeof(path), "%s/memory.max", folder);
	take_memory(path, out);
	snprintf(path, sizeof(path), "%s/cpu.max", folder);
	if (read_text(path, text, sizeof(text)) &&
	    sscanf(text, "%" SCNu64 " %" SCNu64, &quota, &period) == 2)
		take_cpus(quota, period, out);
}

static void look_v1_memory(const char *folder, struct memory_host *out)
{
	char path[PATH + 32];

	snprintf(path, sizeof(path), "%s/memory.limit_in_bytes", folder);
	take_memory(path, out);
}

static void look_v1_cpu(const char *folder, struct memory_host *out)
{
	char path[PATH + 32], text[64];
	uint64_t quota = 0, period = 0;

	snprintf(path, sizeof(path), "%s/cpu.cfs_quota_us", folder);
	if (!read_text(path, text, sizeof(text)) || sscanf(text, "%" SCNu64, &quota) != 1 ||
	    text[0] == '-')
		return;
	snprintf(path, sizeof(path), "%s/cpu.cfs_period_us", folder);
	if (read_text(path, text, sizeof(text)) && sscanf(text, "%" SCNu64, &period) == 1)
		take_cpus(quota, period, out);
}

/* base/group, then every folder above it down to base itself. */
static void climb(const char *base, const char *group,
		  void (*look)(const char *, struct memory_host *), struct memory_host *out)
{
	char folder[PATH];
	size_t floor = strlen(base);
	char *slash;

	if (strstr(group, "..") ||
	    (size_t)snprintf(folder, sizeof(folder), "%s%s", base, group) >= sizeof(folder))
		return;
	for (;;) {
		look(folder, out);
		slash = strrchr(folder, '/');
		if (!slash || (size_t)(slash - folder) < floor)
			return;
		*slash = '\0';
	}
}

static void cgroups(const char *root, struct memory_host *out)
{
	char path[PATH], text[16384], base[PATH], *save = NULL;

	snprintf(path, sizeof(path), "%s/proc/self/cgroup", root);
	if (!read_text(path, text, sizeof(text)))
		return;
	for (char *l = strtok_r(text, "\n", &save); l; l = strtok_r(NULL, "\n", &save)) {
		char *controllers = strchr(l, ':'), *group;

		if (!controllers || !(group = strchr(controllers + 1, ':')))
			continue;
		*group++ = '\0';
		controllers++;
		if (!*controllers) {
			snprintf(base, sizeof(base), "%s/sys/fs/cgroup", root);
			climb(base, group, look_v2, out);
		} else if (strstr(controllers, "memory")) {
			snprintf(base, sizeof(base), "%s/sys/fs/cgroup/memory", root);
			climb(base, group, look_v1_memory, out);
		} else if (!strncmp(controllers, "cpu", 3) && !strstr(controllers, "cpuset")) {
			snprintf(base, sizeof(base), "%s/sys/fs/cgroup/cpu", root);
			climb(base, group, look_v1_cpu, out);
		}
	}
}

static unsigned int affinity(void)
{
	cpu_set_t set;

	/* fails with more than 1,024 processors: then the number that are on line */
	if (!sched_getaffinity(0, sizeof(set), &set))
		return (unsigned int)CPU_COUNT(&set);
	return (unsigned int)sysconf(_SC_NPROCESSORS_ONLN);
}

void memory_host_read(const char *root, struct memory_host *out)
{
	out->bytes = mem_total(root);
	out->cpus = affinity();
	cgroups(root, out);
	if (!out->cpus)
		out->cpus = 1;
}
