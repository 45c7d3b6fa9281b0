// SPDX-License-Identifier: GPL-2.0
/* main.c: the module: parameters, statistics in debugfs, begin and end. */
#include <linux/debugfs.h>
#include <linux/init.h>
#include <linux/mm.h>
#include <linux/module.h>
#include <linux/seq_file.h>

#include "cnnring.h"
#include "compat.h"

#define CREATE_TRACE_POINTS
#include "trace.h"

struct cnnring_stats cnnring_stats;

static unsigned long long total_bytes;
module_param(total_bytes, ullong, 0644);
MODULE_PARM_DESC(total_bytes, "Memory of all rings together; 0 (default): a quarter of the memory");

static unsigned long long ring_bytes_max = CNNRING_MAX_BYTES;
module_param(ring_bytes_max, ullong, 0644);
MODULE_PARM_DESC(ring_bytes_max, "Data area of one ring at most; default 1 GiB");

u64 cnnring_total_max(void)
{
	u64 bytes = READ_ONCE(total_bytes);

	return bytes ? bytes : ((u64)totalram_pages() << PAGE_SHIFT) / 4;
}

u64 cnnring_ring_max(void)
{
	return READ_ONCE(ring_bytes_max);
}

/* ---- debugfs: cnnring/stats for all, cnnring/ring-N for each that has memory ---- */

static struct dentry *cnnring_debugfs;

static int stats_show(struct seq_file *m, void *unused)
{
	seq_printf(m, "rings %lld\n", (long long)atomic64_read(&cnnring_stats.rings));
	seq_printf(m, "bytes %lld\n", (long long)atomic64_read(&cnnring_stats.bytes));
	seq_printf(m, "total_max %llu\n", cnnring_total_max());
	seq_printf(m, "created %lld\n", (long long)atomic64_read(&cnnring_stats.created));
	seq_printf(m, "refused %lld\n", (long long)atomic64_read(&cnnring_stats.refused));
	seq_printf(m, "wakes %lld\n", (long long)atomic64_read(&cnnring_stats.wakes));
	seq_printf(m, "exports %lld\n", (long long)atomic64_read(&cnnring_stats.exports));
	seq_printf(m, "moved %lld\n", (long long)atomic64_read(&cnnring_stats.moved));
	return 0;
}
DEFINE_SHOW_ATTRIBUTE(stats);

static int ring_show(struct seq_file *m, void *unused)
{
	struct cnnring *ring = m->private;
	int i;

	seq_printf(m, "bytes %llu\n", cnnring_bytes(ring));
	seq_printf(m, "data %llu\n", ring->data_bytes);
	seq_printf(m, "huge %u\n", ring->huge_pages);
	seq_printf(m, "moved %llu\n", cnnring_moved(ring));
	for (i = 0; i < 2; i++)
		seq_printf(m, "%s wakes %lld state %#x\n",
			   i == CNNRING_PRODUCER ? "producer" : "consumer",
			   (long long)atomic64_read(&ring->ends[i].wakes),
			   cnnring_end_state(&ring->ends[i]));
	return 0;
}
DEFINE_SHOW_ATTRIBUTE(ring);

void cnnring_debugfs_add(struct cnnring *ring)
{
	char name[24];

	snprintf(name, sizeof(name), "ring-%u", ring->id);
	ring->debugfs = debugfs_create_file(name, 0400, cnnring_debugfs, ring, &ring_fops);
}

/* Waits for readers: the ring may go after it. */
void cnnring_debugfs_del(struct cnnring *ring)
{
	debugfs_remove(ring->debugfs);
}

static int __init cnnring_init(void)
{
	int error;

	cnnring_debugfs = debugfs_create_dir("cnnring", NULL);
	debugfs_create_file("stats", 0400, cnnring_debugfs, NULL, &stats_fops);
	error = cnnring_dev_init();
	if (error)
		debugfs_remove_recursive(cnnring_debugfs);
	return error;
}

static void __exit cnnring_exit(void)
{
	cnnring_dev_exit();
	debugfs_remove_recursive(cnnring_debugfs);
}

module_init(cnnring_init);
module_exit(cnnring_exit);

MODULE_DESCRIPTION("Shared-memory rings between a database backend and cnnd");
MODULE_LICENSE("GPL");
MODULE_VERSION("0.1.0");
