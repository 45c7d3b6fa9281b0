// SPDX-License-Identifier: MIT
/* limits.c: every limit refuses with its own error, names itself, and is back at 0 afterwards. */
#include "cnnring_test.h"

#include <pthread.h>
#include <sys/mount.h>
#include <sys/stat.h>

#define MB (1ull << 20)
#define ALL(data) ((data) + 3 * PAGE)

static int create_into(int fd, uint64_t bytes, struct cnnring_create *c)
{
	*c = create_arg(bytes);
	return call(fd, CNNRING_IOC_CREATE, c);
}

FIXTURE(limits)
{
	int fd;
};

FIXTURE_SETUP(limits)
{
	ASSERT_TRUE(all_free());
	self->fd = device();
	ASSERT_GE(self->fd, 0);
}

FIXTURE_TEARDOWN(limits)
{
	close(self->fd);
	EXPECT_EQ(set_parameter("total_bytes", 0), 0);
	EXPECT_EQ(set_parameter("ring_bytes_max", 1 << 30), 0);
	EXPECT_TRUE(all_free());
}

TEST_F(limits, ring_bytes_max)
{
	struct cnnring_create c;

	ASSERT_EQ(set_parameter("ring_bytes_max", MB), 0);
	EXPECT_EQ(create_into(self->fd, 2 * MB, &c), -ENOSPC);
	EXPECT_EQ(c.limit, CNNRING_LIMIT_RING);
	EXPECT_EQ(c.limit_bytes, MB);
	EXPECT_EQ(c.want_bytes, ALL(2 * MB));
	EXPECT_EQ(create_into(self->fd, MB, &c), 0);
	EXPECT_EQ(c.limit, CNNRING_LIMIT_NONE);
}

TEST_F(limits, total_bytes)
{
	struct cnnring_create c;
	int second = device();

	ASSERT_EQ(set_parameter("total_bytes", 2 * ALL(MB) - 1), 0);
	EXPECT_EQ(create_into(self->fd, MB, &c), 0);
	EXPECT_EQ(create_into(second, MB, &c), -ENOSPC);
	EXPECT_EQ(c.limit, CNNRING_LIMIT_TOTAL);
	EXPECT_EQ(c.limit_bytes, 2 * ALL(MB) - 1);
	EXPECT_EQ(c.used_bytes, ALL(MB));
	ASSERT_EQ(set_parameter("total_bytes", 2 * ALL(MB)), 0);
	EXPECT_EQ(create_into(second, MB, &c), 0);
	EXPECT_EQ(stat_of("bytes"), 2 * ALL(MB));
	EXPECT_EQ(stat_of("rings"), 2);
	close(second);
}

/* In a child: as a user with a limit; what comes out is the number of the check that failed. */
static int as_user(int a, int b, int c)
{
	const struct rlimit limit = {2 * ALL(MB) - 1, 2 * ALL(MB) - 1};
	struct cnnring_create arg;

	if (setrlimit(RLIMIT_MEMLOCK, &limit) || setresgid(65534, 65534, 65534) ||
	    setresuid(65534, 65534, 65534))
		return 1;
	if (create_into(a, MB, &arg))
		return 2;
	if (create_into(b, MB, &arg) != -EDQUOT || arg.limit != CNNRING_LIMIT_MEMLOCK)
		return 3;
	if (arg.limit_bytes != (2 * ALL(MB) - 1) / PAGE * PAGE || arg.used_bytes != ALL(MB))
		return 4;
	if (stat_of("bytes") >= 0)
		return 5; /* root's only */
	if (create_into(b, MB / 2, &arg))
		return 6;
	if (create_into(c, MB, &arg) != -EDQUOT)
		return 7;
	close(a);
	for (int i = 0; i < 100 && create_into(c, MB, &arg); i++)
		usleep(10000);
	return query(c).data_bytes == MB ? 0 : 8;
}

TEST_F(limits, memlock_per_user)
{
	for (int turn = 0; turn < 2; turn++) { /* again: nothing was left charged */
		pid_t pid = fork();

		if (!pid) {
			int a = device(), b = device(), c = device();

			_exit(as_user(a, b, c));
		}
		EXPECT_EQ(ended(pid), 0);
		EXPECT_TRUE(all_free());
	}
}

