// SPDX-License-Identifier: MIT
/* sandbox.c: see sandbox.h. The filter is kill by default: a call outside the list is an attack. */
#include "sandbox.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define SANITIZED 1
#else
#define SANITIZED 0
#endif

#if defined(__x86_64__)
#define ARCH AUDIT_ARCH_X86_64
#elif defined(__aarch64__)
#define ARCH AUDIT_ARCH_AARCH64
#elif defined(__powerpc64__) && __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
#define ARCH AUDIT_ARCH_PPC64LE
#endif

#define NEAR_ALL 65536 /* descriptors closed one by one where close_range is missing */

static void close_between(unsigned int first, unsigned int last)
{
	if (first > last)
		return;
#ifdef SYS_close_range
	if (!syscall(SYS_close_range, first, last, 0))
		return;
#endif
	for (unsigned int fd = first; fd <= last && fd < NEAR_ALL; fd++)
		close((int)fd);
}

static int compare(const void *a, const void *b)
{
	return (*(const int *)a > *(const int *)b) - (*(const int *)a < *(const int *)b);
}

void sandbox_close_all(int *keep, size_t n)
{
	unsigned int next = 0;

	if (SANITIZED) {
		close_between(0, 1);
		next = 3;
	}
	if (n)
		qsort(keep, n, sizeof(*keep), compare);
	for (size_t i = 0; i < n; i++) {
		if ((unsigned int)keep[i] > next)
			close_between(next, (unsigned int)keep[i] - 1);
		if ((unsigned int)keep[i] >= next)
			next = (unsigned int)keep[i] + 1;
	}
	close_between(next, ~0u);
}

/* Bytes mapped now: the limit counts from here (sanitizers map terabytes at start). */
static uint64_t mapped_bytes(void)
{
	char text[64];
	unsigned long long pages = 0;
	int fd = open("/proc/self/statm", O_RDONLY | O_CLOEXEC);
	ssize_t n;

	if (fd < 0)
		return 0;
	n = read(fd, text, sizeof(text) - 1);
	close(fd);
	if (n <= 0)
		return 0;
	text[n] = '\0';
	if (sscanf(text, "%llu", &pages) != 1)
		return 0;
	return pages * (uint64_t)sysconf(_SC_PAGESIZE);
}

static int set_limits(uint64_t memory)
{
	static const int none[] = {RLIMIT_NOFILE, RLIMIT_FSIZE, RLIMIT_CORE, RLIMIT_MEMLOCK,
				   RLIMIT_MSGQUEUE};
	uint64_t mapped = mapped_bytes();
	struct rlimit limit = {mapped + memory, mapped + memory};

	if (mapped && setrlimit(RLIMIT_AS, &limit))
		return -errno;
	for (size_t i = 0; i < sizeof(none) / sizeof(none[0]); i++) {
		if (SANITIZED && none[i] == RLIMIT_FSIZE)
			continue; /* a report may go to a file */
		limit = (struct rlimit){0, 0};
		if (setrlimit((__rlimit_resource_t)none[i], &limit))
			return -errno;
	}
	return 0;
}

#ifdef ARCH
static const int allowed[] = {
	SYS_futex,   SYS_exit,	 SYS_exit_group,  SYS_munmap,	    SYS_mremap,
	SYS_madvise, SYS_brk,	 SYS_sched_yield, SYS_rt_sigreturn, SYS_restart_syscall,
#if SANITIZED /* to write a report */
	SYS_write,   SYS_getpid, SYS_gettid,	  SYS_sigaltstack,  SYS_rt_sigprocmask,
#endif
};
/* Allowed as long as nothing becomes executable. */
static const int no_exec[] = {SYS_mmap, SYS_mprotect};

#define N_ALLOWED (sizeof(allowed) / sizeof(allowed[0]))
#define N_NO_EXEC (sizeof(no_exec) / sizeof(no_exec[0]))
#define LOAD(field) BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, field))
#define RETURN(action) BPF_STMT(BPF_RET | BPF_K, action)

/* The low half of a system call's argument (little-endian). */
#define LOW_ARGUMENT(i) args[i]

static int set_filter(void)
{
	struct sock_filter program[16 + 2 * N_ALLOWED + 5 * N_NO_EXEC];
	struct sock_fprog filter = {0, program};
	unsigned short n = 0;

	program[n++] = (struct sock_filter)LOAD(arch);
	program[n++] = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, ARCH, 1, 0);
	program[n++] = (struct sock_filter)RETURN(SECCOMP_RET_KILL_PROCESS);
	program[n++] = (struct sock_filter)LOAD(nr);
	/* a number of the x32 table is in none of the lists, and so is not allowed */
	for (size_t i = 0; i < N_ALLOWED; i++) {
		program[n++] = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K,
							    (unsigned int)allowed[i], 0, 1);
		program[n++] = (struct sock_filter)RETURN(SECCOMP_RET_ALLOW);
	}
	for (size_t i = 0; i < N_NO_EXEC; i++) {
		program[n++] = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K,
							    (unsigned int)no_exec[i], 0, 4);
		program[n++] = (struct sock_filter)LOAD(LOW_ARGUMENT(2));
		program[n++] =
			(struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JSET | BPF_K, PROT_EXEC, 1, 0);
		program[n++] = (struct sock_filter)RETURN(SECCOMP_RET_ALLOW);
		program[n++] = (struct sock_filter)RETURN(SECCOMP_RET_KILL_PROCESS);
	}
	program[n++] = (struct sock_filter)RETURN(SECCOMP_RET_KILL_PROCESS);
	filter.len = n;
	return prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter) ? -errno : 0;
}
#else
static int set_filter(void)
{
	return -ENOSYS;
}
#endif

int sandbox_enter(uint64_t memory, bool filter)
{
	int rc;

	if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0))
		return -errno;
	prctl(PR_SET_DUMPABLE, 0, 0, 0, 0);
	rc = set_limits(memory);
	if (rc)
		return rc;
	sandbox_close_all(NULL, 0);
	return filter ? set_filter() : 0;
}
