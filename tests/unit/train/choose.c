// SPDX-License-Identifier: MIT
/*
 * choose.c: which loss 'auto' means for labels, outputs and output activation; which pairs are
 * refused with a hint; what the user is told.
 */
#include "rig.h"

#define ROWS 400

static float x[ROWS * 2], hot[ROWS * 3];
static int32_t same[ROWS], two[ROWS], three[ROWS];
static double number[ROWS];
static const char *text[ROWS];

enum labels { SAME, TWO, THREE, TEXT, NUMBER, ARRAY3 };

static struct rig_rows rows_with(enum labels labels, uint32_t n)
{
	struct rig_rows rows = {.n = n, .h = 1, .w = 1, .c = 2, .f32 = x};

	switch (labels) {
	case SAME:
		rows.y_int = same;
		break;
	case TWO:
		rows.y_int = two;
		break;
	case THREE:
		rows.y_int = three;
		break;
	case TEXT:
		rows.y_text = text;
		break;
	case NUMBER:
		rows.y_double = number;
		break;
	case ARRAY3:
		rows.y_array = hot;
		rows.targets = 3;
		break;
	}
	return rows;
}

static struct err err;

static int start(struct rig *r, const char *more, enum labels labels, uint32_t n,
		 const char *layers)
{
	struct rig_rows rows = rows_with(labels, n);
	char spec[512], *architecture = rig_dense(2, layers);
	int rc;

	snprintf(spec, sizeof(spec), "{\"backend\": \"ref\"%s%s}", *more ? ", " : "", more);
	rc = rig_start(r, spec, architecture, &rows, NULL, &err);
	free(architecture);
	return rc;
}

static void chosen(const char *more, enum labels labels, const char *layers, enum backend_loss loss,
		   bool from_logits, const char *notice)
{
	struct ctl_run_row row;
	struct rig r;
	int rc = start(&r, more, labels, ROWS, layers);
	bool good = !rc && r.train->loss.loss.loss == loss &&
		    r.train->loss.loss.from_logits == from_logits &&
		    (!notice || (r.notice && strstr(r.notice, notice)));

	if (!ok(good, "%s -> %s%s", layers, train_loss_name(loss),
		from_logits ? " from logits" : ""))
		printf("#   %s; loss %d, notice '%s'\n", err.message,
		       rc ? -1 : (int)r.train->loss.loss.loss, r.notice ? r.notice : "");
	if (!rc)
		ok(!rig_run(&r, 0, 1, &row, &err) && isfinite(row.loss), "  and trains");
	rig_end(&r);
}

static void refused(const char *more, enum labels labels, const char *layers, enum err_kind kind,
		    const char *message, const char *hint)
{
	struct rig r;
	int rc = start(&r, more, labels, ROWS, layers);

	if (!ok(rc < 0 && err.kind == kind && strstr(err.message, message) &&
			(!hint || strstr(err.hint, hint)),
		"refused: %s %s", layers, more))
		printf("#   rc %d, kind %d, '%s', hint '%s'\n", rc, err.kind, err.message,
		       err.hint);
	rig_end(&r);
}

static void automatic(void)
{
	chosen("", THREE, "dense:3:softmax", BACKEND_SPARSE_CROSSENTROPY, false, NULL);
	chosen("", TEXT, "dense:3:linear", BACKEND_SPARSE_CROSSENTROPY, true,
	       "the output is linear: the loss applies softmax itself (from_logits)");
	chosen("", TWO, "dense:1:sigmoid", BACKEND_BINARY_CROSSENTROPY, false, NULL);
	chosen("", TWO, "dense:1:linear", BACKEND_BINARY_CROSSENTROPY, true,
	       "applies sigmoid itself");
	chosen("", TWO, "dense:2:softmax", BACKEND_SPARSE_CROSSENTROPY, false, NULL);
	chosen("", NUMBER, "dense:1:linear", BACKEND_MSE, false, NULL);
	chosen("", NUMBER, "dense:1:sigmoid", BACKEND_MSE, false, NULL);
	chosen("", ARRAY3, "dense:3:softmax", BACKEND_CATEGORICAL_CROSSENTROPY, false, NULL);
	chosen("", ARRAY3, "dense:3:sigmoid", BACKEND_BINARY_CROSSENTROPY, false, NULL);
	chosen("", ARRAY3, "dense:3:linear", BACKEND_MSE, false,
	       "for one-hot rows say loss := 'categorical_crossentropy'");
	refused("", THREE, "dense:1:sigmoid", ERR_DATA, "3 different labels", NULL);
	refused("", THREE, "dense:3:sigmoid", ERR_ARCH,
		"no loss fits 3 outputs with activation 'sigmoid'", "softmax");
	refused("", TWO, "dense:1:softmax", ERR_ARCH, "softmax", NULL);
	refused("", NUMBER, "dense:1:softmax", ERR_ARCH, "softmax over 1 output, which is always 1",
		"sigmoid for two classes");
}

