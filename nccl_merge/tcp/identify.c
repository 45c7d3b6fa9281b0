// SPDX-License-Identifier: MIT
/*
 * identify.c: a host's identity, told after its listener is open: a daemon tells others its address
 * before anybody knows the order of the hosts.
 */
#include "tcp.h"

int merge_tcp_identify(struct merge_net *net, uint32_t self, uint64_t table_hash,
		       struct merge_error *error)
{
	struct tcp_net *t = (struct tcp_net *)net;
	int rc = 0;

	pthread_mutex_lock(&t->lock);
	if (self >= MERGE_HOSTS_MAX || t->host) {
		rc = merge_fail(error, -EINVAL, MERGE_NO_HOST, "no identity, or connected already");
	} else {
		t->config.self = self;
		t->config.table_hash = table_hash;
	}
	pthread_mutex_unlock(&t->lock);
	return rc;
}
