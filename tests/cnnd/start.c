// SPDX-License-Identifier: MIT
/*
 * start.c: the process: options, start and stop, a second daemon, a stale socket, reload, the
 * background, what the service manager is told.
 */
#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "lab.h"

/* Runs cnnd with arguments; all output in out. Exit status. */
static int run(char *out, size_t capacity, const char *a, const char *b, const char *c)
{
	int fds[2], status;
	size_t n = 0;
	ssize_t k;
	pid_t pid;

	if (pipe(fds))
		BAIL("pipe");
	fflush(stdout);
	pid = fork();
	if (!pid) {
		dup2(fds[1], 1);
		dup2(fds[1], 2);
		close(fds[0]);
		close(fds[1]);
		execl(CNND_BIN, "cnnd", a, b, c, (char *)NULL);
		_exit(127);
	}
	close(fds[1]);
	while (n + 1 < capacity && (k = read(fds[0], out + n, capacity - 1 - n)) > 0)
		n += (size_t)k;
	out[n] = '\0';
	close(fds[0]);
	waitpid(pid, &status, 0);
	return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

static void test_options(struct lab *lab)
{
	char out[4096], bad[128];
	FILE *f;

	is(run(out, sizeof(out), "-V", NULL, NULL), 0, "-V");
	like(out, "cnnd " CNN_VERSION, "  tells the version");
	is(run(out, sizeof(out), "-h", NULL, NULL), 0, "-h");
	is(run(out, sizeof(out), "-x", NULL, NULL), 2, "an unknown option is wrong usage");
	is(run(out, sizeof(out), "-d", "what", NULL), 2, "an argument is wrong usage");
	is(run(out, sizeof(out), "-nf", lab->conf, NULL), 0, "-n finds the configuration good");
	like(out, "configuration OK", "  and says so");
	snprintf(bad, sizeof(bad), "%s/bad.conf", lab->dir);
	f = fopen(bad, "w");
	fputs("socket_group =\nsoket = /x\nring_bytes = 3M\n", f);
	fclose(f);
	is(run(out, sizeof(out), "-nf", bad, NULL), 1, "-n finds faults");
	like(out, "bad.conf:2: unknown key 'soket'", "  file, line, key");
	like(out, "bad.conf:3: ring_bytes = 3M: a power of two", "  all of them");
	is(run(out, sizeof(out), "-df", bad, NULL), 1, "and it does not start with them");
	is(run(out, sizeof(out), "-nf", "/nowhere/x.conf", NULL), 1, "a file that is not there");
	like(out, "/nowhere/x.conf: cannot open", "  is named");
}

static void test_start(struct lab *lab)
{
	struct stat st;
	char path[128];

	if (LAB_SANITIZER)
		ok(true, "started (%.3f s under a sanitizer)", lab->started);
	else
		ok(lab->started < 2, "the socket answers %.3f s after the start", lab->started);
	ok(!stat(lab->socket, &st) && S_ISSOCK(st.st_mode) && (st.st_mode & 07777) == 0660,
	   "the socket has mode 0660");
	is(st.st_gid, getegid(), "  and the process's own group");
	snprintf(path, sizeof(path), "%s/state/spill", lab->dir);
	ok(!stat(path, &st) && S_ISDIR(st.st_mode) && (st.st_mode & 07777) == 0700,
	   "the spill folder is made, mode 0700");
	ok(lab_logged(lab, "level=info code=start msg=\"cnnd " CNN_VERSION, 1),
	   "a line for the start");
}

static void test_second(struct lab *lab)
{
	char out[4096], lock[128];

	is(run(out, sizeof(out), "-df", lab->conf, NULL), 1,
	   "a second daemon on this path is refused");
	like(out, "another cnnd (process ", "  and told who is there");
	snprintf(lock, sizeof(lock), "%s.lock", lab->socket);
	unlink(lock);
	is(run(out, sizeof(out), "-df", lab->conf, NULL), 1,
	   "also when somebody removed the lock file");
	like(out, "listens on", "  by asking the socket");
	is(lab_jobs(lab), 0, "the first one goes on");
}

static void test_stale(struct lab *lab)
{
	struct stat st;
	char out[4096];
	FILE *f;

	is(WTERMSIG(lab_stop(lab, SIGKILL, 5)), SIGKILL, "killed with SIGKILL");
	ok(!stat(lab->socket, &st), "  its socket is left");
	lab_spawn(lab);
	ok(lab_wait_ready(lab, 10), "a new one replaces it");
	is(lab_stop(lab, SIGTERM, 5), 0, "stopped");
	f = fopen(lab->socket, "w");
	fputs("mine\n", f);
	fclose(f);
	is(run(out, sizeof(out), "-df", lab->conf, NULL), 1,
	   "a file that is no socket is not replaced");
	like(out, "is no socket", "  and named");
	ok(!stat(lab->socket, &st) && st.st_size == 5, "  and left alone");
	unlink(lab->socket);
	lab_spawn(lab);
	ok(lab_wait_ready(lab, 10), "started again");
}

static void test_reload(struct lab *lab)
{
	struct lab_job job;

	lab_configure(lab, "max_queue = 0\nwrong = 1\nmemory = 33M\n");
	kill(lab->pid, SIGHUP);
	ok(lab_logged(lab, "max_queue = 0: out of range", 3), "SIGHUP: a fault is logged");
	ok(lab_logged(lab, "unknown key 'wrong'", 1), "  every fault");
	ok(lab_logged(lab, "level=error code=conf", 1), "  as errors");
	ok(lab_logged(lab, "the old configuration stays", 1), "  and nothing is taken");
	lab_job_init(&job, lab, "alice", CTL_TRAIN);
	is(lab_begin(&job, lab_spec("")), 1, "  memory is as it was: a job is admitted");
	lab_end(&job);
	lab_configure(lab, "memory = 33M\ndevices = cpu:1\n");
	kill(lab->pid, SIGHUP);
	ok(lab_logged(lab, "devices has changed and takes effect at the next start", 3),
	   "a good file: restart keys are named");
	ok(lab_logged(lab, "is read again", 3), "  the rest is taken");
	ok(lab_begin(&job, lab_spec("")) < 0 && job.err.kind == ERR_LIMIT,
	   "  a job does not fit into 33 MB any more");
	like(job.err.message, "memory = 33 MB", "  named");
	lab_job_free(&job);
	lab_configure(lab, "");
	kill(lab->pid, SIGHUP);
	kill(lab->pid, SIGUSR1);
	ok(lab_logged(lab, "code=status", 3), "SIGUSR1: the status in the log");
	ok(lab_logged(lab, "code=history", 3), "  and the last jobs");
}

/* ---- the end ---- */

static void test_term_idle_job(struct lab *lab)
{
	struct lab_job job;
	struct agree_block block;
	double from = lab_now(), took;

	lab_job_init(&job, lab, "alice", CTL_TRAIN);
	if (lab_prepare(&job, lab_spec("\"epochs\": 3"), 300, &block) || lab_run(&job, 0, 1, NULL))
		BAIL("%s", job.err.message);
	agree_free(&block);
	from = lab_now();
	kill(lab->pid, SIGTERM);
	ok(lab_logged(lab, "shutting down: 1 jobs get 5 s", 3), "SIGTERM with a job between calls");
	{
		struct lab_job other;

		lab_job_init(&other, lab, "bob", CTL_TRAIN);
		ok(lab_begin(&other, lab_spec("")) < 0 && other.err.kind == ERR_DRAINING,
		   "  a new job is refused: %s", other.err.message);
		lab_job_free(&other);
	}
	ok(lab_run(&job, 1, 1, NULL) < 0 && job.err.kind == ERR_DRAINING,
	   "  another epoch is refused: %s", job.err.message);
	{
		uint8_t *weights;
		uint64_t bytes;

		ok(!lab_get(&job, CTL_WEIGHTS, &weights, &bytes), "  weights may still be fetched");
		free(weights);
	}
	ok(!lab_end(&job), "  and the job ended");
	is(lab_stop(lab, 0, 10), 0, "  which lets the daemon end");
	took = lab_now() - from;
	ok(took < 4, "  before stop_timeout, after %.2f s", took);
	lab_job_free(&job);
	lab_spawn(lab);
	ok(lab_wait_ready(lab, 10), "started again");
}

static void test_term_run(struct lab *lab)
{
	struct lab_job job;
	struct agree_block block;
	struct ctl_msg m;
	double from;

	lab_job_init(&job, lab, "alice", CTL_TRAIN);
	if (lab_prepare(&job, lab_spec("\"epochs\": 100000"), 300, &block))
		BAIL("%s", job.err.message);
	agree_free(&block);
	lab_message(&job, CTL_RUN, &m);
	m.u.run.count = 100000;
	m.u.run.lr_factor = 1;
	ctl_send(job.conn, &m, NULL, 0);
	lab_sleep(.3);
	from = lab_now();
	kill(lab->pid, SIGTERM);
	ok(ctl_wait(job.conn, &m, 10000, &job.err) < 0 && job.err.kind == ERR_DRAINING,
	   "SIGTERM in RUN: the step is finished, then: %s", job.err.message);
	ok(lab_now() - from < 4, "  after %.2f s", lab_now() - from);
	is(lab_stop(lab, 0, 3), 0, "  the job ends with it, and the daemon");
	lab_job_free(&job);
	lab_spawn(lab);
	ok(lab_wait_ready(lab, 10), "started again");
}

static void test_term_twice(struct lab *lab)
{
	struct lab_job job;
	struct lab_feed feed;
	struct ctl_msg m;
	double from;

	lab_job_init(&job, lab, "alice", CTL_TRAIN);
	if (lab_begin(&job, lab_spec("")) != 1 || lab_feed_open(&job, ROW_TRAIN, &feed))
		BAIL("%s", job.err.message);
	if (truncate(lab->log, 0))
		BAIL("cannot empty the log");
	from = lab_now();
	kill(lab->pid, SIGTERM);
	ok(lab_logged(lab, "shutting down: 1 jobs get 5 s", 3), "SIGTERM in a feed");
	kill(lab->pid, SIGTERM);
	ok(ctl_wait(job.conn, &m, 10000, &job.err) < 0 && job.err.kind == ERR_DRAINING,
	   "  a second one ends it at once: %s", job.err.message);
	while (ring_wait(feed.ring, 100, 2000) == 0)
		if (lab_feed_row(&feed, 1))
			break;
	ok(lab_feed_row(&feed, 1) < 0, "  its ring is closed");
	is(lab_stop(lab, 0, 10), 0, "  clean");
	ok(lab_now() - from < 4, "  after %.2f s", lab_now() - from);
	lab_feed_drop(&feed);
	lab_job_free(&job);
	lab_spawn(lab);
	ok(lab_wait_ready(lab, 10), "started again");
}

/* ---- service manager, background ---- */

static int notify_socket(const char *path)
{
	struct sockaddr_un a = {.sun_family = AF_UNIX};
	struct timeval t = {5, 0};
	int fd = socket(AF_UNIX, SOCK_DGRAM, 0);

	strcpy(a.sun_path, path);
	if (fd < 0 || bind(fd, (struct sockaddr *)&a, sizeof(a)))
		BAIL("cannot make the notify socket");
	setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &t, sizeof(t));
	return fd;
}

