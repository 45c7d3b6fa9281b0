/* SPDX-License-Identifier: MIT */
/*
 * options.c: the command line: the options of nccl-tests, and a few more.
 */
#include <getopt.h>
#include <stdlib.h>
#include <string.h>
#include "perf.h"

enum {
	OPT_MERGE = 256,
	OPT_HOSTS,
	OPT_LEVEL,
	OPT_WIRE,
	OPT_NETNS,
	OPT_ADDRESS,
	OPT_RING,
	OPT_NO_MAC,
	OPT_GPUS,
	OPT_TRANSPORT,
	OPT_UCX_TLS,
	OPT_UCX_DEVICES,
	OPT_CPUS
};

static const struct option longs[] = {
	{"minbytes", 1, 0, 'b'},
	{"maxbytes", 1, 0, 'e'},
	{"stepbytes", 1, 0, 'i'},
	{"stepfactor", 1, 0, 'f'},
	{"iters", 1, 0, 'n'},
	{"warmup_iters", 1, 0, 'w'},
	{"agg_iters", 1, 0, 'm'},
	{"check", 1, 0, 'c'},
	{"datatype", 1, 0, 'd'},
	{"op", 1, 0, 'o'},
	{"run_cycles", 1, 0, 'N'},
	{"average", 1, 0, 'a'},
	{"timeout", 1, 0, 'T'},
	{"report_cputime", 1, 0, 'C'},
	{"output_file", 1, 0, 'J'},
	{"report_timestamps", 1, 0, 'S'},
	{"nthreads", 1, 0, 't'},
	{"ngpus", 1, 0, 'g'},
	{"help", 0, 0, 'h'},
	{"merge", 1, 0, OPT_MERGE},
	{"hosts", 1, 0, OPT_HOSTS},
	{"level", 1, 0, OPT_LEVEL},
	{"wire", 1, 0, OPT_WIRE},
	{"netns", 1, 0, OPT_NETNS},
	{"address", 1, 0, OPT_ADDRESS},
	{"ring_from", 1, 0, OPT_RING},
	{"no_mac", 0, 0, OPT_NO_MAC},
	{"gpus", 0, 0, OPT_GPUS},
	{"transport", 1, 0, OPT_TRANSPORT},
	{"ucx_tls", 1, 0, OPT_UCX_TLS},
	{"ucx_devices", 1, 0, OPT_UCX_DEVICES},
	{"cpus", 1, 0, OPT_CPUS},
	{0, 0, 0, 0},
};

static const char help[] =
	"usage: merge_perf [options]\n"
	"  -b, --minbytes SIZE        smallest message (32M)\n"
	"  -e, --maxbytes SIZE        largest message (32M)\n"
	"  -i, --stepbytes SIZE       increment (1M)\n"
	"  -f, --stepfactor N         factor instead of an increment\n"
	"  -n, --iters N              timed operations (20)\n"
	"  -w, --warmup_iters N       operations before them (1)\n"
	"  -m, --agg_iters N          operations per iteration (1)\n"
	"  -c, --check N              checked runs, 0: none (1)\n"
	"  -d, --datatype float|all   there is one\n"
	"  -o, --op sum|max|min|avg|all  reduction of the plain all-reduce (sum)\n"
	"  -N, --run_cycles N         the whole table N times, 0: for ever (1)\n"
	"  -a, --average 0|1|2|3      time of rank 0, mean, smallest, largest (1)\n"
	"  -T, --timeout SECONDS      of one operation without progress\n"
	"  -C, --report_cputime 0|1   processor time of the ranks instead of elapsed time (0)\n"
	"  -S, --report_timestamps 0|1  when each row was printed (0); -I is the same\n"
	"  -J, --output_file FILE     the same as JSON\n"
	"  -t, --nthreads N           threads of a host, with --level intra or hier (2)\n"
	"  -g, --ngpus N              replicas per thread, likewise (1)\n"
	"      --level intra|inter|hier  replicas of one process; hosts; replicas of hosts "
	"(inter)\n"
	"      --hosts N              hosts, with --level inter or hier (2)\n"
	"      --merge NAME           a merge function instead of the plain all-reduce\n"
	"      --wire fp32|bf16       what a merge sends\n"
	"      --transport tcp|ucx    what carries the rounds between hosts (tcp)\n"
	"      --ucx_tls LIST         UCX_TLS\n"
	"      --ucx_devices LIST     UCX_NET_DEVICES\n"
	"      --netns A,B,...        network namespace of each host\n"
	"      --address A,B,...      address of each host (127.0.0.1)\n"
	"      --cpus A,B,...         processor of each host, repeated for more hosts\n"
	"      --ring_from SIZE       from this size on the ring, instead of the fixed table\n"
	"      --no_mac               frames without MAC\n"
	"      --gpus                 replicas on GPUs 0, 1, .. by NCCL, with --level intra or "
	"hier\n";

