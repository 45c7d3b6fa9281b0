// SPDX-License-Identifier: MIT
/*
 * drain.c: what a hostile producer can put into a ring, and that the consumer goes on taking
 * records after every fault. The data set is a stand-in that keeps what it is given.
 */
#include <errno.h>
#include <unistd.h>

#include "../../userspace/cnnd/drain.h"
#include "../../userspace/ctl/row.h"
#include "../tap.h"

#define MAX (1u << 20)

/* ---- the stand-in ---- */

struct data_feeder {
	uint8_t *place;
	uint64_t bytes, total, sum;
	unsigned int rows, aborted, closed;
	bool fail_row, fail_end;
};

static struct data_feeder feeder;

int data_feeder_row(struct data_feeder *f, uint64_t bytes, void **place, struct err *err)
{
	if (f->fail_row)
		return err_set(err, ERR_LIMIT, -ENOMEM, "no room");
	free(f->place);
	f->place = malloc(bytes);
	f->bytes = bytes;
	*place = f->place;
	return f->place ? 0 : -ENOMEM;
}

int data_feeder_row_end(struct data_feeder *f, struct err *err)
{
	if (f->fail_end)
		return err_set(err, ERR_DATA, -EINVAL, "too many bad rows");
	for (uint64_t i = 0; i < f->bytes; i++)
		f->sum = f->sum * 31 + f->place[i];
	f->total += f->bytes;
	f->rows++;
	return 0;
}

int data_feeder_close(struct data_feeder *f, struct data_counts *counts, struct err *err)
{
	f->closed++;
	counts->rows = f->rows;
	return 0;
}

void data_feeder_abort(struct data_feeder *f)
{
	f->aborted++;
}

static uint64_t taken, given;
static bool refuse_large;

static int take(void *context, uint64_t bytes, struct err *err)
{
	if (refuse_large)
		return err_set(err, ERR_LIMIT, -ENOMEM, "memory");
	taken += bytes;
	return 0;
}

static void give(void *context, uint64_t bytes)
{
	given += bytes;
}

/* ---- a ring with both ends here ---- */

static struct ring *producer, *consumer;
static struct drain d;

static void fresh(void)
{
	int fds[RING_FDS], copy[RING_FDS];

	ring_close(producer);
	ring_close(consumer);
	if (ring_create(64 << 10, &consumer) || ring_export(consumer, fds))
		BAIL("ring_create");
	for (int i = 0; i < RING_FDS; i++)
		copy[i] = dup(fds[i]);
	if (ring_attach(copy, MAX, &producer))
		BAIL("ring_attach");
	free(feeder.place);
	memset(&feeder, 0, sizeof(feeder));
	taken = given = 0;
	refuse_large = false;
	d = (struct drain){.ring = consumer,
			   .feeder = &feeder,
			   .max_value = 32 << 20,
			   .take = take,
			   .give = give};
}

static bool put(const void *data, uint32_t n, uint16_t type, uint16_t flags)
{
	void *place;

	if (ring_reserve(producer, n, &place))
		return false;
	if (n)
		memcpy(place, data, n);
	ring_commit(producer, type, flags);
	return true;
}

/* A row of x bytes; returns its whole length. */
static size_t row(uint8_t *out, uint64_t x)
{
	struct row_head head = {.x_bytes = x, .weight = 1};

	row_head_encode(&head, out);
	for (uint64_t i = 0; i < x; i++)
		out[ROW_HEAD + i] = (uint8_t)(i * 7 + i / 251);
	return ROW_HEAD + x;
}

static uint8_t value[24 << 20];

static void good_row(void)
{
	size_t n = row(value, 100);

	put(value, (uint32_t)n, ROW_RECORD, RING_FIRST | RING_LAST);
}

static void finish_must_fail(const char *piece)
{
	struct data_counts counts = {0};
	struct err err = {0};

	ok(drain_finish(&d, &counts, &err) < 0, "  the feed fails");
	like(err.message, piece, "  and says why");
	is(feeder.closed, 0, "  nothing is taken as whole");
	drain_abort(&d);
	is(taken, given, "  what was accounted for is given back");
}

static void test_good(void)
{
	struct data_counts counts = {0};
	struct err err = {0};
	uint64_t want = 0;
	size_t n;

	fresh();
	good_row();
	good_row();
	is(drain_some(&d, 1), 1, "one record of two");
	is(feeder.rows, 1, "  one row");
	is(drain_some(&d, 10), 0, "the rest");
	is(feeder.rows, 2, "  two rows");
	is(drain_finish(&d, &counts, &err), 0, "the feed is good");
	is(counts.rows, 2, "  with its counts");
	is(feeder.closed, 1, "  closed once");

	/* 20 MB through a ring of 64 KB */
	fresh();
	n = row(value, 20 << 20);
	for (size_t i = 0; i < n; i++)
		want = want * 31 + value[i];
	for (size_t at = 0; at < n;) {
		size_t k = n - at < 9000 ? n - at : 9000;

		if (put(value + at, (uint32_t)k, ROW_RECORD,
			(uint16_t)((at ? 0 : RING_FIRST) | (at + k == n ? RING_LAST : 0))))
			at += k;
		else if (drain_some(&d, 1000) < 0)
			break;
	}
	drain_some(&d, 1000);
	ok(feeder.rows == 1 && feeder.total == n && feeder.sum == want,
	   "a row of 20 MB in pieces arrives as it was");
	ok(taken == n && given == n, "  accounted for while it was put together");
	is(d.rows, 1, "  counted once");
}

