// SPDX-License-Identifier: MIT
/*
 * loss.c: which loss fits labels, outputs and output activation; what 'auto' means; and clear
 * refusals of pairs that would train without learning (softmax over one output, a number predicted
 * from text, ...).
 */
#include "internal.h"

#include <errno.h>

static const char *const loss_names[BACKEND_LOSS_COUNT] = {
	"sparse_categorical_crossentropy",
	"categorical_crossentropy",
	"binary_crossentropy",
	"mse",
	"mae",
};

const char *train_loss_name(enum backend_loss loss)
{
	return (unsigned int)loss < BACKEND_LOSS_COUNT ? loss_names[loss] : "unknown";
}

static const char *activation_name(enum backend_activation a)
{
	static const char *const names[BACKEND_ACTIVATION_COUNT] = {
		"linear",	"relu",	       "leaky_relu", "elu",	    "selu",  "sigmoid",
		"hard_sigmoid", "tanh",	       "softplus",   "softsign",    "swish", "gelu",
		"gelu",		"exponential", "softmax",    "log_softmax",
	};

	return (unsigned int)a < BACKEND_ACTIVATION_COUNT ? names[a] : "unknown";
}

struct question {
	const struct train_config *config;
	const struct model_info *info;
	const struct agree_block *agreed;
	struct notice *notice; /* NULL: say nothing */
	struct err *err;
};

static bool has_classes(const struct question *q)
{
	uint32_t kind = q->agreed->labels;

	return kind == AGREE_INT || kind == AGREE_TEXT || kind == AGREE_BOOL;
}

static const char *labels_are(const struct question *q)
{
	switch (q->agreed->labels) {
	case AGREE_INT:
		return "integer labels";
	case AGREE_TEXT:
		return "text labels";
	case AGREE_BOOL:
		return "boolean labels";
	case AGREE_VECTOR:
		return "arrays";
	default:
		return "numbers";
	}
}

static bool is_crossentropy(enum backend_loss loss)
{
	return loss == BACKEND_SPARSE_CROSSENTROPY || loss == BACKEND_CATEGORICAL_CROSSENTROPY;
}

/* ---- loss := 'auto' ---- */

static int auto_classes(const struct question *q, enum backend_loss *loss)
{
	enum backend_activation last = q->info->last;
	uint32_t outputs = q->info->outputs, classes = q->agreed->n_labels;

	if (outputs == 1 && classes > 2) {
		err_set(q->err, ERR_ARCH, -EINVAL,
			"the architecture has 1 output, which cannot tell %u classes apart",
			classes);
		err_hint(q->err,
			 "End it with %u outputs and softmax; to predict the number itself, say "
			 "loss := 'mse'.",
			 classes);
		return -EINVAL;
	}
	if (outputs == 1 && (last == BACKEND_SIGMOID || last == BACKEND_LINEAR)) {
		*loss = BACKEND_BINARY_CROSSENTROPY;
		return 0;
	}
	if (outputs > 1 && (last == BACKEND_SOFTMAX || last == BACKEND_LINEAR)) {
		*loss = BACKEND_SPARSE_CROSSENTROPY;
		return 0;
	}
	err_set(q->err, ERR_ARCH, -EINVAL,
		"the dependent column holds %s, and no loss fits %u output%s with activation '%s'",
		labels_are(q), outputs, outputs == 1 ? "" : "s", activation_name(last));
	err_hint(q->err, "End the architecture with '%s', or name a loss.",
		 outputs == 1 ? "sigmoid" : "softmax");
	return -EINVAL;
}

static int choose_auto(const struct question *q, enum backend_loss *loss)
{
	enum backend_activation last = q->info->last;

	*loss = BACKEND_MSE;
	if (has_classes(q))
		return auto_classes(q, loss);
	if (q->agreed->labels == AGREE_FLOAT)
		return 0;
	/* arrays; or no labels at all, a prediction */
	if (last == BACKEND_SOFTMAX && q->info->outputs > 1)
		*loss = BACKEND_CATEGORICAL_CROSSENTROPY;
	else if (last == BACKEND_SIGMOID)
		*loss = BACKEND_BINARY_CROSSENTROPY;
	else if (q->notice && q->agreed->labels == AGREE_VECTOR)
		train_notice_add(q->notice,
				 "loss is mse: the dependent column holds arrays and the output is "
				 "not softmax or sigmoid; for one-hot rows say "
				 "loss := 'categorical_crossentropy'");
	return 0;
}

/* ---- does it fit ---- */

static int refuse(const struct question *q, enum backend_loss loss, const char *hint)
{
	err_set(q->err, ERR_PARAM, -EINVAL, "loss is '%s', but the dependent column holds %s",
		train_loss_name(loss), labels_are(q));
	err_hint(q->err, "%s", hint);
	return -EINVAL;
}

static int fit_crossentropy(const struct question *q, struct loss_choice *out)
{
	if (q->info->outputs == 1) {
		err_set(q->err, ERR_ARCH, -EINVAL,
			"loss is '%s', but the architecture has 1 output: its probability would "
			"always be 1",
			train_loss_name(out->loss.loss));
		err_hint(q->err, "Use one output per class, or binary_crossentropy and sigmoid.");
		return -EINVAL;
	}
	if (q->agreed->labels == AGREE_FLOAT)
		return refuse(q, out->loss.loss,
			      "Use loss := 'mse', or make the column an integer or text.");
	if (q->agreed->labels == AGREE_VECTOR && out->loss.loss == BACKEND_SPARSE_CROSSENTROPY)
		return refuse(q, out->loss.loss, "Use loss := 'categorical_crossentropy'.");
	out->classes = true;
	if (has_classes(q)) /* the same function of a one-hot row, which is then not needed */
		out->loss.loss = BACKEND_SPARSE_CROSSENTROPY;
	return 0;
}

