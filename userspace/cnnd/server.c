// SPDX-License-Identifier: MIT
/* server.c: see server.h. */
#include "server.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include "control.h"
#include "log.h"
#include "session.h"
#include "status.h"

#define EVENTS 64
#define ACCEPTS 64 /* of one turn: other clients' turn comes, too */
#define TURN_MS 1000

static volatile sig_atomic_t got_term, got_hup, got_usr1;

static void on_signal(int sig)
{
	if (sig == SIGHUP)
		got_hup = 1;
	else if (sig == SIGUSR1)
		got_usr1 = 1;
	else
		got_term = 1;
}

static void handled(sigset_t *set)
{
	sigemptyset(set);
	sigaddset(set, SIGTERM);
	sigaddset(set, SIGINT);
	sigaddset(set, SIGHUP);
	sigaddset(set, SIGUSR1);
}

void server_signals(void)
{
	struct sigaction a;
	sigset_t set;

	memset(&a, 0, sizeof(a));
	a.sa_handler = on_signal;
	handled(&set);
	sigprocmask(SIG_BLOCK, &set, NULL);
	sigaction(SIGTERM, &a, NULL);
	sigaction(SIGINT, &a, NULL);
	sigaction(SIGHUP, &a, NULL);
	sigaction(SIGUSR1, &a, NULL);
	a.sa_handler = SIG_IGN;
	sigaction(SIGPIPE, &a, NULL);
}

void daemon_wake(struct daemon *d)
{
	uint64_t one = 1;

	(void)!write(d->wake_fd, &one, sizeof(one));
}

int server_open(struct daemon *d, struct err *err)
{
	struct epoll_event listener = {.events = EPOLLIN, .data.ptr = &d->listen_fd},
			   waker = {.events = EPOLLIN, .data.ptr = &d->wake_fd};

	d->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
	d->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	d->spare_fd = open("/dev/null", O_RDONLY | O_CLOEXEC);
	if (d->epoll_fd < 0 || d->wake_fd < 0 ||
	    epoll_ctl(d->epoll_fd, EPOLL_CTL_ADD, d->listen_fd, &listener) ||
	    epoll_ctl(d->epoll_fd, EPOLL_CTL_ADD, d->wake_fd, &waker))
		return err_set(err, ERR_LIMIT, -errno, "epoll: %s", strerror(errno));
	return 0;
}

/* Out of descriptors: the spare one takes the connection, so that it can be closed, not left to
 * wake the loop for ever. */
static void turn_away(struct daemon *d)
{
	int fd;

	log_error(LOG_CODE("limit"), "out of file descriptors; a connection is refused");
	if (d->spare_fd >= 0)
		close(d->spare_fd);
	fd = accept4(d->listen_fd, NULL, NULL, SOCK_CLOEXEC);
	if (fd >= 0)
		close(fd);
	d->spare_fd = open("/dev/null", O_RDONLY | O_CLOEXEC);
}

static void accept_all(struct daemon *d)
{
	for (int i = 0; i < ACCEPTS; i++) {
		int fd = accept4(d->listen_fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);

		if (fd >= 0) {
			session_accept(d, fd);
			continue;
		}
		if (errno == EMFILE || errno == ENFILE)
			turn_away(d);
		else if (errno != EINTR && errno != ECONNABORTED)
			return;
	}
}

/* ---- signals ---- */

static void report_fault(void *context, const char *file, unsigned int line, const char *text)
{
	if (line)
		log_error(LOG_CODE("conf"), "%s:%u: %s", file, line, text);
	else
		log_error(LOG_CODE("conf"), "%s: %s", file, text);
}

static void report_kept(void *context, const char *file, unsigned int line, const char *text)
{
	log_warn(LOG_CODE("conf"), "%s: %s", file, text);
}

static void reload(struct daemon *d)
{
	struct conf fresh;

	if (!d->conf_file) {
		log_info(LOG_CODE("conf"), "no configuration file to read again");
		return;
	}
	if (conf_read(d->conf_file, &fresh, report_fault, NULL)) {
		log_error(LOG_CODE("conf"), "the old configuration stays as it was");
		return;
	}
	pthread_mutex_lock(&d->lock);
	conf_reload(&d->conf, &fresh, d->conf_file, report_kept, NULL);
	daemon_apply_limits(d);
	pthread_mutex_unlock(&d->lock);
	log_info(LOG_CODE("conf"), "%s is read again", d->conf_file);
}

static void act_on_signals(struct daemon *d)
{
	if (got_hup) {
		got_hup = 0;
		reload(d);
	}
	if (got_usr1) {
		got_usr1 = 0;
		status_log(d);
	}
	if (got_term) {
		got_term = 0;
		control_stop(d);
	}
}

/* ---- loop ---- */

static void one_event(struct daemon *d, const struct epoll_event *e)
{
	uint64_t count;

	if (e->data.ptr == &d->listen_fd)
		accept_all(d);
	else if (e->data.ptr == &d->wake_fd)
		(void)!read(d->wake_fd, &count, sizeof(count));
	else
		session_event(e->data.ptr, e->events);
}

void server_loop(struct daemon *d)
{
	struct epoll_event events[EVENTS];
	sigset_t set, open_set;

	handled(&set);
	pthread_sigmask(SIG_SETMASK, NULL, &open_set);
	for (int sig = 1; sig < NSIG; sig++)
		if (sigismember(&set, sig) == 1)
			sigdelset(&open_set, sig);
	while (!atomic_load(&d->quit)) {
		int n = epoll_pwait(d->epoll_fd, events, EVENTS, TURN_MS, &open_set);

		atomic_store(&d->tick, now_ms());
		for (int i = 0; i < n; i++)
			one_event(d, &events[i]);
		session_resume_all(d);
		act_on_signals(d);
	}
}

void server_close(struct daemon *d)
{
	struct session *s;

	for (;;) {
		pthread_mutex_lock(&d->lock);
		s = LIST_FIRST(&d->sessions);
		pthread_mutex_unlock(&d->lock);
		if (!s)
			break;
		session_close(s, "the daemon ends");
	}
	session_resume_all(d);
	if (d->spare_fd >= 0)
		close(d->spare_fd);
}
