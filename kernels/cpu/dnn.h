/* SPDX-License-Identifier: MIT */
/*
 * dnn.h: oneDNN 2.6 and 3.x behind one surface; every difference between them that the cpu back end
 * meets is in this file. Functions return 0 or -errno. Only what is used is here: descriptors,
 * convolutions, reorders.
 *
 * 2.x: a memory descriptor is a plain struct, an operation has a descriptor of its own.
 * 3.x: a memory descriptor is a handle, primitive descriptors are made directly.
 */
#ifndef CPU_DNN_H
#define CPU_DNN_H

#include <errno.h>
#include <stdbool.h>
#include <stddef.h>
#include <string.h>

#include <oneapi/dnnl/dnnl.h>

#if DNNL_VERSION_MAJOR < 2 || (DNNL_VERSION_MAJOR == 2 && DNNL_VERSION_MINOR < 6)
#error "oneDNN 2.6 or newer is needed (Debian: libdnnl-dev)"
#endif

static inline int dnn_rc(dnnl_status_t status)
{
	switch (status) {
	case dnnl_success:
		return 0;
	case dnnl_out_of_memory:
		return -ENOMEM;
	case dnnl_invalid_arguments:
		return -EINVAL;
	case dnnl_unimplemented:
		return -EOPNOTSUPP;
	default:
		return -EIO;
	}
}

/* ---- memory descriptors ------------------------------------------------------------------ */

#if DNNL_VERSION_MAJOR >= 3
struct dnn_md {
	dnnl_memory_desc_t handle;
};
typedef const_dnnl_memory_desc_t dnn_md_ref;
static inline dnn_md_ref dnn_ref(const struct dnn_md *md)
{
	return md ? md->handle : NULL;
}
static inline int dnn_md_strided(struct dnn_md *md, int nd, const dnnl_dims_t dim,
				 const dnnl_dims_t stride)
{
	return dnn_rc(dnnl_memory_desc_create_with_strides(&md->handle, nd, dim, dnnl_f32, stride));
}
static inline int dnn_md_any(struct dnn_md *md, int nd, const dnnl_dims_t dim)
{
	return dnn_rc(dnnl_memory_desc_create_with_tag(&md->handle, nd, dim, dnnl_f32,
						       dnnl_format_tag_any));
}
static inline int dnn_md_query(struct dnn_md *md, const_dnnl_primitive_desc_t pd, dnnl_query_t what)
{
	return dnn_rc(
		dnnl_memory_desc_clone(&md->handle, dnnl_primitive_desc_query_md(pd, what, 0)));
}
static inline void dnn_md_free(struct dnn_md *md)
{
	if (md->handle)
		dnnl_memory_desc_destroy(md->handle);
	md->handle = NULL;
}
#else
struct dnn_md {
	dnnl_memory_desc_t plain;
};
typedef const dnnl_memory_desc_t *dnn_md_ref;
static inline dnn_md_ref dnn_ref(const struct dnn_md *md)
{
	return md ? &md->plain : NULL;
}
static inline int dnn_md_strided(struct dnn_md *md, int nd, const dnnl_dims_t dim,
				 const dnnl_dims_t stride)
{
	return dnn_rc(dnnl_memory_desc_init_by_strides(&md->plain, nd, dim, dnnl_f32, stride));
}
static inline int dnn_md_any(struct dnn_md *md, int nd, const dnnl_dims_t dim)
{
	return dnn_rc(
		dnnl_memory_desc_init_by_tag(&md->plain, nd, dim, dnnl_f32, dnnl_format_tag_any));
}
static inline int dnn_md_query(struct dnn_md *md, const_dnnl_primitive_desc_t pd, dnnl_query_t what)
{
	const dnnl_memory_desc_t *found = dnnl_primitive_desc_query_md(pd, what, 0);

	if (!found)
		return -EINVAL;
	md->plain = *found;
	return 0;
}
static inline void dnn_md_free(struct dnn_md *md)
{
	memset(md, 0, sizeof(*md));
}
#endif

static inline size_t dnn_md_bytes(const struct dnn_md *md)
{
	return dnnl_memory_desc_get_size(dnn_ref(md));
}

/* ---- attributes: scratchpad from the caller, optionally ReLU on the result ---------------- */

static inline int dnn_attr(dnnl_primitive_attr_t *attr, bool relu)
{
	dnnl_post_ops_t post = NULL;
	dnnl_status_t status;

	*attr = NULL;
	status = dnnl_primitive_attr_create(attr);
	if (!status)
		status = dnnl_primitive_attr_set_scratchpad_mode(*attr, dnnl_scratchpad_mode_user);
	if (!status && relu)
		status = dnnl_post_ops_create(&post);
	if (!status && relu)
#if DNNL_VERSION_MAJOR >= 3
		status = dnnl_post_ops_append_eltwise(post, dnnl_eltwise_relu, 0.0f, 0.0f);
#else
		status = dnnl_post_ops_append_eltwise(post, 1.0f, dnnl_eltwise_relu, 0.0f, 0.0f);
#endif
	if (!status && relu)
		status = dnnl_primitive_attr_set_post_ops(*attr, post);
	if (post)
		dnnl_post_ops_destroy(post);
	if (status && *attr) {
		dnnl_primitive_attr_destroy(*attr);
		*attr = NULL;
	}
	return dnn_rc(status);
}

