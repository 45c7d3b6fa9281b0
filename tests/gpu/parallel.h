/* SPDX-License-Identifier: MIT */
/*
 * parallel.h: trainings on several GPUs of this machine: the rig of the training's unit tests with
 * a GPU for each replica.
 */
#ifndef TEST_GPU_PARALLEL_H
#define TEST_GPU_PARALLEL_H

#include "../unit/train/group.h"

#define ROWS 203
#define PIXELS RIG_PIXELS
#define REPLICAS_MAX RIG_APART_MAX

static uint8_t image[ROWS * PIXELS];
static int32_t label[ROWS];
static double weight[ROWS];

static inline void make_rows(void)
{
	rig_pictures(image, label, weight, ROWS);
}

static inline struct rig_rows table(uint32_t first, uint32_t n)
{
	return (struct rig_rows){.n = n,
				 .h = 8,
				 .w = 8,
				 .c = 1,
				 .u8 = image + first * PIXELS,
				 .y_int = label + first,
				 .weight = weight + first};
}

#define LAYER(class, config) "{\"class_name\": \"" class "\", \"config\": {" config "}}"
static const char architecture[] = "{\"class_name\": \"Sequential\", \"config\": {\"name\": \"m\", "
				   "\"layers\": [" LAYER("InputLayer", "\"batch_shape\": [null, 8, "
								       "8, 1], \"name\": \"in\"") ", " LAYER(
					   "Conv2D", "\"name\": \"conv\", \"filters\": 4, "
						     "\"kernel_size\": [3, 3], "
						     "\"padding\": \"same\", \"activation\": "
						     "\"relu\"") ", " LAYER("MaxPooling2D",
									    "\"name\": \"pool\", "
									    "\"pool_size\": [2, "
									    "2]") ", " LAYER("Fla"
											     "tte"
											     "n",
											     "\"n"
											     "ame"
											     "\":"
											     " \""
											     "fla"
											     "t"
											     "\"") ", " LAYER("Dropout",
													      "\"name\": \"drop\", \"rate\": 0.25") ", " LAYER("Dense",
																			       "\"name\": \"hidden\", \"units\": 24, \"activation\": \"tanh\"") ", " LAYER("Dense",
																													   "\"name\": \"out\", \"units\": 4, \"activation\": \"softmax\"") "]}}";

static inline const char *gpu_name(void)
{
	const char *name = getenv("CNN_TEST_BACKEND");

	return name && *name ? name : "cuda";
}

/* GPUs of this machine, REPLICAS_MAX at most; ends the program where there are fewer than wanted.
 */
static inline uint32_t gpus(uint32_t wanted)
{
	struct backend_device device[REPLICAS_MAX];
	struct backend_error error = {""};
	uint32_t n = 0;
	int rc = backend_devices(gpu_name(), device, REPLICAS_MAX, &n, &error);

	if (rc || n < wanted) {
		if (rc)
			printf("1..0 # SKIP no GPU: %s\n", error.message);
		else
			printf("1..0 # SKIP no GPU for every replica: %u of %u are there\n", n,
			       wanted);
		exit(0);
	}
	return n < REPLICAS_MAX ? n : REPLICAS_MAX;
}

/* How the trainings that follow are made; collective: arenas of NCCL's memory. */
static inline void on_gpus(uint32_t n, bool resident, bool collective, uint32_t timeout_ms)
{
	rig_apart = n;
	rig_each = gpu_name();
	rig_resident = resident;
	rig_timeout_ms = timeout_ms;
	rig_options = (struct backend_options){.bucket_bytes = 512,
					       .timeout_ms = timeout_ms,
					       .alloc = collective ? merge_device_alloc : NULL,
					       .release = merge_device_release};
}

/* more: of the spec; batch: rows of a replica's step. */
static inline int open_training(struct rig *r, uint32_t batch, const char *more, struct err *err)
{
	struct rig_rows rows = table(0, ROWS);
	char spec[512];

	snprintf(spec, sizeof(spec),
		 "{\"backend\": \"ref\", \"epochs\": 2, \"seed\": 9, \"replicas\": %u, "
		 "\"augment\": \"flip, pad_crop=1\", \"batch_size\": %u%s}",
		 rig_apart, batch, more);
	return rig_start(r, spec, architecture, &rows, &rows, err);
}

#endif
