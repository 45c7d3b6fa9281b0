// SPDX-License-Identifier: MIT
/*
 * self.c: does the simulation see what it is there to see? A stand-in that accepts everything
 * proves nothing: each misuse must be reported, each missing synchronisation must give a wrong
 * value.
 */
#define _GNU_SOURCE
#include <math.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cublasLt.h>
#include <cudnn.h>
#include <nccl.h>

#include "../tap.h"
#include "fake.h"

struct self_args {
	float *x;
	uint32_t n;
};

static cudaStream_t stream;

/* Ends the context of device 0, and what there is of it; begins anew. */
static void reset(void)
{
	cudaDeviceReset();
	cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking);
}

static void launch(const char *name, float *x, uint32_t n, unsigned int blocks)
{
	struct self_args a = {x, n};
	void *args[1] = {&a};

	fake_launch(name, (dim3){blocks, 1, 1}, (dim3){64, 1, 1}, args, 0, stream);
}

/* Violations of one piece of work are wanted: how many came, and they are taken off the count. */
static uint64_t seen(uint64_t before)
{
	uint64_t n = fakegpu_violations() - before;

	__atomic_sub_fetch(&fake.violations, n, __ATOMIC_RELAXED);
	return n;
}

static void test_order(void)
{
	float *d, *h;

	cudaMalloc((void **)&d, 256 * sizeof(float));
	cudaMallocHost((void **)&h, 256 * sizeof(float));
	for (int i = 0; i < 256; i++)
		h[i] = 1;
	cudaMemcpyAsync(d, h, 1024, cudaMemcpyHostToDevice, stream);
	launch("self_double", d, 256, 4);
	launch("self_sum", d, 256, 4);
	cudaMemcpyAsync(h, d, 1024, cudaMemcpyDeviceToHost, stream);
	ok(h[5] == 1, "nothing has run before somebody waits");
	ok(cudaStreamSynchronize(stream) == cudaSuccess, "a wait");
	ok(h[0] == 128 && h[255] == 128, "kernels with and without barriers ran: %g", h[0]);
	cudaMemcpyAsync(d, h, 1024, cudaMemcpyHostToDevice, stream);
	h[0] = 7; /* too early: the copy has not run */
	cudaMemcpyAsync(h + 1, d, 4, cudaMemcpyDeviceToHost, stream);
	cudaStreamSynchronize(stream);
	ok(h[1] == 7, "a staging buffer that is used again too early shows");
	cudaFree(d);
	cudaFreeHost(h);
}

static void test_misuse(void)
{
	uint64_t before = fakegpu_violations();
	float *d, *host = malloc(64);
	int status;
	pid_t pid;

	cudaMalloc((void **)&d, 64);
	cudaMemcpyAsync(d, host, 64, cudaMemcpyHostToDevice, stream);
	ok(cudaStreamSynchronize(stream) == cudaErrorIllegalAddress && seen(before) == 1,
	   "pageable memory is refused");
	ok(cudaGetLastError() == cudaErrorIllegalAddress && cudaSetDevice(0), "the error stays");
	reset();
	ok(cudaSetDevice(0) == cudaSuccess, "until the device is reset");
	cudaMalloc((void **)&d, 64);
	cudaMemsetAsync(d, 0, 65, stream);
	cudaStreamSynchronize(stream);
	ok(seen(before) == 1, "past an allocation's end");
	reset();
	cudaMalloc((void **)&d, 64);
	launch("self_lost_barrier", d, 3, 1);
	ok(cudaStreamSynchronize(stream) == cudaErrorLaunchFailure && seen(before) == 1,
	   "a barrier that not all threads reach");
	reset();
	cudaMalloc((void **)&d, 64);
	cudaFree(d);
	cudaMemsetAsync(d, 0, 4, stream);
	cudaStreamSynchronize(stream);
	ok(seen(before) == 1, "use after free");
	reset();
	ok(cudaFree(d) != cudaSuccess && seen(before) == 1, "freed twice");
	cudaMalloc((void **)&d, 64);
	pid = fork();
	if (!pid) {
		*(volatile float *)d = 1;
		_exit(0);
	}
	waitpid(pid, &status, 0);
	ok(WIFSIGNALED(status) && WTERMSIG(status) == SIGSEGV,
	   "host code that touches device memory dies");
	cudaFree(d);
	free(host);
}

#define PAGES 4096u

