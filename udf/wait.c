// SPDX-License-Identifier: MIT
/*
 * wait.c: the only place where the extension waits. Never blocks without the latch; looks at
 * the client's socket too, since the server itself does not notice a killed client.
 */
#include "gpu_cnn.h"

#include <time.h>

int64 wait_now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (int64)t.tv_sec * 1000 + t.tv_nsec / 1000000;
}

double wait_seconds(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

/* A parallel worker has no client. A client that sent its goodbye is gone as well as a killed one.
 */
static void check_client(void)
{
	struct pollfd p;

	if (!MyProcPort || MyProcPort->sock == PGINVALID_SOCKET)
		return;
	p.fd = MyProcPort->sock;
	p.events = POLLRDHUP;
	p.revents = 0;
	if (poll(&p, 1, 0) > 0 && (p.revents & (POLLRDHUP | POLLHUP | POLLERR)))
		ereport(FATAL,
			(errcode(ERRCODE_CONNECTION_FAILURE), errmsg("connection to client lost")));
}

int wait_for(pgsocket fd, int events, int64 until, const char *name)
{
	int64 left = until - wait_now();
	int rc;

	if (left < 0)
		left = 0;
	if (left > WAIT_SLICE_MS)
		left = WAIT_SLICE_MS;
	if (fd == PGINVALID_SOCKET)
		events = 0;
	rc = compat_wait(fd, events | WL_LATCH_SET | WL_TIMEOUT, (long)left, name);
	if (rc & WL_LATCH_SET)
		ResetLatch(compat_latch);
	CHECK_FOR_INTERRUPTS();
	check_client();
	nodes_look();
	return rc & events;
}
