// SPDX-License-Identifier: MIT
/* map.c: which part of a ring each end may map, and how; what a mapping withstands. */
#include "cnnring_test.h"

#define RO PROT_READ
#define RW (PROT_READ | PROT_WRITE)
#define DATA_PAGES (BYTES / PAGE)

TEST_F(ring, ranges)
{
	static const struct {
		unsigned long page, n;
		int prot, flags, consumer, producer;
	} t[] = {
		{0, 1, RO, MAP_SHARED, 0, 0},
		{1, 1, RO, MAP_SHARED, 0, 0},
		{2, 1, RO, MAP_SHARED, 0, 0},
		{3, DATA_PAGES, RO, MAP_SHARED, 0, 0},
		{3, 1, RO, MAP_SHARED, 0, 0},
		{3 + DATA_PAGES - 1, 1, RO, MAP_SHARED, 0, 0},
		{0, 1, RW, MAP_SHARED, -EACCES, -EACCES},
		{1, 1, RW, MAP_SHARED, -EACCES, 0},
		{2, 1, RW, MAP_SHARED, 0, -EACCES},
		{3, DATA_PAGES, RW, MAP_SHARED, -EACCES, 0},
		{3, DATA_PAGES, PROT_WRITE, MAP_SHARED, -EACCES, 0},
		/* over the edge of a part */
		{0, 2, RO, MAP_SHARED, -EINVAL, -EINVAL},
		{1, 2, RO, MAP_SHARED, -EINVAL, -EINVAL},
		{2, 2, RO, MAP_SHARED, -EINVAL, -EINVAL},
		{0, 3 + DATA_PAGES, RO, MAP_SHARED, -EINVAL, -EINVAL},
		{3, DATA_PAGES + 1, RO, MAP_SHARED, -EINVAL, -EINVAL},
		{3 + DATA_PAGES, 1, RO, MAP_SHARED, -EINVAL, -EINVAL},
		{3 + DATA_PAGES - 1, 2, RO, MAP_SHARED, -EINVAL, -EINVAL},
		{1ul << 40, 1, RO, MAP_SHARED, -EINVAL, -EINVAL},
		{(1ul << 51) - 1, 1, RO, MAP_SHARED, -EINVAL, -EINVAL},
		/* private, executable */
		{3, DATA_PAGES, RO, MAP_PRIVATE, -EINVAL, -EINVAL},
		{3, DATA_PAGES, RW, MAP_PRIVATE, -EINVAL, -EINVAL},
		{3, DATA_PAGES, RO | PROT_EXEC, MAP_SHARED, -EPERM, -EPERM},
		{1, 1, RO | PROT_EXEC, MAP_SHARED, -EPERM, -EPERM},
	};

	for (unsigned int i = 0; i < sizeof(t) / sizeof(*t); i++) {
		EXPECT_EQ(try_map(self->consumer, t[i].page, t[i].n, t[i].prot, t[i].flags),
			  t[i].consumer)
		TH_LOG("consumer, line %u", i);
		EXPECT_EQ(try_map(self->producer, t[i].page, t[i].n, t[i].prot, t[i].flags),
			  t[i].producer)
		TH_LOG("producer, line %u", i);
	}
}

