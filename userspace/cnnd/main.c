// SPDX-License-Identifier: MIT
/*
 * main.c: cnnd, the daemon of a host: takes rows from database backends through rings, trains,
 * predicts, gives weights back. Options, start and end of the process; the rest is in daemon.h's
 * parts. cnnd(8) is the manual.
 */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <unistd.h>

#include "control.h"
#include "crash.h"
#include "daemon.h"
#include "desk.h"
#include "feed.h"
#include "files.h"
#include "log.h"
#include "members.h"
#include "sdnotify.h"
#include "server.h"
#include "session.h"

static const char usage_text[] =
	"usage: cnnd [-dnV] [-f file]\n"
	"  -d       stay in the foreground, log to standard error\n"
	"  -f file  configuration file (default " CONF_DEFAULT_FILE ", when it is there)\n"
	"  -n       check the configuration and exit\n"
	"  -V       print the version and exit\n";

struct options {
	const char *file;
	bool check, foreground;
};

static void report(void *context, const char *file, unsigned int line, const char *text)
{
	if (line)
		fprintf(stderr, "%s:%u: %s\n", file, line, text);
	else
		fprintf(stderr, "%s: %s\n", file, text);
}

/* ---- the daemon's parts ---- */

void daemon_apply_limits(struct daemon *d)
{
	uint64_t limit = conf_amount(&d->conf.memory, d->machine.bytes),
		 per_role = conf_amount(&d->conf.memory_per_role, limit);

	memory_set_limits(d->memory, limit, per_role < limit ? per_role : limit);
	log_set_debug(d->conf.debug);
}

int daemon_thread(void *(*run)(void *), void *arg)
{
	pthread_attr_t a;
	pthread_t t;
	int rc = pthread_attr_init(&a);

	if (rc)
		return -rc;
	pthread_attr_setdetachstate(&a, PTHREAD_CREATE_DETACHED);
	rc = pthread_create(&t, &a, run, arg);
	pthread_attr_destroy(&a);
	return -rc;
}

/* Each connection takes a descriptor, each feed four. */
static void raise_files(const struct conf *conf)
{
	struct rlimit r;
	rlim_t wanted = conf->max_connections * 5 + 64;

	if (getrlimit(RLIMIT_NOFILE, &r))
		return;
	if (r.rlim_cur < r.rlim_max) {
		r.rlim_cur = r.rlim_max;
		setrlimit(RLIMIT_NOFILE, &r);
	}
	if (r.rlim_cur < wanted)
		log_warn(LOG_CODE("limit"),
			 "%lu file descriptors are allowed, up to %lu may be "
			 "needed (max_connections = %u)",
			 (unsigned long)r.rlim_cur, (unsigned long)wanted, conf->max_connections);
}

static void daemon_init(struct daemon *d, const struct conf *conf, const char *file)
{
	memset(d, 0, sizeof(*d));
	d->conf = *conf;
	d->conf_file = file;
	d->epoll_fd = d->wake_fd = d->listen_fd = d->spare_fd = -1;
	pthread_mutex_init(&d->lock, NULL);
	pthread_mutex_init(&d->begin_lock, NULL);
	pthread_mutex_init(&d->resume_lock, NULL);
	LIST_INIT(&d->sessions);
	LIST_INIT(&d->jobs);
	TAILQ_INIT(&d->resume);
	atomic_init(&d->quit, false);
	atomic_init(&d->tick, now_ms());
	gethostname(d->host, sizeof(d->host) - 1);
}

/* GPUs that were not asked for are not looked at. A failure is told here where it is no error. */
static void find_gpus(const struct daemon *d, struct gpus *found, struct err *why)
{
	enum conf_devices_kind kind = d->conf.device.kind;
	int rc;

	memset(found, 0, sizeof(*found));
	if (kind != CONF_DEVICES_AUTO && kind != CONF_DEVICES_GPU)
		return;
	rc = gpus_find(GPUS_DEADLINE_MS, found, why);
	if (!rc || kind == CONF_DEVICES_GPU)
		return;
	if (rc == -ENOENT)
		log_debug(LOG_CODE("device"), "no GPU is used: %s", why->message);
	else
		log_error(LOG_CODE("device"), "no GPU is used: %s", why->message);
}

