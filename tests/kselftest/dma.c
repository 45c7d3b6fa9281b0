// SPDX-License-Identifier: MIT
/*
 * dma.c: a driver (module cnnring_test) pins a ring's pages for long and imports its dma-buf; both
 * work on while both ends die, and everything is free when the driver lets go.
 */
#include "cnnring_test.h"

#include "module/cnnring_test.h"

static int driver(void)
{
	return open("/dev/cnnring_test", O_RDWR | O_CLOEXEC);
}

static int pin(int fd, void *at, unsigned int pages, int write)
{
	struct cnnring_test_pin p = {(uintptr_t)at, pages, (uint32_t)write};

	return call(fd, CNNRING_TEST_PIN, &p);
}

/* the old byte */
static int poke(int fd, uint64_t offset, int value)
{
	struct cnnring_test_poke p = {
		.offset = offset, .write = value >= 0, .value = (uint8_t)value};
	int rc = call(fd, CNNRING_TEST_POKE, &p);

	return rc ? rc : p.old;
}

TEST_F(ring, pin)
{
	char *in = map(self->producer, 3, 16, PROT_READ | PROT_WRITE);
	char *out = map(self->consumer, 3, 16, PROT_READ);
	int fd = driver();

	ASSERT_GE(fd, 0);
	in[5 * PAGE] = 42;
	ASSERT_EQ(pin(fd, in, 16, 1), 16);
	EXPECT_EQ(poke(fd, 5 * PAGE, 43), 42);
	EXPECT_EQ(out[5 * PAGE], 43);
	/* dropped from the page table: the same page comes back */
	madvise(in, 16 * PAGE, MADV_DONTNEED);
	EXPECT_EQ(in[5 * PAGE], 43);
	EXPECT_EQ(poke(fd, 5 * PAGE, 44), 43);
	EXPECT_EQ(out[5 * PAGE], 44);
	munmap(in, 16 * PAGE);
	munmap(out, 16 * PAGE);
	close(self->producer);
	close(self->consumer);
	self->producer = self->consumer = -1;
	EXPECT_TRUE(all_free());
	EXPECT_EQ(poke(fd, 5 * PAGE, -1), 44); /* the pinned pages themselves are the driver's */
	close(fd);
}

TEST_F(ring, pin_follows_rights)
{
	char *own = map(self->consumer, 2, 1, PROT_READ | PROT_WRITE);
	char *data = map(self->consumer, 3, 4, PROT_READ);
	char *other = map(self->consumer, 1, 1, PROT_READ);
	int fd = driver();

	EXPECT_EQ(pin(fd, data, 4, 1), -EFAULT);
	EXPECT_EQ(pin(fd, other, 1, 1), -EFAULT);
	EXPECT_EQ(pin(fd, own, 1, 1), 1);
	close(fd);
	fd = driver();
	EXPECT_EQ(pin(fd, data, 4, 0), 4);
	close(fd);
	munmap(own, PAGE);
	munmap(data, 4 * PAGE);
	munmap(other, PAGE);
}

