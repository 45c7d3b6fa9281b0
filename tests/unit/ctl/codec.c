// SPDX-License-Identifier: MIT
/*
 * codec.c: frames of the control protocol: bytes written out by hand from the comment of ctl.h,
 * every type there and back, and hostile frames.
 */
#include "../../../userspace/ctl/ctl.h"
#include "../../tap.h"

#include <errno.h>

static uint8_t buf[1 << 20];

static void golden_hello(void)
{
	/* written by hand: header, u16 1, u16 2, u64 3, u32 4, "ab", "", "c" */
	static const uint8_t want[] = {
		'C', 'N', 'N', '1', 1,	 0,   1,   0,	31,  0,	  0,   0,   0,	 0,   0,   0,
		'j', 'j', 'j', 'j', 'j', 'j', 'j', 'j', 'j', 'j', 'j', 'j', 'j', 'j', 'j', 'j',
		1,   0,	  2,   0,   3,	 0,   0,   0,	0,   0,	  0,   0,   4,	 0,   0,   0,
		2,   0,	  0,   0,   'a', 'b', 0,   0,	0,   0,	  1,   0,   0,	 0,   'c'};
	struct ctl_msg m = {.type = CTL_HELLO}, back;
	struct err err = {0};
	long n;

	memset(m.job, 'j', CTL_ID);
	m.u.hello =
		(struct ctl_hello){1, 2, 3, 4, ctl_str("ab", 2), ctl_str(NULL, 0), ctl_str("c", 1)};
	n = ctl_encode(&m, buf, sizeof(buf));
	is(n, sizeof(want), "HELLO has the length of the specification");
	ok(n == (long)sizeof(want) && !memcmp(buf, want, sizeof(want)), "and its bytes");
	is(ctl_decode(buf, (size_t)n, &back, &err), 0, "it decodes");
	ok(back.u.hello.version_max == 2 && back.u.hello.features == 3 && back.u.hello.pid == 4 &&
		   back.u.hello.client.n == 2 && !memcmp(back.u.hello.client.p, "ab", 2) &&
		   back.u.hello.database.n == 1,
	   "to the same fields");
	is(ctl_encode(&m, buf, (size_t)n - 1), -ENOSPC, "one byte less room is refused");
}

static void golden_run_row(void)
{
	struct ctl_msg m = {.type = CTL_RUN_ROW}, back;
	struct err err = {0};
	long n;

	m.u.run_row = (struct ctl_run_row){.epoch = 7,
					   .flags = CTL_ROW_IMPROVED,
					   .loss = 0.5,
					   .validation_loss = NAN,
					   .metrics = 2,
					   .note = ctl_str("hi", 2)};
	strcpy(m.u.run_row.metric[0].name, "accuracy");
	m.u.run_row.metric[0].train = 0.25;
	m.u.run_row.metric[0].validation = -1.0;
	strcpy(m.u.run_row.metric[1].name, "auc");
	n = ctl_encode(&m, buf, sizeof(buf));
	is(n, 32 + 4 + 4 + 8 * 9 + 4 + 4 + 8 * 5 + 4 + 2 * 48 + 4 + 2, "RUN_ROW with two metrics: length");
	is(ctl_decode(buf, (size_t)n, &back, &err), 0, "RUN_ROW decodes");
	ok(back.u.run_row.epoch == 7 && back.u.run_row.loss == 0.5 &&
		   isnan(back.u.run_row.validation_loss) && back.u.run_row.metrics == 2 &&
		   !strcmp(back.u.run_row.metric[0].name, "accuracy") &&
		   back.u.run_row.metric[0].train == 0.25 &&
		   back.u.run_row.metric[0].validation == -1.0 && back.u.run_row.note.n == 2,
	   "RUN_ROW keeps its fields");
	m.u.run_row.metrics = CTL_METRICS + 1;
	is(ctl_encode(&m, buf, sizeof(buf)), -EINVAL, "too many metrics are refused");
	/* a metric's name without its end */
	m.u.run_row.metrics = 1;
	memset(m.u.run_row.metric[0].name, 'x', 32);
	n = ctl_encode(&m, buf, sizeof(buf));
	is(ctl_decode(buf, (size_t)n, &back, &err), -EPROTO, "a name without its NUL is refused");
	like(err.message, "run_row.metrics", "and the field is named");
}

