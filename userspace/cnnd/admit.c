// SPDX-License-Identifier: MIT
/* admit.c: see admit.h. */
#include "admit.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/queue.h>

struct asker {
	LIST_ENTRY(asker) link;
	struct admit_ask ask;
	uint64_t last_ms;
};

struct admit {
	LIST_HEAD(, asker) askers;
	uint32_t n;
};

int admit_create(struct admit **out)
{
	struct admit *a = calloc(1, sizeof(*a));

	if (!a)
		return -ENOMEM;
	LIST_INIT(&a->askers);
	*out = a;
	return 0;
}

static void drop(struct admit *a, struct asker *k)
{
	LIST_REMOVE(k, link);
	a->n--;
	free(k);
}

void admit_free(struct admit *a)
{
	struct asker *k;

	if (!a)
		return;
	while ((k = LIST_FIRST(&a->askers)))
		drop(a, k);
	free(a);
}

static void expire(struct admit *a, uint64_t now_ms)
{
	struct asker *k, *next;

	for (k = LIST_FIRST(&a->askers); k; k = next) {
		next = LIST_NEXT(k, link);
		if (now_ms - k->last_ms > ADMIT_WINDOW_MS)
			drop(a, k);
	}
}

static struct asker *find(struct admit *a, const uint8_t job[CTL_ID])
{
	struct asker *k;

	LIST_FOREACH (k, &a->askers, link)
		if (!memcmp(k->ask.job, job, CTL_ID))
			return k;
	return NULL;
}

/* 0, or -ENOMEM: then the job simply has no place among the askers. */
static int remember(struct admit *a, const struct admit_ask *ask, uint64_t now_ms)
{
	struct asker *k = find(a, ask->job);

	if (!k) {
		k = calloc(1, sizeof(*k));
		if (!k)
			return -ENOMEM;
		LIST_INSERT_HEAD(&a->askers, k, link);
		a->n++;
	}
	k->ask = *ask;
	k->last_ms = now_ms;
	return 0;
}

void admit_remember(struct admit *a, const struct admit_ask *ask, uint64_t now_ms)
{
	(void)remember(a, ask, now_ms);
}

void admit_forget(struct admit *a, const uint8_t job[CTL_ID])
{
	struct asker *k = find(a, job);

	if (k)
		drop(a, k);
}

uint32_t admit_count(struct admit *a, uint64_t now_ms)
{
	expire(a, now_ms);
	return a->n;
}

static bool older(const struct admit_ask *x, const struct admit_ask *y)
{
	if (x->start_us != y->start_us)
		return x->start_us < y->start_us;
	return memcmp(x->job, y->job, CTL_ID) < 0;
}

static bool somebody_older(struct admit *a, const struct admit_ask *ask)
{
	const struct asker *k;

	LIST_FOREACH (k, &a->askers, link)
		if (k->ask.slot == ask->slot && older(&k->ask, ask))
			return true;
	return false;
}

/*
 * A client whose own jobs hold all the places would wait for ever. Asked a second time only: at
 * the first time the end of a job that it has given up may still be on its way.
 */
static bool waits_for_itself(struct admit *a, const struct admit_ask *ask,
			     const struct admit_load *load, uint32_t limit, struct err *err)
{
	bool training = ask->slot == ADMIT_TRAINING;

	if (load->jobs_of_client < limit || !find(a, ask->job))
		return false;
	admit_forget(a, ask->job);
	err_set(err, ERR_LIMIT, -EDQUOT, "this session itself runs %u %s%s, and the limit is %u",
		load->jobs_of_client, training ? "training" : "prediction",
		load->jobs_of_client == 1 ? "" : "s", limit);
	err_hint(err, "Let one end first, or raise %s in cnnd.conf.",
		 training ? "max_trainings" : "max_predictions and max_jobs_per_role");
	return true;
}

int admit_try(struct admit *a, const struct admit_ask *ask, const struct admit_limits *limits,
	      const struct admit_load *load, uint64_t now_ms, char reason[ADMIT_REASON],
	      struct err *err)
{
	static const char *const what[ADMIT_SLOTS] = {"training", "prediction"};
	static const char *const key[ADMIT_SLOTS] = {"max_trainings", "max_predictions"};

	expire(a, now_ms);
	/* One application role scores rows from many sessions: its predictions wait for each other.
	 */
	if (load->jobs_of_role >= limits->max_jobs_per_role && ask->slot == ADMIT_TRAINING) {
		admit_forget(a, ask->job);
		err_set(err, ERR_LIMIT, -EDQUOT,
			"this role has %u trainings running, and max_jobs_per_role = %u",
			load->jobs_of_role, limits->max_jobs_per_role);
		err_hint(err, "Wait for one of them to end, or raise max_jobs_per_role in "
			      "cnnd.conf.");
		return -EDQUOT;
	}
	if (!find(a, ask->job) && a->n >= limits->max_queue) {
		err_set(err, ERR_LIMIT, -ENOBUFS,
			"%u jobs are waiting for this host, and max_queue = %u", a->n,
			limits->max_queue);
		err_hint(err, "Try again later, or raise max_queue in cnnd.conf.");
		return -ENOBUFS;
	}
	if (load->jobs_of_role >= limits->max_jobs_per_role) {
		/* it waits for its own role: that must not hold up the others */
		struct admit_ask aside = *ask;

		if (waits_for_itself(a, ask, load, limits->max_jobs_per_role, err))
			return -EDQUOT;
		aside.slot = ADMIT_SLOTS;
		remember(a, &aside, now_ms);
		snprintf(reason, ADMIT_REASON,
			 "this role has %u predictions running, and max_jobs_per_role = %u",
			 load->jobs_of_role, limits->max_jobs_per_role);
		return 0;
	}
	if (somebody_older(a, ask)) {
		remember(a, ask, now_ms);
		snprintf(reason, ADMIT_REASON, "an older %s waits for %s", what[ask->slot],
			 load->device);
		return 0;
	}
	if (load->running[ask->slot] >= limits->slots[ask->slot]) {
		if (waits_for_itself(a, ask, load, limits->slots[ask->slot], err))
			return -EDQUOT;
		remember(a, ask, now_ms);
		snprintf(reason, ADMIT_REASON, "%s runs %u other %s%s (%s = %u)", load->device,
			 load->running[ask->slot], what[ask->slot],
			 load->running[ask->slot] == 1 ? "" : "s", key[ask->slot],
			 limits->slots[ask->slot]);
		return 0;
	}
	admit_forget(a, ask->job);
	return 1;
}
