// SPDX-License-Identifier: GPL-2.0
/*
 * cnnring_test.c: for tests only: does what an accelerator's driver would do. Pins user pages for
 * long, or imports a dma-buf, keeps them as long as its file is open, and reads or writes them.
 * And a planted warning, which the test bed has to notice.
 */
#include <linux/device.h>
#include <linux/dma-buf.h>
#include <linux/dma-mapping.h>
#include <linux/err.h>
#include <linux/miscdevice.h>
#include <linux/mm.h>
#include <linux/module.h>
#include <linux/platform_device.h>
#include <linux/slab.h>
#include <linux/uaccess.h>

#include "../../../kmod/compat.h"
#include "cnnring_test.h"

#define MAX_PAGES 16

struct tester {
	struct page *pages[MAX_PAGES];
	int n_pages;
	struct dma_buf *dmabuf;
	struct dma_buf_attachment *attachment;
	struct sg_table *table;
#ifdef cnnring_map
	struct cnnring_map map;
#else
	void *map;
#endif
	bool mapped;
};

static struct platform_device *tester_device;

#if !IS_ENABLED(CONFIG_DMA_SHARED_BUFFER)
static void *tester_address(struct tester *t)
{
	return NULL;
}
#elif defined(cnnring_map)
static int tester_vmap(struct tester *t)
{
	return dma_buf_vmap(t->dmabuf, &t->map);
}

static void tester_vunmap(struct tester *t)
{
	dma_buf_vunmap(t->dmabuf, &t->map);
}

static void *tester_address(struct tester *t)
{
	return t->map.vaddr;
}
#else
static int tester_vmap(struct tester *t)
{
	t->map = dma_buf_vmap(t->dmabuf);
	return t->map ? 0 : -ENOMEM;
}

static void tester_vunmap(struct tester *t)
{
	dma_buf_vunmap(t->dmabuf, t->map);
}

static void *tester_address(struct tester *t)
{
	return t->map;
}
#endif

static int tester_pin(struct tester *t, struct cnnring_test_pin __user *user)
{
	struct cnnring_test_pin arg;
	unsigned int flags = FOLL_LONGTERM;
	int n;

	if (copy_from_user(&arg, user, sizeof(arg)))
		return -EFAULT;
	if (t->n_pages || !arg.pages || arg.pages > MAX_PAGES)
		return -EINVAL;
	n = pin_user_pages_fast(arg.address, arg.pages, flags | (arg.write ? FOLL_WRITE : 0),
				t->pages);
	if (n < 0)
		return n;
	t->n_pages = n;
	return n;
}

static void tester_unpin(struct tester *t)
{
	unpin_user_pages(t->pages, t->n_pages);
	t->n_pages = 0;
}

/* The first byte of a pinned page, or of the imported buffer. */
static int tester_poke(struct tester *t, struct cnnring_test_poke __user *user)
{
	struct cnnring_test_poke arg;
	u8 *at;

	if (copy_from_user(&arg, user, sizeof(arg)))
		return -EFAULT;
	if (t->mapped && arg.offset < t->dmabuf->size) {
		at = (u8 *)tester_address(t) + arg.offset;
		arg.old = *at;
		if (arg.write)
			*at = arg.value;
	} else if (arg.offset < (u64)t->n_pages << PAGE_SHIFT) {
		at = page_address(t->pages[arg.offset >> PAGE_SHIFT]); /* 64 bit only */
		arg.old = at[offset_in_page(arg.offset)];
		if (arg.write)
			at[offset_in_page(arg.offset)] = arg.value;
	} else {
		return -EINVAL;
	}
	return copy_to_user(user, &arg, sizeof(arg)) ? -EFAULT : 0;
}

