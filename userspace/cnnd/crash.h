/* SPDX-License-Identifier: MIT */
/*
 * crash.h: when this process dies of a fatal signal, its clients shall learn it at once, not after
 * the kernel has taken gigabytes of memory apart: the handler shuts their sockets, then lets the
 * signal do what it would have done.
 */
#ifndef CNND_CRASH_H
#define CNND_CRASH_H

/* Installs the handler; not in builds with a sanitizer, which brings its own. */
void crash_install(void);
/* Main thread. Descriptors past a fixed number are left out. */
void crash_watch(int fd);
void crash_forget(int fd);

#endif
