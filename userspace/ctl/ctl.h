/* SPDX-License-Identifier: MIT */
/*
 * ctl.h: the control protocol between a client (the extension's backends, cnnctl) and cnnd, over a
 * unix stream socket. One header for all three. The library does no waiting: it queues, flushes
 * and parses on a non-blocking socket; the caller polls (latch, epoll, poll).
 *
 * Frame: 32-byte header, then `length` bytes of payload, all little-endian:
 *   0 u32 magic 'CNN1'   4 u16 version   6 u16 type   8 u32 length  12 u32 reserved (0)
 *  16 u8  job[16]
 * Payload: the fields of the message's struct in order, fixed width; a string or blob is u32 length
 * and bytes. Length is bounded per type (ctl_max_length); each field is checked before use;
 * trailing bytes are an error. File descriptors travel with the first byte of their frame.
 *
 * Dialogue: the client sends HELLO first; the daemon answers HELLO_OK or ERROR. Then one request at
 * a time per connection. While a request takes longer than a second the daemon sends HEARTBEAT
 * frames each second. The answer is the named reply, or ERROR (the connection stays usable after
 * an ERROR other than ERR_PROTOCOL). Version N and N-1 are accepted.
 *
 * Between FEED_OK and FEED_END the daemon sends HEARTBEAT frames, too, and may send one ERROR: a
 * row was refused, or the job has ended (then its ring is closed as well). That ERROR is the answer
 * of the FEED_END that follows or crosses it; there is no other.
 */
#ifndef CTL_H
#define CTL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "../base/err.h"

#define CTL_MAGIC 0x314e4e43u
#define CTL_VERSION 1
#define CTL_VERSION_MIN 1
#define CTL_HEADER 32
#define CTL_ID 16		 /* bytes of a job id, a secret, a daemon's uuid */
#define CTL_PART_MAX (16u << 20) /* bytes of one part of weights */
#define CTL_ROWS_MAX (1u << 20)	 /* bytes of one frame of predictions */
#define CTL_MAX_FDS 3
#define CTL_METRICS 8
#define CTL_HOSTS_MAX 256u  /* daemons of one job */
#define CTL_SILENCE_MS 4000 /* no frame for so long while a call waits: the peer is lost */
#define CTL_HEARTBEAT_MS 1000
#define CTL_DEFAULT_SOCKET "/run/cnnd/cnnd.sock"

enum ctl_type {
	CTL_HELLO = 1, /* -> HELLO_OK */
	CTL_HELLO_OK,
	CTL_ERROR,
	CTL_HEARTBEAT,
	CTL_OK,	   /* empty answer */
	CTL_DONE,  /* ends a stream of row frames */
	CTL_BEGIN, /* -> BEGIN_OK */
	CTL_BEGIN_OK,
	CTL_WATCH, /* -> OK; from now on the end of this connection ends the job */
	CTL_FEED,  /* -> FEED_OK with RING_FDS descriptors */
	CTL_FEED_OK,
	CTL_FEED_END, /* -> FEED_DONE, once all rows of this ring are taken */
	CTL_FEED_DONE,
	CTL_AGREE, /* -> AGREE_PART */
	CTL_AGREE_PART,
	CTL_APPLY, /* -> APPLY_OK */
	CTL_APPLY_OK,
	CTL_RUN, /* -> RUN_ROW */
	CTL_RUN_ROW,
	CTL_GET, /* -> PART */
	CTL_PUT, /* a PART from the client -> OK */
	CTL_PART,
	CTL_COLLECT, /* -> ROWS ..., DONE */
	CTL_ROWS,
	CTL_BAD_ROWS, /* -> BAD_ROW ..., DONE */
	CTL_BAD_ROW,
	CTL_PREDICT,  /* one row in row.h's form -> ROWS with one row */
	CTL_END,      /* -> OK; a job that is not there is OK too */
	CTL_DESCRIBE, /* -> DESCRIBE_OK */
	CTL_DESCRIBE_OK,
	CTL_STATUS, /* -> JOB ..., DONE */
	CTL_JOB,
	CTL_DEVICES, /* -> DEVICE ..., DONE */
	CTL_DEVICE,
	CTL_STOP,  /* -> OK; finish the iteration, keep the result */
	CTL_DRAIN, /* -> OK; admin_uids only */
	CTL_LEAD,  /* -> LEAD_OK; a job on several daemons: this one keeps its membership */
	CTL_LEAD_OK,
	CTL_MEMBERS, /* -> OK; on LEAD's connection: who takes part */
	CTL_TYPE_COUNT
};

