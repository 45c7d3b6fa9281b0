/* SPDX-License-Identifier: MIT */
/*
 * pin.c: host memory that its owner has had pinned, so that rows are copied from where they lie. A
 * device knows what it was told of: pinned for one, memory is pinned for all of this process, and
 * the one that did it undoes it.
 */
#include <stdlib.h>
#include <string.h>

#include "cuda.h"

struct pin {
	const char *at;
	size_t bytes;
	bool own;
};

/* The first that ends after p; n_pins: none. */
static uint32_t place_of(const struct cuda_backend *gpu, const void *p)
{
	uint32_t low = 0, high = gpu->n_pins;

	while (low < high) {
		uint32_t middle = (low + high) / 2;
		const struct pin *pin = &gpu->pin[middle];

		if ((const char *)p < pin->at + pin->bytes)
			high = middle;
		else
			low = middle + 1;
	}
	return low;
}

bool pin_holds(const struct cuda_backend *gpu, const void *memory, size_t bytes)
{
	uint32_t i = place_of(gpu, memory);
	const char *p = memory;

	return i < gpu->n_pins && p >= gpu->pin[i].at &&
	       bytes <= (size_t)(gpu->pin[i].at + gpu->pin[i].bytes - p);
}

/* Without nets nobody knows yet. */
static bool useful(const struct cuda_backend *gpu)
{
	const struct cuda_net *net;

	LIST_FOREACH (net, &gpu->nets, of_gpu)
		if (stage_row(net) >= BACKEND_PIN_ROW && !net->base.resident_rows)
			return true;
	return LIST_EMPTY(&gpu->nets);
}

static int grow(struct cuda_backend *gpu)
{
	uint32_t capacity = gpu->pins_capacity ? 2 * gpu->pins_capacity : 16;
	struct pin *pin;

	if (gpu->n_pins < gpu->pins_capacity)
		return 0;
	pin = realloc(gpu->pin, capacity * sizeof(*pin));
	if (!pin)
		return -ENOMEM;
	gpu->pin = pin;
	gpu->pins_capacity = capacity;
	return 0;
}

int pin_register(struct backend *backend, const void *memory, size_t bytes,
		 struct backend_error *error)
{
	struct cuda_backend *gpu = (struct cuda_backend *)backend;
	unsigned int flags = cudaHostRegisterPortable;
	uint32_t i;
	int rc = cuda_enter(gpu, error);

	if (rc)
		return rc;
	if (!useful(gpu))
		return backend_fail(error, -EOPNOTSUPP,
				    "GPU %d has its rows, or copies them together", gpu->device);
	i = place_of(gpu, memory);
	if (i < gpu->n_pins && gpu->pin[i].at < (const char *)memory + bytes)
		return backend_fail(error, -EEXIST, "GPU %d knows of this memory already",
				    gpu->device);
	if (grow(gpu))
		return backend_fail(error, -ENOMEM, "no memory for a list of pinned memory");
	if (gpu->read_only)
		flags |= cudaHostRegisterReadOnly;
	rc = cudaHostRegister((void *)(uintptr_t)memory, bytes, flags);
	if (rc && rc != cudaErrorHostMemoryAlreadyRegistered)
		return cuda_failed(gpu, rc, "pinning memory of rows", error);
	if (rc)
		cudaGetLastError();
	memmove(gpu->pin + i + 1, gpu->pin + i, (gpu->n_pins - i) * sizeof(*gpu->pin));
	gpu->pin[i] = (struct pin){memory, bytes, !rc};
	gpu->n_pins++;
	return 0;
}

/* Batches that were sent ahead may still be on their way. */
static void wait_copies(struct cuda_backend *gpu)
{
	struct cuda_net *net;

	if (gpu->lost || cuda_enter(gpu, NULL))
		return;
	LIST_FOREACH (net, &gpu->nets, of_gpu)
		for (int i = 0; i < SLOTS; i++) {
			struct slot *s = &net->slot[i];

			if (s->sent && !gpu->lost)
				cuda_wait(gpu, s->ready, "copies from pinned memory", NULL);
			s->full = false; /* other rows may come to lie where its rows are */
		}
}

static void forget(struct cuda_backend *gpu, const struct pin *pin)
{
	/* on a device that hangs the call might never end; its context's end unpins it */
	if (!pin->own || gpu->hung)
		return;
	cudaSetDevice(gpu->device);
	if (cudaHostUnregister((void *)(uintptr_t)pin->at))
		cudaGetLastError();
}

void pin_unregister(struct backend *backend, const void *memory)
{
	struct cuda_backend *gpu = (struct cuda_backend *)backend;
	uint32_t i = place_of(gpu, memory);
	struct pin pin;

	if (i == gpu->n_pins || gpu->pin[i].at != memory)
		return;
	wait_copies(gpu);
	pin = gpu->pin[i];
	gpu->n_pins--;
	memmove(gpu->pin + i, gpu->pin + i + 1, (gpu->n_pins - i) * sizeof(*gpu->pin));
	forget(gpu, &pin);
}

void pin_release(struct cuda_backend *gpu)
{
	for (uint32_t i = 0; i < gpu->n_pins; i++)
		forget(gpu, &gpu->pin[i]);
	free(gpu->pin);
	gpu->pin = NULL;
	gpu->n_pins = 0;
}
