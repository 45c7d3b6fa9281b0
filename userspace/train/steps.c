// SPDX-License-Identifier: MIT
/*
 * steps.c: how an epoch is cut into steps and a step over replicas. The same arithmetic on every
 * host, so that nobody has to tell the others: host i takes rows [floor(s*n/S), floor((s+1)*n/S))
 * of its epoch order at step s, its replica k rows [floor(k*m/R), floor((k+1)*m/R)) of those m.
 */
#include "internal.h"

uint64_t train_steps_per_epoch(const uint64_t *rows, const uint32_t *replicas, size_t hosts,
			       uint32_t batch)
{
	uint64_t steps = 1;

	for (size_t i = 0; i < hosts; i++) {
		uint64_t call = (uint64_t)(replicas[i] ? replicas[i] : 1) * (batch ? batch : 1);
		uint64_t need = rows[i] / call + (rows[i] % call != 0);

		if (need > steps)
			steps = need;
	}
	return steps;
}

/* floor(part * n / parts) without overflow */
static uint64_t cut(uint64_t part, uint64_t n, uint64_t parts)
{
	return (uint64_t)((unsigned __int128)part * n / parts);
}

struct steps_range train_steps_of_host(uint64_t rows, uint64_t steps, uint64_t s)
{
	struct steps_range r = {cut(s, rows, steps), 0};

	r.n = cut(s + 1, rows, steps) - r.first;
	return r;
}

struct steps_range train_steps_of_replica(struct steps_range host, uint32_t replicas, uint32_t k)
{
	uint64_t begin = cut(k, host.n, replicas), end = cut((uint64_t)k + 1, host.n, replicas);

	return (struct steps_range){host.first + begin, end - begin};
}
