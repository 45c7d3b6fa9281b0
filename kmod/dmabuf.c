// SPDX-License-Identifier: GPL-2.0
/*
 * dmabuf.c: the data area as a dma-buf, for accelerators and network cards that import one. The
 * dma-buf holds the ring, so its pages stay whatever becomes of the ends; nothing is ever taken
 * back. There is no mmap: user space maps the ring itself.
 */
#include <linux/dma-buf.h>
#include <linux/dma-mapping.h>
#include <linux/err.h>
#include <linux/list.h>
#include <linux/mutex.h>
#include <linux/scatterlist.h>
#include <linux/slab.h>
#include <linux/vmalloc.h>

#include "cnnring.h"
#include "compat.h"

struct cnnring_buffer {
	struct cnnring *ring;
	struct mutex lock;		/* importers */
	struct list_head importers;
	void *address;			/* vmap; the dma-buf core counts its users */
};

struct cnnring_importer {
	struct list_head list;
	struct device *device;
	struct sg_table table;
	bool mapped;
};

static int cnnring_dmabuf_attach(struct dma_buf *dmabuf, struct dma_buf_attachment *attachment)
{
	struct cnnring_buffer *buffer = dmabuf->priv;
	struct cnnring *ring = buffer->ring;
	struct cnnring_importer *importer = kzalloc(sizeof(*importer), GFP_KERNEL);
	int error;

	if (!importer)
		return -ENOMEM;
	error = sg_alloc_table_from_pages(&importer->table, ring->pages + CNNRING_DATA_PAGE,
					  ring->n_pages - CNNRING_DATA_PAGE, 0, ring->data_bytes,
					  GFP_KERNEL);
	if (error) {
		kfree(importer);
		return error;
	}
	importer->device = attachment->dev;
	attachment->priv = importer;
	mutex_lock(&buffer->lock);
	list_add(&importer->list, &buffer->importers);
	mutex_unlock(&buffer->lock);
	return 0;
}

static void cnnring_dmabuf_detach(struct dma_buf *dmabuf, struct dma_buf_attachment *attachment)
{
	struct cnnring_buffer *buffer = dmabuf->priv;
	struct cnnring_importer *importer = attachment->priv;

	mutex_lock(&buffer->lock);
	list_del(&importer->list);
	mutex_unlock(&buffer->lock);
	sg_free_table(&importer->table);
	kfree(importer);
}

static struct sg_table *cnnring_dmabuf_map(struct dma_buf_attachment *attachment,
					   enum dma_data_direction direction)
{
	struct cnnring_importer *importer = attachment->priv;
	int error = dma_map_sgtable(attachment->dev, &importer->table, direction, 0);

	if (error)
		return ERR_PTR(error);
	WRITE_ONCE(importer->mapped, true);
	return &importer->table;
}

static void cnnring_dmabuf_unmap(struct dma_buf_attachment *attachment, struct sg_table *table,
				 enum dma_data_direction direction)
{
	struct cnnring_importer *importer = attachment->priv;

	WRITE_ONCE(importer->mapped, false);
	dma_unmap_sgtable(attachment->dev, table, direction, 0);
}

static int cnnring_dmabuf_begin(struct dma_buf *dmabuf, enum dma_data_direction direction)
{
	struct cnnring_buffer *buffer = dmabuf->priv;
	struct cnnring_importer *importer;

	if (mutex_lock_interruptible(&buffer->lock))
		return -EINTR;
	list_for_each_entry(importer, &buffer->importers, list)
		if (READ_ONCE(importer->mapped))
			dma_sync_sgtable_for_cpu(importer->device, &importer->table, direction);
	mutex_unlock(&buffer->lock);
	return 0;
}

static int cnnring_dmabuf_end(struct dma_buf *dmabuf, enum dma_data_direction direction)
{
	struct cnnring_buffer *buffer = dmabuf->priv;
	struct cnnring_importer *importer;

	if (mutex_lock_interruptible(&buffer->lock))
		return -EINTR;
	list_for_each_entry(importer, &buffer->importers, list)
		if (READ_ONCE(importer->mapped))
			dma_sync_sgtable_for_device(importer->device, &importer->table, direction);
	mutex_unlock(&buffer->lock);
	return 0;
}

static void *cnnring_vmap(struct cnnring_buffer *buffer)
{
	struct cnnring *ring = buffer->ring;

	return vmap(ring->pages + CNNRING_DATA_PAGE, ring->n_pages - CNNRING_DATA_PAGE, VM_MAP,
		    PAGE_KERNEL);
}

#ifdef cnnring_map
static int cnnring_dmabuf_vmap(struct dma_buf *dmabuf, struct cnnring_map *map)
{
	struct cnnring_buffer *buffer = dmabuf->priv;
	void *address = cnnring_vmap(buffer);

	if (!address)
		return -ENOMEM;
	buffer->address = address;
	cnnring_map_set(map, address);
	return 0;
}

static void cnnring_dmabuf_vunmap(struct dma_buf *dmabuf, struct cnnring_map *map)
{
	struct cnnring_buffer *buffer = dmabuf->priv;

	vunmap(buffer->address);
	buffer->address = NULL;
	cnnring_map_clear(map);
}
#else
static void *cnnring_dmabuf_vmap(struct dma_buf *dmabuf)
{
	return cnnring_vmap(dmabuf->priv);
}

static void cnnring_dmabuf_vunmap(struct dma_buf *dmabuf, void *address)
{
	vunmap(address);
}
#endif

static void cnnring_dmabuf_release(struct dma_buf *dmabuf)
{
	struct cnnring_buffer *buffer = dmabuf->priv;

	cnnring_put(buffer->ring);
	mutex_destroy(&buffer->lock);
	kfree(buffer);
}

static const struct dma_buf_ops cnnring_dmabuf_ops = {
	.attach			= cnnring_dmabuf_attach,
	.detach			= cnnring_dmabuf_detach,
	.map_dma_buf		= cnnring_dmabuf_map,
	.unmap_dma_buf		= cnnring_dmabuf_unmap,
	.begin_cpu_access	= cnnring_dmabuf_begin,
	.end_cpu_access		= cnnring_dmabuf_end,
	.vmap			= cnnring_dmabuf_vmap,
	.vunmap			= cnnring_dmabuf_vunmap,
	.release		= cnnring_dmabuf_release,
};

int cnnring_export_fd(struct cnnring *ring)
{
	DEFINE_DMA_BUF_EXPORT_INFO(info);
	struct cnnring_buffer *buffer = kzalloc(sizeof(*buffer), GFP_KERNEL_ACCOUNT);
	struct dma_buf *dmabuf;
	int fd;

	if (!buffer)
		return -ENOMEM;
	mutex_init(&buffer->lock);
	INIT_LIST_HEAD(&buffer->importers);
	buffer->ring = ring;
	info.ops = &cnnring_dmabuf_ops;
	info.size = ring->data_bytes;
	info.flags = O_RDWR;
	info.priv = buffer;
	dmabuf = dma_buf_export(&info);
	if (IS_ERR(dmabuf)) {
		kfree(buffer);
		return PTR_ERR(dmabuf);
	}
	cnnring_get(ring); /* given back by release */
	fd = dma_buf_fd(dmabuf, O_CLOEXEC);
	if (fd < 0)
		dma_buf_put(dmabuf);
	else
		atomic64_inc(&cnnring_stats.exports);
	return fd;
}

CNNRING_IMPORT_NS(DMA_BUF);
