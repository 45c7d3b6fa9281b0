// SPDX-License-Identifier: MIT
/* crash.c: see crash.h. */
#include "crash.h"

#include <signal.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/socket.h>

#define FDS 1024

/* A signal handler has no argument to find this by. Free places hold 0. */
static atomic_int watched[FDS];

void crash_watch(int fd)
{
	for (int i = 0; i < FDS; i++) {
		int free_place = 0;

		if (atomic_compare_exchange_strong(&watched[i], &free_place, fd))
			return;
	}
}

void crash_forget(int fd)
{
	for (int i = 0; i < FDS; i++) {
		int mine = fd;

		if (atomic_compare_exchange_strong(&watched[i], &mine, 0))
			return;
	}
}

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
static void on_fatal(int sig)
{
	for (int i = 0; i < FDS; i++) {
		int fd = atomic_load(&watched[i]);

		if (fd > 0)
			shutdown(fd, SHUT_RDWR);
	}
	/* the action is the default again (SA_RESETHAND): this ends the process */
	raise(sig);
}

void crash_install(void)
{
	static const int fatal[] = {SIGSEGV, SIGBUS, SIGILL, SIGFPE, SIGABRT};
	struct sigaction a;

	memset(&a, 0, sizeof(a));
	a.sa_handler = on_fatal;
	a.sa_flags = SA_RESETHAND | SA_NODEFER;
	for (unsigned int i = 0; i < sizeof(fatal) / sizeof(fatal[0]); i++)
		sigaction(fatal[i], &a, NULL);
}
#else
void crash_install(void)
{
}
#endif
