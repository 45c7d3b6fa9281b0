/* SPDX-License-Identifier: MIT */
/*
 * merge_perf.c: the table and the exit status. Exit 0 only when nothing was wrong and, with
 * MERGE_PERF_MIN_BW set, the average bus bandwidth is at least .9 of it.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include "perf.h"

struct table {
	const struct perf_options *o;
	FILE *json;
	uint64_t rows, values, wrong;
	double busbw;
};

static void stamp(char *out, size_t size)
{
	time_t now = time(NULL);
	struct tm tm;

	strftime(out, size, "%Y-%m-%d %H:%M:%S", gmtime_r(&now, &tm));
}

static void json_text(FILE *f, const char *text)
{
	fputc('"', f);
	for (; *text; text++) {
		if (*text == '"' || *text == '\\')
			fprintf(f, "\\%c", *text);
		else if ((unsigned char)*text < ' ')
			fprintf(f, "\\u%04x", *text);
		else
			fputc(*text, f);
	}
	fputc('"', f);
}

/* The options, never the environment: it may hold secrets. */
static void json_head(const struct table *t)
{
	fprintf(t->json, "{\n\"program\": \"merge_perf\",\n\"args\": [");
	for (int i = 1; i < t->o->argc; i++) {
		fputs(i > 1 ? ", " : "", t->json);
		json_text(t->json, t->o->argv[i]);
	}
	fprintf(t->json, "],\n\"results\": [");
}

static void head(const struct perf_options *o)
{
	uint32_t replicas = o->threads * o->per_thread;
	const char *stamp_head = o->timestamps ? "  timestamp" : "";

	printf("# nThread %u nGpus %u minBytes %llu maxBytes %llu step: %llu(%s) warmup iters: "
	       "%llu iters: %llu "
	       "agg iters: %llu validation: %llu graph: 0\n#\n",
	       o->threads, o->per_thread, (unsigned long long)o->min_bytes,
	       (unsigned long long)o->max_bytes,
	       (unsigned long long)(o->step_factor > 1 ? o->step_factor : o->step_bytes),
	       o->step_factor > 1 ? "factor" : "bytes", (unsigned long long)o->warmup,
	       (unsigned long long)o->iters, (unsigned long long)o->aggregate,
	       (unsigned long long)o->check);
	if (o->level == PERF_INTRA)
		printf("# %u replicas, level intra%s\n#\n", replicas, o->gpus ? ", NCCL" : "");
	else if (o->level == PERF_HIER)
		printf("# %u hosts of %u replicas, level hier, busbw is that between hosts",
		       o->hosts, replicas);
	else
		printf("# %u hosts, level inter", o->hosts);
	if (o->level != PERF_INTRA)
		printf(", transport %s, wire %s%s\n#\n",
		       o->transport == MERGE_TRANSPORT_UCX ? "ucx" : "tcp",
		       o->wire == MERGE_BF16 ? "bf16" : "fp32", o->no_mac ? ", no MAC" : "");
	printf("# %10s  %12s  %8s  %12s  %4s  %32s  %32s  %5s%s\n", "", "", "", "", "",
	       "out-of-place           ", "in-place           ", "", "");
	printf("# %10s  %12s  %8s  %12s  %4s  %7s %7s %7s %7s  %7s %7s %7s %7s  %5s%s\n", "size",
	       "count", "type", "redop", "root", o->cpu_time ? "cpu" : "time", "algbw", "busbw",
	       "#wrong", o->cpu_time ? "cpu" : "time", "algbw", "busbw", "#wrong", "cores",
	       stamp_head);
	printf("# %10s  %12s  %8s  %12s  %4s  %7s %7s %7s %7s  %7s %7s %7s %7s  %5s\n", "(B)",
	       "(elements)", "", "", "", "(us)", "(GB/s)", "(GB/s)", "", "(us)", "(GB/s)", "(GB/s)",
	       "", "");
}

