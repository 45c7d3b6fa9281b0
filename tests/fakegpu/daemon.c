// SPDX-License-Identifier: MIT
/*
 * daemon.c: cnnd with simulated GPUs and the very object that nvcc has built: devices are listed,
 * trainings on GPUs give what the reference gives, two GPUs give what one gives with the whole
 * batch, two hosts with two GPUs each what one host gives; a broken device ends its job alone; and
 * at the daemon's end nothing is left on any device. The environment (libraries) is set by the
 * make target; without it there is nothing to test.
 */
#include <endian.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include "../cnnd/lab_hosts.h"

#define ROWS 160u

static char report[64];

#define FIRST "\"batch_size\": 16, \"validation_fraction\": 0.25, \"momentum\": 0.9"
#define MORE "\"replicas\": 2, \"accumulate\": 2, \"model_average\": \"ema(decay=.9)\""

#define IMAGE                                                                              \
	"{\"class_name\": \"InputLayer\", \"config\": {\"batch_shape\": [null, 8, 8, 1], " \
	"\"name\": \"in\"}}, "
#define CONV                                                                                      \
	"{\"class_name\": \"Conv2D\", \"config\": {\"name\": \"conv\", \"filters\": 4, "          \
	"\"kernel_size\": [3, 3], \"padding\": \"same\", \"activation\": \"relu\"}}, "            \
	"{\"class_name\": \"MaxPooling2D\", \"config\": {\"name\": \"pool\", \"pool_size\": [2, " \
	"2]}}, "
#define NORM "{\"class_name\": \"BatchNormalization\", \"config\": {\"name\": \"norm\"}}, "
#define END                                                                          \
	"{\"class_name\": \"Flatten\", \"config\": {\"name\": \"flat\"}}, "          \
	"{\"class_name\": \"Dense\", \"config\": {\"name\": \"out\", \"units\": 3, " \
	"\"activation\": \"softmax\"}}"

/* more: further keys, or "". */
static const char *spec(bool norm, const char *more)
{
	static char out[8192];
	const char *part[] = {"{\"class_name\": \"Sequential\", \"config\": {\"name\": \"net\", "
			      "\"layers\": [",
			      IMAGE,
			      CONV,
			      norm ? NORM : "",
			      END,
			      "]}}"};
	size_t n = (size_t)snprintf(out, sizeof(out), "{\"architecture\": \"");

	for (size_t i = 0; i < sizeof(part) / sizeof(*part); i++)
		for (const char *c = part[i]; *c; c++) {
			if (*c == '"')
				out[n++] = '\\';
			out[n++] = *c;
		}
	snprintf(out + n, sizeof(out) - n,
		 "\", \"model_table\": \"m\", \"epochs\": 2, \"seed\": 5, "
		 "\"learning_rate\": 0.05%s%s}",
		 *more ? ", " : "", more);
	return out;
}

/* A daemon with n GPUs of so many bytes, and one fault to come ("" for none). */
static void start(struct lab *lab, int n, const char *bytes, const char *fault, const char *conf)
{
	char number[16];

	snprintf(number, sizeof(number), "%d", n);
	setenv("FAKEGPU_DEVICES", number, 1);
	setenv("FAKEGPU_MEMORY", bytes, 1);
	setenv("FAKEGPU_FAULT", fault, 1);
	setenv("FAKEGPU_REPORT", report, 1);
	unlink(report);
	lab_open(lab, conf);
}

/* Value of a key in the report's lines, added up; -1: it is nowhere. */
static long long reported(const char *key)
{
	char line[1024], word[64];
	FILE *f = fopen(report, "r");
	long long sum = 0;
	bool seen = false;

	snprintf(word, sizeof(word), "\"%s\":", key);
	while (f && fgets(line, sizeof(line), f)) {
		const char *at = strstr(line, word);

		if (!at)
			continue;
		sum += atoll(at + strlen(word));
		seen = true;
	}
	if (f)
		fclose(f);
	return seen ? sum : -1;
}

