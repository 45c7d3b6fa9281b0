// SPDX-License-Identifier: MIT
/*
 * train.c: whole jobs against a real daemon: training, prediction, evaluation, one row; that the
 * order of arrival does not change the weights; heartbeats, STATUS, STOP.
 */
#include <endian.h>
#include <errno.h>
#include <pthread.h>
#include <unistd.h>

#include "lab.h"

#define ROWS 300u

static struct lab lab;

static void must(struct lab_job *job, int rc, const char *what)
{
	if (!ok(rc == 0, "%s", what))
		printf("#   %s (%s)\n", job->err.message, err_kind_name(job->err.kind));
}

/* Argmax of a prediction against the class of its row, by its id. */
struct check {
	uint32_t rows, right, next;
	bool in_order;
};

static void check_rows(struct check *c, const struct ctl_str *frame)
{
	struct row_prediction p;
	long at = 0;

	while ((at = row_prediction_decode(frame->p, frame->n, (size_t)at, &p)) > 0) {
		float value[3];
		uint32_t id = UINT32_MAX, best = 0;

		c->rows++;
		if (p.outputs != 3 || p.id_bytes != 4)
			continue;
		memcpy(&id, p.id, 4);
		id = le32toh(id);
		memcpy(value, p.value, sizeof(value));
		for (uint32_t k = 1; k < 3; k++)
			if (value[k] > value[best])
				best = k;
		c->right += best == id % 3;
		c->in_order &= id == c->next++;
	}
}

static int collect(struct lab_job *job, struct check *c)
{
	struct ctl_msg m;
	int rc;

	lab_message(job, CTL_COLLECT, &m);
	memset(&job->err, 0, sizeof(job->err));
	rc = ctl_call(job->conn, &m, &m, 60000, &job->err);
	while (!rc && m.type == CTL_ROWS) {
		check_rows(c, &m.u.blob.blob);
		rc = ctl_wait(job->conn, &m, 60000, &job->err);
	}
	return rc ? rc : m.type == CTL_DONE ? 0 : -EPROTO;
}

/* ---- a training, and what is done with its model ---- */

static struct agree_block agreed;
static uint8_t *weights, *summary;
static uint64_t weight_bytes, summary_bytes;

static void test_training(void)
{
	struct ctl_apply_ok apply;
	struct ctl_run_row row;
	struct lab_job job;
	uint8_t *json;
	uint64_t bytes;

	lab_job_init(&job, &lab, "alice", CTL_TRAIN);
	is(lab_begin(&job, lab_spec("\"epochs\": 6, \"batch_size\": 10, \"learning_rate\": 0.2, "
				    "\"seed\": 7")),
	   1, "training admitted");
	must(&job, lab_watch(&job), "watched");
	must(&job, lab_feed_rows(&job, ROW_TRAIN, 0, ROWS), "rows fed");
	must(&job, lab_agree(&job, &agreed), "agreed");
	is(agreed.rows[0], ROWS, "  on all rows");
	is(agreed.n_labels, 3, "  and three classes");
	must(&job, lab_apply(&job, &agreed, &apply), "applied");
	is(apply.parameters, 64 * 3 + 3, "  parameters of the network");
	ok(apply.h == 8 && apply.w == 8 && apply.c == 1 && apply.outputs == 3, "  its shape");
	is(apply.steps, 30, "  30 steps of 10 rows");
	must(&job, lab_run(&job, 0, 3, &row), "three epochs");
	is(row.epoch, 3, "  counted");
	must(&job, lab_run(&job, 3, 3, &row), "three more");
	is(row.epoch, 6, "  counted on");
	ok(row.loss < .3, "  the loss fell to %.4f", row.loss);
	ok(row.metrics == 1 && row.metric[0].train > .97, "  accuracy %.3f", row.metric[0].train);
	must(&job, lab_get(&job, CTL_WEIGHTS, &weights, &weight_bytes), "weights fetched");
	is(weight_bytes, 4 * (64 * 3 + 3), "  all of them");
	must(&job, lab_get(&job, CTL_SUMMARY, &summary, &summary_bytes),
	     "the agreed block fetched");
	must(&job, lab_get(&job, CTL_JSON, &json, &bytes), "the architecture fetched");
	ok(bytes > 100 && strstr((char *)json, "Flatten"), "  as JSON");
	free(json);
	must(&job, lab_end(&job), "ended");
	is(lab_jobs(&lab), 0, "  no job is left when END is answered");
	is(lab_held(&lab), 0, "  nor memory");
	ok(lab_logged(&lab, "code=end", 2) && lab_logged(&lab, "ended by its owner", 0),
	   "  and the log says so");
	lab_job_free(&job);
}

/* cache = false: the rows go after each run and come again, here in another order and over two
 * feeds; the weights are those of a training that keeps them (test_training's). */
