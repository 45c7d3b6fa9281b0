/* SPDX-License-Identifier: MIT */
/*
 * faults.c: what goes wrong on a GPU, injected into the simulated one: illegal addresses, work that
 * never ends, memory that runs out, libraries that fail or refuse. Each gives the code and message
 * that is promised, takes no other device along, and leaves nothing behind; the device can be
 * opened anew.
 */
#include <dlfcn.h>
#include <pthread.h>
#include <sys/wait.h>
#include <unistd.h>

#include "../../nccl_merge/merge.h"
#include "gpu_trial.h"

static void (*fault)(const char *spec);

static void network(struct build *b)
{
	int x = b_conv(b, b_input(b, 8, 8, 3), 8, b_same(3, 2, 1, 8, 8), 1, false);

	x = b_act(b, b_norm(b, x, true, true, false), BACKEND_RELU, 0);
	x = b_act(b, b_conv_same(b, x, 8, 3, 1), BACKEND_RELU, 0);
	b_act(b, b_dense(b, b_flatten(b, x), 10, true), BACKEND_SOFTMAX, 0);
}

static const struct op_case op = {
	"faults", network, {BACKEND_SPARSE_CROSSENTROPY, 0, false}, false};

static int step(struct trial *t, struct backend_error *error)
{
	return backend_step(t->net, &t->batch, 0.1f, 0.05, 1, NULL, NULL, NULL, error);
}

static void open_until(struct trial *t, struct build *b, uint32_t device, uint32_t flags,
		       uint32_t timeout_ms)
{
	const struct backend_options how = {
		.device = device, .timeout_ms = timeout_ms, .flags = flags};
	struct backend_error error = {""};

	if (trial_open(t, gpu_backend(), &op, b, 6, 6, &how, 3, NULL, &error))
		BAIL("%s", error.message);
}

static void open_on(struct trial *t, struct build *b, uint32_t device, uint32_t flags)
{
	open_until(t, b, device, flags, 30000);
}

/* A sticky error: this device is lost, the other goes on; then it is opened anew. */
static void try_lost(struct build *b, const char *spec, const char *words, uint32_t flags)
{
	struct backend_error error = {""};
	struct trial t, other;
	float value;

	open_until(&t, b, 0, flags, strstr(spec, ":hang") ? 400 : 30000);
	open_on(&other, b, 1, flags);
	if (step(&t, &error) || step(&t, &error) || step(&other, &error))
		BAIL("%s", error.message);
	fault(spec);
	is(step(&t, &error), -ENOTRECOVERABLE, spec);
	like(error.message, words, "the message tells what happened");
	fault(NULL);
	is(step(&t, &error), -ENOTRECOVERABLE, "the device stays lost");
	ok(backend_read(t.net, BACKEND_PARAM, 0, 1, &value) == -ENOTRECOVERABLE,
	   "nothing can be read from it");
	is(step(&other, &error), 0, "the other device goes on");
	trial_free(&t);
	open_on(&t, b, 0, flags);
	ok(!step(&t, &error) && !step(&t, &error), "opened anew, it works: %s", error.message);
	is(step(&other, &error), 0, "and so does the other one");
	trial_free(&t);
	trial_free(&other);
}

/* An error that passes: this call fails, the next one does not. */
static void try_passing(struct build *b, const char *spec, int code)
{
	struct backend_error error = {""};
	struct trial t;
	int rc;

	open_on(&t, b, 0, BACKEND_NO_GRAPHS);
	if (step(&t, &error))
		BAIL("%s", error.message);
	fault(spec);
	rc = step(&t, &error);
	is(rc, code, spec);
	fault(NULL);
	is(step(&t, &error), 0, "the next call works");
	trial_free(&t);
}

