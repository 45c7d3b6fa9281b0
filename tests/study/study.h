/* SPDX-License-Identifier: MIT */
/* study.h: what the files of the study's driver share: its arguments, rows, hosts. */
#ifndef STUDY_H
#define STUDY_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include "../../userspace/train/train.h"

#define STUDY_HOSTS 64u

enum study_shards { SHARDS_EVEN = 0, SHARDS_SKEWED, SHARDS_SORTED };

struct study_args {
	const char *train, *test; /* n * h * w * c bytes, then n labels */
	uint32_t h, w, c, classes;
	uint32_t train_rows, test_rows; /* in the files */
	uint32_t rows, held;		/* rows trained on; rows of the training file held out */
	uint32_t hosts, epochs;
	enum study_shards shards;
	bool apart;	  /* merge 'none': every host trains by itself */
	const char *spec; /* as gpu_cnn_train's, with architecture */
};

/* Rows in memory, and which of them are used. */
struct study_rows {
	uint8_t *x, *y;
	uint32_t n;
	uint32_t *order; /* a permutation of all of them, the same for every seed */
};

void study_die(const char *what, const char *why) __attribute__((noreturn));
double study_seconds(void);

void study_rows_read(const struct study_args *args, const char *path, uint32_t n, bool shuffled,
		     struct study_rows *out);
/* Whose the first args->rows of the order are: host[i] for place i. */
void study_divide(const struct study_args *args, const struct study_rows *rows, uint32_t *host);
/* A data set of places of the order: training those of host k (host NULL: none), validation every
 * n-th of the places [first, last), from the k-th. */
struct data_set *study_set(const struct study_args *args, const struct study_rows *train,
			   const uint32_t *host, uint32_t k, const struct study_rows *validation,
			   uint32_t first, uint32_t last, uint32_t n);

/* The weights of a training as one blob of floats, malloc'd. */
float *study_weights(struct train *train, uint64_t *floats);

/* Loss and accuracy of a blob over the rows of a judge. */
struct study_judge;
struct study_score {
	double loss, accuracy;
};
struct study_judge *study_judge_new(const struct study_args *args,
				    const struct train_config *config,
				    const struct agree_block *agreed, const struct study_rows *rows,
				    uint32_t first, uint32_t last);
struct study_score study_judge_ask(struct study_judge *judge, const float *blob, uint64_t floats);
void study_judge_free(struct study_judge *judge);

#endif