static const char *const counted[] = {"comms",	      "device_memory",	 "pinned_memory",
				      "streams",      "events",		 "graphs",
				      "graph_execs",  "dnn_handles",	 "dnn_descriptors",
				      "blas_handles", "blas_descriptors"};

/* lost: handles of the libraries are not given back to a device that was. */
static void stop(struct lab *lab, bool lost)
{
	lab_close(lab);
	is(reported("violations"), 0, "  no wrong use of the interface");
	for (size_t i = 0; i < sizeof(counted) / sizeof(*counted) - (lost ? 4 : 0); i++)
		is(reported(counted[i]), 0, counted[i]);
}

static int prepare(struct lab_job *job, const struct lab *lab, const char *text)
{
	struct agree_block agreed;
	int rc;

	lab_job_init(job, lab, "alice", CTL_TRAIN);
	rc = lab_prepare(job, text, ROWS, &agreed);
	if (!rc)
		agree_free(&agreed);
	return rc;
}

/* The weights after two epochs, malloc'd; NULL: told. */
static float *weights(const struct lab *lab, const char *text, uint64_t *n, struct ctl_run_row *row)
{
	struct lab_job job;
	uint8_t *data = NULL;
	uint64_t bytes = 0;
	int rc = prepare(&job, lab, text);

	if (!rc)
		rc = lab_run(&job, 0, 2, row);
	if (!rc && row->note.n)
		printf("# %.*s\n", (int)row->note.n, row->note.p);
	if (!rc)
		rc = lab_get(&job, CTL_WEIGHTS, &data, &bytes);
	if (!ok(!rc && bytes, "a training"))
		printf("#   %s\n", job.err.message);
	lab_end(&job);
	lab_job_free(&job);
	*n = bytes / 4;
	return (float *)data;
}

static void works(const struct lab *lab, const char *more, const char *what)
{
	struct ctl_run_row row;
	uint64_t n;
	float *w = weights(lab, spec(true, more), &n, &row);

	ok(w != NULL, "%s", what);
	free(w);
}

/* The largest distance, against the largest weight. */
static double distance(const float *a, const float *b, uint64_t n)
{
	double most = 0, size = 0;

	for (uint64_t i = 0; a && b && i < n; i++) {
		most = fmax(most, fabs((double)a[i] - b[i]));
		size = fmax(size, fabs((double)b[i]));
	}
	return a && b && n && size > 0 ? most / size : INFINITY;
}

/* ---- the same training on another daemon ---- */

static void compare(const char *what, const char *gpu, const char *cpu, bool norm, double within)
{
	struct ctl_run_row one = {0}, two = {0};
	struct lab a, b;
	uint64_t n = 0, m = 0;
	float *x, *y;
	double apart;

	start(&a, 2, "67108864", "", "devices = cuda:all");
	x = weights(&a, spec(norm, gpu), &n, &one);
	is(lab_held(&a), 0, "  no device memory is held after it");
	stop(&a, false);
	lab_open(&b, "devices = cpu:1");
	y = weights(&b, spec(norm, cpu), &m, &two);
	lab_close(&b);
	apart = n == m ? distance(x, y, n) : INFINITY;
	ok(apart < within, "%s: %.2g apart, allowed %.2g", what, apart, within);
	if (isfinite(two.validation_loss))
		ok(fabs(one.validation_loss - two.validation_loss) <=
			   fmax(within, 1e-5) * fmax(1, two.validation_loss),
		   "  the validation loss: %.7g, %.7g", one.validation_loss, two.validation_loss);
	ok(fabs(one.loss - two.loss) <= fmax(within, 1e-5) * fabs(two.loss),
	   "  the loss, too: %.7g, %.7g", one.loss, two.loss);
	free(x);
	free(y);
}

