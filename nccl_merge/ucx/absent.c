/* SPDX-License-Identifier: MIT */
/*
 * absent.c: the build had no headers of UCX.
 */
#include "ucx.h"

int ucx_open(const char *tls, const char *devices, const char *listen, struct ucx **out,
	     struct merge_error *error)
{
	return merge_fail(error, -ENOTSUP, MERGE_NO_HOST,
			  "merge_transport is 'ucx', but this build has no UCX back end: "
			  "libucx-dev was missing");
}

void ucx_close(struct ucx *u)
{
}

int ucx_up(struct tcp_net *t, double seconds, struct merge_error *error)
{
	return -ENOTSUP;
}

void ucx_down(struct ucx *u)
{
}

void ucx_drain(struct ucx *u, double seconds)
{
}

int ucx_tend(struct ucx *u)
{
	return 0;
}

int ucx_round(struct merge_net *net, struct merge_round *round, struct merge_error *error)
{
	return -ENOTSUP;
}