static void explicit(void)
{
	chosen("\"loss\": \"categorical_crossentropy\"", THREE, "dense:3:softmax",
	       BACKEND_SPARSE_CROSSENTROPY, false, NULL);
	chosen("\"loss\": \"categorical_crossentropy\", \"label_smoothing\": 0.1", ARRAY3,
	       "dense:3:linear", BACKEND_CATEGORICAL_CROSSENTROPY, true, "from_logits");
	chosen("\"loss\": \"binary_crossentropy\"", THREE, "dense:3:sigmoid",
	       BACKEND_BINARY_CROSSENTROPY, false, NULL);
	chosen("\"loss\": \"mae\"", NUMBER, "dense:1:linear", BACKEND_MAE, false, NULL);
	chosen("\"loss\": \"sparse_categorical_crossentropy\", \"from_logits\": false", THREE,
	       "dense:3:sigmoid", BACKEND_SPARSE_CROSSENTROPY, false, "W:the outputs of a sigmoid");
	chosen("\"from_logits\": false", THREE, "dense:3:linear", BACKEND_SPARSE_CROSSENTROPY,
	       false, "W:the output activation 'linear' does not give probabilities");
	refused("\"from_logits\": true", THREE, "dense:3:softmax", ERR_PARAM,
		"from_logits is true, but the architecture already ends with softmax", NULL);
	refused("\"loss\": \"mse\"", TEXT, "dense:3:softmax", ERR_PARAM,
		"loss is 'mse', but the dependent column holds text labels", "double precision");
	refused("\"loss\": \"sparse_categorical_crossentropy\"", ARRAY3, "dense:3:softmax",
		ERR_PARAM, "holds arrays", "categorical_crossentropy");
	refused("\"loss\": \"categorical_crossentropy\"", NUMBER, "dense:1:linear", ERR_ARCH,
		"1 output: its probability would always be 1", "binary_crossentropy");
	refused("\"loss\": \"mse\", \"label_smoothing\": 0.1", NUMBER, "dense:1:linear", ERR_PARAM,
		"label_smoothing is 0.1, must be 0", NULL);
	refused("\"loss\": \"mse\", \"from_logits\": true", NUMBER, "dense:1:linear", ERR_PARAM,
		"from_logits is true, must be false", NULL);
	refused("\"class_weight\": {\"7\": 2}", THREE, "dense:3:softmax", ERR_PARAM,
		"class_weight names '7'", NULL);
	refused("\"class_weight\": {\"0\": 0, \"1\": 0, \"2\": 0}", THREE, "dense:3:softmax",
		ERR_PARAM, "every class weight 0", NULL);
	refused("\"validation_fraction\": 0.99999", THREE, "dense:3:softmax", ERR_DATA,
		"there are no training rows: validation_fraction 0.99999 keeps all 400", "Lower");
	refused("\"augment\": \"pad_crop=3\"", THREE, "dense:3:softmax", ERR_PARAM,
		"augment: pad_crop is 3, the images are", NULL);
	refused("\"augment\": \"cutout=3\"", THREE, "dense:3:softmax", ERR_PARAM,
		"augment: cutout is 3, the images are", NULL);
	refused("\"class_weight\": \"balanced\"", NUMBER, "dense:1:linear", ERR_PARAM,
		"class_weight needs one label a row", NULL);
	refused("\"metrics\": \"accuracy\"", NUMBER, "dense:1:linear", ERR_PARAM,
		"metrics: 'accuracy' needs classes", "rmse");
	refused("\"metrics\": \"top_k(k=3)\"", THREE, "dense:3:softmax", ERR_PARAM,
		"k below the number of outputs, 3", NULL);
	refused("\"early_stop\": \"monitor=val_loss\"", THREE, "dense:3:softmax", ERR_PARAM,
		"early_stop monitors 'val_loss'", "validation_fraction");
}

