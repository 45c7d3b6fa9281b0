// SPDX-License-Identifier: MIT
/* admit.c: who may begin, and in which order. Time is a number here. */
#include "../../userspace/cnnd/admit.h"
#include "../tap.h"

static struct admit *a;
static const struct admit_limits limits = {{1, 2}, 2, 3};
static char reason[ADMIT_REASON];
static struct err err;

static struct admit_ask ask(uint8_t id, uint64_t start, enum admit_slot slot)
{
	struct admit_ask k = {.start_us = start, .slot = slot};

	memset(k.job, id, CTL_ID);
	return k;
}

static unsigned int of_client;

static int try(uint8_t id, uint64_t start, enum admit_slot slot, unsigned int running,
	       unsigned int of_role, uint64_t now)
{
	struct admit_ask k = ask(id, start, slot);
	struct admit_load load = {{0, 0}, of_role, of_client, "cpu:2"};

	load.running[slot] = running;
	reason[0] = '\0';
	memset(&err, 0, sizeof(err));
	return admit_try(a, &k, &limits, &load, now, reason, &err);
}

static void fresh(void)
{
	admit_free(a);
	if (admit_create(&a))
		BAIL("out of memory");
}

static void test_order(void)
{
	fresh();
	is(try(1, 100, ADMIT_TRAINING, 0, 0, 0), 1, "a free device: admitted");
	is(admit_count(a, 0), 0, "  and no longer an asker");
	is(try(2, 300, ADMIT_TRAINING, 1, 0, 10), 0, "a taken device: busy");
	like(reason, "cpu:2 runs 1 other training (max_trainings = 1)", "  with the reason");
	is(try(3, 200, ADMIT_TRAINING, 1, 0, 20), 0, "an older one: busy, too");
	is(try(2, 300, ADMIT_TRAINING, 0, 0, 30), 0, "the younger is not let past the older");
	like(reason, "an older training waits for cpu:2", "  with the reason");
	is(try(3, 200, ADMIT_TRAINING, 0, 0, 40), 1, "the older goes first");
	is(try(2, 300, ADMIT_TRAINING, 0, 0, 50), 1, "then the younger");
	is(try(9, 500, ADMIT_TRAINING, 1, 0, 60), 0, "two of the same microsecond ...");
	is(try(8, 500, ADMIT_TRAINING, 1, 0, 60), 0, "  ...");
	is(try(9, 500, ADMIT_TRAINING, 0, 0, 70), 0, "  the smaller job id goes first");
	is(try(8, 500, ADMIT_TRAINING, 0, 0, 70), 1, "  and is let in");
}

static void test_window(void)
{
	fresh();
	try(1, 100, ADMIT_TRAINING, 1, 0, 1000);
	is(try(2, 200, ADMIT_TRAINING, 0, 0, 6000), 0, "an asker of 5 s ago still counts");
	is(try(2, 200, ADMIT_TRAINING, 0, 0, 6001), 1, "one of more than 5 s ago does not");
	try(1, 100, ADMIT_TRAINING, 1, 0, 10000);
	try(1, 100, ADMIT_TRAINING, 1, 0, 14000);
	is(try(2, 200, ADMIT_TRAINING, 0, 0, 18000), 0, "asking again keeps the turn");
	is(admit_count(a, 18000), 2, "two askers");
	struct admit_ask k = ask(1, 100, ADMIT_TRAINING);
	admit_forget(a, k.job);
	is(try(2, 200, ADMIT_TRAINING, 0, 0, 18001), 1, "a forgotten asker holds nobody up");
	admit_remember(a, &k, 18002);
	is(try(2, 200, ADMIT_TRAINING, 0, 0, 18003), 0, "a remembered one does");
}

static void test_slots(void)
{
	fresh();
	try(1, 100, ADMIT_TRAINING, 1, 0, 0);
	is(try(2, 200, ADMIT_PREDICTION, 1, 0, 0), 1, "a prediction does not wait for a training");
	is(try(3, 300, ADMIT_PREDICTION, 2, 0, 0), 0, "predictions have a limit of their own");
	like(reason, "cpu:2 runs 2 other predictions (max_predictions = 2)", "  named");
}

static void test_itself(void)
{
	fresh();
	of_client = 1;
	is(try(1, 100, ADMIT_TRAINING, 1, 1, 0), 0,
	   "the client's own training may be about to end");
	ok(try(1, 100, ADMIT_TRAINING, 1, 1, 700) < 0, "  but it would wait for it for ever");
	is(err.kind, ERR_LIMIT, "  of kind limit");
	like(err.message, "this session itself runs 1 training, and the limit is 1", "  named");
	of_client = 2;
	is(try(2, 100, ADMIT_PREDICTION, 2, 2, 1000), 0, "its own predictions may, too");
	is(try(3, 200, ADMIT_PREDICTION, 1, 0, 1000), 1, "  without holding others up");
	ok(try(2, 100, ADMIT_PREDICTION, 2, 2, 1700) < 0, "  but they do not");
	of_client = 1;
	is(try(4, 300, ADMIT_PREDICTION, 2, 2, 1800), 0, "one of two places is another's:");
	is(try(4, 300, ADMIT_PREDICTION, 2, 2, 2500), 0, "  that is waited for");
	of_client = 0;
}

static void test_limits(void)
{
	fresh();
	ok(try(1, 100, ADMIT_TRAINING, 0, 2, 0) < 0, "max_jobs_per_role is an error, not busy");
	is(err.kind, ERR_LIMIT, "  of kind limit");
	like(err.message, "2 trainings running, and max_jobs_per_role = 2",
	     "  with limit and value");
	is(try(1, 100, ADMIT_PREDICTION, 0, 2, 0), 0, "a prediction of that role waits");
	like(reason, "2 predictions running, and max_jobs_per_role = 2", "  for its own kind");
	is(try(2, 200, ADMIT_PREDICTION, 0, 1, 0), 1, "  and holds up nobody else");
	try(1, 100, ADMIT_TRAINING, 1, 0, 0);
	try(2, 200, ADMIT_TRAINING, 1, 0, 0);
	try(3, 300, ADMIT_TRAINING, 1, 0, 0);
	ok(try(4, 400, ADMIT_TRAINING, 1, 0, 0) < 0, "the fourth asker of three is refused");
	is(err.kind, ERR_LIMIT, "  of kind limit");
	like(err.message, "3 jobs are waiting for this host, and max_queue = 3", "  named");
	is(try(2, 200, ADMIT_TRAINING, 1, 0, 0), 0, "those on the list may ask on");
	is(try(4, 400, ADMIT_TRAINING, 1, 0, 5001), 0, "when they have given up, there is room");
}

int main(void)
{
	test_order();
	test_window();
	test_slots();
	test_itself();
	test_limits();
	admit_free(a);
	return done();
}