static void import(struct __test_metadata *_metadata, uint64_t bytes, uint32_t flags, int most)
{
	struct cnnring_create c = create_arg(bytes);
	struct cnnring_export x = {.flags = 1};
	int consumer = device(), producer, dma, fd = driver(), n;
	char *in;

	c.flags = flags;
	ASSERT_EQ(call(consumer, CNNRING_IOC_CREATE, &c), 0);
	producer = peer_fd(consumer);
	EXPECT_EQ(call(consumer, CNNRING_IOC_EXPORT, &x), -EINVAL);
	x = (struct cnnring_export){.pad = 1};
	EXPECT_EQ(call(consumer, CNNRING_IOC_EXPORT, &x), -EINVAL);
	EXPECT_EQ(call(consumer, CNNRING_IOC_EXPORT, (void *)8), -EFAULT);
	x.pad = 0;
	dma = call(consumer, CNNRING_IOC_EXPORT, &x);
	ASSERT_GE(dma, 0);
	EXPECT_EQ(fcntl(dma, F_GETFD), FD_CLOEXEC);
	EXPECT_EQ(lseek(dma, 0, SEEK_END), (off_t)bytes);
	EXPECT_EQ(mmap(NULL, PAGE, PROT_READ, MAP_SHARED, dma, 0), MAP_FAILED);
	in = map(producer, 3, bytes / PAGE, PROT_READ | PROT_WRITE);
	for (uint64_t at = 0; at < bytes; at += PAGE)
		in[at] = (char)(at / PAGE % 100);
	n = call(fd, CNNRING_TEST_IMPORT, (void *)(long)dma);
	EXPECT_GT(n, 0);
	EXPECT_LE(n, most);
	TH_LOG("%llu KiB in %d segments", (unsigned long long)bytes >> 10, n);
	close(dma);
	for (uint64_t at = 0; at < bytes; at += PAGE)
		ASSERT_EQ(poke(fd, at, 101), (int)(at / PAGE % 100));
	EXPECT_EQ(in[bytes - PAGE], 101);
	/* both ends go, the buffer stays, and stays accounted for */
	munmap(in, bytes);
	close(producer);
	close(consumer);
	usleep(50000);
	EXPECT_EQ(poke(fd, bytes - PAGE, -1), 101);
	EXPECT_EQ(stat_of("bytes"), (long long)(bytes + 3 * PAGE));
	close(fd);
	EXPECT_TRUE(all_free());
}

#define NEEDS_DMABUF()                                              \
	do {                                                        \
		int fd_ = device(), has_ = has_dmabuf(fd_);         \
                                                                    \
		close(fd_);                                         \
		if (!has_ && may_lack("dmabuf"))                    \
			SKIP(return, "this kernel has no dma-buf"); \
	} while (0)

TEST(import_small)
{
	NEEDS_DMABUF();
	ASSERT_TRUE(all_free());
	import(_metadata, BYTES, 0, BYTES / PAGE);
}

TEST(import_large)
{
	NEEDS_DMABUF();
	ASSERT_TRUE(all_free());
	import(_metadata, 8 << 20, CNNRING_CREATE_HUGE, 4);
}

/* Twice the machine's memory through imports and pins: nothing is kept. */
TEST(imported_pages_come_back)
{
	NEEDS_DMABUF();
	for (int i = 0; i < turns(128); i++) {
		struct cnnring_create c = create_arg(8 << 20);
		struct cnnring_export x = {0};
		int consumer = device(), fd = driver(), pins = driver(), producer, dma;
		char *p;

		c.flags = i & 1 ? CNNRING_CREATE_HUGE : 0;
		ASSERT_EQ(call(consumer, CNNRING_IOC_CREATE, &c), 0);
		producer = peer_fd(consumer);
		p = map(producer, 3, 2048, PROT_READ | PROT_WRITE);
		ASSERT_NE(p, NULL);
		ASSERT_EQ(pin(pins, p + ((i & 127) << 16), 16, 1), 16);
		dma = call(consumer, CNNRING_IOC_EXPORT, &x);
		ASSERT_GT(call(fd, CNNRING_TEST_IMPORT, (void *)(long)dma), 0);
		munmap(p, 8 << 20);
		close(producer);
		close(consumer);
		close(dma);
		close(fd);
		close(pins);
		ASSERT_TRUE(all_free());
	}
}

TEST(import_twice)
{
	struct cnnring_export x = {0};
	int consumer = device(), a = driver(), b = driver(), first, second;

	NEEDS_DMABUF();
	ASSERT_EQ(create(consumer, BYTES), 0);
	first = call(consumer, CNNRING_IOC_EXPORT, &x);
	second = call(consumer, CNNRING_IOC_EXPORT, &x);
	EXPECT_GT(call(a, CNNRING_TEST_IMPORT, (void *)(long)first), 0);
	EXPECT_GT(call(b, CNNRING_TEST_IMPORT, (void *)(long)second), 0);
	EXPECT_EQ(poke(a, 100, 7), 0);
	EXPECT_EQ(poke(b, 100, -1), 7);
	close(first);
	close(second);
	close(a);
	close(consumer);
	usleep(20000);
	EXPECT_EQ(poke(b, 100, -1), 7);
	close(b);
	EXPECT_TRUE(all_free());
}

TEST_HARNESS_MAIN
