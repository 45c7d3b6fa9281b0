// SPDX-License-Identifier: MIT
/*
 * hosts.c: one job on two and three daemons of this machine: weights bitwise equal, one row, rows
 * exchanged, evaluation over all, STOP on one, admission in opposite order, nothing left over.
 */
#include <sys/wait.h>
#include <unistd.h>

#include "lab_hosts.h"

#define ROWS 360u

static struct lab lab[3];
static const char spec_text[] = "\"epochs\": 6, \"batch_size\": 10, \"learning_rate\": 0.2, "
				"\"seed\": 7, \"merge_every\": 4";

static bool must(const struct lab_hosts *h, int rc, const char *what)
{
	bool good = ok(rc == 0, "%s", what);

	if (!good)
		lab_hosts_explain(h);
	return good;
}

static void all_idle(uint32_t n, const char *when)
{
	for (uint32_t i = 0; i < n; i++) {
		ok(lab_idle(&lab[i], LAB_SANITIZER ? 5 : 1), "host %u has no job left %s", i, when);
		is(lab_held(&lab[i]), 0, "  nor memory");
	}
}

/* The weights of all hosts; those of host 0 are returned. */
static uint8_t *same_weights(struct lab_hosts *h, uint64_t *bytes)
{
	uint8_t *first = NULL, *other;
	uint64_t n;

	for (uint32_t i = 0; i < h->n; i++) {
		if (lab_get(&h->job[i], CTL_WEIGHTS, &other, &n)) {
			ok(false, "weights of host %u: %s", i, h->job[i].err.message);
			continue;
		}
		if (!i) {
			first = other;
			*bytes = n;
			continue;
		}
		ok(first && n == *bytes && !memcmp(first, other, n),
		   "  host %u holds the same bits", i);
		free(other);
	}
	return first;
}

static void same_rows(const struct lab_hosts *h)
{
	for (uint32_t i = 1; i < h->n; i++)
		ok(h->row[i].loss == h->row[0].loss && h->row[i].epoch == h->row[0].epoch &&
			   h->row[i].rows == h->row[0].rows &&
			   h->row[i].metric[0].train == h->row[0].metric[0].train &&
			   h->row[i].merge_number == h->row[0].merge_number &&
			   h->row[i].merge_checksum == h->row[0].merge_checksum,
		   "  host %u gives the same row", i);
}

static void test_training(uint32_t n)
{
	struct agree_block agreed;
	struct ctl_job ended[3];
	struct lab_hosts h;
	char reason[257];
	uint64_t bytes;

	printf("# %u hosts\n", n);
	is(lab_hosts_begin(&h, lab, n, CTL_TRAIN, lab_spec(spec_text), 0), 1, "admitted by all");
	ok(h.job[0].address[0] && strcmp(h.job[0].address, h.job[1].address),
	   "  with addresses: %s, %s", h.job[0].address, h.job[1].address);
	lab_hosts_feed(&h, ROW_TRAIN, ROWS, lab_round_robin);
	must(&h, lab_hosts_agree(&h, &agreed), "agreed");
	is(agreed.rows[0], ROWS, "  on the rows of all");
	must(&h, lab_hosts_apply(&h, &agreed, false), "applied");
	is(h.applied[0].rows, ROWS / n, "  each has its rows");
	is(h.applied[0].rows_moved, 0, "  none moved");
	is(h.applied[0].steps, ROWS / n / 10, "  steps of the hosts together");
	must(&h, lab_hosts_run(&h, 0, 3), "three epochs");
	same_rows(&h);
	is(h.row[0].hosts, n, "  of all hosts");
	must(&h, lab_hosts_run(&h, 3, 3), "three more");
	same_rows(&h);
	ok(h.row[0].loss < .3 && h.row[0].metric[0].train > .97, "  loss %.4f, accuracy %.3f",
	   h.row[0].loss, h.row[0].metric[0].train);
	ok(h.row[0].merge_number > 0, "  after %llu merges",
	   (unsigned long long)h.row[0].merge_number);
	is(lab_merges(&lab[1]), h.row[0].merge_number, "  as STATUS says");
	free(same_weights(&h, &bytes));
	lab_hosts_end(&h);
	agree_free(&agreed);
	all_idle(n, "after it");
	for (uint32_t i = 0; i < n; i++) {
		ok(lab_ended(&lab[i], h.lead.id, &ended[i], reason), "host %u remembers it: %s", i,
		   reason);
		ok(ended[i].merges == h.row[0].merge_number &&
			   ended[i].checksum == h.row[0].merge_checksum && ended[i].checksum,
		   "  with its last merge, %u %016llx", ended[i].merges,
		   (unsigned long long)ended[i].checksum);
	}
}

