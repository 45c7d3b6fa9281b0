/* SPDX-License-Identifier: MIT */
/*
 * merge.h: merging replicas of one network, inside a host and between hosts. The library knows
 * arenas of floats with a table of tensors, numbers of samples, and peers; it knows nothing of
 * layers, databases or devices. docs/merge.md derives the functions and describes the transport.
 *
 * Errors are 0 or -errno with a struct merge_error that names the host at fault; the library never
 * prints, exits or aborts. Every wait has a deadline. A handle is used by one thread at a time
 * unless said otherwise.
 */
#ifndef MERGE_H
#define MERGE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define MERGE_NAME_MAX 128
#define MERGE_HOSTS_MAX 256
#define MERGE_NO_HOST UINT32_MAX

struct merge_error {
	int code;      /* what the function returned */
	uint32_t host; /* identity of the host at fault, or MERGE_NO_HOST */
	char message[512];
};

/* ---- tensors ----------------------------------------------------------------------------- */

enum merge_policy {
	MERGE_AVERAGED = 0, /* by the merge function */
	MERGE_MEAN,	    /* pooled with the variance at `pair` */
	MERGE_VARIANCE,	    /* pooled with the mean at `pair` */
	MERGE_COPIED,	    /* frozen: the value of rank 0 */
	MERGE_COUNTER,	    /* global: the largest value (planned counts are equal on all hosts) */
	MERGE_POLICY_COUNT
};

struct merge_tensor {
	char name[MERGE_NAME_MAX];
	enum merge_policy policy;
	bool statistic;	 /* lies in the statistics arena, else in the parameter arena */
	uint64_t offset; /* in floats, within its arena */
	uint64_t count;	 /* floats */
	uint32_t pair;	 /* MERGE_MEAN, MERGE_VARIANCE: index of the other half */
};

struct merge_table {
	const struct merge_tensor *tensor; /* ascending offsets within each arena, no overlap */
	uint32_t n;
	uint64_t param_floats, stat_floats; /* sizes of the arenas */
};

int merge_table_check(const struct merge_table *table, struct merge_error *error);
/* 64 bits over names, policies, places and sizes; hosts that differ refuse each other. */
uint64_t merge_table_hash(const struct merge_table *table);

/* ---- what is merged, how, and when ------------------------------------------------------- */

enum merge_kind {
	MERGE_GRADIENT = 0, /* sum of gradients that are already seeded with 1/n, every step */
	MERGE_AVERAGE,	    /* x <- sum n_i x_i / sum n */
	MERGE_OUTER,	    /* m <- mu m + delta; x <- x - eta m (Nesterov: eta (delta + mu m)) */
	MERGE_EASGD,	    /* x_i <- x_i - b/N (x_i - c); c <- (1-b) c + b xbar; the model is c */
	MERGE_ADASUM,	    /* pairwise, per tensor, on deltas */
	MERGE_TRIMMED,	    /* per coordinate without the `trim` largest and smallest */
	MERGE_MEDIAN,	    /* per coordinate */
	MERGE_NONE,	    /* replicas stay apart */
	MERGE_KIND_COUNT
};

enum merge_momentum { MERGE_KEEP = 0, MERGE_AVERAGE_SLOTS, MERGE_RESET };
enum merge_wire { MERGE_F32 = 0, MERGE_BF16 };
enum merge_unit { MERGE_STEPS = 0, MERGE_EPOCHS, MERGE_AUTO };

struct merge_config {
	enum merge_kind kind;
	double eta, mu;	  /* outer */
	bool nesterov;	  /* outer */
	bool scale_by_lr; /* outer: mu * lr_now / lr_prev, factor 1 where lr_prev = 0 (slowmo) */
	double b;	  /* easgd */
	uint32_t trim;	  /* trimmed mean: values dropped at each end; 2 trim < N */
	enum merge_momentum momentum;
	uint32_t slots; /* optimizer slots that merge_open makes room for, if they are averaged */
	enum merge_wire wire;
	enum merge_unit unit; /* of every */
	uint64_t every;
	bool warmup_given;   /* else one epoch for post-local kinds, 0 for the others */
	uint64_t warmup;     /* steps of synchronous gradients before the first local step */
	bool default_warmup; /* set by presets: one epoch unless warmup_given */
};

/*
 * Fills a configuration by name: gradient, average, madlib, local_sgd, post_local_sgd, outer,
 * slowmo, bmuf, diloco, lookahead, easgd, adasum, trimmed_mean, median, none. Some depend on the
 * number of hosts. -EINVAL: unknown name, or too few hosts.
 */
int merge_preset(const char *name, uint32_t hosts, struct merge_config *out,
		 struct merge_error *error);
