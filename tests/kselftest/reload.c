// SPDX-License-Identifier: MIT
/*
 * reload.c: the module goes and comes while others open its device and make rings: it goes when
 * nobody uses it and not before, and no open in between finds half of it.
 */
#include "cnnring_test.h"

#include <sys/syscall.h>

#define MODULE "/cnnring.ko"

static int load(const char *parameters)
{
	int fd = open(MODULE, O_RDONLY | O_CLOEXEC);
	int rc = syscall(SYS_finit_module, fd, parameters, 0) ? -errno : 0;

	close(fd);
	return rc;
}

static int unload(void)
{
	return syscall(SYS_delete_module, "cnnring", O_NONBLOCK) ? -errno : 0;
}

TEST(not_twice)
{
	EXPECT_EQ(load(""), -EEXIST);
}

/* Makes rings as often as it can; nobody has the module while it pauses. */
static void user(unsigned int seed)
{
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	for (;;) {
		int fd = device(), peer;
		void *p;

		if (fd < 0)
			continue; /* the module is away */
		if (create(fd, BYTES))
			_exit(1);
		peer = peer_fd(fd);
		p = map(peer, 3, 1, PROT_READ | PROT_WRITE);
		if (peer < 0 || !p)
			_exit(2);
		usleep(rand_r(&seed) % 1000);
		close(fd);
		close(peer);
		munmap(p, PAGE);
		usleep(rand_r(&seed) % 4000);
	}
}

TEST(while_others_use_it)
{
	int gone = 0, refused = 0;
	const int64_t begin = now_ms();
	pid_t pid[2];

	ASSERT_TRUE(all_free());
	fflush(NULL);
	for (int k = 0; k < 2; k++) {
		pid[k] = fork();
		if (!pid[k])
			user(k + 1);
	}
	/* five seconds; on a slow machine until it has happened a few times */
	while (gone < 100 && now_ms() - begin < (gone < 5 ? 100000 : 5000)) {
		int rc = unload();

		if (rc == -EWOULDBLOCK) {
			refused++;
			continue;
		}
		ASSERT_EQ(rc, 0);
		gone++;
		ASSERT_EQ(load(""), 0);
	}
	for (int i = 0; i < 2; i++) {
		kill(pid[i], SIGKILL);
		EXPECT_EQ(ended(pid[i]), 1000 + SIGKILL);
	}
	TH_LOG("unloaded %d times, refused %d times", gone, refused);
	EXPECT_GE(gone, 5);
	EXPECT_GT(refused, 0);
	EXPECT_TRUE(all_free());
}

TEST_HARNESS_MAIN
