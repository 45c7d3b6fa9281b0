// SPDX-License-Identifier: MIT
/* memory.c: the accounting, and what a container lets a process use, read from a made-up /proc and
 * /sys. */
#include <sys/stat.h>
#include <unistd.h>

#include "../../userspace/cnnd/memory.h"
#include "../tap.h"

#define MB (1ull << 20)

static void test_accounts(void)
{
	struct memory *m;
	struct memory_account *x, *y, *z;
	struct err err = {0};

	if (memory_create(100 * MB, 60 * MB, &m) || memory_account_open(m, "a", &x) ||
	    memory_account_open(m, "a", &y) || memory_account_open(m, "b", &z))
		BAIL("out of memory");
	is(memory_take(x, MEMORY_ROWS, 40 * MB, &err), 0, "a takes 40 of 100");
	is(memory_take(y, MEMORY_NET, 20 * MB, &err), 0,
	   "  and 20 by another job: its 60 are full");
	is(memory_free_for(m, "a"), 0, "  nothing is left for it");
	is(memory_free_for(m, "b"), 40 * MB, "40 are left for b");
	is(memory_free_for(m, "c"), 40 * MB, "  and for a role without a job");
	ok(memory_take(x, MEMORY_ROWS, 1, &err) < 0, "one byte more is refused");
	is(err.kind, ERR_LIMIT, "  of kind limit");
	like(err.message, "memory_per_role = 60 MB", "  with limit and value");
	ok(memory_take(z, MEMORY_ROWS, 41 * MB, &err) < 0, "b asks for more than there is");
	like(err.message, "40 MB of memory = 100 MB are free", "  free, limit and value");
	is(memory_total(m), 60 * MB, "a refusal takes nothing");
	is(memory_take(z, MEMORY_RINGS, 40 * MB, &err), 0, "exactly what is left");
	is(memory_total_for(m, MEMORY_RINGS), 40 * MB, "by use");
	memory_shrink(x, MEMORY_ROWS, 50 * MB);
	is(memory_used_for(x, MEMORY_ROWS), 40 * MB, "shrink never grows");
	memory_shrink(x, MEMORY_ROWS, 5 * MB);
	memory_give(z, MEMORY_RINGS, 41 * MB);
	is(memory_total(m), 25 * MB, "given back, never below nothing");
	is(memory_of_role(m, "a"), 25 * MB, "a's share");
	ok(memory_take(x, MEMORY_ROWS, UINT64_MAX, &err) < 0, "no overflow");
	memory_set_limits(m, 10 * MB, 10 * MB);
	is(memory_free_for(m, "c"), 0, "a limit below what is held: nothing free");
	memory_account_close(x);
	memory_account_close(y);
	is(memory_total(m), 0, "an account that is closed holds nothing");
	memory_free(m);
}

static char root[64];

static void put(const char *path, const char *text)
{
	char full[512];
	FILE *f;

	snprintf(full, sizeof(full), "%s%s", root, path);
	for (char *p = full + strlen(root) + 1; (p = strchr(p, '/')); p++) {
		*p = '\0';
		mkdir(full, 0700);
		*p = '/';
	}
	f = fopen(full, "w");
	if (!f)
		BAIL("cannot write %s", full);
	fputs(text, f);
	fclose(f);
}

static void test_host(void)
{
	struct memory_host real, h;
	char command[128];

	strcpy(root, "/var/tmp/cnnd-host-XXXXXX");
	if (!mkdtemp(root))
		BAIL("mkdtemp");
	memory_host_read("", &real);
	ok(real.bytes > MB && real.cpus >= 1, "the real host: %llu MB, %u processors",
	   (unsigned long long)(real.bytes >> 20), real.cpus);

	put("/proc/meminfo", "MemTotal:       8388608 kB\nMemFree: 1 kB\n");
	memory_host_read(root, &h);
	is(h.bytes, 8192 * MB, "MemTotal without cgroups");

	put("/proc/self/cgroup", "0::/a.slice/b.scope\n");
	put("/sys/fs/cgroup/a.slice/b.scope/memory.max", "max\n");
	put("/sys/fs/cgroup/a.slice/b.scope/cpu.max", "max 100000\n");
	put("/sys/fs/cgroup/a.slice/memory.max", "1073741824\n");
	put("/sys/fs/cgroup/a.slice/cpu.max", "50000 100000\n");
	put("/sys/fs/cgroup/memory.max", "4294967296\n");
	memory_host_read(root, &h);
	is(h.bytes, 1024 * MB, "the smallest memory.max on the way up");
	is(h.cpus, 1, "half a processor is one thread");
	put("/sys/fs/cgroup/a.slice/memory.max", "9223372036854771712\n");
	memory_host_read(root, &h);
	is(h.bytes, 4096 * MB, "the root's own limit counts, too");

	put("/proc/self/cgroup", "5:memory:/x\n4:cpuset:/y\n3:cpu,cpuacct:/x\n");
	put("/sys/fs/cgroup/memory/x/memory.limit_in_bytes", "536870912\n");
	put("/sys/fs/cgroup/cpu/x/cpu.cfs_quota_us", "-1\n");
	put("/sys/fs/cgroup/cpu/x/cpu.cfs_period_us", "100000\n");
	memory_host_read(root, &h);
	is(h.bytes, 512 * MB, "version 1: limit_in_bytes");
	is(h.cpus, real.cpus, "  no quota");
	put("/proc/self/cgroup", "0::/../../../etc\n");
	memory_host_read(root, &h);
	is(h.bytes, 8192 * MB, "a path with .. is not followed");
	snprintf(command, sizeof(command), "rm -rf %s", root);
	if (system(command))
		printf("# %s is left\n", root);
}

int main(void)
{
	test_accounts();
	test_host();
	return done();
}
