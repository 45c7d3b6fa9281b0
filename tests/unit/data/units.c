// SPDX-License-Identifier: MIT
/* units.c: the small parts: exact sums, channel sums, sorting, label table, bad rows. */
#include <float.h>

#include "data_test.h"
#include "../../../userspace/data/bad.h"
#include "../../../userspace/data/exact.h"
#include "../../../userspace/data/label.h"
#include "../../../userspace/data/order.h"
#include "../../../userspace/data/sums.h"

static void test_exact(void)
{
	static const double hard[] = {1e300, 1.0, -1e300, 1e-300, 0x1p-1074, -1.0};
	struct exact s = {0}, a = {0}, b = {0};
	uint64_t seed = 1;
	double v[1000];
	__int128 whole = 0;

	for (size_t i = 0; i < 6; i++)
		exact_add(&s, hard[i]);
	ok(exact_value(&s) == 1e-300, "large values cancel, the small one is left: %g",
	   exact_value(&s));
	exact_add(&s, -1e-300);
	ok(exact_value(&s) == 0x1p-1074, "the smallest double is left: %g", exact_value(&s));
	memset(&s, 0, sizeof(s));
	exact_add(&s, -3.5);
	ok(exact_value(&s) == -3.5, "a negative sum");
	memset(&s, 0, sizeof(s));
	for (int i = 0; i < 10; i++)
		exact_add(&s, 0.1);
	/* ten times the double nearest to .1 is 1 + 5.55e-17, which rounds to 1; plain addition
	 * gives .9999999999999999 */
	ok(exact_value(&s) == 1.0, "ten times .1: %.17g", exact_value(&s));
	memset(&s, 0, sizeof(s));
	for (int i = 0; i < 1000; i++) {
		int64_t n = (int64_t)next_random(&seed) >> 12; /* 52 bits */

		v[i] = (double)n * 0x1p-20;
		whole += n;
		exact_add(&s, v[i]);
		exact_add(i % 3 ? &a : &b, v[i]);
	}
	ok(exact_value(&s) == (double)whole * 0x1p-20, "as integers of 128 bits");
	exact_merge(&b, &a);
	ok(exact_value(&b) == exact_value(&s), "split and merged");
	memset(&a, 0, sizeof(a));
	for (int i = 999; i >= 0; i--)
		exact_add(&a, v[i]);
	ok(exact_value(&a) == exact_value(&s), "backwards");
}

/* Sums of rows in two halves against a plain loop. */
static void test_sums_of(enum backend_dtype type, uint32_t channels, uint32_t pixels,
			 const char *name)
{
	enum { ROWS = 7 };
	size_t element = backend_dtype_bytes(type), row = pixels * channels * element;
	uint8_t *x = malloc(row * ROWS);
	struct sums *a = sums_create(type, channels), *b = sums_create(type, channels),
		    *all = sums_create(type, channels);
	double *sum = calloc(4 * channels, sizeof(*sum)), *sum2 = sum + channels;
	double *one = sum2 + channels, *two = one + channels;
	long double *want = calloc(2 * channels, sizeof(*want));
	uint64_t seed = 9;
	double worst = 0;

	for (size_t i = 0; i < row * ROWS / element; i++) {
		uint64_t r = next_random(&seed);
		int16_t s = (int16_t)r;
		int32_t n = (int32_t)r;
		float f = (float)(int32_t)r * 1e-3f;
		double d = (double)(int32_t)r * 1e-3;
		long double v = type == BACKEND_U8    ? (uint8_t)r
				: type == BACKEND_I16 ? s
				: type == BACKEND_I32 ? n
				: type == BACKEND_F32 ? (long double)f
						      : (long double)d;

		switch (type) {
		case BACKEND_U8:
			x[i] = (uint8_t)r;
			break;
		case BACKEND_I16:
			memcpy(x + 2 * i, &s, 2);
			break;
		case BACKEND_I32:
			memcpy(x + 4 * i, &n, 4);
			break;
		case BACKEND_F32:
			memcpy(x + 4 * i, &f, 4);
			break;
		default:
			memcpy(x + 8 * i, &d, 8);
			break;
		}
		want[i % channels] += v;
		want[channels + i % channels] += v * v;
	}
	for (int i = 0; i < ROWS; i++) {
		sums_add(i % 2 ? a : b, x + row * (size_t)(ROWS - 1 - i), pixels);
		sums_add(all, x + row * (size_t)i, pixels);
	}
	sums_merge(a, b);
	sums_value(a, sum, sum2);
	sums_value(all, one, two);
	ok(!memcmp(sum, one, 2 * channels * sizeof(*sum)), "%s: split and reversed, equal bits",
	   name);
	for (uint32_t c = 0; c < 2 * channels; c++) {
		double e = (double)fabsl((long double)sum[c] - want[c]) /
			   ((double)fabsl(want[channels + c % channels]) + 1);

		worst = e > worst ? e : worst;
	}
	ok(worst < 1e-12, "%s: right (relative %g)", name, worst);
	sums_free(a);
	sums_free(b);
	sums_free(all);
	free(x);
	free(sum);
	free(want);
}

