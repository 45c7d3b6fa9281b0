// SPDX-License-Identifier: MIT
/*
 * decoder.c: the pool of decode workers: right pixels out of order, hostile images, deaths. The
 * attacks are those of worker.c, which only a decoder made for tests carries out.
 */
#include <pthread.h>
#include <signal.h>
#include <sys/wait.h>
#include <time.h>

#include "data_test.h"
#include "../../../userspace/data/pool.h"

static struct data_decoder *create(unsigned int workers, bool sandbox, unsigned int ms)
{
	struct data_limits limits = {.workers = workers,
				     .sandbox = sandbox,
				     .image_ms = ms,
				     .max_image_pixels = 4 << 20};
	struct data_decoder *d;
	struct err err;

	if (decoder_create(&limits, true, &d, &err))
		BAIL("%s", err.message);
	return d;
}

static struct decode_job *job_for(struct bytes b)
{
	struct decode_job *job = calloc(1, sizeof(*job));

	job->bytes = b.n;
	return job;
}

static int submit(struct data_decoder *d, struct decode_queue *q, struct decode_job *job,
		  const void *image, struct err *err)
{
	int rc;

	while ((rc = decoder_submit(d, q, job, image, err)) == -EAGAIN)
		if ((rc = decoder_wait(d, q, DECODE_SLOT, err)))
			break;
	return rc;
}

static struct decode_job *fetch(struct data_decoder *d, struct decode_queue *q, struct err *err)
{
	struct decode_job *job;

	while (!(job = decoder_take(d, q)))
		if (decoder_wait(d, q, DECODE_DONE, err))
			return NULL;
	return job;
}

/* One image alone; the result. */
static struct image_result one(struct data_decoder *d, struct bytes b, bool *crash)
{
	struct decode_queue q = {0};
	struct decode_job *job = job_for(b);
	struct image_result r = {.code = 99};
	struct err err;

	if (submit(d, &q, job, b.data, &err)) {
		printf("# %s\n", err.message);
		free(job);
		return r;
	}
	job = fetch(d, &q, &err);
	if (!job) {
		printf("# %s\n", err.message);
		decoder_close(d, &q);
		return r;
	}
	r = job->result;
	*crash = job->crash;
	decoder_release(d, job);
	free(job);
	decoder_close(d, &q);
	return r;
}

static struct image_result attack(struct data_decoder *d, const char *what, bool *crash)
{
	char text[64];

	snprintf(text, sizeof(text), "CNNTEST:%s", what);
	return one(d, (struct bytes){(uint8_t *)text, strlen(text)}, crash);
}

static struct bytes picture(uint32_t seed, int w, int h)
{
	uint8_t *p = malloc((size_t)(w * h) * 3);
	struct bytes b;

	for (int i = 0; i < w * h * 3; i++)
		p[i] = (uint8_t)(seed * 2654435761u >> 24) ^ (uint8_t)i;
	b = make_png(w, h, PNG_COLOR_TYPE_RGB, false, p);
	free(p);
	return b;
}

static bool picture_is(uint32_t seed, int w, int h, const uint8_t *p)
{
	for (int i = 0; i < w * h * 3; i++)
		if (p[i] != ((uint8_t)(seed * 2654435761u >> 24) ^ (uint8_t)i))
			return false;
	return true;
}

/* One queue with many images in flight; job order is not submission order, pixels are. */
struct feed {
	struct data_decoder *d;
	uint32_t first, n, w, h;
	uint32_t right, wrong;
};

struct tagged {
	struct decode_job job;
	uint32_t seed;
};

static void collect(struct feed *f, struct decode_queue *q, uint8_t *buffer)
{
	struct tagged *t;
	struct err err;

	while ((t = (struct tagged *)decoder_take(f->d, q))) {
		if (t->job.result.code == IMAGE_OK &&
		    !decoder_pixels(f->d, &t->job, buffer, &err) &&
		    picture_is(t->seed, (int)f->w, (int)f->h, buffer))
			f->right++;
		else
			f->wrong++;
		decoder_release(f->d, &t->job);
		free(t);
	}
}

static void *feed_many(void *context)
{
	struct feed *f = context;
	struct decode_queue q = {0};
	uint8_t *buffer = malloc((size_t)f->w * f->h * 3);
	struct err err;

	for (uint32_t i = 0; i < f->n; i++) {
		struct bytes b = picture(f->first + i, (int)f->w, (int)f->h);
		struct tagged *t = calloc(1, sizeof(*t));
		int rc;

		t->job.bytes = b.n;
		t->seed = f->first + i;
		while ((rc = decoder_submit(f->d, &q, &t->job, b.data, &err)) == -EAGAIN) {
			if ((rc = decoder_wait(f->d, &q, DECODE_SLOT, &err)))
				break;
			collect(f, &q, buffer);
		}
		if (rc)
			BAIL("%s", err.message);
		free(b.data);
	}
	while (q.in_flight) {
		if (decoder_wait(f->d, &q, DECODE_DONE, &err))
			BAIL("%s", err.message);
		collect(f, &q, buffer);
	}
	decoder_close(f->d, &q);
	free(buffer);
	return NULL;
}