static void told(const char *more, enum labels labels, uint32_t n, const char *layers,
		 const char *wanted, const char *unwanted)
{
	struct rig r;
	int rc = start(&r, more, labels, n, layers);
	const char *notice = r.notice ? r.notice : "";

	if (!ok(!rc && (!wanted || strstr(notice, wanted)) &&
			(!unwanted || !strstr(notice, unwanted)),
		"told: %s", wanted ? wanted : "nothing"))
		printf("#   rc %d %s, notice '%s'\n", rc, err.message, notice);
	rig_end(&r);
}

static void notices(void)
{
	struct ctl_run_row row;
	struct rig r;

	told("", SAME, ROWS, "dense:3:softmax", "W:all rows have the same label", NULL);
	told("", TWO, ROWS, "dense:5:softmax",
	     "the architecture has 5 outputs, the rows 2 classes: outputs 3 to 5 never occur",
	     "W:");
	told("", THREE, ROWS, "dense:3:softmax", "batch_size is 20, chosen for 400 training rows",
	     "W:");
	told("\"batch_size\": 20", THREE, ROWS, "dense:3:softmax", NULL, "batch_size");
	told("\"batch_size\": 20", THREE, ROWS, "dense:3:softmax", NULL, "never occur");
	told("\"validation_fraction\": 0.00001", THREE, ROWS, "dense:3:softmax",
	     "W:no row is kept for validation: validation_fraction is 1e-05, the rows are 400",
	     NULL);
	told("\"validation_fraction\": 0.5", THREE, ROWS, "dense:3:softmax", NULL, "kept");
	told("\"batch_size\": 500", THREE, ROWS, "dense:3:softmax",
	     "batch_size is 500, the training rows are 400", NULL);
	told("\"batch_size\": 100, \"accumulate\": 9", THREE, ROWS, "dense:3:softmax",
	     "accumulate is 9, an epoch has 4 steps", NULL);
	is(start(&r, "\"batch_size\": 500", THREE, ROWS, "dense:3:softmax"), 0,
	   "a batch larger than the table");
	is(rig_run(&r, 0, 1, &row, &err), 0, "trains");
	ok(row.steps == 1 && row.rows == ROWS, "one batch of all rows, not zero batches");
	rig_end(&r);
	is(start(&r, "\"batch_size\": 64", THREE, 71, "dense:3:softmax"), 0, "71 rows by 64");
	ok(!rig_run(&r, 0, 1, &row, &err) && row.rows == 71 && row.steps == 2,
	   "are two steps, one of 36 %s", err.message);
	rig_end(&r);
	is(start(&r, "", TWO, 1, "dense:3:softmax"), 0, "a table of one row");
	ok(!rig_run(&r, 0, 1, &row, &err) && row.rows == 1 && isfinite(row.loss), "trains");
	rig_end(&r);
}

int main(void)
{
	static const char *const names[3] = {"a", "b", "c"};
	uint64_t state = 77;

	for (int i = 0; i < ROWS; i++) {
		x[2 * i] = (float)(rig_random(&state) % 1000) / 500 - 1;
		x[2 * i + 1] = (float)(rig_random(&state) % 1000) / 500 - 1;
		same[i] = 4;
		two[i] = 1 + i % 2;
		three[i] = i % 3;
		text[i] = names[i % 3];
		number[i] = x[2 * i];
		hot[3 * i + i % 3] = 1;
	}
	automatic();
	explicit();
	notices();
	return done();
}