static int fit_binary(const struct question *q, struct loss_choice *out)
{
	if (!has_classes(q))
		return 0;
	if (q->info->outputs == 1 && q->agreed->n_labels > 2) {
		err_set(q->err, ERR_PARAM, -EINVAL,
			"loss is 'binary_crossentropy' with 1 output, but there are %u classes",
			q->agreed->n_labels);
		err_hint(q->err, "Use %u outputs, softmax and sparse_categorical_crossentropy.",
			 q->agreed->n_labels);
		return -EINVAL;
	}
	out->classes = true;
	return 0;
}

static int fit_distance(const struct question *q, struct loss_choice *out)
{
	const struct backend_loss_config *wish = &q->config->loss;

	if (wish->label_smoothing > 0)
		return err_set(q->err, ERR_PARAM, -EINVAL,
			       "label_smoothing is %g, must be 0 with loss '%s'",
			       (double)wish->label_smoothing, train_loss_name(out->loss.loss));
	if (!q->config->logits_auto && wish->from_logits)
		return err_set(q->err, ERR_PARAM, -EINVAL,
			       "from_logits is true, must be false with loss '%s'",
			       train_loss_name(out->loss.loss));
	if (has_classes(q) && !(q->agreed->labels == AGREE_BOOL && q->info->outputs == 1))
		return refuse(q, out->loss.loss,
			      "Leave loss away for a classification; to predict a number, cast the "
			      "column to double precision.");
	return 0;
}

static int fit(const struct question *q, struct loss_choice *out)
{
	if (q->info->last == BACKEND_SOFTMAX && q->info->outputs == 1) {
		err_set(q->err, ERR_ARCH, -EINVAL,
			"the architecture ends with softmax over 1 output, which is always 1");
		err_hint(q->err, "Use sigmoid for two classes, linear for a number.");
		return -EINVAL;
	}
	if (q->agreed->labels == AGREE_FLOAT && q->info->outputs != 1) {
		err_set(q->err, ERR_ARCH, -EINVAL,
			"the dependent column holds one number a row, but the architecture has %u "
			"outputs",
			q->info->outputs);
		err_hint(q->err, "Cast the column to an integer if the numbers are classes.");
		return -EINVAL;
	}
	if (is_crossentropy(out->loss.loss))
		return fit_crossentropy(q, out);
	if (out->loss.loss == BACKEND_BINARY_CROSSENTROPY)
		return fit_binary(q, out);
	return fit_distance(q, out);
}

/* ---- logits or probabilities ---- */

static int settle_logits(const struct question *q, struct loss_choice *out)
{
	enum backend_activation last = q->info->last;
	bool binary = out->loss.loss == BACKEND_BINARY_CROSSENTROPY;

	out->loss.from_logits = false;
	if (!binary && !is_crossentropy(out->loss.loss))
		return 0;
	if (last == BACKEND_LOG_SOFTMAX) {
		err_set(q->err, ERR_ARCH, -EINVAL,
			"loss is '%s', but the architecture ends with log_softmax",
			train_loss_name(out->loss.loss));
		err_hint(q->err, "Use softmax, or a linear output.");
		return -EINVAL;
	}
	if (!q->config->logits_auto) {
		out->loss.from_logits = q->config->loss.from_logits;
		if (out->loss.from_logits && (last == BACKEND_SOFTMAX || last == BACKEND_SIGMOID))
			return err_set(
				q->err, ERR_PARAM, -EINVAL,
				"from_logits is true, but the architecture already ends with "
				"%s",
				activation_name(last));
	} else if (last == BACKEND_LINEAR) {
		out->loss.from_logits = true;
		if (q->notice)
			train_notice_add(q->notice,
					 "the output is linear: the loss applies %s itself "
					 "(from_logits)",
					 binary ? "sigmoid" : "softmax");
	}
	if (q->notice && !out->loss.from_logits && last != BACKEND_SOFTMAX &&
	    last != BACKEND_SIGMOID && last != BACKEND_HARD_SIGMOID)
		train_notice_add(q->notice,
				 "W:the output activation '%s' does not give probabilities, but "
				 "loss '%s' takes them as such",
				 activation_name(last), train_loss_name(out->loss.loss));
	if (q->notice && !out->loss.from_logits && !binary && last == BACKEND_SIGMOID)
		train_notice_add(q->notice, "W:the outputs of a sigmoid are no distribution over "
					    "classes: use softmax, or binary_crossentropy");
	return 0;
}

int train_loss_choose(const struct train_config *config, const struct model_info *info,
		      const struct agree_block *agreed, bool inference, struct loss_choice *out,
		      struct notice *notice, struct err *err)
{
	struct question q = {config, info, agreed, inference ? NULL : notice, err};
	int rc = 0;

	*out = (struct loss_choice){.loss = config->loss, .labels = has_classes(&q)};
	if (config->loss_auto)
		rc = choose_auto(&q, &out->loss.loss);
	if (!rc)
		rc = fit(&q, out);
	if (!rc)
		rc = settle_logits(&q, out);
	return rc;
}