/* Two children come first: what looks for GPUs, and the helper that forks decode workers. They must
 * not inherit threads or sockets. */
static int open_engines(struct daemon *d, struct err *err)
{
	struct gpus found;
	struct err why = {0};
	struct data_limits limits = {.max_image_pixels = d->conf.max_image_pixels,
				     .max_image_bytes = d->conf.max_image_bytes,
				     .image_ms = d->conf.image_timeout,
				     .sandbox = d->conf.decode_sandbox};
	int rc;

	find_gpus(d, &found, &why);
	memory_host_read("", &d->machine);
	limits.workers = d->conf.decode_workers ? d->conf.decode_workers : d->machine.cpus;
	rc = data_decoder_create(&limits, &d->decoder, err);
	if (rc)
		return rc;
	crash_install();
	return devices_open(&d->conf.device, &found, &why, d->machine.cpus, &d->devices, err);
}

static int open_tables(struct daemon *d, struct err *err)
{
	int rc = memory_create(0, 0, &d->memory);

	if (!rc)
		rc = admit_create(&d->admit);
	if (!rc)
		rc = history_create(&d->history);
	if (rc)
		return err_set(err, ERR_LIMIT, rc, "out of memory");
	daemon_apply_limits(d);
	if (getrandom(d->uuid, sizeof(d->uuid), 0) != (ssize_t)sizeof(d->uuid))
		return err_set(err, ERR_INTERNAL, -EIO, "no random numbers from the kernel");
	return 0;
}

static int open_threads(struct daemon *d, struct err *err)
{
	int rc = desk_create(d, &d->desk);

	if (!rc)
		rc = members_create(d, &d->members);
	if (!rc)
		rc = control_create(d, &d->control);
	if (rc)
		return err_set(err, ERR_LIMIT, rc, "cannot start the threads: %s", strerror(-rc));
	return 0;
}

static void daemon_free(struct daemon *d)
{
	control_free(d->control);
	desk_free(d->desk);
	members_free(d->members);
	history_free(d->history);
	admit_free(d->admit);
	memory_free(d->memory);
	devices_close(d->devices);
	if (d->decoder)
		data_decoder_free(d->decoder);
	if (d->wake_fd >= 0)
		close(d->wake_fd);
	if (d->epoll_fd >= 0)
		close(d->epoll_fd);
}

/* ---- start and end ---- */

static void log_start(const struct daemon *d)
{
	char spill[CONF_PATH + 16], ring[FEED_RING_TEXT];
	const char *folder = files_spill_dir(&d->conf, spill);

	feed_ring_text(d->conf.ring, ring);
	log_info(LOG_CODE("start"),
		 "cnnd %s, process %d, socket %s, device %s (%s), memory %llu MB of %llu MB, "
		 "spill to %s, ring %s",
		 CNN_VERSION, (int)getpid(), d->conf.socket, devices_name(d->devices),
		 devices_info(d->devices), (unsigned long long)(memory_limit(d->memory) >> 20),
		 (unsigned long long)(d->machine.bytes >> 20), folder ? folder : "nowhere", ring);
}

/* Tells the process that started this one (not under -d) that all is well. */
static void tell_ready(int ready_fd)
{
	sdnotify_send("READY=1");
	if (ready_fd < 0)
		return;
	(void)!write(ready_fd, "", 1);
	close(ready_fd);
}

