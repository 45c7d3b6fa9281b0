/* SPDX-License-Identifier: MIT */
/*
 * train.h: a training: the configuration (the SQL arguments as JSON), the step loop over a data set
 * and a compiled net, learning rate plan, metrics, early stopping advice, evaluation, prediction,
 * and the parts that move weights and optimizer state in and out. Knows model, data and backend;
 * nothing of sockets or SQL.
 */
#ifndef TRAIN_H
#define TRAIN_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "../../kernels/backend.h"
#include "../../nccl_merge/merge.h"
#include "../base/err.h"
#include "../base/gpulist.h"
#include "../ctl/agree.h"
#include "../ctl/ctl.h"
#include "../data/data.h"
#include "../model/model.h"

enum train_metric {
	TRAIN_ACCURACY = 0,
	TRAIN_TOP_K,
	TRAIN_BINARY_ACCURACY,
	TRAIN_AUC,
	TRAIN_PRECISION,
	TRAIN_RECALL,
	TRAIN_RMSE,
	TRAIN_METRIC_COUNT
};

enum train_schedule {
	TRAIN_CONSTANT = 0,
	TRAIN_STEP,	   /* lr * gamma^floor(epoch / every) */
	TRAIN_EXPONENTIAL, /* lr * gamma^epoch, continuous in steps */
	TRAIN_COSINE,	   /* min_lr + (lr - min_lr) * (1 + cos(pi * t / T)) / 2 */
	TRAIN_PLATEAU
};

enum train_average { TRAIN_NO_AVERAGE = 0, TRAIN_EMA, TRAIN_SWA };

/*
 * The spec: one JSON object; keys are the SQL arguments' names, values their JSON form, null or
 * missing = default. An unknown key, a wrong type or a value out of range is ERR_PARAM that names
 * key, value and the legal range. Names are compared without regard to case.
 *
 * - epochs 10 [1..100000]; batch_size null [1..65536]; accumulate 1 [1..65536]; seed 0
 * - optimizer 'sgd' | adam | adamw | rmsprop | adagrad | adadelta
 * - learning_rate (0..1e6], default .02, and .001 for every optimizer but sgd
 * - momentum .9 [0..1) (sgd; rmsprop only when given); nesterov false; beta_1 .9; beta_2 .999; rho
 * .9 (adadelta .95); epsilon 1e-7; amsgrad; centered; initial_accumulator .1; weight_decay 0 (adamw
 *   .004); clipnorm, clipvalue, global_clipnorm (at most one). An argument that the optimizer does
 *   not have is refused.
 * - lr_schedule: 'constant' | 'step' | 'exponential' | 'cosine' | 'plateau', or with options
 *   'step(every=10, gamma=.1, warmup=1)', 'exponential(gamma=.95)', 'cosine(min_lr=0)',
 *   'plateau(monitor=val_loss, factor=.1, patience=3, min_delta=1e-4, cooldown=0, min_lr=0)';
 * warmup in epochs, for all; patience and cooldown count iterations (evaluate_every epochs)
 * - lr_scaling none | linear | sqrt: with the rows behind one update against 128
 * - loss: 'auto' | categorical_crossentropy | sparse_categorical_crossentropy |
 *   binary_crossentropy | mse | mae; label_smoothing 0; from_logits 'auto' | true | false
 * - metrics: 'accuracy, top_k(k=5)', binary_accuracy, auc, precision, recall, rmse, or 'none';
 *   default accuracy for classes, rmse for regression
 * - evaluate_every 1; validation_fraction 0 [0..1)
 * - class_weight: null | 'balanced' | '{"cat": 2, ...}'
 * - early_stop: null or 'monitor=val_loss, patience=5, min_delta=0, restore_best=true'; without a
 *   monitor: val_loss where there are validation rows, else loss
 * - augment: null or 'flip, pad_crop=4, cutout=8'
 * - normalize (or normalization) 'auto' | none | scale | standardize; normalizing_const null
 * - replicas [1..64]: copies of the network on each host, which share every step's rows; default
 *   one for each of its devices
 * - several hosts (checked, and of no effect on one): merge, a name of merge_preset, 'average';
 *   merge_every N | 'epoch' | 'K epochs' | 'auto', in updates; merge_warmup, epochs of synchronous
 *   steps before the first local one [0..100000]; merge_momentum keep | average | reset; merge_wire
 *   f32 | bf16; merge_eta (0..10] and merge_mu [0..1) (the outer kinds), merge_b (0..1] (easgd),
 *   merge_trim [1..127] (trimmed_mean). What is not given is the preset's.
 * - model_average 'none' | 'ema(decay=.999)' | 'swa(start=EPOCHS)': what is evaluated and stored is
 *   a moving average over the updates (over the merges where hosts are apart), or the mean of the
 *   weights after each epoch past the first `start` (3/4 of all), with statistics made anew
 * - reshuffle auto | on | off, min_hosts: for the coordinator
 * - devices 'auto' | 'cpu' | 'cpu:N' | 'cuda:I,J' | 'cuda:all', precision 'f32' | 'tf32' | 'bf16' |
 *   'f16': whether the host has them is for the caller to say; deterministic true, cache true;
 *   max_bad_rows null = no limit
 * - architecture (text), backend 'cpu' | 'ref' (tests), kind 'train' | 'predict' | 'evaluate' (or
 *   enum ctl_job_kind), model_table
 * - source, dependent, independent, validation_source, id_column, on_exists, warm_start: texts for
 *   the coordinator, checked for their type only
 */