/* A refusal: other ways lead to the same parameters. */
static void try_refusal(struct build *b, const char *spec)
{
	struct backend_error error = {""};
	struct trial t, ref;
	float *got, *want;
	bool good = true;

	if (trial_open(&ref, "ref", &op, b, 6, 6, NULL, 3, NULL, &error))
		BAIL("%s", error.message);
	fault(spec);
	open_on(&t, b, 0, 0);
	for (int k = 0; k < 4; k++)
		good = good && !step(&t, &error) && !step(&ref, NULL);
	fault(NULL);
	got = calloc(t.params, sizeof(*got));
	want = calloc(t.params, sizeof(*want));
	good = good && got && want && !backend_read(t.net, BACKEND_PARAM, 0, t.params, got) &&
	       !backend_read(ref.net, BACKEND_PARAM, 0, t.params, want) &&
	       distance(got, want, t.params) < 1e-4;
	ok(good, "%s: trains by other ways %s", spec, error.message);
	free(got);
	free(want);
	trial_free(&t);
	trial_free(&ref);
}

/* The first, second, .. call of a function fails, from open to close: an error, and no harm. */
static void try_each(struct build *b, const char *name, const char *kind)
{
	const struct backend_options how = {.timeout_ms = 30000};
	int failed = 0, n;
	bool good = true;
	char spec[96];

	for (n = 1; n < 60; n++) {
		struct backend_error error = {""};
		bool writing;
		struct trial t;
		int rc;

		snprintf(spec, sizeof(spec), "%s:%d:%s", name, n, kind);
		fault(spec);
		rc = trial_open(&t, gpu_backend(), &op, b, 6, 6, &how, 3, NULL, &error);
		writing = rc && t.net; /* backend_write has a code only */
		for (int k = 0; k < 3 && !rc; k++)
			rc = step(&t, &error);
		fault(NULL);
		good = good && (!rc || (rc < 0 && (writing || error.message[0])));
		trial_free(&t);
		failed += rc != 0;
		if (!rc && n > 3)
			break;
	}
	ok(good, "%s, %s: %d of %d calls ended in an error with a message", name, kind, failed, n);
}

/* ---- NCCL ----------------------------------------------------------------------------------- */

struct seat {
	struct merge_intra *intra;
	struct trial t;
	uint32_t rank;
	int rc;
	pthread_t thread;
};

static void *seat_main(void *context)
{
	struct seat *s = context;
	struct merge_error error;

	s->rc = 0;
	for (int k = 0; k < 3 && !s->rc; k++) {
		s->rc = merge_intra_bucket(s->intra, s->rank, 0, s->t.params, &error);
		if (!s->rc)
			s->rc = merge_intra_wait(s->intra, s->rank, &error);
	}
	return NULL;
}

static void run_seats(struct seat *s)
{
	for (int r = 0; r < 2; r++)
		if (pthread_create(&s[r].thread, NULL, seat_main, &s[r]))
			BAIL("no thread");
	for (int r = 0; r < 2; r++)
		pthread_join(s[r].thread, NULL);
}

static struct merge_intra *connect_seats(struct seat *s, struct merge_error *error)
{
	float *arena[2];
	const uint32_t device[2] = {0, 1};
	const struct merge_intra_config c = {.replicas = 2,
					     .arena = arena,
					     .floats = s->t.params,
					     .timeout_ms = 400,
					     .transport = "nccl",
					     .device = device};
	struct merge_intra *intra = NULL;

	for (int r = 0; r < 2; r++)
		arena[r] = backend_device_arena(s[r].t.net, BACKEND_GRAD);
	if (merge_intra_open(&c, &intra, error))
		return NULL;
	s[0].intra = s[1].intra = intra;
	return intra;
}

static void try_nccl(struct build *b, const char *spec, bool at_start)
{
	struct merge_error error = {0};
	struct seat s[2] = {{.rank = 0}, {.rank = 1}};
	struct merge_intra *intra;

	open_on(&s[0].t, b, 0, 0);
	open_on(&s[1].t, b, 1, 0);
	fault(spec);
	intra = connect_seats(s, &error);
	if (at_start) {
		ok(!intra && error.code < 0 && error.message[0], "%s: no start: %s", spec,
		   error.message);
	} else if (ok(intra != NULL, "%s: starts", spec)) {
		run_seats(s);
		ok(s[0].rc < 0 && s[1].rc < 0, "%s: both replicas are told (%d, %d)", spec, s[0].rc,
		   s[1].rc);
	}
	merge_intra_close(intra);
	fault(NULL);
	intra = connect_seats(s, &error);
	if (ok(intra != NULL, "%s: starts again", spec)) {
		run_seats(s);
		ok(!s[0].rc && !s[1].rc, "%s: and works", spec);
	}
	merge_intra_close(intra);
	trial_free(&s[0].t);
	trial_free(&s[1].t);
}