/* ---- convolution ------------------------------------------------------------------------- */

enum dnn_conv_kind { DNN_FORWARD, DNN_BACKWARD_DATA, DNN_BACKWARD_WEIGHTS };

/* Descriptors are those of the tensor or of its gradient, as the kind wants; bias may be NULL. */
struct dnn_conv {
	const struct dnn_md *x, *w, *bias, *y;
	dnnl_dims_t stride, dilation, pad_low, pad_high; /* h, w; dilation 0: dense */
	bool inference;
};

#if DNNL_VERSION_MAJOR >= 3
static inline int dnn_conv_pd(dnnl_primitive_desc_t *pd, dnnl_engine_t engine,
			      enum dnn_conv_kind kind, const struct dnn_conv *c,
			      const_dnnl_primitive_desc_t hint, const_dnnl_primitive_attr_t attr)
{
	switch (kind) {
	case DNN_FORWARD:
		return dnn_rc(dnnl_convolution_forward_primitive_desc_create(
			pd, engine, c->inference ? dnnl_forward_inference : dnnl_forward_training,
			dnnl_convolution_direct, dnn_ref(c->x), dnn_ref(c->w), dnn_ref(c->bias),
			dnn_ref(c->y), c->stride, c->dilation, c->pad_low, c->pad_high, attr));
	case DNN_BACKWARD_DATA:
		return dnn_rc(dnnl_convolution_backward_data_primitive_desc_create(
			pd, engine, dnnl_convolution_direct, dnn_ref(c->x), dnn_ref(c->w),
			dnn_ref(c->y), c->stride, c->dilation, c->pad_low, c->pad_high, hint,
			attr));
	default:
		return dnn_rc(dnnl_convolution_backward_weights_primitive_desc_create(
			pd, engine, dnnl_convolution_direct, dnn_ref(c->x), dnn_ref(c->w),
			dnn_ref(c->bias), dnn_ref(c->y), c->stride, c->dilation, c->pad_low,
			c->pad_high, hint, attr));
	}
}
#else
static inline int dnn_conv_pd(dnnl_primitive_desc_t *pd, dnnl_engine_t engine,
			      enum dnn_conv_kind kind, const struct dnn_conv *c,
			      const_dnnl_primitive_desc_t hint, const_dnnl_primitive_attr_t attr)
{
	dnnl_convolution_desc_t d;
	dnnl_status_t status;

	switch (kind) {
	case DNN_FORWARD:
		status = dnnl_dilated_convolution_forward_desc_init(
			&d, c->inference ? dnnl_forward_inference : dnnl_forward_training,
			dnnl_convolution_direct, dnn_ref(c->x), dnn_ref(c->w), dnn_ref(c->bias),
			dnn_ref(c->y), c->stride, c->dilation, c->pad_low, c->pad_high);
		break;
	case DNN_BACKWARD_DATA:
		status = dnnl_dilated_convolution_backward_data_desc_init(
			&d, dnnl_convolution_direct, dnn_ref(c->x), dnn_ref(c->w), dnn_ref(c->y),
			c->stride, c->dilation, c->pad_low, c->pad_high);
		break;
	default:
		status = dnnl_dilated_convolution_backward_weights_desc_init(
			&d, dnnl_convolution_direct, dnn_ref(c->x), dnn_ref(c->w), dnn_ref(c->bias),
			dnn_ref(c->y), c->stride, c->dilation, c->pad_low, c->pad_high);
		break;
	}
	if (!status)
		status = dnnl_primitive_desc_create(pd, &d, attr, engine, hint);
	return dnn_rc(status);
}
#endif

/* ---- the rest is the same in both -------------------------------------------------------- */

static inline int dnn_reorder(dnnl_primitive_t *p, dnnl_engine_t engine, const struct dnn_md *from,
			      const struct dnn_md *to)
{
	dnnl_primitive_desc_t pd;
	dnnl_primitive_attr_t attr;
	int rc = dnn_attr(&attr, false);

	if (rc)
		return rc;
	rc = dnn_rc(dnnl_reorder_primitive_desc_create(&pd, dnn_ref(from), engine, dnn_ref(to),
						       engine, attr));
	dnnl_primitive_attr_destroy(attr);
	if (rc)
		return rc;
	rc = dnn_rc(dnnl_primitive_create(p, pd));
	dnnl_primitive_desc_destroy(pd);
	return rc;
}

static inline size_t dnn_scratch_bytes(const_dnnl_primitive_desc_t pd)
{
	dnn_md_ref md = dnnl_primitive_desc_query_md(pd, dnnl_query_scratchpad_md, 0);

	return md ? dnnl_memory_desc_get_size(md) : 0;
}

static inline const char *dnn_impl(const_dnnl_primitive_desc_t pd)
{
	const char *name = "";

	dnnl_primitive_desc_query(pd, dnnl_query_impl_info_str, 0, &name);
	return name;
}

#endif