struct ctl_str {
	const char *p; /* points into the connection's buffer until the next ctl_recv; no NUL */
	uint32_t n;
};

/* features of a client: */
#define CTL_FEATURE_ENDED 0x1u /* STATUS lists the last jobs that are over, too (ended = 1) */

/* role: the database role that the client acts for; believed only from database_uids. */
struct ctl_hello {
	uint16_t version_min, version_max;
	uint64_t features;
	uint32_t pid;
	struct ctl_str client; /* "gpu_cnn 0.1.0", "cnnctl 0.1.0" */
	struct ctl_str role, database;
};

struct ctl_hello_ok {
	uint16_t version;
	uint64_t features;
	uint8_t uuid[CTL_ID];
	uint32_t pid;
	struct ctl_str host, build, ring; /* ring: "memfd" or "device", and why */
};

struct ctl_error {
	uint32_t kind; /* enum err_kind */
	struct ctl_str message, hint;
};

struct ctl_heartbeat {
	uint32_t epoch, epochs; /* 1-based epoch in work; 0: not training */
	uint64_t step, steps;
	uint64_t rows;
	double loss;
	struct ctl_str wait; /* name of what the call waits for */
};

enum ctl_job_kind { CTL_TRAIN = 0, CTL_PREDICTION = 1, CTL_EVALUATION = 2 };

/* Sent by each segment's backend. start_us: the coordinator's clock, for the order of admission. */
struct ctl_begin {
	uint8_t secret[CTL_ID];
	uint8_t kind;
	uint64_t start_us;
	int32_t segindex;
	uint32_t segments;
	struct ctl_str role; /* the job's owner */
	/* 'address port' of LEAD_OK: the daemon holds a link to it until the job's end and answers
	 * with an address for merges; "": the job is on this daemon alone */
	struct ctl_str leader;
	struct ctl_str spec; /* JSON: the SQL arguments by name (train.h) */
};

struct ctl_begin_ok {
	uint8_t admitted; /* 0: busy, reason says why; try again */
	uint8_t uuid[CTL_ID];
	uint64_t free_memory;
	uint32_t running; /* jobs */
	/* address: 'address port' where the other daemons reach this one's merges; "" */
	struct ctl_str address, devices, reason, notice;
};

/*
 * LEAD, MEMBERS: sent by the coordinator's backend to the daemon of its own host, which need not
 * have rows nor devices. LEAD comes before any BEGIN of the job, MEMBERS after the last one and
 * before APPLY. The members' links end with the connection that sent LEAD, and with a link its
 * member's job. A member that is lost during a merge is decided about by this daemon
 * (docs/merge.md): at least min_hosts must be left, else the job ends everywhere.
 */
struct ctl_lead {
	uint8_t secret[CTL_ID];
	struct ctl_str role;
};

struct ctl_lead_ok {
	struct ctl_str address; /* 'address port' */
};

struct ctl_members {
	uint8_t secret[CTL_ID];
	uint32_t hosts, min_hosts; /* min_hosts 0: all */
	struct ctl_str names;	   /* a line per host, in the order of ranks */
};

/* rank: this daemon's; peers: for each rank a line 'name address port'. hosts 0 or 1: alone. */
struct ctl_apply {
	uint8_t secret[CTL_ID];
	struct ctl_str blob; /* the agreed block */
	uint32_t rank, hosts;
	uint8_t reshuffle; /* exchange training rows between the hosts first */
	struct ctl_str peers;
};

struct ctl_feed {
	uint8_t secret[CTL_ID];
	uint8_t set; /* enum row_set */
	int32_t segindex;
	uint8_t x_type, y_type; /* enum row_type */
	uint8_t x_array, y_array;
	uint8_t has_y, has_weight, has_id;
	uint8_t ring; /* 0 auto, 1 memfd, 2 device: the session's demand */
};

struct ctl_feed_ok {
	uint32_t feeder; /* number of this feeder within the daemon's job */
	uint64_t ring_bytes;
	uint64_t max_value;
	struct ctl_str ring; /* back end in use */
	struct ctl_str notice;
};

struct ctl_feed_end {
	uint64_t rows, bytes;
};

struct ctl_feed_done {
	uint64_t rows, held, bad, bytes;
};

/* AGREE, COLLECT, BAD_ROWS, END, WATCH, STOP: the secret alone (STOP: zeros, rights by role). */
struct ctl_secret {
	uint8_t secret[CTL_ID];
};

