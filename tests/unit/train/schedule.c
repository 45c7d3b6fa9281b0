// SPDX-License-Identifier: MIT
/* schedule.c: the learning rate plan against Keras' schedules and values computed by hand. */
#include "../../../userspace/train/internal.h"
#include "golden.h"

static struct schedule plan_of(const char *spec, double update_batch, uint64_t updates)
{
	struct train_config config;
	struct schedule s;
	struct err err = {0};

	if (train_config_parse(spec, strlen(spec), &config, &err))
		BAIL("%s: %s", spec, err.message);
	train_schedule_init(&s, &config, update_batch, updates);
	train_config_free(&config);
	return s;
}

static void against_keras(void)
{
	json_t *root = golden_load("schedule.json"), *one;
	size_t i;

	json_array_foreach(root, i, one)
	{
		json_t *want = json_object_get(one, "want");
		char *spec = json_dumps(json_object_get(one, "spec"), 0);
		uint64_t updates = (uint64_t)json_integer_value(json_object_get(one, "updates"));
		struct schedule s = plan_of(spec, 128, updates);
		double worst = 0;

		for (size_t u = 0; u < json_array_size(want); u++)
			worst = fmax(worst, fabs(train_schedule_lr(&s, u, 1) - golden_at(want, u)));
		ok(json_array_size(want) > 10 && worst < 2e-7,
		   "%s as Keras (largest difference %.2g)", golden_text(one, "name"), worst);
		free(spec);
	}
	json_decref(root);
}

int main(void)
{
	struct schedule s = plan_of("{\"learning_rate\": 0.5}", 128, 10);

	near(train_schedule_lr(&s, 0, 1), .5, 0, "constant: at the start");
	near(train_schedule_lr(&s, 99, 1), .5, 0, "constant: at the end");
	s = plan_of("{}", 128, 10);
	near(train_schedule_lr(&s, 0, 1), .02, 1e-12, "default of sgd");
	s = plan_of("{\"optimizer\": \"adam\"}", 128, 10);
	near(train_schedule_lr(&s, 0, 1), .001, 1e-12, "default of adam");

	s = plan_of("{\"learning_rate\": 0.4, \"lr_schedule\": \"constant(warmup=2)\"}", 128, 4);
	near(train_schedule_lr(&s, 0, 1), .05, 1e-12, "warm-up of 8 updates: the first, 1/8");
	near(train_schedule_lr(&s, 3, 1), .2, 1e-12, "the fourth, 1/2");
	near(train_schedule_lr(&s, 7, 1), .4, 1e-12, "the eighth, all of it");
	near(train_schedule_lr(&s, 8, 1), .4, 0, "and on");

	s = plan_of(
		"{\"learning_rate\": 1, \"lr_schedule\": \"step(every=2, gamma=0.1, warmup=1)\"}",
		128, 5);
	near(train_schedule_lr(&s, 0, 1), .2, 1e-12, "step with warm-up: ramp");
	near(train_schedule_lr(&s, 9, 1), 1, 0, "step: last update of epoch 2");
	near(train_schedule_lr(&s, 10, 1), .1, 1e-12, "step: first update of epoch 3");
	near(train_schedule_lr(&s, 20, 1), .01, 1e-12, "step: epoch 5");
	s = plan_of("{\"learning_rate\": 1, \"lr_schedule\": \"step(every=0.5, gamma=0.5)\"}", 128,
		    4);
	near(train_schedule_lr(&s, 2, 1), .5, 0, "step: half an epoch");

	s = plan_of("{\"learning_rate\": 1, \"lr_schedule\": \"plateau(min_lr=0.05)\"}", 128, 4);
	near(train_schedule_lr(&s, 3, .1), .1, 1e-12, "plateau: the factor of the run");
	near(train_schedule_lr(&s, 3, .01), .05, 1e-12, "plateau: not below min_lr");

	s = plan_of("{\"learning_rate\": 0.1, \"lr_scaling\": \"linear\"}", 512, 4);
	near(train_schedule_lr(&s, 0, 1), .4, 1e-12, "linear scaling: 512 rows, four times");
	s = plan_of("{\"learning_rate\": 0.1, \"lr_scaling\": \"sqrt\"}", 512, 4);
	near(train_schedule_lr(&s, 0, 1), .2, 1e-12, "sqrt scaling: twice");
	s = plan_of("{\"learning_rate\": 0.1, \"lr_scaling\": \"linear\"}", 32, 4);
	near(train_schedule_lr(&s, 0, 1), .025, 1e-12, "linear scaling: 32 rows, a quarter");
	s = plan_of("{\"learning_rate\": 0.1, \"epochs\": 4, \"lr_scaling\": \"linear\", "
		    "\"lr_schedule\": \"cosine(min_lr=0.05)\"}",
		    16, 10);
	ok(train_schedule_lr(&s, 0, 1) >= train_schedule_lr(&s, 39, 1),
	   "cosine never rises, even where scaling puts the rate below min_lr");
	s = plan_of("{\"learning_rate\": 1, \"epochs\": 2, \"lr_schedule\": \"cosine(warmup=2)\"}",
		    128, 5);
	near(train_schedule_lr(&s, 9, 1), 1, 1e-12, "cosine that is all warm-up");
	against_keras();
	return done();
}