/* The i-th name that merge_preset knows, NULL past the last. */
const char *merge_preset_name(uint32_t i);
int merge_config_check(const struct merge_config *config, uint32_t hosts,
		       struct merge_error *error);
/* 'N', 'epoch', 'K epochs' or 'auto' into unit and every. */
int merge_every_parse(const char *text, struct merge_config *config, struct merge_error *error);

enum merge_action {
	MERGE_LOCAL = 0,     /* a local step, nothing to merge after it */
	MERGE_SYNC_STEP,     /* synchronous gradients in this step */
	MERGE_NOW,	     /* a local step, and a merge after it */
	MERGE_SYNC_STEP_LAST /* the last synchronous step: call merge_start after it */
};
/*
 * What planned step s (from 0, never reset between iterations) does; steps_per_epoch > 0. With
 * unit MERGE_AUTO, every must have been set from merge_auto_interval by the coordinator.
 */
enum merge_action merge_schedule(const struct merge_config *config, uint64_t s,
				 uint64_t steps_per_epoch);
/* The smallest H with communication / (H * computation) <= 5 %, within 1 .. 65536. */
uint64_t merge_auto_interval(double seconds_per_step, double seconds_per_merge);

/* ---- arithmetic that is useful by itself -------------------------------------------------- */

/* out[i] = sum_k n[k] in[k][i] / sum n in f64, k ascending; equal weights where sum n = 0. */
void merge_mean(uint32_t k, const float *const in[], const uint64_t n[], float *out,
		uint64_t count);
/* Pooled moments, shifted form, f64: mu = sum p_k mu_k, var = sum p_k (var_k + (mu_k - mu)^2). */
void merge_moments(uint32_t k, const float *const mean[], const float *const variance[],
		   const uint64_t n[], float *mean_out, float *variance_out, uint64_t count);
/* Pools every mean/variance pair of k statistics arenas; other tensors by their policy. */
void merge_statistics(const struct merge_table *table, uint32_t k, const float *const stat[],
		      const uint64_t n[], float *out);
/* Exponential moving average for evaluation: decay min(d, (1+t)/(10+t)), t updates before. */
void merge_ema(float *copy, const float *x, uint64_t count, double d, uint64_t t);
/* Stochastic weight averaging: the mean of k+1 states, copy holding the mean of k. */
void merge_swa(float *copy, const float *x, uint64_t count, uint64_t k);
/* bf16: round to nearest even; NaN stays NaN. */
uint16_t merge_to_bf16(float x);
float merge_from_bf16(uint16_t x);

/* ---- replicas inside a host ---------------------------------------------------------------- */

/*
 * All-reduce (sum) of R replicas' arenas by buckets. Each replica announces the same buckets in
 * the same order as they become final, then waits once; any number of threads may stand for the
 * replicas, one thread for all of them included. The sums are f64 in replica order, so the result
 * does not depend on who does the work.
 *
 * With transport "nccl" the arenas lie on one GPU each and the sums are NCCL's, bucket by bucket
 * while the backward pass goes on: one thread per GPU launches them, a fault or a deadline on one
 * GPU ends the communicators of all. After a fault (-ETIMEDOUT, -EIO, -ECANCELED) close and open
 * again.
 */
struct merge_intra;
struct merge_intra_config {
	uint32_t replicas;
	float *const *arena; /* one per replica, of floats each */
	uint64_t floats;
	uint32_t buckets_max;	/* between two waits; 0: 4096 */
	uint32_t timeout_ms;	/* of a wait; 0: 60 s */
	const char *transport;	/* NULL, "shared": this process' memory; "nccl": GPUs */
	const uint32_t *device; /* nccl: CUDA device of each replica, no two the same */
	bool symmetric;		/* nccl: the arenas come from merge_device_alloc */
};
int merge_intra_open(const struct merge_intra_config *config, struct merge_intra **out,
		     struct merge_error *error);
/* Whether a transport is there, as merge_intra_open would find it; touches no device. -ENOENT: its
 * library is not. */
int merge_intra_find(const char *transport, struct merge_error *error);
/* Never blocks for others. May reduce parts of earlier buckets on the way. */
int merge_intra_bucket(struct merge_intra *intra, uint32_t replica, uint64_t offset,
		       uint64_t length, struct merge_error *error);
/* The same; ready: an event of the compute back end (cudaEvent_t) after which the bucket is final.
 */
int merge_intra_bucket_ready(struct merge_intra *intra, uint32_t replica, uint64_t offset,
			     uint64_t length, void *ready, struct merge_error *error);
/* Until every bucket this replica announced is reduced in all arenas. */
int merge_intra_wait(struct merge_intra *intra, uint32_t replica, struct merge_error *error);
/* Makes every wait return -ECANCELED, for good. Any thread. */
void merge_intra_abort(struct merge_intra *intra);
void merge_intra_close(struct merge_intra *intra);
/* Memory of the current CUDA device that NCCL knows: for a gradient arena (backend_options.alloc).
 */
