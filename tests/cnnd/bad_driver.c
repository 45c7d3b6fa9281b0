// SPDX-License-Identifier: MIT
/*
 * bad_driver.c: a CUDA back end whose driver misbehaves while GPUs are looked for, as $BAD_DRIVER
 * says: crash, hang, exit, fail, none (no GPU), or three (GPUs, which cannot be opened).
 */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "../../kernels/ops.h"

static int say(struct backend_error *error, const char *text)
{
	snprintf(error->message, sizeof(error->message), "%s", text);
	return -EIO;
}

static int devices(struct backend_device *out, uint32_t max, uint32_t *n,
		   struct backend_error *error)
{
	const char *how = getenv("BAD_DRIVER");

	*n = 0;
	how = how ? how : "none";
	if (!strcmp(how, "crash"))
		raise(SIGSEGV);
	while (!strcmp(how, "hang"))
		pause();
	if (!strcmp(how, "exit"))
		_exit(0);
	if (!strcmp(how, "fail"))
		return say(error, "the driver is older than the library");
	for (uint32_t i = 0; !strcmp(how, "three") && i < 3 && i < max; i++, ++*n) {
		out[i].index = i;
		out[i].capability = 80;
		out[i].total_bytes = out[i].free_bytes = 1u << 30;
		snprintf(out[i].name, sizeof(out[i].name), "GPU of a test");
	}
	return 0;
}

static int no_open(const struct backend_options *options, struct backend **out,
		   struct backend_error *error)
{
	return say(error, "this GPU does not open");
}

static const struct backend_ops ops = {
	.version = BACKEND_OPS_VERSION,
	.name = "cuda",
	.open = no_open,
	.devices = devices,
};

const struct backend_ops *backend_entry(uint32_t version);
const struct backend_ops *backend_entry(uint32_t version)
{
	return version == BACKEND_OPS_VERSION ? &ops : NULL;
}
