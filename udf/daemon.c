// SPDX-License-Identifier: MIT
/*
 * daemon.c: a connection to this host's cnnd. Each is entered in a list with its resource owner
 * before anything is opened; the resource owner's release (end of statement, abort,
 * subtransaction abort, exit of the backend) closes it, which ends what the daemon did for it.
 */
#include "gpu_cnn.h"

#include "commands/dbcommands.h"

#include <errno.h>
#include <pwd.h>

static struct daemon *open_daemons;
static uint64 last_serial;

static const struct {
	int sqlstate;
} sqlstates[ERR_KIND_COUNT] = {
	[ERR_NONE] = {ERRCODE_INTERNAL_ERROR},
	[ERR_INTERNAL] = {ERRCODE_INTERNAL_ERROR},
	[ERR_PARAM] = {ERRCODE_INVALID_PARAMETER_VALUE},
	[ERR_ARCH] = {ERRCODE_INVALID_PARAMETER_VALUE},
	[ERR_DATA] = {ERRCODE_DATA_EXCEPTION},
	[ERR_LIMIT] = {ERRCODE_CONFIGURATION_LIMIT_EXCEEDED},
	[ERR_RIGHTS] = {ERRCODE_INSUFFICIENT_PRIVILEGE},
	[ERR_BUSY] = {ERRCODE_OBJECT_IN_USE},
	[ERR_CANCELED] = {ERRCODE_QUERY_CANCELED},
	[ERR_LOST] = {ERRCODE_CONNECTION_FAILURE},
	[ERR_PROTOCOL] = {ERRCODE_PROTOCOL_VIOLATION},
	[ERR_NUMERIC] = {ERRCODE_NUMERIC_VALUE_OUT_OF_RANGE},
	[ERR_IO] = {ERRCODE_IO_ERROR},
	[ERR_DRAINING] = {ERRCODE_CANNOT_CONNECT_NOW},
	[ERR_NOJOB] = {ERRCODE_UNDEFINED_OBJECT},
};

void daemon_raise(const struct err *err)
{
	unsigned int kind = (unsigned int)err->kind < ERR_KIND_COUNT ? err->kind : ERR_INTERNAL;
	char *message = cstring_of(str_of(err->message)), *hint = cstring_of(str_of(err->hint));

	ereport(ERROR, (errcode(sqlstates[kind].sqlstate), errmsg("%s", message),
			*hint ? errhint("%s", hint) : 0));
	pg_unreachable();
}

/* ---- registry ---- */

static void daemon_free(struct daemon *d)
{
	struct daemon **p;

	for (p = &open_daemons; *p; p = &(*p)->next)
		if (*p == d) {
			*p = d->next;
			break;
		}
	ring_close(d->ring);
	ctl_conn_free(d->conn);
	agree_free(&d->block);
	while (d->counted-- > 0)
		compat_release_fd();
	pfree(d);
}

void daemon_close(struct daemon *d)
{
	daemon_free(d);
}

struct daemon *daemon_find(uint64 serial)
{
	struct daemon *d;

	for (d = open_daemons; d; d = d->next)
		if (d->serial == serial)
			return d;
	return NULL;
}

bool daemon_trains(void)
{
	struct daemon *d;

	for (d = open_daemons; d; d = d->next)
		if (d->training)
			return true;
	return false;
}

/* Not via the wait loop: this runs in aborts. The frame fits into an idle socket's buffer; if it
 * does not get through, the end of the connection says the same. */
static void send_end(struct daemon *d)
{
	struct ctl_msg m;

	daemon_message(&m, CTL_END, &d->job);
	ctl_send(d->conn, &m, NULL, 0);
}

static void release(ResourceReleasePhase phase, bool is_commit, bool is_top, void *arg)
{
	struct daemon *d, *next;

	(void)is_top;
	(void)arg;
	(void)is_commit; /* a connection left over at a normal end: a portal closed early */
	if (phase != RESOURCE_RELEASE_BEFORE_LOCKS)
		return;
	for (d = open_daemons; d; d = next) {
		next = d->next;
		if (d->owner != CurrentResourceOwner)
			continue;
		if (d->end_on_abort && d->conn)
			send_end(d);
		daemon_free(d);
	}
}

void daemon_init(void)
{
	RegisterResourceReleaseCallback(release, NULL);
}

static void count_fds(struct daemon *d, int n)
{
	while (n-- > 0) {
		if (!compat_acquire_fd())
			ereport(ERROR, (errcode(ERRCODE_INSUFFICIENT_RESOURCES),
					errmsg("too many open files to talk to cnnd"),
					errhint("Raise max_files_per_process.")));
		d->counted++;
	}
}

/* ---- connecting ---- */