struct train_config {
	uint32_t epochs, batch_size, evaluate_every, accumulate;
	uint32_t replicas; /* 0: not given */
	enum backend_precision precision;
	struct backend_optimizer_config optimizer;
	struct backend_loss_config loss;
	bool loss_auto, logits_auto;
	double learning_rate;
	enum train_schedule schedule;
	double gamma, schedule_every, min_lr, warmup; /* warmup: epochs */
	double plateau_factor, plateau_min_delta;
	uint32_t plateau_patience, plateau_cooldown;
	char plateau_monitor[40]; /* "": val_loss where there are validation rows, else loss */
	uint32_t lr_scaling;	  /* 0 none, 1 linear, 2 sqrt */
	bool metrics_default;	  /* not given: by the kind of labels */
	uint32_t n_metrics;
	struct {
		enum train_metric kind;
		uint32_t k;
	} metric[CTL_METRICS];
	double validation_fraction;
	bool early_stop, early_restore;
	uint32_t early_patience;
	double early_min_delta;
	char early_monitor[40]; /* "val_loss", "loss", "val_accuracy" ...; "": as plateau_monitor */
	bool augment_flip;
	uint32_t augment_pad, augment_cutout;
	uint32_t normalize; /* enum agree_normalize */
	double normalizing_const;
	bool balanced;
	char *class_weight;	     /* JSON object or NULL */
	uint64_t seed, max_bad_rows; /* max_bad_rows: UINT64_MAX = no limit, the default */
	bool deterministic, cache;
	uint32_t kind;	  /* enum ctl_job_kind */
	uint32_t threads; /* of devices 'cpu:N'; 0: not given */
	char *architecture, *devices, *backend, *model_name;
	char *merge, *merge_every; /* NULL: not given */
	uint32_t merge_momentum;   /* enum merge_momentum; UINT32_MAX: the preset's */
	uint32_t merge_wire;	   /* enum merge_wire; UINT32_MAX: the preset's */
	uint32_t merge_trim;	   /* 0: the preset's */
	double merge_warmup;	   /* epochs */
	enum train_average average;
	double average_decay;	/* ema */
	uint32_t average_start; /* swa: epochs before the first that counts; UINT32_MAX: 3/4 */
	double merge_eta, merge_mu, merge_b; /* NaN, merge_warmup too: the preset's */
};

int train_config_parse(const char *json, size_t length, struct train_config *out, struct err *err);
void train_config_free(struct train_config *config);
/* Fills a part's policy fields from the spec; explicit class weights are matched to its labels. */
int train_config_policy(const struct train_config *config, struct agree_block *part,
			struct err *err);
/* How hosts hosts merge: the preset with what the spec says otherwise. updates: of an epoch. */
int train_config_merge(const struct train_config *config, uint32_t hosts, uint64_t updates,
		       struct merge_config *out, struct err *err);

struct train;

