/* SPDX-License-Identifier: MIT */
/*
 * reduce.c: what is computed per coordinate, against values worked out by hand or by a second
 * computation in long double; pooled moments against the moments of the pooled data.
 */
#include "group.h"

static void means(void)
{
	float a[3] = {1, 2, .1f}, b[3] = {3, 6, .1f}, out[3];
	const float *in[2] = {a, b};
	uint64_t n[2] = {1, 3}, none[2] = {0, 0}, big[2] = {123456789, 98765432}, skip[2] = {0, 5};

	merge_mean(2, in, n, out, 3);
	ok(out[0] == 2.5f && out[1] == 5, "weights are numbers of samples");
	merge_mean(2, in, big, out, 3);
	ok(out[2] == .1f, "equal values stay equal to the last bit");
	merge_mean(2, in, none, out, 3);
	ok(out[0] == 2 && out[1] == 4, "without samples the weights are equal");
	a[0] = NAN;
	merge_mean(2, in, skip, out, 3);
	ok(out[0] == 3, "a host without samples takes no part, whatever it holds");
}

/* 1000 values per host around 30: the float moments of each, pooled, against those of all 4000 */
static void moments(void)
{
	enum { HOSTS = 4, ROWS = 1000 };
	float mean[HOSTS], var[HOSTS], mu, v;
	const float *pm[HOSTS], *pv[HOSTS];
	uint64_t n[HOSTS], s = 3;
	long double sum = 0, sum2 = 0, x[HOSTS][ROWS], mean_var = 0;
	uint64_t rows = 0;

	for (int h = 0; h < HOSTS; h++) {
		long double m = 0, q = 0;

		n[h] = ROWS / (h + 1);
		for (uint64_t i = 0; i < n[h]; i++) {
			x[h][i] = 30 + .03 * normal(&s) + .01 * h;
			m += x[h][i];
		}
		m /= n[h];
		for (uint64_t i = 0; i < n[h]; i++)
			q += (x[h][i] - m) * (x[h][i] - m);
		mean[h] = (float)m;
		var[h] = (float)(q / n[h]);
		mean_var += n[h] * (q / n[h]);
		sum += m * n[h];
		rows += n[h];
		pm[h] = &mean[h];
		pv[h] = &var[h];
	}
	sum /= rows;
	for (int h = 0; h < HOSTS; h++)
		for (uint64_t i = 0; i < n[h]; i++)
			sum2 += (x[h][i] - sum) * (x[h][i] - sum);
	sum2 /= rows;
	merge_moments(HOSTS, pm, pv, n, &mu, &v, 1);
	near(mu, sum, 3e-6, "pooled mean");
	near(v, sum2, 1e-3 * sum2, "pooled variance at mean 30");
	ok(fabsl(mean_var / rows - sum2) > .03 * sum2, "a mean of variances is another number");
}

static void statistics(void)
{
	struct merge_tensor t[4] = {
		{.name = "mean", .policy = MERGE_MEAN, .statistic = true, .count = 1, .pair = 1},
		{.name = "var",
		 .policy = MERGE_VARIANCE,
		 .statistic = true,
		 .offset = 4,
		 .count = 1},
		{.name = "seen",
		 .policy = MERGE_COUNTER,
		 .statistic = true,
		 .offset = 8,
		 .count = 1},
		{.name = "fix", .policy = MERGE_COPIED, .statistic = true, .offset = 9, .count = 1},
	};
	struct merge_table table = {.tensor = t, .n = 4, .stat_floats = 10};
	float a[10] = {1, 0, 0, 0, 2, 0, 0, 0, 7, 5}, b[10] = {5, 0, 0, 0, 2, 0, 0, 0, 9, 6};
	float out[10] = {0};
	const float *in[2] = {a, b};
	uint64_t n[2] = {3, 1};

	is(merge_table_check(&table, NULL), 0, "a table with a pair is good");
	merge_statistics(&table, 2, in, n, out);
	/* mean 2; variance 2 + .75 * 1 + .25 * 9 = 5 */
	ok(out[0] == 2 && out[4] == 5, "mean and variance of a pair");
	ok(out[8] == 9 && out[9] == 5, "a counter takes the largest, a copied tensor rank 0's");
	t[1].pair = 3;
	is(merge_table_check(&table, NULL), -EINVAL, "a pair that does not point back is refused");
}

static void tables(void)
{
	struct merge_tensor t[2] = {{.name = "a", .count = 4},
				    {.name = "b", .offset = 4, .count = 4}};
	struct merge_table table = {.tensor = t, .n = 2, .param_floats = 8};
	uint64_t h = merge_table_hash(&table);
	struct merge_error e;

	is(merge_table_check(&table, &e), 0, "a plain table");
	t[1].offset = 3;
	is(merge_table_check(&table, &e), -EINVAL, "overlap");
	like(e.message, "'b'", "the message names the tensor");
	t[1].offset = 5;
	is(merge_table_check(&table, &e), -EINVAL, "past the end");
	t[1].offset = UINT64_MAX - 2;
	is(merge_table_check(&table, &e), -EINVAL, "offset + count wraps round");
	t[1].offset = 4;
	ok(merge_table_hash(&table) == h, "the hash is a function of the table");
	t[1].name[0] = 'c';
	ok(merge_table_hash(&table) != h, "another name, another hash");
	t[1].name[0] = 'b';
	t[1].policy = MERGE_COPIED;
	ok(merge_table_hash(&table) != h, "another policy, another hash");
}

static void bf16(void)
{
	ok(merge_to_bf16(1) == 0x3f80 && merge_from_bf16(0x3f80) == 1, "1 is exact");
	/* 1 + 2^-8 lies between 1 and 1 + 2^-7: to even; 1 + 3 * 2^-8 rounds up to 1 + 2^-6 */
	ok(merge_from_bf16(merge_to_bf16(1.00390625f)) == 1, "a tie goes to even, down");
	ok(merge_from_bf16(merge_to_bf16(1.01171875f)) == 1.015625f, "a tie goes to even, up");
	ok(isnan(merge_from_bf16(merge_to_bf16(NAN))), "NaN stays");
	ok(isinf(merge_from_bf16(merge_to_bf16(INFINITY))), "infinity stays");
	ok(isinf(merge_from_bf16(merge_to_bf16(3.4e38f))), "past the largest: infinity");
	ok(merge_from_bf16(merge_to_bf16(-0.f)) == 0 && signbit(merge_from_bf16(0x8000)), "-0");
}

static void averages(void)
{
	float ema = 0, swa = 4, one = 1, x[3] = {4, 7, 1};

	merge_ema(&ema, &one, 1, .999, 0);
	near(ema, .9, 1e-7, "ema: the first decay is 1/10");
	merge_ema(&ema, &one, 1, .999, 1);
	near(ema, .9 * 2 / 11 + 9. / 11, 1e-7, "the second is 2/11");
	ema = 0;
	merge_ema(&ema, &one, 1, .999, 1000000);
	near(ema, .001, 1e-8, "later .999");
	merge_swa(&swa, &x[1], 1, 1);
	merge_swa(&swa, &x[2], 1, 2);
	near(swa, 4, 1e-6, "swa of 4, 7, 1");
}

int main(void)
{
	means();
	moments();
	statistics();
	tables();
	bf16();
	averages();
	return done();
}
