// SPDX-License-Identifier: MIT
/*
 * conn.c: connections of the control protocol over a socket pair: frames in pieces, large frames,
 * descriptors, peers that speak another version or close, and the errors of ctl_connect.
 */
#include "../../../userspace/ctl/ctl.h"
#include "../../tap.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

static void pair(struct ctl_conn **a, struct ctl_conn **b)
{
	int fd[2];

	if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, fd) ||
	    ctl_conn_new(fd[0], a) || ctl_conn_new(fd[1], b))
		BAIL("socketpair");
}

static int open_fds(void)
{
	int n = 0;

	for (int fd = 0; fd < 256; fd++)
		n += fcntl(fd, F_GETFD) >= 0;
	return n;
}

static void pieces(void)
{
	uint8_t frame[256];
	struct ctl_msg m = {.type = CTL_ERROR}, got;
	struct ctl_conn *c;
	struct err err = {0};
	int fd[2], early = 0;
	long n;

	m.u.error = (struct ctl_error){ERR_BUSY, ctl_str("busy", 4), ctl_str("", 0)};
	n = ctl_encode(&m, frame, sizeof(frame));
	if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, fd) || ctl_conn_new(fd[0], &c))
		BAIL("socketpair");
	for (long i = 0; i < n - 1; i++) {
		if (write(fd[1], frame + i, 1) != 1)
			BAIL("write");
		early += ctl_recv(c, &got, NULL, NULL, &err) != 0;
	}
	is(early, 0, "no frame before its last byte");
	ok(ctl_partial(c), "a begun frame is seen");
	if (write(fd[1], frame + n - 1, 1) != 1)
		BAIL("write");
	is(ctl_recv(c, &got, NULL, NULL, &err), 1, "with the last byte it is there");
	ok(got.type == CTL_ERROR && got.u.error.message.n == 4, "and whole");
	ok(!ctl_partial(c), "nothing is left over");
	close(fd[1]);
	is(ctl_recv(c, &got, NULL, NULL, &err), -ECONNRESET, "a closed peer is an error");
	is(err.kind, ERR_LOST, "of kind lost");
	ctl_conn_free(c);
}

static void large(void)
{
	size_t n = CTL_PART_MAX;
	char *data = malloc(n);
	struct ctl_msg m = {.type = CTL_PART}, got;
	struct ctl_conn *a, *b;
	struct err err = {0};
	int rc = 0;

	pair(&a, &b);
	for (size_t i = 0; i < n; i++)
		data[i] = (char)(i * 31 + (i >> 12));
	m.u.part.data = ctl_str(data, n);
	is(ctl_send(a, &m, NULL, 0), 0, "a 16 MB part is queued");
	ok(ctl_pending(a) > 0, "and does not fit the socket at once");
	while (!rc) {
		if (ctl_flush(a))
			BAIL("flush");
		rc = ctl_recv(b, &got, NULL, NULL, &err);
	}
	ok(rc == 1 && got.u.part.data.n == n && !memcmp(got.u.part.data.p, data, n),
	   "it arrives whole");
	is(ctl_pending(a), 0, "nothing stays queued");
	m.u.part.data.n = CTL_PART_MAX + 1;
	is(ctl_send(a, &m, NULL, 0), -EINVAL, "one byte more is refused by the sender");
	m.u.part.data.n = (uint32_t)n;
	rc = 0;
	for (int i = 0; i < 8 && !rc; i++)
		rc = ctl_send(a, &m, NULL, 0);
	is(rc, -ENOBUFS, "the queue is bounded");
	free(data);
	ctl_conn_free(a);
	ctl_conn_free(b);
}