/* The words for a daemon that is gone or silent; name: what was waited for. */
static int lost(struct err *err, int code, const char *name)
{
	if (code == -ETIMEDOUT)
		err_set(err, ERR_LOST, code, "cnnd gave no sign of life for %d s (%s)",
			CTL_SILENCE_MS / 1000, name);
	else
		err_set(err, ERR_LOST, code, "lost the connection to cnnd (%s)", name);
	err_hint(err, "cnnd may have been stopped or killed; its log says why. The database is "
		      "not affected.");
	return code;
}

static int daemon_uid(unsigned int *uid, struct err *err)
{
	struct passwd *pw;

	errno = 0;
	pw = getpwnam(gpu_cnn_daemon_user);
	if (!pw) {
		err_set(err, ERR_PARAM, -ENOENT, "there is no operating system user \"%s\"",
			gpu_cnn_daemon_user);
		err_hint(err, "gpu_cnn.daemon_user names the user that cnnd runs as.");
		return -ENOENT;
	}
	*uid = (unsigned int)pw->pw_uid;
	return 0;
}

static int connect_socket(struct daemon *d, struct err *err)
{
	int64 until = wait_now() + CTL_SILENCE_MS;
	unsigned int uid;
	int fd = daemon_uid(&uid, err), rc;

	if (fd)
		return fd;
	while ((fd = ctl_connect(gpu_cnn_socket, uid, err)) < 0) {
		if (fd != -EAGAIN || wait_now() >= until)
			return fd;
		wait_for(PGINVALID_SOCKET, 0, wait_now() + 20, "connect");
	}
	rc = ctl_conn_new(fd, &d->conn);
	if (rc) {
		close(fd);
		return err_set(err, ERR_LIMIT, rc, "out of memory for a connection to cnnd");
	}
	return 0;
}

static int hello(struct daemon *d, const char *role, struct ctl_msg *reply, struct err *err)
{
	struct ctl_msg m;
	char *database = get_database_name(MyDatabaseId);
	int rc;

	memset(&m, 0, sizeof(m));
	m.type = CTL_HELLO;
	m.u.hello.version_min = CTL_VERSION_MIN;
	m.u.hello.version_max = CTL_VERSION;
	m.u.hello.pid = (uint32)MyProcPid;
	m.u.hello.client = str_of("gpu_cnn " CNN_VERSION);
	m.u.hello.role = str_of(role);
	m.u.hello.database = str_of(database ? database : "");
	rc = ctl_send(d->conn, &m, NULL, 0);
	if (rc)
		return lost(err, rc, "hello");
	d->heard = wait_now();
	rc = daemon_wait(d, reply, NULL, NULL, "hello", err);
	if (!rc && reply->type != CTL_HELLO_OK)
		rc = err_set(err, ERR_PROTOCOL, -EPROTO, "cnnd answered HELLO with %s",
			     ctl_type_name((unsigned int)reply->type));
	return rc;
}

static int open_daemon(const char *role, struct daemon **out, struct ctl_hello_ok *info,
		       struct err *err)
{
	struct daemon *d = MemoryContextAllocZero(TopMemoryContext, sizeof(*d));
	struct ctl_msg reply;
	int rc;

	d->owner = CurrentResourceOwner;
	d->serial = ++last_serial;
	d->next = open_daemons;
	open_daemons = d;
	count_fds(d, 1);
	rc = connect_socket(d, err);
	if (!rc)
		rc = hello(d, role ? role : compat_user_name(GetUserId()), &reply, err);
	if (rc) {
		daemon_free(d);
		return rc;
	}
	if (info) {
		*info = reply.u.hello_ok;
		info->host = str_of(cstring_of(info->host));
		info->build = str_of(cstring_of(info->build));
		info->ring = str_of(cstring_of(info->ring));
	}
	*out = d;
	return 0;
}

int daemon_probe(struct daemon **out, struct ctl_hello_ok *info, struct err *err)
{
	return open_daemon(NULL, out, info, err);
}

struct daemon *daemon_open_info(struct ctl_hello_ok *info)
{
	struct daemon *d;
	struct err err = {0};

	if (open_daemon(NULL, &d, info, &err))
		daemon_raise(&err);
	return d;
}

struct daemon *daemon_open_as(const char *role)
{
	struct daemon *d;
	struct err err = {0};

	if (open_daemon(role, &d, NULL, &err))
		daemon_raise(&err);
	return d;
}

struct daemon *daemon_open(void)
{
	return daemon_open_info(NULL);
}

/* ---- requests ---- */

void daemon_message(struct ctl_msg *msg, enum ctl_type type, const struct job *job)
{
	memset(msg, 0, sizeof(*msg));
	msg->type = type;
	memcpy(msg->job, job->id, CTL_ID);
	/* the structs of all requests that carry a secret begin with it */
	memcpy(msg->u.secret.secret, job->secret, CTL_ID);
}