static void test_no_cache(void)
{
	struct agree_block block;
	struct ctl_run_row row;
	struct lab_job job;
	uint8_t *got = NULL;
	uint64_t bytes = 0;

	lab_job_init(&job, &lab, "alice", CTL_TRAIN);
	is(lab_begin(&job, lab_spec("\"epochs\": 6, \"batch_size\": 10, \"learning_rate\": 0.2, "
				    "\"seed\": 7, \"cache\": false")),
	   1, "training without a cache admitted");
	must(&job, lab_feed_rows(&job, ROW_TRAIN, 0, ROWS), "rows fed");
	must(&job, lab_agree(&job, &block), "agreed");
	must(&job, lab_apply(&job, &block, NULL), "applied");
	agree_free(&block);
	must(&job, lab_run(&job, 0, 3, &row), "three epochs");
	ok(lab_run(&job, 3, 3, &row) < 0, "without the rows there is no second run");
	like(job.err.message, "other rows than in the first pass: 0 for training", "  it says why");
	lab_end(&job);
	lab_job_free(&job);

	lab_job_init(&job, &lab, "alice", CTL_TRAIN);
	is(lab_begin(&job, lab_spec("\"epochs\": 6, \"batch_size\": 10, \"learning_rate\": 0.2, "
				    "\"seed\": 7, \"cache\": false")),
	   1, "training without a cache admitted");
	must(&job, lab_feed_rows(&job, ROW_TRAIN, 0, ROWS), "rows fed");
	must(&job, lab_agree(&job, &block), "agreed");
	must(&job, lab_apply(&job, &block, NULL), "applied");
	agree_free(&block);
	for (uint32_t e = 0; e < 6; e++) {
		if (e) {
			must(&job, lab_feed_rows(&job, ROW_TRAIN, ROWS / 2, ROWS - ROWS / 2),
			     "the second half again");
			must(&job, lab_feed_rows(&job, ROW_TRAIN, 0, ROWS / 2), "the first half");
		}
		must(&job, lab_run(&job, e, 1, &row), "an epoch");
	}
	must(&job, lab_get(&job, CTL_WEIGHTS, &got, &bytes), "weights fetched");
	ok(bytes == weight_bytes && !memcmp(got, weights, bytes),
	   "bit for bit those of a training that keeps its rows");
	free(got);
	must(&job, lab_end(&job), "ended");
	is(lab_held(&lab), 0, "  no memory is held");
	lab_job_free(&job);
}

/* The model's block as stored, not the one of this run. */
static int apply_stored(struct lab_job *job)
{
	struct agree_block block;
	int rc = agree_decode(summary, summary_bytes, &block, &job->err);

	if (rc)
		return rc;
	rc = lab_apply(job, &block, NULL);
	agree_free(&block);
	return rc;
}

static void test_prediction(void)
{
	struct check c = {.in_order = true};
	struct lab_job job;

	lab_job_init(&job, &lab, "alice", CTL_PREDICTION);
	is(lab_begin(&job, lab_spec("")), 1, "prediction admitted");
	must(&job, lab_feed_rows(&job, ROW_PREDICT, 0, 20000), "20,000 rows fed");
	must(&job, apply_stored(&job), "the model's block applied");
	must(&job, lab_put(&job, CTL_WEIGHTS, weights, weight_bytes), "weights put");
	must(&job, collect(&job, &c), "predictions collected");
	is(c.rows, 20000, "  one for each row");
	ok(c.right > 19500, "  %u of them right", c.right);
	ok(c.in_order, "  in the order they were fed");
	must(&job, lab_end(&job), "ended");
	lab_job_free(&job);
}

static void test_one_row(void)
{
	uint8_t value[ROW_HEAD + 4 + 8 + 64];
	struct row_prediction p;
	struct lab_job job;
	struct ctl_msg m;
	unsigned int right = 0;

	lab_job_init(&job, &lab, "alice", CTL_PREDICTION);
	is(lab_begin(&job, lab_spec("")), 1, "prediction of single rows admitted");
	must(&job, apply_stored(&job), "applied without any rows");
	must(&job, lab_put(&job, CTL_WEIGHTS, weights, weight_bytes), "weights put");
	for (uint32_t i = 0; i < 30; i++) {
		size_t n = lab_value(i, 0, false, value);
		float v[3];
		int rc;

		lab_message(&job, CTL_PREDICT, &m);
		m.u.blob.blob = ctl_str((char *)value, n);
		rc = lab_call(&job, &m, CTL_ROWS);
		if (rc || row_prediction_decode(m.u.blob.blob.p, m.u.blob.blob.n, 0, &p) <= 0 ||
		    p.outputs != 3) {
			printf("# %s\n", job.err.message);
			continue;
		}
		memcpy(v, p.value, sizeof(v));
		right += v[i % 3] > v[(i + 1) % 3] && v[i % 3] > v[(i + 2) % 3];
	}
	ok(right >= 29, "single rows predicted, %u of 30 right", right);
	lab_message(&job, CTL_PREDICT, &m);
	m.u.blob.blob = ctl_str((char *)value, 20);
	ok(lab_call(&job, &m, CTL_ROWS) < 0, "half a row is refused");
	must(&job, lab_end(&job), "ended");
	lab_job_free(&job);
}