static char *pages(size_t n)
{
	char *p = mmap(NULL, n * PAGES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	if (p == MAP_FAILED)
		BAIL("no memory");
	memset(p, 1, n * PAGES);
	return p;
}

/* Memory of others, pinned: as with the real call, but whole pages are wanted. */
static void test_registered(void)
{
	uint64_t before = fakegpu_violations();
	const unsigned int flags = cudaHostRegisterPortable | cudaHostRegisterReadOnly;
	char *host = pages(4), *d, *own;

	cudaMalloc((void **)&d, 2 * PAGES);
	cudaMallocHost((void **)&own, PAGES);
	ok(cudaHostRegister(host + 8, PAGES, 0) == cudaErrorInvalidValue && seen(before) == 1,
	   "pages are registered, not bytes");
	ok(cudaHostRegister(host, PAGES, 1u << 20) == cudaErrorInvalidValue, "an unknown flag");
	ok(cudaHostRegister(host, 2 * PAGES, flags) == cudaSuccess, "two pages");
	ok(cudaHostRegister(host + PAGES, 2 * PAGES, 0) == cudaErrorHostMemoryAlreadyRegistered &&
		   cudaGetLastError() && !cudaGetLastError(),
	   "a page is registered once");
	ok(cudaHostRegister(own, PAGES, 0) == cudaErrorHostMemoryAlreadyRegistered,
	   "pinned memory is registered already");
	cudaMemcpyAsync(d, host + PAGES + 5, 100, cudaMemcpyHostToDevice, stream);
	ok(cudaStreamSynchronize(stream) == cudaSuccess, "a copy from it");
	cudaMemcpyAsync(d, host + PAGES, PAGES + 1, cudaMemcpyHostToDevice, stream);
	ok(cudaStreamSynchronize(stream) && seen(before) == 1, "one past its end is refused");
	reset(); /* unpins, too */
	cudaMalloc((void **)&d, 2 * PAGES);
	ok(cudaHostRegister(host, 2 * PAGES, flags) == cudaSuccess, "again, after a reset");
	cudaMemcpyAsync(host, d, 100, cudaMemcpyDeviceToHost, stream);
	ok(cudaStreamSynchronize(stream) && seen(before) == 1, "one to it, which is read-only");
	reset();
	cudaMalloc((void **)&d, 2 * PAGES);
	cudaHostRegister(host, 2 * PAGES, flags);
	cudaMemcpyAsync(d, host, 100, cudaMemcpyHostToDevice, stream);
	ok(cudaHostUnregister(host + PAGES) == cudaErrorHostMemoryNotRegistered &&
		   seen(before) == 1,
	   "it is not registered from there");
	ok(cudaFreeHost(host) != cudaSuccess && seen(before) == 1, "nor allocated");
	ok(cudaHostUnregister(host) == cudaSuccess, "registered no more");
	ok(cudaStreamSynchronize(stream) && seen(before) == 1,
	   "while a copy was under way: it is refused");
	reset();
	ok(cudaHostUnregister(host) == cudaErrorHostMemoryNotRegistered && seen(before) == 1,
	   "not twice");
	cudaHostRegister(host, PAGES, 0);
	munmap(host, 4 * PAGES);
	ok(cudaHostUnregister(host) == cudaSuccess && seen(before) == 1,
	   "memory that was unmapped while it was registered");
	ok(cudaHostRegister(host, PAGES, 0) == cudaErrorInvalidValue, "memory that is not there");
	setenv("FAKEGPU_READ_ONLY", "0", 1);
	ok(cudaHostRegister(d, PAGES, flags) == cudaErrorNotSupported, "no read-only pages");
	unsetenv("FAKEGPU_READ_ONLY");
	cudaGetLastError();
}

static void test_faults(void)
{
	void *p, *q;

	fakegpu_fault("cudaMalloc@1:1:oom");
	ok(cudaMalloc(&p, 8) == cudaSuccess, "a fault of one device is not another's");
	cudaSetDevice(1);
	ok(cudaMalloc(&q, 8) == cudaErrorMemoryAllocation && cudaGetLastError(), "but its own");
	cudaSetDevice(0);
	cudaFree(p);
	fakegpu_fault("cudaMalloc:2:oom;kernel:1:illegal");
	ok(cudaMalloc(&p, 8) == cudaSuccess, "the first is good");
	launch("self_double", p, 1, 1);
	ok(cudaStreamSynchronize(stream) == cudaErrorIllegalAddress, "an injected illegal address");
	reset();
	ok(cudaMalloc(&p, 8) == cudaErrorMemoryAllocation && cudaGetLastError(),
	   "the second fails");
	fakegpu_fault(NULL);
	ok(cudaMalloc(&p, fake.device[0].limit + 1) == cudaErrorMemoryAllocation, "the limit");
	cudaGetLastError();
}

/* A 2 x 2 convolution by hand: x = 1..9 as 3x3, w = 1, 10, 100, 1000. */
static void test_convolution(void)
{
	static const float want[4] = {5421, 6532, 8754, 9865};
	cudnnHandle_t h;
	cudnnTensorDescriptor_t x, y;
	cudnnFilterDescriptor_t w;
	cudnnConvolutionDescriptor_t c;
	cudnnConvolutionFwdAlgoPerf_t perf;
	float *host, *dev, one = 1, zero = 0;
	uint64_t before = fakegpu_violations();
	int n;

	cudaMallocHost((void **)&host, 4096);
	cudaMalloc((void **)&dev, 4096);
	for (int i = 0; i < 9; i++)
		host[i] = (float)(i + 1);
	for (int i = 0; i < 4; i++)
		host[16 + i] = powf(10, (float)i);
	cudaMemcpyAsync(dev, host, 4096, cudaMemcpyHostToDevice, stream);
	cudnnCreate(&h);
	cudnnSetStream(h, stream);
	cudnnCreateTensorDescriptor(&x);
	cudnnCreateTensorDescriptor(&y);
	cudnnCreateFilterDescriptor(&w);
	cudnnCreateConvolutionDescriptor(&c);
	cudnnSetTensor4dDescriptor(x, CUDNN_TENSOR_NHWC, CUDNN_DATA_FLOAT, 1, 1, 3, 3);
	cudnnSetTensor4dDescriptor(y, CUDNN_TENSOR_NHWC, CUDNN_DATA_FLOAT, 1, 1, 2, 2);
	cudnnSetFilter4dDescriptor(w, CUDNN_DATA_FLOAT, CUDNN_TENSOR_NHWC, 1, 1, 2, 2);
	cudnnSetConvolution2dDescriptor(c, 0, 0, 1, 1, 1, 1, CUDNN_CROSS_CORRELATION,
					CUDNN_DATA_FLOAT);
	cudnnGetConvolutionForwardAlgorithm_v7(h, x, w, c, y, 1, &n, &perf);
	ok(n == 1 && perf.memory > 0, "an algorithm that wants workspace");
	ok(cudnnConvolutionForward(h, &one, x, dev, w, dev + 16, c, perf.algo, NULL, 0, &zero, y,
				   dev + 32) != CUDNN_STATUS_SUCCESS &&
		   seen(before) == 1,
	   "too little workspace");
	cudnnConvolutionForward(h, &one, x, dev, w, dev + 16, c, perf.algo, dev + 64, 3072, &zero,
				y, dev + 32);
	cudaMemcpyAsync(host + 32, dev + 32, 16, cudaMemcpyDeviceToHost, stream);
	cudaStreamSynchronize(stream);
	ok(!memcmp(host + 32, want, sizeof(want)), "2x2 convolution: %g %g %g %g", host[32],
	   host[33], host[34], host[35]);
	cudnnSetTensor4dDescriptor(y, CUDNN_TENSOR_NHWC, CUDNN_DATA_FLOAT, 1, 1, 3, 3);
	ok(cudnnGetConvolutionForwardAlgorithm_v7(h, x, w, c, y, 1, &n, &perf) && seen(before) == 1,
	   "shapes that do not fit");
	cudnnDestroyConvolutionDescriptor(c);
	cudnnDestroyFilterDescriptor(w);
	cudnnDestroyTensorDescriptor(y);
	cudnnDestroyTensorDescriptor(x);
	cudnnDestroy(h);
	cudaFree(dev);
	cudaFreeHost(host);
}

/* (2 x 2) (2 x 1), column-major: A = [1 3; 2 4], b = (5, 6). */
static void test_matmul(void)
{
	static const float values[6] = {1, 2, 3, 4, 5, 6};
	cublasLtHandle_t h;
	cublasLtMatmulDesc_t d;
	cublasLtMatrixLayout_t a, b, c;
	float *host, *dev, one = 1, zero = 0;
	cublasOperation_t t = CUBLAS_OP_T;
	uint64_t before = fakegpu_violations();

	cudaMallocHost((void **)&host, 256);
	cudaMalloc((void **)&dev, 256);
	memcpy(host, values, sizeof(values));
	cudaMemcpyAsync(dev, host, 256, cudaMemcpyHostToDevice, stream);
	cublasLtCreate(&h);
	cublasLtMatmulDescCreate(&d, CUBLAS_COMPUTE_32F, CUDA_R_32F);
	cublasLtMatrixLayoutCreate(&a, CUDA_R_32F, 2, 2, 2);
	cublasLtMatrixLayoutCreate(&b, CUDA_R_32F, 2, 1, 2);
	cublasLtMatrixLayoutCreate(&c, CUDA_R_32F, 2, 1, 2);
	cublasLtMatmul(h, d, &one, dev, a, dev + 4, b, &zero, dev + 8, c, dev + 8, c, NULL, NULL, 0,
		       stream);
	cublasLtMatmulDescSetAttribute(d, CUBLASLT_MATMUL_DESC_TRANSA, &t, sizeof(t));
	cublasLtMatmul(h, d, &one, dev, a, dev + 4, b, &zero, dev + 12, c, dev + 12, c, NULL, NULL,
		       0, stream);
	cudaMemcpyAsync(host, dev, 256, cudaMemcpyDeviceToHost, stream);
	cudaStreamSynchronize(stream);
	ok(host[8] == 23 && host[9] == 34, "A b = %g, %g", host[8], host[9]);
	ok(host[12] == 17 && host[13] == 39, "A' b = %g, %g", host[12], host[13]);
	cublasLtMatmul(h, d, &one, dev + 1, a, dev + 4, b, &zero, dev + 12, c, dev + 12, c, NULL,
		       NULL, 0, stream);
	cudaStreamSynchronize(stream);
	ok(seen(before) == 1, "an operand that is not aligned");
	reset(); /* the handle goes, too; descriptors are the host's */
	cublasLtMatrixLayoutDestroy(c);
	cublasLtMatrixLayoutDestroy(b);
	cublasLtMatrixLayoutDestroy(a);
	cublasLtMatmulDescDestroy(d);
}

/* Some of everything on both devices, work that never ends, work that waits for it. */
static void test_reset(void)
{
	uint64_t before = fakegpu_violations();
	cudaStream_t s[2];
	cudaEvent_t e[2];
	cudaGraph_t g;
	cudaGraphExec_t x[2];
	cudnnHandle_t dnn[2];
	cublasLtHandle_t lt[2];
	void *dev[2], *host[2];
	int64_t live[2];
	size_t room, all;

	cudaStreamDestroy(stream);
	for (int i = 0; i < 2; i++) {
		cudaSetDevice(i);
		cudaStreamCreateWithFlags(&s[i], cudaStreamNonBlocking);
		cudaEventCreateWithFlags(&e[i], cudaEventDisableTiming);
		cudaMalloc(&dev[i], 256);
		cudaMallocHost(&host[i], 256);
		cudnnCreate(&dnn[i]);
		cublasLtCreate(&lt[i]);
		cudaStreamBeginCapture(s[i], cudaStreamCaptureModeThreadLocal);
		cudaMemsetAsync(dev[i], i, 256, s[i]);
		cudaStreamEndCapture(s[i], &g);
		cudaGraphInstantiate(&x[i], g, 0);
		cudaGraphDestroy(g);
		live[i] = fakegpu_live();
	}
	fakegpu_fault("kernel:1:hang");
	cudaSetDevice(0);
	{
		struct self_args a = {dev[0], 1};
		void *args[1] = {&a};

		fake_launch("self_double", (dim3){1, 1, 1}, (dim3){64, 1, 1}, args, 0, s[0]);
	}
	fakegpu_fault(NULL);
	cudaEventRecord(e[0], s[0]);
	cudaStreamWaitEvent(s[1], e[0], 0);
	cudaGraphLaunch(x[1], s[1]);
	cudaMemcpyAsync(host[1], dev[1], 256, cudaMemcpyDeviceToHost, s[1]);
	ok(cudaEventQuery(e[0]) == cudaErrorNotReady, "a kernel that never ends");
	cudaDeviceReset();
	is(fakegpu_live(), live[1] - live[0], "a reset ends all of a device, and off the counts");
	cudaMemGetInfo(&room, &all);
	ok(room == all, "its memory is free");
	is(cudaStreamSynchronize(s[1]), cudaSuccess, "who waited for it goes on");
	ok(((char *)host[1])[255] == 1, "the other device's objects live");
	is(seen(before), 0, "none of this is wrong");
	cudaFree(dev[0]);
	cudaFreeHost(host[0]);
	cudaStreamSynchronize(s[0]);
	cudaEventRecord(e[0], s[1]);
	cudaGraphLaunch(x[0], s[1]);
	cudnnSetStream(dnn[0], s[1]);
	cublasLtDestroy(lt[0]);
	is(seen(before), 7, "seven uses of what is gone");
	cudaSetDevice(1);
	cudaDeviceReset();
	is(fakegpu_live(), 0, "and so does a reset of the other one");
	cudaSetDevice(0);
	cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking);
}