/* What comes first, and what the feed then says. */
static void hostile(const char *name, const char *piece, const void *data, uint32_t n,
		    uint16_t type, uint16_t flags)
{
	fresh();
	put(data, n, type, flags);
	drain_some(&d, 10);
	ok(d.err.kind != ERR_NONE, "%s", name);
	is(feeder.aborted, 1, "  its feeder is dropped at once");
	for (int i = 0; i < 500; i++)
		if (!put(value, 200, ROW_RECORD, RING_FIRST | RING_LAST))
			drain_some(&d, 1000);
	is(drain_some(&d, 1000), 0, "  the ring is still drained");
	is(feeder.rows, 0, "  nothing more is taken");
	finish_must_fail(piece);
}

static void test_hostile(void)
{
	uint8_t big[ROW_HEAD + 100];
	struct row_head head = {.x_bytes = 64ull << 20, .weight = 1};

	row(value, 100);
	hostile("a record of unknown type", "unknown type", value, 164, 7, RING_FIRST | RING_LAST);
	hostile("a record shorter than a head", "shorter than its head", value, 63, ROW_RECORD,
		RING_FIRST | RING_LAST);
	hostile("an empty record", "shorter than its head", value, 0, ROW_RECORD,
		RING_FIRST | RING_LAST);
	hostile("a piece without a beginning", "without its beginning", value, 100, ROW_RECORD, 0);
	hostile("a last piece alone", "without its beginning", value, 100, ROW_RECORD, RING_LAST);
	hostile("pieces of a row that is whole", "whole in its first", value, 164, ROW_RECORD,
		RING_FIRST);
	memset(big, 0, sizeof(big));
	row_head_encode(&head, big);
	hostile("a row past max_value", "max_value = 33554432", big, sizeof(big), ROW_RECORD,
		RING_FIRST);
	head.x_bytes = UINT64_MAX - 10;
	row_head_encode(&head, big);
	hostile("a length that overflows", "max_value", big, sizeof(big), ROW_RECORD, RING_FIRST);

	fresh();
	row(value, 5000);
	put(value, 1000, ROW_RECORD, RING_FIRST);
	put(value, 1000, ROW_RECORD, RING_FIRST);
	drain_some(&d, 10);
	finish_must_fail("begins inside another");

	fresh();
	put(value, 1000, ROW_RECORD, RING_FIRST);
	put(value, 8000, ROW_RECORD, 0);
	drain_some(&d, 10);
	finish_must_fail("longer than the row");

	fresh();
	put(value, 1000, ROW_RECORD, RING_FIRST);
	put(value, 1000, ROW_RECORD, RING_LAST);
	drain_some(&d, 10);
	finish_must_fail("comes too early");

	fresh();
	put(value, 1000, ROW_RECORD, RING_FIRST);
	drain_some(&d, 10);
	finish_must_fail("in the middle of a row");
}

static void test_refusals(void)
{
	uint8_t head[ROW_HEAD + 8];

	fresh();
	feeder.fail_row = true;
	good_row();
	drain_some(&d, 10);
	finish_must_fail("no room");

	fresh();
	feeder.fail_end = true;
	good_row();
	good_row();
	drain_some(&d, 10);
	is(d.rows, 2, "rows are counted after the error, too");
	finish_must_fail("too many bad rows");

	fresh();
	refuse_large = true;
	row(value, 8 << 20);
	memcpy(head, value, sizeof(head));
	put(head, sizeof(head), ROW_RECORD, RING_FIRST);
	drain_some(&d, 10);
	is(feeder.place == NULL, 1, "no place is made for a large row without memory for it");
	finish_must_fail("memory");
}

static void test_death(void)
{
	struct data_counts counts = {0};
	struct err err = {0};

	fresh();
	good_row();
	ring_close(producer);
	producer = NULL;
	ok(drain_some(&d, 10) == -EPIPE && d.dead, "a producer that closes its side");
	is(feeder.rows, 1, "  after a row that still counts");
	is(drain_some(&d, 10), -EPIPE, "  stays dead");
	is(drain_finish(&d, &counts, &err), 0, "  and the feed may still be good");
}

int main(void)
{
	test_good();
	test_hostile();
	test_refusals();
	test_death();
	ring_close(producer);
	ring_close(consumer);
	free(feeder.place);
	return done();
}
