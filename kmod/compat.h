/* SPDX-License-Identifier: GPL-2.0 */
/*
 * compat.h: what differs between kernels, and nowhere else. CNNRING_HAVE_* come from compile probes
 * in Kbuild: distributors move interfaces between versions, so version numbers tell nothing.
 */
#ifndef CNNRING_COMPAT_H
#define CNNRING_COMPAT_H

#include <linux/mm.h>
#include <linux/module.h>

#ifndef CNNRING_HAVE_VM_FLAGS_SET	/* 6.3, and EL 9.5 */
static inline void vm_flags_set(struct vm_area_struct *vma, unsigned long flags)
{
	vma->vm_flags |= flags;
}

static inline void vm_flags_clear(struct vm_area_struct *vma, unsigned long flags)
{
	vma->vm_flags &= ~flags;
}
#endif

/* the argument of a dma-buf's vmap: iosys_map since 5.18, dma_buf_map since 5.11 */
#if defined(CNNRING_HAVE_IOSYS_MAP)
#include <linux/iosys-map.h>
#define cnnring_map		iosys_map
#define cnnring_map_set		iosys_map_set_vaddr
#define cnnring_map_clear	iosys_map_clear
#elif defined(CNNRING_HAVE_DMA_BUF_MAP)
#include <linux/dma-buf-map.h>
#define cnnring_map		dma_buf_map
#define cnnring_map_set		dma_buf_map_set_vaddr
#define cnnring_map_clear	dma_buf_map_clear
#endif

#ifdef CNNRING_HAVE_NS_TOKEN		/* a string since 6.13 */
#define CNNRING_IMPORT_NS(ns) MODULE_IMPORT_NS(ns)
#else
#define CNNRING_IMPORT_NS(ns) MODULE_IMPORT_NS(#ns)
#endif

#endif