/* ---- two ranks ---- */

struct rank {
	int rank;
	ncclUniqueId id;
	bool hang, aborted;
	float got;
};

static void wait_ready(ncclComm_t comm)
{
	ncclResult_t state = ncclInProgress;

	while (state == ncclInProgress)
		ncclCommGetAsyncError(comm, &state);
}

static void *run_rank(void *arg)
{
	struct rank *r = arg;
	ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
	ncclComm_t comm;
	cudaStream_t s;
	cudaEvent_t event;
	float *dev, *host;
	int tries = 0;

	config.blocking = 0;
	cudaSetDevice(r->rank);
	cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking);
	cudaEventCreateWithFlags(&event, cudaEventDisableTiming);
	cudaMalloc((void **)&dev, 16);
	cudaMallocHost((void **)&host, 16);
	host[0] = (float)(r->rank + 1);
	cudaMemcpyAsync(dev, host, 16, cudaMemcpyHostToDevice, s);
	ncclCommInitRankConfig(&comm, 2, r->id, r->rank, &config);
	wait_ready(comm);
	ncclAllReduce(dev, dev, 1, ncclFloat, ncclSum, comm, s);
	cudaEventRecord(event, s);
	while (cudaEventQuery(event) == cudaErrorNotReady && (!r->hang || tries++ < 200))
		usleep(100);
	if (cudaEventQuery(event) == cudaErrorNotReady) {
		ncclCommAbort(comm);
		r->aborted = true;
	} else {
		ncclCommDestroy(comm);
	}
	cudaMemcpyAsync(host, dev, 16, cudaMemcpyDeviceToHost, s);
	cudaStreamSynchronize(s);
	r->got = host[0];
	cudaStreamDestroy(s);
	cudaEventDestroy(event);
	cudaFree(dev);
	cudaFreeHost(host);
	return NULL;
}