/* Shards sorted by class; after the exchange it does not matter where the rows lay. */
static void test_reshuffle(void)
{
	uint32_t (*const places[])(uint32_t, uint32_t) = {lab_by_label, lab_round_robin};
	uint8_t *weights[2] = {NULL, NULL};
	uint64_t bytes[2] = {0, 0}, rows, moved;

	for (int k = 0; k < 2; k++) {
		struct agree_block agreed;
		struct lab_hosts h;

		ok(lab_hosts_begin(&h, lab, 3, CTL_TRAIN, lab_spec(spec_text), 0) == 1,
		   "a training on shards %s", k ? "of all classes" : "of one class each");
		lab_hosts_feed(&h, ROW_TRAIN, ROWS, places[k]);
		must(&h, lab_hosts_agree(&h, &agreed), "agreed");
		must(&h, lab_hosts_apply(&h, &agreed, true), "rows exchanged");
		agree_free(&agreed);
		rows = moved = 0;
		for (uint32_t i = 0; i < 3; i++) {
			rows += h.applied[i].rows;
			moved += h.applied[i].rows_moved;
			ok(h.applied[i].rows > ROWS / 3 - 50 && h.applied[i].rows < ROWS / 3 + 50,
			   "  host %u has %llu rows, %llu of them from others", i,
			   (unsigned long long)h.applied[i].rows,
			   (unsigned long long)h.applied[i].rows_moved);
		}
		is(rows, ROWS, "  none lost, none doubled");
		ok(moved > ROWS / 2, "  %llu moved", (unsigned long long)moved);
		must(&h, lab_hosts_run(&h, 0, 6), "trained");
		same_rows(&h);
		ok(h.row[0].metric[0].train > .97, "  accuracy %.3f", h.row[0].metric[0].train);
		weights[k] = same_weights(&h, &bytes[k]);
		lab_hosts_end(&h);
	}
	ok(bytes[0] && bytes[0] == bytes[1] && weights[0] && weights[1] &&
		   !memcmp(weights[0], weights[1], bytes[0]),
	   "bit for bit the same weights, wherever the rows lay");
	free(weights[0]);
	free(weights[1]);
	all_idle(3, "after it");
}

static uint32_t all_on_the_first(uint32_t row, uint32_t n)
{
	return 0;
}

/* One host has several blocks for each of the others, and they have nothing. */
static void test_one_has_all(void)
{
	const uint32_t rows = 60000;
	struct agree_block agreed;
	struct lab_hosts h;
	uint64_t sum = 0, moved = 0;

	is(lab_hosts_begin(&h, lab, 3, CTL_TRAIN,
			   lab_spec("\"epochs\": 1, \"batch_size\": 100, \"learning_rate\": 0.2"),
			   0),
	   1, "a training whose rows are all on one host");
	lab_hosts_feed(&h, ROW_TRAIN, rows, all_on_the_first);
	must(&h, lab_hosts_agree(&h, &agreed), "agreed");
	must(&h, lab_hosts_apply(&h, &agreed, true), "rows exchanged");
	agree_free(&agreed);
	for (uint32_t i = 0; i < 3; i++) {
		sum += h.applied[i].rows;
		moved += h.applied[i].rows_moved;
		ok(h.applied[i].rows > rows / 3 - 1000 && h.applied[i].rows < rows / 3 + 1000,
		   "  host %u has %llu rows", i, (unsigned long long)h.applied[i].rows);
	}
	is(sum, rows, "  none lost, none doubled");
	is(moved, h.applied[1].rows + h.applied[2].rows,
	   "  all of the others' came from the first");
	must(&h, lab_hosts_run(&h, 0, 1), "trained");
	same_rows(&h);
	lab_hosts_end(&h);
	all_idle(3, "after it");
}

