// SPDX-License-Identifier: MIT
/* config.c: the spec: defaults, every key, and refusals that name key, value and range. */
#include <errno.h>
#include <endian.h>

#include "../../../userspace/train/internal.h"
#include "../../tap.h"

static struct train_config c;
static struct err err;

/* Parses into c. */
static int parse(const char *json)
{
	train_config_free(&c);
	memset(&err, 0, sizeof(err));
	return train_config_parse(json, strlen(json), &c, &err);
}

static void refused(const char *json, const char *message, const char *hint)
{
	int rc = parse(json);

	if (!ok(rc == -EINVAL && err.kind == ERR_PARAM && strstr(err.message, message) &&
			(!hint || strstr(err.hint, hint)),
		"refused: %.100s", json))
		printf("#   rc %d, message '%s', hint '%s'\n", rc, err.message, err.hint);
}

static void taken(const char *json, bool good)
{
	if (!ok(good, "taken: %.100s", json))
		printf("#   message '%s'\n", err.message);
}
#define TAKEN(json, condition) taken(json, !parse(json) && (condition))

static void defaults(void)
{
	is(parse("{}"), 0, "an empty spec");
	ok(c.epochs == 10 && !c.batch_size && c.evaluate_every == 1 && c.accumulate == 1 &&
		   c.replicas == 0 && c.seed == 0 && c.kind == CTL_TRAIN,
	   "default counts");
	ok(c.optimizer.kind == BACKEND_SGD && c.optimizer.momentum == .9f &&
		   !c.optimizer.nesterov && c.learning_rate == .02 && c.optimizer.weight_decay == 0,
	   "default optimizer");
	ok(c.loss_auto && c.logits_auto && c.metrics_default && c.schedule == TRAIN_CONSTANT,
	   "default loss, metrics and plan");
	ok(c.deterministic && c.cache && c.max_bad_rows == UINT64_MAX &&
		   c.normalize == AGREE_SCALE_AUTO && !c.early_stop,
	   "other defaults");
	TAKEN("{\"epochs\": null, \"optimizer\": null, \"metrics\": null}",
	      c.epochs == 10 && c.metrics_default);
	TAKEN("{\"optimizer\": \"adam\"}",
	      c.learning_rate == .001 && c.optimizer.momentum == 0 && c.optimizer.beta1 == .9f &&
		      c.optimizer.beta2 == .999f && c.optimizer.epsilon == 1e-7f);
	TAKEN("{\"optimizer\": \"AdamW\"}",
	      c.optimizer.kind == BACKEND_ADAMW && c.optimizer.weight_decay == .004f);
	TAKEN("{\"optimizer\": \"rmsprop\"}", c.optimizer.momentum == 0 && c.optimizer.rho == .9f);
	TAKEN("{\"optimizer\": \"rmsprop\", \"momentum\": 0.5}", c.optimizer.momentum == .5f);
	TAKEN("{\"optimizer\": \"adadelta\"}", c.optimizer.rho == .95f && c.learning_rate == .001);
	TAKEN("{\"optimizer\": \"adagrad\"}", c.optimizer.initial_accumulator == .1f);
	TAKEN("{\"optimizer\": \"adam\", \"momentum\": 0, \"nesterov\": false}", true);
}