struct ctl_blob {
	uint8_t secret[CTL_ID];
	struct ctl_str blob; /* agree.h, or row.h's prediction rows */
};

struct ctl_apply_ok {
	uint64_t parameters;
	uint32_t h, w, c, outputs;
	uint32_t batch_size;
	uint64_t steps;		/* per epoch */
	double effective_batch; /* rows / steps */
	uint64_t bytes;		/* memory reserved */
	uint64_t rows;		/* training rows here, after an exchange */
	uint64_t rows_moved;	/* that came from other hosts */
	double seconds_exchange;
	struct ctl_str notice; /* lines, each raised as a NOTICE; "W:" before one makes a WARNING */
};

#define CTL_RUN_SNAPSHOT 0x1u /* before starting: keep a copy of the model as 'best' */

struct ctl_run {
	uint8_t secret[CTL_ID];
	uint32_t first_epoch; /* 0-based */
	uint32_t count;
	double lr_factor; /* product of the plateau rule's factors */
	uint32_t flags;
	uint32_t merge_every; /* merge_every = 'auto': steps between merges, from a row's
				 merge_auto; 0: not chosen yet, every step */
};

struct ctl_metric {
	char name[32];
	double train, validation; /* NaN: not measured */
};

#define CTL_ROW_STOPPED 0x1u /* CTL_STOP came: result is good */
#define CTL_ROW_NAN                                                                   \
	0x2u /* NaN or Inf; weights are those of the last good merge; note says where \
	      */
#define CTL_ROW_IMPROVED 0x4u /* the monitored figure improved: snapshot */
#define CTL_ROW_FINISH 0x8u   /* early stopping says stop */
#define CTL_ROW_RESTORE 0x10u /* at the end take 'best', not the last weights */

struct ctl_run_row {
	uint32_t epoch; /* epochs done so far */
	uint32_t flags;
	uint64_t steps, rows;
	double loss, validation_loss, lr, lr_factor; /* lr_factor: for the next run */
	double seconds_train, seconds_merge, seconds_evaluate;
	/* several hosts */
	uint32_t hosts;	     /* that took part at the end; fewer than before: some are lost */
	uint32_t merge_auto; /* merge_every = 'auto': what to give the next runs; 0: - */
	uint64_t merges, merge_bytes; /* of this run: made here, payload sent by this host */
	uint64_t merge_number;	      /* of the last committed merge since the job began */
	uint64_t merge_checksum;      /* of the state that all hosts have in common then */
	double distance; /* of the last merge: sqrt(sum p_i |x_i - xbar|^2); NaN: none */
	uint32_t metrics;
	struct ctl_metric metric[CTL_METRICS];
	struct ctl_str note;
};

enum ctl_kind {
	CTL_WEIGHTS = 0, /* Keras order, packed f32 */
	CTL_OPTIMIZER = 1,
	CTL_BEST = 2,	  /* weights of the snapshot */
	CTL_SUMMARY = 3,  /* agreed block (agree.h): class map, normalisation */
	CTL_JSON = 4,	  /* architecture as Keras JSON */
	CTL_CONFUSION = 5 /* u32 classes, then classes*classes u64, row = truth */
};

struct ctl_get {
	uint8_t secret[CTL_ID];
	uint32_t kind, part;
};

struct ctl_part {
	uint8_t secret[CTL_ID]; /* PUT only */
	uint32_t kind, part, parts;
	uint64_t total; /* bytes of all parts */
	struct ctl_str data;
};

struct ctl_bad_row {
	uint8_t set;
	struct ctl_str id, reason;
};

struct ctl_describe {
	uint32_t h, w, c, outputs; /* 0: not known */
	struct ctl_str architecture;
};

struct ctl_describe_ok {
	uint64_t trainable, frozen;
	uint32_t h, w, c, outputs, layers;
	uint64_t blob_bytes;
	struct ctl_str name, summary, json;
};

struct ctl_job {
	uint8_t id[CTL_ID];
	uint8_t kind, own; /* own 0: only device and memory are shown */
	uint32_t epoch, epochs;
	uint64_t step, steps, rows;
	double loss, seconds;
	uint64_t memory;
	uint32_t merges;
	uint64_t checksum; /* of the last committed merge; 0: none */
	uint8_t ended;	   /* one of the last jobs that are over: wait says why */
	struct ctl_str role, database, state, wait, device, model;
};

