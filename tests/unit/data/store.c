// SPDX-License-Identifier: MIT
/* store.c: where rows lie: places, the budget, the spill file and what can go wrong with it. */
#include <dirent.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include "data_test.h"
#include "../../../userspace/data/store.h"

static char spill_dir[64] = "/var/tmp/cnn-spill-XXXXXX";

/* Row i: 16 bytes of head that are dropped, then `bytes` that can be told from i. */
static void fill(uint8_t *p, uint32_t i, size_t bytes)
{
	for (size_t k = 0; k < bytes; k++)
		p[k] = (uint8_t)(i * 2654435761u >> (8 * (k & 3))) + (uint8_t)k;
}

static int put(struct store *s, struct store_writer *w, uint32_t i, size_t bytes, uint64_t *where,
	       struct err *err)
{
	void *place;
	int rc = store_place(s, w, bytes + 16, &place, err);

	if (rc)
		return rc;
	memset(place, 0xee, 16);
	fill((uint8_t *)place + 16, i, bytes);
	store_keep(w, bytes, where);
	return 0;
}

static bool same(const struct store *s, uint32_t i, size_t bytes, uint64_t where)
{
	uint8_t *want = malloc(bytes), *got = malloc(bytes);
	struct err err;
	bool good;

	fill(want, i, bytes);
	good = !store_read(s, where, got, bytes, &err) && !memcmp(want, got, bytes);
	if (store_pointer(s, where))
		good &= !memcmp(store_pointer(s, where), want, bytes);
	free(want);
	free(got);
	return good;
}

struct blocks {
	uint64_t bytes;
	uint32_t n;
	const char *at[512];
	size_t size[512];
};

static int take_block(void *context, const void *memory, size_t bytes)
{
	struct blocks *b = context;

	if (b->n == 512 || (uintptr_t)memory % 4096 || bytes % 4096)
		return -1;
	b->at[b->n] = memory;
	b->size[b->n++] = bytes;
	b->bytes += bytes;
	return 0;
}

/* Every row that is in memory lies in one block; there is no memory beside them. */
static bool in_blocks(const struct store *s, const uint64_t *where, uint32_t n,
		      const struct blocks *b)
{
	for (uint32_t i = 0; i < n; i++) {
		const char *p = store_pointer(s, where[i]);
		uint32_t k = 0;

		while (p && k < b->n && !(p >= b->at[k] && p < b->at[k] + b->size[k]))
			k++;
		if (p && k == b->n)
			return false;
	}
	return b->bytes <= store_memory(s);
}

static size_t size_of(uint32_t i)
{
	return 1 + i * 37 % 3000 + (i % 100 == 99 ? 200000 : 0);
}

static void test_rows(uint64_t memory, bool spill, const char *name)
{
	enum { N = 5000 };
	struct store *s;
	struct store_writer w[2] = {0};
	uint64_t *where = malloc(N * sizeof(*where));
	uint32_t right = 0, in_file = 0;
	struct blocks blocks = {0};
	struct err err;
	int rc = store_create(memory, spill ? spill_dir : NULL, 0, 0, &s, &err);

	for (uint32_t i = 0; i < N && !rc; i++) {
		void *lost;

		if (i % 5 == 0) /* a value that is not kept */
			store_place(s, &w[i & 1], 777, &lost, &err);
		rc = put(s, &w[i & 1], i, size_of(i), &where[i], &err);
	}
	ok(!rc, "%s: rows of many sizes", name);
	for (int i = 0; i < 2; i++)
		store_writer_close(s, &w[i]);
	ok(store_memory(s) <= memory, "%s: within the budget (%llu)", name,
	   (unsigned long long)store_memory(s));
	for (uint32_t i = 0; i < N; i++) {
		right += same(s, i, size_of(i), where[i]);
		in_file += !store_pointer(s, where[i]);
	}
	is(right, N, "all come back");
	ok(spill ? in_file > N / 2 && store_spilled(s) > 0 : !in_file && !store_spilled(s),
	   "%s: %u rows are in the file", name, in_file);
	is(store_blocks(s, take_block, &blocks), 0, "blocks of whole pages");
	ok(in_blocks(s, where, N, &blocks), "  hold every row that is in memory");
	free(where);
	store_free(s);
}

