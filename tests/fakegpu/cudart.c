// SPDX-License-Identifier: MIT
/* cudart.c: the calls of libcudart that are neither streams, events nor graphs (exec.c), and those
 * that nvcc's host code makes. */
#define _GNU_SOURCE
#include "fake.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static _Thread_local cudaError_t last;

static cudaError_t tell(cudaError_t rc)
{
	if (rc && rc != cudaErrorNotReady)
		last = rc;
	return rc;
}

/* Calls that synchronise are not allowed while this thread captures. */
static cudaError_t unsafe(const char *what)
{
	if (!fake_capturing_here())
		return cudaSuccess;
	fake_violation("%s while a stream is being captured", what);
	return cudaErrorStreamCaptureUnsupported;
}

/* ---- devices ---- */

cudaError_t cudaGetDeviceCount(int *n)
{
	fake_init();
	*n = fake.n_devices;
	return tell(fake.n_devices ? cudaSuccess : cudaErrorNoDevice);
}

cudaError_t cudaSetDevice(int device)
{
	fake_init();
	if (device < 0 || device >= fake.n_devices)
		return tell(cudaErrorInvalidDevice);
	*fake_current() = device;
	return tell(fake_sticky(device));
}

cudaError_t cudaGetDevice(int *device)
{
	*device = *fake_current();
	return cudaSuccess;
}

static bool read_only_supported(void)
{
	const char *text = getenv("FAKEGPU_READ_ONLY");

	return !text || *text != '0';
}

cudaError_t cudaDeviceGetAttribute(int *value, enum cudaDeviceAttr attr, int device)
{
	fake_init();
	if (device < 0 || device >= fake.n_devices)
		return tell(cudaErrorInvalidDevice);
	switch (attr) {
	case cudaDevAttrComputeCapabilityMajor:
		*value = getenv("FAKEGPU_MAJOR") ? atoi(getenv("FAKEGPU_MAJOR")) : 9;
		return cudaSuccess;
	case cudaDevAttrComputeCapabilityMinor:
		*value = 0;
		return cudaSuccess;
	case cudaDevAttrMultiProcessorCount:
		*value = 4;
		return cudaSuccess;
	case cudaDevAttrHostRegisterReadOnlySupported:
		*value = read_only_supported();
		return cudaSuccess;
	default:
		fake_violation("%s: attribute %d is not simulated", __func__, (int)attr);
		return tell(cudaErrorInvalidValue);
	}
}

cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp *p, int device)
{
	fake_init();
	if (device < 0 || device >= fake.n_devices)
		return tell(cudaErrorInvalidDevice);
	memset(p, 0, sizeof(*p));
	snprintf(p->name, sizeof(p->name), "simulated GPU %d", device);
	p->totalGlobalMem = fake.device[device].limit;
	return cudaSuccess;
}

cudaError_t cudaDeviceReset(void)
{
	fake_init();
	fake_reset(*fake_current());
	return cudaSuccess;
}

cudaError_t cudaRuntimeGetVersion(int *v)
{
	*v = CUDART_VERSION;
	return cudaSuccess;
}

cudaError_t cudaDriverGetVersion(int *v)
{
	const char *text = getenv("FAKEGPU_DRIVER");

	*v = text ? atoi(text) : CUDART_VERSION;
	return cudaSuccess;
}

cudaError_t cudaMemGetInfo(size_t *available, size_t *total)
{
	struct fake_device *d = &fake.device[*fake_current()];

	fake_init();
	pthread_mutex_lock(&fake.lock);
	*total = d->limit;
	*available = d->limit - d->used;
	pthread_mutex_unlock(&fake.lock);
	return tell(fake_sticky(*fake_current()));
}

/* ---- memory ---- */

cudaError_t cudaMalloc(void **p, size_t bytes)
{
	enum fake_fault f;
	cudaError_t rc;

	fake_init();
	rc = unsafe(__func__);
	f = fake_fault(__func__);
	*p = NULL;
	if (!rc)
		rc = fake_sticky(*fake_current());
	if (!rc && f == FAKE_OOM)
		rc = cudaErrorMemoryAllocation;
	if (!rc && bytes)
		rc = fake_alloc(*fake_current(), bytes, p);
	return tell(rc);
}

cudaError_t cudaFree(void *p)
{
	cudaError_t rc = unsafe(__func__);

	return tell(rc ? rc : fake_free(p));
}

cudaError_t cudaMallocHost(void **p, size_t bytes)
{
	cudaError_t rc;

	fake_init();
	rc = unsafe(__func__);
	*p = NULL;
	if (!rc && fake_fault(__func__) == FAKE_OOM)
		rc = cudaErrorMemoryAllocation;
	return tell(rc ? rc : fake_alloc_pinned(bytes, p));
}

cudaError_t cudaFreeHost(void *p)
{
	cudaError_t rc = unsafe(__func__);

	return tell(rc ? rc : fake_free_pinned(p));
}

