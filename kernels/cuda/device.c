/* SPDX-License-Identifier: MIT */
/* device.c: opening and closing a device, its errors, its memory, waiting for it. */
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "cuda.h"

#define TIMEOUT_MS 60000u
#define SPIN_NS 200000 /* a wait polls without sleeping for this long */

/* ---- errors --------------------------------------------------------------------------------- */

/* After these the context is of no use to anybody. */
static bool is_sticky(int code)
{
	switch (code) {
	case cudaErrorECCUncorrectable:
	case cudaErrorNvlinkUncorrectable:
	case cudaErrorIllegalAddress:
	case cudaErrorLaunchTimeout:
	case cudaErrorContextIsDestroyed:
	case cudaErrorAssert:
	case cudaErrorHardwareStackError:
	case cudaErrorIllegalInstruction:
	case cudaErrorMisalignedAddress:
	case cudaErrorInvalidAddressSpace:
	case cudaErrorInvalidPc:
	case cudaErrorLaunchFailure:
	case cudaErrorUnknown:
		return true;
	default:
		return false;
	}
}

static int lost(struct cuda_backend *gpu, const char *what, const char *why,
		struct backend_error *error)
{
	if (!gpu->lost)
		snprintf(gpu->why, sizeof(gpu->why), "%.60s: %.90s", what, why);
	gpu->lost = true;
	return backend_fail(error, -ENOTRECOVERABLE, "GPU %d is lost: %s; it is to be opened anew",
			    gpu->device, gpu->why);
}

int cuda_failed(struct cuda_backend *gpu, int code, const char *what, struct backend_error *error)
{
	if (!code)
		return 0;
	if (code < 0)
		return backend_fail(error, code, "GPU %d: %s: not possible", gpu->device, what);
	cudaGetLastError(); /* one that is not sticky is forgotten */
	if (is_sticky(code))
		return lost(gpu, what, cudaGetErrorString((cudaError_t)code), error);
	return backend_fail(error, code == cudaErrorMemoryAllocation ? -ENOMEM : -EIO,
			    "GPU %d: %s: %s", gpu->device, what,
			    cudaGetErrorString((cudaError_t)code));
}

/* A library's failure may be the runtime's, and sticky. */
static int library_failed(struct cuda_backend *gpu, bool memory, const char *what, const char *why,
			  struct backend_error *error)
{
	int code = cudaGetLastError();

	if (is_sticky(code))
		return lost(gpu, what, cudaGetErrorString((cudaError_t)code), error);
	return backend_fail(error, memory ? -ENOMEM : -EIO, "GPU %d: %s: %s", gpu->device, what,
			    why);
}

int cudnn_failed(struct cuda_backend *gpu, cudnnStatus_t code, const char *what,
		 struct backend_error *error)
{
	bool memory = code == CUDNN_STATUS_ALLOC_FAILED ||
		      code == CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED ||
		      code == CUDNN_STATUS_INTERNAL_ERROR_HOST_ALLOCATION_FAILED;

	if (code == CUDNN_STATUS_SUCCESS)
		return 0;
	return library_failed(gpu, memory, what, cudnnGetErrorString(code), error);
}

int cublas_failed(struct cuda_backend *gpu, cublasStatus_t code, const char *what,
		  struct backend_error *error)
{
	if (code == CUBLAS_STATUS_SUCCESS)
		return 0;
	return library_failed(gpu, code == CUBLAS_STATUS_ALLOC_FAILED, what,
			      cublasLtGetStatusString(code), error);
}

int cuda_enter(struct cuda_backend *gpu, struct backend_error *error)
{
	if (gpu->lost)
		return backend_fail(error, -ENOTRECOVERABLE,
				    "GPU %d is lost: %s; it is to be opened anew", gpu->device,
				    gpu->why);
	return cuda_failed(gpu, cudaSetDevice(gpu->device), "cudaSetDevice", error);
}

/* ---- memory --------------------------------------------------------------------------------- */

int cuda_alloc(struct cuda_backend *gpu, uint64_t bytes, void **out, struct backend_error *error)
{
	size_t available = 0, total = 0;
	int rc = cudaMalloc(out, bytes);

	if (!rc) {
		gpu->bytes += bytes;
		return 0;
	}
	*out = NULL;
	if (rc != cudaErrorMemoryAllocation)
		return cuda_failed(gpu, rc, "cudaMalloc", error);
	cudaGetLastError();
	if (cudaMemGetInfo(&available, &total))
		cudaGetLastError();
	return backend_fail(error, -ENOMEM,
			    "GPU %d has not enough memory: needed %llu bytes, free %zu of %zu",
			    gpu->device, (unsigned long long)bytes, available, total);
}