static void test_places(void)
{
	struct store *s;
	struct store_writer w = {0};
	uint64_t where[3];
	void *a, *b;
	struct err err;

	store_create(1 << 20, NULL, 0, 0, &s, &err);
	store_place(s, &w, 101, &a, &err);
	ok(((uintptr_t)a + 101) % 8 == 0, "the end of a value is a multiple of 8");
	store_place(s, &w, 101, &b, &err);
	ok(a == b, "what is not kept is given again");
	store_keep(&w, 43, &where[0]);
	store_place(s, &w, 64, &b, &err);
	ok((uint8_t *)b + 64 == (uint8_t *)a + 101 - 43 - ((uintptr_t)a + 101 - 43) % 8,
	   "the head of a row is overwritten by the next");
	store_keep(&w, 8, &where[1]);
	store_writer_close(s, &w);
	ok((const uint8_t *)store_pointer(s, where[0]) == (uint8_t *)a + 58, "x did not move");
	store_free(s);
}

static void test_limits(void)
{
	struct store *s;
	struct store_writer w = {0};
	uint64_t where;
	struct err err = {0};
	int rc = 0;
	uint32_t n = 0;

	store_create(1 << 20, NULL, 0, 0, &s, &err);
	while (!rc && n++ < 10000)
		rc = put(s, &w, n, 1000, &where, &err);
	is(rc, -ENOMEM, "no spill_dir: memory ends");
	is(err.kind, ERR_LIMIT, "a limit");
	like(err.message, "memory = 1048576 are used and there is no spill_dir", "it is named");
	is(store_charge(s, 1 << 20, "ids", &err), -ENOMEM, "charges count too");
	store_writer_close(s, &w);
	store_free(s);

	store_create(1 << 20, spill_dir, 2 << 20, 0, &s, &err);
	for (rc = 0, n = 0; !rc && n < 10000; n++)
		rc = put(s, &w, n, 1000, &where, &err);
	is(rc, -ENOSPC, "spill_max ends");
	is(err.kind, ERR_LIMIT, "a limit");
	like(err.message, "spill_max = 2097152 bytes are used", "it is named");
	like(err.message, spill_dir, "with the path");
	ok(n > 2500 && n < 3200, "after memory and file were full: %u rows", n);
	store_writer_close(s, &w);
	store_free(s);

	/* more than any disk has, then what any disk has */
	store_create(1 << 20, spill_dir, 0, UINT64_C(1) << 60, &s, &err);
	for (rc = 0, n = 0; !rc && n < 10000; n++)
		rc = put(s, &w, n, 1000, &where, &err);
	is(rc, -ENOSPC, "spill_min_free is kept");
	is(err.kind, ERR_LIMIT, "a limit");
	like(err.message, "spill_min_free = 1152921504606846976", "it is named");
	is(store_spilled(s), 0, "before a byte is spilled");
	store_writer_close(s, &w);
	store_free(s);
	store_create(1 << 20, spill_dir, 2 << 20, 1, &s, &err);
	for (rc = 0, n = 0; !rc && n < 1500; n++)
		rc = put(s, &w, n, 1000, &where, &err);
	ok(!rc && store_spilled(s), "where the disk has more, rows are spilled");
	store_writer_close(s, &w);
	store_free(s);

	store_create(1 << 20, "/nonexistent/spill", 0, 0, &s, &err);
	for (rc = 0, n = 0; !rc && n < 10000; n++)
		rc = put(s, &w, n, 1000, &where, &err);
	ok(rc == -ENOENT && err.kind == ERR_IO, "a spill_dir that is not there");
	like(err.message, "/nonexistent/spill: open", "it is named");
	store_writer_close(s, &w);
	store_free(s);
}

