/* SPDX-License-Identifier: MIT */
/*
 * tcp.h: the inside of the TCP mesh. Two connections per pair of hosts: data, used by the thread
 * that merges (round.c), and control, used by a thread of its own (control.c) that also listens,
 * dials, and does all handshakes (hello.c). What both threads touch is under `lock`.
 */
#ifndef MERGE_TCP_H
#define MERGE_TCP_H

#include <pthread.h>
#include <openssl/evp.h>
#include "../internal.h"

#define TCP_MAGIC 0x4d4e4e43u /* other byte orders do not pass */
#define TCP_VERSION 1
#define TCP_PENDING_MAX 16     /* unauthenticated connections */
#define TCP_PENDING_MS 2000    /* and how long each may take */
#define TCP_FRAME (256u << 10) /* payload of a data frame */
#define TCP_TAG 16
#define TCP_HEARTBEAT_MS 1000
#define TCP_REDIAL_MS 100

enum tcp_kind { TCP_DATA = 0, TCP_CONTROL = 1 };

/* Answer of the accepting side; authenticated by its MAC. */
enum tcp_status {
	TCP_OK = 0,
	TCP_NOT_YET, /* not meshing at that epoch yet: dial again */
	TCP_STALE,   /* the dialer's epoch is over */
	TCP_BAD_VERSION,
	TCP_BAD_TABLE,
	TCP_BAD_ALGORITHM,
	TCP_BAD_MAC_SETTING,
	TCP_BAD_MEMBERS,
	TCP_BAD_TRANSPORT
};

struct tcp_hello {
	uint32_t magic;
	uint16_t version_first, version_last;
	uint8_t job[16];
	uint32_t from, to, epoch, kind, status, no_mac;
	uint64_t members, table, algorithm;
	uint8_t nonce[32];
	uint32_t transport; /* of the rounds */
	uint8_t zero[20];
};
_Static_assert(sizeof(struct tcp_hello) == 128, "wire format");

struct tcp_control_frame {
	uint32_t magic, type, epoch, host;
	uint64_t seq;
	char text[104];
	uint8_t tag[TCP_TAG];
};
_Static_assert(sizeof(struct tcp_control_frame) == 144, "wire format");
enum tcp_control_type { TCP_HEARTBEAT = 1, TCP_FAULT, TCP_LEAVE };

struct tcp_header {
	uint32_t magic, epoch;
	uint64_t seq, merge;
	uint32_t what, length;
};
_Static_assert(sizeof(struct tcp_header) == 32, "wire format");

/* MAC of one direction: GMAC, the sequence number is the nonce. */
struct tcp_mac {
	EVP_CIPHER_CTX *ctx;
	uint64_t seq;
};

enum tcp_state {
	CONN_DIALING,	 /* connect() in progress */
	CONN_WAIT_HELLO, /* dialer sent its hello */
	CONN_WAIT_ACK,	 /* dialer sent its proof */
	CONN_NEW,	 /* acceptor waits for a hello */
	CONN_WAIT_PROOF, /* acceptor sent its hello */
	CONN_READY	 /* control connection in use */
};

/* A connection in handshake, or a control connection. Owned by the control thread. */
struct tcp_conn {
	int fd;
	enum tcp_state state;
	enum tcp_kind kind;
	bool dialer;
	uint32_t peer; /* identity, MERGE_NO_HOST until a hello said it */
	double born;
	struct tcp_hello mine, theirs;
	struct tcp_mac in, out;
	uint8_t buffer[256];
	size_t have;
	struct tcp_conn *next;
};

struct tcp_stream {
	int fd;
	struct tcp_mac in, out;
	struct tcp_header out_header, in_header;
	uint8_t out_tag[TCP_TAG], in_tag[TCP_TAG];
	bool framed;	      /* out_header and out_tag are made */
	size_t out_at, in_at; /* within header + payload + tag of the frame at hand */
};

struct tcp_peer {
	struct tcp_stream data;	  /* fd -1: none */
	struct tcp_conn *control; /* NULL: none */
	double heard, dialed[2];
	bool lost;
	bool left; /* it closed in order: a fault only for who still wants something of it */
};

struct ucx;

enum tcp_net_state { NET_IDLE, NET_MESHING, NET_READY, NET_FAILED, NET_CLOSING };