void cuda_release(struct cuda_backend *gpu, void *memory, uint64_t bytes)
{
	if (!memory)
		return;
	if (cudaFree(memory))
		cudaGetLastError(); /* of a lost device: its memory goes with the context */
	gpu->bytes -= bytes;
}

/* ---- waiting -------------------------------------------------------------------------------- */

static uint64_t now_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000000000ull + (uint64_t)t.tv_nsec;
}

int cuda_wait(struct cuda_backend *gpu, cudaEvent_t event, const char *what,
	      struct backend_error *error)
{
	uint64_t begin = now_ns(), spent = 0;
	char why[64];
	int rc;

	while ((rc = cudaEventQuery(event)) == cudaErrorNotReady) {
		const struct timespec nap = {0, spent < 10000000 ? 20000 : 200000};

		spent = now_ns() - begin;
		if (spent > gpu->timeout_ms * 1000000ull) {
			snprintf(why, sizeof(why), "no end after %u ms", gpu->timeout_ms);
			gpu->hung = true;
			return lost(gpu, what, why, error);
		}
		if (spent < SPIN_NS)
			sched_yield();
		else
			nanosleep(&nap, NULL);
	}
	return cuda_failed(gpu, rc, what, error);
}

/* ---- open, close ---------------------------------------------------------------------------- */

static void cuda_close(struct backend *backend)
{
	struct cuda_backend *gpu = (struct cuda_backend *)backend;

	/* makes the device current, though it may tell an old error */
	cudaSetDevice(gpu->device);
	pin_release(gpu);
	if (gpu->relu)
		cudnnDestroyActivationDescriptor(gpu->relu);
	if (gpu->identity)
		cudnnDestroyActivationDescriptor(gpu->identity);
	/* a handle's end waits for the device; where that never comes, all goes with the context */
	if (gpu->dnn && !gpu->hung)
		cudnnDestroy(gpu->dnn);
	if (gpu->lt && !gpu->hung)
		cublasLtDestroy(gpu->lt);
	if (gpu->lost)
		cudaDeviceReset();
	cudaGetLastError();
	free(gpu->choice);
	free(gpu);
}

static int libraries(struct cuda_backend *gpu, struct backend_error *error)
{
	cudnnStatus_t rc = cudnnCreate(&gpu->dnn);
	cublasStatus_t lt;

	if (!rc)
		rc = cudnnCreateActivationDescriptor(&gpu->relu);
	if (!rc)
		rc = cudnnCreateActivationDescriptor(&gpu->identity);
	if (!rc)
		rc = cudnnSetActivationDescriptor(gpu->relu, CUDNN_ACTIVATION_RELU,
						  CUDNN_PROPAGATE_NAN, 0.0);
	if (!rc)
		rc = cudnnSetActivationDescriptor(gpu->identity, CUDNN_ACTIVATION_IDENTITY,
						  CUDNN_PROPAGATE_NAN, 0.0);
	if (rc)
		return cudnn_failed(gpu, rc, "cuDNN cannot be started", error);
	lt = cublasLtCreate(&gpu->lt);
	return cublas_failed(gpu, lt, "cuBLASLt cannot be started", error);
}

static int capabilities(struct cuda_backend *gpu, enum backend_precision precision,
			struct backend_error *error)
{
	static const char *const name[BACKEND_PRECISION_COUNT] = {"f32", "tf32", "bf16", "f16"};
	int major = 0, minor = 0, driver = 0, runtime = 0, read_only = 0, rc;
	size_t dnn = cudnnGetVersion(), lt = cublasLtGetVersion();
	struct cudaDeviceProp prop;

	rc = cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, gpu->device);
	if (!rc)
		rc = cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, gpu->device);
	if (!rc)
		rc = cudaDeviceGetAttribute(&gpu->multiprocessors, cudaDevAttrMultiProcessorCount,
					    gpu->device);
	if (!rc)
		rc = cudaGetDeviceProperties(&prop, gpu->device);
	if (!rc)
		rc = cudaDriverGetVersion(&driver);
	if (!rc)
		rc = cudaRuntimeGetVersion(&runtime);
	if (rc)
		return cuda_failed(gpu, rc, "properties of the device", error);
	if (cudaDeviceGetAttribute(&read_only, cudaDevAttrHostRegisterReadOnlySupported,
				   gpu->device))
		cudaGetLastError();
	gpu->read_only = read_only;
	gpu->capability = 10 * major + minor;
	if (gpu->capability < 80 &&
	    (precision == BACKEND_PRECISION_TF32 || precision == BACKEND_PRECISION_BF16))
		return backend_fail(error, -EOPNOTSUPP,
				    "GPU %d (%.64s, sm_%d) has no %s; use f32 or f16", gpu->device,
				    prop.name, gpu->capability, name[precision]);
	snprintf(gpu->base.info, sizeof(gpu->base.info),
		 "GPU %d %.64s sm_%d, %s, driver %d.%d, CUDA %d.%d, cuDNN %zu.%zu.%zu, cuBLASLt "
		 "%zu.%zu.%zu",
		 gpu->device, prop.name, gpu->capability, name[precision], driver / 1000,
		 driver % 1000 / 10, runtime / 1000, runtime % 1000 / 10, dnn / 10000,
		 dnn / 100 % 100, dnn % 100, lt / 10000, lt / 100 % 100, lt % 100);
	return 0;
}

