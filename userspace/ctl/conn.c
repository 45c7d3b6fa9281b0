// SPDX-License-Identifier: MIT
/*
 * conn.c: a connection of the control protocol: queues frames, sends them with their descriptors,
 * and cuts the incoming bytes into frames. Never waits.
 */
#include "ctl.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define QUEUE_MAX (64u << 20)
#define READ_CHUNK (64u << 10)
#define FDS_HELD 8 /* descriptors that have come and wait for their frame */

/* A run of queued bytes; descriptors travel with its first byte. */
struct chunk {
	struct chunk *next;
	size_t bytes, sent;
	int fd[CTL_MAX_FDS];
	int n_fds;
	uint8_t data[];
};

struct ctl_conn {
	int fd;
	struct chunk *head, **tail;
	size_t pending;
	uint8_t *in;
	size_t in_bytes, in_capacity, in_used; /* in_used: bytes of the frame given out last */
	int held[FDS_HELD];
	int n_held;
	bool eof;
};

int ctl_conn_new(int fd, struct ctl_conn **out)
{
	struct ctl_conn *c = calloc(1, sizeof(*c));

	if (!c)
		return -ENOMEM;
	c->fd = fd;
	c->tail = &c->head;
	*out = c;
	return 0;
}

static void chunk_free(struct chunk *k)
{
	for (int i = 0; i < k->n_fds; i++)
		close(k->fd[i]);
	free(k);
}

void ctl_conn_free(struct ctl_conn *c)
{
	struct chunk *k;

	if (!c)
		return;
	while ((k = c->head)) {
		c->head = k->next;
		chunk_free(k);
	}
	for (int i = 0; i < c->n_held; i++)
		close(c->held[i]);
	if (c->fd >= 0)
		close(c->fd);
	free(c->in);
	free(c);
}

int ctl_conn_fd(const struct ctl_conn *c)
{
	return c->fd;
}

size_t ctl_pending(const struct ctl_conn *c)
{
	return c->pending;
}

/* Largest encoding of a message, from its strings: exact enough to size a chunk. */
static size_t encoded_bound(const struct ctl_msg *msg)
{
	size_t fixed = CTL_HEADER + 1024;

	switch (msg->type) {
	case CTL_APPLY:
		return fixed + msg->u.apply.blob.n + (size_t)msg->u.apply.peers.n;
	case CTL_AGREE_PART:
	case CTL_ROWS:
	case CTL_PREDICT:
		return fixed + msg->u.blob.blob.n;
	case CTL_PUT:
	case CTL_PART:
		return fixed + msg->u.part.data.n;
	case CTL_BEGIN:
		return fixed + msg->u.begin.role.n + (size_t)msg->u.begin.spec.n +
		       msg->u.begin.leader.n;
	case CTL_DESCRIBE:
		return fixed + msg->u.describe.architecture.n;
	case CTL_DESCRIBE_OK:
		return fixed + msg->u.describe_ok.name.n + (size_t)msg->u.describe_ok.summary.n +
		       msg->u.describe_ok.json.n;
	default:
		return fixed + ctl_max_length((unsigned int)msg->type);
	}
}

int ctl_send(struct ctl_conn *c, const struct ctl_msg *msg, const int *fds, int n_fds)
{
	size_t bound = encoded_bound(msg);
	struct chunk *k, *fit;
	long n;

	if (n_fds < 0 || n_fds > CTL_MAX_FDS)
		return -EINVAL;
	if (c->pending + bound > QUEUE_MAX + (1u << 20))
		return -ENOBUFS;
	k = malloc(sizeof(*k) + bound);
	if (!k)
		return -ENOMEM;
	k->next = NULL;
	k->sent = 0;
	k->n_fds = 0;
	n = ctl_encode(msg, k->data, bound);
	if (n < 0) {
		free(k);
		return (int)n;
	}
	k->bytes = (size_t)n;
	if (bound > k->bytes + 4096 && (fit = realloc(k, sizeof(*k) + k->bytes)))
		k = fit;
	for (int i = 0; i < n_fds; i++) {
		k->fd[i] = fcntl(fds[i], F_DUPFD_CLOEXEC, 3);
		if (k->fd[i] < 0) {
			int code = -errno;

			chunk_free(k);
			return code;
		}
		k->n_fds++;
	}
	*c->tail = k;
	c->tail = &k->next;
	c->pending += k->bytes;
	return ctl_flush(c);
}

