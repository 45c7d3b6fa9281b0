// SPDX-License-Identifier: MIT
/* vote.c: see vote.h. */
#include "vote.h"

#include <string.h>

static bool accused(const struct vote *v, uint32_t host)
{
	for (uint32_t i = 0; i < v->hosts; i++)
		if (i != host && v->host[i].member && v->host[i].asks &&
		    wire_in(v->host[i].lost, host))
			return true;
	return false;
}

bool vote_silent(const struct vote *v, uint32_t host, uint64_t now)
{
	const struct vote_host *h = &v->host[host];
	uint64_t quiet = now > h->heard_ms ? now - h->heard_ms : 0;

	return !h->linked || quiet > VOTE_SILENT_MS || (quiet > VOTE_DOUBT_MS && accused(v, host));
}

static bool lives(const struct vote *v, uint32_t host, uint64_t now)
{
	const struct vote_host *h = &v->host[host];

	if (h->member && h->left)
		return !v->asked_ms;
	return h->member && !h->gone && !vote_silent(v, host, now);
}

/* It may still ask. */
static bool waits_for(const struct vote *v, uint32_t host, uint64_t now)
{
	uint64_t grace =
		accused(v, host) && v->patience_ms > VOTE_GRACE_MS ? VOTE_GRACE_MS : v->patience_ms;

	return lives(v, host, now) && !v->host[host].asks && now < v->asked_ms + grace;
}

/* Accusers of a host that are sure, or did so before the last decision, too. */
static uint32_t accusers(const struct vote *v, uint32_t host, const uint8_t set[WIRE_SET],
			 bool again)
{
	uint32_t n = 0;

	for (uint32_t i = 0; i < v->hosts; i++)
		n += i != host && wire_in(set, i) && wire_in(v->host[i].lost, host) &&
		     (v->host[i].sure || (again && wire_in(v->host[i].before, host)));
	return n;
}

static uint32_t most_accused(const struct vote *v, const uint8_t set[WIRE_SET], uint64_t now)
{
	bool again = v->decided_ms && now < v->decided_ms + VOTE_AGAIN_MS;
	uint32_t worst = WIRE_NO_HOST, most = 0;

	for (uint32_t i = 0; i < v->hosts; i++) {
		uint32_t n = wire_in(set, i) ? accusers(v, i, set, again) : 0;

		if (n && n >= most) {
			most = n;
			worst = i;
		}
	}
	return worst;
}

static uint32_t count(const struct vote *v, const uint8_t set[WIRE_SET])
{
	uint32_t n = 0;

	for (uint32_t i = 0; i < v->hosts; i++)
		n += wire_in(set, i);
	return n;
}

/* The first member that is not in the set, one that is gone before the others. */
static uint32_t missing(const struct vote *v, const uint8_t set[WIRE_SET])
{
	uint32_t found = WIRE_NO_HOST;

	for (uint32_t i = v->hosts; i-- > 0;)
		if (v->host[i].member && !wire_in(set, i) &&
		    (found == WIRE_NO_HOST || v->host[i].gone || !v->host[found].gone))
			found = i;
	return found;
}

enum vote_result vote_decide(const struct vote *v, uint64_t now, uint8_t set[WIRE_SET],
			     uint32_t *left, uint32_t *blamed)
{
	bool wait = false;
	uint32_t worst;

	memset(set, 0, WIRE_SET);
	for (uint32_t i = 0; i < v->hosts; i++)
		if (lives(v, i, now))
			wire_add(set, i);
	*left = count(v, set);
	*blamed = missing(v, set);
	if (*left < v->need)
		return VOTE_END;
	if (!v->asked_ms)
		return VOTE_WAIT;
	memset(set, 0, WIRE_SET);
	for (uint32_t i = 0; i < v->hosts; i++) {
		wait |= waits_for(v, i, now);
		if (lives(v, i, now) && v->host[i].asks)
			wire_add(set, i);
	}
	if (wait)
		return VOTE_WAIT;
	worst = most_accused(v, set, now);
	if (worst != WIRE_NO_HOST)
		set[worst / 8] = (uint8_t)(set[worst / 8] & ~(1u << worst % 8));
	*left = count(v, set);
	*blamed = missing(v, set);
	return *left < v->need || !*left ? VOTE_END : VOTE_GO;
}

void vote_settle(struct vote *v, const uint8_t set[WIRE_SET], uint64_t now)
{
	for (uint32_t i = 0; i < v->hosts; i++) {
		struct vote_host *h = &v->host[i];

		h->member = wire_in(set, i);
		h->asks = h->sure = false;
		memcpy(h->before, h->lost, WIRE_SET);
		memset(h->lost, 0, WIRE_SET);
	}
	v->asked_ms = 0;
	v->decided_ms = now;
}
