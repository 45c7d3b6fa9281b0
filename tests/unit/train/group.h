/* SPDX-License-Identifier: MIT */
/*
 * group.h: trainings on several hosts, each a rig with rows of its own and a thread of its own.
 * They merge within the process (merge_local_open).
 */
#ifndef TRAIN_GROUP_H
#define TRAIN_GROUP_H

#include <pthread.h>

#include "rig.h"

#define GROUP_MAX 8

struct group;
typedef void (*group_fn)(struct group *g, uint32_t rank);

struct group {
	uint32_t n;
	struct rig rig[GROUP_MAX];
	struct ctl_run run;
	struct ctl_run_row row[GROUP_MAX];
	char note[GROUP_MAX][512];
	struct err err[GROUP_MAX];
	int rc[GROUP_MAX];
	const char *const *names;
	group_fn fn;
};

struct group_thread {
	struct group *g;
	uint32_t rank;
};

static inline void *group_thread(void *context)
{
	struct group_thread *w = context;

	w->g->fn(w->g, w->rank);
	return NULL;
}

/* fn on a thread per host. */
static inline void group_do(struct group *g, group_fn fn)
{
	struct group_thread w[GROUP_MAX];
	pthread_t thread[GROUP_MAX];

	g->fn = fn;
	for (uint32_t i = 0; i < g->n; i++) {
		w[i] = (struct group_thread){g, i};
		if (pthread_create(&thread[i], NULL, group_thread, &w[i]))
			BAIL("no thread");
	}
	for (uint32_t i = 0; i < g->n; i++)
		pthread_join(thread[i], NULL);
}

static inline void group_create_one(struct group *g, uint32_t i)
{
	struct rig *r = &g->rig[i];
	struct train_setup setup = rig_setup(r);

	setup.host_name = g->names;
	g->rc[i] = train_create(&setup, &r->train, &r->notice, &g->err[i]);
}

/* One agreed block of all hosts' parts, applied on each. */
static inline int group_agree(struct group *g, struct err *err)
{
	struct agree_block part[GROUP_MAX] = {0};
	int rc = 0;

	for (uint32_t i = 0; !rc && i < g->n; i++) {
		rc = data_collect(g->rig[i].data, &part[i], err);
		if (!rc)
			rc = train_config_policy(&g->rig[i].config, &part[i], err);
	}
	for (uint32_t i = 0; !rc && i < g->n; i++) {
		rc = agree_merge(part, g->n, &g->rig[i].agreed, err);
		if (!rc)
			rc = data_apply(g->rig[i].data, &g->rig[i].agreed,
					model_info(g->rig[i].model)->outputs, err);
	}
	for (uint32_t i = 0; i < g->n; i++)
		agree_free(&part[i]);
	return rc;
}

/* Everything but the trainings. spec[i] and train[i] of host i; train[i].n may be 0. */
static inline int group_prepare(struct group *g, uint32_t n, const char *const *spec,
				const char *architecture, const struct rig_rows *train,
				const struct rig_rows *validation, struct err *err)
{
	int rc = 0;

	memset(g, 0, sizeof(*g));
	memset(err, 0, sizeof(*err));
	g->n = n;
	for (uint32_t i = 0; !rc && i < n; i++) {
		struct rig *r = &g->rig[i];

		rc = train_config_parse(spec[i], strlen(spec[i]), &r->config, err);
		if (!rc)
			rc = rig_model(r, architecture, &train[i], err);
		if (!rc)
			rc = rig_data(r, &train[i], validation ? &validation[i] : NULL,
				      ROW_VALIDATION, err);
	}
	return rc ? rc : group_agree(g, err);
}

static inline void group_nets(struct group *g)
{
	struct merge_net *net[GROUP_MAX];
	struct merge_error error;

	if (merge_local_open(g->n, net, &error))
		BAIL("net: %s", error.message);
	for (uint32_t i = 0; i < g->n; i++)
		g->rig[i].net = net[i];
}

static inline void group_start(struct group *g, uint32_t n, const char *spec,
			       const char *architecture, const struct rig_rows *train,
			       const struct rig_rows *validation)
{
	const char *all[GROUP_MAX] = {NULL};
	struct err err;

	for (uint32_t i = 0; i < n; i++)
		all[i] = spec;
	if (group_prepare(g, n, all, architecture, train, validation, &err))
		BAIL("%s: %s", spec, err.message);
	group_nets(g);
	group_do(g, group_create_one);
	for (uint32_t i = 0; i < n; i++)
		if (g->rc[i])
			BAIL("%s: host %u: %s", spec, i, g->err[i].message);
}

static inline void group_end(struct group *g)
{
	for (uint32_t i = 0; i < g->n; i++) {
		struct merge_net *net = g->rig[i].net;

		rig_end(&g->rig[i]);
		if (net)
			merge_net_close(net);
	}
}

static inline void group_run_one(struct group *g, uint32_t i)
{
	struct ctl_str *note = &g->row[i].note;

	g->rc[i] = train_run(g->rig[i].train, &g->run, &g->row[i], &g->err[i]);
	if (!g->rc[i])
		snprintf(g->note[i], sizeof(g->note[i]), "%.*s", (int)note->n,
			 note->p ? note->p : "");
}

/* True where all succeed. */
static inline bool group_run(struct group *g, uint32_t first, uint32_t count)
{
	bool good = true;

	g->run.first_epoch = first;
	g->run.count = count;
	g->run.lr_factor = 1;
	group_do(g, group_run_one);
	for (uint32_t i = 0; i < g->n; i++) {
		if (g->rc[i])
			printf("# host %u: %s\n", i, g->err[i].message);
		good &= !g->rc[i];
	}
	return good;
}

/* The rows of all hosts but for times, bytes and notes. */
static inline bool group_same_rows(const struct group *g)
{
	struct ctl_run_row a = g->row[0], b;

	a.seconds_train = a.seconds_merge = a.seconds_evaluate = 0;
	a.merge_bytes = 0;
	a.note = (struct ctl_str){0};
	for (uint32_t i = 1; i < g->n; i++) {
		b = g->row[i];
		b.seconds_train = b.seconds_merge = b.seconds_evaluate = 0;
		b.merge_bytes = 0;
		b.note = (struct ctl_str){0};
		if (memcmp(&a, &b, sizeof(a)) || strcmp(g->note[0], g->note[i]))
			return false;
	}
	return true;
}

static inline bool group_same_weights(struct group *g)
{
	for (uint32_t i = 1; i < g->n; i++)
		if (!rig_same(&g->rig[0], &g->rig[i], CTL_WEIGHTS))
			return false;
	return true;
}

#endif
