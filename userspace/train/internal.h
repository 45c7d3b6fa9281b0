/* SPDX-License-Identifier: MIT */
/*
 * internal.h: what the files of userspace/train share with one another and with their unit tests:
 * step division, learning rate plan, metrics, advice, choice of the loss, memory, and the struct
 * train itself. Not for other folders: they include train.h.
 */
#ifndef TRAIN_INTERNAL_H
#define TRAIN_INTERNAL_H

#include <stdatomic.h>

#include "train.h"

/* ---- steps.c: training.md §1, which rows belong to which step and replica ---- */

struct steps_range {
	uint64_t first, n;
};
/* max(1, max_i ceil(rows_i / (replicas_i * batch))) */
uint64_t train_steps_per_epoch(const uint64_t *rows, const uint32_t *replicas, size_t hosts,
			       uint32_t batch);
struct steps_range train_steps_of_host(uint64_t rows, uint64_t steps, uint64_t s);
struct steps_range train_steps_of_replica(struct steps_range host, uint32_t replicas, uint32_t k);

/* ---- options.c: the small grammars inside text values: "name(key=value, ...)", "key=value, flag"
 */

#define OPTIONS_MAX 16
struct options {
	const char *key; /* the spec's key, for messages */
	char *copy;
	const char *name; /* "" where the text has none */
	uint32_t n;
	struct {
		const char *key, *value; /* value NULL: a bare word */
		bool used;
	} option[OPTIONS_MAX];
};
/* named: the text begins with a name, options in parentheses follow; else a bare list. */
int train_options_parse(const char *key, const char *text, bool named, struct options *out,
			struct err *err);
void train_options_free(struct options *options);
/* Each leaves *out alone where the option is not there. */
struct options_bound {
	double low, high;
	bool low_open, high_open;
};
int train_options_number(struct options *o, const char *name, struct options_bound bound,
			 double *out, struct err *err);
int train_options_integer(struct options *o, const char *name, uint32_t low, uint32_t high,
			  uint32_t *out, struct err *err);
int train_options_flag(struct options *o, const char *name, bool *out, struct err *err);
int train_options_text(struct options *o, const char *name, char *out, size_t size,
		       struct err *err);
/* ERR_PARAM with a did-you-mean for the first option that nobody asked for. names: the legal ones,
 * NULL at the end. */
int train_options_rest(struct options *o, const char *const *names, struct err *err);
/* Next item of a list, split at commas outside parentheses, trimmed; false at the end. */
bool train_options_item(const char **text, char *item, size_t size, bool *fits);
/* "[1, 100]" */
void train_options_range(struct options_bound bound, char *text, size_t size);
/* The nearest of the names, or NULL where none is near. */
const char *train_options_nearest(const char *word, const char *const *names);

/* ---- config_text.c: the keys whose value has a grammar of its own ---- */

int train_config_schedule(struct train_config *c, const char *text, struct err *err);
int train_config_metrics(struct train_config *c, const char *text, struct err *err);
int train_config_early_stop(struct train_config *c, const char *text, struct err *err);
int train_config_augment(struct train_config *c, const char *text, struct err *err);
int train_config_class_weight(struct train_config *c, const char *text, struct err *err);
int train_config_devices(struct train_config *c, const char *text, struct err *err);

/* ---- config_merge.c ---- */

int train_config_average(struct train_config *c, const char *text, struct err *err);
int train_config_merge_every(struct train_config *c, const char *text, struct err *err);
/* The merge keys against each other. */
int train_config_merge_keys(const struct train_config *c, struct err *err);

/* ---- policy.c ---- */

/* ERR_PARAM for a key of class_weight that is no label of the agreed block. */
int train_policy_check(const struct train_config *config, const struct agree_block *agreed,
		       struct err *err);

/* ---- schedule.c ---- */

struct schedule {
	enum train_schedule kind;
	double lr, gamma, every, min_lr;   /* lr: after lr_scaling; every in updates */
	uint64_t per_epoch, warmup, total; /* updates */
};
/* update_batch: rows behind one update, for lr_scaling. */
void train_schedule_init(struct schedule *schedule, const struct train_config *config,
			 double update_batch, uint64_t updates_per_epoch);
/* update counts from 0 over the whole training; factor: the plateau rule's product. */
double train_schedule_lr(const struct schedule *schedule, uint64_t update, double factor);

/* ---- metrics.c ---- */

#define METRIC_BUCKETS 200