static void test_sums(void)
{
	test_sums_of(BACKEND_U8, 1, 784, "bytes, 1 channel");
	test_sums_of(BACKEND_U8, 3, 1024, "bytes, 3 channels");
	test_sums_of(BACKEND_U8, 4, 35, "bytes, 4 channels");
	test_sums_of(BACKEND_U8, 5, 100, "bytes, 5 channels");
	test_sums_of(BACKEND_U8, 1, 4000000, "bytes, many (lanes are emptied)");
	test_sums_of(BACKEND_I16, 3, 100, "i16");
	test_sums_of(BACKEND_I32, 2, 100, "i32");
	test_sums_of(BACKEND_F32, 3, 100, "f32");
	test_sums_of(BACKEND_F32, 784, 1, "f32, flat");
	test_sums_of(BACKEND_F64, 1, 99, "f64");
}

static uint64_t *second; /* second half of a key, by row */

static int compare_second(uint32_t a, uint32_t b, void *context)
{
	return (second[a] > second[b]) - (second[a] < second[b]);
}

static void test_order_of(uint32_t n, uint64_t mask, bool by_second, const char *name)
{
	struct order_key *key = malloc((n + 1) * sizeof(*key)),
			 *scratch = malloc((n + 1) * sizeof(*key)), *sorted;
	uint64_t *first = malloc((n + 1) * sizeof(*first)), seed = 77;
	uint8_t *seen = calloc(n + 1, 1);
	bool right = true;

	second = malloc((n + 1) * sizeof(*second));
	for (uint32_t i = 0; i < n; i++) {
		first[i] = next_random(&seed) & mask;
		second[i] = next_random(&seed) & 3;
		key[i] = (struct order_key){first[i], i};
	}
	sorted = order_sort(key, scratch, n, by_second ? compare_second : NULL, NULL);
	for (uint32_t i = 0; i < n; i++) {
		uint32_t r = sorted[i].row, q = i ? sorted[i - 1].row : 0;

		right &= !seen[r]++ && sorted[i].key == first[r];
		if (!i)
			continue;
		right &= first[q] <= first[r];
		if (first[q] == first[r] && by_second)
			right &= second[q] <= second[r];
		if (first[q] == first[r] && (!by_second || second[q] == second[r]))
			right &= q < r; /* stable */
	}
	ok(right, "%s", name);
	free(key);
	free(scratch);
	free(first);
	free(second);
	free(seen);
}

static void test_order(void)
{
	for (uint32_t n = 0; n < 60; n += 7)
		test_order_of(n, ~0ull, true, "few keys");
	test_order_of(100000, ~0ull, false, "100,000 spread keys");
	test_order_of(100000, 0xffff, true, "keys that differ in low bits only");
	test_order_of(100000, 0xffffull << 40, true, "many equal keys");
	test_order_of(5000, 0, true, "all keys equal, by the second half");
	test_order_of(5000, 0, false, "all keys equal: as they came");
}

