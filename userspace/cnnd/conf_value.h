/* SPDX-License-Identifier: MIT */
/* conf_value.h: text of a configuration value to its binary form. Each returns 0, or -EINVAL with
 * the reason, legal range included, in why. */
#ifndef CNND_CONF_VALUE_H
#define CNND_CONF_VALUE_H

#include "conf.h"

#define CONF_WHY 256

/* min, max: inclusive. */
int conf_uint(const char *text, uint64_t min, uint64_t max, uint64_t *out, char why[CONF_WHY]);
/* A number with an optional suffix K, M, G or T (powers of 1024). */
int conf_bytes(const char *text, uint64_t min, uint64_t max, uint64_t *out, char why[CONF_WHY]);
/* Bytes of at least min, or 1% .. 100%. */
int conf_bytes_or_percent(const char *text, uint64_t min, struct conf_amount *out,
			  char why[CONF_WHY]);
/* on, off (also yes, no, true, false). */
int conf_bool(const char *text, bool *out, char why[CONF_WHY]);
/* words: "auto|memfd"; *out is the index of the word. */
int conf_word(const char *text, const char *words, uint32_t *out, char why[CONF_WHY]);
/* User names and ids, separated by spaces or commas. lenient: names that do not exist are left out.
 */
int conf_users(const char *text, bool lenient, struct conf_uids *out, char why[CONF_WHY]);
/* A group name or id, or nothing: (gid_t)-1. */
int conf_group(const char *text, gid_t *out, char why[CONF_WHY]);
/* none | auto | cpu:N | cuda:i,j | cuda:all. */
int conf_devices(const char *text, struct conf_devices *out, char why[CONF_WHY]);
/* A numeric IPv4 or IPv6 address in its usual form; no wildcard. out: CONF_ADDRESS bytes. */
int conf_address(const char *text, char *out, char why[CONF_WHY]);
/* 0, a port, or first-last. */
int conf_ports(const char *text, struct conf_ports *out, char why[CONF_WHY]);
/* Nothing, or a congestion control that this kernel lets this process use. out: 16 bytes. */
int conf_congestion(const char *text, char *out, char why[CONF_WHY]);

/* Names of letters, digits and _ : . / - (a first one may begin with ^: all but these), with commas
 * between them; or nothing. out: CONF_LIST bytes. */
int conf_list(const char *text, char *out, char why[CONF_WHY]);

#endif
