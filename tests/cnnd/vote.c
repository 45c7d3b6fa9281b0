// SPDX-License-Identifier: MIT
/* vote.c: who goes on after a fault: the leader's decision in every case that vote.h names. */
#include "../../userspace/cnnd/vote.h"
#include "../tap.h"

#define NOW 100000u

static struct vote v;
static uint8_t set[WIRE_SET];
static uint32_t left, blamed;

static void start(uint32_t hosts, uint32_t need)
{
	memset(&v, 0, sizeof(v));
	v.hosts = hosts;
	v.need = need;
	v.patience_ms = 60000;
	for (uint32_t i = 0; i < hosts; i++)
		v.host[i] = (struct vote_host){
			.member = true, .linked = true, .ready = true, .heard_ms = NOW};
}

static void ask(uint32_t host, uint32_t lost, uint64_t now)
{
	v.host[host].asks = true;
	if (lost != WIRE_NO_HOST)
		wire_add(v.host[host].lost, lost);
	if (!v.asked_ms)
		v.asked_ms = now;
}

static enum vote_result at(uint64_t now)
{
	return vote_decide(&v, now, set, &left, &blamed);
}

/* Everybody but `silent` is heard all the time. */
static void heard(uint64_t now, uint32_t silent)
{
	for (uint32_t i = 0; i < v.hosts; i++)
		if (i != silent)
			v.host[i].heard_ms = now;
}

static void test_killed(void)
{
	start(3, 2);
	is(at(NOW), VOTE_WAIT, "nothing has happened: wait");
	v.host[2].gone = true;
	is(at(NOW), VOTE_WAIT, "one is gone, the others have not met it yet");
	ask(0, 2, NOW);
	is(at(NOW), VOTE_WAIT, "one asks, the other has local steps to do");
	heard(NOW + 50000, WIRE_NO_HOST);
	is(at(NOW + 50000), VOTE_WAIT, "  it is waited for as long as it lives");
	ask(1, 2, NOW);
	is(at(NOW + 50000), VOTE_GO, "both ask: they go on");
	ok(set[0] == 3 && left == 2 && blamed == 2, "  without the third, who is named");
	vote_settle(&v, set, NOW + 50000);
	is(at(NOW + 50000), VOTE_WAIT, "settled");
	ok(!v.host[2].member && !v.host[0].asks && !v.asked_ms, "  nobody asks any more");
	v.host[1].gone = true;
	is(at(NOW + 50000), VOTE_END, "another is gone: fewer than min_hosts");
	ok(left == 1 && blamed == 1, "  who is named");

	start(2, 2);
	v.host[0].gone = true;
	is(at(NOW), VOTE_END, "all are needed and one is gone: no waiting");
	is(blamed, 0, "  named");
	start(2, 2);
	v.host[0].left = v.host[0].gone = true;
	is(at(NOW), VOTE_WAIT, "one that was ended by its owner is not missed");
	ask(1, 0, NOW);
	is(at(NOW), VOTE_END, "  before somebody asks for it");
}

static void test_silent(void)
{
	start(3, 2);
	heard(NOW + 2000, 1);
	ask(0, 1, NOW + 2000);
	ask(2, 1, NOW + 2000);
	is(at(NOW + 2000), VOTE_WAIT, "two blame a third that was heard 2 s ago: it may ask yet");
	heard(NOW + 2600, 1);
	is(at(NOW + 2600), VOTE_GO, "silent for longer and accused: lost");
	ok(set[0] == 5 && blamed == 1, "  the others go on");
	start(3, 3);
	heard(NOW + 3900, 2);
	is(at(NOW + 3900), VOTE_WAIT, "3.9 s of silence, nobody complains");
	heard(NOW + 4001, 2);
	is(at(NOW + 4001), VOTE_END, "4 s are too much where all are needed");
	start(3, 2);
	v.host[0].linked = false;
	ask(1, 0, NOW);
	ask(2, 0, NOW);
	is(at(NOW), VOTE_GO, "a cut link is silence");
	/* back before the decision */
	v.host[0].linked = true;
	is(at(NOW), VOTE_WAIT, "  unless it comes back before the decision");
	ask(0, 1, NOW);
	is(at(NOW), VOTE_GO, "  and asks");
	ok(set[0] == 7 && left == 3 && blamed == WIRE_NO_HOST, "  then all go on");
}