/* Charged to who created, until the pages go: not to who closes last. */
TEST_F(limits, charge_stays_with_creator)
{
	int pair[2], fd;
	pid_t pid;

	ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM, 0, pair), 0);
	pid = fork();
	if (!pid) {
		struct rlimit limit = {2 * MB, 2 * MB};

		fd = device();
		setrlimit(RLIMIT_MEMLOCK, &limit);
		if (setresuid(65533, 65533, 65533) || create(fd, MB))
			_exit(1);
		_exit(send_fd(pair[0], fd) ? 2 : 0);
	}
	ASSERT_EQ(ended(pid), 0);
	fd = receive_fd(pair[1]);
	EXPECT_EQ(stat_of("bytes"), ALL(MB));
	EXPECT_EQ(query(fd).total_bytes, ALL(MB));
	pid = fork();
	if (!pid) {
		struct rlimit limit = {2 * MB, 2 * MB};
		int other = device(), rc;

		setrlimit(RLIMIT_MEMLOCK, &limit);
		if (setresuid(65533, 65533, 65533))
			_exit(1);
		rc = create(other, MB);
		close(fd);
		_exit(rc == -EDQUOT ? 0 : 2);
	}
	EXPECT_EQ(ended(pid), 0);
	close(fd);
	close(pair[0]);
	close(pair[1]);
}

/* Who may lock any memory is not charged, however small the limit. */
TEST_F(limits, memlock_exempt)
{
	pid_t pid = fork();

	if (!pid) {
		struct rlimit none = {0, 0};

		_exit(setrlimit(RLIMIT_MEMLOCK, &none) || create(self->fd, MB) ? 1 : 0);
	}
	EXPECT_EQ(ended(pid), 0);
	EXPECT_EQ(query(self->fd).total_bytes, ALL(MB));
}

/* Several at the same moment never get more than the total together, and no charge is lost. */
static pthread_barrier_t together;

static void *grab(void *fd)
{
	pthread_barrier_wait(&together);
	return (void *)(long)create(*(int *)fd, BYTES);
}

TEST_F(limits, total_bytes_race)
{
	ASSERT_EQ(set_parameter("total_bytes", 3 * ALL(BYTES)), 0);
	pthread_barrier_init(&together, NULL, 8);
	for (int turn = 0; turn < turns(400); turn++) {
		pthread_t thread[8];
		int fd[8], won = 0;
		void *rc;

		for (int i = 0; i < 8; i++) {
			fd[i] = device();
			pthread_create(&thread[i], NULL, grab, &fd[i]);
		}
		for (int i = 0; i < 8; i++) {
			pthread_join(thread[i], &rc);
			ASSERT_TRUE(!rc || (long)rc == -ENOSPC);
			won += !rc;
		}
		ASSERT_EQ(won, 3);
		ASSERT_EQ(stat_of("bytes"), 3 * ALL(BYTES));
		for (int i = 0; i < 8; i++)
			close(fd[i]);
		ASSERT_TRUE(all_free());
	}
	pthread_barrier_destroy(&together);
}

/* MiB of the machine's memory that nobody uses, -1: not known. */
static long free_mb(void)
{
	FILE *f = fopen("/proc/meminfo", "re");
	char key[32], line[128];
	long kb, found = -1;

	while (f && fgets(line, sizeof(line), f))
		if (sscanf(line, "%31s %ld", key, &kb) == 2 && !strcmp(key, "MemFree:"))
			found = kb >> 10;
	if (f)
		fclose(f);
	return found;
}

static void create_in_turn(int told, uint64_t bytes, uint32_t flags)
{
	const struct rlimit limit = {ALL(bytes) + MB, ALL(bytes) + MB};
	int fd[8];

	for (int i = 0; i < 8; i++)
		fd[i] = device();
	if (setrlimit(RLIMIT_MEMLOCK, &limit) || setresuid(65532, 65532, 65532) ||
	    write(told, "", 1) != 1)
		_exit(1);
	for (int i = 0; i < 8; i++) {
		struct cnnring_create c = create_arg(bytes);

		c.flags = flags;
		if (call(fd[i], CNNRING_IOC_CREATE, &c))
			_exit(2);
		close(fd[i]);
	}
	pause();
}

