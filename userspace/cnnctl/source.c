// SPDX-License-Identifier: MIT
/*
 * source.c: reads labelled images from IDX files (MNIST family), CIFAR binary files, folders and
 * tars of image files. Files are only checked by their first bytes here; decoding is the daemon's.
 */
#include "cnnctl.h"

#include <archive.h>
#include <archive_entry.h>
#include <errno.h>
#include <fts.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#define MAX_FILE (1u << 29) /* a field of COPY holds less than 1 GB */
#define IDX_IMAGES 0x0803u
#define IDX_IMAGES_RGB 0x0804u
#define IDX_LABELS 0x0801u

struct source {
	enum source_format format;
	char **path;
	int n_paths, next_path;
	const char *only;
	/* streams */
	struct archive *a, *b; /* images (or everything), labels */
	uint64_t total, done;
	size_t item_bytes;
	int label_bytes; /* CIFAR: bytes before the pixels */
	/* folders */
	FTS *fts;
	/* the current item */
	uint8_t *buf;
	size_t capacity;
	char item_path[4096], class[256];
};

static int broken(char *error, size_t n, const char *fmt, ...)
	__attribute__((format(printf, 3, 4)));
static int broken(char *error, size_t n, const char *fmt, ...)
{
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(error, n, fmt, ap);
	va_end(ap);
	return -1;
}

static struct archive *stream_open(const char *path, bool raw, char *error, size_t n)
{
	struct archive *a = archive_read_new();
	struct archive_entry *entry;

	if (!a) {
		broken(error, n, "out of memory");
		return NULL;
	}
	archive_read_support_filter_all(a);
	if (raw) {
		archive_read_support_format_raw(a);
	} else {
		archive_read_support_format_tar(a);
		archive_read_support_format_zip(a);
	}
	if (archive_read_open_filename(a, path, 1 << 16) != ARCHIVE_OK ||
	    (raw && archive_read_next_header(a, &entry) != ARCHIVE_OK)) {
		broken(error, n, "cannot read \"%s\": %s", path,
		       archive_error_string(a) ? archive_error_string(a) : "empty file");
		archive_read_free(a);
		return NULL;
	}
	return a;
}

/* Exactly n bytes: 1; end before the first: 0; short or broken: -1. */
static int stream_read(struct archive *a, void *to, size_t n)
{
	size_t have = 0;
	la_ssize_t k;

	while (have < n) {
		k = archive_read_data(a, (uint8_t *)to + have, n - have);
		if (k < 0)
			return -1;
		if (!k)
			return have ? -1 : 0;
		have += (size_t)k;
	}
	return 1;
}

static uint32_t be32(const uint8_t *p)
{
	return (uint32_t)p[0] << 24 | (uint32_t)p[1] << 16 | (uint32_t)p[2] << 8 | p[3];
}

static int reserve(struct source *s, size_t n)
{
	uint8_t *p;

	if (n <= s->capacity)
		return 0;
	p = realloc(s->buf, n);
	if (!p)
		return -1;
	s->buf = p;
	s->capacity = n;
	return 0;
}

/* Opens an IDX file and reads its header; magic and counts come back. */
static struct archive *idx_open(const char *path, uint32_t *magic, uint32_t dim[4], char *error,
				size_t n)
{
	uint8_t h[4];
	struct archive *a = stream_open(path, true, error, n);
	uint32_t dims;

	if (!a)
		return NULL;
	if (stream_read(a, h, 4) != 1)
		goto not_idx;
	*magic = be32(h);
	dims = *magic & 0xff;
	if ((*magic >> 8) != 8 || dims < 1 || dims > 4)
		goto not_idx;
	dim[0] = dim[1] = dim[2] = dim[3] = 1;
	for (uint32_t i = 0; i < dims; i++) {
		if (stream_read(a, h, 4) != 1)
			goto not_idx;
		dim[i] = be32(h);
	}
	return a;
not_idx:
	broken(error, n, "\"%s\" is not an IDX file of unsigned bytes", path);
	archive_read_free(a);
	return NULL;
}