static ssize_t chunk_send(int fd, struct chunk *k)
{
	union {
		struct cmsghdr align;
		char bytes[CMSG_SPACE(sizeof(int) * CTL_MAX_FDS)];
	} control;
	struct iovec iov = {k->data + k->sent, k->bytes - k->sent};
	struct msghdr m = {.msg_iov = &iov, .msg_iovlen = 1};
	struct cmsghdr *h;

	if (k->n_fds && !k->sent) {
		memset(&control, 0, sizeof(control));
		m.msg_control = control.bytes;
		m.msg_controllen = CMSG_SPACE(sizeof(int) * (size_t)k->n_fds);
		h = CMSG_FIRSTHDR(&m);
		h->cmsg_level = SOL_SOCKET;
		h->cmsg_type = SCM_RIGHTS;
		h->cmsg_len = CMSG_LEN(sizeof(int) * (size_t)k->n_fds);
		memcpy(CMSG_DATA(h), k->fd, sizeof(int) * (size_t)k->n_fds);
	}
	return sendmsg(fd, &m, MSG_NOSIGNAL | MSG_DONTWAIT);
}

int ctl_flush(struct ctl_conn *c)
{
	struct chunk *k;
	ssize_t n;

	while ((k = c->head)) {
		n = chunk_send(c->fd, k);
		if (n < 0) {
			if (errno == EINTR)
				continue;
			if (errno == EAGAIN || errno == EWOULDBLOCK)
				return 0;
			return -errno;
		}
		k->sent += (size_t)n;
		c->pending -= (size_t)n;
		if (k->sent < k->bytes)
			continue;
		c->head = k->next;
		if (!c->head)
			c->tail = &c->head;
		chunk_free(k);
	}
	return 0;
}

/* Takes descriptors out of a received message; those past the room are closed. */
static void take_fds(struct ctl_conn *c, struct msghdr *m)
{
	for (struct cmsghdr *h = CMSG_FIRSTHDR(m); h; h = CMSG_NXTHDR(m, h)) {
		size_t n;

		if (h->cmsg_level != SOL_SOCKET || h->cmsg_type != SCM_RIGHTS)
			continue;
		n = (h->cmsg_len - CMSG_LEN(0)) / sizeof(int);
		for (size_t i = 0; i < n; i++) {
			int fd;

			memcpy(&fd, CMSG_DATA(h) + i * sizeof(int), sizeof(int));
			if (c->n_held < FDS_HELD)
				c->held[c->n_held++] = fd;
			else
				close(fd);
		}
	}
}

/* Room for `want` more bytes; drops the bytes of the frame that was given out. */
static int in_reserve(struct ctl_conn *c, size_t want)
{
	uint8_t *p;
	size_t capacity;

	if (c->in_used) {
		memmove(c->in, c->in + c->in_used, c->in_bytes - c->in_used);
		c->in_bytes -= c->in_used;
		c->in_used = 0;
	}
	/* a large frame is over: give its memory back */
	if (!c->in_bytes && c->in_capacity > (1u << 20) && want <= READ_CHUNK) {
		free(c->in);
		c->in = NULL;
		c->in_capacity = 0;
	}
	if (c->in_bytes + want <= c->in_capacity)
		return 0;
	capacity = c->in_bytes + want;
	p = realloc(c->in, capacity);
	if (!p)
		return -ENOMEM;
	c->in = p;
	c->in_capacity = capacity;
	return 0;
}

