/* SPDX-License-Identifier: MIT */
/* transfer.c: host memory to and from the device in pieces, through pinned memory. */
#include <string.h>

#include "cuda.h"

int cuda_upload(struct cuda_net *net, void *to, const void *from, uint64_t bytes,
		struct backend_error *error)
{
	for (uint64_t at = 0; at < bytes; at += net->bounce_bytes) {
		uint64_t n = bytes - at < net->bounce_bytes ? bytes - at : net->bounce_bytes;
		int rc;

		memcpy(net->bounce, (const char *)from + at, n);
		rc = cudaMemcpyAsync((char *)to + at, net->bounce, n, cudaMemcpyHostToDevice,
				     net->stream);
		if (!rc)
			rc = cudaEventRecord(net->done, net->stream);
		if (rc)
			return cuda_failed(net->gpu, rc, "copy to the device", error);
		rc = cuda_wait(net->gpu, net->done, "copy to the device", error);
		if (rc)
			return rc;
	}
	return 0;
}

int cuda_download(struct cuda_net *net, void *to, const void *from, uint64_t bytes,
		  struct backend_error *error)
{
	for (uint64_t at = 0; at < bytes; at += net->bounce_bytes) {
		uint64_t n = bytes - at < net->bounce_bytes ? bytes - at : net->bounce_bytes;
		int rc;

		rc = cudaMemcpyAsync(net->bounce, (const char *)from + at, n,
				     cudaMemcpyDeviceToHost, net->stream);
		if (!rc)
			rc = cudaEventRecord(net->done, net->stream);
		if (rc)
			return cuda_failed(net->gpu, rc, "copy from the device", error);
		rc = cuda_wait(net->gpu, net->done, "copy from the device", error);
		if (rc)
			return rc;
		memcpy((char *)to + at, net->bounce, n);
	}
	return 0;
}

int cuda_read(struct backend_net *base, enum backend_arena arena, uint64_t offset, uint64_t n,
	      float *destination)
{
	struct cuda_net *net = (struct cuda_net *)base;
	int rc = cuda_enter(net->gpu, NULL);

	return rc ? rc
		  : cuda_download(net, destination, net->arena[arena] + offset, n * sizeof(float),
				  NULL);
}

int cuda_write(struct backend_net *base, enum backend_arena arena, uint64_t offset, uint64_t n,
	       const float *source)
{
	struct cuda_net *net = (struct cuda_net *)base;
	int rc = cuda_enter(net->gpu, NULL);

	if (arena == BACKEND_PARAM)
		net->stale = true;
	return rc ? rc
		  : cuda_upload(net, net->arena[arena] + offset, source, n * sizeof(float), NULL);
}