void daemon_send(struct daemon *d, const struct ctl_msg *msg, const char *name)
{
	struct err err = {0};
	int rc = ctl_send(d->conn, msg, NULL, 0);

	d->heard = wait_now();
	if (!rc)
		return;
	if (rc == -EPIPE || rc == -ECONNRESET)
		daemon_poll(d, name); /* the daemon may have said why */
	if (rc == -EINVAL || rc == -ENOMEM || rc == -ENOBUFS)
		err_set(&err, ERR_LIMIT, rc, "cannot send %s to cnnd: %s", name, strerror(-rc));
	else
		lost(&err, rc, name);
	daemon_raise(&err);
}

/* One look at the socket: 1 a frame that is no heartbeat, 0 nothing yet, or -errno with err. An
 * ERROR frame comes back as -EREMOTEIO. */
static int receive(struct daemon *d, struct ctl_msg *reply, int *fds, int *n_fds, const char *name,
		   struct err *err)
{
	int rc;

	for (;;) {
		rc = ctl_recv(d->conn, reply, fds, n_fds, err);
		d->looked = wait_now();
		if (rc == -EPROTO)
			return rc;
		if (rc < 0)
			return lost(err, rc, name);
		if (!rc)
			return 0;
		d->heard = d->looked;
		if (reply->type == CTL_ERROR) {
			const struct ctl_error *e = &reply->u.error;

			err_set(err, (enum err_kind)e->kind, -EREMOTEIO, "%.*s", (int)e->message.n,
				e->message.p);
			err_hint(err, "%.*s", (int)e->hint.n, e->hint.p);
			return -EREMOTEIO;
		}
		if (reply->type != CTL_HEARTBEAT)
			return 1;
		d->beat = reply->u.heartbeat;
	}
}

int daemon_wait(struct daemon *d, struct ctl_msg *reply, int *fds, int *n_fds, const char *name,
		struct err *err)
{
	for (;;) {
		int rc = receive(d, reply, fds, n_fds, name, err), events;

		if (rc)
			return rc < 0 ? rc : 0;
		if (wait_now() - d->heard >= CTL_SILENCE_MS)
			return lost(err, -ETIMEDOUT, name);
		events = WL_SOCKET_READABLE | (ctl_pending(d->conn) ? WL_SOCKET_WRITEABLE : 0);
		events = wait_for(ctl_conn_fd(d->conn), events, d->heard + CTL_SILENCE_MS, name);
		if (events & WL_SOCKET_WRITEABLE) {
			rc = ctl_flush(d->conn);
			if (rc && rc != -EPIPE && rc != -ECONNRESET)
				return lost(err, rc, name);
			d->heard = wait_now();
		}
	}
}

void daemon_reply(struct daemon *d, struct ctl_msg *reply, enum ctl_type wanted, const char *name)
{
	struct err err = {0};
	int rc = daemon_wait(d, reply, NULL, NULL, name, &err);

	if (!rc && reply->type != wanted)
		rc = err_set(&err, ERR_PROTOCOL, -EPROTO, "cnnd answered %s with %s", name,
			     ctl_type_name((unsigned int)reply->type));
	if (rc)
		daemon_raise(&err);
}

void daemon_call(struct daemon *d, const struct ctl_msg *request, struct ctl_msg *reply,
		 enum ctl_type wanted, const char *name)
{
	daemon_send(d, request, name);
	daemon_reply(d, reply, wanted, name);
}

bool daemon_next(struct daemon *d, struct ctl_msg *reply, enum ctl_type wanted, const char *name)
{
	struct err err = {0};
	int rc = daemon_wait(d, reply, NULL, NULL, name, &err);

	if (!rc && reply->type == CTL_DONE)
		return false;
	if (!rc && reply->type != wanted)
		rc = err_set(&err, ERR_PROTOCOL, -EPROTO, "cnnd answered %s with %s", name,
			     ctl_type_name((unsigned int)reply->type));
	if (rc)
		daemon_raise(&err);
	return true;
}

void daemon_poll(struct daemon *d, const char *name)
{
	struct ctl_msg m;
	struct err err = {0};
	int rc = receive(d, &m, NULL, NULL, name, &err);

	if (rc > 0)
		rc = err_set(&err, ERR_PROTOCOL, -EPROTO, "cnnd sent %s in the middle of %s",
			     ctl_type_name((unsigned int)m.type), name);
	if (rc < 0)
		daemon_raise(&err);
}

void daemon_notice(struct ctl_str lines)
{
	daemon_notice_lines(cstring_of(lines));
}

void daemon_notice_lines(char *lines)
{
	char *p = lines, *next;

	for (; p && *p; p = next) {
		next = strchr(p, '\n');
		if (next)
			*next++ = '\0';
		if (!strncmp(p, "W:", 2))
			ereport(WARNING, (errmsg("%s", p + 2 + strspn(p + 2, " "))));
		else if (*p)
			ereport(NOTICE, (errmsg("%s", p)));
	}
}
