// SPDX-License-Identifier: MIT
/* member_net.c: see member_net.h. */
#include "member_net.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "members.h"

#define USER_TIMEOUT_MS 4000

static socklen_t fill(const char *address, uint16_t port, struct sockaddr_storage *out)
{
	struct sockaddr_in *v4 = (struct sockaddr_in *)out;
	struct sockaddr_in6 *v6 = (struct sockaddr_in6 *)out;

	memset(out, 0, sizeof(*out));
	if (inet_pton(AF_INET, address, &v4->sin_addr) == 1) {
		v4->sin_family = AF_INET;
		v4->sin_port = htons(port);
		return sizeof(*v4);
	}
	if (inet_pton(AF_INET6, address, &v6->sin6_addr) != 1)
		return 0;
	v6->sin6_family = AF_INET6;
	v6->sin6_port = htons(port);
	return sizeof(*v6);
}

static int bind_one(int fd, const char *address, const struct conf_ports *ports)
{
	struct sockaddr_storage a;

	for (uint32_t port = ports->first; port <= ports->last; port++) {
		socklen_t n = fill(address, (uint16_t)port, &a);

		if (!n)
			return -EINVAL;
		/* listen() too: another listener may have the port, and bind() lets it pass */
		if (!bind(fd, (struct sockaddr *)&a, n))
			return listen(fd, 128) ? -errno : 0;
		if (errno != EADDRINUSE)
			break;
	}
	return -errno;
}

int member_net_listen(const char *address, const struct conf_ports *ports, char *text,
		      size_t capacity, struct err *err)
{
	struct sockaddr_storage a;
	socklen_t n = sizeof(a);
	int one = 1, rc, fd;

	if (!fill(address, 0, &a))
		return err_set(err, ERR_INTERNAL, -EINVAL, "merge_listen = %s is no address",
			       address);
	fd = socket(a.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
	if (fd < 0)
		return err_set(err, ERR_LIMIT, -errno, "socket: %s", strerror(errno));
	(void)!setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one));
	rc = bind_one(fd, address, ports);
	if (!rc && getsockname(fd, (struct sockaddr *)&a, &n))
		rc = -errno;
	if (rc) {
		close(fd);
		err_set(err, ERR_LIMIT, rc, "cannot listen on %s, ports %u to %u: %s", address,
			ports->first, ports->last, strerror(-rc));
		err_hint(err, "See merge_listen and merge_ports in cnnd.conf.");
		return rc;
	}
	/* the port is at the same place in both address families */
	snprintf(text, capacity, "%s %u", address, ntohs(((struct sockaddr_in *)&a)->sin_port));
	return fd;
}

int member_net_dial(const char *address, uint16_t port)
{
	struct sockaddr_storage a;
	socklen_t n = fill(address, port, &a);
	int fd, rc;

	if (!n)
		return -EINVAL;
	fd = socket(a.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
	if (fd < 0)
		return -errno;
	if (connect(fd, (struct sockaddr *)&a, n) && errno != EINPROGRESS) {
		rc = -errno;
		close(fd);
		return rc;
	}
	return fd;
}

void member_net_peer(int fd, char text[CONF_ADDRESS])
{
	struct sockaddr_storage a = {.ss_family = AF_UNSPEC};
	socklen_t n = sizeof(a);
	const void *at = NULL;

	if (!getpeername(fd, (struct sockaddr *)&a, &n))
		at = a.ss_family == AF_INET ? (void *)&((struct sockaddr_in *)&a)->sin_addr
					    : (void *)&((struct sockaddr_in6 *)&a)->sin6_addr;
	if (!at || !inet_ntop(a.ss_family, at, text, CONF_ADDRESS))
		snprintf(text, CONF_ADDRESS, "an unknown address");
}

static void option(int fd, int level, int name, int value)
{
	/* a kernel without one of them still works: silence is noticed, too */
	(void)!setsockopt(fd, level, name, &value, sizeof(value));
}

void member_net_options(int fd)
{
	option(fd, IPPROTO_TCP, TCP_NODELAY, 1);
	option(fd, SOL_SOCKET, SO_KEEPALIVE, 1);
	option(fd, IPPROTO_TCP, TCP_KEEPIDLE, 1);
	option(fd, IPPROTO_TCP, TCP_KEEPINTVL, 1);
	option(fd, IPPROTO_TCP, TCP_KEEPCNT, 3);
	option(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, USER_TIMEOUT_MS);
}

bool members_address(struct ctl_str text, char address[CONF_ADDRESS], uint16_t *port)
{
	char copy[CONF_ADDRESS + 8], *space, *end;
	struct sockaddr_storage a;
	unsigned long v;

	if (!text.n || text.n >= sizeof(copy) || memchr(text.p, '\0', text.n))
		return false;
	memcpy(copy, text.p, text.n);
	copy[text.n] = '\0';
	space = strchr(copy, ' ');
	if (!space || space - copy >= CONF_ADDRESS || space[1] < '0' || space[1] > '9')
		return false;
	*space = '\0';
	v = strtoul(space + 1, &end, 10);
	if (*end || !v || v > UINT16_MAX || !fill(copy, (uint16_t)v, &a))
		return false;
	strcpy(address, copy);
	*port = (uint16_t)v;
	return true;
}