static void test_evaluation(void)
{
	struct ctl_run_row row;
	struct lab_job job;
	uint8_t *confusion;
	uint64_t bytes, sum = 0, diagonal = 0;

	lab_job_init(&job, &lab, "alice", CTL_EVALUATION);
	is(lab_begin(&job, lab_spec("")), 1, "evaluation admitted");
	must(&job, lab_feed_rows(&job, ROW_VALIDATION, 1000, 90), "rows fed");
	must(&job, apply_stored(&job), "applied");
	must(&job, lab_put(&job, CTL_WEIGHTS, weights, weight_bytes), "weights put");
	must(&job, lab_run(&job, 0, 1, &row), "evaluated");
	ok(row.validation_loss < .3 && row.metric[0].validation > .95, "  loss %.4f accuracy %.3f",
	   row.validation_loss, row.metric[0].validation);
	must(&job, lab_get(&job, CTL_CONFUSION, &confusion, &bytes), "confusion matrix fetched");
	is(bytes, 4 + 9 * 8, "  of three classes");
	for (int i = 0; i < 9 && confusion; i++) {
		uint64_t v;

		memcpy(&v, confusion + 4 + 8 * i, 8);
		sum += le64toh(v);
		diagonal += i % 4 ? 0 : le64toh(v);
	}
	is(sum, 90, "  with every row");
	near((double)diagonal / 90, row.metric[0].validation, 1e-9,
	     "  its diagonal is the accuracy");
	free(confusion);
	must(&job, lab_end(&job), "ended");
	lab_job_free(&job);
}

/* ---- determinism ---- */

struct stripe {
	struct lab_job job;
	uint32_t from, step;
	int rc;
};

static void *feed_stripe(void *arg)
{
	struct stripe *s = arg;
	struct lab_feed feed;

	s->rc = lab_feed_open(&s->job, ROW_TRAIN, &feed);
	/* backwards, every second row */
	for (int64_t i = (int64_t)ROWS - 1 - s->from; !s->rc && i >= 0; i -= s->step)
		s->rc = lab_feed_row(&feed, (uint32_t)i);
	if (!s->rc)
		s->rc = lab_feed_close(&feed, NULL);
	return NULL;
}

static void test_order_of_arrival(void)
{
	struct agree_block other;
	struct lab_job job;
	struct stripe stripe[2];
	pthread_t thread[2];
	uint8_t *again;
	uint64_t bytes;

	lab_job_init(&job, &lab, "alice", CTL_TRAIN);
	is(lab_begin(&job, lab_spec("\"epochs\": 6, \"batch_size\": 10, \"learning_rate\": 0.2, "
				    "\"seed\": 7")),
	   1, "the same training again");
	must(&job, lab_watch(&job), "watched");
	for (uint32_t i = 0; i < 2; i++) {
		stripe[i] = (struct stripe){.job = job, .from = i, .step = 2};
		stripe[i].job.conn = lab_connect(&lab, "alice");
		pthread_create(&thread[i], NULL, feed_stripe, &stripe[i]);
	}
	for (int i = 0; i < 2; i++) {
		pthread_join(thread[i], NULL);
		must(&stripe[i].job, stripe[i].rc, "a feeder of two, backwards");
		ctl_conn_free(stripe[i].job.conn);
	}
	must(&job, lab_agree(&job, &other), "agreed");
	must(&job, lab_apply(&job, &other, NULL), "applied");
	must(&job, lab_run(&job, 0, 3, NULL), "three epochs");
	must(&job, lab_run(&job, 3, 3, NULL), "three more");
	must(&job, lab_get(&job, CTL_WEIGHTS, &again, &bytes), "weights fetched");
	ok(bytes == weight_bytes && again && !memcmp(again, weights, bytes),
	   "bit-identical weights, whatever the order of arrival");
	free(again);
	agree_free(&other);
	must(&job, lab_end(&job), "ended");
	lab_job_free(&job);
}

/* ---- what others see, heartbeats, STOP ---- */

struct runner {
	struct lab_job job;
	struct ctl_run_row row;
	int rc, beats;
	struct ctl_heartbeat last;
};

