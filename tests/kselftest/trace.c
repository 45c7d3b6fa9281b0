// SPDX-License-Identifier: MIT
/*
 * trace.c: what the module tells of itself: its tracepoints, each seen with its values, and its
 * files in debugfs.
 */
#include "cnnring_test.h"

#include <sys/mount.h>
#include <sys/stat.h>

#define TRACING "/sys/kernel/tracing"

static char *text_of(const char *path, char *text, size_t n)
{
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	ssize_t got, at = 0;

	while (fd >= 0 && (got = read(fd, text + at, n - 1 - at)) > 0)
		at += got;
	text[at] = '\0';
	if (fd >= 0)
		close(fd);
	return text;
}

FIXTURE(trace)
{
	char *text;
};

#define TEXT (1u << 20)

FIXTURE_SETUP(trace)
{
	struct stat st;

	ASSERT_TRUE(all_free());
	self->text = malloc(TEXT);
	if (stat(TRACING "/trace", &st))
		ASSERT_EQ(mount("none", TRACING, "tracefs", 0, NULL), 0)
	TH_LOG("%s", strerror(errno));
	close(open(TRACING "/trace", O_WRONLY | O_TRUNC | O_CLOEXEC)); /* empties it */
	ASSERT_EQ(write_text(TRACING "/events/cnnring/enable", "1"), 0);
}

FIXTURE_TEARDOWN(trace)
{
	EXPECT_EQ(write_text(TRACING "/events/cnnring/enable", "0"), 0);
	set_parameter("ring_bytes_max", 1 << 30);
	free(self->text);
	EXPECT_TRUE(all_free());
}

static int seen(struct __test_metadata *_metadata, const char *text, const char *format, ...)
{
	char wanted[200];
	va_list ap;

	va_start(ap, format);
	vsnprintf(wanted, sizeof(wanted), format, ap);
	va_end(ap);
	if (strstr(text, wanted))
		return 1;
	TH_LOG("'%s' is not in the trace", wanted);
	return 0;
}

#define EXPECT_SEEN(...) EXPECT_TRUE(seen(_metadata, self->text, __VA_ARGS__))

TEST_F(trace, every_tracepoint)
{
	int fd = device(), peer;
	volatile uint64_t *head;
	struct cnnring_create c = create_arg(2 << 20);
	unsigned int id;
	int gone = 0;

	ASSERT_EQ(set_parameter("ring_bytes_max", 1 << 20), 0);
	EXPECT_EQ(call(fd, CNNRING_IOC_CREATE, &c), -ENOSPC);
	ASSERT_EQ(create(fd, BYTES), 0);
	id = query(fd).id;
	peer = peer_fd(fd);
	head = map(peer, 1, 1, PROT_READ | PROT_WRITE);
	*head = 4096;
	munmap((void *)head, PAGE);
	EXPECT_EQ(wake(peer), 0);
	EXPECT_EQ(wake(fd), 0);
	call(peer, CNNRING_IOC_DETACH, NULL);
	close(peer);
	close(fd);
	ASSERT_TRUE(all_free());
	text_of(TRACING "/trace", self->text, TEXT);
	EXPECT_SEEN("cnnring_refuse: ring=%u limit=%u want=%lu error=%d", id, CNNRING_LIMIT_RING,
		    (2ul << 20) + 3 * PAGE, -ENOSPC);
	EXPECT_SEEN("cnnring_create: ring=%u bytes=%lu huge=0", id, BYTES + 3 * PAGE);
	EXPECT_SEEN("cnnring_wake: ring=%u end=producer", id);
	EXPECT_SEEN("cnnring_wake: ring=%u end=consumer", id);
	EXPECT_SEEN("cnnring_gone: ring=%u end=producer", id);
	EXPECT_SEEN("cnnring_gone: ring=%u end=consumer", id);
	EXPECT_SEEN("cnnring_free: ring=%u moved=4096", id);
	/* who leaves by DETACH and then closes is gone once */
	for (char *at = self->text; (at = strstr(at, "cnnring_gone: ")); at++)
		gone++;
	EXPECT_EQ(gone, 2);
}

TEST_F(trace, off_is_off)
{
	int fd = device();

	ASSERT_EQ(write_text(TRACING "/events/cnnring/enable", "0"), 0);
	ASSERT_EQ(create(fd, BYTES), 0);
	close(fd);
	ASSERT_TRUE(all_free());
	EXPECT_EQ(strstr(text_of(TRACING "/trace", self->text, TEXT), "cnnring_create:"), NULL);
}

TEST_F(trace, debugfs)
{
	int fd = device(), peer, other = device();
	char path[64];
	struct stat st;
	unsigned int id;

	ASSERT_EQ(create(fd, BYTES), 0);
	id = query(fd).id;
	peer = peer_fd(fd);
	EXPECT_EQ(wake(peer), 0);
	snprintf(path, sizeof(path), "/sys/kernel/debug/cnnring/ring-%u", id);
	ASSERT_EQ(stat(path, &st), 0);
	EXPECT_EQ(st.st_mode & 0777, 0400);
	EXPECT_EQ(st.st_uid, 0);
	text_of(path, self->text, TEXT);
	EXPECT_SEEN("bytes %lu\ndata %lu\nhuge 0\nmoved 0\n", BYTES + 3 * PAGE, BYTES);
	EXPECT_SEEN("producer wakes 1 state 0x2\n");
	EXPECT_SEEN("consumer wakes 0 state 0x3\n");
	EXPECT_EQ(stat_of("rings"), 1);
	/* a file held open while the ring goes reads as gone, and keeps nothing */
	{
		int held = open(path, O_RDONLY | O_CLOEXEC);
		char byte;

		close(peer);
		close(fd);
		EXPECT_TRUE(all_free());
		EXPECT_EQ(read(held, &byte, 1), -1);
		EXPECT_EQ(errno, EIO);
		close(held);
	}
	EXPECT_EQ(stat(path, &st), -1);
	close(other);
}

TEST_HARNESS_MAIN