int merge_device_alloc(void *context, size_t bytes, void **out);
void merge_device_release(void *context, void *memory);
/* The same on GPU `device`, and copies from and to it, for programs without a compute back end. */
int merge_gpu_alloc(uint32_t device, size_t bytes, void **out, struct merge_error *error);
int merge_gpu_copy(uint32_t device, void *to, const void *from, size_t bytes, bool to_device,
		   struct merge_error *error);

/* ---- peers ------------------------------------------------------------------------------- */

/* A set of hosts (or threads) that merge with each other. */
struct merge_net;
uint32_t merge_net_rank(const struct merge_net *net);
uint32_t merge_net_size(const struct merge_net *net);
uint32_t merge_net_epoch(const struct merge_net *net); /* of the membership */
void merge_net_close(struct merge_net *net);
/*
 * Any thread, once or more, but not after merge_net_close has begun: every wait on this net, now
 * and later, returns -ECANCELED, that of merge_recover included (what confirm waits for is the
 * caller's to break). The other hosts see a fault that names this one; other threads of a local net
 * end too.
 */
void merge_net_abort(struct merge_net *net);

/* n ranks in one process, each to be used by a thread of its own: out[n]. For tests and R > 1. */
int merge_local_open(uint32_t n, struct merge_net *out[], struct merge_error *error);

struct merge_host {
	char name[64];	  /* as the user knows it; for messages */
	char address[64]; /* numeric, IPv4 or IPv6 */
	uint16_t port;
};

/*
 * Asked after a fault, when all data sockets are closed: this host believes that the members with
 * lost[i] != 0 (by identity) are gone. The coordinator alone confirms a new membership: it waits
 * for the others, applies min_hosts and fills epoch (greater than before), member[] (identities,
 * ascending) and *n. A non-zero return ends the job here.
 */
struct merge_decision {
	uint32_t epoch, n;
	uint32_t member[MERGE_HOSTS_MAX];
};
typedef int (*merge_confirm_fn)(void *context, uint32_t epoch, const uint8_t lost[MERGE_HOSTS_MAX],
				const struct merge_error *why, struct merge_decision *decision);

/*
 * What carries the rounds. With MERGE_UCX the rendezvous, the handshake, heartbeats and membership
 * stay TCP. -ENOTSUP of merge_tcp_open: built without UCX's headers, or no libucp.so.0 here.
 */
enum merge_transport { MERGE_TRANSPORT_TCP = 0, MERGE_TRANSPORT_UCX };

struct merge_tcp_config {
	const char *listen;		/* numeric address, never a wildcard by default */
	uint16_t port_first, port_last; /* 0, 0: any */
	uint8_t job[16], secret[32];
	uint32_t self;		/* identity: index into host[] of merge_tcp_connect */
	uint64_t table_hash;	/* merge_table_hash */
	uint32_t min_hosts;	/* 0: all */
	bool no_mac;		/* frames without MAC (merge_mac = off) */
	const char *congestion; /* TCP_CONGESTION, NULL: the system's */
	enum merge_transport transport;
	const char *ucx_tls;	     /* NULL: UCX_TLS, or "rc,dc,ud,tcp,self", no shared memory */
	const char *ucx_net_devices; /* NULL: UCX_NET_DEVICES, or without RDMA that of `listen` */
	uint32_t mesh_timeout_ms;    /* 0: 10 s */
	uint32_t merge_timeout_ms;   /* without progress of a live peer; 0: 60 s */
	uint32_t silence_ms;	     /* heartbeats missing; 0: 4 s */
	uint32_t user_timeout_ms;    /* TCP_USER_TIMEOUT; 0: 3 s */
	uint64_t ring_from;	     /* bytes from which the ring is used; 0: by the fixed table */
	merge_confirm_fn confirm;    /* NULL: a fault is final */
	void *context;
};
/* Binds and listens; merge_tcp_port is then known. Starts the control thread. */
int merge_tcp_open(const struct merge_tcp_config *config, struct merge_net **out,
		   struct merge_error *error);
uint16_t merge_tcp_port(const struct merge_net *net);
/* Between open and connect: self and table_hash of the configuration, for who learns them later. */
int merge_tcp_identify(struct merge_net *net, uint32_t self, uint64_t table_hash,
		       struct merge_error *error);
/* Builds the mesh of all n hosts, epoch >= 1. */
int merge_tcp_connect(struct merge_net *net, const struct merge_host *host, uint32_t n,
		      uint32_t epoch, struct merge_error *error);
struct merge_tcp_stats {
	uint64_t sent, received;   /* payload bytes of merges */
	uint64_t refused;	   /* connections that failed the handshake */
	uint32_t pending, threads; /* unauthenticated connections; control threads */
};
void merge_tcp_stats(const struct merge_net *net, struct merge_tcp_stats *out);