static bool number(const char *text, uint64_t least, uint64_t most, uint64_t *out)
{
	char *end;
	unsigned long long v = strtoull(text, &end, 10);
	int shift = 0;

	if (text[0] < '0' || text[0] > '9')
		return false;
	if (*end && strchr("KkMmGg", *end) && !end[1])
		shift = strchr("Kk", *end) ? 10 : strchr("Mm", *end) ? 20 : 30;
	else if (*end)
		return false;
	if (v > most >> shift || v << shift < least)
		return false;
	*out = v << shift;
	return true;
}

static bool choice(const char *text, const char *const *names, int *out)
{
	for (int i = 0; names[i]; i++)
		if (!strcmp(text, names[i])) {
			*out = i;
			return true;
		}
	return false;
}

static bool take_number(struct perf_options *o, int c, const char *arg)
{
	static const uint64_t big = 1ull << 36;
	uint64_t v = 0;
	bool good;

	switch (c) {
	case 'b':
		return number(arg, 4, big, &o->min_bytes);
	case 'e':
		return number(arg, 4, big, &o->max_bytes);
	case 'i':
		return number(arg, 4, big, &o->step_bytes);
	case 'f':
		return number(arg, 2, 1024, &o->step_factor);
	case 'n':
		return number(arg, 1, 1u << 24, &o->iters);
	case 'w':
		return number(arg, 0, 1u << 24, &o->warmup);
	case 'm':
		return number(arg, 1, 1u << 16, &o->aggregate);
	case 'N':
		return number(arg, 0, 1u << 16, &o->cycles);
	case 'c':
		return number(arg, 0, 1u << 16, &o->check);
	case OPT_RING:
		return number(arg, 1, UINT64_MAX, &o->ring_from);
	}
	good = number(arg, c == 't' || c == 'g' || c == OPT_HOSTS ? 1 : 0,
		      c == 'a'				       ? 3
		      : c == 'T'			       ? 86400
		      : c == 't' || c == 'g' || c == OPT_HOSTS ? PERF_RANKS
							       : 1,
		      &v);
	if (c == 'a')
		o->average = (int)v;
	if (c == 'T')
		o->timeout = (unsigned int)v;
	if (c == 'C')
		o->cpu_time = v;
	if (c == 'S' || c == 'I')
		o->timestamps = v;
	if (c == 't')
		o->threads = (uint32_t)v;
	if (c == 'g')
		o->per_thread = (uint32_t)v;
	if (c == OPT_HOSTS)
		o->hosts = (uint32_t)v;
	return good;
}

static bool take_op(struct perf_options *o, const char *arg)
{
	int op;

	if (!strcmp(arg, "all")) {
		o->op_first = MERGE_OP_SUM;
		o->op_last = MERGE_OP_AVG;
		return true;
	}
	for (op = MERGE_OP_SUM; op <= MERGE_OP_AVG; op++)
		if (!strcmp(arg, perf_op_name((enum merge_op)op)))
			break;
	o->op_first = o->op_last = (enum merge_op)op;
	return op <= MERGE_OP_AVG;
}