/* A device that breaks under an all-reduce: the waits end, it is lost, and opened anew. */
static void try_nccl_lost(struct build *b)
{
	struct backend_error why = {""};
	struct merge_error error = {0};
	struct seat s[2] = {{.rank = 0}, {.rank = 1}};
	struct merge_intra *intra;

	for (uint32_t r = 0; r < 2; r++)
		open_on(&s[r].t, b, r, 0);
	intra = connect_seats(s, &error);
	if (!intra)
		BAIL("%s", error.message);
	fault("ncclAllReduce:2:illegal");
	run_seats(s);
	fault(NULL);
	ok(s[0].rc < 0 && s[1].rc < 0, "a device breaks under an all-reduce: both are told");
	merge_intra_close(intra);
	ok((step(&s[0].t, &why) == -ENOTRECOVERABLE) + (step(&s[1].t, &why) == -ENOTRECOVERABLE) ==
		   1,
	   "one of the two is lost");
	for (uint32_t r = 0; r < 2; r++)
		trial_free(&s[r].t);
	for (uint32_t r = 0; r < 2; r++)
		open_on(&s[r].t, b, r, 0);
	intra = connect_seats(s, &error);
	if (ok(intra != NULL, "both are opened anew: %s", error.message)) {
		run_seats(s);
		ok(!s[0].rc && !s[1].rc, "and work");
	}
	merge_intra_close(intra);
	for (uint32_t r = 0; r < 2; r++)
		trial_free(&s[r].t);
}

/* Arenas that NCCL will not register: the sums are made all the same. */
static void try_unregistered(struct build *b)
{
	struct merge_error error = {0};
	struct seat s[2] = {{.rank = 0}, {.rank = 1}};
	struct merge_intra *intra;

	open_on(&s[0].t, b, 0, 0);
	open_on(&s[1].t, b, 1, 0);
	fault("ncclCommWindowRegister:1:error;ncclCommRegister:1:error");
	intra = connect_seats(s, &error);
	fault(NULL);
	if (ok(intra != NULL, "arenas that are not registered: %s", error.message)) {
		run_seats(s);
		ok(!s[0].rc && !s[1].rc, "all-reduces of them");
	}
	merge_intra_close(intra);
	trial_free(&s[0].t);
	trial_free(&s[1].t);
}

static bool find_fault(void)
{
	struct backend_device device[2];
	uint32_t n = 0;
	void *runtime;

	backend_devices(gpu_backend(), device, 2, &n, NULL);
	runtime = dlopen("libcudart.so.13", RTLD_NOW | RTLD_NOLOAD);
	if (runtime)
		*(void **)&fault = dlsym(runtime, "fakegpu_fault");
	return fault && n >= 2;
}

/* A child asks for the devices, as cnnd does: where there is none it is told so, without an error.
 */
static void try_no_device(void)
{
	pid_t child;
	int status = 0;

	fflush(stdout);
	child = fork();
	if (child == 0) {
		struct backend_device device;
		struct backend_error error = {""};
		struct backend *backend;
		uint32_t n = 7;
		bool none;

		setenv("FAKEGPU_DEVICES", "0", 1);
		none = !backend_devices(gpu_backend(), &device, 1, &n, &error) && n == 0 &&
		       backend_open(gpu_backend(), NULL, &backend, &error) == -ENODEV &&
		       strstr(error.message, "there is no GPU 0");
		exit(none ? 0 : 1); /* not _exit: the coverage of these lines is written */
	}
	if (child < 0 || waitpid(child, &status, 0) < 0)
		BAIL("no child");
	ok(WIFEXITED(status) && WEXITSTATUS(status) == 0, "no device at all (status %d)", status);
}

