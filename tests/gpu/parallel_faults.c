/* SPDX-License-Identifier: MIT */
/*
 * parallel_faults.c: one of three GPUs fails in the middle of a training, or before it: an error
 * that names a GPU within the deadline, from every kind of fault that the simulation can inject;
 * nothing is left on any device, and the next training works. A cancel ends a step that hangs.
 */
#include <dlfcn.h>
#include <pthread.h>
#include <sys/wait.h>
#include <unistd.h>

#include "parallel.h"

#define GPUS 3
#define TIMEOUT_MS 5000 /* of what hangs; a busy machine must not come near it */
#define MOST_SECONDS 60 /* of a fault; the machine may be busy */

static void (*fault)(const char *spec);
static int64_t (*live)(void);

static bool find_fault(void)
{
	void *runtime;

	gpus(GPUS);
	runtime = dlopen("libcudart.so.13", RTLD_NOW | RTLD_NOLOAD);
	if (!runtime)
		return false;
	*(void **)&fault = dlsym(runtime, "fakegpu_fault");
	*(void **)&live = dlsym(runtime, "fakegpu_live");
	return fault && live;
}

static void works(const char *spec)
{
	struct ctl_run_row row;
	struct rig r;
	struct err err = {0};

	on_gpus(GPUS, true, true, 0);
	ok(!open_training(&r, 8, "", &err) && !rig_run(&r, 0, 1, &row, &err) && r.train->nccl,
	   "%s: the next training works %s", spec, err.message);
	rig_end(&r);
}

/* In the middle of a run. words: what the message has to tell. */
static void in_a_run(const char *spec, uint32_t flags, int code, const char *words)
{
	struct ctl_run_row row;
	struct rig r;
	struct err err = {0};
	double begin;
	int rc;

	on_gpus(GPUS, true, true, code == -ETIMEDOUT ? TIMEOUT_MS : 0);
	rig_options.flags = flags;
	if (open_training(&r, 8, "", &err) || rig_run(&r, 0, 1, &row, &err))
		BAIL("%s: %s", spec, err.message);
	fault(spec);
	begin = train_now();
	rc = rig_run(&r, 1, 1, &row, &err);
	fault(NULL);
	ok(rc == code, "%s: ends the run of all with %d", spec, rc);
	like(err.message, words, "the message tells what happened");
	like(err.message, "GPU ", "and names a GPU");
	ok(train_now() - begin < MOST_SECONDS, "%s: within the deadline", spec);
	rig_end(&r);
	is(live(), 0, "nothing is left on the devices");
	works(spec);
}

/* While the training is made. */
static void at_start(const char *spec, int code)
{
	struct rig r;
	struct err err = {0};
	int rc;

	on_gpus(GPUS, true, true, 0);
	fault(spec);
	rc = open_training(&r, 8, "", &err);
	fault(NULL);
	ok(rc == code, "%s: no training: %s", spec, err.message);
	rig_end(&r);
	is(live(), 0, "nothing is left on the devices");
	works(spec);
}

/* Rows that one of the GPUs has no room for are fetched by all. */
static void no_room(void)
{
	struct ctl_run_row p, q;
	struct rig a, b;
	struct err err = {0};

	on_gpus(GPUS, true, true, 0);
	if (open_training(&a, 8, "", &err) || rig_run(&a, 0, 1, &p, &err))
		BAIL("%s", err.message);
	fault("cudaMalloc:5:oom"); /* three nets before it, and the rows of another GPU */
	if (open_training(&b, 8, "", &err) || rig_run(&b, 0, 1, &q, &err))
		BAIL("%s", err.message);
	fault(NULL);
	ok(train_resident(a.train) && !train_resident(b.train),
	   "no room for the rows on one GPU: they are fetched");
	ok(rig_same(&a, &b, CTL_WEIGHTS), "with the same result");
	rig_end(&a);
	rig_end(&b);
	is(live(), 0, "nothing is left on the devices");
}

static void canceled(void)
{
	struct ctl_run_row row;
	pthread_t thread;
	struct rig r;
	struct err err;
	double begin;

	on_gpus(GPUS, true, true, 0); /* a minute for a collective */
	if (open_training(&r, 8, "", &err) || rig_run(&r, 0, 1, &row, &err))
		BAIL("%s", err.message);
	fault("ncclAllReduce:5:hang");
	begin = train_now();
	if (pthread_create(&thread, NULL, rig_cancel_soon, r.train))
		BAIL("no thread");
	is(rig_run(&r, 1, 1, &row, &err), -ECANCELED, "a cancel while a collective hangs");
	fault(NULL);
	ok(train_now() - begin < 30, "ends it at once");
	pthread_join(thread, NULL);
	rig_end(&r);
	is(live(), 0, "nothing is left on the devices");
	works("cancel");
}

/* Work that never ends cannot be freed, so this runs apart: what is left goes with the process. */
static void hangs(void)
{
	struct ctl_run_row row;
	struct rig r;
	struct err err = {0};
	int status = 0;
	pid_t child;

	fflush(stdout);
	child = fork();
	if (child == 0) {
		unsetenv("FAKEGPU_REPORT");
		if (!freopen("/dev/null", "w", stdout))
			_exit(4);
		on_gpus(GPUS, true, true, TIMEOUT_MS);
		rig_options.flags = BACKEND_NO_GRAPHS;
		if (!find_fault() || open_training(&r, 8, "", &err) ||
		    rig_run(&r, 0, 1, &row, &err))
			_exit(3);
		fault("kernel:40:hang");
		if (rig_run(&r, 1, 1, &row, &err) != -ENOTRECOVERABLE ||
		    !strstr(err.message, "GPU") || !strstr(err.message, "no end after 5000 ms"))
			_exit(1);
		fault(NULL);
		rig_end(&r);
		if (open_training(&r, 8, "", &err) || rig_run(&r, 0, 1, &row, &err))
			_exit(2);
		_exit(0);
	}
	if (child < 0 || waitpid(child, &status, 0) < 0)
		BAIL("no child");
	ok(WIFEXITED(status) && !WEXITSTATUS(status),
	   "a kernel that never ends: the device is lost, the next training works (status %x)",
	   status);
}

int main(void)
{
	make_rows();
	if (getenv("FAKEGPU_KERNELS"))
		hangs(); /* before this process touches the driver */
	if (!find_fault()) {
		printf("1..0 # SKIP no GPU that faults can be injected into\n");
		return 0;
	}
	in_a_run("ncclAllReduce:5:error", 0, -EIO, "all-reduce");
	in_a_run("ncclAllReduce:6:hang", 0, -ETIMEDOUT, "no end after 5000 ms");
	in_a_run("ncclAllReduce:4:illegal", 0, -ENOTRECOVERABLE, "is lost");
	in_a_run("cudaGraphLaunch:7:illegal", 0, -ENOTRECOVERABLE, "is lost");
	in_a_run("kernel:90:illegal", BACKEND_NO_GRAPHS, -ENOTRECOVERABLE, "is lost");
	at_start("cudaMalloc:2:oom", -ENOMEM);
	at_start("cudaMallocHost:3:oom", -ENOMEM);
	at_start("ncclMemAlloc:2:oom", -ENOMEM);
	at_start("ncclCommInitRankConfig:2:error", -EIO);
	no_room();
	canceled();
	return done();
}