static int open_device(struct cuda_backend *gpu, const struct backend_options *options,
		       struct backend_error *error)
{
	int count = 0, rc;

	if ((unsigned int)options->precision >= BACKEND_PRECISION_COUNT)
		return backend_fail(error, -EINVAL, "unknown precision %d", options->precision);
	rc = cudaGetDeviceCount(&count);
	if (rc || options->device >= (uint32_t)count) {
		cudaGetLastError();
		return backend_fail(error, -ENODEV, "there is no GPU %u: %s", options->device,
				    rc ? cudaGetErrorString((cudaError_t)rc)
				       : "fewer devices than that");
	}
	gpu->device = (int)options->device;
	gpu->timeout_ms = options->timeout_ms ? options->timeout_ms : TIMEOUT_MS;
	gpu->type = options->precision == BACKEND_PRECISION_F16	   ? CUDA_T_F16
		    : options->precision == BACKEND_PRECISION_BF16 ? CUDA_T_BF16
								   : CUDA_T_F32;
	gpu->base.options = *options;
	rc = cuda_enter(gpu, error);
	if (!rc)
		rc = capabilities(gpu, options->precision, error);
	return rc ? rc : libraries(gpu, error);
}

static int cuda_open(const struct backend_options *options, struct backend **out,
		     struct backend_error *error)
{
	struct cuda_backend *gpu = calloc(1, sizeof(*gpu));
	int rc;

	if (!gpu)
		return backend_fail(error, -ENOMEM, "no memory for the back end");
	rc = open_device(gpu, options, error);
	if (rc) {
		if (gpu->timeout_ms)
			cuda_close(&gpu->base);
		else
			free(gpu);
		return rc;
	}
	*out = &gpu->base;
	return 0;
}

static int cuda_devices(struct backend_device *out, uint32_t max, uint32_t *n,
			struct backend_error *error)
{
	int count = 0, rc = cudaGetDeviceCount(&count);

	*n = 0;
	if (rc == cudaErrorNoDevice || rc == cudaErrorInsufficientDriver) {
		cudaGetLastError();
		return 0;
	}
	for (int i = 0; i < count && !rc && (uint32_t)i < max; i++) {
		struct cudaDeviceProp prop;
		size_t available = 0, total = 0;

		rc = cudaGetDeviceProperties(&prop, i);
		if (!rc)
			rc = cudaSetDevice(i);
		if (!rc)
			rc = cudaMemGetInfo(&available, &total);
		if (rc)
			break;
		out[i] = (struct backend_device){.index = (uint32_t)i,
						 .capability =
							 (uint32_t)(10 * prop.major + prop.minor),
						 .total_bytes = total,
						 .free_bytes = available};
		snprintf(out[i].name, sizeof(out[i].name), "%.63s", prop.name);
	}
	if (rc)
		return backend_fail(error, -EIO, "the GPUs cannot be listed: %s",
				    cudaGetErrorString((cudaError_t)rc));
	*n = (uint32_t)count;
	return 0;
}

static float *cuda_device_arena(struct backend_net *net, enum backend_arena arena)
{
	return ((struct cuda_net *)net)->arena[arena];
}

static bool cuda_lost(const struct backend *backend)
{
	return ((const struct cuda_backend *)backend)->lost;
}

static const struct backend_ops cuda_ops = {
	.version = BACKEND_OPS_VERSION,
	.name = "cuda",
	.open = cuda_open,
	.close = cuda_close,
	.estimate = cuda_estimate,
	.compile = cuda_compile,
	.free = cuda_free,
	.read = cuda_read,
	.write = cuda_write,
	.gradient = cuda_gradient,
	.apply = cuda_apply,
	.step = cuda_step,
	.penalty = cuda_penalty,
	.evaluate = cuda_evaluate,
	.resident = stage_resident,
	.device_arena = cuda_device_arena,
	.merge = cuda_merge,
	.devices = cuda_devices,
	.lost = cuda_lost,
	.host_register = pin_register,
	.host_unregister = pin_unregister,
};

/* The only name that the shared object exports. */
const struct backend_ops *backend_entry(uint32_t version);
const struct backend_ops *backend_entry(uint32_t version)
{
	return version == BACKEND_OPS_VERSION ? &cuda_ops : NULL;
}
