// SPDX-License-Identifier: MIT
/* call.c: the life of a request in work: started on the main thread, answered once by whoever gets
 * there first (the worker, or the end of its job), finished when no thread looks at it any more. */
#include <string.h>

#include "session.h"

struct call *call_start(struct session *s, const struct ctl_msg *msg, struct job *job,
			const char *wait)
{
	struct call *c = &s->call;

	memset(c, 0, sizeof(*c));
	c->session = s;
	c->msg = *msg;
	c->active = true;
	c->wait = wait;
	c->since_ms = now_ms();
	session_get(s);
	if (job)
		call_attach(c, job);
	return c;
}

void call_attach(struct call *c, struct job *job)
{
	c->job = job;
	TAILQ_INSERT_TAIL(&job->calls, c, in_job);
}

bool call_answer_locked(struct call *c, const struct ctl_msg *msg)
{
	if (c->answered)
		return false;
	c->answered = true;
	session_send(c->session, msg, NULL, 0);
	return true;
}

bool call_error_locked(struct call *c, const struct err *err)
{
	if (c->answered)
		return false;
	c->answered = true;
	session_error(c->session, err);
	return true;
}

/* True when this caller is the one that answers. */
static bool claim(struct call *c)
{
	struct daemon *d = c->session->daemon;
	bool mine;

	pthread_mutex_lock(&d->lock);
	mine = !atomic_exchange(&c->answered, true);
	pthread_mutex_unlock(&d->lock);
	return mine;
}

bool call_answer(struct call *c, const struct ctl_msg *msg, const int *fds, int n_fds)
{
	if (!claim(c))
		return false;
	session_send(c->session, msg, fds, n_fds);
	return true;
}

bool call_error(struct call *c, const struct err *err)
{
	if (!claim(c))
		return false;
	session_error(c->session, err);
	return true;
}

void call_finish_locked(struct call *c)
{
	struct session *s = c->session;

	if (c->job)
		TAILQ_REMOVE(&c->job->calls, c, in_job);
	c->job = NULL;
	c->active = false;
	/* the loop reads on only now: until here the frame's bytes were in use */
	session_resume(s);
	session_put(s);
}

void call_finish(struct call *c)
{
	struct daemon *d = c->session->daemon;

	pthread_mutex_lock(&d->lock);
	call_finish_locked(c);
	pthread_mutex_unlock(&d->lock);
}