/* Sums that add over batches, replicas and hosts. Which are used depends on the metric. */
struct metric_sums {
	uint64_t hits, total; /* accuracy, top_k: of rows; binary_accuracy: of elements */
	uint64_t tp, fp, fn;  /* precision, recall */
	double squares;	      /* rmse, over `total` elements */
	uint64_t positive[METRIC_BUCKETS], negative[METRIC_BUCKETS]; /* auc */
};
struct metric {
	enum train_metric kind;
	uint32_t k;
	char name[32];
	struct metric_sums train;
};
/* One batch: value n * outputs activated; either label (class index) or target (n * outputs). */
struct metric_batch {
	uint32_t n, outputs;
	const float *value;
	const int32_t *label;
	const float *target;
};
void train_metric_name(enum train_metric kind, uint32_t k, char *name, size_t size);
bool train_metric_more_is_better(const char *name);
void train_metric_update(const struct metric *metric, struct metric_sums *sums,
			 const struct metric_batch *batch);
void train_metric_merge(struct metric_sums *into, const struct metric_sums *from);
double train_metric_value(const struct metric *metric, const struct metric_sums *sums);
/* matrix: classes * classes, row = truth; classes = max(2, outputs). */
void train_metric_confusion(uint64_t *matrix, const struct metric_batch *batch);

/* ---- plan.c: early stopping and reduce-on-plateau, as Keras' callbacks ---- */

struct plan_rule {
	bool on, max;
	char monitor[40];
	double min_delta, best;
	uint32_t patience, wait, cooldown, cooling;
	bool seen;
};
struct plan {
	struct plan_rule early, plateau;
	bool restore, best_is_last;
	uint32_t best_epoch;	   /* epochs done at early's best */
	double factor, min_factor; /* plateau: each reduction, the floor */
};
/* validation: there are validation rows. Resolves what the rules monitor. */
int train_plan_init(struct plan *plan, const struct train_config *config,
		    const struct metric *metric, uint32_t n_metrics, bool validation, double lr,
		    struct err *err);
/* Figures of a finished iteration: sets the row's flags and lr_factor. */
void train_plan_advise(struct plan *plan, struct ctl_run_row *row);

/* ---- notice.c: lines for the user ---- */

struct notice {
	char *text;
	bool failed;
};
void train_notice_add(struct notice *notice, const char *fmt, ...)
	__attribute__((format(printf, 2, 3)));

/* ---- loss.c ---- */

struct loss_choice {
	struct backend_loss_config loss;
	bool labels;  /* rows have class indices; their one-hot rows are the targets */
	bool classes; /* outputs stand for classes: a confusion matrix makes sense */
};
int train_loss_choose(const struct train_config *config, const struct model_info *info,
		      const struct agree_block *agreed, bool inference, struct loss_choice *out,
		      struct notice *notice, struct err *err);
const char *train_loss_name(enum backend_loss loss);

/* ---- fit.c ---- */

/* Checks, and chooses loss and metrics. */
int train_fit(struct train *train, struct notice *notice, struct err *err);
void train_say(struct train *train, struct notice *notice);

/* ---- arena.c ---- */

/* base NULL: arena_take only counts. */
struct arena {
	uint8_t *base;
	uint64_t size, used;
	bool overflow;
};
void *train_arena_take(struct arena *arena, uint64_t count, uint64_t each);
int train_arena_allocate(struct arena *arena, uint64_t bytes, struct err *err);
void train_arena_free(struct arena *arena);

/* ---- train.c, run.c, evaluate.c, parts.c ---- */

#define TRAIN_CONFUSION_MAX 1024u /* classes; past it no confusion matrix is kept */

#define TRAIN_SLOTS_MAX 8u
#define TRAIN_HEAD_MAX 128u

struct train_put_state {
	uint32_t kind, next, parts;
	uint64_t total, got;
	bool active;
};

#define TRAIN_REPLICAS_MAX 64u
#define TRAIN_SKIPS_MAX \
	32u /* updates in a row that overflow in f16; the loss scale is halved each time */

struct hosts; /* hosts.h */
struct stage; /* stage.c */
struct team;  /* team.h */
struct batches;