/* What was mapped for reading stays so. */
TEST_F(ring, no_more_rights)
{
	const int fds[] = {self->consumer, self->producer};
	int mem = open("/proc/self/mem", O_RDWR | O_CLOEXEC);

	ASSERT_GE(mem, 0);
	for (int i = 0; i < 2; i++) {
		char *own = map(fds[i], i ? 1 : 2, 1, RW), *other = map(fds[i], i ? 2 : 1, 1, RO);
		char *geometry = map(fds[i], 0, 1, RO), byte = 1;

		ASSERT_NE(own, NULL);
		ASSERT_NE(other, NULL);
		ASSERT_NE(geometry, NULL);
		EXPECT_EQ(mprotect(other, PAGE, RW), -1);
		EXPECT_EQ(errno, EACCES);
		EXPECT_EQ(mprotect(geometry, PAGE, RW), -1);
		EXPECT_EQ(mprotect(own, PAGE, RO), 0);
		EXPECT_EQ(mprotect(own, PAGE, RW), 0);
		EXPECT_EQ(mprotect(own, PAGE, RO | PROT_EXEC), -1);
		EXPECT_EQ(errno, EACCES);
		EXPECT_EQ(mprotect(other, PAGE, RO | PROT_EXEC), -1);
		/* not even by the way of a debugger */
		EXPECT_EQ(pwrite(mem, &byte, 1, (off_t)(uintptr_t)other), -1);
		EXPECT_EQ(*other, 0);
		EXPECT_EQ(pwrite(mem, &byte, 1, (off_t)(uintptr_t)geometry), -1);
		munmap(own, PAGE);
		munmap(other, PAGE);
		munmap(geometry, PAGE);
	}
	close(mem);
}

TEST_F(ring, cannot_grow)
{
	char *p = map(self->producer, 3, 2, RW), *q;

	ASSERT_NE(p, NULL);
	EXPECT_EQ(mremap(p, 2 * PAGE, 3 * PAGE, MREMAP_MAYMOVE), MAP_FAILED);
	EXPECT_EQ(errno, EFAULT);
	p[PAGE] = 7;
	q = mremap(p, 2 * PAGE, 2 * PAGE, MREMAP_MAYMOVE | MREMAP_FIXED, p + (1 << 24));
	ASSERT_NE(q, MAP_FAILED);
	EXPECT_EQ(q[PAGE], 7);
	munmap(q, 2 * PAGE);
}

TEST_F(ring, zero_and_geometry)
{
	static const unsigned long pages[][2] = {{1, 1}, {2, 1}, {3, DATA_PAGES}};
	struct cnnring_geometry *g = map(self->producer, 0, 1, RO),
				want = {.magic = CNNRING_MAGIC,
					.version = CNNRING_LAYOUT,
					.page_bytes = PAGE,
					.data_bytes = BYTES};
	unsigned long bad = 0;
	char *rest = (char *)(g + 1);

	ASSERT_NE(g, NULL);
	EXPECT_EQ(memcmp(g, &want, sizeof(want)), 0);
	EXPECT_EQ(memcmp(g, "CNNRING1", 8), 0);
	for (unsigned long i = 0; i < PAGE - sizeof(*g); i++)
		bad += rest[i] != 0;
	for (int part = 0; part < 3; part++) {
		char *p = map(self->consumer, pages[part][0], pages[part][1], RO);

		ASSERT_NE(p, NULL);
		for (unsigned long i = 0; i < pages[part][1] * PAGE; i++)
			bad += p[i] != 0;
		munmap(p, pages[part][1] * PAGE);
	}
	EXPECT_EQ(bad, 0);
	munmap(g, PAGE);
}

TEST_F(ring, one_memory)
{
	uint64_t *in = map(self->producer, 3, DATA_PAGES, RW);
	uint64_t *out = map(self->consumer, 3, DATA_PAGES, RO), bad = 0;
	uint64_t *again = map(self->consumer, 3, DATA_PAGES, RO);

	ASSERT_NE(in, NULL);
	ASSERT_NE(out, NULL);
	ASSERT_NE(again, NULL);
	for (uint64_t i = 0; i < BYTES / 8; i++)
		in[i] = i * 0x9e3779b97f4a7c15u;
	/* thrown out of the page table, not lost */
	EXPECT_EQ(madvise(in, BYTES, MADV_DONTNEED), 0);
	EXPECT_EQ(madvise(out, BYTES, MADV_DONTNEED), 0);
	for (uint64_t i = 0; i < BYTES / 8; i++)
		bad += out[i] != i * 0x9e3779b97f4a7c15u || in[i] != out[i] || again[i] != out[i];
	EXPECT_EQ(bad, 0);
	munmap(in, BYTES);
	munmap(out, BYTES);
	munmap(again, BYTES);
}

