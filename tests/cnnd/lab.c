// SPDX-License-Identifier: MIT
/* lab.c: the process of lab.h. */
#include "lab.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

double lab_now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

void lab_sleep(double seconds)
{
	struct timespec t = {(time_t)seconds, (long)((seconds - (double)(time_t)seconds) * 1e9)};

	nanosleep(&t, NULL);
}

void lab_configure(struct lab *lab, const char *more)
{
	FILE *f = fopen(lab->conf, "w");

	if (!f)
		BAIL("cannot write %s", lab->conf);
	fprintf(f,
		"socket = %s\nsocket_group =\nstate_dir = %s/state\ndatabase_uids = %u\n"
		"stop_timeout = 5\n%s\n",
		lab->socket, lab->dir, (unsigned int)geteuid(), more);
	fclose(f);
}

void lab_spawn(struct lab *lab)
{
	pid_t parent = getpid();
	int fd;

	lab->pid = fork();
	if (lab->pid < 0)
		BAIL("fork: %s", strerror(errno));
	if (lab->pid)
		return;
	/* the daemon does not outlive a test that dies */
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	if (getppid() != parent)
		_exit(127);
	fd = open(lab->log, O_WRONLY | O_CREAT | O_APPEND, 0600);
	if (fd < 0)
		_exit(127);
	dup2(fd, 1);
	dup2(fd, 2);
	close(fd);
	execl(CNND_BIN, "cnnd", "-d", "-f", lab->conf, (char *)NULL);
	_exit(127);
}

bool lab_wait_ready(struct lab *lab, double seconds)
{
	double from = lab_now();
	struct err err;
	int fd;

	while (lab_now() < from + seconds) {
		fd = ctl_connect(lab->socket, (unsigned int)-1, &err);
		if (fd >= 0) {
			close(fd);
			lab->started = lab_now() - from;
			return true;
		}
		if (waitpid(lab->pid, NULL, WNOHANG) == lab->pid)
			return false;
		lab_sleep(.005);
	}
	return false;
}

static void show_log(const struct lab *lab)
{
	char line[1024];
	FILE *f = fopen(lab->log, "r");

	if (!f)
		return;
	while (fgets(line, sizeof(line), f))
		printf("# %s", line);
	fclose(f);
}

static void make_paths(struct lab *lab)
{
	snprintf(lab->socket, sizeof(lab->socket), "%s/cnnd.sock", lab->dir);
	snprintf(lab->conf, sizeof(lab->conf), "%s/cnnd.conf", lab->dir);
	snprintf(lab->log, sizeof(lab->log), "%s/log", lab->dir);
}

void lab_open(struct lab *lab, const char *more)
{
	memset(lab, 0, sizeof(*lab));
	strcpy(lab->dir, "/var/tmp/cnnd-test-XXXXXX");
	if (!mkdtemp(lab->dir))
		BAIL("mkdtemp: %s", strerror(errno));
	make_paths(lab);
	lab_configure(lab, more);
	lab_spawn(lab);
	if (!lab_wait_ready(lab, LAB_SANITIZER ? 20 : 5)) {
		show_log(lab);
		BAIL("cnnd does not start");
	}
}

int lab_stop(struct lab *lab, int sig, double seconds)
{
	double until = lab_now() + seconds;
	int status;

	if (sig)
		kill(lab->pid, sig);
	while (lab_now() < until) {
		if (waitpid(lab->pid, &status, WNOHANG) == lab->pid) {
			lab->pid = 0;
			return status;
		}
		lab_sleep(.005);
	}
	kill(lab->pid, SIGKILL);
	waitpid(lab->pid, &status, 0);
	lab->pid = 0;
	return -1;
}

static void remove_tree(const char *path)
{
	DIR *d = opendir(path);
	struct dirent *e;
	char name[512];

	while (d && (e = readdir(d))) {
		if (!strcmp(e->d_name, ".") || !strcmp(e->d_name, ".."))
			continue;
		snprintf(name, sizeof(name), "%s/%s", path, e->d_name);
		if (unlink(name))
			remove_tree(name);
	}
	if (d)
		closedir(d);
	rmdir(path);
}

