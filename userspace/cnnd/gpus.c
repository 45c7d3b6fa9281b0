// SPDX-License-Identifier: MIT
/* gpus.c: see gpus.h. */
#include "gpus.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define REAP_MS 1000 /* a killed child may hang in the driver: it is left to init then */

/* What the child writes; less than a pipe takes at once. */
struct answer {
	int rc;
	struct backend_error error;
	struct gpus gpus;
};

static int64_t clock_ms(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (int64_t)t.tv_sec * 1000 + t.tv_nsec / 1000000;
}

static void ask(int fd)
{
	static const int usual[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT, SIGTERM, SIGINT};
	const struct rlimit none = {0, 0};
	struct answer a = {0};
	sigset_t set;

	prctl(PR_SET_PDEATHSIG, SIGKILL);
	setrlimit(RLIMIT_CORE, &none);
	for (size_t i = 0; i < sizeof(usual) / sizeof(*usual); i++)
		signal(usual[i], SIG_DFL);
	sigemptyset(&set);
	sigprocmask(SIG_SETMASK, &set, NULL);
	a.rc = backend_devices("cuda", a.gpus.gpu, GPU_LIST_MAX, &a.gpus.n, &a.error);
	for (size_t at = 0; at < sizeof(a);) {
		ssize_t n = write(fd, (const char *)&a + at, sizeof(a) - at);

		if (n <= 0)
			_exit(1);
		at += (size_t)n;
	}
	_exit(0);
}

/* Bytes that came until the end or the deadline; *late: the deadline. */
static size_t listen_to(int fd, int64_t until, struct answer *a, bool *late)
{
	struct pollfd p = {fd, POLLIN, 0};
	size_t at = 0;

	*late = false;
	while (at < sizeof(*a)) {
		int64_t left = until - clock_ms();
		ssize_t n;
		int rc;

		if (left <= 0) {
			*late = true;
			break;
		}
		rc = poll(&p, 1, (int)left);
		if (rc < 0 && errno != EINTR)
			break;
		if (rc <= 0)
			continue;
		n = read(fd, (char *)a + at, sizeof(*a) - at);
		if (n < 0 && errno == EINTR)
			continue;
		if (n <= 0)
			break;
		at += (size_t)n;
	}
	return at;
}

/* The wait status; -1: it cannot be had. */
static int reap(pid_t pid)
{
	int64_t until = clock_ms() + REAP_MS;
	const struct timespec nap = {0, 2000000};
	int status;
	pid_t got;

	do {
		got = waitpid(pid, &status, WNOHANG);
		if (got == pid)
			return status;
		nanosleep(&nap, NULL);
	} while ((!got || errno == EINTR) && clock_ms() < until);
	return -1;
}

static int judge(const struct answer *a, size_t bytes, int status, struct gpus *out,
		 struct err *err)
{
	if (bytes < sizeof(*a) && status >= 0 && WIFSIGNALED(status))
		return err_set(err, ERR_INTERNAL, -EIO,
			       "looking for GPUs: the CUDA driver or a library crashed (%s)",
			       strsignal(WTERMSIG(status)));
	if (bytes < sizeof(*a))
		return err_set(err, ERR_INTERNAL, -EIO,
			       "looking for GPUs: the child that asks ended without an answer");
	if (a->rc)
		return err_set(err, a->rc == -ENOENT ? ERR_LIMIT : ERR_INTERNAL, a->rc, "%.500s",
			       *a->error.message ? a->error.message : strerror(-a->rc));
	*out = a->gpus;
	if (out->n > GPU_LIST_MAX)
		out->n = GPU_LIST_MAX;
	for (uint32_t i = 0; i < out->n; i++)
		out->gpu[i].name[sizeof(out->gpu[i].name) - 1] = '\0';
	return 0;
}

int gpus_find(unsigned int deadline_ms, struct gpus *out, struct err *err)
{
	int64_t until = clock_ms() + deadline_ms;
	struct answer a = {0};
	int fds[2], status;
	size_t bytes;
	bool late;
	pid_t pid;

	memset(out, 0, sizeof(*out));
	if (pipe2(fds, O_CLOEXEC))
		return err_set(err, ERR_LIMIT, -errno, "looking for GPUs: %s", strerror(errno));
	pid = fork();
	if (!pid) {
		close(fds[0]);
		ask(fds[1]);
	}
	close(fds[1]);
	if (pid < 0) {
		close(fds[0]);
		return err_set(err, ERR_LIMIT, -errno, "looking for GPUs: %s", strerror(errno));
	}
	bytes = listen_to(fds[0], until, &a, &late);
	close(fds[0]);
	if (late)
		kill(pid, SIGKILL);
	status = reap(pid);
	if (late)
		return err_set(err, ERR_INTERNAL, -ETIMEDOUT,
			       "looking for GPUs: the CUDA driver gave no answer for %u ms",
			       deadline_ms);
	return judge(&a, bytes, status, out, err);
}