static bool take(struct perf_options *o, int c, const char *arg)
{
	static const char *const levels[] = {"intra", "inter", "hier", NULL};
	static const char *const wires[] = {"fp32", "bf16", NULL};
	static const char *const types[] = {"float", "all", NULL};
	static const char *const transports[] = {"tcp", "ucx", NULL};
	const char **text = c == 'J'		   ? &o->json
			    : c == OPT_MERGE	   ? &o->merge
			    : c == OPT_NETNS	   ? &o->netns
			    : c == OPT_ADDRESS	   ? &o->address
			    : c == OPT_CPUS	   ? &o->cpus
			    : c == OPT_UCX_TLS	   ? &o->ucx_tls
			    : c == OPT_UCX_DEVICES ? &o->ucx_devices
						   : NULL;
	int v = 0;
	bool good = true;

	if (text) {
		*text = arg;
		return true;
	}
	switch (c) {
	case 'o':
		return take_op(o, arg);
	case 'd':
		return choice(arg, types, &v);
	case OPT_LEVEL:
		good = choice(arg, levels, &v);
		o->level = (enum perf_level)v;
		return good;
	case OPT_WIRE:
		good = choice(arg, wires, &v);
		o->wire = (enum merge_wire)v;
		return good;
	case OPT_TRANSPORT:
		good = choice(arg, transports, &v);
		o->transport = (enum merge_transport)v;
		return good;
	case OPT_NO_MAC:
		o->no_mac = true;
		return true;
	case OPT_GPUS:
		o->gpus = true;
		return true;
	}
	return take_number(o, c, arg);
}

static int refuse(const char *text)
{
	fprintf(stderr, "merge_perf: %s\n", text);
	return 2;
}

static int check(const struct perf_options *o)
{
	struct merge_config c;
	struct merge_error e;

	if (o->max_bytes < o->min_bytes)
		return refuse("the largest message is below the smallest");
	if (o->level != PERF_INTER &&
	    (o->level == PERF_HIER ? o->hosts : 1) * o->threads * o->per_thread > PERF_RANKS)
		return refuse("more than 64 replicas");
	if (o->level != PERF_INTER && o->op_last != MERGE_OP_SUM)
		return refuse("replicas inside a host are summed: -o sum only");
	if (o->level == PERF_INTER && o->gpus)
		return refuse("--gpus belongs to --level intra or hier");
	if (o->level == PERF_INTRA && o->merge)
		return refuse("replicas inside a host are summed: no --merge");
	if (o->merge && o->op_first != o->op_last)
		return refuse("a merge function has no -o");
	if (o->level == PERF_INTRA && o->transport == MERGE_TRANSPORT_UCX)
		return refuse("--transport is between hosts");
	if (!o->merge && o->wire == MERGE_BF16)
		return refuse("--wire bf16 goes with --merge: it is the delta that is rounded");
	if (o->merge && merge_preset(o->merge, o->hosts, &c, &e))
		return refuse(e.message);
	if (o->merge) {
		c.wire = o->wire;
		if (merge_config_check(&c, o->hosts, &e))
			return refuse(e.message);
		if (c.kind == MERGE_NONE)
			return refuse("'none' moves nothing");
	}
	return 0;
}

int perf_parse(int argc, char **argv, struct perf_options *o)
{
	int c;

	*o = (struct perf_options){.min_bytes = 32u << 20,
				   .max_bytes = 32u << 20,
				   .step_bytes = 1u << 20,
				   .step_factor = 1,
				   .iters = 20,
				   .warmup = 1,
				   .aggregate = 1,
				   .cycles = 1,
				   .check = 1,
				   .average = 1,
				   .threads = 2,
				   .per_thread = 1,
				   .hosts = 2,
				   .level = PERF_INTER,
				   .argc = argc,
				   .argv = argv};
	while ((c = getopt_long(argc, argv, "b:e:i:f:n:w:m:c:d:o:N:a:T:C:S:J:I:t:g:h", longs,
				NULL)) != -1) {
		if (c == 'h') {
			fputs(help, stdout);
			return 1;
		}
		if (c == '?')
			return 2;
		if (!take(o, c, optarg)) {
			fprintf(stderr, "merge_perf: bad value '%s' (merge_perf -h)\n", optarg);
			return 2;
		}
	}
	if (optind < argc) {
		fprintf(stderr, "merge_perf: unexpected '%s'\n", argv[optind]);
		return 2;
	}
	return check(o);
}
