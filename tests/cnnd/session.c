// SPDX-License-Identifier: MIT
/*
 * session.c: connections: HELLO and versions, rights by user id, deadlines, limits on their number,
 * a client that does not read.
 */
#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <poll.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "lab.h"

#define NOBODY 65534

static struct lab lab;

static struct ctl_msg hello(uint16_t low, uint16_t high, const char *role, const char *database)
{
	struct ctl_msg m = {.type = CTL_HELLO};

	m.u.hello.version_min = low;
	m.u.hello.version_max = high;
	m.u.hello.client = ctl_str("test", 4);
	m.u.hello.role = ctl_str(role, strlen(role));
	m.u.hello.database = ctl_str(database, strlen(database));
	return m;
}

/* True when the daemon closes within the time; frames that come before are dropped. */
static bool closed_within(struct ctl_conn *conn, double seconds)
{
	double until = lab_now() + seconds;
	struct pollfd p = {ctl_conn_fd(conn), POLLIN, 0};
	struct ctl_msg m;

	while (lab_now() < until) {
		int rc = ctl_recv(conn, &m, NULL, NULL, NULL);

		if (rc < 0)
			return true;
		if (!rc)
			poll(&p, 1, 50);
	}
	return false;
}

static void refused(struct ctl_msg m, const char *piece, const char *what)
{
	struct ctl_conn *conn = lab_connect_raw(&lab);
	struct err err = {0};

	ok(ctl_call(conn, &m, &m, 5000, &err) < 0, "%s is refused", what);
	is(err.kind, ERR_PROTOCOL, "  of kind protocol");
	like(err.message, piece, "  with the reason");
	ok(closed_within(conn, 2), "  and the connection closed");
	ctl_conn_free(conn);
}

static void test_hello(void)
{
	struct ctl_msg m = hello(1, CTL_VERSION, "alice", "lab"), status = {.type = CTL_STATUS};
	struct ctl_conn *conn = lab_connect_raw(&lab);
	struct err err = {0};
	uint8_t uuid[CTL_ID], none[CTL_ID] = {0};

	ok(!ctl_call(conn, &m, &m, 5000, &err) && m.type == CTL_HELLO_OK, "HELLO");
	is(m.u.hello_ok.version, CTL_VERSION, "  the version both speak");
	is(m.u.hello_ok.pid, lab.pid, "  the daemon's process");
	ok(m.u.hello_ok.build.n > 5 && !memcmp(m.u.hello_ok.build.p, "cnnd ", 5), "  its build");
	ok(m.u.hello_ok.ring.n > 5 && !memcmp(m.u.hello_ok.ring.p, "memfd", 5), "  its ring");
	memcpy(uuid, m.u.hello_ok.uuid, CTL_ID);
	ok(memcmp(uuid, none, CTL_ID), "  its uuid");
	m = hello(1, CTL_VERSION, "alice", "lab");
	ok(ctl_call(conn, &m, &m, 5000, &err) < 0 && closed_within(conn, 2),
	   "a second HELLO ends the connection: %s", err.message);
	ctl_conn_free(conn);
	m = hello(1, 99, "", "");
	conn = lab_connect_raw(&lab);
	ok(!ctl_call(conn, &m, &m, 5000, &err) && m.u.hello_ok.version == CTL_VERSION,
	   "a newer client that still speaks our version");
	is(memcmp(uuid, m.u.hello_ok.uuid, CTL_ID), 0, "  the same uuid");
	ctl_conn_free(conn);
	refused(hello(CTL_VERSION + 1, 99, "a", "b"), "versions 2 to 99", "a client too new");
	refused(hello(3, 1, "a", "b"), "versions 3 to 1", "a range the wrong way round");
	refused(status, "STATUS before HELLO", "a request before HELLO");
	m = hello(1, 1, "a", "b");
	m.u.hello.role = ctl_str("al\0ce", 5);
	refused(m, "malformed name", "a role with a NUL");
	m.type = CTL_HELLO_OK;
	memset(&m.u, 0, sizeof(m.u));
	refused(m, "HELLO_OK before HELLO", "an answer as a request");
}

/* ---- deadlines: several at once, since each takes seconds ---- */

