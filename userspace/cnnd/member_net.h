/* SPDX-License-Identifier: MIT */
/* member_net.h: the sockets of links: listening, dialing, options. Nothing here blocks. */
#ifndef CNND_MEMBER_NET_H
#define CNND_MEMBER_NET_H

#include "../base/err.h"
#include "conf.h"

/* A listening socket, close-on-exec and non-blocking; text: 'address port'. Negative with err. */
int member_net_listen(const char *address, const struct conf_ports *ports, char *text,
		      size_t capacity, struct err *err);
/* A socket whose connect() has begun, or -errno. */
int member_net_dial(const char *address, uint16_t port);
/* The other end's address. */
void member_net_peer(int fd, char text[CONF_ADDRESS]);
/* Small frames at once; a cut path is an error within seconds. */
void member_net_options(int fd);

#endif
