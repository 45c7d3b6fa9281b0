/* SPDX-License-Identifier: MIT */
/*
 * daemon.h: what the parts of cnnd share: the daemon, its sessions (one per connection), calls (one
 * request in work) and jobs.
 *
 * Threads: the main thread runs the epoll loop and answers what is quick; the control thread
 * (control.c) sends heartbeats and keeps deadlines; the membership thread (members.c) holds the
 * links of jobs on several hosts; two desk threads (desk.c) read specs and architectures; each job
 * has a thread for its heavy calls (work.c) and each ring a drain thread (feed.c). Nothing of a
 * client's is parsed or computed on the main thread.
 *
 * Locks: daemon.lock guards every field of daemon, session, call and job that is not marked
 * otherwise; session.send guards the sending side of a connection. Order: daemon.lock,
 * session.send, daemon.resume_lock. None is held over a wait, a system call that can block, or
 * library work.
 */
#ifndef CNND_DAEMON_H
#define CNND_DAEMON_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/queue.h>
#include <sys/types.h>
#include <time.h>

#include "../base/err.h"
#include "../ctl/ctl.h"
#include "../data/data.h"
#include "../model/model.h"
#include "../train/train.h"
#include "admit.h"
#include "conf.h"
#include "devices.h"
#include "history.h"
#include "memory.h"

struct desk;
struct control;
struct members;
struct lead;
struct link;
struct hosts;

#define CNND_NAME 257 /* bytes of a role, a database, a model name, with the NUL */

struct session;
struct job;
struct feed;

/* The request that a connection waits for the answer of. Lives in its session. */
struct call {
	TAILQ_ENTRY(call) in_job;   /* job->calls, while job is set */
	TAILQ_ENTRY(call) in_queue; /* job->queue or the desk's queue, while queued */
	struct session *session;
	struct job *job;
	struct ctl_msg msg; /* strings point into the connection's buffer: valid while active */
	bool active;	    /* until call_finish */
	atomic_bool
		answered; /* the reply is sent, or nobody is there to read it; set under the lock */
	bool queued;
	uint64_t since_ms, beat_ms;
	const char *wait; /* name of what it waits for */
};
TAILQ_HEAD(call_list, call);

struct session {
	LIST_ENTRY(session) link;
	struct daemon *daemon;
	/* the loop's, one while on the resume list, one for an active call, one for a feed */
	atomic_uint refs;
	bool closed;			 /* the loop has let go of it */
	uint64_t created_ms, partial_ms; /* partial_ms: since when a frame is incomplete, 0: none */

	/* set once: at accept, and by HELLO */
	uid_t uid;
	pid_t pid;
	bool database, admin, greeted;
	uint64_t features; /* CTL_FEATURE_ of the client */
	char role[CNND_NAME], database_name[CNND_NAME];

	/* guarded by send */
	pthread_mutex_t send;
	pthread_cond_t sent;   /* some of the queue has gone, or the session is broken */
	struct ctl_conn *conn; /* its receiving side: the main thread alone */
	uint64_t progress_ms;  /* when the queue last began or shrank */
	bool broken;	       /* nothing more can be sent */

	/* guarded by daemon.resume_lock */
	TAILQ_ENTRY(session) in_resume;
	bool resumed; /* is on the list */

	/* main thread alone */
	uint32_t epoll_events;
	bool closing; /* read no more, close once the queue is empty */

	struct call call;
	struct feed *feed;
	bool feed_told;	   /* its feed ended with an ERROR that a FEED_END may still cross */
	struct job *watch; /* the job that ends with this connection */
	LIST_ENTRY(session) in_watch;
	struct lead *lead; /* the job on several hosts that ends with this connection */
};
TAILQ_HEAD(session_queue, session);

/* The order matters: rows are fed before JOB_COLLECTED. */
enum job_state {
	JOB_BEGUN = 0,
	JOB_FEEDING,
	JOB_COLLECTED, /* AGREE answered */
	JOB_READY,     /* APPLY answered */
	JOB_RUNNING,
	JOB_STATES
};

struct job {
	LIST_ENTRY(job) link;
	struct daemon *daemon;
	uint8_t id[CTL_ID], secret[CTL_ID];
	enum ctl_job_kind kind;
	enum admit_slot slot;
	uint64_t start_us, created_ms, idle_ms; /* idle_ms: since when nobody is attached, 0: is */
	uint64_t spec_hash;
	uint32_t segments, begun; /* of the system; those that have begun here */
	char role[CNND_NAME], database[CNND_NAME], model_name[CNND_NAME];
	pid_t client; /* the process that began it */