static void test_nccl(bool hang)
{
	struct rank r[2] = {{.rank = 0, .hang = hang}, {.rank = 1, .hang = hang}};
	pthread_t t[2];

	ncclGetUniqueId(&r[0].id);
	r[1].id = r[0].id;
	fakegpu_fault(hang ? "ncclAllReduce:1:hang" : NULL);
	for (int i = 0; i < 2; i++)
		pthread_create(&t[i], NULL, run_rank, &r[i]);
	for (int i = 0; i < 2; i++)
		pthread_join(t[i], NULL);
	if (hang)
		ok(r[0].aborted && r[1].aborted, "a collective that never ends ends by abort");
	else
		ok(r[0].got == 3 && r[1].got == 3, "sum over two devices: %g, %g", r[0].got,
		   r[1].got);
	fakegpu_fault(NULL);
}

static void test_graph(void)
{
	cudaGraph_t g;
	cudaGraphExec_t x;
	float *d, *h;
	void *p;

	cudaMalloc((void **)&d, 256);
	cudaMallocHost((void **)&h, 256);
	h[0] = 1;
	cudaMemcpyAsync(d, h, 256, cudaMemcpyHostToDevice, stream);
	cudaStreamSynchronize(stream);
	cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal);
	launch("self_double", d, 1, 1);
	ok(cudaMalloc(&p, 8) == cudaErrorStreamCaptureUnsupported, "no allocation in a capture");
	__atomic_sub_fetch(&fake.violations, 1, __ATOMIC_RELAXED);
	cudaGetLastError();
	ok(cudaStreamEndCapture(stream, &g) == cudaSuccess, "a capture");
	cudaGraphInstantiate(&x, g, 0);
	cudaGraphDestroy(g);
	for (int i = 0; i < 3; i++)
		cudaGraphLaunch(x, stream);
	cudaMemcpyAsync(h, d, 4, cudaMemcpyDeviceToHost, stream);
	cudaStreamSynchronize(stream);
	ok(h[0] == 8, "captured once, run three times: %g", h[0]);
	cudaGraphExecDestroy(x);
	cudaFree(d);
	cudaFreeHost(h);
}

int main(void)
{
	setenv("FAKEGPU_DEVICES", "2", 0);
	fake_init();
	cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking);
	test_order();
	test_misuse();
	test_registered();
	test_faults();
	test_graph();
	test_convolution();
	test_matmul();
	test_reset();
	test_nccl(false);
	test_nccl(true);
	cudaStreamDestroy(stream);
	ok(fakegpu_live() == 0, "nothing is left over");
	ok(fakegpu_violations() == 0, "no violation but those that were wanted");
	return done();
}