static void descriptors(void)
{
	struct ctl_msg m = {.type = CTL_OK}, got;
	struct ctl_conn *a, *b;
	struct err err = {0};
	int before = open_fds(), p[2], fds[CTL_MAX_FDS], n = 0;
	char c = 0;

	pair(&a, &b);
	if (pipe(p))
		BAIL("pipe");
	is(ctl_send(a, &m, NULL, 0), 0, "a frame without descriptors");
	is(ctl_send(a, &m, p, 2), 0, "a frame with two");
	is(ctl_recv(b, &got, fds, &n, &err), 1, "the first frame comes");
	is(n, 0, "with none");
	is(ctl_recv(b, &got, fds, &n, &err), 1, "the second frame comes");
	is(n, 2, "with two");
	ok(write(fds[1], "x", 1) == 1 && read(p[0], &c, 1) == 1 && c == 'x',
	   "they are the same pipe");
	ok(fcntl(fds[0], F_GETFD) & FD_CLOEXEC, "and close-on-exec");
	close(fds[0]);
	close(fds[1]);
	is(ctl_send(a, &m, p, 2), 0, "descriptors nobody asks for");
	is(ctl_recv(b, &got, NULL, NULL, &err), 1, "their frame comes");
	is(ctl_send(a, &m, p, 2), 0, "descriptors that are never read");
	close(p[0]);
	close(p[1]);
	ctl_conn_free(a);
	ctl_conn_free(b);
	is(open_fds(), before, "no descriptor is left over");
}

static void strangers(void)
{
	static const struct {
		const char *name, *want;
		uint8_t head[12];
	} t[] = {
		{"HTTP", "does not speak", "GET / HTTP/1"},
		{"version 9", "version 9", {'C', 'N', 'N', '1', 9, 0, 1, 0, 0, 0, 0, 0}},
		{"type 999", "unknown type 999", {'C', 'N', 'N', '1', 1, 0, 0xe7, 3, 0, 0, 0, 0}},
		{"4 GB HELLO", "at most", {'C', 'N', 'N', '1', 1, 0, 1, 0, 0xff, 0xff, 0xff, 0xff}},
	};

	for (size_t i = 0; i < sizeof(t) / sizeof(*t); i++) {
		uint8_t head[CTL_HEADER] = {0};
		struct ctl_conn *c;
		struct ctl_msg got;
		struct err err = {0};
		int fd[2];

		if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, fd) ||
		    ctl_conn_new(fd[0], &c))
			BAIL("socketpair");
		memcpy(head, t[i].head, 12);
		if (write(fd[1], head, sizeof(head)) != sizeof(head))
			BAIL("write");
		is(ctl_recv(c, &got, NULL, NULL, &err), -EPROTO, t[i].name);
		like(err.message, t[i].want, "the message says why");
		close(fd[1]);
		ctl_conn_free(c);
	}
}

static void connecting(void)
{
	char dir[] = "/tmp/ctl-test-XXXXXX", path[128], wide[300];
	struct sockaddr_un a = {.sun_family = AF_UNIX};
	struct err err = {0};
	int s, fd;

	if (!mkdtemp(dir))
		BAIL("mkdtemp");
	snprintf(path, sizeof(path), "%s/s", dir);
	is(ctl_connect(path, (unsigned int)-1, &err), -ENOENT, "no socket");
	like(err.message, "is not running", "is told as such");
	ok(err.hint[0], "with a hint");
	memcpy(a.sun_path, path, strlen(path) + 1);
	s = socket(AF_UNIX, SOCK_STREAM, 0);
	if (bind(s, (struct sockaddr *)&a, sizeof(a)))
		BAIL("bind");
	is(ctl_connect(path, (unsigned int)-1, &err), -ECONNREFUSED, "a socket without a listener");
	like(err.message, "nobody listens", "is told as such");
	if (listen(s, 4))
		BAIL("listen");
	is(ctl_connect(path, getuid() + 12345u, &err), -EPERM, "a listener of another user");
	like(err.message, "user id", "is refused by name");
	fd = ctl_connect(path, getuid(), &err);
	ok(fd >= 0 && (fcntl(fd, F_GETFL) & O_NONBLOCK), "the right owner is accepted");
	close(fd);
	memset(wide, 'x', sizeof(wide));
	wide[299] = '\0';
	is(ctl_connect(wide, (unsigned int)-1, &err), -ENAMETOOLONG,
	   "a path too long for a socket");
	close(s);
	unlink(path);
	rmdir(dir);
}

int main(void)
{
	pieces();
	large();
	descriptors();
	strangers();
	connecting();
	return done();
}
