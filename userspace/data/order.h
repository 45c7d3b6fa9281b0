/* SPDX-License-Identifier: MIT */
/*
 * order.h: sorting of row numbers by keys that are spread evenly (hashes, random words). Stable:
 * equal keys keep the order they came in.
 */
#ifndef DATA_ORDER_H
#define DATA_ORDER_H

#include <stdint.h>

struct order_key {
	uint64_t key;
	uint32_t row;
} __attribute__((packed, aligned(4)));

/*
 * Sorts n keys. scratch: n keys. Returns the sorted array: key or scratch.
 * compare decides between rows of one key (NULL: they keep their order).
 */
struct order_key *order_sort(struct order_key *key, struct order_key *scratch, uint32_t n,
			     int (*compare)(uint32_t a, uint32_t b, void *context), void *context);

#endif