static void test_stragglers(void)
{
	start(3, 2);
	ask(0, 1, NOW);
	ask(2, WIRE_NO_HOST, NOW);
	heard(NOW + 2900, WIRE_NO_HOST);
	is(at(NOW + 2900), VOTE_WAIT, "a living host that is accused gets a short grace");
	heard(NOW + 3000, WIRE_NO_HOST);
	is(at(NOW + 3000), VOTE_GO, "  and then is left behind");
	is(set[0], 5, "  alone");
	start(3, 2);
	ask(0, 1, NOW);
	v.host[1].gone = true;
	heard(NOW + 59000, WIRE_NO_HOST);
	is(at(NOW + 59000), VOTE_WAIT, "one that nobody accuses gets merge_timeout");
	heard(NOW + 60000, WIRE_NO_HOST);
	is(at(NOW + 60000), VOTE_END, "  no longer: one host is left of two");
}

/* Two that live do not reach each other; a third reaches both. */
static void test_pair(void)
{
	start(3, 2);
	ask(0, 1, NOW);
	ask(1, 0, NOW);
	ask(2, 0, NOW);
	is(at(NOW), VOTE_GO, "all live and all ask");
	is(set[0], 7, "  they mesh once more");
	vote_settle(&v, set, NOW);
	ask(0, 1, NOW + 5000);
	ask(1, 0, NOW + 5000);
	ask(2, 1, NOW + 5000);
	heard(NOW + 5000, WIRE_NO_HOST);
	is(at(NOW + 5000), VOTE_GO, "the same pair again");
	ok(set[0] == 5 && blamed == 1, "  of two that accuse each other the higher rank leaves");
	start(3, 2);
	ask(0, WIRE_NO_HOST, NOW);
	ask(1, 2, NOW);
	ask(2, WIRE_NO_HOST, NOW);
	v.host[1].sure = true;
	ok(at(NOW) == VOTE_GO && set[0] == 3 && blamed == 2,
	   "one that another has not heard for 4 s leaves at once");
	v.need = 3;
	is(at(NOW), VOTE_END, "  or the job ends");
	start(4, 2);
	for (uint32_t i = 1; i < 4; i++)
		ask(i, 0, NOW);
	ask(0, 3, NOW);
	at(NOW);
	vote_settle(&v, set, NOW);
	for (uint32_t i = 1; i < 4; i++)
		ask(i, 0, NOW + 5000);
	ask(0, 3, NOW + 5000);
	heard(NOW + 5000, WIRE_NO_HOST);
	ok(at(NOW + 5000) == VOTE_GO && set[0] == 14, "  of others the one with more accusers");
	start(3, 2);
	ask(0, 1, NOW);
	ask(1, 0, NOW);
	ask(2, 1, NOW);
	at(NOW);
	vote_settle(&v, set, NOW);
	ask(0, 1, NOW + 30000);
	ask(1, 0, NOW + 30000);
	ask(2, 1, NOW + 30000);
	heard(NOW + 30000, WIRE_NO_HOST);
	ok(at(NOW + 30000) == VOTE_GO && set[0] == 7, "long after, it is another fault");
	start(2, 2);
	ask(0, 1, NOW);
	ask(1, 0, NOW);
	at(NOW);
	vote_settle(&v, set, NOW);
	ask(0, 1, NOW + 5000);
	ask(1, 0, NOW + 5000);
	heard(NOW + 5000, WIRE_NO_HOST);
	is(at(NOW + 5000), VOTE_END, "where both are needed the job ends");
}

int main(void)
{
	test_killed();
	test_silent();
	test_stragglers();
	test_pair();
	return done();
}
