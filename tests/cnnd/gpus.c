// SPDX-License-Identifier: MIT
/*
 * gpus.c: looking for GPUs with a driver that crashes, hangs or lies must not take the daemon
 * along; what `devices` chooses among those found; what a job may ask for. The driver is
 * bad_driver.c.
 */
#include <errno.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include "../../userspace/cnnd/devices.h"
#include "lab.h"

static struct gpus found;

static int find(const char *how, unsigned int ms, struct err *err)
{
	memset(err, 0, sizeof(*err));
	setenv("BAD_DRIVER", how, 1);
	setenv("CNN_CUDA_LIBRARY", BAD_DRIVER, 1);
	return gpus_find(ms, &found, err);
}

static void test_find(void)
{
	struct err err;
	double start;

	is(find("none", 5000, &err), 0, "a driver without GPUs");
	is(found.n, 0, "  none");
	is(find("three", 5000, &err), 0, "three GPUs");
	ok(found.n == 3 && found.gpu[2].index == 2 && found.gpu[2].total_bytes == 1u << 30,
	   "  and what they are");
	is(find("crash", 5000, &err), -EIO, "a driver that crashes");
	like(err.message, "crashed (Segmentation fault)", "  it is said");
	is(find("exit", 5000, &err), -EIO, "one that ends the process");
	like(err.message, "ended without an answer", "  it is said");
	is(find("fail", 5000, &err), -EIO, "one that fails");
	like(err.message, "older than the library", "  with its own words");
	start = lab_now();
	is(find("hang", 300, &err), -ETIMEDOUT, "one that hangs");
	like(err.message, "no answer for 300 ms", "  it is said");
	ok(lab_now() - start < 3, "  after the deadline, %.2f s", lab_now() - start);
	ok(waitpid(-1, NULL, WNOHANG) < 0 && errno == ECHILD, "  and no child is left");
	setenv("CNN_CUDA_LIBRARY", "/nonexistent/libcnn_cuda.so", 1);
	is(gpus_find(5000, &found, &err), -ENOENT, "no CUDA back end is installed");
	is(found.n, 0, "  no GPU");
}

/* ---- choice ---- */

static struct devices *choose(const char *text, const struct err *why, struct err *err)
{
	struct conf_devices conf = {.kind = CONF_DEVICES_AUTO};
	struct devices *d = NULL;

	if (!strncmp(text, "cuda", 4)) {
		conf.kind = CONF_DEVICES_GPU;
		if (gpu_list_parse(text, &conf.gpus))
			BAIL("%s", text);
	} else if (!strncmp(text, "cpu", 3)) {
		conf.kind = CONF_DEVICES_CPU;
		conf.threads = 1;
	}
	memset(err, 0, sizeof(*err));
	return devices_open(&conf, &found, why, 2, &d, err) ? NULL : d;
}

static void chosen(const char *text, const char *name)
{
	struct err err;
	struct devices *d = choose(text, NULL, &err);

	is_str(d ? devices_name(d) : err.message, name, text);
	devices_close(d);
}

static void test_choice(void)
{
	struct err err, why = {.kind = ERR_INTERNAL, .message = "it crashed"};
	struct device_view v;
	struct devices *d;

	find("three", 5000, &err);
	chosen("auto", "cuda:0,1,2");
	chosen("cuda:all", "cuda:0,1,2");
	chosen("cuda:2,0", "cuda:2,0");
	chosen("cuda:3", "cuda:3 is asked for, and this host has 3 GPUs, from 0");
	chosen("cpu:1", "cpu:1");
	d = choose("cuda:2", NULL, &err);
	ok(devices_view(d, 0, &v) && v.index == 2 && v.memory == 1u << 30 &&
		   v.free_memory == v.memory && !v.jobs,
	   "a view of one");
	is_str(v.name, "cuda:2", "  its name");
	is_str(v.kind, "cuda", "  its kind");
	like(v.info, "GPU of a test, sm_80", "  what it is");
	ok(!devices_view(d, 1, &v), "  and no second one");
	devices_close(d);
	memset(&found, 0, sizeof(found));
	chosen("auto", "cpu:2");
	chosen("cuda:all", "GPUs are asked for, and this host has none");
	ok(!choose("cuda:0", &why, &err), "GPUs by name, and looking for them failed");
	is_str(err.message, "GPUs are asked for: it crashed", "  says why");
	d = choose("auto", &why, &err);
	ok(d && !devices_are_gpus(d), "auto does without");
	devices_close(d);
}

/* ---- a job's share ---- */