static void test_many(void)
{
	struct data_decoder *d = create(2, true, 2000);
	struct feed f = {d, 0, 300, 20, 10, 0, 0}, two[2];
	pthread_t thread[2];

	feed_many(&f);
	ok(f.right == 300 && !f.wrong, "300 images through one queue (%u right)", f.right);
	for (uint32_t i = 0; i < 2; i++) {
		two[i] = (struct feed){d, 1000 * i, 200, 32, 32, 0, 0};
		pthread_create(&thread[i], NULL, feed_many, &two[i]);
	}
	for (int i = 0; i < 2; i++)
		pthread_join(thread[i], NULL);
	ok(two[0].right + two[1].right == 400, "2 x 200 images through two queues at once");
	data_decoder_free(d);
}

/* A queue that nobody fetches from must not hold up another: its images are moved out. */
static void test_idle_queue(void)
{
	struct data_decoder *d = create(1, true, 2000);
	struct decode_queue idle = {0};
	struct bytes b = picture(7, 20, 10);
	struct feed f = {d, 0, 50, 20, 10, 0, 0};
	uint8_t buffer[20 * 10 * 3];
	struct decode_job *job;
	struct err err;
	uint32_t n = 0, right = 0;

	for (;;) {
		job = job_for(b);
		if (decoder_submit(d, &idle, job, b.data, &err))
			break;
		n++;
	}
	free(job);
	is(n, WORKER_SMALL, "slots that one queue can fill");
	feed_many(&f);
	is(f.right, 50, "another queue goes on");
	while (idle.in_flight && (job = fetch(d, &idle, &err))) {
		right += !decoder_pixels(d, job, buffer, &err) && picture_is(7, 20, 10, buffer);
		decoder_release(d, job);
		free(job);
	}
	is(right, n, "the images moved out are right");
	decoder_close(d, &idle);
	/* and one that leaves while its images are on their way */
	for (int i = 0; i < 5; i++)
		decoder_submit(d, &idle, job_for(b), b.data, &err);
	decoder_close(d, &idle);
	f.right = 0;
	feed_many(&f);
	is(f.right, 50, "a queue that left does no harm");
	free(b.data);
	data_decoder_free(d);
}

/* Larger than a small slot's pixels, and larger than its bytes. */
static void test_large(void)
{
	struct data_decoder *d = create(2, true, 4000);
	struct decode_queue q = {0};
	uint8_t *noise = malloc(1500 * 1000 * 3), *back = malloc(1500 * 1000 * 3);
	uint64_t seed = 3;
	struct bytes flat = picture(1, 1500, 1000), big;
	struct decode_job *job = job_for(flat);
	struct err err;

	for (int i = 0; i < 1500 * 1000 * 3; i++)
		noise[i] = (uint8_t)next_random(&seed);
	big = make_png(1500, 1000, PNG_COLOR_TYPE_RGB, false, noise);
	ok(flat.n < DECODER_SMALL && big.n > DECODER_SMALL, "a small and a large file of 4.5 MB");
	submit(d, &q, job, flat.data, &err);
	job = fetch(d, &q, &err);
	is(job->result.code, IMAGE_TOO_LARGE, "too large for a small slot");
	is(decoder_again(d, &q, job, &err), 0, "again, in a large one");
	job = fetch(d, &q, &err);
	ok(job->result.code == IMAGE_OK && !decoder_pixels(d, job, back, &err) &&
		   picture_is(1, 1500, 1000, back),
	   "right pixels");
	decoder_release(d, job);
	free(job);
	job = job_for(big);
	while (decoder_submit(d, &q, job, big.data, &err) == -EAGAIN)
		decoder_wait(d, &q, DECODE_SLOT_LARGE, &err);
	job = fetch(d, &q, &err);
	ok(job->result.code == IMAGE_OK && !decoder_pixels(d, job, back, &err) &&
		   !memcmp(back, noise, 1500 * 1000 * 3),
	   "a large file at once (%s)", job->result.reason);
	decoder_release(d, job);
	free(job);
	decoder_close(d, &q);
	free(flat.data);
	free(big.data);
	free(noise);
	free(back);
	data_decoder_free(d);
}