struct train {
	struct train_setup setup;
	const struct backend_graph *graph;
	const struct model_info *info;
	struct backend_net *net; /* = replica[0]: the one that evaluates */
	struct backend_net *replica[TRAIN_REPLICAS_MAX];
	uint32_t replicas;
	uint64_t replica_rows[TRAIN_REPLICAS_MAX]; /* since their statistics were pooled */
	struct merge_intra *intra;		   /* more than one replica */
	bool nccl;				   /* ... of NCCL */
	bool on_the_way;			   /* ... told of each bucket as it becomes final */
	char no_nccl[256];	 /* why gradients of GPUs go through host memory; "": they do not */
	struct team *team;	 /* a thread per replica; NULL: all on this one */
	struct batches *batches; /* rows for devices; NULL: each replica reads its own */
	char about_devices[192];
	struct stage *stage;	     /* NULL: arenas are in host memory */
	struct merge_tensor *tensor; /* of table */
	struct merge_table table;
	struct hosts *hosts;		      /* NULL: this host alone */
	bool several;			      /* replicas or hosts: the model is a merged copy */
	struct data_reader *shuffled;	      /* of the training rows, epoch by epoch */
	struct data_reader *reader[ROW_SETS]; /* in canonical (predictions: feeding) order */
	float *mul, *add;
	struct loss_choice loss;
	struct metric metric[CTL_METRICS];
	uint32_t n_metrics;
	struct schedule schedule;
	struct plan plan;
	uint32_t batch, max_batch, slots;
	uint32_t replica_batch;	       /* the most rows of a replica's step */
	uint32_t host_batch;	       /* of all replicas together */
	uint64_t rows, steps, updates; /* training rows here, steps and updates of an epoch */
	uint64_t validation_rows;
	uint64_t all_rows, all_validation_rows; /* over the hosts */
	bool penalty;				/* some tensor has a regulariser */
	uint64_t t;				/* applied updates */
	uint32_t skipped;			/* in a row, f16: the loss scale was too large */

	struct arena arena;
	/* Copies in arena layout. During a run: the state at the epoch's start. Between runs:
	 * scratch for parts; held says what they mirror. */
	float *param, *stat, *slot;
	uint64_t good_t;
	char kept[80]; /* what the good state is, for the user */
	bool held_weights, held_optimizer;
	/*
	 * Several: after a run, the model as it would be if all merged now. model_param is
	 * copy_param, or the arena of the net where all hold the same; NULL: there is none.
	 */
	float *copy_param, *copy_stat, *pool_stat;
	const float *model_param, *model_stat;
	struct {
		float *mean, *good, *saved, *stat; /* good: as of the last good state */
		uint64_t n, good_n;		   /* updates (ema), states (swa) in it */
	} average;
	float *best_param, *best_stat;
	float *extra_best; /* malloc'd, where a snapshot was not foreseen */
	bool has_best;
	float *outputs;
	uint64_t *confusion;
	uint32_t classes;
	bool has_confusion;
	uint8_t *io;
	uint64_t io_bytes;
	struct train_put_state put;
	uint8_t head[TRAIN_SLOTS_MAX][TRAIN_HEAD_MAX]; /* parts.c: what stands before a slot */
	char note[512];

	atomic_bool stop, cancel;
	_Atomic uint32_t at_epoch;
	_Atomic uint64_t at_step, at_rows, at_loss; /* at_loss: bits of a double */
};

int train_backend_err(struct err *err, int rc, const struct backend_error *error, const char *what);
int train_canceled(struct train *train, struct err *err);
double train_now(void);
/* The reader of a set in its fixed order, opened on first use. */
int train_reader(struct train *train, enum row_set set, struct data_reader **out, struct err *err);
/* Fills a batch's rows and what the loss needs; metric_batch may be NULL. */
int train_batch(struct train *train, struct data_reader *reader, uint64_t first, uint32_t n,
		struct backend_batch *batch, struct metric_batch *metrics, struct err *err);
/* Copies the net's arenas out (statistics of replicas: pooled) and in, all replicas. slot may be
 * NULL. */
int train_read_net(struct train *train, float *param, float *stat, float *slot, struct err *err);
int train_write_net(struct train *train, const float *param, const float *stat, const float *slot,
		    struct err *err);
bool train_finite(const float *value, uint64_t n);
int train_merge_err(struct train *train, struct err *err, int rc, const struct merge_error *error,
		    const char *what);

/* ---- stage.c: arenas of devices in host memory ---- */

uint64_t train_stage_bytes(const struct train *train);
/* After the nets are compiled. */
int train_stage_open(struct train *train, struct err *err);
void train_stage_close(struct train *train);
/* Where the host works on an arena of replica k: the net's own, or the copy. */
float *train_host_arena(const struct train *train, uint32_t k, enum backend_arena arena);
/* Device to copy, copy to device; nothing to do where there is no copy. */
int train_stage_in(struct train *train, uint32_t k, enum backend_arena arena, struct err *err);
int train_stage_out(struct train *train, uint32_t k, enum backend_arena arena, struct err *err);
/* Parameters and statistics (and slots) of replica 0: in. */
int train_stage_model(struct train *train, bool slots, struct err *err);
/* A back end's call on replica k failed without a message. */
int train_device_err(const struct train *train, uint32_t k, struct err *err, int rc,
		     const char *what);