/* The frames of a job on several hosts, written by hand. */
static void golden_hosts(void)
{
	/* secret, u32 3, u32 2, "a\nb\nc" */
	static const uint8_t members[] = {'C', 'N', 'N', '1', 1,   0,	39,   0,   33,	 0,   0,
					  0,   0,   0,	 0,   0,   'j', 'j',  'j', 'j',	 'j', 'j',
					  'j', 'j', 'j', 'j', 'j', 'j', 'j',  'j', 'j',	 'j', 's',
					  's', 's', 's', 's', 's', 's', 's',  's', 's',	 's', 's',
					  's', 's', 's', 's', 3,   0,	0,    0,   2,	 0,   0,
					  0,   5,   0,	 0,   0,   'a', '\n', 'b', '\n', 'c'};
	/* secret, "B", u32 1, u32 2, u8 1, "p" */
	static const uint8_t apply[] = {
		'C', 'N', 'N', '1', 1,	 0,   16,  0,	35,  0,	  0,   0,   0,	 0,   0,   0,	'j',
		'j', 'j', 'j', 'j', 'j', 'j', 'j', 'j', 'j', 'j', 'j', 'j', 'j', 'j', 'j', 's', 's',
		's', 's', 's', 's', 's', 's', 's', 's', 's', 's', 's', 's', 's', 's', 1,   0,	0,
		0,   'B', 1,   0,   0,	 0,   2,   0,	0,   0,	  1,   1,   0,	 0,   0,   'p'};
	struct ctl_msg m = {.type = CTL_MEMBERS}, back;
	struct err err = {0};
	long n;

	memset(m.job, 'j', CTL_ID);
	memset(m.u.members.secret, 's', CTL_ID);
	m.u.members.hosts = 3;
	m.u.members.min_hosts = 2;
	m.u.members.names = ctl_str("a\nb\nc", 5);
	is(CTL_MEMBERS, 39, "number of MEMBERS");
	n = ctl_encode(&m, buf, sizeof(buf));
	ok(n == (long)sizeof(members) && !memcmp(buf, members, sizeof(members)),
	   "MEMBERS has the bytes of the specification");
	buf[CTL_HEADER + CTL_ID] = 1;
	buf[CTL_HEADER + CTL_ID + 1] = 1;
	is(ctl_decode(buf, (size_t)n, &back, &err), -EPROTO, "257 hosts are refused");
	like(err.message, "members.hosts", "by the field's name");
	memset(&m.u, 0, sizeof(m.u));
	m.type = CTL_APPLY;
	memset(m.u.apply.secret, 's', CTL_ID);
	m.u.apply.blob = ctl_str("B", 1);
	m.u.apply.rank = 1;
	m.u.apply.hosts = 2;
	m.u.apply.reshuffle = 1;
	m.u.apply.peers = ctl_str("p", 1);
	is(CTL_APPLY, 16, "number of APPLY");
	n = ctl_encode(&m, buf, sizeof(buf));
	ok(n == (long)sizeof(apply) && !memcmp(buf, apply, sizeof(apply)),
	   "APPLY has the bytes of the specification");
	ok(!ctl_decode(buf, (size_t)n, &back, &err) && back.u.apply.rank == 1 &&
		   back.u.apply.hosts == 2 && back.u.apply.reshuffle == 1 &&
		   back.u.apply.peers.n == 1 && back.u.blob.blob.n == 1,
	   "it decodes, and its beginning is that of a blob");
	buf[n - 6] = 2;
	is(ctl_decode(buf, (size_t)n, &back, &err), -EPROTO, "reshuffle is 0 or 1");
}