#if IS_ENABLED(CONFIG_DMA_SHARED_BUFFER)
static void tester_drop(struct tester *t)
{
	if (t->mapped)
		tester_vunmap(t);
	t->mapped = false;
	if (!IS_ERR_OR_NULL(t->table))
		dma_buf_unmap_attachment(t->attachment, t->table, DMA_BIDIRECTIONAL);
	t->table = NULL;
	if (!IS_ERR_OR_NULL(t->attachment))
		dma_buf_detach(t->dmabuf, t->attachment);
	t->attachment = NULL;
	if (!IS_ERR_OR_NULL(t->dmabuf))
		dma_buf_put(t->dmabuf);
	t->dmabuf = NULL;
}

/* Attach, map, vmap, a look by the processor; the number of segments. */
static int tester_import(struct tester *t, int fd)
{
	int error;

	if (t->dmabuf)
		return -EBUSY;
	t->dmabuf = dma_buf_get(fd);
	if (IS_ERR(t->dmabuf)) {
		error = PTR_ERR(t->dmabuf);
		goto drop;
	}
	t->attachment = dma_buf_attach(t->dmabuf, &tester_device->dev);
	error = PTR_ERR_OR_ZERO(t->attachment);
	if (error)
		goto drop;
	t->table = dma_buf_map_attachment(t->attachment, DMA_BIDIRECTIONAL);
	error = PTR_ERR_OR_ZERO(t->table);
	if (error)
		goto drop;
	error = dma_buf_begin_cpu_access(t->dmabuf, DMA_BIDIRECTIONAL);
	if (!error)
		error = dma_buf_end_cpu_access(t->dmabuf, DMA_BIDIRECTIONAL);
	if (!error)
		error = tester_vmap(t);
	if (error)
		goto drop;
	t->mapped = true;
	return t->table->orig_nents;
drop:
	tester_drop(t);
	return error;
}
#else
static void tester_drop(struct tester *t)
{
}

static int tester_import(struct tester *t, int fd)
{
	return -ENOTTY;
}
#endif

static long tester_ioctl(struct file *file, unsigned int cmd, unsigned long arg)
{
	struct tester *t = file->private_data;

	switch (cmd) {
	case CNNRING_TEST_PIN:
		return tester_pin(t, (void __user *)arg);
	case CNNRING_TEST_POKE:
		return tester_poke(t, (void __user *)arg);
	case CNNRING_TEST_IMPORT:
		return tester_import(t, (int)arg);
	case CNNRING_TEST_WARN:
		WARN(1, "planted by cnnring_test\n");
		return 0;
	}
	return -ENOTTY;
}

static int tester_open(struct inode *inode, struct file *file)
{
	struct tester *t = kzalloc(sizeof(*t), GFP_KERNEL);

	file->private_data = t;
	return t ? 0 : -ENOMEM;
}

static int tester_release(struct inode *inode, struct file *file)
{
	struct tester *t = file->private_data;

	tester_drop(t);
	tester_unpin(t);
	kfree(t);
	return 0;
}

static const struct file_operations tester_fops = {
	.owner		= THIS_MODULE,
	.open		= tester_open,
	.release	= tester_release,
	.unlocked_ioctl	= tester_ioctl,
};

static struct miscdevice tester_misc = {
	.minor	= MISC_DYNAMIC_MINOR,
	.name	= "cnnring_test",
	.fops	= &tester_fops,
	.mode	= 0600,
};

static int __init tester_init(void)
{
	int error;

	tester_device = platform_device_register_simple("cnnring_test", -1, NULL, 0);
	if (IS_ERR(tester_device))
		return PTR_ERR(tester_device);
	/* a kernel without DMA has no mask either */
	error = IS_ENABLED(CONFIG_HAS_DMA) ?
			dma_coerce_mask_and_coherent(&tester_device->dev, DMA_BIT_MASK(64)) : 0;
	if (!error)
		error = misc_register(&tester_misc);
	if (error)
		platform_device_unregister(tester_device);
	return error;
}

static void __exit tester_exit(void)
{
	misc_deregister(&tester_misc);
	platform_device_unregister(tester_device);
}

module_init(tester_init);
module_exit(tester_exit);

MODULE_DESCRIPTION("Tests of cnnring");
MODULE_LICENSE("GPL");
CNNRING_IMPORT_NS(DMA_BUF);