static void test_equal(void)
{
	const char *ref = "\"backend\": \"ref\", \"batch_size\": 16";

	compare("cuda:0 and ref", "\"devices\": \"cuda:0\", " FIRST, "\"backend\": \"ref\", " FIRST,
		true, 1e-4);
	compare("two GPUs and the whole batch", "\"devices\": \"cuda:0,1\", \"batch_size\": 8", ref,
		false, 1e-4);
	compare("two GPUs, batch norm, EMA, two steps an update", "\"batch_size\": 8, " MORE,
		"\"backend\": \"ref\", \"batch_size\": 8, " MORE, true, 1e-3);
	compare("two GPUs, Adam", "\"batch_size\": 8, \"optimizer\": \"adam\"",
		"\"backend\": \"ref\", \"batch_size\": 16, \"optimizer\": \"adam\"", false, .02);
	compare("bf16 and ref", "\"replicas\": 1, \"batch_size\": 16, \"precision\": \"bf16\"", ref,
		false, .1);
	compare("f16, with its loss scale, and ref",
		"\"replicas\": 1, \"batch_size\": 16, \"precision\": \"f16\"", ref, false, .1);
}

/* ---- DEVICES, and what may be asked for ---- */

static void list(const struct lab *lab, uint32_t jobs[2])
{
	struct ctl_conn *conn = lab_connect(lab, "lab");
	struct ctl_msg m = {.type = CTL_DEVICES};
	struct err err = {0};
	int n = 0, rc = ctl_call(conn, &m, &m, 5000, &err);
	char name[32];

	for (; !rc && m.type == CTL_DEVICE; rc = ctl_wait(conn, &m, 5000, &err), n++) {
		snprintf(name, sizeof(name), "cuda:%d", n);
		ok(m.u.device.name.n == strlen(name) &&
			   !memcmp(m.u.device.name.p, name, m.u.device.name.n) &&
			   m.u.device.kind.n == 4 && m.u.device.index == (uint32_t)n &&
			   m.u.device.memory == 64u << 20,
		   "%s is listed", name);
		if (n < 2)
			jobs[n] = m.u.device.jobs;
	}
	is(n, 2, "two devices");
	ctl_conn_free(conn);
}

static void refused(const struct lab *lab, const char *more, const char *why)
{
	struct lab_job job;

	lab_job_init(&job, lab, "alice", CTL_TRAIN);
	ok(lab_begin(&job, spec(false, more)) < 0 && job.err.kind == ERR_PARAM, "refused: %s",
	   more);
	like(job.err.message, why, "  and why");
	lab_job_free(&job);
}

static void test_list(void)
{
	struct lab_job job;
	uint32_t jobs[2];
	struct lab lab;

	start(&lab, 2, "67108864", "", ""); /* auto */
	list(&lab, jobs);
	ok(!jobs[0] && !jobs[1], "  nobody is on them");
	refused(&lab, "\"devices\": \"cuda:2\"", "this host gives cuda:0,1");
	refused(&lab, "\"devices\": \"cpu\"", "this host gives cuda:0,1");
	refused(&lab, "\"replicas\": 3", "a GPU runs one");
	ok(!prepare(&job, &lab, spec(false, "\"devices\": \"cuda:1\"")), "a job on cuda:1");
	list(&lab, jobs);
	ok(!jobs[0] && jobs[1] == 1, "  is on it alone");
	ok(lab_held(&lab) > 0, "  memory is held");
	lab_end(&job);
	list(&lab, jobs);
	ok(!jobs[0] && !jobs[1] && !lab_held(&lab), "  until its end");
	lab_job_free(&job);
	stop(&lab, false);
	start(&lab, 2, "67108864", "", "devices = cuda:all");
	lab_close(&lab);
	is(reported("violations"), -1, "without a job no GPU is touched, nor CUDA loaded");
	start(&lab, 0, "67108864", "", "");
	ok(lab_logged(&lab, "device cpu:", 1), "no GPU: auto is the processor");
	lab_close(&lab);
}

/* ---- a stored model ---- */

