// SPDX-License-Identifier: MIT
/*
 * client.c: connecting to cnnd, and the blocking form of a request for callers that may wait
 * (cnnctl, tests). The extension uses ctl_connect and waits on its latch instead.
 */
#include "ctl.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

static int connect_error(const char *path, int code, struct err *err)
{
	switch (code) {
	case ENOENT:
	case ENOTDIR:
		err_set(err, ERR_LOST, -code, "cnnd is not running: there is no socket \"%s\"",
			path);
		err_hint(err, "Start cnnd on this host (systemctl start cnnd), or point "
			      "gpu_cnn.socket at its socket.");
		break;
	case ECONNREFUSED:
		err_set(err, ERR_LOST, -code,
			"cnnd is not running: nobody listens on socket \"%s\"", path);
		err_hint(err, "Start cnnd on this host (systemctl start cnnd); its log says why it "
			      "ended.");
		break;
	case EACCES:
	case EPERM:
		err_set(err, ERR_RIGHTS, -code, "no access to cnnd's socket \"%s\"", path);
		err_hint(err,
			 "Add the operating system user of the database server to the group of "
			 "the socket (socket_group in cnnd.conf) and restart the server.");
		break;
	default:
		err_set(err, ERR_LOST, -code, "cannot connect to cnnd at \"%s\": %s", path,
			strerror(code));
	}
	return -code;
}

/* The other end must run as owner_uid; anything else on that path is an impostor. */
static int check_owner(int fd, const char *path, unsigned int owner_uid, struct err *err)
{
	struct ucred cred;
	socklen_t n = sizeof(cred);

	if (owner_uid == (unsigned int)-1)
		return 0;
	if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &cred, &n))
		return err_set(err, ERR_INTERNAL, -errno, "cannot read the owner of socket \"%s\"",
			       path);
	if (cred.uid == owner_uid)
		return 0;
	err_set(err, ERR_RIGHTS, -EPERM,
		"the process that listens on \"%s\" runs as user id %u, not as cnnd's user id %u",
		path, (unsigned int)cred.uid, owner_uid);
	err_hint(err, "Check who owns that socket; gpu_cnn.daemon_user names the user that cnnd "
		      "runs as.");
	return -EPERM;
}

int ctl_connect(const char *path, unsigned int owner_uid, struct err *err)
{
	struct sockaddr_un a = {.sun_family = AF_UNIX};
	size_t n = strlen(path);
	int fd, rc;

	if (n >= sizeof(a.sun_path))
		return err_set(err, ERR_PARAM, -ENAMETOOLONG,
			       "socket path \"%s\" has %zu bytes, at most %zu", path, n,
			       sizeof(a.sun_path) - 1);
	memcpy(a.sun_path, path, n + 1);
	fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	if (fd < 0)
		return err_set(err, ERR_LIMIT, -errno, "cannot open a socket: %s", strerror(errno));
	do {
		rc = connect(fd, (struct sockaddr *)&a, sizeof(a));
	} while (rc && errno == EINTR);
	if (rc) {
		rc = connect_error(path, errno, err);
		close(fd);
		return rc;
	}
	rc = check_owner(fd, path, owner_uid, err);
	if (rc) {
		close(fd);
		return rc;
	}
	return fd;
}

static long long now_ms(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (long long)t.tv_sec * 1000 + t.tv_nsec / 1000000;
}

/* Waits for the socket until the deadline; 0 or -errno. */
static int wait_socket(struct ctl_conn *c, long long deadline, struct err *err)
{
	struct pollfd p = {ctl_conn_fd(c), POLLIN, 0};
	long long left = deadline - now_ms();
	int rc;

	if (ctl_pending(c))
		p.events |= POLLOUT;
	if (left <= 0)
		return err_set(err, ERR_LOST, -ETIMEDOUT, "no answer from cnnd in time");
	rc = poll(&p, 1, left > 3600000 ? 3600000 : (int)left);
	if (rc < 0 && errno != EINTR)
		return err_set(err, ERR_INTERNAL, -errno, "poll: %s", strerror(errno));
	if (rc < 0)
		return err_set(err, ERR_CANCELED, -EINTR, "interrupted");
	if (p.revents & POLLOUT) {
		rc = ctl_flush(c);
		if (rc)
			return err_set(err, ERR_LOST, rc, "cannot write to cnnd: %s",
				       strerror(-rc));
	}
	return 0;
}

int ctl_wait(struct ctl_conn *c, struct ctl_msg *reply, int timeout_ms, struct err *err)
{
	long long deadline = now_ms() + timeout_ms;
	int rc;

	for (;;) {
		rc = ctl_recv(c, reply, NULL, NULL, err);
		if (rc < 0)
			return rc;
		if (rc && reply->type == CTL_HEARTBEAT)
			continue;
		if (rc && reply->type == CTL_ERROR) {
			const struct ctl_error *e = &reply->u.error;

			err_set(err, (enum err_kind)e->kind, -EREMOTEIO, "%.*s", (int)e->message.n,
				e->message.p);
			err_hint(err, "%.*s", (int)e->hint.n, e->hint.p);
			return -EREMOTEIO;
		}
		if (rc)
			return 0;
		rc = wait_socket(c, deadline, err);
		if (rc)
			return rc;
	}
}

int ctl_call(struct ctl_conn *c, const struct ctl_msg *request, struct ctl_msg *reply,
	     int timeout_ms, struct err *err)
{
	int rc = ctl_send(c, request, NULL, 0);

	if (rc)
		return err_set(err, ERR_LOST, rc, "cannot write to cnnd: %s", strerror(-rc));
	return ctl_wait(c, reply, timeout_ms, err);
}

int ctl_open(const char *path, unsigned int owner_uid, const char *client, const char *role,
	     struct ctl_conn **out, struct err *err)
{
	struct ctl_msg m = {.type = CTL_HELLO};
	struct ctl_conn *c;
	int fd, rc;

	fd = ctl_connect(path, owner_uid, err);
	if (fd < 0)
		return fd;
	rc = ctl_conn_new(fd, &c);
	if (rc) {
		close(fd);
		return err_set(err, ERR_LIMIT, rc, "out of memory");
	}
	m.u.hello.version_min = CTL_VERSION_MIN;
	m.u.hello.version_max = CTL_VERSION;
	m.u.hello.features = CTL_FEATURE_ENDED;
	m.u.hello.pid = (uint32_t)getpid();
	m.u.hello.client = ctl_str(client, strlen(client));
	m.u.hello.role = ctl_str(role, strlen(role));
	rc = ctl_call(c, &m, &m, CTL_SILENCE_MS, err);
	if (!rc && m.type != CTL_HELLO_OK)
		rc = err_set(err, ERR_PROTOCOL, -EPROTO, "unexpected %s frame after HELLO",
			     ctl_type_name((unsigned int)m.type));
	if (rc) {
		ctl_conn_free(c);
		return rc;
	}
	*out = c;
	return 0;
}