static int in_read(struct ctl_conn *c, size_t want)
{
	union {
		struct cmsghdr align;
		char bytes[CMSG_SPACE(sizeof(int) * FDS_HELD)];
	} control;
	struct iovec iov;
	struct msghdr m;
	ssize_t n;
	int rc = in_reserve(c, want);

	if (rc)
		return rc;
	do {
		iov = (struct iovec){c->in + c->in_bytes, want};
		m = (struct msghdr){.msg_iov = &iov,
				    .msg_iovlen = 1,
				    .msg_control = control.bytes,
				    .msg_controllen = sizeof(control.bytes)};
		n = recvmsg(c->fd, &m, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
	} while (n < 0 && errno == EINTR);
	if (n < 0)
		return -errno;
	take_fds(c, &m);
	if (!n)
		return -ECONNRESET;
	c->in_bytes += (size_t)n;
	return 0;
}

static uint32_t le32(const uint8_t *p)
{
	return (uint32_t)p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
}

/* Bytes of the frame at the front of the buffer, once its header is there; checked before any
 * memory is taken for it. */
static long frame_bytes(const uint8_t *h, struct err *err)
{
	uint32_t magic = le32(h), length = le32(h + 8), max;
	unsigned int version = h[4] | (unsigned int)h[5] << 8,
		     type = h[6] | (unsigned int)h[7] << 8;

	if (magic != CTL_MAGIC)
		return err_set(err, ERR_PROTOCOL, -EPROTO,
			       "the peer does not speak the control protocol (magic %08x)", magic);
	if (version < CTL_VERSION_MIN || version > CTL_VERSION)
		return err_set(
			err, ERR_PROTOCOL, -EPROTO,
			"the peer speaks version %u of the control protocol, this side %u to %u",
			version, CTL_VERSION_MIN, CTL_VERSION);
	max = ctl_max_length(type);
	if (!max)
		return err_set(err, ERR_PROTOCOL, -EPROTO, "frame of unknown type %u", type);
	if (length > max)
		return err_set(err, ERR_PROTOCOL, -EPROTO, "%s frame of %u bytes, at most %u",
			       ctl_type_name(type), length, max);
	return (long)CTL_HEADER + (long)length;
}

static void give_fds(struct ctl_conn *c, int *fds, int *n_fds)
{
	int room = fds && n_fds ? CTL_MAX_FDS : 0, given = 0;

	for (int i = 0; i < c->n_held; i++) {
		if (given < room)
			fds[given++] = c->held[i];
		else
			close(c->held[i]);
	}
	c->n_held = 0;
	if (n_fds)
		*n_fds = given;
}

int ctl_recv(struct ctl_conn *c, struct ctl_msg *msg, int *fds, int *n_fds, struct err *err)
{
	size_t have, want;
	long need = CTL_HEADER;
	int rc;

	if (n_fds)
		*n_fds = 0;
	for (;;) {
		have = c->in_bytes - c->in_used;
		if (have >= CTL_HEADER) {
			need = frame_bytes(c->in + c->in_used, err);
			if (need < 0)
				return (int)need;
			if (have >= (size_t)need)
				break;
		}
		/*
		 * Read no further than the end of this frame, so that descriptors belong to it; a
		 * long frame's memory grows with what has really come.
		 */
		want = (size_t)need - have;
		if (want > (1u << 20))
			want = 1u << 20;
		rc = in_read(c, want);
		if (rc == -EAGAIN || rc == -EWOULDBLOCK)
			return 0;
		if (rc == -ECONNRESET || rc == -EPIPE)
			return err_set(err, ERR_LOST, rc, "the peer closed the connection");
		if (rc)
			return err_set(err, ERR_LOST, rc, "cannot read from the peer: %s",
				       strerror(-rc));
	}
	rc = ctl_decode(c->in + c->in_used, (size_t)need, msg, err);
	c->in_used += (size_t)need;
	give_fds(c, fds, n_fds);
	return rc ? rc : 1;
}

bool ctl_partial(const struct ctl_conn *c)
{
	return c->in_bytes > c->in_used;
}