static void values(void)
{
	TAKEN("{\"epochs\": 100000, \"batch_size\": 65536, \"seed\": 9223372036854775807}",
	      c.epochs == 100000 && c.batch_size == 65536 && c.seed == INT64_MAX);
	TAKEN("{\"epochs\": 7.0}", c.epochs == 7);
	TAKEN("{\"loss\": \"MSE\", \"from_logits\": \"auto\"}",
	      !c.loss_auto && c.loss.loss == BACKEND_MSE && c.logits_auto);
	TAKEN("{\"loss\": \"categorical_crossentropy\", \"from_logits\": true, "
	      "\"label_smoothing\": 0.1}",
	      c.loss.from_logits && !c.logits_auto && c.loss.label_smoothing == .1f);
	TAKEN("{\"from_logits\": false}", !c.loss.from_logits && !c.logits_auto);
	TAKEN("{\"lr_schedule\": \"step\"}",
	      c.schedule == TRAIN_STEP && c.schedule_every == 10 && c.gamma == .1);
	TAKEN("{\"lr_schedule\": \" Step ( every = 2 , gamma=.5, warmup=1.5 ) \"}",
	      c.schedule == TRAIN_STEP && c.schedule_every == 2 && c.gamma == .5 &&
		      c.warmup == 1.5);
	TAKEN("{\"lr_schedule\": \"plateau(factor=.5, patience=2, cooldown=1, min_delta=0, "
	      "min_lr=1e-5, monitor=loss)\"}",
	      c.schedule == TRAIN_PLATEAU && c.plateau_factor == .5 && c.plateau_patience == 2 &&
		      c.plateau_cooldown == 1 && c.plateau_min_delta == 0 && c.min_lr == 1e-5 &&
		      !strcmp(c.plateau_monitor, "loss"));
	TAKEN("{\"metrics\": \"accuracy, top_k(k=3), AUC\"}",
	      !c.metrics_default && c.n_metrics == 3 && c.metric[1].kind == TRAIN_TOP_K &&
		      c.metric[1].k == 3 && c.metric[2].kind == TRAIN_AUC);
	TAKEN("{\"metrics\": \"top_k\"}", c.metric[0].k == 5);
	TAKEN("{\"metrics\": \"none\"}", !c.metrics_default && !c.n_metrics);
	TAKEN("{\"early_stop\": \"monitor=val_accuracy, patience=3, min_delta=0.01, "
	      "restore_best=false\"}",
	      c.early_stop && c.early_patience == 3 && c.early_min_delta == .01 &&
		      !c.early_restore && !strcmp(c.early_monitor, "val_accuracy"));
	TAKEN("{\"early_stop\": \"patience=2\"}", c.early_stop && c.early_restore);
	TAKEN("{\"augment\": \"flip, pad_crop=4, cutout=8\"}",
	      c.augment_flip && c.augment_pad == 4 && c.augment_cutout == 8);
	TAKEN("{\"augment\": \"none\"}", !c.augment_flip && !c.augment_pad);
	TAKEN("{\"class_weight\": \"balanced\"}", c.balanced && !c.class_weight);
	TAKEN("{\"class_weight\": {\"cat\": 2}}", !c.balanced && c.class_weight);
	TAKEN("{\"class_weight\": \"{\\\"cat\\\": 2}\"}", c.class_weight);
	TAKEN("{\"devices\": \"cpu:4\"}", c.threads == 4 && !strcmp(c.devices, "cpu:4"));
	TAKEN("{\"merge\": \"average\", \"merge_every\": 8, \"merge_momentum\": \"reset\", "
	      "\"reshuffle\": \"off\", \"min_hosts\": 1}",
	      !strcmp(c.merge, "average") && !strcmp(c.merge_every, "8"));
	TAKEN("{\"merge_every\": \"2 Epochs\"}", !strcmp(c.merge_every, "2 epochs"));
	TAKEN("{\"merge\": \"SlowMo\", \"merge_mu\": 0.25, \"merge_eta\": 10, \"merge_warmup\": "
	      "1.5}",
	      !strcmp(c.merge, "slowmo") && c.merge_mu == .25 && c.merge_eta == 10 &&
		      c.merge_warmup == 1.5 && isnan(c.merge_b));
	TAKEN("{\"merge\": \"easgd\", \"merge_b\": 0.5}", c.merge_b == .5);
	TAKEN("{\"merge\": \"trimmed_mean\", \"merge_trim\": 2, \"merge_wire\": \"bf16\"}",
	      c.merge_trim == 2 && c.merge_wire == MERGE_BF16);
	TAKEN("{\"replicas\": 64}", c.replicas == 64);
	TAKEN("{\"devices\": \"cuda:0,2\"}", !strcmp(c.devices, "cuda:0,2") && !c.threads);
	TAKEN("{\"devices\": \"cuda:all\", \"precision\": \"bf16\"}",
	      c.precision == BACKEND_PRECISION_BF16);
	TAKEN("{\"normalization\": \"standardize\"}", c.normalize == AGREE_STANDARDIZE);
	TAKEN("{\"kind\": \"evaluate\"}", c.kind == CTL_EVALUATION);
	TAKEN("{\"kind\": 1}", c.kind == CTL_PREDICTION);
	TAKEN("{\"model_table\": \"m\", \"source\": \"t\", \"dependent\": \"y\", "
	      "\"architecture\": \"lenet\", \"backend\": \"ref\"}",
	      !strcmp(c.model_name, "m") && !strcmp(c.architecture, "lenet") &&
		      !strcmp(c.backend, "ref"));
}

