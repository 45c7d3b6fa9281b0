/* SPDX-License-Identifier: MIT */
/*
 * server.h: the epoll loop: accepts, reads, sends, acts on signals. Signal handlers only set flags;
 * signals are let in only while the loop waits.
 */
#ifndef CNND_SERVER_H
#define CNND_SERVER_H

#include "daemon.h"

/* Installs the handlers and blocks their signals in this thread (and in those it creates later). */
void server_signals(void);
int server_open(struct daemon *d, struct err *err);
/* Until the shutdown is complete. */
void server_loop(struct daemon *d);
/* Closes every connection. */
void server_close(struct daemon *d);

#endif