static int open_idx(struct source *s, char *error, size_t n)
{
	uint32_t magic[2], dim[2][4];
	struct archive *a[2] = {NULL, NULL};

	if (s->n_paths != 2)
		return broken(error, n, "IDX wants two files: the images and the labels");
	for (int i = 0; i < 2; i++) {
		a[i] = idx_open(s->path[i], &magic[i], dim[i], error, n);
		if (!a[i])
			goto undo;
	}
	/* in either order */
	s->a = a[0];
	s->b = a[1];
	if (magic[0] == IDX_LABELS) {
		s->a = a[1];
		s->b = a[0];
	}
	if (magic[0] == magic[1] || (magic[0] != IDX_LABELS && magic[1] != IDX_LABELS))
		return broken(error, n, "\"%s\" and \"%s\" are not an image and a label file",
			      s->path[0], s->path[1]);
	if (dim[0][0] != dim[1][0])
		return broken(error, n, "\"%s\" has %u items, \"%s\" has %u", s->path[0], dim[0][0],
			      s->path[1], dim[1][0]);
	const uint32_t *d = magic[0] == IDX_LABELS ? dim[1] : dim[0];

	s->item_bytes = (size_t)d[1] * d[2];
	if (!d[1] || !d[2] || !d[3] || s->item_bytes > MAX_FILE || d[3] > MAX_FILE / s->item_bytes)
		return broken(error, n, "IDX images of %u x %u x %u bytes", d[1], d[2], d[3]);
	s->item_bytes *= d[3];
	s->total = d[0];
	return 0;
undo:
	for (int i = 0; i < 2; i++)
		if (a[i])
			archive_read_free(a[i]);
	return -1;
}

static enum source_format guess(char **path, int n)
{
	struct stat st;
	uint8_t h[4];
	char error[512];
	struct archive *a;
	enum source_format f = SOURCE_FILES;
	size_t len = strlen(path[0]);

	if (!stat(path[0], &st) && S_ISDIR(st.st_mode))
		return SOURCE_FILES;
	if (len > 4 && !strcmp(path[0] + len - 4, ".bin"))
		return SOURCE_CIFAR10;
	a = stream_open(path[0], true, error, sizeof(error));
	if (a && stream_read(a, h, 4) == 1 && (be32(h) >> 8) == 8 && h[3] >= 1 && h[3] <= 4)
		f = SOURCE_IDX;
	if (a)
		archive_read_free(a);
	return f;
}

struct source *source_open(enum source_format format, char **path, int n, const char *only,
			   char *error, size_t error_bytes)
{
	struct source *s = calloc(1, sizeof(*s));
	struct stat st;

	if (!s) {
		broken(error, error_bytes, "out of memory");
		return NULL;
	}
	s->path = path;
	s->n_paths = n;
	s->only = only;
	for (int i = 0; i < n; i++) {
		if (stat(path[i], &st)) {
			broken(error, error_bytes, "cannot read \"%s\": %s", path[i],
			       strerror(errno));
			goto undo;
		}
	}
	s->format = format == SOURCE_AUTO ? guess(path, n) : format;
	if (s->format == SOURCE_IDX && open_idx(s, error, error_bytes))
		goto undo;
	if (s->format == SOURCE_CIFAR10 || s->format == SOURCE_CIFAR100) {
		s->label_bytes = s->format == SOURCE_CIFAR10 ? 1 : 2;
		s->item_bytes = 3072;
		for (int i = 0; i < n; i++) {
			if (!stat(path[i], &st))
				s->total +=
					(uint64_t)st.st_size / (3072u + (unsigned)s->label_bytes);
		}
	}
	return s;
undo:
	source_close(s);
	return NULL;
}

void source_close(struct source *s)
{
	if (!s)
		return;
	if (s->a)
		archive_read_free(s->a);
	if (s->b)
		archive_read_free(s->b);
	if (s->fts)
		fts_close(s->fts);
	free(s->buf);
	free(s);
}

bool source_has_paths(const struct source *s)
{
	return s->format == SOURCE_FILES;
}

uint64_t source_total(const struct source *s)
{
	return s->total;
}