/* Every preset of the merge library is a value of merge, with its own settings under the spec's. */
static void merges(void)
{
	struct merge_config m, want;
	struct merge_error error;
	const char *name;
	uint32_t n = 0;
	char spec[96];

	train_config_free(&c);
	for (; (name = merge_preset_name(n)); n++) {
		snprintf(spec, sizeof(spec), "{\"merge\": \"%s\"}", name);
		if (train_config_parse(spec, strlen(spec), &c, &err) ||
		    train_config_merge(&c, 8, 20, &m, &err) || merge_preset(name, 8, &want, &error))
			BAIL("%s: %s", name, err.message);
		ok(m.kind == want.kind && m.every == want.every && m.unit == want.unit &&
			   m.eta == want.eta && m.mu == want.mu && m.b == want.b &&
			   m.momentum == want.momentum && m.default_warmup == want.default_warmup &&
			   !m.warmup_given,
		   "merge '%s' is the preset", name);
		train_config_free(&c);
	}
	is(n, 15, "presets");
	snprintf(spec, sizeof(spec), "{\"merge_warmup\": 0.5, \"merge_every\": \"3 epochs\"}");
	if (train_config_parse(spec, strlen(spec), &c, &err) ||
	    train_config_merge(&c, 2, 20, &m, &err))
		BAIL("%s", err.message);
	ok(m.kind == MERGE_AVERAGE && m.warmup_given && m.warmup == 10 && m.unit == MERGE_EPOCHS &&
		   m.every == 3,
	   "the default is average; half an epoch of 20 updates is 10");
	ok(merge_schedule(&m, 9, 20) == MERGE_SYNC_STEP_LAST &&
		   merge_schedule(&m, 59, 20) == MERGE_NOW &&
		   merge_schedule(&m, 39, 20) == MERGE_LOCAL,
	   "and the schedule follows");
	train_config_free(&c);
	snprintf(spec, sizeof(spec), "{\"merge\": \"median\"}");
	if (train_config_parse(spec, strlen(spec), &c, &err))
		BAIL("%s", err.message);
	is(train_config_merge(&c, 2, 20, &m, &err), -EINVAL, "a median of two hosts");
	like(err.message, "merge is 'median': this merge function needs at least 3 hosts",
	     "is refused");
	train_config_free(&c);
}

static void numbers(void)
{
	refused("{\"epochs\": 0}", "epochs is 0, must be an integer in [1, 100000]", NULL);
	refused("{\"epochs\": \"ten\"}", "epochs is \"ten\", must be an integer in [1, 100000]",
		NULL);
	refused("{\"epochs\": 2.5}", "epochs is 2.5, must be an integer", NULL);
	refused("{\"epochs\": 1e300}", "epochs is 1e300, must be an integer", NULL);
	refused("{\"epochs\": true}", "epochs is true, must be an integer", NULL);
	refused("{\"batch_size\": 65537}", "batch_size is 65537, must be an integer in [1, 65536]",
		NULL);
	refused("{\"learning_rate\": 0}", "learning_rate is 0, must be a number in (0, 1000000]",
		NULL);
	refused("{\"learning_rate\": -1}", "learning_rate is -1", NULL);
	refused("{\"momentum\": 1}", "momentum is 1, must be a number in [0, 1)", NULL);
	refused("{\"momentum\": 0.99999999999}", "must be a number in [0, 1)", NULL);
	refused("{\"seed\": -1}", "seed is -1, must be an integer in [0, 9223", NULL);
	refused("{\"clipnorm\": 1, \"clipvalue\": 1}", "at most one", NULL);
	refused("{\"validation_fraction\": 1}",
		"validation_fraction is 1, must be a number in [0, 1)", NULL);
	refused("{\"nesterov\": \"yes\"}", "nesterov is \"yes\", must be true or false", NULL);
	refused("{\"from_logits\": 1}", "from_logits is 1, must be true, false or 'auto'", NULL);
	refused("{\"replicas\": 65}", "replicas is 65, must be an integer in [1, 64]", NULL);
	refused("{\"architecture\": 3}", "architecture is 3, must be a text", NULL);
}