/* A device of an older kind. */
static void try_old_device(void)
{
	const struct backend_options how = {.precision = BACKEND_PRECISION_BF16};
	const char *was = getenv("FAKEGPU_MAJOR");
	struct backend_error error = {""};
	struct backend *backend;
	char kept[16];

	snprintf(kept, sizeof(kept), "%s", was ? was : "8");
	setenv("FAKEGPU_MAJOR", "7", 1);
	is(backend_open(gpu_backend(), &how, &backend, &error), -EOPNOTSUPP, "bf16 before sm_80");
	like(error.message, "use f32 or f16", "and what to use");
	setenv("FAKEGPU_MAJOR", kept, 1);
}

int main(void)
{
	static const char *const each[] = {
		"cudaMalloc:oom",
		"cudaMallocHost:oom",
		"cudnnCreate:error",
		"cublasLtCreate:error",
		"cudaStreamBeginCapture:error",
		"cudaGraphInstantiate:error",
		"cudnnConvolutionForward:error",
		"cudnnConvolutionBackwardFilter:error",
		"cudnnConvolutionBackwardData:error",
		"cublasLtMatmul:error",
		"cublasLtMatmulAlgoGetHeuristic:unsupported",
		"cudaStreamCreateWithFlags:error",
		"cudaEventCreateWithFlags:error",
		"cudaEventRecord:error",
		"cudaStreamWaitEvent:error",
		"cudaMemsetAsync:error",
		"kernel:illegal",
	};
	struct build *b = malloc(sizeof(*b));

	if (!b)
		BAIL("no memory");
	if (getenv("FAKEGPU_KERNELS"))
		try_no_device(); /* before this process touches the driver */
	else
		gpu_needed();
	if (!find_fault()) {
		skip("no GPU that faults can be injected into", "faults");
		free(b);
		return done();
	}
	try_lost(b, "kernel:4:illegal", "illegal", BACKEND_NO_GRAPHS);
	try_lost(b, "cudaGraphLaunch:1:illegal", "illegal", 0);
	try_lost(b, "kernel:2:hang", "no end after 400 ms", BACKEND_NO_GRAPHS);
	try_old_device();
	try_passing(b, "cudnnConvolutionBackwardData:1:error", -EIO);
	try_passing(b, "cublasLtMatmul:1:error", -EIO);
	try_refusal(b, "cudnnConvolutionBiasActivationForward:1:unsupported");
	try_refusal(b, "cudnnConvolutionForward:1:unsupported");
	try_refusal(b, "cudnnConvolutionBiasActivationForward:1:unsupported;"
		       "cudnnConvolutionForward:2:unsupported");
	try_refusal(b, "cudnnGetConvolutionForwardWorkspaceSize:1:unsupported");
	try_refusal(b, "cublasLtMatmulAlgoGetHeuristic:2:unsupported");
	try_refusal(b, "cudnnConvolutionBackwardData:1:unsupported");
	try_refusal(b, "cudnnConvolutionBackwardFilter:1:unsupported");
	try_refusal(b, "cudnnGetConvolutionForwardAlgorithm_v7:1:unsupported");
	try_refusal(b, "cudaGraphInstantiate:1:error");
	try_refusal(b, "cudaStreamBeginCapture:1:error");
	for (size_t i = 0; i < sizeof(each) / sizeof(*each); i++) {
		char name[64];
		const char *colon = strchr(each[i], ':');

		snprintf(name, sizeof(name), "%.*s", (int)(colon - each[i]), each[i]);
		try_each(b, name, colon + 1);
	}
	try_nccl(b, "ncclAllReduce:2:error", false);
	try_nccl(b, "ncclAllReduce:3:hang", false);
	try_nccl(b, "cudaEventRecord:1:error", false);
	try_nccl(b, "ncclCommInitRankConfig:2:error", true);
	try_nccl(b, "ncclGetUniqueId:1:error", true);
	try_nccl_lost(b);
	try_unregistered(b);
	free(b);
	return done();
}
