/* SPDX-License-Identifier: MIT */
/*
 * control.h: the control thread, apart from the loop and from the compute pool: a heartbeat each
 * second to every client that waits, the deadlines of connections and jobs, the steps of a
 * shutdown, the service manager's watchdog.
 */
#ifndef CNND_CONTROL_H
#define CNND_CONTROL_H

#include "daemon.h"

struct control;

int control_create(struct daemon *d, struct control **out);
void control_free(struct control *c);
/* SIGTERM: no new jobs; running ones get stop_timeout. A second call ends them at once. */
void control_stop(struct daemon *d);

#endif