static void names(void)
{
	refused("{\"optimizer\": \"adamm\"}",
		"optimizer is \"adamm\", must be one of 'sgd', 'adam', 'adamw'", "'adam'");
	refused("{\"loss\": \"binary_crossentrop\"}", "loss is", "'binary_crossentropy'");
	refused("{\"epoch\": 3}", "unknown argument 'epoch'", "Did you mean 'epochs'?");
	refused("{\"leraning_rate\": 3}", "unknown argument", "'learning_rate'");
	refused("{\"zzzzzz\": 3}", "unknown argument 'zzzzzz'", "gpu_cnn(7)");
	refused("{\"precision\": \"f8\"}",
		"precision is \"f8\", must be one of 'f32', 'tf32', 'bf16', 'f16'", NULL);
	refused("{\"merge\": \"avarage\"}", "merge is", "'average'");
	refused("{\"merge_every\": \"often\"}", "merge_every is 'often'", NULL);
	refused("{\"merge_every\": 0}", "merge_every is '0', must be a number of updates in [1, ",
		NULL);
	refused("{\"merge_mu\": 0.5}",
		"merge_mu has no meaning with merge 'average', it belongs to outer", NULL);
	refused("{\"merge\": \"outer\", \"merge_mu\": 1}",
		"merge_mu is 1, must be a number in [0, 1)", NULL);
	refused("{\"merge\": \"outer\", \"merge_eta\": 0}",
		"merge_eta is 0, must be a number in (0, 10]", NULL);
	refused("{\"merge_b\": 0.5}", "merge_b has no meaning", NULL);
	refused("{\"merge\": \"median\", \"merge_trim\": 1}", "belongs to trimmed_mean", NULL);
	refused("{\"merge\": \"gradient\", \"merge_every\": 4}", "merge_every has no meaning",
		NULL);
	refused("{\"merge\": \"none\", \"merge_warmup\": 1}", "merge_warmup has no meaning", NULL);
	refused("{\"merge\": \"easgd\", \"merge_wire\": \"bf16\"}",
		"merge_wire is 'bf16', must be 'f32' with merge 'easgd'", NULL);
	refused("{\"merge_wire\": \"f16\"}", "merge_wire is \"f16\", must be one of", "'bf16'");
	refused("{\"merge_warmup\": -1}", "merge_warmup is -1, must be a number in [0, 100000]",
		NULL);
	refused("{\"devices\": \"cuda:0,0\"}",
		"numbers of GPUs with commas between them, each once", NULL);
	refused("{\"devices\": \"cuda\"}", "must be 'cuda:all', or 'cuda:' and numbers", NULL);
	refused("{\"devices\": \"cpu:0\"}", "integer in [1, 1024]", NULL);
	refused("{\"devices\": \"none\"}",
		"must be 'auto', 'cpu', 'cpu:N', 'cuda:I,J' or "
		"'cuda:all'",
		NULL);
	refused("{\"backend\": \"cuda\"}", "backend is 'cuda', must be one of 'cpu', 'ref'", NULL);
	refused("{\"normalization\": \"standard\"}",
		"normalization is \"standard\", must be one of", NULL);
	refused("{\"kind\": 3}", "kind is 3", NULL);
	refused("{\"optimizer\": \"adam\", \"momentum\": 0.9}",
		"momentum has no meaning with optimizer 'adam', it belongs to sgd and rmsprop",
		NULL);
	refused("{\"optimizer\": \"sgd\", \"beta_1\": 0.9}", "beta_1 has no meaning", NULL);
	refused("{\"optimizer\": \"adam\", \"nesterov\": true}", "nesterov has no meaning", NULL);
}

static void texts(void)
{
	refused("{\"lr_schedule\": \"cosin\"}", "lr_schedule: is 'cosin', must be one of",
		"'cosine'");
	refused("{\"lr_schedule\": \"step(evry=2)\"}",
		"lr_schedule step has no option 'evry', its options are: every, gamma, warmup",
		"'every'");
	refused("{\"lr_schedule\": \"cosine(gamma=.5)\"}", "has no option 'gamma'", NULL);
	refused("{\"lr_schedule\": \"step(gamma=2)\"}",
		"lr_schedule: gamma is '2', must be a number in (0, 1]", NULL);
	refused("{\"lr_schedule\": \"step(gamma=nan)\"}", "gamma is 'nan'", NULL);
	refused("{\"lr_schedule\": \"step(gamma)\"}", "gamma is '', must be a number", NULL);
	refused("{\"lr_schedule\": \"step(gamma=.5\"}", "closing parenthesis", NULL);
	refused("{\"lr_schedule\": \"step(every=2, every=3)\"}", "'every' is given twice", NULL);
	refused("{\"lr_schedule\": \"step(every=)\"}", "has no value", NULL);
	refused("{\"lr_schedule\": \"cosine(min_lr=.1)\"}",
		"min_lr is 0.1, must be at most the learning rate, 0.02", NULL);
	refused("{\"lr_schedule\": \"cosine(warmup=11)\"}",
		"warmup is 11, must be at most epochs, 10", NULL);
	refused("{\"metrics\": \"acuracy\"}", "metrics: 'acuracy', must be one of 'accuracy'",
		"'accuracy'");
	refused("{\"metrics\": \"accuracy,,auc\"}", "empty item", NULL);
	refused("{\"metrics\": \"accuracy, acc\"}", "given twice", NULL);
	refused("{\"metrics\": \"top_k(k=0)\"}", "k is '0', must be an integer in [1, 65536]",
		NULL);
	refused("{\"metrics\": \"accuracy(k=1)\"}", "has no option 'k', its options are: none",
		NULL);
	refused("{\"metrics\": \"top_k(k=1),top_k(k=2),top_k(k=3),top_k(k=4),top_k(k=5),top_k(k=6),"
		"top_k(k=7),top_k(k=8),top_k(k=9)\"}",
		"more than 8", NULL);
	refused("{\"early_stop\": \"patienc=3\"}", "early_stop has no option 'patienc'",
		"'patience'");
	refused("{\"early_stop\": \"patience=-1\"}", "patience is '-1', must be an integer", NULL);
	refused("{\"early_stop\": \"restore_best=maybe\"}", "must be true or false", NULL);
	refused("{\"augment\": \"flip, rotate=4\"}", "augment has no option 'rotate'", NULL);
	refused("{\"class_weight\": \"heavy\"}", "class_weight is 'heavy'", "'{\"cat\": 2");
	refused("{\"class_weight\": \"{\\\"cat\\\": -1}\"}", "the weight of 'cat'", NULL);
	refused("{\"class_weight\": \"{\\\"cat\\\": 1, \\\"cat\\\": 2}\"}", "duplicate", NULL);
}