static void test_attacks(void)
{
	struct data_decoder *d = create(1, true, 150);
	static const char *const refused[] = {"open", "socket", "exec"};
	struct bytes good = file_read(GOLDEN, "rgb.png");
	struct image_result r;
	uint64_t begin;
	bool crash;

	r = attack(d, "crash", &crash);
	ok(r.code == IMAGE_BAD && crash && strstr(r.reason, "ended the decoder"),
	   "an image that crashes: %s", r.reason);
	is(one(d, good, &crash).code, IMAGE_OK, "the next image finds a new worker");
	begin = pool_now();
	r = attack(d, "hang", &crash);
	ok(r.code == IMAGE_BAD && crash, "an image that hangs: %s", r.reason);
	ok(pool_now() - begin < 1400, "ended by the processor time it took (%llu ms)",
	   (unsigned long long)(pool_now() - begin));
	like(r.reason, "took the decoder more than 150 ms", "the time is named");
	r = attack(d, "sleep", &crash);
	ok(r.code == IMAGE_BAD && crash && strstr(r.reason, "150 ms"), "one that sleeps: %s",
	   r.reason);
	for (int i = 0; i < 3; i++) {
		r = attack(d, refused[i], &crash);
		ok(r.code == IMAGE_BAD && crash && strstr(r.reason, "signal 31"),
		   "the sandbox ends %s: %s", refused[i], r.reason);
	}
	r = attack(d, "memory", &crash);
	ok(!crash && strstr(r.reason, "test: refused"), "a terabyte of memory: %s", r.reason);
	is(one(d, good, &crash).code, IMAGE_OK, "and images still decode");
	data_decoder_free(d);

	/* the test can fail: without the filter the same calls succeed, but no descriptor is left
	 */
	d = create(1, false, 150);
	r = attack(d, "exec", &crash);
	like(r.reason, "test: done", "without the sandbox the mapping is executable");
	r = attack(d, "open", &crash);
	like(r.reason, "test: refused, errno 24", "no descriptors (RLIMIT_NOFILE) even so");
	data_decoder_free(d);
	free(good.data);
}

/* Images behind a crash in the same queue are decoded by the next worker. */
static void test_crash_in_queue(void)
{
	struct data_decoder *d = create(1, true, 2000);
	struct decode_queue q = {0};
	struct bytes good = picture(5, 8, 8), evil = {(uint8_t *)"CNNTEST:crash", 13};
	struct decode_job *job;
	int crashes = 0, right = 0;
	uint8_t buffer[8 * 8 * 3];
	struct err err;

	for (int i = 0; i < 7; i++)
		submit(d, &q, job_for(i == 3 ? evil : good), i == 3 ? evil.data : good.data, &err);
	while (q.in_flight && (job = fetch(d, &q, &err))) {
		crashes += job->crash;
		right += job->result.code == IMAGE_OK && !decoder_pixels(d, job, buffer, &err) &&
			 picture_is(5, 8, 8, buffer);
		decoder_release(d, job);
		free(job);
	}
	ok(crashes == 1 && right == 6, "one crash, six good images around it");
	decoder_close(d, &q);
	free(good.data);
	data_decoder_free(d);
}

/* A worker that writes nonsense into the control page. */
static void test_lies(void)
{
	struct data_decoder *d = create(1, true, 2000);
	struct bytes good = picture(5, 8, 8);
	bool crash;

	is(one(d, good, &crash).code, IMAGE_OK, "a worker runs");
	atomic_store(&d->worker[0].control->done, 12345);
	is(one(d, good, &crash).code, IMAGE_OK,
	   "a count of done that cannot be: worker replaced before the image");
	free(good.data);
	data_decoder_free(d);
}

static bool gone(pid_t pid)
{
	struct timespec pause = {0, 10000000};

	for (int i = 0; i < 500; i++) {
		if (kill(pid, 0) && errno == ESRCH)
			return true;
		nanosleep(&pause, NULL);
	}
	return false;
}

static void test_ends(void)
{
	struct data_decoder *d = create(1, true, 2000);
	struct bytes good = picture(5, 8, 8);
	struct decode_queue q = {0};
	struct decode_job *job;
	struct err err = {0};
	bool crash;
	pid_t worker, helper;

	is(one(d, good, &crash).code, IMAGE_OK, "a worker runs");
	worker = atomic_load(&d->status[0].pid);
	ok(worker > 0 && !kill(worker, 0), "it has a process");
	kill(worker, SIGKILL);
	gone(worker);
	is(one(d, good, &crash).code, IMAGE_OK, "killed between images: no image is blamed");
	worker = atomic_load(&d->status[0].pid);
	helper = d->zygote.pid;
	kill(helper, SIGKILL);
	waitpid(helper, NULL, 0);
	ok(gone(worker), "workers end with the helper");
	job = job_for(good);
	if (!submit(d, &q, job, good.data, &err)) {
		ok(!fetch(d, &q, &err), "no image comes back");
	} else {
		ok(true, "no image is taken");
		free(job);
	}
	/* a worker that died with its helper shows only when its time is up */
	like(err.message, "helper process of cnnd is gone", "the error says so");
	decoder_close(d, &q);
	data_decoder_free(d);

	d = create(1, true, 2000);
	one(d, good, &crash);
	worker = atomic_load(&d->status[0].pid);
	data_decoder_free(d);
	ok(gone(worker), "workers end with the decoder");
	free(good.data);
}

int main(void)
{
	test_many();
	test_idle_queue();
	test_large();
	test_attacks();
	test_crash_in_queue();
	test_lies();
	test_ends();
	return done();
}
