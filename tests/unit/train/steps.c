// SPDX-License-Identifier: MIT
/* steps.c: the division of an epoch into steps and replicas, on random layouts and by hand. */
#include "../../../userspace/train/internal.h"
#include "../../tap.h"

static uint64_t state = 88172645463325252ull;

static uint64_t below(uint64_t n)
{
	state ^= state << 13;
	state ^= state >> 7;
	state ^= state << 17;
	return state % n;
}

#define HOSTS 6

struct layout {
	size_t hosts;
	uint64_t rows[HOSTS];
	uint32_t replicas[HOSTS], batch;
};

static void draw(struct layout *l)
{
	l->hosts = 1 + below(HOSTS);
	l->batch = (uint32_t)(1 + below(below(2) ? 8 : 300));
	for (size_t i = 0; i < l->hosts; i++) {
		l->rows[i] = below(4) ? below(below(2) ? 50 : 5000) : 0;
		l->replicas[i] = (uint32_t)(1 + below(8));
	}
}

struct verdict {
	bool every_row_once, no_call_over, in_order, steps_needed;
};

static void check(const struct layout *l, struct verdict *v)
{
	uint64_t steps = train_steps_per_epoch(l->rows, l->replicas, l->hosts, l->batch), need = 1;

	for (size_t i = 0; i < l->hosts; i++) {
		uint64_t next = 0;

		for (uint64_t s = 0; s < steps; s++) {
			struct steps_range host = train_steps_of_host(l->rows[i], steps, s);

			for (uint32_t k = 0; k < l->replicas[i]; k++) {
				struct steps_range r =
					train_steps_of_replica(host, l->replicas[i], k);

				v->every_row_once &= r.first == next;
				v->no_call_over &= r.n <= l->batch;
				v->in_order &= r.first >= host.first &&
					       r.first + r.n <= host.first + host.n;
				next = r.first + r.n;
			}
		}
		v->every_row_once &= next == l->rows[i];
		/* the definition, in floating point */
		uint64_t own =
			(uint64_t)ceil((double)l->rows[i] / ((double)l->replicas[i] * l->batch));
		need = own > need ? own : need;
	}
	v->steps_needed &= steps == need;
}

int main(void)
{
	struct verdict v = {true, true, true, true};
	uint64_t one[1] = {1000}, two[2] = {10, 1}, none[1] = {0};
	uint32_t single[2] = {1, 1};
	struct steps_range r;

	for (int i = 0; i < 2000; i++) {
		struct layout l;

		draw(&l);
		check(&l, &v);
	}
	ok(v.every_row_once, "2,000 random layouts: every row exactly once");
	ok(v.no_call_over, "2,000 random layouts: no call of more than batch_size rows");
	ok(v.in_order, "2,000 random layouts: replicas stay inside their host's rows");
	ok(v.steps_needed, "2,000 random layouts: steps are max(1, max ceil(n / (R B)))");

	is(train_steps_per_epoch(one, single, 1, 128), 8, "1000 rows by 128 are 8 steps");
	r = train_steps_of_host(1000, 8, 0);
	is(r.n, 125, "of 125 rows each: there is no short last batch");
	r = train_steps_of_host(1000, 8, 7);
	is(r.first + r.n, 1000, "the last one ends with the table");
	is(train_steps_per_epoch(none, single, 1, 128), 1, "no rows: one empty step");
	is(train_steps_of_host(0, 1, 0).n, 0, "without rows");
	is(train_steps_per_epoch(two, single, 2, 4), 3, "a small host takes as many steps");
	is(train_steps_of_host(1, 3, 0).n + train_steps_of_host(1, 3, 1).n, 0,
	   "its one row comes in the last of them");
	is(train_steps_of_host(1, 3, 2).n, 1, "and in no other");
	r = train_steps_of_host(1ull << 60, (1ull << 40) + 1, 1ull << 40);
	ok(r.first + r.n == 1ull << 60 && r.n > 0, "no overflow with 2^60 rows");
	return done();
}
