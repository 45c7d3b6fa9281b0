/* SPDX-License-Identifier: MIT */
/*
 * conf.h: the configuration file: lines of `key = value`, '#' starts a comment. Every key has a
 * default and is marked as one that a reload (SIGHUP) changes or that needs a restart. Unknown
 * keys, keys given twice and bad values are errors with file and line. cnnd.conf(5) lists the
 * keys; a test compares it with the table in conf.c.
 */
#ifndef CNND_CONF_H
#define CNND_CONF_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "../base/gpulist.h"

#define CONF_DEFAULT_FILE "/etc/cnnd.conf"
#define CONF_MAX_UIDS 64
#define CONF_PATH 1024
#define CONF_ADDRESS 64 /* numeric, with the NUL */
#define CONF_LIST 256

struct conf_uids {
	uid_t uid[CONF_MAX_UIDS];
	unsigned int n;
};

/* Bytes, or a share of something that conf.c does not know. */
struct conf_amount {
	uint64_t value;
	bool percent;
};

struct conf_ports {
	uint16_t first, last; /* 0, 0: any */
};

enum conf_transport { CONF_TRANSPORT_TCP = 0, CONF_TRANSPORT_UCX = 1 };

enum conf_ring { CONF_RING_AUTO = 0, CONF_RING_MEMFD = 1, CONF_RING_DEVICE = 2 };

enum conf_devices_kind {
	CONF_DEVICES_AUTO = 0, /* all GPUs that are found, else every core */
	CONF_DEVICES_NONE,
	CONF_DEVICES_CPU,
	CONF_DEVICES_GPU
};

struct conf_devices {
	enum conf_devices_kind kind;
	uint32_t threads; /* of CONF_DEVICES_CPU */
	struct gpu_list gpus;
};

struct conf {
	char socket[108]; /* sun_path */
	char socket_group[64];
	gid_t socket_gid; /* (gid_t)-1: the process's own */
	char state_dir[CONF_PATH], spill_dir[CONF_PATH];
	uint64_t spill_max, spill_min_free;
	struct conf_uids database_uids, admin_uids;
	char devices[64];
	struct conf_devices device; /* what it says */
	uint32_t decode_workers, image_timeout;
	uint64_t max_image_pixels, max_image_bytes;
	bool decode_sandbox;
	uint32_t ring; /* enum conf_ring */
	uint64_t ring_bytes, ring_total, max_value;
	struct conf_amount memory, memory_per_role;
	uint32_t max_trainings, max_predictions, max_jobs_per_role, max_queue;
	uint32_t max_connections, max_connections_per_uid;
	uint32_t job_time_max, orphan_timeout, stop_timeout;
	char merge_listen[CONF_ADDRESS];
	struct conf_ports merge_ports;
	bool merge_mac;
	uint32_t merge_timeout, rejoin_timeout;
	char merge_congestion[16];				     /* "": the system's */
	uint32_t merge_transport;				     /* enum conf_transport */
	char merge_ucx_tls[CONF_LIST], merge_ucx_devices[CONF_LIST]; /* "": UCX's own choice */
	bool debug;
};

/* Called for every fault found; line 0: the fault is of a default. */
typedef void (*conf_report_fn)(void *context, const char *file, unsigned int line,
			       const char *text);

/* Defaults alone. 0, or -EINVAL after reporting (a default that cannot hold on this host). */
int conf_defaults(struct conf *out, conf_report_fn report, void *context);
/* Defaults, then the file. *out is set only when all is well; else -EINVAL, or the errno of
 * opening the file, after reporting. */
int conf_read(const char *file, struct conf *out, conf_report_fn report, void *context);
/*
 * Reload: *current takes the reload keys of *fresh. Calls report(context, file, 0, text) for each
 * restart key that differs and therefore keeps its old value.
 */
void conf_reload(struct conf *current, const struct conf *fresh, const char *file,
		 conf_report_fn report, void *context);

/* The table, for tests and documentation. NULL past the end. */
struct conf_key_info {
	const char *name, *value; /* value: the default as written in a file */
	bool reload;
};
bool conf_key(unsigned int i, struct conf_key_info *out);

bool conf_has_uid(const struct conf_uids *uids, uid_t uid);
uint64_t conf_amount(const struct conf_amount *amount, uint64_t whole);

#endif