/* An evaluation counts the rows of all hosts on each of them; one has none. */
static void test_evaluation(void)
{
	uint8_t *weights = NULL, *block = NULL;
	uint64_t bytes = 0, block_bytes = 0;
	struct agree_block agreed;
	struct lab_hosts h;
	int rc;

	if (lab_hosts_prepare(&h, lab, 2, lab_spec(spec_text), ROWS, 0) ||
	    lab_hosts_run(&h, 0, 6) || lab_get(&h.job[0], CTL_WEIGHTS, &weights, &bytes) ||
	    lab_get(&h.job[0], CTL_SUMMARY, &block, &block_bytes)) {
		ok(false, "a model to evaluate");
		lab_hosts_explain(&h);
		lab_hosts_drop(&h);
		return;
	}
	lab_hosts_end(&h);
	for (int k = 0; k < 2; k++) {
		ok(lab_hosts_begin(&h, lab, 2, CTL_EVALUATION, lab_spec(""), 0) == 1,
		   "an evaluation on two hosts, %s", k ? "all rows on one" : "rows on both");
		lab_hosts_feed(&h, ROW_VALIDATION, 91, k ? all_on_the_first : lab_round_robin);
		if (agree_decode(block, block_bytes, &agreed, &h.lead.err))
			BAIL("no agreed block");
		rc = lab_hosts_apply(&h, &agreed, false);
		agree_free(&agreed);
		for (uint32_t i = 0; i < 2 && !rc; i++)
			rc = lab_put(&h.job[i], CTL_WEIGHTS, weights, bytes);
		must(&h, rc, "applied, weights put");
		must(&h, lab_hosts_run(&h, 0, 1), "evaluated");
		ok(h.row[0].validation_loss == h.row[1].validation_loss &&
			   h.row[0].metric[0].validation == h.row[1].metric[0].validation &&
			   h.row[0].metric[0].validation > .9,
		   "  the same on both: loss %.4f, accuracy %.3f", h.row[0].validation_loss,
		   h.row[0].metric[0].validation);
		near(h.row[0].metric[0].validation * 91, round(h.row[0].metric[0].validation * 91),
		     1e-9, "  of 91 rows");
		lab_hosts_end(&h);
	}
	free(weights);
	free(block);
	all_idle(2, "after it");
}

/* A prediction has a leader, and no mesh. */
static void test_prediction(void)
{
	struct lab_hosts h;
	double from;

	is(lab_hosts_begin(&h, lab, 2, CTL_PREDICTION, lab_spec(""), 0), 1,
	   "a prediction on two hosts");
	ok(!h.job[0].address[0] && !h.job[1].address[0], "  needs no address");
	lab_job_free(&h.lead);
	from = lab_now();
	for (uint32_t i = 0; i < 2; i++)
		ok(lab_idle(&lab[i], LAB_SANITIZER ? 5 : 1),
		   "  host %u frees it when the coordinator is gone (%.2f s)", i, lab_now() - from);
	lab_hosts_drop(&h);
}