struct ctl_device {
	uint32_t index;
	uint64_t memory, free_memory;
	uint32_t jobs;
	struct ctl_str name, kind, info;
};

struct ctl_drain {
	uint8_t on;
};

struct ctl_msg {
	enum ctl_type type;
	uint8_t job[CTL_ID];
	union {
		struct ctl_hello hello;
		struct ctl_hello_ok hello_ok;
		struct ctl_error error;
		struct ctl_heartbeat heartbeat;
		struct ctl_begin begin;
		struct ctl_begin_ok begin_ok;
		struct ctl_feed feed;
		struct ctl_feed_ok feed_ok;
		struct ctl_feed_end feed_end;
		struct ctl_feed_done feed_done;
		struct ctl_secret secret; /* WATCH AGREE COLLECT BAD_ROWS END STOP */
		struct ctl_blob blob;	  /* AGREE_PART ROWS PREDICT */
		struct ctl_apply_ok apply_ok;
		struct ctl_run run;
		struct ctl_run_row run_row;
		struct ctl_get get;
		struct ctl_part part; /* PUT PART */
		struct ctl_bad_row bad_row;
		struct ctl_describe describe;
		struct ctl_describe_ok describe_ok;
		struct ctl_job entry;
		struct ctl_device device;
		struct ctl_drain drain;
		struct ctl_lead lead;
		struct ctl_lead_ok lead_ok;
		struct ctl_members members;
		struct ctl_apply apply; /* begins as blob does */
	} u;
};

/* Largest payload of a type; 0: unknown type. */
uint32_t ctl_max_length(unsigned int type);
const char *ctl_type_name(unsigned int type);

/* Encodes header and payload at out (capacity bytes). Returns bytes, -ENOSPC or -EINVAL. */
long ctl_encode(const struct ctl_msg *msg, void *out, size_t capacity);
/* Decodes one whole frame; strings point into frame. 0 or -EPROTO with the field named. */
int ctl_decode(const void *frame, size_t bytes, struct ctl_msg *msg, struct err *err);

struct ctl_conn;

/* Takes the (connected, non-blocking) socket over. */
int ctl_conn_new(int fd, struct ctl_conn **out);
void ctl_conn_free(struct ctl_conn *conn);
int ctl_conn_fd(const struct ctl_conn *conn);
/* Queues a frame (the descriptors are duplicated) and tries to send. 0, -ENOBUFS past 64 MiB
 * queued, or a socket error. */
int ctl_send(struct ctl_conn *conn, const struct ctl_msg *msg, const int *fds, int n_fds);
/* Bytes still queued; poll for POLLOUT while it is not 0. */
size_t ctl_pending(const struct ctl_conn *conn);
int ctl_flush(struct ctl_conn *conn);
/*
 * One frame: 1 got one, 0 nothing whole yet, -ECONNRESET / -EPIPE end of file, -EPROTO malformed
 * (err says what). Strings of msg are valid until the next call. fds: up to CTL_MAX_FDS
 * descriptors that came with it, close-on-exec, owned by the caller; those not asked for are
 * closed.
 */
int ctl_recv(struct ctl_conn *conn, struct ctl_msg *msg, int *fds, int *n_fds, struct err *err);
/* True while a frame has begun and is not whole (the daemon's 5 s rule). */
bool ctl_partial(const struct ctl_conn *conn);

/*
 * connect: a non-blocking unix socket; every failure has its own message and hint (missing,
 * refused, no access). peer_uid: checked against owner_uid unless that is (unsigned)-1; "wrong
 * owner". Returns a descriptor or -errno. Connecting to a unix socket does not block, except on a
 * full backlog: -EAGAIN then, try again.
 */
int ctl_connect(const char *path, unsigned int owner_uid, struct err *err);

/* For clients that may block (cnnctl, tests): connect + HELLO, and request + wait for a frame that
 * is not a HEARTBEAT. An ERROR frame becomes err and a negative result. */
int ctl_open(const char *path, unsigned int owner_uid, const char *client, const char *role,
	     struct ctl_conn **out, struct err *err);
int ctl_call(struct ctl_conn *conn, const struct ctl_msg *request, struct ctl_msg *reply,
	     int timeout_ms, struct err *err);
int ctl_wait(struct ctl_conn *conn, struct ctl_msg *reply, int timeout_ms, struct err *err);

static inline struct ctl_str ctl_str(const char *p, size_t n)
{
	struct ctl_str s = {p, (uint32_t)n};

	return s;
}

#endif
