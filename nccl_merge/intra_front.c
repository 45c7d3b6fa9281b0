/* SPDX-License-Identifier: MIT */
/*
 * intra_front.c: the public calls of the all-reduce inside a host. Behind them stands shared memory
 * (intra.c), or NCCL in a shared object of its own (nccl/), so that a program starts on a host
 * without it.
 */
#include <dlfcn.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "intra.h"

static const char *const form[] = {"%s/libcnn_nccl.so", "%s/../lib/libcnn_nccl.so",
				   "%s/../lib/cnn/libcnn_nccl.so"};

/* The object's path: as given, else beside the program, else left to the loader. */
static void find_object(char *path, size_t size)
{
	const char *given = getenv("CNN_NCCL_LIBRARY");
	char folder[PATH_MAX];
	ssize_t n = readlink("/proc/self/exe", folder, sizeof(folder) - 1);
	char *slash;

	if (given && *given) {
		snprintf(path, size, "%s", given);
		return;
	}
	folder[n > 0 ? n : 0] = 0;
	slash = strrchr(folder, '/');
	if (slash)
		*slash = 0;
	for (size_t i = 0; i < sizeof(form) / sizeof(*form); i++) {
		snprintf(path, size, form[i], folder);
		if (!access(path, R_OK))
			return;
	}
	snprintf(path, size, "libcnn_nccl.so");
}

/* The object stays loaded: the libraries behind it do not take being unloaded. */
static int nccl_ops(const struct merge_intra_ops **out, struct merge_error *error)
{
	char path[PATH_MAX + 64];
	merge_intra_entry_fn entry;
	void *handle;

	find_object(path, sizeof(path));
	handle = dlopen(path, RTLD_NOW | RTLD_LOCAL);
	if (!handle)
		return merge_fail(error, -ENOENT, MERGE_NO_HOST, "NCCL cannot be loaded: %.400s",
				  dlerror());
	*(void **)&entry = dlsym(handle, MERGE_INTRA_ENTRY);
	*out = entry ? entry(MERGE_INTRA_VERSION) : NULL;
	return *out ? 0
		    : merge_fail(error, -EPROTO, MERGE_NO_HOST, "%.300s has another version", path);
}

static int find_ops(const char *transport, const struct merge_intra_ops **out,
		    struct merge_error *error)
{
	*out = &merge_intra_shared;
	if (!transport || !strcmp(transport, "shared"))
		return 0;
	if (!strcmp(transport, "nccl"))
		return nccl_ops(out, error);
	return merge_fail(error, -EINVAL, MERGE_NO_HOST, "no transport is called '%.64s'",
			  transport);
}

int merge_intra_find(const char *transport, struct merge_error *error)
{
	const struct merge_intra_ops *ops;

	return find_ops(transport, &ops, error);
}

int merge_intra_open(const struct merge_intra_config *config, struct merge_intra **out,
		     struct merge_error *error)
{
	const struct merge_intra_ops *ops;
	int rc;

	if (!config->replicas || config->replicas > MERGE_HOSTS_MAX)
		return merge_fail(error, -EINVAL, MERGE_NO_HOST, "%u replicas, allowed are 1 to %u",
				  config->replicas, MERGE_HOSTS_MAX);
	rc = find_ops(config->transport, &ops, error);
	if (!rc)
		rc = ops->open(config, out, error);
	if (rc)
		return rc;
	(*out)->ops = ops;
	(*out)->replicas = config->replicas;
	(*out)->floats = config->floats;
	return 0;
}

int merge_intra_bucket_ready(struct merge_intra *in, uint32_t replica, uint64_t offset,
			     uint64_t length, void *ready, struct merge_error *error)
{
	if (replica >= in->replicas || !length || offset > in->floats ||
	    length > in->floats - offset)
		return merge_fail(error, -EINVAL, MERGE_NO_HOST, "bucket outside the arena");
	return in->ops->bucket(in, replica, offset, length, ready, error);
}

int merge_intra_bucket(struct merge_intra *in, uint32_t replica, uint64_t offset, uint64_t length,
		       struct merge_error *error)
{
	return merge_intra_bucket_ready(in, replica, offset, length, NULL, error);
}

int merge_intra_wait(struct merge_intra *in, uint32_t replica, struct merge_error *error)
{
	if (replica >= in->replicas)
		return merge_fail(error, -EINVAL, MERGE_NO_HOST, "replica %u of %u", replica,
				  in->replicas);
	return in->ops->wait(in, replica, error);
}

void merge_intra_abort(struct merge_intra *in)
{
	in->ops->abort(in);
}

void merge_intra_close(struct merge_intra *in)
{
	if (in)
		in->ops->close(in);
}

int merge_device_alloc(void *context, size_t bytes, void **out)
{
	const struct merge_intra_ops *ops;
	int rc = nccl_ops(&ops, NULL);

	return rc ? rc : ops->alloc(-1, bytes, out);
}

void merge_device_release(void *context, void *memory)
{
	const struct merge_intra_ops *ops;

	if (!nccl_ops(&ops, NULL))
		ops->release(memory);
}

int merge_gpu_alloc(uint32_t device, size_t bytes, void **out, struct merge_error *error)
{
	const struct merge_intra_ops *ops;
	int rc = nccl_ops(&ops, error);

	if (rc)
		return rc;
	rc = ops->alloc((int)device, bytes, out);
	return rc ? merge_fail(error, rc, MERGE_NO_HOST, "no memory on GPU %u, or no such GPU",
			       device)
		  : 0;
}

int merge_gpu_copy(uint32_t device, void *to, const void *from, size_t bytes, bool to_device,
		   struct merge_error *error)
{
	const struct merge_intra_ops *ops;
	int rc = nccl_ops(&ops, error);

	if (rc)
		return rc;
	rc = ops->copy((int)device, to, from, bytes, to_device);
	return rc ? merge_fail(error, rc, MERGE_NO_HOST, "copy %s GPU %u",
			       to_device ? "to" : "from", device)
		  : 0;
}
