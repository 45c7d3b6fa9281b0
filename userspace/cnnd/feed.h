/* SPDX-License-Identifier: MIT */
/*
 * feed.h: one ring of a job and the thread that drains it into the job's data set. The thread
 * always drains, whatever has gone wrong before, until FEED_END, the end of the connection or of
 * the job: a producer never waits for anything but the rows of its own ring.
 *
 * An error is told at once: the ERROR frame comes while the client still writes rows, and stands
 * for the answer of the FEED_END that follows.
 */
#ifndef CNND_FEED_H
#define CNND_FEED_H

#include "../ring/ring.h"
#include "daemon.h"

/* Handlers of FEED and FEED_END; main thread, no lock held. */
void feed_begin(struct session *s, const struct ctl_msg *msg);
void feed_finish(struct session *s, const struct ctl_msg *msg);

/* ---- daemon.lock held ---- */

struct feed {
	LIST_ENTRY(feed) in_job;
	struct job *job;
	struct session *session; /* holds a reference */
	struct data_feed types;
	int event;	       /* eventfd: look at the flags below */
	struct call *end_call; /* FEED_END is here */
	uint64_t end_rows;
	bool canceled;
	bool told;	    /* the ERROR frame is sent */
	atomic_ullong rows; /* so far, for STATUS and heartbeats */
	uint64_t beat_ms;

	/* settings at the begin */
	uint64_t ring_bytes, max_value;
	enum ring_backend backend;
};

void feed_cancel(struct feed *f);
/* The connection of s->feed has ended: so has its job. */
void feed_session_closed(struct session *s, const char *why);

/* Which ring a feed would get now, and why: "memfd: no /dev/cnnring: ...". */
#define FEED_RING_TEXT (RING_WHY + 32)
void feed_ring_text(uint32_t conf_ring, char text[FEED_RING_TEXT]);

#endif
