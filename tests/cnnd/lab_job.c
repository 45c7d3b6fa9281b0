// SPDX-License-Identifier: MIT
/* lab_job.c: the requests of a job, as the extension makes them. */
#include "lab.h"

#include <endian.h>
#include <errno.h>
#include <poll.h>
#include <sys/random.h>
#include <unistd.h>

#define CALL_MS (LAB_SANITIZER ? 120000 : 30000)

const char *const lab_architecture =
	"{\"class_name\": \"Sequential\", \"config\": {\"name\": \"small\", \"layers\": ["
	"{\"class_name\": \"InputLayer\", \"config\": {\"batch_shape\": [null, 8, 8, 1], "
	"\"name\": \"in\"}}, "
	"{\"class_name\": \"Flatten\", \"config\": {\"name\": \"flat\"}}, "
	"{\"class_name\": \"Dense\", \"config\": {\"name\": \"out\", \"units\": 3, "
	"\"activation\": \"softmax\"}}]}}";

static void escape(const char *text, char *out, size_t capacity)
{
	size_t n = 0;

	for (; *text && n + 3 < capacity; text++) {
		if (*text == '"' || *text == '\\')
			out[n++] = '\\';
		out[n++] = *text;
	}
	out[n] = '\0';
}

const char *lab_spec(const char *more)
{
	static char spec[8192];
	char text[4096];

	escape(lab_architecture, text, sizeof(text));
	snprintf(spec, sizeof(spec),
		 "{\"architecture\": \"%s\", \"backend\": \"ref\", \"model_table\": \"m\"%s%s}",
		 text, *more ? ", " : "", more);
	return spec;
}

void lab_message(const struct lab_job *job, enum ctl_type type, struct ctl_msg *msg)
{
	memset(msg, 0, sizeof(*msg));
	msg->type = type;
	memcpy(msg->job, job->id, CTL_ID);
	memcpy(msg->u.secret.secret, job->secret, CTL_ID);
}

int lab_send(struct lab_job *job, const struct ctl_msg *msg)
{
	int rc;

	memset(&job->err, 0, sizeof(job->err));
	rc = ctl_send(job->conn, msg, NULL, 0);
	return rc ? err_set(&job->err, ERR_LOST, rc, "cannot write to cnnd: %s", strerror(-rc)) : 0;
}

int lab_call(struct lab_job *job, struct ctl_msg *msg, enum ctl_type wanted)
{
	int rc = lab_send(job, msg);

	return rc ? rc : lab_wait(job, msg, wanted);
}

int lab_wait(struct lab_job *job, struct ctl_msg *msg, enum ctl_type wanted)
{
	int rc = ctl_wait(job->conn, msg, CALL_MS, &job->err);

	if (!rc && msg->type != wanted)
		rc = err_set(&job->err, ERR_PROTOCOL, -EPROTO, "answered with %s",
			     ctl_type_name((unsigned int)msg->type));
	return rc;
}

void lab_job_init(struct lab_job *job, const struct lab *lab, const char *role, uint8_t kind)
{
	static uint64_t start = 1000;

	memset(job, 0, sizeof(*job));
	if (getrandom(job->id, CTL_ID, 0) != CTL_ID || getrandom(job->secret, CTL_ID, 0) != CTL_ID)
		BAIL("no random numbers");
	job->kind = kind;
	job->role = role;
	job->start_us = start++;
	job->conn = lab_connect(lab, role);
}

void lab_job_free(struct lab_job *job)
{
	ctl_conn_free(job->conn);
	job->conn = NULL;
}

int lab_begin(struct lab_job *job, const char *spec)
{
	struct ctl_msg m;
	int rc;

	lab_message(job, CTL_BEGIN, &m);
	m.u.begin.kind = job->kind;
	m.u.begin.start_us = job->start_us;
	m.u.begin.segindex = -1;
	m.u.begin.segments = 1;
	m.u.begin.role = ctl_str(job->role, strlen(job->role));
	m.u.begin.leader = ctl_str(job->leader, job->leader ? strlen(job->leader) : 0);
	m.u.begin.spec = ctl_str(spec, strlen(spec));
	rc = lab_call(job, &m, CTL_BEGIN_OK);
	if (rc)
		return rc;
	snprintf(job->address, sizeof(job->address), "%.*s", (int)m.u.begin_ok.address.n,
		 m.u.begin_ok.address.p);
	if (m.u.begin_ok.admitted)
		return 1;
	err_set(&job->err, ERR_BUSY, 0, "%.*s", (int)m.u.begin_ok.reason.n, m.u.begin_ok.reason.p);
	return 0;
}

static int secret_call(struct lab_job *job, enum ctl_type type)
{
	struct ctl_msg m;

	lab_message(job, type, &m);
	return lab_call(job, &m, CTL_OK);
}

int lab_watch(struct lab_job *job)
{
	return secret_call(job, CTL_WATCH);
}

int lab_end(struct lab_job *job)
{
	return secret_call(job, CTL_END);
}

/* ---- rows ---- */