static void test_stored(void)
{
	struct ctl_run_row row = {0};
	struct agree_block agreed = {0};
	struct lab_job job;
	struct lab lab;
	uint8_t *data = NULL;
	uint64_t bytes = 0;
	double loss;
	int rc;

	start(&lab, 2, "67108864", "", "devices = cuda:all");
	lab_job_init(&job, &lab, "alice", CTL_TRAIN);
	rc = lab_prepare(&job, spec(true, "\"batch_size\": 8"), ROWS, &agreed);
	if (!rc)
		rc = lab_run(&job, 0, 2, &row);
	if (!rc)
		rc = lab_get(&job, CTL_WEIGHTS, &data, &bytes);
	ok(!rc, "a model of two GPUs");
	loss = row.loss;
	lab_end(&job);
	lab_job_free(&job);

	lab_job_init(&job, &lab, "alice", CTL_EVALUATION);
	rc = lab_begin(&job, spec(true, "")) - 1;
	if (!rc)
		rc = lab_feed_rows(&job, ROW_VALIDATION, 0, ROWS);
	if (!rc)
		rc = lab_apply(&job, &agreed, NULL);
	if (!rc)
		rc = lab_put(&job, CTL_WEIGHTS, data, bytes);
	if (!rc)
		rc = lab_run(&job, 0, 1, &row);
	if (!ok(!rc, "is evaluated on one"))
		printf("#   %s\n", job.err.message);
	ok(isfinite(row.validation_loss), "  loss %.4f (%.4f in training)", row.validation_loss,
	   loss);
	lab_end(&job);
	lab_job_free(&job);
	agree_free(&agreed);
	free(data);
	stop(&lab, false);
}

/* ---- faults ---- */

static void test_illegal(void)
{
	struct ctl_run_row row;
	struct lab_job job;
	struct lab lab;

	start(&lab, 2, "67108864", "kernel:30:illegal", "devices = cuda:all");
	ok(!prepare(&job, &lab, spec(true, "\"devices\": \"cuda:1\"")), "a job");
	ok(lab_run(&job, 0, 2, &row) < 0, "an illegal address ends its run");
	like(job.err.message, "cuda:1", "  the ERROR names the device");
	like(job.err.message, "is lost", "  and says that it is lost");
	lab_job_free(&job);
	ok(lab_idle(&lab, 10), "  the job is gone");
	works(&lab, "\"devices\": \"cuda:1\"", "  the next job on it works");
	works(&lab, "\"devices\": \"cuda:0\"", "  one on the other device, too");
	is(lab_held(&lab), 0, "  no memory is held");
	stop(&lab, true);
}

static void test_memory(void)
{
	struct lab_job job;
	struct lab lab;

	start(&lab, 1, "67108864", "cudaMalloc:2:oom", "devices = cuda:all");
	ok(prepare(&job, &lab, spec(true, "")) < 0, "a device runs out of memory");
	is(job.err.kind, ERR_LIMIT, "  it is a limit");
	like(job.err.message, "needed", "  needed");
	like(job.err.message, "free", "  and free");
	lab_end(&job);
	lab_job_free(&job);
	works(&lab, "", "  the next job works");
	stop(&lab, false);
	start(&lab, 1, "65536", "", "devices = cuda:all");
	ok(prepare(&job, &lab, spec(true, "")) < 0, "a network larger than the device");
	like(job.err.message, "cuda:0 has not enough memory: needed", "  is not begun");
	lab_end(&job);
	lab_job_free(&job);
	stop(&lab, false);
}

/* ---- several GPUs at once ---- */

/* The training of two GPUs with so much memory each; how, as the log has it. */
static float *both(const char *bytes, const char *how, uint64_t *n)
{
	struct ctl_run_row row;
	struct lab lab;
	float *w;

	start(&lab, 2, bytes, "", "devices = cuda:all");
	w = weights(&lab, spec(true, "\"batch_size\": 8"), n, &row);
	ok(lab_logged(&lab, how, 5), "  %s", how);
	is(lab_held(&lab), 0, "  no device memory is held after it");
	stop(&lab, false);
	return w;
}

static void test_rows(void)
{
	uint64_t n = 0, m = 0;
	float *x = both("67108864", "rows in host memory, gradients summed by NCCL", &n);
	float *y = both("1073741824", "rows on the devices, gradients summed by NCCL", &m);

	ok(x && y && n == m && !memcmp(x, y, n * sizeof(float)),
	   "rows that stay on two GPUs: the same bits");
	free(x);
	free(y);
}

