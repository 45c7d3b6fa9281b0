/* SPDX-License-Identifier: MIT */
/*
 * ucx.h: rounds over UCX, for RDMA sites. The mesh stays that of TCP: its data connections carry
 * the addresses of the workers and are then only watched for their end. absent.c stands in where
 * the build has no headers of UCX.
 */
#ifndef MERGE_UCX_H
#define MERGE_UCX_H

#include "../tcp/tcp.h"

/* Loads the library and opens a context; -ENOTSUP says what is missing. */
int ucx_open(const char *tls, const char *devices, const char *listen, struct ucx **out,
	     struct merge_error *error);
void ucx_close(struct ucx *u); /* NULL is fine, here and below */
/* After a mesh: worker, addresses, endpoints, and one message each way. */
int ucx_up(struct tcp_net *t, double seconds, struct merge_error *error);
/* Before the next one: endpoints are closed by force, requests cancelled, the worker destroyed. */
void ucx_down(struct ucx *u);
/* Before an orderly end: until what the last round left behind is out, or so many seconds. */
void ucx_drain(struct ucx *u, double seconds);
/*
 * The control thread, between rounds: drives the library while the last round's flush is not over.
 * Returns when to come again, in milliseconds, 0: not before another round.
 */
int ucx_tend(struct ucx *u);
int ucx_round(struct merge_net *net, struct merge_round *round, struct merge_error *error);

#endif