/* RUN, counting heartbeats. */
static void *run_thread(void *arg)
{
	struct runner *r = arg;
	struct ctl_msg m;
	int rc;

	lab_message(&r->job, CTL_RUN, &m);
	m.u.run.count = 100000;
	m.u.run.lr_factor = 1;
	rc = ctl_send(r->job.conn, &m, NULL, 0);
	while (!rc) {
		rc = ctl_recv(r->job.conn, &m, NULL, NULL, &r->job.err);
		if (rc == 1 && m.type == CTL_HEARTBEAT) {
			r->beats++;
			r->last = m.u.heartbeat;
			rc = 0;
		} else if (!rc) {
			usleep(2000);
		}
	}
	r->rc = rc == 1 && m.type == CTL_RUN_ROW ? 0 : -1;
	r->row = m.u.run_row;
	return NULL;
}

static struct ctl_job status_of(const char *role, int *n)
{
	struct ctl_conn *conn = lab_connect(&lab, role);
	struct ctl_msg m = {.type = CTL_STATUS};
	struct ctl_job found = {0};
	struct err err;
	int rc = ctl_call(conn, &m, &m, 5000, &err);

	for (*n = 0; !rc && m.type == CTL_JOB; ++*n) {
		found = m.u.entry;
		found.role = ctl_str(strndup(found.role.p, found.role.n), found.role.n);
		found.state = ctl_str(strndup(found.state.p, found.state.n), found.state.n);
		rc = ctl_wait(conn, &m, 5000, &err);
	}
	ctl_conn_free(conn);
	return found;
}

/* What else may run while a training runs. */
static void test_beside(void)
{
	struct lab_job job;

	lab_job_init(&job, &lab, "bob", CTL_TRAIN);
	is(lab_begin(&job, lab_spec("")), 0, "a second training is told busy");
	like(job.err.message, "1 other training", "  with the reason");
	must(&job, lab_end(&job), "  and gives up its turn");
	lab_job_free(&job);
	lab_job_init(&job, &lab, "bob", CTL_PREDICTION);
	is(lab_begin(&job, lab_spec("")), 1, "a prediction is let in beside it");
	must(&job, apply_stored(&job), "  applied");
	must(&job, lab_put(&job, CTL_WEIGHTS, weights, weight_bytes), "  and works");
	must(&job, lab_end(&job), "  ended");
	lab_job_free(&job);
}

static void test_run(void)
{
	struct agree_block block;
	struct ctl_msg m;
	struct runner r = {0};
	struct ctl_job e;
	pthread_t thread;
	double from;
	int n;

	lab_job_init(&r.job, &lab, "alice", CTL_TRAIN);
	must(&r.job,
	     lab_prepare(&r.job, lab_spec("\"epochs\": 100000, \"batch_size\": 8"), ROWS, &block),
	     "a long training");
	agree_free(&block);
	pthread_create(&thread, NULL, run_thread, &r);
	lab_sleep(2.6);
	e = status_of("alice", &n);
	is(n, 1, "its owner sees it");
	ok(e.own && e.epochs == 100000 && e.epoch >= 1 && e.memory > 0 && e.seconds > 2,
	   "  epoch %u of %u, loss %.4f", e.epoch, e.epochs, e.loss);
	is_str(e.state.p, "running", "  running");
	free((char *)e.state.p);
	free((char *)e.role.p);
	e = status_of("bob", &n);
	ok(n == 1 && !e.own, "another role of the database is told that it is not its own");
	free((char *)e.state.p);
	free((char *)e.role.p);
	test_beside();
	{
		struct lab_job stopper = r.job;

		stopper.conn = lab_connect(&lab, "alice");
		memset(stopper.secret, 0, CTL_ID);
		lab_message(&stopper, CTL_STOP, &m);
		from = lab_now();
		must(&stopper, lab_call(&stopper, &m, CTL_OK),
		     "STOP by the owner, without the secret");
		pthread_join(thread, NULL);
		ok(lab_now() - from < 2, "  ends the run at once");
		ctl_conn_free(stopper.conn);
	}
	is(r.rc, 0, "  with a row");
	ok(r.row.flags & CTL_ROW_STOPPED, "  that says so");
	ok(r.beats >= 2 && r.beats <= 4, "a heartbeat each second came before it: %d", r.beats);
	ok(r.last.epoch >= 1 && r.last.epochs == 100000 && r.last.steps == 38,
	   "  with its progress: epoch %u, step %llu of %llu", r.last.epoch,
	   (unsigned long long)r.last.step, (unsigned long long)r.last.steps);
	must(&r.job, lab_end(&r.job), "ended");
	lab_job_free(&r.job);
}

int main(void)
{
	lab_open(&lab, "");
	test_training();
	test_no_cache();
	test_prediction();
	test_one_row();
	test_evaluation();
	test_order_of_arrival();
	test_run();
	ok(lab_idle(&lab, 1), "no job is left");
	is(lab_held(&lab), 0, "no memory is held");
	agree_free(&agreed);
	free(weights);
	free(summary);
	lab_close(&lab);
	return done();
}