static void test_labels(void)
{
	struct label_table t = {0};
	bool right = true;
	char text[32];
	uint32_t n;

	is(label_find(&t, "x", 1), -1, "nothing in an empty table");
	for (int i = 0; i < 5000; i++) {
		snprintf(text, sizeof(text), "label %d", i * 7);
		right &= label_find(&t, text, (uint32_t)strlen(text)) < 0;
		right &= label_add(&t, text, (uint32_t)strlen(text), (uint32_t)i) == i;
	}
	for (int i = 0; i < 5000; i++) {
		snprintf(text, sizeof(text), "label %d", i * 7);
		right &= label_find(&t, text, (uint32_t)strlen(text)) == i;
		right &= !memcmp(label_text(&t, (uint32_t)i, &n), text, strlen(text)) &&
			 n == strlen(text) && t.value[i].tag == (uint32_t)i;
	}
	ok(right, "5,000 labels are found again");
	is(label_add(&t, "", 0, 0), 5000, "an empty label is a label");
	is(label_find(&t, "", 0), 5000, "and found");
	is(label_find(&t, "label 3", 7), -1, "one that is not there");
	label_table_free(&t);
}

static void test_utf8(void)
{
	static const struct {
		const char *in, *out;
	} t[] = {
		{"plain", "plain"},
		{"caf\xc3\xa9", "caf\xc3\xa9"},
		{"\xe2\x82\xac\xf0\x9f\x98\x80", "\xe2\x82\xac\xf0\x9f\x98\x80"},
		{"a\xff"
		 "b",
		 "a?b"},
		{"\xc0\xaf", "??"},	      /* overlong */
		{"\xed\xa0\x80", "???"},      /* surrogate */
		{"\xf4\x90\x80\x80", "????"}, /* past U+10FFFF */
		{"\xe2\x82", "??"},	      /* cut */
		{"a\nb\x1b[31m", "a?b?[31m"}, /* control characters */
	};
	char out[64];

	for (size_t i = 0; i < sizeof(t) / sizeof(t[0]); i++) {
		utf8_clean(out, sizeof(out), t[i].in, strlen(t[i].in));
		is_str(out, t[i].out, "clean text");
	}
	utf8_clean(out, 5, "abc\xc3\xa9", 5);
	is_str(out, "abc", "cut before a character, not in it");
	utf8_clean(out, sizeof(out), "a\0b", 3);
	is_str(out, "a?b", "a zero byte");
}

static void test_bad(void)
{
	struct bad_rows bad = {.max = 3};
	struct err err = {0};

	is(bad_rows_add(&bad, ROW_TRAIN, "10", "r", false, &err), 0, "first");
	is(bad_rows_add(&bad, ROW_VALIDATION, "1", "r", false, &err), 0, "second");
	is(bad_rows_add(&bad, ROW_TRAIN, "9", "r", true, &err), 0, "third");
	bad_rows_sort(&bad);
	ok(!strcmp(bad.row[0].id, "9") && !strcmp(bad.row[1].id, "10") &&
		   bad.row[2].set == ROW_VALIDATION,
	   "sorted by set, then number");
	is(bad_rows_add(&bad, ROW_TRAIN, "11", "is broken", false, &err), -EBADMSG,
	   "one more than max_bad_rows");
	like(err.message, "4 rows cannot be used, max_bad_rows is 3; row 11: is broken",
	     "count, limit, row and reason");
	like(err.hint, "row 9: r", "and the first one");
	is(bad.n, 3, "kept: the first three");
	is(bad_rows_total(&bad), 4, "counted: all");
	bad_rows_free(&bad);

	bad = (struct bad_rows){.max = 1000};
	is(bad_rows_add(&bad, ROW_TRAIN, "1", "r", true, &err), 0, "a crash");
	is(bad_rows_add(&bad, ROW_TRAIN, "2", "r", true, &err), 0, "two crashes");
	is(bad_rows_add(&bad, ROW_TRAIN, "3", "r", true, &err), -EBADMSG, "three end the job");
	like(err.message, "3 images ended or hung the decoder", "and say so");
	bad_rows_free(&bad);

	bad = (struct bad_rows){.max = UINT64_MAX};
	for (int i = 0; i < 200000; i++)
		bad_rows_add(&bad, ROW_TRAIN, "some id of a row",
			     "some reason that is as long as reasons are, about one hundred bytes "
			     "of text or a little more",
			     false, &err);
	ok(bad.bytes <= BAD_KEPT_BYTES && bad.n < 200000 && bad.count[ROW_TRAIN] == 200000,
	   "a list of bounded size (%zu rows), an exact count", bad.n);
	bad_rows_free(&bad);
}

int main(void)
{
	test_exact();
	test_sums();
	test_order();
	test_labels();
	test_utf8();
	test_bad();
	return done();
}