static void test_deadlines(void)
{
	struct ctl_conn *silent = lab_connect_raw(&lab), *part = lab_connect(&lab, "alice"),
			*quiet = lab_connect(&lab, "alice"), *slow = lab_connect(&lab, "alice");
	struct ctl_msg m = {.type = CTL_STATUS};
	struct err err = {0};
	double from = lab_now();
	uint8_t frame[CTL_HEADER];
	uint64_t sent = 0;
	uint64_t rss;

	if (ctl_encode(&m, frame, sizeof(frame)) != CTL_HEADER ||
	    write(ctl_conn_fd(part), frame, 7) != 7)
		BAIL("cannot write a part of a frame");
	/* asks and never reads: more answers than a socket holds; a daemon that stood still for 2 s has
	 * stopped reading, one that is only slow on a busy machine has not */
	fcntl(ctl_conn_fd(slow), F_SETFL, O_NONBLOCK);
	for (int tries = 0; tries < 4000; tries++) {
		ssize_t n = write(ctl_conn_fd(slow), frame, sizeof(frame));

		if (n == (ssize_t)sizeof(frame)) {
			sent++;
			tries = 0;
		} else {
			usleep(500);
		}
		if (sent > 2000000)
			break;
	}
	rss = lab_rss(&lab);
	ok(sent < 2000000,
	   "a client that asks and does not read is not read from: after %llu requests",
	   (unsigned long long)sent);
	ok(rss < 32u << 20 || LAB_SANITIZER, "  and takes no memory: RSS %llu MB",
	   (unsigned long long)(rss >> 20));
	is(lab_jobs(&lab), 0, "  others are served");
	ok(closed_within(silent, 8), "no HELLO: closed");
	ok(lab_now() - from > 4.5, "  after 5 s, not before (%.1f s)", lab_now() - from);
	ok(closed_within(part, 3), "a part of a frame: closed, too");
	ok(lab_logged(&lab, "no HELLO in time", 1) &&
		   lab_logged(&lab, "begun and not completed", 1),
	   "  both are logged");
	ok(lab_logged(&lab, "does not read what it has asked for", 12),
	   "the one that does not read: closed");
	ok(lab_now() - from > 9, "  after 10 s (%.1f s)", lab_now() - from);
	ok(!ctl_call(quiet, &m, &m, 5000, &err) && m.type == CTL_DONE,
	   "one that was silent between frames for all that time goes on");
	ctl_conn_free(silent);
	ctl_conn_free(part);
	ctl_conn_free(quiet);
	ctl_conn_free(slow);
}

/* ---- numbers ---- */

static int raw_socket(void)
{
	struct sockaddr_un a = {.sun_family = AF_UNIX};
	int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);

	strcpy(a.sun_path, lab.socket);
	if (fd >= 0 && connect(fd, (struct sockaddr *)&a, sizeof(a))) {
		close(fd);
		fd = -1;
	}
	return fd;
}

static void test_many(void)
{
	struct rlimit r = {2048, 2048};
	static int fds[1000];
	struct ctl_conn *conn = NULL;
	struct err err = {0};
	double from = lab_now();
	int n = 0;

	if (getrlimit(RLIMIT_NOFILE, &r) || (r.rlim_cur = r.rlim_max, setrlimit(RLIMIT_NOFILE, &r)))
		BAIL("cannot raise the number of files");
	for (int i = 0; i < 1000; i++) {
		fds[i] = raw_socket();
		n += fds[i] >= 0;
	}
	is(n, 1000, "1,000 connections that say nothing");
	ok(ctl_open(lab.socket, (unsigned int)-1, "test", "alice", &conn, &err) < 0 &&
		   err.kind == ERR_LIMIT,
	   "one more is refused");
	like(err.message, "max_connections_per_uid = 256", "  with limit and value");
	while (ctl_open(lab.socket, (unsigned int)-1, "test", "alice", &conn, &err) &&
	       lab_now() < from + 10)
		lab_sleep(.05);
	ok(conn, "after their 5 s there is room again (%.1f s)", lab_now() - from);
	ctl_conn_free(conn);
	for (int i = 0; i < 1000; i++)
		close(fds[i]);
	is(lab_jobs(&lab), 0, "the daemon is well");
}

/* ---- rights by user id ---- */

/* Runs as another user in a process of its own; true when check does. */
static bool as_user(uid_t uid, bool (*check)(void))
{
	int status;
	pid_t pid;

	fflush(stdout);
	pid = fork();
	if (!pid) {
		if (setgroups(0, NULL) || setgid(NOBODY) || setuid(uid))
			_exit(2);
		_exit(check() ? 0 : 1);
	}
	waitpid(pid, &status, 0);
	return WIFEXITED(status) && !WEXITSTATUS(status);
}

static bool cannot_begin(void)
{
	struct lab_job job;

	lab_job_init(&job, &lab, "alice", CTL_TRAIN);
	return lab_begin(&job, lab_spec("")) < 0 && job.err.kind == ERR_RIGHTS &&
	       strstr(job.err.message, "not among database_uids");
}

