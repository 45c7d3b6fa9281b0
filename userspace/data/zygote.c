// SPDX-License-Identifier: MIT
/* zygote.c: see zygote.h. */
#include "zygote.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "sandbox.h"

#define ANSWER_MS 10000 /* a fork takes a millisecond; more than this is a dead machine */
#define STOP_MS 5000

enum zygote_what { ZYGOTE_END, ZYGOTE_BEGIN };

struct zygote_order {
	uint32_t what, worker;
};

static void bury(const struct zygote_setup *z)
{
	int status;
	pid_t pid;

	while ((pid = waitpid(-1, &status, WNOHANG)) > 0) {
		for (uint32_t i = 0; i < z->workers; i++) {
			struct zygote_status *s = &z->status[i];

			if (atomic_load(&s->pid) != pid)
				continue;
			atomic_store(&s->pid, 0);
			atomic_store(&s->wait_status, status);
			atomic_store(&s->exited, atomic_load(&s->started));
			worker_bell_ring(z->worker.bell);
		}
	}
}

static void end_worker(const struct zygote_setup *z, uint32_t i)
{
	pid_t pid = atomic_load(&z->status[i].pid);
	int status;

	if (!pid)
		return;
	kill(pid, SIGKILL);
	while (waitpid(pid, &status, 0) < 0 && errno == EINTR)
		;
	atomic_store(&z->status[i].pid, 0);
}

static void __attribute__((noreturn)) child(const struct zygote_setup *z, uint32_t i, pid_t parent)
{
	struct worker_setup setup = z->worker;
	sigset_t none;

	prctl(PR_SET_PDEATHSIG, SIGKILL);
	if (getppid() != parent)
		_exit(ECHILD);
	sigemptyset(&none);
	sigprocmask(SIG_SETMASK, &none, NULL);
	munmap(z->status, z->workers * sizeof(*z->status));
	setup.region = mmap(NULL, worker_region(&setup.sizes), PROT_READ | PROT_WRITE,
			    MAP_SHARED | MAP_NORESERVE, z->fd[i], 0);
	if (setup.region == MAP_FAILED)
		_exit(ENOMEM);
	worker_main(&setup);
}

static int begin_worker(const struct zygote_setup *z, uint32_t i)
{
	pid_t parent = getpid(), pid;

	atomic_fetch_add(&z->status[i].started, 1);
	pid = fork();
	if (!pid)
		child(z, i, parent);
	if (pid < 0)
		return -errno;
	atomic_store(&z->status[i].pid, pid);
	return 0;
}

/* Signals meant for cnnd also reach its process group: a zygote ends only when its socket closes.
 */
static int quiet_signals(void)
{
	static const int ignored[] = {SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGPIPE, SIGUSR1, SIGUSR2};
	static const int defaults[] = {SIGSEGV, SIGBUS, SIGILL, SIGFPE, SIGABRT, SIGSYS, SIGCHLD};
	sigset_t mask;

	for (size_t i = 0; i < sizeof(ignored) / sizeof(ignored[0]); i++)
		signal(ignored[i], SIG_IGN);
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
	for (size_t i = 0; i < sizeof(defaults) / sizeof(defaults[0]); i++)
		signal(defaults[i], SIG_DFL);
#endif
	(void)defaults;
	sigemptyset(&mask);
	sigaddset(&mask, SIGCHLD);
	sigprocmask(SIG_SETMASK, &mask, NULL);
	return signalfd(-1, &mask, SFD_CLOEXEC | SFD_NONBLOCK);
}

static void __attribute__((noreturn)) zygote_main(const struct zygote_setup *z, int socket)
{
	int *keep = malloc((z->workers + 2) * sizeof(*keep));
	struct pollfd p[2] = {{.fd = socket, .events = POLLIN}, {.events = POLLIN}};
	struct signalfd_siginfo info;

	setsid();
	prctl(PR_SET_NAME, "cnnd-decode");
	p[1].fd = quiet_signals();
	if (!keep || p[1].fd < 0)
		_exit(1);
	memcpy(keep, z->fd, z->workers * sizeof(*keep));
	keep[z->workers] = socket;
	keep[z->workers + 1] = p[1].fd;
	sandbox_close_all(keep, z->workers + 2);
	for (;;) {
		struct zygote_order order;
		int32_t answer = 0;
		ssize_t n;

		if (poll(p, 2, -1) < 0) {
			if (errno == EINTR)
				continue;
			break;
		}
		while (p[1].revents && read(p[1].fd, &info, sizeof(info)) > 0)
			;
		bury(z);
		if (!p[0].revents)
			continue;
		n = recv(socket, &order, sizeof(order), 0);
		if (n != sizeof(order) || order.worker >= z->workers)
			break; /* closed: cnnd has ended */
		end_worker(z, order.worker);
		if (order.what == ZYGOTE_BEGIN)
			answer = begin_worker(z, order.worker);
		if (send(socket, &answer, sizeof(answer), MSG_NOSIGNAL) != sizeof(answer))
			break;
	}
	for (uint32_t i = 0; i < z->workers; i++)
		end_worker(z, i);
	_exit(0);
}

int zygote_start(const struct zygote_setup *setup, struct zygote *out, struct err *err)
{
	int pair[2];
	pid_t pid;

	if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair))
		return err_set(err, ERR_INTERNAL, -errno, "decode helper: socketpair: %s",
			       strerror(errno));
	pid = fork();
	if (!pid) {
		close(pair[0]);
		zygote_main(setup, pair[1]);
	}
	close(pair[1]);
	if (pid < 0) {
		int code = errno;

		close(pair[0]);
		return err_set(err, ERR_LIMIT, -code, "decode helper: fork: %s", strerror(code));
	}
	*out = (struct zygote){pid, pair[0]};
	return 0;
}

static int ask(const struct zygote *z, uint32_t what, uint32_t worker)
{
	const struct zygote_order order = {what, worker};
	struct pollfd p = {.fd = z->socket, .events = POLLIN};
	int32_t answer;
	int n;

	if (send(z->socket, &order, sizeof(order), MSG_NOSIGNAL) != sizeof(order))
		return -EPIPE;
	do
		n = poll(&p, 1, ANSWER_MS);
	while (n < 0 && errno == EINTR);
	if (n == 0)
		return -ETIMEDOUT;
	if (recv(z->socket, &answer, sizeof(answer), MSG_DONTWAIT) != sizeof(answer))
		return -EPIPE;
	return answer;
}

int zygote_end(const struct zygote *z, uint32_t worker)
{
	return ask(z, ZYGOTE_END, worker);
}

int zygote_begin(const struct zygote *z, uint32_t worker)
{
	return ask(z, ZYGOTE_BEGIN, worker);
}

void zygote_stop(struct zygote *z)
{
	struct timespec pause = {0, 1000000};

	if (z->pid <= 0)
		return;
	close(z->socket);
	for (int ms = 0; ms < STOP_MS; ms++) {
		pid_t pid = waitpid(z->pid, NULL, WNOHANG);

		if (pid == z->pid || (pid < 0 && errno == ECHILD)) {
			z->pid = 0;
			return;
		}
		nanosleep(&pause, NULL);
	}
	kill(z->pid, SIGKILL); /* its workers follow it: PR_SET_PDEATHSIG */
	waitpid(z->pid, NULL, 0);
	z->pid = 0;
}
