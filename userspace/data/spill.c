// SPDX-License-Identifier: MIT
/* spill.c: see spill.h. */
#include "spill.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/statvfs.h>
#include <unistd.h>

#define STEP ((uint64_t)64 << 20)

int spill_init(struct spill *s, const char *directory, uint64_t max, uint64_t min_free)
{
	memset(s, 0, sizeof(*s));
	s->fd = -1;
	s->max = max;
	s->min_free = min_free;
	s->directory = strdup(directory);
	return s->directory ? 0 : -ENOMEM;
}

void spill_close(struct spill *s)
{
	if (s->fd >= 0)
		close(s->fd);
	free(s->directory);
	s->fd = -1;
	s->directory = NULL;
}

static uint64_t free_bytes(const struct spill *s)
{
	struct statvfs v;

	if (s->fd < 0 ? statvfs(s->directory, &v) : fstatvfs(s->fd, &v))
		return 0;
	return (uint64_t)v.f_bavail * v.f_frsize;
}

/* code: a positive errno */
static int failed(const struct spill *s, const char *what, int code, uint64_t bytes,
		  struct err *err)
{
	char text[128];

	if (code == ENOSPC || code == EDQUOT || code == EFBIG) {
		err_set(err, ERR_LIMIT, -ENOSPC,
			"spill file in %s: %s: %" PRIu64 " more bytes are needed, %" PRIu64
			" are free, spill_min_free = %" PRIu64,
			s->directory, strerror_r(code, text, sizeof(text)), bytes, free_bytes(s),
			s->min_free);
		err_hint(err, "Free space there, or give rows more memory.");
		return -ENOSPC;
	}
	return err_set(err, ERR_IO, -code, "spill file in %s: %s of %" PRIu64 " bytes: %s",
		       s->directory, what, bytes, strerror_r(code, text, sizeof(text)));
}

static int open_file(struct spill *s, struct err *err)
{
	s->fd = open(s->directory, O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
	if (s->fd < 0)
		return failed(s, "open", errno, 0, err);
	if (!s->max)
		s->max = free_bytes(s) / 5;
	return 0;
}

/* Blocks that others take between this look and the allocation are theirs: min_free is a margin. */
static int allocate(const struct spill *s, uint64_t bytes)
{
	uint64_t space = s->min_free ? free_bytes(s) : UINT64_MAX;
	int rc;

	if (space < bytes || space - bytes < s->min_free)
		return ENOSPC;
	do
		rc = posix_fallocate(s->fd, (off_t)s->allocated, (off_t)bytes);
	while (rc == EINTR);
	return rc;
}

int spill_reserve(struct spill *s, uint64_t bytes, uint64_t *offset, struct err *err)
{
	int rc = s->fd < 0 ? open_file(s, err) : 0;
	uint64_t max;

	if (rc)
		return rc;
	max = s->max + s->released; /* of the file's length */
	if (bytes > s->max || s->end > max - bytes) {
		err_set(err, ERR_LIMIT, -ENOSPC,
			"spill file in %s: %" PRIu64 " more bytes are needed, %" PRIu64
			" of spill_max = %" PRIu64 " bytes are used",
			s->directory, bytes, s->end - s->released, s->max);
		err_hint(err, "Raise spill_max, give rows more memory, or train on fewer rows.");
		return -ENOSPC;
	}
	if (s->end + bytes > s->allocated) {
		uint64_t needed = s->end + bytes - s->allocated, step = max - s->allocated;

		step = step < STEP ? step : STEP;
		step = step < needed ? needed : step;
		rc = allocate(s, step);
		if (rc && step > needed) { /* the disk may have room for this much */
			step = needed;
			rc = allocate(s, step);
		}
		if (rc)
			return failed(s, "allocation", rc, step, err);
		s->allocated += step;
	}
	*offset = s->end;
	s->end += bytes;
	return 0;
}

int spill_write(const struct spill *s, uint64_t offset, const void *from, uint64_t bytes,
		struct err *err)
{
	const uint8_t *p = from;

	while (bytes) {
		ssize_t n = pwrite(s->fd, p, bytes, (off_t)offset);

		if (n < 0 && errno == EINTR)
			continue;
		if (n <= 0)
			return failed(s, "write", n ? errno : EIO, bytes, err);
		p += n;
		offset += (uint64_t)n;
		bytes -= (uint64_t)n;
	}
	return 0;
}

int spill_read(const struct spill *s, uint64_t offset, void *to, uint64_t bytes, struct err *err)
{
	uint8_t *p = to;

	while (bytes) {
		ssize_t n = pread(s->fd, p, bytes, (off_t)offset);

		if (n < 0 && errno == EINTR)
			continue;
		if (n <= 0) /* 0: the file is shorter than what was written */
			return failed(s, "read", n ? errno : EIO, bytes, err);
		p += n;
		offset += (uint64_t)n;
		bytes -= (uint64_t)n;
	}
	return 0;
}

void spill_release(struct spill *s, uint64_t offset, uint64_t bytes)
{
	if (!fallocate(s->fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, (off_t)offset,
		       (off_t)bytes))
		s->released += bytes;
}

void spill_advise(const struct spill *s, uint64_t offset, uint64_t bytes)
{
	posix_fadvise(s->fd, (off_t)offset, (off_t)bytes, POSIX_FADV_WILLNEED);
}