int lab_row(uint32_t i, uint8_t x[64])
{
	int class = (int)(i % 3);
	uint32_t noise = i * 2654435761u + 12345;

	for (int p = 0; p < 64; p++) {
		noise = noise * 1664525u + 1013904223u;
		x[p] = (uint8_t)((p % 3 == class ? 150 : 30) + (noise >> 24) % 60);
	}
	return class;
}

size_t lab_value(uint32_t i, int64_t label, bool has_label, uint8_t *out)
{
	struct row_head head = {
		.id_bytes = 4, .y_bytes = has_label ? 8 : 0, .x_bytes = 64, .weight = 1};
	uint32_t id = htole32(i);
	uint64_t y = htole64((uint64_t)label);
	uint8_t *p = out + ROW_HEAD;

	row_head_encode(&head, out);
	memcpy(p, &id, 4);
	p += 4;
	if (has_label) {
		memcpy(p, &y, 8);
		p += 8;
	}
	lab_row(i, p);
	return (size_t)(p + 64 - out);
}

/* Waits for a frame with its descriptors. */
static int wait_fds(struct ctl_conn *conn, struct ctl_msg *m, int *fds, int *n, struct err *err)
{
	struct pollfd p = {ctl_conn_fd(conn), POLLIN, 0};

	for (;;) {
		int rc = ctl_recv(conn, m, fds, n, err);

		if (rc < 0)
			return rc;
		if (rc && m->type == CTL_ERROR) {
			err_set(err, (enum err_kind)m->u.error.kind, -EREMOTEIO, "%.*s",
				(int)m->u.error.message.n, m->u.error.message.p);
			return -EREMOTEIO;
		}
		if (rc && m->type != CTL_HEARTBEAT)
			return 0;
		if (!rc && poll(&p, 1, CALL_MS) <= 0)
			return err_set(err, ERR_LOST, -ETIMEDOUT, "no answer");
	}
}

int lab_feed_open(struct lab_job *job, uint8_t set, struct lab_feed *feed)
{
	struct ctl_msg m;
	int fds[CTL_MAX_FDS], n = 0, rc;

	memset(feed, 0, sizeof(*feed));
	feed->job = job;
	lab_message(job, CTL_FEED, &m);
	m.u.feed.set = set;
	m.u.feed.segindex = -1;
	m.u.feed.x_type = ROW_BYTES;
	m.u.feed.y_type = set == ROW_PREDICT ? ROW_NONE : ROW_I64;
	m.u.feed.has_y = set != ROW_PREDICT;
	m.u.feed.has_id = 1;
	memset(&job->err, 0, sizeof(job->err));
	rc = ctl_send(job->conn, &m, NULL, 0);
	if (!rc)
		rc = wait_fds(job->conn, &m, fds, &n, &job->err);
	if (rc)
		return rc;
	if (m.type != CTL_FEED_OK || n != RING_FDS) {
		while (n > 0)
			close(fds[--n]);
		return err_set(&job->err, ERR_PROTOCOL, -EPROTO, "FEED answered with %s",
			       ctl_type_name((unsigned int)m.type));
	}
	feed->max_value = m.u.feed_ok.max_value;
	return ring_attach(fds, RING_MAX_BYTES, &feed->ring);
}

static int put_piece(struct ring *ring, const uint8_t *p, uint32_t n, uint16_t flags)
{
	void *place;
	int rc;

	while ((rc = ring_reserve(ring, n, &place)) == -EAGAIN) {
		rc = ring_wait(ring, n, CALL_MS);
		if (rc)
			return rc;
	}
	if (rc)
		return rc;
	memcpy(place, p, n);
	ring_commit(ring, ROW_RECORD, flags);
	return 0;
}

int lab_feed_value(struct lab_feed *feed, const void *value, size_t bytes)
{
	uint32_t most = ring_max_record(feed->ring);
	const uint8_t *p = value;
	size_t at = 0;

	while (at < bytes) {
		size_t n = bytes - at < most ? bytes - at : most;
		uint16_t flags =
			(uint16_t)((at ? 0 : RING_FIRST) | (at + n == bytes ? RING_LAST : 0));
		int rc = put_piece(feed->ring, p + at, (uint32_t)n, flags);

		if (rc)
			return rc;
		at += n;
	}
	feed->rows++;
	feed->bytes += bytes;
	return 0;
}

int lab_feed_label(struct lab_feed *feed, uint32_t i, int64_t label)
{
	uint8_t value[ROW_HEAD + 4 + 8 + 64];
	bool has_label = feed->job->kind != CTL_PREDICTION;

	return lab_feed_value(feed, value, lab_value(i, label, has_label, value));
}

int lab_feed_row(struct lab_feed *feed, uint32_t i)
{
	return lab_feed_label(feed, i, i % 3);
}

int lab_feed_close(struct lab_feed *feed, struct ctl_feed_done *done)
{
	struct ctl_msg m = {.type = CTL_FEED_END};
	int rc;

	m.u.feed_end.rows = feed->rows;
	m.u.feed_end.bytes = feed->bytes;
	rc = lab_call(feed->job, &m, CTL_FEED_DONE);
	if (!rc && done)
		*done = m.u.feed_done;
	lab_feed_drop(feed);
	return rc;
}