/* The file of this process below a folder, by its descriptor. */
static int spill_fd(void)
{
	DIR *d = opendir("/proc/self/fd");
	struct dirent *e;
	int fd = -1;

	while ((e = readdir(d))) {
		char link[300], to[300];
		ssize_t n;

		snprintf(link, sizeof(link), "/proc/self/fd/%s", e->d_name);
		n = readlink(link, to, sizeof(to) - 1);
		if (n > 0 && (to[n] = '\0', strstr(to, "cnn-spill-")))
			fd = atoi(e->d_name);
	}
	closedir(d);
	return fd;
}

/* A disk that gives less than what was written, and one that takes no more. */
static void test_faults(void)
{
	struct rlimit old, small;
	struct store *s;
	struct store_writer w = {0};
	uint64_t where[3000];
	uint8_t buffer[1000];
	struct err err = {0};
	struct stat st;
	int rc = 0, fd;
	uint32_t n;

	store_create(1 << 20, spill_dir, 0, 0, &s, &err);
	for (n = 0; n < 3000 && !rc; n++)
		rc = put(s, &w, n, 1000, &where[n], &err);
	store_writer_close(s, &w);
	fd = spill_fd();
	ok(!rc && fd >= 0, "a spill file");
	ok(!fstat(fd, &st) && st.st_nlink == 0 && (st.st_mode & 0777) == 0600,
	   "without a name, for its owner only");
	is(fcntl(fd, F_GETFD) & FD_CLOEXEC, FD_CLOEXEC, "not for children");
	is(st.st_size, 64 << 20, "allocated in steps of 64 MiB");
	for (n = 0; n < 3000 && store_pointer(s, where[n]);)
		n++;
	if (ftruncate(fd, 0))
		BAIL("ftruncate");
	rc = store_read(s, where[n], buffer, 1000, &err);
	ok(rc == -EIO && err.kind == ERR_IO,
	   "a file that lost its bytes is an error, not a signal");
	like(err.message, "read of 1000 bytes", "it is named");
	store_free(s);

	signal(SIGXFSZ, SIG_IGN);
	getrlimit(RLIMIT_FSIZE, &old);
	small = (struct rlimit){1 << 20, old.rlim_max};
	setrlimit(RLIMIT_FSIZE, &small);
	store_create(1 << 20, spill_dir, 0, 0, &s, &err);
	for (n = 0, rc = 0; n < 3000 && !rc; n++)
		rc = put(s, &w, n, 1000, &where[n], &err);
	setrlimit(RLIMIT_FSIZE, &old);
	ok(rc == -ENOSPC && err.kind == ERR_LIMIT, "a file that may not grow: %s", err.message);
	ok(n > 1900, "after it was used to its end: %u rows", n);
	for (rc = 0, fd = 0; (uint32_t)fd + 1 < n; fd++)
		rc += !same(s, (uint32_t)fd, 1000, where[fd]);
	is(rc, 0, "what was written before is still right");
	store_writer_close(s, &w);
	store_free(s);
}

static int run_full_disk(void)
{
	struct store *s;
	struct store_writer w = {0};
	uint64_t where;
	struct err err = {0};
	int rc = 0;

	if (mount("none", spill_dir, "tmpfs", 0, "size=1m"))
		return 77;
	store_create(1 << 20, spill_dir, 1 << 30, 0, &s, &err);
	for (uint32_t n = 0; n < 10000 && !rc; n++)
		rc = put(s, &w, n, 1000, &where, &err);
	store_free(s);
	return rc == -ENOSPC && err.kind == ERR_LIMIT && strstr(err.message, "No space left") &&
			       strstr(err.message, spill_dir) && strstr(err.message, "are free")
		       ? 0
		       : 1;
}

