/* SPDX-License-Identifier: MIT */
/* request.h: a decoded request to its handler. Main thread. */
#ifndef CNND_REQUEST_H
#define CNND_REQUEST_H

#include "session.h"

/* Handles one request, or starts a call for it. -EPROTO: the connection ends with this error. */
int request_dispatch(struct session *s, const struct ctl_msg *msg, struct err *err);

#endif