void lab_feed_drop(struct lab_feed *feed)
{
	if (feed->ring)
		ring_close(feed->ring);
	feed->ring = NULL;
}

int lab_feed_rows(struct lab_job *job, uint8_t set, uint32_t first, uint32_t n)
{
	struct lab_feed feed;
	int rc = lab_feed_open(job, set, &feed);

	if (rc)
		return rc;
	for (uint32_t i = first; !rc && i < first + n; i++)
		rc = lab_feed_row(&feed, i);
	if (rc) {
		lab_feed_drop(&feed);
		return err_set(&job->err, ERR_LOST, rc, "ring: %s", strerror(-rc));
	}
	return lab_feed_close(&feed, NULL);
}

/* ---- the rest of a training ---- */

int lab_part(struct lab_job *job, struct agree_block *part)
{
	struct ctl_msg m;
	int rc;

	memset(part, 0, sizeof(*part));
	lab_message(job, CTL_AGREE, &m);
	rc = lab_call(job, &m, CTL_AGREE_PART);
	return rc ? rc : agree_decode(m.u.blob.blob.p, m.u.blob.blob.n, part, &job->err);
}

int lab_agree(struct lab_job *job, struct agree_block *agreed)
{
	struct agree_block part;
	int rc = lab_part(job, &part);

	memset(agreed, 0, sizeof(*agreed));
	if (rc)
		return rc;
	rc = agree_merge(&part, 1, agreed, &job->err);
	agree_free(&part);
	return rc;
}

int lab_apply(struct lab_job *job, const struct agree_block *agreed, struct ctl_apply_ok *out)
{
	struct ctl_msg m;
	uint8_t *blob = NULL;
	long n = agree_encode(agreed, &blob);
	int rc;

	if (n < 0)
		return err_set(&job->err, ERR_INTERNAL, (int)n, "agree_encode");
	lab_message(job, CTL_APPLY, &m);
	m.u.blob.blob = ctl_str((char *)blob, (size_t)n);
	rc = lab_call(job, &m, CTL_APPLY_OK);
	free(blob);
	if (!rc && out)
		*out = m.u.apply_ok;
	return rc;
}

int lab_run(struct lab_job *job, uint32_t first, uint32_t count, struct ctl_run_row *row)
{
	struct ctl_msg m;
	int rc;

	lab_message(job, CTL_RUN, &m);
	m.u.run.first_epoch = first;
	m.u.run.count = count;
	m.u.run.lr_factor = 1;
	rc = lab_call(job, &m, CTL_RUN_ROW);
	if (!rc && row)
		*row = m.u.run_row;
	return rc;
}

int lab_get(struct lab_job *job, uint32_t kind, uint8_t **data, uint64_t *bytes)
{
	struct ctl_msg m;
	uint64_t at = 0;
	uint32_t parts = 1;

	*data = NULL;
	*bytes = 0;
	for (uint32_t i = 0; i < parts; i++) {
		int rc;

		lab_message(job, CTL_GET, &m);
		m.u.get.kind = kind;
		m.u.get.part = i;
		rc = lab_call(job, &m, CTL_PART);
		if (rc) {
			free(*data);
			*data = NULL;
			return rc;
		}
		parts = m.u.part.parts;
		*bytes = m.u.part.total;
		if (!*data)
			*data = calloc(1, m.u.part.total + 1);
		if (!*data || at + m.u.part.data.n > *bytes)
			BAIL("a part that does not fit");
		memcpy(*data + at, m.u.part.data.p, m.u.part.data.n);
		at += m.u.part.data.n;
	}
	return at == *bytes ? 0 : err_set(&job->err, ERR_PROTOCOL, -EPROTO, "parts are missing");
}

int lab_put(struct lab_job *job, uint32_t kind, const uint8_t *data, uint64_t bytes)
{
	uint32_t parts = (uint32_t)((bytes + CTL_PART_MAX - 1) / CTL_PART_MAX);
	struct ctl_msg m;

	for (uint32_t i = 0; i < parts; i++) {
		uint64_t at = (uint64_t)i * CTL_PART_MAX,
			 n = bytes - at < CTL_PART_MAX ? bytes - at : CTL_PART_MAX;
		int rc;

		lab_message(job, CTL_PUT, &m);
		m.u.part.kind = kind;
		m.u.part.part = i;
		m.u.part.parts = parts;
		m.u.part.total = bytes;
		m.u.part.data = ctl_str((const char *)data + at, (size_t)n);
		rc = lab_call(job, &m, CTL_OK);
		if (rc)
			return rc;
	}
	return 0;
}

int lab_prepare(struct lab_job *job, const char *spec, uint32_t n, struct agree_block *agreed)
{
	int rc = lab_begin(job, spec);

	memset(agreed, 0, sizeof(*agreed));
	if (rc != 1)
		return rc ? rc : -EBUSY;
	rc = lab_watch(job);
	if (!rc)
		rc = lab_feed_rows(job, ROW_TRAIN, 0, n);
	if (!rc)
		rc = lab_agree(job, agreed);
	if (!rc)
		rc = lab_apply(job, agreed, NULL);
	return rc;
}
