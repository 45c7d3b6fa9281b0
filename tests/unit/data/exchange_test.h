/* SPDX-License-Identifier: MIT */
/* exchange_test.h: rows of every kind, spread over several data sets of one process that exchange
 * them; for exchange.c and exchange_hostile.c. */
#ifndef EXCHANGE_TEST_H
#define EXCHANGE_TEST_H

#include <xxhash.h>

#include "data_test.h"
#include "../../../userspace/data/set.h"

#define HOSTS 3
#define SIDE 16
#define OUTPUTS 10

enum kind { INTS, TEXTS, BOOLS, VECTORS, FLOATS, UNLABELLED, KINDS };
static const char *const kind_name[KINDS] = {"integers", "text",    "boolean",
					     "vectors",	 "targets", "no labels"};

struct world { /* rows as they are in the tables of all hosts together */
	enum kind kind;
	bool f32, ids, weights;
	uint32_t n;
	double fraction;
	uint64_t memory;
	const char *spill;
};

/* Row i of a world; every tenth equals the one before it. x is SIDE * SIDE bytes, or floats. */
struct made {
	float x[SIDE * SIDE];
	uint8_t y[64];
	uint32_t y_bytes, x_bytes;
	double weight;
	char id[24];
};

static inline void make_row(const struct world *w, uint32_t i, struct made *m)
{
	uint32_t like = i % 10 == 9 ? i - 1 : i;
	uint64_t seed = like + 77;
	int32_t class = (int32_t)(like * 7 / w->n + like % 3); /* sorted by class, nearly */
	float v[3];

	memset(m, 0, sizeof(*m));
	for (int k = 0; k < 8; k++)
		next_random(&seed);
	for (int k = 0; k < SIDE * SIDE; k++) {
		if (w->f32)
			m->x[k] = (float)(next_random(&seed) >> 40) / 256;
		else
			((uint8_t *)m->x)[k] = (uint8_t)(next_random(&seed) >> 30);
	}
	m->x_bytes = SIDE * SIDE * (w->f32 ? 4 : 1);
	m->weight = w->weights ? 1 + like % 4 * .5 : 1;
	if (w->ids)
		snprintf(m->id, sizeof(m->id), "row-%u", i);
	v[0] = (float)class;
	v[1] = (float)like;
	v[2] = .25f;
	m->y_bytes = 4;
	switch (w->kind) {
	case INTS:
		memcpy(m->y, &class, 4);
		break;
	case TEXTS: /* one of them has no bytes */
		m->y_bytes = class ? (uint32_t)sprintf((char *)m->y, "class %d", class) : 0;
		break;
	case BOOLS:
		m->y[0] = class > 4;
		m->y_bytes = 1;
		break;
	case VECTORS:
		memcpy(m->y, v, m->y_bytes = sizeof(v));
		break;
	case FLOATS:
		memcpy(m->y, &v[1], 4);
		break;
	default:
		m->y_bytes = 0;
	}
}

static inline uint32_t outputs_of(const struct world *w)
{
	return w->kind == VECTORS ? 3 : w->kind == FLOATS || w->kind == UNLABELLED ? 1 : OUTPUTS;
}

static inline struct data_config world_config(const struct world *w)
{
	return (struct data_config){.memory = w->memory ? w->memory : 64 << 20,
				    .spill_dir = w->spill,
				    .shape = {SIDE, SIDE, 1},
				    .need_labels = w->kind != UNLABELLED,
				    .regression = w->kind == FLOATS,
				    .validation_fraction = w->fraction};
}

static inline struct data_feed world_feed(const struct world *w)
{
	static const enum row_type type[KINDS] = {ROW_I32, ROW_TEXT, ROW_BOOL,
						  ROW_F32, ROW_F32,  ROW_NONE};

	return (struct data_feed){.set = ROW_TRAIN,
				  .x_type = w->f32 ? ROW_F32 : ROW_BYTES,
				  .x_array = w->f32,
				  .y_type = type[w->kind],
				  .y_array = w->kind == VECTORS,
				  .has_y = w->kind != UNLABELLED,
				  .has_weight = w->weights,
				  .has_id = w->ids,
				  .segindex = 5,
				  .feeder = 2};
}

