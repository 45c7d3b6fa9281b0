/* SPDX-License-Identifier: MIT */
/*
 * soak.c: random faults in a row on a cluster of four. After each one nobody hangs, members hold
 * equal bits, and nobody has touched anything by a merge that failed. soak [FAULTS [SEED [ucx]]]
 */
#include <signal.h>
#include <string.h>
#include <time.h>
#include "lab.h"

enum fault { NONE, STOP_SHORT, STOP_LONG, LINK_SHORT, LINK_LONG, KILL, N_FAULTS };
static const char *const fault_name[] = {"none",	"stopped for 1 s", "stopped for 6 s",
					 "cut for 1 s", "cut for 6 s",	   "killed"};

static uint64_t state;

static uint32_t random_below(uint32_t n)
{
	state = state * 6364136223846793005u + 1442695040888963407u;
	return (uint32_t)((state >> 33) % n);
}

static void nap(double seconds)
{
	struct timespec t = {(time_t)seconds, (long)((seconds - (double)(time_t)seconds) * 1e9)};

	nanosleep(&t, NULL);
}

/* true: as it should be; *restart: a host is gone for good */
static bool one(struct lab *lab, enum fault fault, uint32_t victim, double delay, bool *restart)
{
	bool good;

	lab_merge(lab, NULL);
	nap(delay);
	if (fault == STOP_SHORT || fault == STOP_LONG)
		lab_signal(lab, victim, SIGSTOP);
	if (fault == LINK_SHORT || fault == LINK_LONG)
		lab_link(victim, false);
	if (fault == KILL)
		lab_signal(lab, victim, SIGKILL);
	if (fault == STOP_SHORT || fault == LINK_SHORT)
		nap(1);
	if (fault == STOP_SHORT)
		lab_signal(lab, victim, SIGCONT);
	if (fault == LINK_SHORT)
		lab_link(victim, true);
	/* hosts that are done do not notice a silent one before the next merge */
	lab->ignore = fault == STOP_LONG || fault == LINK_LONG ? victim + 1 : 0;
	good = lab_serve(lab, 25);
	if (fault == KILL || fault == STOP_LONG || fault == LINK_LONG) {
		/* it may have come after the merge: then the next one notices */
		lab_merge(lab, NULL);
		good &= lab_serve(lab, 25);
	}
	lab->ignore = 0;
	if (fault == LINK_LONG)
		lab_link(victim, true);
	if (fault == STOP_LONG && lab->host[victim].alive)
		good &= lab_come_back(lab, victim);
	*restart = fault == KILL || fault == LINK_LONG;
	good &= lab_equal(lab);
	for (uint32_t i = 0; i < lab->spec.n; i++)
		if (lab->host[i].alive && lab->host[i].last.type == LAB_MERGED)
			good &= lab->host[i].last.untouched;
	return good;
}

int main(int argc, char **argv)
{
	int faults = argc > 1 ? atoi(argv[1]) : 200;
	struct lab_spec spec = {.preset = "diloco",
				.floats = 300000,
				.n = 4,
				.min_hosts = 2,
				.rate_mbit = 150,
				.odd = MERGE_NO_HOST,
				.ucx = argc > 3 && !strcmp(argv[3], "ucx")};
	struct lab lab;
	int bad = 0;

	state = argc > 2 ? strtoull(argv[2], NULL, 10) : 1;
	lab_network();
	if (lab_start(&lab, &spec) != 4)
		BAIL("no cluster");
	for (int i = 0; i < faults; i++) {
		enum fault fault = (enum fault)random_below(N_FAULTS);
		uint32_t victim = random_below(4);
		double delay = random_below(1500) * 1e-4;
		bool restart = false;

		if (!one(&lab, fault, victim, delay, &restart)) {
			ok(false, "fault %d: host %u %s after %.0f ms", i, victim,
			   fault_name[fault], delay * 1e3);
			for (uint32_t h = 0; h < 4; h++)
				printf("#   host %u alive %d member %d busy %d: %s\n", h,
				       lab.host[h].alive, lab.member[h], lab.host[h].busy,
				       lab.host[h].error.text);
			bad++;
			restart = true;
		}
		for (uint32_t h = 0; h < 4; h++)
			restart |= !lab.member[h];
		if (restart) {
			lab_stop(&lab);
			if (lab_start(&lab, &spec) != 4)
				BAIL("no cluster after fault %d", i);
		}
	}
	ok(!bad, "%d faults", faults);
	ok(lab_stop(&lab), "nothing is left");
	return done();
}