/*
 * Killed in the middle of a CREATE of a quarter of the machine's memory, again and again, as a user
 * with a limit that one such ring fills: if anything stayed charged or allocated, the next one
 * could not.
 */
TEST_F(limits, killed_while_creating)
{
	const uint64_t bytes = 128 * MB;
	int in_the_middle = 0;
	unsigned int seed = 7;
	long long refused = stat_of("refused");
	long before = free_mb();

	ASSERT_EQ(set_parameter("total_bytes", ALL(bytes) + MB), 0);
	for (int i = 0; i < 30; i++) {
		int told[2], at = 0;
		pid_t pid;

		ASSERT_EQ(pipe(told), 0);
		pid = fork();
		if (!pid)
			create_in_turn(told[1], bytes, i & 1 ? CNNRING_CREATE_HUGE : 0);
		ASSERT_EQ(read(told[0], &at, 1), 1);
		usleep(rand_r(&seed) % 100000);
		/* charged, and not yet a ring: it is filling */
		in_the_middle += stat_of("bytes") > 0 && !stat_of("rings");
		kill(pid, SIGKILL);
		EXPECT_EQ(ended(pid), 1000 + SIGKILL);
		close(told[0]);
		close(told[1]);
		ASSERT_TRUE(all_free());
	}
	TH_LOG("%d of 30 in the middle, %lld CREATEs ended by it", in_the_middle,
	       stat_of("refused") - refused);
	EXPECT_GT(in_the_middle, 0);
	EXPECT_GT(stat_of("refused"), refused);
	/* what the counters call free is free; KASAN's quarantine may hold 24 MiB of this machine */
	EXPECT_LT(before - free_mb(), 64)
	TH_LOG("%ld MiB free, %ld before", free_mb(), before);
}

TEST_F(limits, memory_of_the_machine)
{
	struct cnnring_create c;

	/* more than the machine has, with the module's own limit out of the way */
	ASSERT_EQ(set_parameter("total_bytes", 1ull << 40), 0);
	EXPECT_EQ(create_into(self->fd, 1 << 30, &c), -ENOMEM);
	EXPECT_EQ(c.limit, CNNRING_LIMIT_MEMORY);
	EXPECT_EQ(stat_of("bytes"), 0);
	EXPECT_EQ(create_into(self->fd, MB, &c), 0);
}

TEST_F(limits, default_total)
{
	struct cnnring_create c;

	EXPECT_EQ(create_into(self->fd, 1 << 30, &c), -ENOSPC);
	EXPECT_EQ(c.limit, CNNRING_LIMIT_TOTAL);
	EXPECT_EQ(c.limit_bytes, stat_of("total_max"));
}

TEST_F(limits, control_group)
{
	char text[32];
	pid_t pid;

	mkdir("/tmp/cg", 0755);
	if (mount("none", "/tmp/cg", "cgroup2", 0, NULL) && errno != EBUSY)
		ASSERT_EQ(errno, 0);
	write_text("/tmp/cg/cgroup.subtree_control", "+memory");
	mkdir("/tmp/cg/small", 0755);
	ASSERT_EQ(write_text("/tmp/cg/small/memory.max", "16M"), 0);
	pid = fork();
	if (!pid) {
		struct cnnring_create c;

		snprintf(text, sizeof(text), "%d", getpid());
		if (write_text("/tmp/cg/small/cgroup.procs", text))
			_exit(1);
		/* an error, not the OOM killer */
		if (create_into(self->fd, 32 * MB, &c) != -ENOMEM ||
		    c.limit != CNNRING_LIMIT_MEMORY)
			_exit(2);
		if (create_into(self->fd, 4 * MB, &c))
			_exit(3);
		_exit(0);
	}
	EXPECT_EQ(ended(pid), 0);
	rmdir("/tmp/cg/small");
	umount("/tmp/cg");
}

/* ---- NUMA: pages per node, out of numa_maps of the only mapping ---- */