	enum job_state state;
	bool ended, stop;
	bool watched;		/* once, at least */
	struct err end;		/* why it ended */
	const char *wait;	/* what the job's thread does */
	struct call_list calls; /* every active call on this job */
	struct call_list queue; /* those that wait for the job's thread */
	struct call *running;
	pthread_cond_t wake; /* with daemon.lock: queue, ended, feeds */
	LIST_HEAD(, session) watchers;
	LIST_HEAD(, feed) feeds;
	unsigned int n_feeds, next_feeder;
	uint64_t fed_rows;     /* of feeds that are over */
	struct err feed_error; /* of the first feed that failed */
	uint64_t row_memory;   /* bytes of rows in memory that admission gave */
	bool refeed; /* cache = false: rows were dropped and come again before the next run */
	bool has_feed_types;
	struct data_feed feed_types; /* of the last feed, for PREDICT */
	struct memory_account *memory;
	struct train *train; /* set and cleared under the lock, used by the job's thread */

	/* several hosts */
	char leader[CONF_ADDRESS + 8]; /* 'address port', "": this host alone */
	struct link *uplink;	       /* guarded by the lock; NULL once the job has ended */
	struct merge_net *net; /* set and cleared under the lock, used by the job's thread */
	uint64_t merges, merge_checksum; /* of the last committed merge */
	atomic_bool leaderless;		 /* its leader is silent: no step is made */
	atomic_bool canceled;		 /* it has ended, for those that hold no lock */

	/* the job's thread alone, once it runs */
	struct train_config config;
	struct model *model;
	struct device_use device; /* name: read by all, set before the job is in the table */
	struct pins *pins;	  /* pin.h; NULL: none of its rows are */
	struct data_set *data;	  /* feeds use it between FEED and FEED_END; set under the lock */
	bool linked;		  /* hosts_open is through */
	struct hosts *hosts;	  /* NULL: this host alone, or before APPLY */
	char merge_address[CONF_ADDRESS + 8];
	bool reshuffle; /* rows are exchanged, at each pass */
	uint64_t rows_moved;
	double seconds_exchange;
	struct agree_block agreed;
	bool has_agreed, collected;
	char *json;
	struct history_sum *sum; /* checksum of the weights that are being fetched */
	uint64_t checksum;
	bool has_checksum;
	struct train_progress last; /* guarded by the lock: what STATUS shows after the training */
};

struct daemon {
	pthread_mutex_t lock;
	struct conf conf;
	const char *conf_file; /* NULL: defaults */
	uint8_t uuid[CTL_ID];
	char host[65];
	struct memory_host machine;
	int epoll_fd, wake_fd, listen_fd;
	unsigned int faults; /* malformed frames since faults_ms; main thread */
	uint64_t faults_ms;
	int spare_fd; /* given up to refuse a connection when descriptors run out */
	LIST_HEAD(, session) sessions;
	unsigned int n_sessions;
	LIST_HEAD(, job) jobs;
	unsigned int n_jobs; /* threads that still run, too */
	unsigned int n_feed_threads;
	struct admit *admit;
	struct memory *memory;
	uint64_t pinned; /* bytes of rows, of all jobs (pin.h) */
	struct history *history;
	struct devices *devices;      /* opened once */
	struct data_decoder *decoder; /* opened once */
	struct desk *desk;
	struct control *control;
	struct members *members;
	pthread_mutex_t begin_lock; /* taken before lock: one admission at a time, begin.c */
	pthread_mutex_t resume_lock;
	struct session_queue resume; /* sessions that the loop must look at again */
	bool draining, stopping;
	uint64_t stop_ms;   /* when the last jobs are ended, once stopping */
	atomic_bool quit;   /* the loop returns */
	atomic_ullong tick; /* the loop's last turn, ms: the watchdog looks at it */
};

static inline uint64_t now_ms(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000 + (uint64_t)t.tv_nsec / 1000000;
}

/* Memory limits and log level from conf. Lock held, or nobody else there yet. */
void daemon_apply_limits(struct daemon *d);
/* Wakes the main loop; from any thread. */
void daemon_wake(struct daemon *d);
/* A thread that nobody joins; all signals are blocked in it, as in its creator. 0 or -errno. */
int daemon_thread(void *(*run)(void *), void *arg);

#endif