static void flags_of(const char *name, int *n, int *good)
{
	FILE *f = fopen("/proc/self/smaps", "re");
	char line[512];
	int in = 0;

	*n = *good = 0;
	while (f && fgets(line, sizeof(line), f)) {
		if (strstr(line, name)) {
			in = 1;
			++*n;
		} else if (in && !strncmp(line, "VmFlags:", 8)) {
			in = 0;
			/* no expand, no copy at fork, no dump, never executable; not IO or PFN */
			*good += strstr(line, " de") && strstr(line, " dc") &&
				 strstr(line, " dd") && !strstr(line, " me") &&
				 !strstr(line, " io") && !strstr(line, " pf");
		}
	}
	if (f)
		fclose(f);
}

TEST_F(ring, flags)
{
	void *p = map(self->producer, 3, DATA_PAGES, RW), *q = map(self->producer, 2, 1, RO), *r;
	int n, good;

	ASSERT_NE(p, NULL);
	ASSERT_NE(q, NULL);
	flags_of("[cnnring]", &n, &good);
	EXPECT_EQ(n, 2);
	EXPECT_EQ(good, 2);
	r = map(self->consumer, 3, DATA_PAGES, RO);
	ASSERT_NE(r, NULL);
	flags_of(DEVICE, &n, &good);
	EXPECT_EQ(n, 1);
	EXPECT_EQ(good, 1);
	munmap(p, BYTES);
	munmap(q, PAGE);
	munmap(r, BYTES);
}

TEST_F(ring, child_has_no_mapping)
{
	volatile char *p;
	pid_t pid;

	if (may_lack("dontfork"))
		SKIP(return, "this kernel copies to a child what it should not");
	p = map(self->producer, 3, 1, RW);
	ASSERT_NE(p, NULL);
	*p = 1;
	pid = fork();
	if (!pid) {
		*p = 2;
		_exit(0);
	}
	EXPECT_EQ(ended(pid), 1000 + SIGSEGV);
	EXPECT_EQ(*p, 1);
	munmap((void *)p, PAGE);
}

TEST_F(ring, mapping_outlives_descriptor)
{
	volatile char *in = map(self->producer, 3, 1, RW), *out = map(self->consumer, 3, 1, RO);

	ASSERT_NE(in, NULL);
	ASSERT_NE(out, NULL);
	close(self->consumer);
	close(self->producer);
	self->consumer = self->producer = -1;
	in[5] = 9;
	EXPECT_EQ(out[5], 9);
	EXPECT_EQ(stat_of("rings"), 1);
	munmap((void *)in, PAGE);
	EXPECT_EQ(out[5], 9);
	munmap((void *)out, PAGE);
}

TEST(large_pages)
{
	const uint64_t bytes = 16 << 20;
	struct cnnring_create c = create_arg(bytes);
	int fd = device(), peer;
	uint64_t *in, *out, bad = 0;

	c.flags = CNNRING_CREATE_HUGE;
	ASSERT_EQ(call(fd, CNNRING_IOC_CREATE, &c), 0);
	peer = peer_fd(fd);
	/* the machine is fresh: some there are */
	EXPECT_GT(query(fd).huge_pages, 0);
	EXPECT_LE(query(fd).huge_pages, 8);
	in = map(peer, 3, bytes / PAGE, RW);
	out = map(fd, 3, bytes / PAGE, RO);
	ASSERT_NE(in, NULL);
	ASSERT_NE(out, NULL);
	for (uint64_t i = 0; i < bytes / 8; i++)
		bad += out[i] != 0;
	EXPECT_EQ(bad, 0);
	for (uint64_t i = 0; i < bytes / 8; i += 64)
		in[i] = i + 1;
	/* a hole in the middle, then all of it again */
	munmap(in + bytes / 16, 5 * PAGE);
	for (uint64_t i = 0; i < bytes / 8; i += 64)
		bad += out[i] != i + 1;
	EXPECT_EQ(bad, 0);
	munmap(in, bytes);
	munmap(out, bytes);
	close(peer);
	close(fd);
	EXPECT_TRUE(all_free());
}

TEST_HARNESS_MAIN
