// SPDX-License-Identifier: GPL-2.0
/*
 * cnnring_planted.c: for tests only: commits, when it is loaded, the fault that its parameter `bug`
 * names. A test bed whose detectors say nothing about it proves nothing (tests/vm/init). Not to be
 * loaded into a kernel that anybody needs.
 */
#include <linux/delay.h>
#include <linux/err.h>
#include <linux/kthread.h>
#include <linux/module.h>
#include <linux/mutex.h>
#include <linux/slab.h>
#include <linux/spinlock.h>
#include <linux/string.h>

static char *bug = "";
module_param(bug, charp, 0400);
MODULE_PARM_DESC(bug, "use_after_free, out_of_bounds, shift, lock_order, sleep, leak or race");

static int planted_use_after_free(void)
{
	u8 *p = kmalloc(64, GFP_KERNEL);

	if (!p)
		return -ENOMEM;
	kfree(p);
	OPTIMIZER_HIDE_VAR(p);
	return READ_ONCE(p[8]) & 0;
}

static int planted_out_of_bounds(void)
{
	u8 *p = kmalloc(64, GFP_KERNEL), byte;

	if (!p)
		return -ENOMEM;
	OPTIMIZER_HIDE_VAR(p);
	byte = READ_ONCE(p[64]);
	kfree(p);
	return byte & 0;
}

static int planted_shift(void)
{
	int by = 40;

	OPTIMIZER_HIDE_VAR(by);
	return (1 << by) & 0;
}

static int planted_lock_order(void)
{
	static DEFINE_MUTEX(one);
	static DEFINE_MUTEX(two);

	mutex_lock(&one);
	mutex_lock(&two);
	mutex_unlock(&two);
	mutex_unlock(&one);
	mutex_lock(&two);
	mutex_lock(&one);
	mutex_unlock(&one);
	mutex_unlock(&two);
	return 0;
}

static int planted_sleep(void)
{
	static DEFINE_SPINLOCK(lock);

	spin_lock(&lock);
	msleep(20);
	spin_unlock(&lock);
	return 0;
}

/* Many, because an address may linger in a register or on a stack. */
static int planted_leak(void)
{
	int i;

	for (i = 0; i < 64; i++) {
		u8 *p = kmalloc(200 + i, GFP_KERNEL);

		OPTIMIZER_HIDE_VAR(p);
	}
	return 0;
}

static unsigned long planted_word;

static int planted_runner(void *unused)
{
	while (!kthread_should_stop()) {
		planted_word++;
		cond_resched();
	}
	return 0;
}

static int planted_race(void)
{
	struct task_struct *task[2];
	int i;

	for (i = 0; i < 2; i++)
		task[i] = kthread_run(planted_runner, NULL, "planted/%d", i);
	msleep(3000);
	for (i = 0; i < 2; i++)
		if (!IS_ERR(task[i]))
			kthread_stop(task[i]);
	return 0;
}

static const struct {
	const char *name;
	int (*commit)(void);
} planted[] = {
	{"use_after_free", planted_use_after_free},
	{"out_of_bounds", planted_out_of_bounds},
	{"shift", planted_shift},
	{"lock_order", planted_lock_order},
	{"sleep", planted_sleep},
	{"leak", planted_leak},
	{"race", planted_race},
};

static int __init planted_init(void)
{
	int i;

	for (i = 0; i < ARRAY_SIZE(planted); i++)
		if (!strcmp(bug, planted[i].name))
			return planted[i].commit();
	return -EINVAL;
}

static void __exit planted_exit(void)
{
}

module_init(planted_init);
module_exit(planted_exit);

MODULE_DESCRIPTION("Planted bugs for the test beds of cnnring");
MODULE_LICENSE("GPL");
