// SPDX-License-Identifier: MIT
/* drain.c: see drain.h. */
#include "drain.h"

#include <endian.h>
#include <errno.h>
#include <inttypes.h>
#include <string.h>

#include "../ctl/row.h"

static void give_back(struct drain *d)
{
	if (d->taken)
		d->give(d->context, d->taken);
	d->taken = 0;
	d->inside = false;
	d->place = NULL;
}

void drain_abort(struct drain *d)
{
	if (d->feeder)
		data_feeder_abort(d->feeder);
	d->feeder = NULL;
	give_back(d);
}

/* The first error counts; from here on records are dropped. */
static void fail(struct drain *d, const struct err *err)
{
	if (!d->err.kind)
		d->err = *err;
	drain_abort(d);
}

static void fail_protocol(struct drain *d, const char *what)
{
	struct err err = {0};

	err_set(&err, ERR_PROTOCOL, -EPROTO, "ring: %s", what);
	fail(d, &err);
}

/* Bytes of a value that comes in pieces, from the head in its first one. */
static uint64_t total_of(const uint8_t head[16])
{
	uint32_t id, y;
	uint64_t x, sum = ROW_HEAD;

	memcpy(&id, head, 4);
	memcpy(&y, head + 4, 4);
	memcpy(&x, head + 8, 8);
	sum += (uint64_t)le32toh(id) + le32toh(y);
	return __builtin_add_overflow(sum, le64toh(x), &sum) ? UINT64_MAX : sum;
}

/* A value of `total` bytes begins. */
static void begin(struct drain *d, uint64_t total)
{
	struct err err = {0};
	void *place = NULL;

	if (total > d->max_value) {
		err_set(&err, ERR_LIMIT, -EMSGSIZE,
			"a row of %" PRIu64 " bytes, and max_value = %" PRIu64, total,
			d->max_value);
		err_hint(&err, "Raise max_value in cnnd.conf, or leave such rows out.");
		fail(d, &err);
		return;
	}
	if (total > DRAIN_LARGE) {
		if (d->take(d->context, total, &err)) {
			fail(d, &err);
			return;
		}
		d->taken = total;
	}
	if (data_feeder_row(d->feeder, total, &place, &err)) {
		fail(d, &err);
		return;
	}
	d->inside = true;
	d->place = place;
	d->total = total;
	d->have = 0;
}

static void first_piece(struct drain *d, const struct ring_record *r)
{
	uint8_t head[16];
	uint64_t total = r->length;

	if (d->inside) {
		fail_protocol(d, "a value begins inside another one");
		return;
	}
	if (r->length < ROW_HEAD) {
		fail_protocol(d, "a row shorter than its head");
		return;
	}
	if (!(r->flags & RING_LAST)) {
		if (ring_copy(d->ring, 0, head, sizeof(head))) {
			fail_protocol(d, "a record outside the ring");
			return;
		}
		total = total_of(head);
		if (total <= r->length) {
			fail_protocol(d, "a row in pieces that is whole in its first one");
			return;
		}
	}
	begin(d, total);
}

static void end(struct drain *d)
{
	struct err err = {0};

	if (d->have != d->total) {
		fail_protocol(d, "the last piece of a row comes too early");
		return;
	}
	if (data_feeder_row_end(d->feeder, &err)) {
		fail(d, &err);
		return;
	}
	give_back(d);
}

static void record(struct drain *d, const struct ring_record *r)
{
	if (r->flags & RING_LAST)
		d->rows++;
	if (!d->feeder)
		return;
	if (r->type != ROW_RECORD) {
		fail_protocol(d, "a record of unknown type");
		return;
	}
	if (r->flags & RING_FIRST)
		first_piece(d, r);
	else if (!d->inside)
		fail_protocol(d, "a piece without its beginning");
	if (!d->feeder)
		return;
	if (r->length > d->total - d->have) {
		fail_protocol(d, "the pieces of a row are longer than the row");
		return;
	}
	if (ring_copy(d->ring, 0, d->place + d->have, r->length)) {
		fail_protocol(d, "a record outside the ring");
		return;
	}
	d->have += r->length;
	if (r->flags & RING_LAST)
		end(d);
}

int drain_some(struct drain *d, unsigned int max)
{
	struct ring_record r;
	int rc;

	if (d->dead)
		return -EPIPE;
	while (max--) {
		rc = ring_next(d->ring, &r);
		if (rc == -EAGAIN)
			return 0;
		if (rc) {
			d->dead = true;
			if (rc != -EPIPE)
				fail_protocol(d, "the producer published a record that cannot be");
			return -EPIPE;
		}
		record(d, &r);
		ring_consume(d->ring);
	}
	return 1;
}

int drain_finish(struct drain *d, struct data_counts *counts, struct err *err)
{
	int rc;

	if (d->inside)
		fail_protocol(d, "the feed ends in the middle of a row");
	if (d->err.kind || !d->feeder) {
		*err = d->err;
		return -EIO;
	}
	rc = data_feeder_close(d->feeder, counts, err);
	d->feeder = NULL;
	return rc;
}
