// SPDX-License-Identifier: MIT
/*
 * agree_skew.c: how far the hosts' rows are from even shards. Class skew between hosts costs more
 * accuracy than any choice of the merge function (docs/convergence.md), so it is measured.
 */
#include "agree.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

static bool classes(uint32_t labels)
{
	return labels == AGREE_INT || labels == AGREE_TEXT || labels == AGREE_BOOL;
}

static int sort_int(const void *a, const void *b)
{
	return agree_order(AGREE_INT, a, b);
}

static int sort_bytes(const void *a, const void *b)
{
	return agree_order(AGREE_TEXT, a, b);
}

/* Labels of all parts that have training rows: sorted, each once, with counts added. */
static int all_labels(const struct agree_block *part, size_t n, struct agree_block *all,
		      double *rows, struct err *err)
{
	size_t total = 0, at = 0;

	for (size_t i = 0; i < n; i++) {
		if (!part[i].rows[0] || !part[i].n_labels)
			continue;
		if (total && part[i].labels != all->labels)
			return err_set(err, ERR_DATA, -EINVAL,
				       "labels of the hosts are of different kinds");
		all->labels = part[i].labels;
		total += part[i].n_labels;
	}
	if (!total || !classes(all->labels))
		return 0;
	all->label = malloc(total * sizeof(*all->label));
	if (!all->label)
		return err_set(err, ERR_LIMIT, -ENOMEM, "out of memory for %zu labels", total);
	for (size_t i = 0; i < n; i++) {
		if (!part[i].rows[0] || !part[i].n_labels)
			continue;
		memcpy(all->label + at, part[i].label, part[i].n_labels * sizeof(*all->label));
		at += part[i].n_labels;
	}
	qsort(all->label, total, sizeof(*all->label),
	      all->labels == AGREE_INT ? sort_int : sort_bytes);
	*rows = 0;
	for (size_t i = 0; i < total; i++) {
		struct agree_label *last = all->label + all->n_labels;

		*rows += (double)all->label[i].count;
		if (all->n_labels && !agree_order(all->labels, last - 1, &all->label[i]))
			last[-1].count += all->label[i].count;
		else
			all->label[all->n_labels++] = all->label[i];
	}
	return 0;
}

/* 1/2 sum_l |p_k(l) - p(l)|; count: room for one number a label. */
static double distance_of(const struct agree_block *part, const struct agree_block *all,
			  double all_rows, uint64_t *count)
{
	double rows = 0, sum = 0;

	memset(count, 0, all->n_labels * sizeof(*count));
	for (uint32_t i = 0; i < part->n_labels; i++) {
		const struct agree_label *l = &part->label[i];
		int32_t at = agree_find(all, l->value, l->bytes);

		if (at < 0)
			continue;
		count[at] += l->count;
		rows += (double)l->count;
	}
	if (rows == 0 || all_rows == 0)
		return 0;
	for (uint32_t i = 0; i < all->n_labels; i++)
		sum += fabs((double)count[i] / rows - (double)all->label[i].count / all_rows);
	return sum / 2;
}

int agree_skew(const struct agree_block *part, size_t n, double *distance, double *ratio,
	       struct err *err)
{
	struct agree_block all = {0};
	uint64_t least = UINT64_MAX, most = 0, *count = NULL;
	double rows = 0;
	int rc;

	if (!n)
		return err_set(err, ERR_INTERNAL, -EINVAL, "no parts to compare");
	rc = all_labels(part, n, &all, &rows, err);
	if (!rc && all.n_labels) {
		count = malloc(all.n_labels * sizeof(*count));
		if (!count)
			rc = err_set(err, ERR_LIMIT, -ENOMEM, "out of memory for %u labels",
				     all.n_labels);
	}
	for (size_t i = 0; i < n && !rc; i++) {
		least = part[i].rows[0] < least ? part[i].rows[0] : least;
		most = part[i].rows[0] > most ? part[i].rows[0] : most;
		distance[i] = 0;
		if (count && part[i].rows[0])
			distance[i] = distance_of(&part[i], &all, rows, count);
	}
	if (!rc)
		*ratio = !most ? 1 : !least ? INFINITY : (double)most / (double)least;
	free(count);
	free(all.label);
	return rc;
}
