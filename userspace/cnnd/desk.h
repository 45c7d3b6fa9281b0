/* SPDX-License-Identifier: MIT */
/*
 * desk.h: two threads that read what clients wrote at length: the spec of BEGIN and the
 * architecture of DESCRIBE. A hostile text costs them time, not the loop.
 */
#ifndef CNND_DESK_H
#define CNND_DESK_H

#include "session.h"

struct desk;

int desk_create(struct daemon *d, struct desk **out);
/* No call is in work or queued any more. */
void desk_free(struct desk *desk);
/* daemon.lock held; the call is active. */
void desk_submit(struct desk *desk, struct call *c);

#endif