int lab_end_all(struct lab *lab, bool show)
{
	int status = lab->pid ? lab_stop(lab, SIGTERM, 20) : 0;

	if (!status && !access(lab->socket, F_OK))
		status = -2;
	if (show || status)
		show_log(lab);
	remove_tree(lab->dir);
	return status;
}

bool lab_logged(const struct lab *lab, const char *text, double seconds)
{
	double until = lab_now() + seconds;
	char *all = malloc(1 << 20);
	bool found = false;

	while (all && !found) {
		FILE *f = fopen(lab->log, "r");
		size_t n = f ? fread(all, 1, (1 << 20) - 1, f) : 0;

		if (f)
			fclose(f);
		all[n] = '\0';
		found = strstr(all, text);
		if (lab_now() >= until)
			break;
		if (!found)
			lab_sleep(.02);
	}
	free(all);
	return found;
}

uint64_t lab_rss(const struct lab *lab)
{
	char path[64], line[256];
	unsigned long long kb = 0;
	FILE *f;

	snprintf(path, sizeof(path), "/proc/%d/status", (int)lab->pid);
	f = fopen(path, "r");
	while (f && fgets(line, sizeof(line), f))
		if (sscanf(line, "VmRSS: %llu", &kb) == 1)
			break;
	if (f)
		fclose(f);
	return kb << 10;
}

struct ctl_conn *lab_connect_raw(const struct lab *lab)
{
	struct ctl_conn *conn = NULL;
	struct err err = {0};
	int fd = ctl_connect(lab->socket, (unsigned int)-1, &err);

	if (fd < 0 || ctl_conn_new(fd, &conn)) {
		show_log(lab);
		BAIL("cannot connect: %s", err.message);
	}
	return conn;
}

struct ctl_conn *lab_connect(const struct lab *lab, const char *role)
{
	struct ctl_conn *conn = lab_connect_raw(lab);
	struct ctl_msg m = {.type = CTL_HELLO};
	struct err err = {0};

	m.u.hello.version_min = CTL_VERSION_MIN;
	m.u.hello.version_max = CTL_VERSION;
	m.u.hello.client = ctl_str("test", 4);
	m.u.hello.role = ctl_str(role, strlen(role));
	m.u.hello.database = ctl_str("lab", 3); /* as the extension does */
	if (ctl_call(conn, &m, &m, 5000, &err) || m.type != CTL_HELLO_OK) {
		show_log(lab);
		BAIL("no HELLO_OK: %s", err.message);
	}
	return conn;
}

/* Counts the rows of a list, and sums what a row says. */
static int list(const struct lab *lab, enum ctl_type ask, uint64_t *held)
{
	struct ctl_conn *conn = lab_connect(lab, "lab");
	struct ctl_msg m = {.type = ask};
	struct err err = {0};
	int n = 0, rc = ctl_call(conn, &m, &m, 5000, &err);

	while (!rc && m.type != CTL_DONE) {
		n += m.type != CTL_JOB || !m.u.entry.ended;
		if (m.type == CTL_DEVICE)
			*held = m.u.device.memory - m.u.device.free_memory;
		rc = ctl_wait(conn, &m, 5000, &err);
	}
	ctl_conn_free(conn);
	if (rc)
		printf("# %s: %s\n", ctl_type_name((unsigned int)ask), err.message);
	return rc ? -1 : n;
}

uint64_t lab_held(const struct lab *lab)
{
	uint64_t held = UINT64_MAX;

	list(lab, CTL_DEVICES, &held);
	return held;
}

int lab_jobs(const struct lab *lab)
{
	uint64_t held;

	return list(lab, CTL_STATUS, &held);
}

bool lab_idle(const struct lab *lab, double seconds)
{
	double until = lab_now() + seconds;
	int n;

	while ((n = lab_jobs(lab)) != 0 && lab_now() < until)
		lab_sleep(.01);
	return n == 0;
}