/* One of two GPUs fails: the ERROR names one, and both are good for the next job. */
static void try_both(const char *fault, const char *words, bool lost)
{
	struct ctl_run_row row;
	struct lab_job job;
	struct lab lab;

	start(&lab, 2, "1073741824", fault, "devices = cuda:all\nmerge_timeout = 5");
	ok(!prepare(&job, &lab, spec(true, "\"batch_size\": 8")), "%s: a job", fault);
	ok(lab_run(&job, 0, 2, &row) < 0, "  ends with an ERROR");
	like(job.err.message, words, "  that tells why");
	like(job.err.message, "GPU ", "  and names a GPU");
	lab_end(&job);
	lab_job_free(&job);
	ok(lab_idle(&lab, 60), "  the job is gone");
	is(lab_held(&lab), 0, "  with its memory");
	works(&lab, "\"batch_size\": 8", "  the next one works");
	stop(&lab, lost);
}

/* ---- several hosts ---- */

/* Weights of rank 0 after two epochs on two daemons, malloc'd. */
static float *hosts_weights(struct lab lab[2], const char *text, uint64_t *n)
{
	struct lab_hosts h;
	uint8_t *data = NULL;
	uint64_t bytes = 0;
	int rc = lab_hosts_prepare(&h, lab, 2, text, ROWS, 2);

	if (!rc)
		rc = lab_hosts_run(&h, 0, 2);
	if (!rc)
		rc = lab_get(&h.job[0], CTL_WEIGHTS, &data, &bytes);
	if (!ok(!rc && h.row[0].loss == h.row[1].loss, "a training of two hosts"))
		lab_hosts_explain(&h);
	lab_hosts_end(&h);
	*n = bytes / 4;
	return (float *)data;
}

static void test_hosts(void)
{
	static const char *const merge[2] = {
		"\"batch_size\": 4, \"replicas\": 2, \"merge\": \"gradient\"",
		"\"batch_size\": 4, \"replicas\": 2, \"merge\": \"average\", \"merge_every\": "
		"\"epoch\""};
	struct lab gpu[2], cpu[2];
	char more[512];

	setenv("FAKEGPU_DEVICES", "2", 1);
	setenv("FAKEGPU_MEMORY", "67108864", 1);
	setenv("FAKEGPU_FAULT", "", 1);
	unlink(report);
	lab_hosts_start(cpu, 2, "devices = cpu:1");
	lab_hosts_start(gpu, 2, "devices = cuda:all");
	for (int i = 0; i < 2; i++) {
		uint64_t n, m;
		float *x = hosts_weights(gpu, spec(true, merge[i]), &n), *y;
		double apart;

		snprintf(more, sizeof(more), "%s, \"backend\": \"ref\"", merge[i]);
		y = hosts_weights(cpu, spec(true, more), &m);
		apart = n == m ? distance(x, y, n) : INFINITY;
		ok(apart < 1e-3, "  with two GPUs each, %s, as on processors: %.2g apart",
		   i ? "averaged after each epoch" : "synchronous steps", apart);
		free(x);
		free(y);
	}
	lab_hosts_stop(cpu, 2);
	lab_hosts_stop(gpu, 2);
	is(reported("violations"), 0, "  no wrong use of the interface");
	is(reported("device_memory"), 0, "  no device memory is left");
	is(reported("streams"), 0, "  nor a stream");
	is(reported("comms"), 0, "  nor a communicator");
}

int main(void)
{
	const char *library = getenv("CNN_CUDA_LIBRARY");

	if (!getenv("FAKEGPU_KERNELS") || !library || access(library, R_OK)) {
		printf("1..0 # SKIP no CUDA toolkit: neither the back end nor its simulation is "
		       "built\n");
		return 0;
	}
	snprintf(report, sizeof(report), "/var/tmp/fakegpu-report-%d", (int)getpid());
	setenv("FAKEGPU_REPORT", report, 1);
	test_list();
	test_equal();
	test_stored();
	test_illegal();
	test_memory();
	test_rows();
	try_both("ncclAllReduce:9:hang", "no end after 5000 ms", false);
	try_both("cudaGraphLaunch:5:illegal", "is lost", true);
	test_hosts();
	unlink(report);
	return done();
}