static int next_idx(struct source *s, struct source_item *item, char *error, size_t n)
{
	uint8_t label;

	if (s->done == s->total)
		return 0;
	if (reserve(s, s->item_bytes))
		return broken(error, n, "out of memory");
	if (stream_read(s->a, s->buf, s->item_bytes) != 1 || stream_read(s->b, &label, 1) != 1)
		return broken(error, n, "the IDX files end after %llu of %llu items",
			      (unsigned long long)s->done, (unsigned long long)s->total);
	s->done++;
	*item = (struct source_item){s->buf, s->item_bytes, label, NULL, NULL};
	return 1;
}

/* CIFAR's planes (3 x 32 x 32) become rows of pixels (32 x 32 x 3), as everything here is stored.
 */
static int next_cifar(struct source *s, struct source_item *item, char *error, size_t n)
{
	uint8_t raw[2 + 3072];
	size_t bytes = (size_t)s->label_bytes + 3072;
	int rc;

	for (;;) {
		if (!s->a) {
			if (s->next_path == s->n_paths)
				return 0;
			s->a = stream_open(s->path[s->next_path++], true, error, n);
			if (!s->a)
				return -1;
		}
		rc = stream_read(s->a, raw, bytes);
		if (rc < 0)
			return broken(error, n, "\"%s\" does not end with a whole CIFAR record",
				      s->path[s->next_path - 1]);
		if (rc)
			break;
		archive_read_free(s->a);
		s->a = NULL;
	}
	if (reserve(s, 3072))
		return broken(error, n, "out of memory");
	for (int i = 0; i < 1024; i++)
		for (int c = 0; c < 3; c++)
			s->buf[i * 3 + c] = raw[s->label_bytes + c * 1024 + i];
	s->done++;
	*item = (struct source_item){s->buf, 3072, raw[s->label_bytes - 1], NULL, NULL};
	return 1;
}

/* What the first bytes say; NULL: an image the daemon can decode. */
static const char *not_an_image(const uint8_t *p, size_t n)
{
	if (!n)
		return "is empty";
	if (n >= 3 && p[0] == 0xff && p[1] == 0xd8 && p[2] == 0xff)
		return NULL;
	if (n >= 8 && !memcmp(p, "\x89PNG\r\n\x1a\n", 8))
		return NULL;
	if (n >= 2 && p[0] == 'B' && p[1] == 'M')
		return "is a BMP file, not JPEG or PNG";
	if (n >= 4 && !memcmp(p, "GIF8", 4))
		return "is a GIF file, not JPEG or PNG";
	if (n >= 12 && !memcmp(p, "RIFF", 4) && !memcmp(p + 8, "WEBP", 4))
		return "is a WebP file, not JPEG or PNG";
	return "is neither JPEG nor PNG";
}

/* Names class (the parent folder) of s->item_path. */
static bool name_class(struct source *s)
{
	const char *end = strrchr(s->item_path, '/'), *p = end;
	size_t n;

	if (!end || end == s->item_path)
		return false;
	while (p > s->item_path && p[-1] != '/')
		p--;
	n = (size_t)(end - p);
	if (!n || n >= sizeof(s->class) || (n == 1 && *p == '.'))
		return false;
	memcpy(s->class, p, n);
	s->class[n] = '\0';
	return true;
}

static bool wanted(const struct source *s, const char *path)
{
	while (!strncmp(path, "./", 2))
		path += 2;
	return !s->only || !strncmp(path, s->only, strlen(s->only));
}

static int bad_file(struct source *s, struct source_bad *bad, const char *reason)
{
	s->done++;
	snprintf(bad->path, sizeof(bad->path), "%s", s->item_path);
	snprintf(bad->reason, sizeof(bad->reason), "%s", reason);
	return 2;
}

static int file_item(struct source *s, size_t bytes, struct source_item *item,
		     struct source_bad *bad)
{
	const char *why = not_an_image(s->buf, bytes);

	if (!why && !name_class(s))
		why = "is in no class folder";
	if (why)
		return bad_file(s, bad, why);
	s->done++;
	*item = (struct source_item){s->buf, bytes, 0, s->class, s->item_path};
	return 1;
}