/*
 * Plain collectives, for the benchmark and for small facts. All ranks call them in one order. out
 * may be in; there is no staging and no commit, so after a failure out holds anything.
 */
enum merge_op { MERGE_OP_SUM = 0, MERGE_OP_MAX, MERGE_OP_MIN, MERGE_OP_AVG };
int merge_all_reduce(struct merge_net *net, const float *in, float *out, uint64_t count,
		     enum merge_op op, struct merge_error *error);
int merge_all_gather(struct merge_net *net, const void *in, size_t bytes, void *out,
		     struct merge_error *error); /* out: size * bytes, in rank order */
/*
 * One round of blocks of different lengths: send[k], send_bytes[k] <= capacity goes to rank k;
 * recv[k] (capacity bytes each) gets what rank k sends here, recv_bytes[k] of it. Own rank: nothing
 * is sent. capacity is equal on all hosts; a length past it is an error that names the host.
 */
int merge_all_to_all(struct merge_net *net, const void *const send[], const size_t send_bytes[],
		     size_t capacity, void *const recv[], size_t recv_bytes[],
		     struct merge_error *error);

/* ---- a merge ------------------------------------------------------------------------------ */

struct merge;

struct merge_arenas {
	float *param;	    /* param_floats: this host's x_i */
	float *grad;	    /* param_floats; gradient merges only */
	float *stat;	    /* stat_floats, may be NULL if 0 */
	float *const *slot; /* optimizer slots of param_floats each */
	uint32_t n_slots;
};

/* What a host tells all others with a merge. */
#define MERGE_FLAG_STOP 1u /* it was asked to finish; the merge is made */
#define MERGE_FLAG_BAD                                                            \
	2u /* it has NaN or Inf: nobody merges, state and arenas stay as they are \
	    */

struct merge_result {
	uint64_t number;   /* of merges that were committed */
	uint64_t checksum; /* of what all hosts hold in common */
	uint32_t epoch, hosts;
	uint32_t flags;	     /* MERGE_FLAG_*, of all hosts together */
	bool ring;	     /* the algorithm: ring, else direct (adasum: halving-doubling) */
	bool rolled_forward; /* merge_recover completed the merge that had failed */
	bool adopted;	     /* merge_recover took the state of another host */
	double distance;     /* sqrt(sum p_i |x_i - xbar|^2) before the merge */
	double seconds;
	uint64_t bytes; /* payload this host sent */
};

int merge_open(const struct merge_config *config, const struct merge_table *table, uint32_t hosts,
	       struct merge **out, struct merge_error *error);
void merge_close(struct merge *merge);
/* Bytes that merge_open will take; a merge takes no more while there are no more hosts or slots. */
uint64_t merge_memory(const struct merge_config *config, const struct merge_table *table,
		      uint32_t hosts);
/* Sets the common start x (and c) from parameters that are equal on all hosts; clears momentum. */
void merge_start(struct merge *merge, const float *param);
/* The model to evaluate and store: x, or c. merge_start or a merge must have happened. */
const float *merge_model(const struct merge *merge);
/*
 * One merge of the configured kind, or of gradients. lr is that of the step just done. On success
 * the arenas hold the result; on any failure they and the merge's state are untouched: call
 * merge_recover, then repeat the call unless it says rolled_forward.
 */
int merge_run(struct merge *merge, struct merge_net *net, const struct merge_arenas *arenas,
	      uint64_t samples, double lr, uint32_t flags, struct merge_result *result,
	      struct merge_error *error);
int merge_run_gradient(struct merge *merge, struct merge_net *net,
		       const struct merge_arenas *arenas, uint64_t samples, uint32_t flags,
		       struct merge_result *result, struct merge_error *error);
/*
 * The model as it would be if all merged now, for evaluation: the mean of the parameters by samples
 * (easgd: c; gradient and none: rank 0's) and the pooled statistics (none: rank 0's), into
 * param_out and stat_out, which are not the arenas; bitwise equal on all hosts. Always f32. Neither
 * the arenas nor the merge's state change, nothing is counted as a merge. After a failure the
 * outputs hold anything. All hosts call it between the same merges.
 */
int merge_copy(struct merge *merge, struct merge_net *net, const struct merge_arenas *arenas,
	       uint64_t samples, float *param_out, float *stat_out, struct merge_error *error);
/*
 * After a failed merge: asks the coordinator for the new membership, meshes again, and takes all
 * survivors to the highest merge that any of them committed; a host that is further behind gets
 * the common state of one that is not.
 */
int merge_recover(struct merge *merge, struct merge_net *net, const struct merge_arenas *arenas,
		  struct merge_result *result, struct merge_error *error);

#endif
