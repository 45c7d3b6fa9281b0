/* SPDX-License-Identifier: MIT */
/* config.h: the table of the spec's keys, between config.c and config_keys.c only. */
#ifndef TRAIN_CONFIG_H
#define TRAIN_CONFIG_H

#include "internal.h"

#define CONFIG_NOWHERE SIZE_MAX
#define CONFIG_LOSS_AUTO 1000u /* what 'auto' leaves in loss.loss until config.c settles it */

struct config_choice {
	const char *name;
	uint32_t value;
};

enum config_kind {
	KEY_U32,
	KEY_U64,
	KEY_DOUBLE,
	KEY_FLOAT,
	KEY_BOOL,
	KEY_CHOICE, /* 4-byte enum or u32 */
	KEY_TEXT,   /* char *, malloc'd */
	KEY_OTHER,  /* text that only the coordinator uses */
	KEY_CALL    /* text with a grammar of its own */
};

struct config_key {
	const char *name;
	enum config_kind kind;
	size_t offset; /* in struct train_config, or CONFIG_NOWHERE */
	struct options_bound bound;
	const struct config_choice *choice;
	bool number; /* choice: its number will do, too */
	bool keep;   /* choice: the name itself is kept, at offset */
	int (*call)(struct train_config *c, const char *text, struct err *err);
};

/* The table, *n keys. */
const struct config_key *train_config_keys(size_t *n);

#endif