struct train_setup {
	const struct train_config *config; /* must outlive the training */
	const struct model *model;	   /* shape known */
	/*
	 * Replica k computes on backends[k % n_backends]; where they are devices there are no more
	 * replicas than that. backends NULL: backend alone. They outlive the training.
	 */
	struct backend *backend;
	struct backend *const *backends;
	uint32_t n_backends;
	/*
	 * The index of each of the backends, as backend_devices counts: replica k steps on a thread
	 * of its own then, and the gradients of GPUs are summed by NCCL where it is there. NULL:
	 * replicas in host memory step in turn, those of devices sum by way of it.
	 */
	const uint32_t *device;
	bool collective;       /* their gradient arenas come from merge_device_alloc */
	bool resident;	       /* devices are to keep the training rows, if they fit */
	uint32_t timeout_ms;   /* of a wait for a device; 0: 60 s */
	struct data_set *data; /* applied */
	const struct agree_block *agreed;
	bool inference; /* predict or evaluate only */
	/*
	 * Several hosts: a net that is connected, all of its ranks make the same training. They
	 * tell each other rows and replicas through it; steps per epoch follow from that (the
	 * agreed block's are of the time before an exchange of rows). NULL: this host alone. The
	 * net outlives the training; who wants to break a wait calls merge_net_abort. train_run
	 * then gives the same row on all hosts, the times aside.
	 */
	struct merge_net *net;
	/* By rank, for messages; NULL: 'host 1', 'host 2'. To outlive the training. */
	const char *const *host_name;
	/* Set by another thread: train_create ends with -ECANCELED. NULL: it cannot be. */
	const atomic_bool *canceled;
	/*
	 * After each committed merge (synchronous steps are merges too), on the thread of
	 * train_run, which waits for it; NULL: not wanted. train_get gives the merged weights.
	 */
	void (*on_merge)(void *context, const struct merge_result *result);
	/* Before each step of this host in a training on several, on the same thread: may hold it.
	 * NULL: not wanted. */
	void (*on_step)(void *context);
	void *context;
};

/*
 * cache = false: the rows are dropped after each run and read again before the next. drop: the
 * training no longer looks at its data set, which may be freed. rows: the same rows again (applied,
 * in whatever order they came); ERR_DATA when their number is another one.
 */
void train_drop_rows(struct train *train);
int train_rows(struct train *train, struct data_set *data, struct err *err);

/* Memory of this host that train_create will take; and of each device (with resident: the rows
 * too), 0 where there is none. */
int train_estimate(const struct train_setup *setup, uint64_t *bytes, struct err *err);
int train_estimate_device(const struct train_setup *setup, uint64_t *bytes, struct err *err);
/* Compiles, initialises the weights by seed. notice: malloc'd lines ("W:" marks warnings), NULL if
 * there are none. */
int train_create(const struct train_setup *setup, struct train **out, char **notice,
		 struct err *err);
void train_free(struct train *train);
void train_apply_ok(const struct train *train, struct ctl_apply_ok *out);
/* Devices hold the training rows: they did fit. */
bool train_resident(const struct train *train);
/* Where the training rows are, and how gradients are summed: for the log. "" in host memory. */
const char *train_devices(const struct train *train);

/* Epochs [first, first + count). Blocks; other threads may call stop, cancel and progress. The
 * row's note is valid until the next call. -ECANCELED after cancel. */
int train_run(struct train *train, const struct ctl_run *run, struct ctl_run_row *row,
	      struct err *err);
/*
 * Between two runs, when the other hosts have met a fault: recovers with them, so that one that had
 * not finished the last call of the run learns that it was made. On an error the job cannot go on.
 */
int train_settle(struct train *train, struct err *err);
void train_stop(struct train *train);	/* finish this step, evaluate, return the row */
void train_cancel(struct train *train); /* return at once */
struct train_progress {
	uint32_t epoch, epochs;
	uint64_t step, steps, rows;
	double loss;
};
void train_progress(struct train *train, struct train_progress *out);

/* Parts of CTL_WEIGHTS, CTL_BEST, CTL_OPTIMIZER, CTL_CONFUSION; *data is valid until the next
 * call. -ENOENT: no such kind (no snapshot, no evaluation yet, an optimizer without state). The
 * confusion matrix has 0 classes where outputs are no classes, or more than 1024. */
int train_get(struct train *train, uint32_t kind, uint32_t part, struct ctl_part *out,
	      struct err *err);
/* In order, part 0 first. Applied when the last one is there. */
int train_put(struct train *train, const struct ctl_part *part, struct err *err);

/* Loss, metrics and confusion matrix over a set, into the row's validation fields. Class weights
 * count for ROW_TRAIN only, as data.h gives them. */
int train_evaluate(struct train *train, enum row_set set, struct ctl_run_row *row, struct err *err);

/* Predictions of ROW_PREDICT in feeding order, batch by batch. The sink returns 0 to go on. */
typedef int (*train_sink_fn)(void *context, const char *id, uint32_t id_bytes, const float *value,
			     uint32_t outputs);
int train_predict(struct train *train, train_sink_fn sink, void *context, struct err *err);
/* One stored row. */
int train_predict_one(struct train *train, const void *row, float *value, struct err *err);

#endif