static void json(void)
{
	char deep[20001];

	refused("[1]", "not a JSON object", NULL);
	refused("", "not valid JSON", NULL);
	refused("{\"epochs\": NaN}", "line 1, column", NULL);
	refused("{\"epochs\": 1, \"epochs\": 2}", "duplicate", NULL);
	refused("{\"epochs\": 1} x", "not valid JSON", NULL);
	memset(deep, '[', 20000);
	deep[20000] = '\0';
	refused(deep, "not valid JSON", NULL);
	train_config_free(&c);
	is(train_config_parse("{\"epochs\": 1}\0x", 15, &c, &err), -EINVAL, "a NUL in the text");
	is(train_config_parse("{\"model_table\": \"a\\u0000b\"}", 27, &c, &err), -EINVAL,
	   "an escaped NUL");
}

static void policy(void)
{
	int64_t one = (int64_t)htole64(1), minus = (int64_t)htole64((uint64_t)-5);
	uint8_t yes = 1;
	struct agree_label label[2] = {{8, (uint8_t *)&one, 3, 0}, {8, (uint8_t *)&minus, 4, 0}};
	struct agree_block part = {.labels = AGREE_INT, .n_labels = 2, .label = label};

	parse("{\"batch_size\": 32, \"normalize\": \"standardize\", \"class_weight\": {\"-5\": "
	      "2.5}}");
	is(train_config_policy(&c, &part, &err), 0, "policy of a part");
	ok(part.batch_size == 32 && part.normalize == AGREE_STANDARDIZE && part.replicas == 1,
	   "carries the wishes");
	ok(isnan(label[0].weight) && label[1].weight == 2.5, "integer label by its text");
	is(train_policy_check(&c, &part, &err), 0, "all keys are labels");
	parse("{\"class_weight\": {\"-6\": 2.5}}");
	is(train_policy_check(&c, &part, &err), -EINVAL, "a key that is no label");
	like(err.message, "class_weight names '-6'", "by name");
	label[0] = (struct agree_label){3, (const uint8_t *)"cat", 1, 0};
	label[1] = (struct agree_label){4, (const uint8_t *)"cats", 1, 0};
	part.labels = AGREE_TEXT;
	parse("{\"class_weight\": {\"cat\": 0.5}}");
	train_config_policy(&c, &part, &err);
	ok(label[0].weight == .5 && isnan(label[1].weight), "text label, whole");
	parse("{\"class_weight\": {\"cats\": 0.5}}");
	train_config_policy(&c, &part, &err);
	ok(isnan(label[0].weight) && label[1].weight == .5, "and no longer");
	label[0] = (struct agree_label){1, &yes, 1, 0};
	part.labels = AGREE_BOOL;
	part.n_labels = 1;
	parse("{\"class_weight\": {\"true\": 3}}");
	train_config_policy(&c, &part, &err);
	ok(label[0].weight == 3, "boolean label");
	part.labels = AGREE_FLOAT;
	part.n_labels = 0;
	is(train_config_policy(&c, &part, &err), -EINVAL, "class weights of a regression");
	like(err.message, "class_weight needs one label a row", "are refused");
}

int main(void)
{
	defaults();
	values();
	merges();
	numbers();
	names();
	texts();
	json();
	policy();
	train_config_free(&c);
	return done();
}