/* Every type: encode zeros, decode, encode again: equal bytes; every truncation is refused. */
static void every_type(void)
{
	static uint8_t again[1 << 16];
	int types = 0, bad = 0, accepted = 0;

	for (unsigned int t = 0; t < CTL_TYPE_COUNT; t++) {
		struct ctl_msg m = {.type = (enum ctl_type)t}, back;
		struct err err;
		long n;

		if (!ctl_max_length(t))
			continue;
		types++;
		n = ctl_encode(&m, buf, sizeof(buf));
		if (n < CTL_HEADER || ctl_decode(buf, (size_t)n, &back, &err) ||
		    ctl_encode(&back, again, sizeof(again)) != n || memcmp(buf, again, (size_t)n)) {
			bad++;
			printf("# type %u %s\n", t, ctl_type_name(t));
		}
		for (long k = 0; k < n; k++) {
			uint8_t *exact = malloc((size_t)k + 1);

			memcpy(exact, buf, (size_t)k);
			accepted += !ctl_decode(exact, (size_t)k, &back, &err);
			free(exact);
		}
	}
	is(types, CTL_TYPE_COUNT - 1, "every type has a table entry");
	is(bad, 0, "every type goes there and back");
	is(accepted, 0, "no truncated frame is accepted");
}

static void hostile(void)
{
	struct ctl_msg m = {.type = CTL_ERROR}, back;
	struct err err = {0};
	uint64_t state = 88172645463325252ull;
	long n;
	int accepted = 0;

	m.u.error = (struct ctl_error){ERR_DATA, ctl_str("message", 7), ctl_str("hint", 4)};
	n = ctl_encode(&m, buf, sizeof(buf));
	buf[32] = ERR_KIND_COUNT;
	is(ctl_decode(buf, (size_t)n, &back, &err), -EPROTO,
	   "an error kind out of range is refused");
	buf[32] = ERR_DATA;
	memset(buf + 36, 0xff, 4);
	is(ctl_decode(buf, (size_t)n, &back, &err), -EPROTO, "a string of 4 GB is refused");
	like(err.message, "error.message", "by the field's name");
	n = ctl_encode(&m, buf, sizeof(buf));
	buf[n] = 0;
	buf[8]++;
	is(ctl_decode(buf, (size_t)n + 1, &back, &err), -EPROTO, "a trailing byte is refused");
	like(err.message, "1 bytes too many", "and counted");
	/* random bytes behind a valid header: whatever is accepted lies inside the frame */
	for (int i = 0; i < 200000; i++) {
		size_t length;
		uint8_t *f;
		struct ctl_str s;

		state = state * 6364136223846793005ull + 1442695040888963407ull;
		length = (size_t)((state >> 33) % 200);
		f = malloc(CTL_HEADER + length);
		memcpy(f, "CNN1\1\0", 6);
		f[6] = (uint8_t)(1 + (state >> 8) % (CTL_TYPE_COUNT - 1));
		f[7] = 0;
		memset(f + 8, 0, 24);
		f[8] = (uint8_t)length;
		for (size_t k = 0; k < length; k++) {
			state ^= state << 13;
			state ^= state >> 7;
			state ^= state << 17;
			f[CTL_HEADER + k] = (state & 0x300) ? 0 : (uint8_t)state;
		}
		if (!ctl_decode(f, CTL_HEADER + length, &back, &err)) {
			accepted++;
			s = back.type == CTL_ERROR ? back.u.error.hint : ctl_str(NULL, 0);
			if (s.n && ((const uint8_t *)s.p < f ||
				    (const uint8_t *)s.p + s.n > f + CTL_HEADER + length))
				ok(false, "a string points outside its frame");
		}
		free(f);
	}
	ok(accepted > 0, "random frames: %d of 200000 are well formed", accepted);
}

int main(void)
{
	golden_hello();
	golden_run_row();
	golden_hosts();
	every_type();
	hostile();
	return done();
}
