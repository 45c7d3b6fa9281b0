/* SPDX-License-Identifier: MIT */
/* rows.c: rows of the study: a raw file, a fixed permutation, shards, and data sets made of them.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "study.h"

void study_die(const char *what, const char *why)
{
	fprintf(stderr, "cell: %s: %s\n", what, why);
	exit(1);
}

double study_seconds(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static size_t row_bytes(const struct study_args *a)
{
	return (size_t)a->h * a->w * a->c;
}

/* Fisher-Yates with a generator of its own (the files may be sorted by class). */
static void permute(uint32_t *order, uint32_t n)
{
	uint64_t state = 20260101;

	for (uint32_t i = 0; i < n; i++)
		order[i] = i;
	for (uint32_t i = n; i > 1; i--) {
		uint32_t j, was = order[i - 1];

		state = state * 6364136223846793005ull + 1442695040888963407ull;
		j = (uint32_t)((state >> 33) % i);
		order[i - 1] = order[j];
		order[j] = was;
	}
}

void study_rows_read(const struct study_args *a, const char *path, uint32_t n, bool shuffled,
		     struct study_rows *out)
{
	size_t bytes = n * row_bytes(a);
	FILE *f = fopen(path, "rb");

	if (!f)
		study_die(path, strerror(errno));
	out->n = n;
	out->x = malloc(bytes + n);
	out->order = malloc(n * sizeof(*out->order));
	if (!out->x || !out->order)
		study_die(path, "no memory");
	out->y = out->x + bytes;
	if (fread(out->x, 1, bytes + n, f) != bytes + n)
		study_die(path, "it is too short");
	fclose(f);
	for (uint32_t i = 0; i < n; i++) {
		out->order[i] = i;
		if (out->y[i] >= a->classes)
			study_die(path, "a label past the classes");
	}
	if (shuffled)
		permute(out->order, n);
}

/*
 * Shards of equal size. sorted: by class, so that a host sees few of them. skewed: half of the
 * rows so, half spread evenly.
 */
void study_divide(const struct study_args *a, const struct study_rows *rows, uint32_t *host)
{
	uint32_t n = a->rows, even = a->shards == SHARDS_EVEN	  ? n
				     : a->shards == SHARDS_SKEWED ? n / 2
								  : 0;
	uint32_t at = 0;

	for (uint32_t i = 0; i < even; i++)
		host[i] = i % a->hosts;
	for (uint32_t label = 0; label < a->classes; label++)
		for (uint32_t i = even; i < n; i++)
			if (rows->y[rows->order[i]] == label)
				host[i] = (uint32_t)((uint64_t)at++ * a->hosts / (n - even));
}

static void feed_row(struct data_feeder *f, const struct study_args *a,
		     const struct study_rows *rows, uint32_t row)
{
	size_t bytes = row_bytes(a);
	struct row_head head = {.y_bytes = 4, .x_bytes = bytes, .weight = 1};
	int32_t label = rows->y[row];
	struct err err;
	void *place;
	uint8_t *p;

	if (data_feeder_row(f, ROW_HEAD + 4 + bytes, &place, &err))
		study_die("a row", err.message);
	p = place;
	row_head_encode(&head, p);
	memcpy(p + ROW_HEAD, &label, 4);
	memcpy(p + ROW_HEAD + 4, rows->x + row * bytes, bytes);
	if (data_feeder_row_end(f, &err))
		study_die("a row", err.message);
}

static struct data_feeder *open_feed(struct data_set *data, enum row_set set)
{
	const struct data_feed feed = {
		.set = set, .x_type = ROW_BYTES, .y_type = ROW_I32, .has_y = true};
	struct data_feeder *f;
	struct err err;

	if (data_feeder_open(data, &feed, &f, &err))
		study_die("a feed", err.message);
	return f;
}

static void close_feed(struct data_feeder *f)
{
	struct data_counts counts;
	struct err err;

	if (data_feeder_close(f, &counts, &err))
		study_die("a feed", err.message);
}

struct data_set *study_set(const struct study_args *a, const struct study_rows *train,
			   const uint32_t *host, uint32_t k, const struct study_rows *validation,
			   uint32_t first, uint32_t last, uint32_t n)
{
	const struct data_config config = {
		.memory = (uint64_t)4 << 30, .shape = {a->h, a->w, a->c}, .need_labels = true};
	struct data_set *data;
	struct data_feeder *f;
	struct err err;

	if (data_create(&config, &data, &err))
		study_die("a data set", err.message);
	f = open_feed(data, ROW_TRAIN);
	for (uint32_t i = 0; host && i < a->rows; i++)
		if (host[i] == k)
			feed_row(f, a, train, train->order[i]);
	close_feed(f);
	f = open_feed(data, ROW_VALIDATION);
	for (uint32_t i = first + k; i < last; i += n)
		feed_row(f, a, validation, validation->order[i]);
	close_feed(f);
	return data;
}