cudaError_t cudaHostRegister(void *p, size_t bytes, unsigned int flags)
{
	bool read_only = flags & cudaHostRegisterReadOnly;
	cudaError_t rc;

	fake_init();
	rc = unsafe(__func__);
	if (!rc)
		rc = fake_sticky(*fake_current());
	if (!rc && fake_fault(__func__) == FAKE_OOM)
		rc = cudaErrorMemoryAllocation;
	if (!rc && (flags & ~(unsigned int)(cudaHostRegisterPortable | cudaHostRegisterReadOnly)))
		rc = cudaErrorInvalidValue;
	if (!rc && read_only && !read_only_supported())
		rc = cudaErrorNotSupported;
	return tell(rc ? rc : fake_register(p, bytes, read_only));
}

cudaError_t cudaHostUnregister(void *p)
{
	cudaError_t rc = unsafe(__func__);

	return tell(rc ? rc : fake_unregister(p));
}

struct copy {
	void *to;
	const void *from;
	size_t bytes;
	enum cudaMemcpyKind kind;
	int value;
};

/* Device addresses are looked at when the copy runs: they may have been freed by then. */
static bool copy_good(const struct copy *c, int device)
{
	bool to = c->kind != cudaMemcpyDeviceToHost, from = c->kind != cudaMemcpyHostToDevice;

	if (to && !fake_device_range(device, c->to, c->bytes, "copy to the device"))
		return false;
	if (from && !fake_device_range(-1, c->from, c->bytes, "copy from the device"))
		return false;
	if (!to && !fake_pinned_range(c->to, c->bytes, true)) {
		fake_violation("copy to host memory that is not pinned (any more)");
		return false;
	}
	if (!from && !fake_pinned_range(c->from, c->bytes, false)) {
		fake_violation("copy from host memory that is not pinned (any more)");
		return false;
	}
	return true;
}

static cudaError_t run_copy(struct fake_op *op)
{
	struct copy *c = (struct copy *)op->data;

	if (!copy_good(c, op->device))
		return cudaErrorIllegalAddress;
	memcpy(c->to, c->from, c->bytes);
	__atomic_add_fetch(&fake.copies, 1, __ATOMIC_RELAXED);
	return cudaSuccess;
}

cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t bytes, enum cudaMemcpyKind kind,
			    cudaStream_t stream)
{
	struct copy c = {.to = to, .from = from, .bytes = bytes, .kind = kind};

	if (kind != cudaMemcpyHostToDevice && kind != cudaMemcpyDeviceToHost &&
	    kind != cudaMemcpyDeviceToDevice) {
		fake_violation("%s: kind %d is not simulated", __func__, (int)kind);
		return tell(cudaErrorInvalidMemcpyDirection);
	}
	if (!bytes)
		return cudaSuccess;
	if (fake_fault(__func__) == FAKE_ILLEGAL)
		return tell(fake_break(*fake_current(), cudaErrorIllegalAddress));
	return tell(fake_submit(stream, __func__, run_copy, NULL, NULL, &c, sizeof(c)));
}

static cudaError_t run_set(struct fake_op *op)
{
	struct copy *c = (struct copy *)op->data;

	if (!fake_device_range(op->device, c->to, c->bytes, "cudaMemsetAsync"))
		return cudaErrorIllegalAddress;
	memset(c->to, c->value, c->bytes);
	return cudaSuccess;
}

cudaError_t cudaMemsetAsync(void *to, int value, size_t bytes, cudaStream_t stream)
{
	struct copy c = {.to = to, .bytes = bytes, .value = value};

	if (!bytes)
		return cudaSuccess;
	if (fake_fault(__func__))
		return tell(cudaErrorInvalidValue);
	return tell(fake_submit(stream, __func__, run_set, NULL, NULL, &c, sizeof(c)));
}

/* ---- errors ---- */

cudaError_t cudaGetLastError(void)
{
	cudaError_t rc = last, sticky;

	fake_init();
	sticky = fake_sticky(*fake_current());
	last = cudaSuccess;
	return sticky ? sticky : rc;
}

static const struct {
	cudaError_t code;
	const char *name, *text;
} errors[] = {
	{cudaSuccess, "cudaSuccess", "no error"},
	{cudaErrorInvalidValue, "cudaErrorInvalidValue", "invalid argument"},
	{cudaErrorMemoryAllocation, "cudaErrorMemoryAllocation", "out of memory"},
	{cudaErrorNoDevice, "cudaErrorNoDevice", "no CUDA-capable device is detected"},
	{cudaErrorInvalidDevice, "cudaErrorInvalidDevice", "invalid device ordinal"},
	{cudaErrorNotReady, "cudaErrorNotReady", "device not ready"},
	{cudaErrorIllegalAddress, "cudaErrorIllegalAddress",
	 "an illegal memory access was encountered"},
	{cudaErrorLaunchFailure, "cudaErrorLaunchFailure", "unspecified launch failure"},
	{cudaErrorInvalidResourceHandle, "cudaErrorInvalidResourceHandle",
	 "invalid resource handle"},
	{cudaErrorStreamCaptureUnsupported, "cudaErrorStreamCaptureUnsupported",
	 "operation not permitted when stream is capturing"},
};

