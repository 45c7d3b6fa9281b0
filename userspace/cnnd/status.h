/* SPDX-License-Identifier: MIT */
/* status.h: STATUS and DEVICES: what runs here, as far as the asker may know it. */
#ifndef CNND_STATUS_H
#define CNND_STATUS_H

#include "session.h"

void status_jobs(struct session *s, const struct ctl_msg *msg);
void status_devices(struct session *s, const struct ctl_msg *msg);
/* Into the log: running jobs and the last ones that ended (SIGUSR1). */
void status_log(struct daemon *d);
/* Fills a heartbeat's figures from a job. daemon.lock held. */
void status_heartbeat(const struct job *job, const struct call *c, struct ctl_heartbeat *out);

#endif