struct tcp_net {
	struct merge_net net;
	struct merge_tcp_config config;
	struct ucx *ucx; /* carries the rounds if not NULL */
	char listen[64], congestion[16];
	uint16_t port;
	struct merge_host *host;
	uint32_t n_hosts;
	int listen_fd, wake_fd, poll_fd; /* of the control thread */
	int data_poll;			 /* of the merging thread */
	pthread_t thread;
	pthread_mutex_t lock;
	pthread_cond_t change;
	enum tcp_net_state state;
	bool remesh;  /* asked of the control thread */
	bool aborted; /* for good */
	struct merge_error why;
	double mesh_deadline, mesh_seconds;
	uint32_t epoch, n_members, member[MERGE_HOSTS_MAX]; /* of the mesh wanted or in use */
	uint64_t member_hash;
	struct tcp_peer peer[MERGE_HOSTS_MAX]; /* by identity */
	struct tcp_conn *conn;		       /* all of the control thread's */
	uint32_t n_pending;
	double beat, ticked;
	char refused_text[160]; /* why the last connection was refused */
	struct merge_tcp_stats stats;
};

/* hello.c */
bool tcp_hmac(const uint8_t key[32], const char *label, const void *a, const void *b,
	      uint8_t out[32]);
bool tcp_mac_open(struct tcp_mac *mac, const uint8_t secret[32], const char *label,
		  const struct tcp_conn *c);
void tcp_mac_close(struct tcp_mac *mac);
/* The tag of a frame with the next sequence number. */
bool tcp_mac_make(struct tcp_mac *mac, const void *a, size_t a_len, const void *b, size_t b_len,
		  uint8_t tag[TCP_TAG]);
bool tcp_mac_good(struct tcp_mac *mac, const void *a, size_t a_len, const void *b, size_t b_len,
		  const uint8_t tag[TCP_TAG]);
void tcp_hello_fill(const struct tcp_net *t, struct tcp_hello *h, uint32_t to, uint32_t kind);
/* One step of a handshake after bytes came; 0: go on, 1: finished, < 0: close (reason is noted) */
int tcp_hello_step(struct tcp_net *t, struct tcp_conn *c);
size_t tcp_hello_wanted(const struct tcp_conn *c);
int tcp_send_all(int fd, const void *data, size_t bytes);

/* control.c; _locked: the caller holds the lock */
void *tcp_control_main(void *net);
/* A fault that this host was told to make; no mesh is built any more. */
void tcp_abort(struct merge_net *net);
void tcp_fault_locked(struct tcp_net *t, int code, uint32_t host, const char *fmt, ...)
	__attribute__((format(printf, 4, 5)));
const char *tcp_name(const struct tcp_net *t, uint32_t host);
bool tcp_is_member(const struct tcp_net *t, uint32_t host);

/* dial.c */
void tcp_dial_all(struct tcp_net *t);
void tcp_accept_all(struct tcp_net *t);
void tcp_options(const struct tcp_net *t, int fd, enum tcp_kind kind);
void tcp_conn_close(struct tcp_net *t, struct tcp_conn *c);
void tcp_drop_all(struct tcp_net *t);

/* round.c: what every transport of a round needs. The frame that begins at byte `at`. */
struct tcp_piece {
	void *payload;
	size_t length;
	size_t end; /* within the second part, 0 in the first */
};
struct tcp_piece tcp_piece_at(const void *one, size_t one_len, const void *two, size_t two_len,
			      size_t at, size_t most);
struct tcp_course {
	struct tcp_net *t;
	struct merge_round *round;
	uint32_t what;
	uint64_t sent, received; /* bytes of the plan */
	double begin, quiet, limit, moved[MERGE_HOSTS_MAX];
};
void tcp_course_begin(struct tcp_course *c, struct tcp_net *t, struct merge_round *round,
		      double quiet);
void tcp_course_end(struct tcp_course *c);
bool tcp_complete(const struct merge_xfer *x);
/* What is wrong with the frame whose header and tag lie in s, or NULL. */
const char *tcp_bad_frame(struct tcp_course *c, struct tcp_stream *s, const void *payload,
			  size_t length);
int tcp_blame(struct tcp_course *c, uint32_t host, int code, const char *what,
	      struct merge_error *error);
int tcp_check_time(struct tcp_course *c, struct merge_error *error);
int tcp_failed_already(struct tcp_net *t, struct merge_error *error);

/* round.c, mesh.c */
int tcp_round(struct merge_net *net, struct merge_round *round, struct merge_error *error);
int tcp_recover(struct merge_net *net, struct merge_error *error);

#endif