/* ---- memory.c: what a training will take ---- */

/* Counts (arena.base NULL) or places everything. */
void train_memory_plan(struct train *train);
/* Of replica 0, which also evaluates. */
void train_net_options(struct train *train, struct backend_net_options *options);
/* join: with the other hosts, if there are any. train.c */
int train_new(const struct train_setup *setup, bool join, struct train **out, struct notice *notice,
	      struct err *err);

/* ---- batches.c: the rows of a step, for all replicas of the host at once ---- */

/* Replicas get their rows from here: they are on devices, or step on threads of their own. */
bool train_batches_wanted(const struct train *train);
/* t->shuffled has been opened: the rows go to the devices, if they are to and fit. */
int train_batches_open(struct train *train, struct err *err);
/* Before the data set goes: devices forget its rows. */
void train_batches_drop(struct train *train);
void train_batches_close(struct train *train);
/* A new epoch: nothing that was read is of use. */
void train_batches_epoch(struct train *train);
/* The rows of step s, and those of the next one, are there after it. */
int train_batches_step(struct train *train, uint64_t s, struct err *err);
/* While step s is computed: rows further ahead. */
int train_batches_ahead(struct train *train, uint64_t s, struct err *err);
/* Replica k's part of step s; next: where the step after it is known. outputs: its own. */
struct batch_part {
	struct backend_batch batch, next;
	struct metric_batch metrics;
	float *outputs;
};
void train_batches_part(struct train *train, uint64_t s, uint32_t k, struct batch_part *part);

/* ---- replicas.c: the copies of the network on this host ---- */

int train_table_make(struct train *train, struct err *err);
/* Several replicas on threads of their own. */
bool train_replicas_apart(const struct train *train);
/* Before the nets are compiled: whether NCCL is there to sum gradients. */
void train_replicas_choose(struct train *train);
/* After the nets are compiled: the all-reduce between them. */
int train_replicas_open(struct train *train, struct err *err);
void train_replicas_close(struct train *train);
/* Sums the gradients of replicas that step in turn. keep: only the host arena of replica 0 counts,
 * of which train_replicas_spread then makes all others; so with one replica on a device, too. */
int train_replicas_reduce(struct train *train, bool keep, struct err *err);
/* Statistics of all replicas together, to out. */
int train_replicas_pool(struct train *train, float *out, struct err *err);
/* Tells that the host arenas of replica 0 were written to, and copies them to the others. */
int train_replicas_spread(struct train *train, bool grad, bool slots, struct err *err);

/* ---- model.c: the merged copy ---- */

int train_model_make(struct train *train, struct err *err);
/* Pools pool_stat of the hosts into copy_stat; *equal: all have the same param. */
int train_model_pool(struct train *train, const float *param, uint64_t rows, bool *equal,
		     struct err *err);
/* *param becomes rank 0's in copy_param where hosts differ. */
int train_model_equalize(struct train *train, const float **param, struct err *err);
/* The merged copy becomes what all replicas hold (statistics; parameters where they differ). */
int train_model_settle(struct train *train, struct err *err);
/* ---- average.c: EMA and SWA ---- */

void train_average_plan(struct train *train, struct arena *arena);
/* What all hold is what the average begins with. */
int train_average_reset(struct train *train, struct err *err);
/* After an update of this host alone. */
int train_average_step(struct train *train, struct err *err);
/* After updates planned updates that led to param, which all hosts hold. */
void train_average_update(struct train *train, const float *param, uint64_t updates);
/* After an epoch: whether its weights count; then they do. */
bool train_average_wants(const struct train *train, uint32_t epochs);
void train_average_epoch(struct train *train, const float *param);
void train_average_keep(struct train *train);
void train_average_back(struct train *train);
/* The model becomes the average, where there is one. All hosts together. */
int train_average_model(struct train *train, struct err *err);

/* What Keras adds to the loss, of parameters in arena layout. */
double train_model_penalty(const struct train *train, const float *param);
/* Loss (regularisers included) and metrics over a set, into the row's validation fields. */
int train_evaluate_set(struct train *train, enum row_set set, struct ctl_run_row *row,
		       struct err *err);

#endif
