/* SPDX-License-Identifier: MIT */
/* sdnotify.h: the few lines of systemd's notification protocol that a Type=notify service needs. */
#ifndef CNND_SDNOTIFY_H
#define CNND_SDNOTIFY_H

#include <stdint.h>

/* Sends "READY=1", "STOPPING=1", "RELOADING=1" ... to NOTIFY_SOCKET. 0: sent, or nobody listens;
 * else -errno. */
int sdnotify_send(const char *state);
/* Milliseconds between two pings that the service manager wants (half of WATCHDOG_USEC, meant for
 * this process); 0: none. */
uint64_t sdnotify_watchdog_ms(void);

#endif