static bool put_text(const char *path, const char *text)
{
	int fd = open(path, O_WRONLY);
	bool good = fd >= 0 && write(fd, text, strlen(text)) == (ssize_t)strlen(text);

	if (fd >= 0)
		close(fd);
	return good;
}

/* A mount namespace of our own; unprivileged users get it with a user namespace. */
static bool own_mounts(void)
{
	char uid[32], gid[32];

	snprintf(uid, sizeof(uid), "0 %u 1", geteuid());
	snprintf(gid, sizeof(gid), "0 %u 1", getegid());
	if (!geteuid())
		return !unshare(CLONE_NEWNS) && !mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL);
	return !unshare(CLONE_NEWUSER | CLONE_NEWNS) && put_text("/proc/self/setgroups", "deny") &&
	       put_text("/proc/self/uid_map", uid) && put_text("/proc/self/gid_map", gid);
}

static void test_full_disk(void)
{
	int status = 0;
	pid_t pid = fork();

	if (!pid) {
		if (!own_mounts())
			_exit(77);
		_exit(run_full_disk());
	}
	waitpid(pid, &status, 0);
	if (WIFEXITED(status) && WEXITSTATUS(status) == 77)
		skip("no mount namespace", "a full disk");
	else
		is(status, 0, "a full disk: ENOSPC with path, needed and free");
}

/* Chunks that were released: memory and file are free for others; the rest stays readable. */
static void test_release(void)
{
	enum { N = 12000 };
	struct store *s;
	struct store_writer w = {0};
	uint64_t *where = malloc(N * sizeof(*where)), full;
	uint32_t n, right = 0, kept = 0;
	struct stat before, after;
	struct err err;
	int rc = 0;

	store_create(1 << 20, spill_dir, 4 << 20, 0, &s, &err);
	for (n = 0; n < 4000 && !rc; n++)
		rc = put(s, &w, n, 1000, &where[n], &err);
	store_writer_close(s, &w);
	full = store_memory(s);
	fstat(spill_fd(), &before);
	for (uint32_t k = 0; k < store_chunks(s); k++)
		if (k != store_chunk(where[7]) && k != store_chunk(where[n - 1]))
			store_release(s, k);
	fstat(spill_fd(), &after);
	ok(!rc && store_memory(s) < full / 4 && store_spilled(s) < 200000,
	   "released: %llu bytes in memory, %llu in the file", (unsigned long long)store_memory(s),
	   (unsigned long long)store_spilled(s));
	ok(before.st_blocks > 2 * after.st_blocks, "the disk has %lld blocks back",
	   (long long)(before.st_blocks - after.st_blocks));
	for (uint32_t i = 0; i < n; i++) {
		if (store_chunk(where[i]) != store_chunk(where[7]) &&
		    store_chunk(where[i]) != store_chunk(where[n - 1]))
			continue;
		kept++;
		right += same(s, i, 1000, where[i]);
	}
	ok(kept > 60 && right == kept, "the other two chunks stay (%u rows)", kept);
	for (; n < 8000 && !rc; n++)
		rc = put(s, &w, n, 1000, &where[n], &err);
	ok(!rc, "as much again fits below spill_max");
	for (; n < N && !rc; n++)
		rc = put(s, &w, n, 1000, &where[n], &err);
	is(rc, -ENOSPC, "... and not much more");
	ok(n > 8500 && n < 9500, "(%u rows)", n);
	store_writer_close(s, &w);
	store_free(s);
	free(where);
}

int main(void)
{
	if (!mkdtemp(spill_dir))
		BAIL("mkdtemp");
	test_places();
	test_rows((uint64_t)256 << 20, false, "in memory");
	test_rows(2 << 20, true, "spilled");
	test_limits();
	test_release();
	test_faults();
	test_full_disk();
	rmdir(spill_dir);
	return done();
}