static int run(struct daemon *d, int ready_fd)
{
	struct files_socket socket = {-1, -1};
	struct err err = {0};
	unsigned int left;
	int rc = files_prepare(&d->conf, &err);

	if (!rc)
		rc = open_engines(d, &err);
	if (!rc)
		rc = open_tables(d, &err);
	if (!rc)
		rc = files_listen(&d->conf, &socket, &err);
	d->listen_fd = socket.listen_fd;
	if (!rc)
		rc = server_open(d, &err);
	if (!rc)
		rc = open_threads(d, &err);
	if (rc) {
		log_error(LOG_CODE("start"), "%s%s%s", err.message, err.hint[0] ? ". " : "",
			  err.hint);
		files_unlisten(&d->conf, &socket);
		daemon_free(d);
		return 1;
	}
	log_start(d);
	tell_ready(ready_fd);
	server_loop(d);
	server_close(d);
	files_unlisten(&d->conf, &socket);
	pthread_mutex_lock(&d->lock);
	left = d->n_jobs;
	pthread_mutex_unlock(&d->lock);
	if (left) {
		/* threads of a job that did not come apart still use what would be freed */
		log_error(LOG_CODE("stop"), "%u jobs did not end in time", left);
		_exit(1);
	}
	daemon_free(d);
	log_info(LOG_CODE("stop"), "ended");
	return 0;
}

/* Into the background. The parent waits for the word that all is well: its exit status tells.
 * Returns in the child, with the descriptor for that word. */
static int daemonize(void)
{
	int fds[2];
	pid_t pid;
	char byte;
	int null;

	if (pipe2(fds, O_CLOEXEC))
		return -errno;
	pid = fork();
	if (pid < 0)
		return -errno;
	if (pid) {
		close(fds[1]);
		if (read(fds[0], &byte, 1) == 1)
			_exit(0);
		fprintf(stderr, "cnnd: did not start; the system log says why\n");
		_exit(1);
	}
	close(fds[0]);
	setsid();
	if (chdir("/"))
		return -errno;
	null = open("/dev/null", O_RDWR);
	if (null < 0)
		return -errno;
	dup2(null, 0);
	dup2(null, 1);
	dup2(null, 2);
	if (null > 2)
		close(null);
	return fds[1];
}

/* 0 go on, 1 exit well, 2 wrong usage. */
static int parse(int argc, char **argv, struct options *o)
{
	int c;

	while ((c = getopt(argc, argv, "df:nVh")) != -1) {
		switch (c) {
		case 'd':
			o->foreground = true;
			break;
		case 'f':
			o->file = optarg;
			break;
		case 'n':
			o->check = true;
			break;
		case 'V':
			printf("cnnd " CNN_VERSION "\n");
			return 1;
		case 'h':
			fputs(usage_text, stdout);
			return 1;
		default:
			fputs(usage_text, stderr);
			return 2;
		}
	}
	if (optind == argc)
		return 0;
	fputs(usage_text, stderr);
	return 2;
}

static int read_conf(struct options *o, struct conf *conf)
{
	if (!o->file && !access(CONF_DEFAULT_FILE, F_OK))
		o->file = CONF_DEFAULT_FILE;
	return o->file ? conf_read(o->file, conf, report, NULL) : conf_defaults(conf, report, NULL);
}

int main(int argc, char **argv)
{
	struct options o = {0};
	static struct conf conf;
	static struct daemon d; /* threads that nobody joins may see its lock at the very end */
	char *file = NULL;
	int rc = parse(argc, argv, &o), ready_fd = -1;

	if (rc)
		return rc == 1 ? 0 : rc;
	if (read_conf(&o, &conf))
		return 1;
	if (o.check) {
		printf("configuration OK\n");
		return 0;
	}
	/* the process changes its folder, a reload shall still find the file */
	if (o.file && !(file = realpath(o.file, NULL))) {
		perror(o.file);
		return 1;
	}
	if (!o.foreground) {
		ready_fd = daemonize();
		if (ready_fd < 0)
			return 1;
	}
	log_open("cnnd", o.foreground, conf.debug);
	server_signals();
	raise_files(&conf);
	daemon_init(&d, &conf, file);
	rc = run(&d, ready_fd);
	free(file);
	return rc;
}