static int next_in_tar(struct source *s, struct source_item *item, struct source_bad *bad,
		       char *error, size_t n)
{
	struct archive_entry *e;
	int64_t bytes;
	int rc;

	for (;;) {
		rc = archive_read_next_header(s->a, &e);
		if (rc == ARCHIVE_EOF)
			return 0;
		if (rc < ARCHIVE_WARN)
			return broken(error, n, "\"%s\": %s", s->path[s->next_path - 1],
				      archive_error_string(s->a));
		if (archive_entry_filetype(e) != AE_IFREG || !archive_entry_pathname(e) ||
		    !wanted(s, archive_entry_pathname(e)))
			continue;
		snprintf(s->item_path, sizeof(s->item_path), "%s", archive_entry_pathname(e));
		bytes = archive_entry_size(e);
		if (bytes > MAX_FILE)
			return bad_file(s, bad, "is larger than 512 MiB");
		if (reserve(s, (size_t)bytes + 1))
			return broken(error, n, "out of memory");
		if (bytes && stream_read(s->a, s->buf, (size_t)bytes) != 1)
			return broken(error, n, "\"%s\" ends in the middle of %s",
				      s->path[s->next_path - 1], s->item_path);
		return file_item(s, (size_t)bytes, item, bad);
	}
}

static int by_name(const FTSENT **a, const FTSENT **b)
{
	return strcmp((*a)->fts_name, (*b)->fts_name);
}

static int next_in_folder(struct source *s, struct source_item *item, struct source_bad *bad,
			  char *error, size_t n)
{
	const char *root = s->path[s->next_path - 1], *inner;
	FTSENT *e;
	FILE *f;
	size_t bytes;

	for (;;) {
		errno = 0;
		e = fts_read(s->fts);
		if (!e)
			return errno ? broken(error, n, "\"%s\": %s", root, strerror(errno)) : 0;
		inner = e->fts_path + strlen(root);
		while (*inner == '/')
			inner++;
		if (e->fts_info == FTS_DNR || e->fts_info == FTS_ERR || e->fts_info == FTS_NS) {
			snprintf(s->item_path, sizeof(s->item_path), "%s", e->fts_path);
			return bad_file(s, bad, strerror(e->fts_errno));
		}
		if (e->fts_info != FTS_F || e->fts_name[0] == '.' || !wanted(s, inner))
			continue;
		snprintf(s->item_path, sizeof(s->item_path), "%s", inner);
		if ((uint64_t)e->fts_statp->st_size > MAX_FILE)
			return bad_file(s, bad, "is larger than 512 MiB");
		if (reserve(s, (size_t)e->fts_statp->st_size + 1))
			return broken(error, n, "out of memory");
		f = fopen(e->fts_accpath, "rbe");
		if (!f)
			return bad_file(s, bad, strerror(errno));
		bytes = fread(s->buf, 1, (size_t)e->fts_statp->st_size, f);
		fclose(f);
		if (bytes != (size_t)e->fts_statp->st_size)
			return bad_file(s, bad, "cannot be read whole");
		return file_item(s, bytes, item, bad);
	}
}

static int next_file(struct source *s, struct source_item *item, struct source_bad *bad,
		     char *error, size_t n)
{
	struct stat st;
	int rc;

	for (;;) {
		if (s->fts || s->a) {
			rc = s->fts ? next_in_folder(s, item, bad, error, n)
				    : next_in_tar(s, item, bad, error, n);
			if (rc)
				return rc;
			if (s->fts)
				fts_close(s->fts);
			if (s->a)
				archive_read_free(s->a);
			s->fts = NULL;
			s->a = NULL;
		}
		if (s->next_path == s->n_paths)
			return 0;
		char *root[2] = {s->path[s->next_path++], NULL};

		if (!stat(root[0], &st) && S_ISDIR(st.st_mode)) {
			s->fts = fts_open(root, FTS_LOGICAL | FTS_NOCHDIR, by_name);
			if (!s->fts)
				return broken(error, n, "\"%s\": %s", root[0], strerror(errno));
		} else {
			s->a = stream_open(root[0], false, error, n);
			if (!s->a)
				return -1;
		}
	}
}

int source_next(struct source *s, struct source_item *item, struct source_bad *bad, char *error,
		size_t error_bytes)
{
	switch (s->format) {
	case SOURCE_IDX:
		return next_idx(s, item, error, error_bytes);
	case SOURCE_CIFAR10:
	case SOURCE_CIFAR100:
		return next_cifar(s, item, error, error_bytes);
	default:
		return next_file(s, item, bad, error, error_bytes);
	}
}