/* Where a row belongs, from its bytes: worked out apart from the library. */
static inline uint32_t home_of(const struct world *w, const struct made *m, uint32_t hosts,
			       uint64_t hash[2])
{
	XXH128_hash_t x = XXH3_128bits(m->x, m->x_bytes), y, all;
	float weight = (float)m->weight;
	uint8_t joined[36], number[8] = {0};
	const void *target = m->y;
	size_t n = m->y_bytes;

	if (w->kind == INTS) { /* integers of any type are hashed as 8 bytes */
		int32_t v;
		int64_t wide;

		memcpy(&v, m->y, 4);
		wide = v;
		memcpy(number, &wide, n = 8);
		target = number;
	}
	y = XXH3_128bits(target, n);
	memcpy(joined, &x.low64, 8);
	memcpy(joined + 8, &x.high64, 8);
	memcpy(joined + 16, &y.low64, 8);
	memcpy(joined + 24, &y.high64, 8);
	memcpy(joined + 32, &weight, 4);
	all = XXH3_128bits(joined, sizeof(joined));
	if (hash) {
		hash[0] = all.low64;
		hash[1] = all.high64;
	}
	return (uint32_t)(((unsigned __int128)all.low64 * hosts) >> 64);
}

typedef uint32_t (*place_fn)(const struct world *w, uint32_t i);

/* A set with the rows that place() puts on this host; collected. */
static inline struct data_set *world_set(const struct world *w, place_fn place, uint32_t host,
					 struct agree_block *part)
{
	struct data_config config = world_config(w);
	struct data_set *data = create_set(&config);
	struct data_feed feed = world_feed(w);
	struct data_feeder *f = open_feed(data, &feed);
	struct data_counts counts;
	struct made m;
	struct err err;

	for (uint32_t i = 0; i < w->n; i++) {
		struct test_row r = {.x = m.x, .y = m.y};

		if (place(w, i) != host)
			continue;
		make_row(w, i, &m);
		r.y_bytes = m.y_bytes;
		r.x_bytes = m.x_bytes;
		r.weight = m.weight;
		r.id = w->ids ? m.id : NULL;
		if (w->f32) {
			r.x_dims = 2;
			r.dim[0] = r.dim[1] = SIDE;
		}
		r.y_dims = w->kind == VECTORS;
		if (feed_row(f, &r, &err))
			BAIL("row %u: %s", i, err.message);
	}
	if (data_feeder_close(f, &counts, &err) || data_collect(data, part, &err))
		BAIL("%s", err.message);
	part->replicas = 1;
	return data;
}

struct cluster {
	struct data_set *data[HOSTS];
	struct agree_block part[HOSTS], agreed;
	struct data_exchange_counts counts[HOSTS];
};

static inline void cluster_fill(const struct world *w, place_fn place, struct cluster *c)
{
	struct err err;

	for (uint32_t k = 0; k < HOSTS; k++)
		c->data[k] = world_set(w, place, k, &c->part[k]);
	if (agree_merge(c->part, HOSTS, &c->agreed, &err))
		BAIL("%s", err.message);
}

static inline void cluster_apply(const struct world *w, struct cluster *c)
{
	struct err err;

	for (uint32_t k = 0; k < HOSTS; k++)
		if (data_apply(c->data[k], &c->agreed, outputs_of(w), &err))
			BAIL("host %u: %s", k, err.message);
}

static inline void cluster_free(struct cluster *c)
{
	for (uint32_t k = 0; k < HOSTS; k++) {
		data_free(c->data[k]);
		agree_free(&c->part[k]);
	}
	agree_free(&c->agreed);
}

#endif