static void told(int fd, const char *wanted)
{
	char text[256] = "";
	ssize_t n = recv(fd, text, sizeof(text) - 1, 0);

	if (n >= 0)
		text[n] = '\0';
	if (!ok(!strcmp(text, wanted), "told: %s", wanted))
		printf("#   got '%s'\n", text);
}

static void test_notify(struct lab *lab)
{
	char path[128];
	int fd;

	is(lab_stop(lab, SIGTERM, 10), 0, "stopped");
	snprintf(path, sizeof(path), "%s/notify", lab->dir);
	fd = notify_socket(path);
	setenv("NOTIFY_SOCKET", path, 1);
	setenv("WATCHDOG_USEC", "600000", 1);
	setenv("JOURNAL_STREAM", "1:2", 1);
	lab_spawn(lab);
	told(fd, "READY=1");
	told(fd, "WATCHDOG=1");
	told(fd, "WATCHDOG=1");
	/* a daemon whose loop stands still would not; one that is stopped says nothing */
	ok(lab_logged(lab, "\n<6>level=info code=start", 1), "the journal's level begins a line");
	kill(lab->pid, SIGTERM);
	for (int i = 0; i < 20; i++) {
		char text[64] = "";
		ssize_t n = recv(fd, text, sizeof(text) - 1, 0);

		if (n > 0 && !strcmp(text, "STOPPING=1")) {
			ok(true, "STOPPING=1");
			break;
		}
		if (n <= 0 || i == 19)
			ok(false, "STOPPING=1");
	}
	is(lab_stop(lab, 0, 10), 0, "clean");
	unsetenv("NOTIFY_SOCKET");
	unsetenv("WATCHDOG_USEC");
	unsetenv("JOURNAL_STREAM");
	close(fd);
	unlink(path);
}