const char *cudaGetErrorName(cudaError_t code)
{
	for (size_t i = 0; i < sizeof(errors) / sizeof(errors[0]); i++)
		if (errors[i].code == code)
			return errors[i].name;
	return "cudaErrorOther";
}

const char *cudaGetErrorString(cudaError_t code)
{
	for (size_t i = 0; i < sizeof(errors) / sizeof(errors[0]); i++)
		if (errors[i].code == code)
			return errors[i].text;
	return "another simulated error";
}

/* ---- what nvcc's host code calls ---- */

#define FUNCTIONS_MAX 4096
static struct {
	const void *host;
	const char *name;
} function[FUNCTIONS_MAX];
static int n_functions;
static _Thread_local struct {
	dim3 grid, block;
	size_t shared;
	void *stream;
	bool set;
} configuration;

void **__cudaRegisterFatBinary(void *binary);
void __cudaRegisterFatBinaryEnd(void **handle);
void __cudaUnregisterFatBinary(void **handle);
char __cudaInitModule(void **handle);
void __cudaRegisterFunction(void **handle, const char *host, char *device, const char *name,
			    int limit, uint3 *tid, uint3 *bid, dim3 *bdim, dim3 *gdim, int *warp);
cudaError_t __cudaGetKernel(cudaKernel_t *out, const void *host);
unsigned int __cudaPushCallConfiguration(dim3 grid, dim3 block, size_t shared, void *stream);
cudaError_t __cudaPopCallConfiguration(dim3 *grid, dim3 *block, size_t *shared, void *stream);
cudaError_t __cudaLaunchKernel(cudaKernel_t kernel, dim3 grid, dim3 block, void **args,
			       size_t shared, cudaStream_t stream);

void **__cudaRegisterFatBinary(void *binary)
{
	void **handle = malloc(sizeof(*handle));

	if (!handle)
		abort();
	*handle = binary;
	return handle;
}

void __cudaRegisterFatBinaryEnd(void **handle)
{
	(void)handle;
}

void __cudaUnregisterFatBinary(void **handle)
{
	free(handle);
}

char __cudaInitModule(void **handle)
{
	(void)handle;
	return 1;
}

/* Names belong to the object, which may be closed and opened again. */
void __cudaRegisterFunction(void **handle, const char *host, char *device, const char *name,
			    int limit, uint3 *tid, uint3 *bid, dim3 *bdim, dim3 *gdim, int *warp)
{
	(void)handle, (void)device, (void)limit, (void)tid, (void)bid, (void)bdim, (void)gdim,
		(void)warp;
	for (int i = 0; i < n_functions; i++)
		if (function[i].host == host || !strcmp(function[i].name, name)) {
			function[i].host = host;
			return;
		}
	if (n_functions == FUNCTIONS_MAX)
		abort();
	function[n_functions].host = host;
	function[n_functions].name = strdup(name);
	n_functions++;
}

cudaError_t __cudaGetKernel(cudaKernel_t *out, const void *host)
{
	for (int i = 0; i < n_functions; i++)
		if (function[i].host == host) {
			*out = (cudaKernel_t)(void *)&function[i];
			return cudaSuccess;
		}
	return cudaErrorInvalidDeviceFunction;
}

unsigned int __cudaPushCallConfiguration(dim3 grid, dim3 block, size_t shared, void *stream)
{
	configuration.grid = grid;
	configuration.block = block;
	configuration.shared = shared;
	configuration.stream = stream;
	configuration.set = true;
	return 0;
}

cudaError_t __cudaPopCallConfiguration(dim3 *grid, dim3 *block, size_t *shared, void *stream)
{
	if (!configuration.set)
		return cudaErrorMissingConfiguration;
	configuration.set = false;
	*grid = configuration.grid;
	*block = configuration.block;
	*shared = configuration.shared;
	*(void **)stream = configuration.stream;
	return cudaSuccess;
}

cudaError_t __cudaLaunchKernel(cudaKernel_t kernel, dim3 grid, dim3 block, void **args,
			       size_t shared, cudaStream_t stream)
{
	const char *name = function[((char *)kernel - (char *)function) / sizeof(function[0])].name;

	return tell(fake_launch(name, grid, block, args, shared, stream));
}

cudaError_t cudaLaunchKernel(const void *host, dim3 grid, dim3 block, void **args, size_t shared,
			     cudaStream_t stream)
{
	cudaKernel_t kernel;
	cudaError_t rc = __cudaGetKernel(&kernel, host);

	return rc ? tell(rc) : __cudaLaunchKernel(kernel, grid, block, args, shared, stream);
}