static void asks(struct devices *d, struct device_ask ask, const char *wanted)
{
	struct device_use use = {.n = 0};
	struct err err = {0};
	int rc = devices_use(d, &ask, &use, &err);

	like(rc ? err.message : use.name, wanted, wanted);
	if (rc)
		is(err.kind, ERR_PARAM, "  ERR_PARAM");
	devices_unuse(&use);
}

static void test_ask(void)
{
	struct device_use use, second;
	struct err err;
	struct devices *d;

	find("three", 5000, &err);
	d = choose("cuda:all", NULL, &err);
	asks(d, (struct device_ask){.devices = NULL}, "cuda:0,1,2");
	asks(d, (struct device_ask){.devices = "auto"}, "cuda:0,1,2");
	asks(d, (struct device_ask){.devices = "CUDA:ALL"}, "cuda:0,1,2");
	asks(d, (struct device_ask){.devices = "cuda:2,1"}, "cuda:2,1");
	asks(d, (struct device_ask){.devices = "cuda:3"}, "this host gives cuda:0,1,2");
	asks(d, (struct device_ask){.devices = "cpu:1"}, "this host gives cuda:0,1,2");
	asks(d, (struct device_ask){.devices = "none"}, "a job needs a device");
	asks(d, (struct device_ask){.backend = "ref"}, "this host computes on cuda:0,1,2");
	asks(d, (struct device_ask){.replicas = 4}, "replicas is 4, and a GPU runs one");
	asks(d, (struct device_ask){.devices = "cuda:1", .replicas = 2}, "this job has 1 GPUs");
	asks(d, (struct device_ask){.replicas = 2}, "cuda:0,1");
	asks(d, (struct device_ask){.inference = true, .replicas = 9}, "cuda:0");

	is(devices_use(d, &(struct device_ask){.replicas = 1}, &use, &err), 0, "one GPU");
	is(devices_reserve(&use, 600u << 20, false, &err), 0, "600 MB of it");
	is(devices_reserve(&use, 1000u << 20, true, &err), -ENOMEM,
	   "1000 MB, and an eighth is left for others");
	is(devices_reserve(&use, 700u << 20, true, &err), 0, "700 MB instead");
	is(devices_use(d, &(struct device_ask){.devices = "cuda:0"}, &second, &err), 0, "again");
	is(devices_reserve(&second, 700u << 20, false, &err), -ENOMEM, "700 MB more are too many");
	like(err.message, "cuda:0 has not enough memory: needed 734003200 bytes, free 339738624",
	     "  with figures");
	is(devices_start(&use, &err), -EIO, "a GPU that does not open");
	like(err.message, "cuda:0 cannot be opened: this GPU does not open", "  says so");
	devices_unuse(&second);
	devices_unuse(&use);
	devices_close(d);

	d = choose("cpu:1", NULL, &err);
	asks(d, (struct device_ask){.devices = "cuda:0"}, "this host has cpu:1");
	asks(d, (struct device_ask){.precision = BACKEND_PRECISION_BF16}, "has f32 alone");
	asks(d, (struct device_ask){.replicas = 3}, "cpu:1");
	devices_close(d);
}

/* ---- the daemon ---- */

static void test_daemon(void)
{
	struct lab lab;
	int status;

	setenv("CNN_CUDA_LIBRARY", BAD_DRIVER, 1);
	setenv("BAD_DRIVER", "crash", 1);
	lab_open(&lab, "devices = auto");
	ok(lab_logged(&lab,
		      "no GPU is used: looking for GPUs: the CUDA driver or a library crashed", 1),
	   "with a driver that crashes the daemon starts, and says so");
	ok(lab_logged(&lab, "device cpu:", 1), "  and computes on the processor");
	is(lab_stop(&lab, SIGTERM, 10), 0, "  it ends");
	lab_configure(&lab, "devices = cuda:all");
	lab_spawn(&lab);
	status = lab_stop(&lab, 0, 20);
	ok(WIFEXITED(status) && WEXITSTATUS(status) == 1, "GPUs asked for: it does not start");
	ok(lab_logged(&lab, "GPUs are asked for: looking for GPUs: the CUDA driver", 1),
	   "  and says why");
	setenv("BAD_DRIVER", "three", 1);
	lab_configure(&lab, "devices = cuda:0,2");
	lab_spawn(&lab);
	ok(lab_wait_ready(&lab, 10), "with GPUs it starts");
	ok(lab_logged(&lab, "device cuda:0,2 (GPU of a test, sm_80, 1024 MB, 1 more)", 1),
	   "  names them");
	lab_close(&lab);
}

int main(void)
{
	test_find();
	test_choice();
	test_ask();
	test_daemon();
	return done();
}