static void test_stop(void)
{
	struct lab_hosts h;
	struct lab_job stopper;
	struct ctl_msg m;
	uint64_t bytes;
	double from;

	if (!must(&h,
		  lab_hosts_prepare(&h, lab, 3,
				    lab_spec("\"epochs\": 100000, \"batch_size\": 8, "
					     "\"merge_every\": 4"),
				    ROWS, 0),
		  "a long training on three hosts"))
		return;
	lab_hosts_send_run(&h, 0, 100000);
	lab_sleep(1);
	stopper = h.job[2];
	stopper.conn = lab_connect(&lab[2], "alice");
	lab_message(&stopper, CTL_STOP, &m);
	from = lab_now();
	ok(!lab_call(&stopper, &m, CTL_OK), "STOP on the last host");
	ctl_conn_free(stopper.conn);
	must(&h, lab_hosts_wait_run(&h), "all hosts end their run");
	ok(lab_now() - from < (LAB_SANITIZER ? 10 : 3), "  after %.2f s", lab_now() - from);
	for (uint32_t i = 0; i < 3; i++)
		ok(h.row[i].flags & CTL_ROW_STOPPED, "  host %u says that it was stopped", i);
	same_rows(&h);
	free(same_weights(&h, &bytes));
	lab_hosts_end(&h);
	all_idle(3, "after it");
}

/* Requests that no good coordinator makes. */
static void test_refusals(void)
{
	struct agree_block agreed;
	struct lab_hosts h;
	struct lab_job other;
	struct ctl_msg m;
	double from;

	lab_job_init(&other, &lab[0], "alice", CTL_TRAIN);
	lab_message(&other, CTL_MEMBERS, &m);
	m.u.members.hosts = 1;
	ok(lab_call(&other, &m, CTL_OK) < 0, "MEMBERS without LEAD: %s", other.err.message);
	other.leader = "127.0.0.1 1";
	from = lab_now();
	ok(lab_begin(&other, lab_spec("")) < 0, "a leader that is not there: %s",
	   other.err.message);
	ok(lab_now() - from < 2, "  at once");
	other.leader = "nowhere";
	ok(lab_begin(&other, lab_spec("")) < 0, "a leader that is no address: %s",
	   other.err.message);
	lab_job_free(&other);
	all_idle(1, "of these");

	is(lab_hosts_begin(&h, lab, 2, CTL_TRAIN, lab_spec(spec_text), 0), 1, "a job on two hosts");
	other = h.lead;
	other.conn = lab_connect(&lab[0], "alice");
	lab_message(&other, CTL_LEAD, &m);
	m.u.lead.role = ctl_str("alice", 5);
	ok(lab_call(&other, &m, CTL_LEAD_OK) < 0, "led twice: %s", other.err.message);
	lab_message(&other, CTL_MEMBERS, &m);
	m.u.members.hosts = 2;
	m.u.members.names = ctl_str("a\nb\n", 4);
	ok(lab_call(&other, &m, CTL_OK) < 0, "MEMBERS on another connection: %s",
	   other.err.message);
	ctl_conn_free(other.conn);
	other = h.job[0];
	other.conn = lab_connect(&lab[0], "alice");
	other.leader = NULL;
	ok(lab_begin(&other, lab_spec(spec_text)) < 0, "begun with another leader: %s",
	   other.err.message);
	ctl_conn_free(other.conn);
	/* ranks the wrong way round */
	lab_hosts_feed(&h, ROW_TRAIN, 60, lab_round_robin);
	if (lab_hosts_agree(&h, &agreed))
		BAIL("no agreement");
	memcpy(h.job[0].address, h.job[1].address, sizeof(h.job[0].address));
	from = lab_now();
	ok(lab_hosts_apply(&h, &agreed, false) < 0 && h.rc[0] < 0 && h.rc[1] < 0,
	   "APPLY with a wrong address ends the job on both");
	ok(lab_now() - from < (LAB_SANITIZER ? 10 : 2), "  after %.2f s", lab_now() - from);
	like(h.job[0].err.message, "is said to be at", "  the one that is wrong says why");
	lab_hosts_explain(&h);
	agree_free(&agreed);
	lab_hosts_drop(&h);
	all_idle(2, "after it");
}