static void print_place(const struct table *t, const struct perf_row *r, int place)
{
	double us = r->place[place].seconds * 1e6;
	char wrong[24] = "N/A";

	if (!r->has[place]) {
		printf("  %7s %7s %7s %7s", "N/A", "N/A", "N/A", "N/A");
		return;
	}
	if (t->o->check)
		snprintf(wrong, sizeof(wrong), "%llu", (unsigned long long)r->place[place].wrong);
	printf("  %7.*f %7.2f %7.2f %7s",
	       us < 100	   ? 2
	       : us < 1000 ? 1
			   : 0,
	       us, r->algbw[place], r->busbw[place], wrong);
}

static void print_row(void *context, struct perf_row *r)
{
	struct table *t = context;
	char when[32] = "";

	printf("  %10llu  %12llu  %8s  %12s  %4d", (unsigned long long)r->bytes,
	       (unsigned long long)r->count, "float", r->redop, -1);
	for (int place = 0; place < 2; place++) {
		print_place(t, r, place);
		if (!r->has[place])
			continue;
		t->values++;
		t->busbw += r->busbw[place];
		t->wrong += r->place[place].wrong;
	}
	printf("  %5.2f", r->cores);
	if (t->o->timestamps) {
		stamp(when, sizeof(when));
		printf("  %s", when);
	}
	printf("\n");
	fflush(stdout);
	if (!t->json)
		return;
	fprintf(t->json,
		"%s\n{\"size\": %llu, \"count\": %llu, \"type\": \"float\", \"redop\": \"%s\", "
		"\"cores\": %.3f",
		t->rows++ ? "," : "", (unsigned long long)r->bytes, (unsigned long long)r->count,
		r->redop, r->cores);
	for (int place = 0; place < 2; place++)
		if (r->has[place])
			fprintf(t->json,
				", \"%s\": {\"time\": %.3f, \"algbw\": %.5f, \"busbw\": %.5f, "
				"\"nwrong\": %llu}",
				place ? "in_place" : "out_of_place", r->place[place].seconds * 1e6,
				r->algbw[place], r->busbw[place],
				(unsigned long long)r->place[place].wrong);
	fprintf(t->json, "}");
}

static int foot(struct table *t)
{
	const char *least = getenv("MERGE_PERF_MIN_BW");
	double average = t->values ? t->busbw / (double)t->values : 0, wanted = -1;
	bool slow;

	if (least) {
		char *end;

		wanted = strtod(least, &end);
		if (end == least || *end) {
			fprintf(stderr, "merge_perf: MERGE_PERF_MIN_BW is no number\n");
			return 2;
		}
	}
	slow = wanted >= 0 && average < .9 * wanted;
	printf("# Out of bounds values : %llu %s\n", (unsigned long long)t->wrong,
	       t->wrong ? "FAILED" : "OK");
	printf("# Avg bus bandwidth    : %g%s\n#\n", average,
	       wanted < 0 ? ""
	       : slow	  ? " FAILED"
			  : " OK");
	if (t->json)
		fprintf(t->json,
			"],\n\"out_of_bounds\": %llu,\n\"average_bus_bandwidth\": %.5f\n}\n",
			(unsigned long long)t->wrong, average);
	return t->wrong || slow ? 1 : 0;
}

int main(int argc, char **argv)
{
	struct perf_options o;
	struct table t = {.o = &o};
	struct perf_shared *shared;
	int rc = perf_parse(argc, argv, &o);

	if (rc)
		return rc == 1 ? 0 : rc;
	shared = mmap(NULL, sizeof(*shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1,
		      0);
	if (shared == MAP_FAILED) {
		fprintf(stderr, "merge_perf: no memory\n");
		return 1;
	}
	if (o.json) {
		t.json = fopen(o.json, "we");
		if (!t.json) {
			fprintf(stderr, "merge_perf: %s: %s\n", o.json, strerror(errno));
			return 1;
		}
		json_head(&t);
		fflush(t.json);
	}
	head(&o);
	rc = perf_start(&o, shared, print_row, &t);
	for (uint32_t r = 0; rc && r < PERF_RANKS; r++)
		if (shared->error[r][0])
			fprintf(stderr, "merge_perf: rank %u: %s\n", r, shared->error[r]);
	if (rc)
		t.wrong++;
	rc = foot(&t);
	if (t.json && fclose(t.json)) {
		fprintf(stderr, "merge_perf: %s: %s\n", o.json, strerror(errno));
		rc = 1;
	}
	munmap(shared, sizeof(*shared));
	return rc;
}