static void pages_on(int on[2])
{
	FILE *f = fopen("/proc/self/numa_maps", "re");
	char line[512];

	on[0] = on[1] = 0;
	while (f && fgets(line, sizeof(line), f)) {
		for (int n = 0; n < 2 && strstr(line, "file=/dev/cnnring"); n++) {
			char key[] = " N0=", *at;

			key[2] += n;
			at = strstr(line, key);
			on[n] += at ? atoi(at + 4) : 0;
		}
	}
	if (f)
		fclose(f);
}

TEST_F(limits, numa_node)
{
	if (may_lack("numa"))
		SKIP(return, "this kernel has one NUMA node");
	for (uint32_t node = 0; node < 2; node++) {
		struct cnnring_create c = create_arg(MB);
		int fd = device(), on[2];
		volatile char *p;

		c.node = node;
		ASSERT_EQ(call(fd, CNNRING_IOC_CREATE, &c), 0);
		EXPECT_EQ(query(fd).node, node);
		p = map(fd, 3, MB / PAGE, PROT_READ);
		ASSERT_NE(p, NULL);
		for (uint64_t at = 0; at < MB; at += PAGE)
			(void)p[at];
		pages_on(on);
		EXPECT_EQ(on[node], MB / PAGE);
		EXPECT_EQ(on[!node], 0);
		munmap((void *)p, MB);
		close(fd);
	}
}

/* ---- what the shared words do to the statistics, and that they do nothing else ---- */

TEST_F(ring, hostile_positions)
{
	static const uint64_t wild[] = {UINT64_MAX, 1ull << 63, BYTES + 1, 16 + BYTES + 1};
	volatile uint64_t *head = map(self->producer, 1, 1, PROT_READ | PROT_WRITE);
	volatile uint64_t *tail = map(self->consumer, 2, 1, PROT_READ | PROT_WRITE);
	long long before = stat_of("moved");

	ASSERT_NE(head, NULL);
	ASSERT_NE(tail, NULL);
	*head = 16;
	EXPECT_EQ(query(self->consumer).moved_bytes, 16);
	EXPECT_EQ(query(self->producer).moved_bytes, 16);
	EXPECT_EQ(stat_of("moved"), before + 16);
	for (unsigned int i = 0; i < sizeof(wild) / sizeof(*wild); i++) {
		*head = wild[i];
		EXPECT_EQ(query(self->consumer).moved_bytes, 16);
	}
	*head = 8; /* back */
	EXPECT_EQ(query(self->consumer).moved_bytes, 16);
	*head = BYTES;
	EXPECT_EQ(query(self->consumer).moved_bytes, BYTES);
	*tail = BYTES / 2;
	*head = BYTES + BYTES / 2;
	EXPECT_EQ(query(self->consumer).moved_bytes, BYTES + BYTES / 2);
	*tail = UINT64_MAX;
	EXPECT_EQ(query(self->consumer).moved_bytes, BYTES + BYTES / 2);
	*tail = 0;
	*head = 2 * BYTES; /* seen at the end only, and not believed */
	EXPECT_EQ(wake(self->producer), 0);
	EXPECT_EQ(events(self->consumer, 0), POLLIN);
	munmap((void *)head, PAGE);
	munmap((void *)tail, PAGE);
	close(self->producer);
	close(self->consumer);
	self->producer = self->consumer = -1;
	EXPECT_TRUE(all_free());
	EXPECT_EQ(stat_of("moved"), before + BYTES + BYTES / 2);
}

/* What was written before a death is counted. */
TEST_F(ring, counted_at_the_end)
{
	long long before = stat_of("moved");
	pid_t pid = fork();

	if (!pid) {
		volatile uint64_t *head = map(self->producer, 1, 1, PROT_READ | PROT_WRITE);

		*head = 4096;
		raise(SIGKILL);
	}
	EXPECT_EQ(ended(pid), 1000 + SIGKILL);
	close(self->producer);
	close(self->consumer);
	self->producer = self->consumer = -1;
	EXPECT_TRUE(all_free());
	EXPECT_EQ(stat_of("moved"), before + 4096);
}

TEST_HARNESS_MAIN
