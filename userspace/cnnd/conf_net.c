// SPDX-License-Identifier: MIT
/* conf_net.c: the values of conf_value.h that are about the network. */
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "conf_value.h"

#define CONGESTION 16

int conf_address(const char *text, char *out, char why[CONF_WHY])
{
	struct in6_addr v6;
	struct in_addr v4;
	bool four = inet_pton(AF_INET, text, &v4) == 1;

	if (!four && inet_pton(AF_INET6, text, &v6) != 1) {
		snprintf(why, CONF_WHY, "a numeric address is wanted");
		return -EINVAL;
	}
	/* the address is told to the other hosts, and this one is none that they could reach */
	if (four ? v4.s_addr == htonl(INADDR_ANY) : IN6_IS_ADDR_UNSPECIFIED(&v6)) {
		snprintf(why, CONF_WHY,
			 "the other hosts are told this address: name the one of this host that "
			 "they reach");
		return -EINVAL;
	}
	memset(out, 0, CONF_ADDRESS);
	if (!inet_ntop(four ? AF_INET : AF_INET6, four ? (void *)&v4 : (void *)&v6, out,
		       CONF_ADDRESS)) {
		snprintf(why, CONF_WHY, "a numeric address is wanted");
		return -EINVAL;
	}
	return 0;
}

int conf_ports(const char *text, struct conf_ports *out, char why[CONF_WHY])
{
	struct conf_ports p = {0, 0};
	char copy[32], *dash;
	uint64_t first, last;

	if (!strcmp(text, "0")) {
		*out = p;
		return 0;
	}
	if (strlen(text) >= sizeof(copy)) {
		snprintf(why, CONF_WHY, "0, a port or first-last is wanted");
		return -EINVAL;
	}
	strcpy(copy, text);
	dash = strchr(copy, '-');
	if (dash)
		*dash = '\0';
	if (conf_uint(copy, 1, UINT16_MAX, &first, why) ||
	    conf_uint(dash ? dash + 1 : copy, 1, UINT16_MAX, &last, why))
		return -EINVAL;
	if (first > last) {
		snprintf(why, CONF_WHY, "the first port is larger than the last");
		return -EINVAL;
	}
	p.first = (uint16_t)first;
	p.last = (uint16_t)last;
	*out = p;
	return 0;
}

int conf_congestion(const char *text, char *out, char why[CONF_WHY])
{
	size_t n = strlen(text);
	int fd, rc = 0;

	if (n >= CONGESTION) {
		snprintf(why, CONF_WHY, "longer than %d bytes", CONGESTION - 1);
		return -EINVAL;
	}
	if (n) {
		fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
		if (fd < 0 || setsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, text, (socklen_t)n)) {
			snprintf(why, CONF_WHY, "this kernel does not give it: %s",
				 strerror(errno));
			rc = -EINVAL;
		}
		if (fd >= 0)
			close(fd);
	}
	if (!rc) {
		memset(out, 0, CONGESTION);
		memcpy(out, text, n);
	}
	return rc;
}

int conf_list(const char *text, char *out, char why[CONF_WHY])
{
	static const char allowed[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
				      "0123456789_:./-,";
	size_t n = strlen(text);
	const char *first = text[0] == '^' ? text + 1 : text;

	if (n >= CONF_LIST) {
		snprintf(why, CONF_WHY, "longer than %d bytes", CONF_LIST - 1);
		return -EINVAL;
	}
	if (n && (first[strspn(first, allowed)] || first[0] == ',' || !first[0] ||
		  strstr(first, ",,") || text[n - 1] == ',')) {
		snprintf(why, CONF_WHY,
			 "names with commas between them are wanted, without spaces");
		return -EINVAL;
	}
	memset(out, 0, CONF_LIST);
	memcpy(out, text, n);
	return 0;
}