/* A coordinator: takes all places or none, trains, ends. 0, or why it did not get through. */
static int coordinate(struct lab order[2], unsigned int seed, const char *spec)
{
	struct lab_hosts h;
	unsigned int tries = 0;
	int rc = 0;

	lab_hosts_init(&h, order, 2, CTL_TRAIN);
	while (!rc && tries++ < 1000) {
		rc = lab_hosts_again(&h, spec, 0);
		if (!rc)
			lab_sleep(.001 + rand_r(&seed) % 20 * .001);
	}
	if (rc != 1 || lab_hosts_ready(&h, 30) || lab_hosts_run(&h, 0, 1)) {
		lab_hosts_explain(&h);
		return 1;
	}
	lab_hosts_end(&h);
	return tries > 1 ? 2 : 0;
}

/* Two jobs begun in opposite order at the same time, each by a process of its own. */
static void test_opposite(void)
{
	struct lab order[2][2] = {{lab[0], lab[1]}, {lab[1], lab[0]}};
	unsigned int finished = 0, rounds = LAB_SANITIZER ? 10 : 50, again = 0;
	const char *spec = lab_spec("\"epochs\": 1");

	for (unsigned int k = 0; k < rounds; k++) {
		unsigned int good = 0;
		pid_t pid[2];
		int status;

		fflush(stdout);
		for (unsigned int i = 0; i < 2; i++) {
			pid[i] = fork();
			if (!pid[i]) {
				status = coordinate(order[i], 2 * k + i, spec);
				fflush(stdout);
				_exit(status);
			}
		}
		for (int i = 0; i < 2; i++) {
			if (pid[i] < 0 || waitpid(pid[i], &status, 0) != pid[i] ||
			    !WIFEXITED(status))
				continue;
			good += WEXITSTATUS(status) != 1;
			again += WEXITSTATUS(status) == 2;
		}
		finished += good == 2;
	}
	is(finished, rounds, "two jobs in opposite order: both finish, each time");
	ok(again > rounds / 4, "  %u had to release and ask again", again);
	all_idle(2, "after it");
}

static void test_left_over(void)
{
	unsigned int fds[2], tasks[2], rounds = LAB_SANITIZER ? 20 : 100, good = 0;
	bool same = false;

	for (unsigned int k = 0; k < rounds; k++) {
		struct lab_hosts h;

		if (k == 3)
			for (int i = 0; i < 2; i++) {
				lab_sleep(.2);
				fds[i] = lab_count(&lab[i], "fd");
				tasks[i] = lab_count(&lab[i], "task");
			}
		good += !lab_hosts_prepare(&h, lab, 2, lab_spec("\"epochs\": 1"), 60, 0) &&
			!lab_hosts_run(&h, 0, 1);
		if (k % 2)
			lab_hosts_end(&h);
		else
			lab_hosts_drop(&h);
		lab_idle(&lab[0], 2);
		lab_idle(&lab[1], 2);
	}
	is(good, rounds, "jobs on two hosts, one after the other");
	for (int t = 0; t < 50 && !same; t++) {
		same = true;
		for (int i = 0; i < 2; i++)
			same = same && lab_count(&lab[i], "fd") <= fds[i] &&
			       lab_count(&lab[i], "task") <= tasks[i];
		if (!same)
			lab_sleep(.1);
	}
	ok(same, "no descriptor and no thread is left: %u, %u and %u, %u; before %u, %u and %u, %u",
	   lab_count(&lab[0], "fd"), lab_count(&lab[0], "task"), lab_count(&lab[1], "fd"),
	   lab_count(&lab[1], "task"), fds[0], tasks[0], fds[1], tasks[1]);
}

int main(void)
{
	lab_hosts_start(lab, 3, "memory = 256M\n");
	test_training(2);
	test_training(3);
	test_reshuffle();
	test_one_has_all();
	test_evaluation();
	test_prediction();
	test_stop();
	test_refusals();
	test_opposite();
	test_left_over();
	all_idle(3, "at the end");
	lab_hosts_stop(lab, 3);
	return done();
}
