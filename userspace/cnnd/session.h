/* SPDX-License-Identifier: MIT */
/*
 * session.h: a connection: reading and dispatching its requests (main thread), sending frames (any
 * thread), and the life of the one request that it may have in work.
 */
#ifndef CNND_SESSION_H
#define CNND_SESSION_H

#include "daemon.h"

#define SESSION_HELLO_MS 5000u	/* a HELLO, or a frame that has begun, must be whole by then */
#define SESSION_STALL_MS 10000u /* a client that reads nothing for so long is closed */

/* ---- main thread ---- */

/* Takes the accepted socket over; refuses it politely past the limits. */
void session_accept(struct daemon *d, int fd);
void session_event(struct session *s, uint32_t events);
/* Looks at every session that other threads have put on the resume list. */
void session_resume_all(struct daemon *d);
/* Ends what the connection's end ends, and lets go of the session. */
void session_close(struct session *s, const char *why);

/* ---- any thread ---- */

/* Queues a frame. -EPIPE: the connection is over (the loop closes it). */
int session_send(struct session *s, const struct ctl_msg *msg, const int *fds, int n_fds);
/* A frame of a call's stream: waits while more than 4 MB are queued. -EPIPE also when the call has
 * been answered meanwhile: its job has ended. Not on the main thread, no lock held. */
int session_stream(struct call *c, const struct ctl_msg *msg);
/* As an ERROR frame. */
void session_error(struct session *s, const struct err *err);
/* The loop shall look at it again: its call is over, its queue has grown. */
void session_resume(struct session *s);
/* Makes the loop close it soon. */
void session_kick(struct session *s);
/* True when its queue has not moved for too long. */
bool session_stalled(struct session *s, uint64_t now);
/* Bytes queued. */
size_t session_pending(struct session *s);
void session_get(struct session *s);
void session_put(struct session *s);

/* ---- calls ---- */

/* Marks a request as in work; job may be NULL. Lock held, main thread. */
struct call *call_start(struct session *s, const struct ctl_msg *msg, struct job *job,
			const char *wait);
/* Sends the answer, once: false when the call was answered before (its job has ended). */
bool call_answer(struct call *c, const struct ctl_msg *msg, const int *fds, int n_fds);
bool call_error(struct call *c, const struct err *err);
/* The same with the lock held. */
bool call_answer_locked(struct call *c, const struct ctl_msg *msg);
bool call_error_locked(struct call *c, const struct err *err);
/* The call's memory is not looked at any more; the connection may send its next request. */
void call_finish(struct call *c);
void call_finish_locked(struct call *c);
/* Ties a call to a job that it has found or made. Lock held. */
void call_attach(struct call *c, struct job *job);

/* Copies a protocol string; false when it does not fit or holds a NUL byte. */
bool session_text(struct ctl_str text, char *out, size_t capacity);

#endif