static bool cannot_drain(void)
{
	struct lab_job job;
	struct ctl_msg m = {.type = CTL_DRAIN};

	lab_job_init(&job, &lab, "root", CTL_TRAIN);
	m.u.drain.on = 1;
	return lab_call(&job, &m, CTL_OK) < 0 && job.err.kind == ERR_RIGHTS;
}

/* Sees that the device is busy and how much memory is held, not whose it is. */
static bool sees_busy(void)
{
	struct ctl_conn *conn = lab_connect(&lab, "alice");
	struct ctl_msg m = {.type = CTL_STATUS};
	const struct ctl_job *e = &m.u.entry;
	const uint8_t none[CTL_ID] = {0};
	struct err err;

	return !ctl_call(conn, &m, &m, 5000, &err) && m.type == CTL_JOB && !e->own && !e->role.n &&
	       !e->model.n && !e->database.n && !memcmp(e->id, none, CTL_ID) && e->memory &&
	       e->device.n && e->state.n == 4 && !memcmp(e->state.p, "busy", 4) && !e->rows;
}

static bool sees_devices(void)
{
	return lab_held(&lab) != UINT64_MAX;
}

static void test_rights(void)
{
	struct lab_job job;
	struct ctl_msg m = {.type = CTL_DRAIN};
	struct ctl_conn *admin = NULL;
	struct err err = {0};

	lab_job_init(&job, &lab, "alice", CTL_TRAIN);
	if (lab_begin(&job, lab_spec("")) != 1 || lab_watch(&job))
		BAIL("%s", job.err.message);
	if (geteuid() == 0) {
		ok(as_user(NOBODY, cannot_begin), "another user may not begin a job");
		ok(as_user(NOBODY, cannot_drain), "  nor drain");
		ok(as_user(NOBODY, sees_busy), "  and sees only that the device is busy");
		ok(as_user(NOBODY, sees_devices), "  and the device's memory");
	} else {
		printf("# not root: what other users may do is not tried\n");
	}
	m.u.drain.on = 1;
	ok(lab_call(&job, &m, CTL_OK) < 0 && job.err.kind == ERR_RIGHTS,
	   "a role of a database may not drain, whatever user its server runs as");
	if (ctl_open(lab.socket, geteuid(), "cnnctl", "root", &admin, &err))
		BAIL("%s", err.message);
	m = (struct ctl_msg){.type = CTL_STATUS};
	ok(!ctl_call(admin, &m, &m, 5000, &err) && m.type == CTL_JOB && m.u.entry.own &&
		   m.u.entry.role.n == 5 && !memcmp(m.u.entry.role.p, "alice", 5),
	   "an administrator sees all of every job");
	ok(!ctl_wait(admin, &m, 5000, &err) && m.type == CTL_DONE, "  and the list's end");
	m = (struct ctl_msg){.type = CTL_DRAIN};
	m.u.drain.on = 1;
	ok(!ctl_call(admin, &m, &m, 5000, &err) && m.type == CTL_OK, "an administrator may drain");
	lab_end(&job);
	ok(lab_begin(&job, lab_spec("")) < 0 && job.err.kind == ERR_DRAINING, "  no new job: %s",
	   job.err.message);
	m = (struct ctl_msg){.type = CTL_DRAIN};
	ok(!ctl_call(admin, &m, &m, 5000, &err), "undrained");
	is(lab_begin(&job, lab_spec("")), 1, "  jobs again");
	{
		struct lab_job other = job;

		other.role = "bob";
		ok(lab_begin(&other, lab_spec("")) < 0 && job.err.kind != ERR_RIGHTS &&
			   other.err.kind == ERR_RIGHTS,
		   "a job for another role than the connection's is refused");
	}
	lab_end(&job);
	lab_job_free(&job);
	ctl_conn_free(admin);
}

/* As root: a socket that other users can reach, too. */
static void open_lab(void)
{
	FILE *f;

	lab_open(&lab, "");
	if (geteuid())
		return;
	lab_stop(&lab, SIGTERM, 10);
	chmod(lab.dir, 0755);
	f = fopen(lab.conf, "w");
	fprintf(f,
		"socket = %s\nsocket_group = %d\nstate_dir = %s/state\ndatabase_uids = 0\n"
		"stop_timeout = 5\n",
		lab.socket, NOBODY, lab.dir);
	fclose(f);
	lab_spawn(&lab);
	if (!lab_wait_ready(&lab, 20))
		BAIL("cnnd does not start");
}

int main(void)
{
	open_lab();
	test_hello();
	test_rights();
	test_many();
	test_deadlines();
	lab_close(&lab);
	return done();
}