static void test_background(struct lab *lab)
{
	struct ctl_msg m = {.type = CTL_HELLO};
	struct ctl_conn *conn;
	struct err err;
	char out[4096];
	pid_t pid;

	lab_configure(lab, "");
	is(run(out, sizeof(out), "-f", lab->conf, NULL), 0,
	   "into the background: the command returns");
	conn = lab_connect_raw(lab);
	m.u.hello.version_min = m.u.hello.version_max = CTL_VERSION;
	if (ctl_call(conn, &m, &m, 5000, &err))
		BAIL("%s", err.message);
	pid = (pid_t)m.u.hello_ok.pid;
	ok(true, "  and the socket answers, process %d", (int)pid);
	ctl_conn_free(conn);
	ok(run(out, sizeof(out), "-f", lab->conf, NULL) == 1, "a second one: the command fails");
	like(out, "did not start", "  and says so");
	kill(pid, SIGTERM);
	for (int i = 0; i < 500 && !kill(pid, 0); i++)
		lab_sleep(.01);
	ok(kill(pid, 0) && errno == ESRCH, "  stopped by SIGTERM");
}

static void test_folder(void)
{
	struct lab lab = {0};
	struct stat st;
	char out[4096], path[512];
	FILE *f;

	strcpy(lab.dir, "/var/tmp/cnnd-test-XXXXXX");
	if (!mkdtemp(lab.dir))
		BAIL("mkdtemp");
	snprintf(lab.socket, sizeof(lab.socket), "%s/run/x.sock", lab.dir);
	snprintf(lab.conf, sizeof(lab.conf), "%s/c", lab.dir);
	snprintf(lab.log, sizeof(lab.log), "%s/log", lab.dir);
	lab_configure(&lab, "");
	umask(0);
	lab_spawn(&lab);
	ok(lab_wait_ready(&lab, 10), "the socket's folder is made");
	umask(022);
	snprintf(path, sizeof(path), "%s/run", lab.dir);
	ok(!stat(path, &st) && (st.st_mode & 07777) == 0750, "  with mode 0750");
	ok(!stat(lab.socket, &st) && (st.st_mode & 07777) == 0660, "  the socket with 0660");
	lab_close(&lab);

	mkdir(lab.dir, 0700);
	f = fopen(lab.conf, "w");
	fprintf(f, "socket = %s/s\nsocket_group =\nstate_dir = %s/no/state\n", lab.dir, lab.dir);
	fclose(f);
	is(run(out, sizeof(out), "-df", lab.conf, NULL), 1, "a state folder that cannot be made");
	like(out, "state_dir: cannot make the folder", "  is named by its key");
	f = fopen(lab.conf, "w");
	fprintf(f, "socket = %s/s\nsocket_group =\nstate_dir = %s/state\nspill_dir = /dev/shm\n",
		lab.dir, lab.dir);
	fclose(f);
	is(run(out, sizeof(out), "-df", lab.conf, NULL), 1, "a spill folder in memory");
	like(out, "spill_dir: /dev/shm is in memory", "  is refused");
	lab_end_all(&lab, false);
}

int main(void)
{
	struct lab lab;

	lab_open(&lab, "");
	test_start(&lab);
	test_options(&lab);
	test_second(&lab);
	test_stale(&lab);
	test_reload(&lab);
	test_term_idle_job(&lab);
	test_term_run(&lab);
	test_term_twice(&lab);
	test_notify(&lab);
	test_background(&lab);
	lab_end_all(&lab, tap_failed);
	test_folder();
	return done();
}
