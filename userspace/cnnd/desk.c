// SPDX-License-Identifier: MIT
/* desk.c: see desk.h. */
#include "desk.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "begin.h"

#define THREADS 2

struct desk {
	struct daemon *daemon;
	pthread_cond_t wake; /* with daemon.lock */
	struct call_list queue;
	bool quit;
	unsigned int started;
	pthread_t thread[THREADS];
};

static void answer_model(struct call *c, const struct model *model, const char *summary,
			 const char *json)
{
	const struct model_info *info = model_info(model);
	struct ctl_msg m = {.type = CTL_DESCRIBE_OK};
	struct ctl_describe_ok *r = &m.u.describe_ok;
	size_t name = strlen(info->name);

	r->trainable = info->trainable;
	r->frozen = info->frozen;
	r->h = info->input.h;
	r->w = info->input.w;
	r->c = info->input.c;
	r->outputs = info->outputs;
	r->layers = info->layers;
	r->blob_bytes = model_graph(model) ? model_blob_bytes(model) : 0;
	r->name = ctl_str(info->name, name < CNND_NAME ? name : CNND_NAME - 1);
	r->summary = ctl_str(summary, strlen(summary));
	r->json = ctl_str(json, strlen(json));
	if (r->summary.n > MODEL_MAX_JSON || r->json.n > MODEL_MAX_JSON) {
		struct err err = {0};

		err_set(&err, ERR_LIMIT, -E2BIG, "the description has more than %u bytes",
			MODEL_MAX_JSON);
		call_error(c, &err);
		return;
	}
	call_answer(c, &m, NULL, 0);
}

static void describe(struct call *c)
{
	const struct ctl_describe *q = &c->msg.u.describe;
	struct model_bind bind = {q->h, q->w, q->c, q->outputs};
	struct model *model = NULL;
	struct err err = {0};
	char *summary = NULL, *json = NULL;

	if (model_open(q->architecture.p, q->architecture.n, &bind, &model, &err)) {
		call_error(c, &err);
		return;
	}
	summary = model_summary(model);
	json = model_json(model);
	/* neither can be written while the input shape is open */
	if ((summary && json) || !model_info(model)->shape_known) {
		answer_model(c, model, summary ? summary : "", json ? json : "");
	} else {
		err_set(&err, ERR_LIMIT, -ENOMEM, "out of memory for a description");
		call_error(c, &err);
	}
	free(summary);
	free(json);
	model_free(model);
}

static void *desk_thread(void *arg)
{
	struct desk *desk = arg;
	struct daemon *d = desk->daemon;
	struct call *c;

	pthread_mutex_lock(&d->lock);
	for (;;) {
		while (!(c = TAILQ_FIRST(&desk->queue)) && !desk->quit)
			pthread_cond_wait(&desk->wake, &d->lock);
		if (!c)
			break;
		TAILQ_REMOVE(&desk->queue, c, in_queue);
		c->queued = false;
		pthread_mutex_unlock(&d->lock);
		if (c->msg.type == CTL_DESCRIBE) {
			describe(c);
			call_finish(c);
		} else if (begin_serve(c)) {
			call_finish(c);
		}
		pthread_mutex_lock(&d->lock);
	}
	pthread_mutex_unlock(&d->lock);
	return NULL;
}

int desk_create(struct daemon *d, struct desk **out)
{
	struct desk *desk = calloc(1, sizeof(*desk));
	int rc = 0;

	if (!desk)
		return -ENOMEM;
	desk->daemon = d;
	TAILQ_INIT(&desk->queue);
	pthread_cond_init(&desk->wake, NULL);
	while (!rc && desk->started < THREADS) {
		rc = -pthread_create(&desk->thread[desk->started], NULL, desk_thread, desk);
		if (!rc)
			desk->started++;
	}
	if (rc) {
		desk_free(desk);
		return rc;
	}
	*out = desk;
	return 0;
}

void desk_free(struct desk *desk)
{
	struct daemon *d;

	if (!desk)
		return;
	d = desk->daemon;
	pthread_mutex_lock(&d->lock);
	desk->quit = true;
	pthread_cond_broadcast(&desk->wake);
	pthread_mutex_unlock(&d->lock);
	for (unsigned int i = 0; i < desk->started; i++)
		pthread_join(desk->thread[i], NULL);
	pthread_cond_destroy(&desk->wake);
	free(desk);
}

void desk_submit(struct desk *desk, struct call *c)
{
	c->queued = true;
	TAILQ_INSERT_TAIL(&desk->queue, c, in_queue);
	pthread_cond_signal(&desk->wake);
}
