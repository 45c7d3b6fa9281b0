/* SPDX-License-Identifier: MIT */
/*
 * dense.c: dense layers, and 1 x 1 convolutions, as products of cuBLASLt. Its matrices are
 * column-major, so a row-major (r, c) is a (c, r) there: with m rows of activations,
 *   Y (out, m) = W (out, in) X (in, m);	dX (in, m) = W^T dY;  dW (out, in) = dY X^T
 * and the kernel of the parameter arena, (in, out) by rows, is W as it lies. dW is f32 and goes
 * straight to the gradient arena.
 */
#include <stdlib.h>

#include "cuda.h"

static cudaDataType_t lt_type(const struct cuda_net *net)
{
	switch (net->gpu->type) {
	case CUDA_T_F16:
		return CUDA_R_16F;
	case CUDA_T_BF16:
		return CUDA_R_16BF;
	default:
		return CUDA_R_32F;
	}
}

/* cuBLAS wants more on newer devices. */
size_t dense_workspace(const struct cuda_backend *gpu)
{
	return gpu->capability >= 90 ? 32u << 20 : 8u << 20;
}

/* The largest power of two, up to 256, that divides an address. */
static uint32_t alignment_of(const void *p)
{
	uintptr_t v = (uintptr_t)p | 256;

	return (uint32_t)(v & -v);
}

struct operand {
	cublasLtMatrixLayout_t layout;
	const void *at;
};

static cublasStatus_t set_desc(cublasLtMatmulDesc_t desc, cublasLtMatmulDescAttributes_t what,
			       const void *value, size_t size)
{
	return cublasLtMatmulDescSetAttribute(desc, what, value, size);
}

/* Asks for an algorithm; *ok tells whether there is one. */
static cublasStatus_t find(struct cuda_net *net, struct product *p, struct operand a,
			   struct operand b, struct operand d)
{
	static const cublasLtMatmulPreferenceAttributes_t what[4] = {
		CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES,
		CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
		CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES,
		CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES,
	};
	const uint32_t align[4] = {alignment_of(a.at), alignment_of(b.at), alignment_of(d.at),
				   alignment_of(d.at)};
	size_t limit = net->workspace_bytes;
	cublasLtMatmulHeuristicResult_t found;
	cublasLtMatmulPreference_t wish = NULL;
	cublasStatus_t rc;
	int n = 0;

	rc = cublasLtMatmulPreferenceCreate(&wish);
	if (rc)
		return rc;
	rc = cublasLtMatmulPreferenceSetAttribute(wish, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
						  &limit, sizeof(limit));
	for (int i = 0; i < 4 && !rc; i++)
		rc = cublasLtMatmulPreferenceSetAttribute(wish, what[i], &align[i],
							  sizeof(align[i]));
	if (!rc)
		rc = cublasLtMatmulAlgoGetHeuristic(net->gpu->lt, p->desc, a.layout, b.layout,
						    d.layout, d.layout, wish, 1, &found, &n);
	if (rc == CUBLAS_STATUS_NOT_SUPPORTED) {
		rc = CUBLAS_STATUS_SUCCESS;
		n = 0;
	}
	p->ok = !rc && n == 1 && found.state == CUBLAS_STATUS_SUCCESS;
	if (p->ok)
		p->algo = found.algo;
	cublasLtMatmulPreferenceDestroy(wish);
	return rc;
}

static cublasStatus_t make_desc(struct cuda_net *net, struct product *p, bool trans_a, bool trans_b)
{
	bool tf32 = net->gpu->base.options.precision == BACKEND_PRECISION_TF32;
	cublasOperation_t a = trans_a ? CUBLAS_OP_T : CUBLAS_OP_N;
	cublasOperation_t b = trans_b ? CUBLAS_OP_T : CUBLAS_OP_N;
	cublasStatus_t rc;

	rc = cublasLtMatmulDescCreate(
		&p->desc, tf32 ? CUBLAS_COMPUTE_32F_FAST_TF32 : CUBLAS_COMPUTE_32F, CUDA_R_32F);
	if (!rc)
		rc = set_desc(p->desc, CUBLASLT_MATMUL_DESC_TRANSA, &a, sizeof(a));
	if (!rc)
		rc = set_desc(p->desc, CUBLASLT_MATMUL_DESC_TRANSB, &b, sizeof(b));
	return rc;
}

/* The bias has the type of the output. */
static const void *bias_of(const struct pass *p, const struct group *g)
{
	const struct backend_node *node = net_node(p->net, g->node);
	bool f32 = p->net->plan.logits_f32 && g->last == p->net->plan.loss.node;

	return f32 ? (const void *)pass_tensor(p, node, 1) : pass_packed(p, node, 1);
}

static cublasStatus_t make_epilogue(const struct pass *p, const struct group *g, struct product *q)
{
	cublasLtEpilogue_t e =
		g->act == NONE ? CUBLASLT_EPILOGUE_BIAS : CUBLASLT_EPILOGUE_RELU_BIAS;
	const void *bias = bias_of(p, g);
	cublasStatus_t rc = set_desc(q->desc, CUBLASLT_MATMUL_DESC_EPILOGUE, &e, sizeof(e));

	return rc ? rc : set_desc(q->desc, CUBLASLT_MATMUL_DESC_BIAS_POINTER, &bias, sizeof(bias));
}

static bool may_fuse(const struct cuda_net *net, const struct group *g)
{
	if (net->gpu->base.options.flags & BACKEND_NO_FUSION ||
	    net_node(net, g->node)->tensor[1] < 0)
		return false;
	return g->act == NONE || (plan_is_relu(net_node(net, g->act)) && !g->pre);
}

/* ---- shapes --------------------------------------------------------------------------------- */

static cublasStatus_t make_layouts(struct cuda_net *net, const struct group *g, uint32_t n,
				   struct dense_shape *s)
{
	const struct backend_node *node = net_node(net, g->node);
	uint64_t in = net_node(net, node->in[0])->out.c, out = node->out.c;
	uint64_t m = (uint64_t)n * node->out.h * node->out.w;
	bool f32 = net->plan.logits_f32 && g->last == net->plan.loss.node;
	cudaDataType_t t = lt_type(net);
	cublasStatus_t rc;

	rc = cublasLtMatrixLayoutCreate(&s->w, t, out, in, (int64_t)out);
	if (!rc)
		rc = cublasLtMatrixLayoutCreate(&s->x, t, in, m, (int64_t)in);
	if (!rc)
		rc = cublasLtMatrixLayoutCreate(&s->y, f32 ? CUDA_R_32F : t, out, m, (int64_t)out);
	if (!rc)
		rc = cublasLtMatrixLayoutCreate(&s->dy, t, out, m, (int64_t)out);
	if (!rc)
		rc = cublasLtMatrixLayoutCreate(&s->dw, CUDA_R_32F, out, in, (int64_t)out);
	return rc;
}

static cublasStatus_t make_products(const struct pass *p, const struct group *g,
				    struct dense_shape *s)
{
	struct cuda_net *net = p->net;
	const struct backend_node *node = net_node(net, g->node);
	struct operand w = {s->w, pass_packed(p, node, 0)}, x = {s->x, net_value(net, node->in[0])};
	struct operand y = {s->y, net_value(net, g->pre ? g->node : g->last)};
	struct operand dy = {s->dy, net_gradient(net, g->last)};
	struct operand dx = {s->x, net_gradient(net, node->in[0])}, dw = {s->dw, NULL};
	struct product *q = s->product;
	cublasStatus_t rc;
	bool add;

	rc = make_desc(net, &q[DENSE_PLAIN], false, false);
	if (!rc)
		rc = find(net, &q[DENSE_PLAIN], w, x, y);
	if (!rc && may_fuse(net, g)) {
		rc = make_desc(net, &q[DENSE_FUSED], false, false);
		if (!rc)
			rc = make_epilogue(p, g, &q[DENSE_FUSED]);
		if (!rc)
			rc = find(net, &q[DENSE_FUSED], w, x, y);
	}
	if (rc || !g->backward)
		return rc;
	rc = make_desc(net, &q[DENSE_DATA], true, false);
	if (!rc && net->plan.edge[g->first_edge].want)
		rc = find(net, &q[DENSE_DATA], w, dy, dx);
	if (!rc)
		rc = make_desc(net, &q[DENSE_FILTER], false, true);
	dw.at = pass_gradient(p, g, 0, &add);
	if (!rc && dw.at)
		rc = find(net, &q[DENSE_FILTER], dy, x, dw);
	return rc;
}

int dense_shape_make(struct cuda_net *net, struct shape *shape, uint32_t group,
		     struct backend_error *error)
{
	const struct group *g = &net->plan.group[group];
	const struct pass p = {.net = net, .shape = shape, .w = net->own, .error = error};
	struct dense_shape *s = &shape->dense[group];
	cublasStatus_t rc = make_layouts(net, g, shape->n, s);

	if (!rc)
		rc = make_products(&p, g, s);
	return cublas_failed(net->gpu, rc, "description of a dense layer", error);
}

void dense_shape_free(struct dense_shape *s)
{
	cublasLtMatrixLayout_t layout[] = {s->w, s->x, s->y, s->dy, s->dw};

	for (int i = 0; i < 5; i++)
		if (layout[i])
			cublasLtMatrixLayoutDestroy(layout[i]);
	for (int i = 0; i < DENSE_PRODUCTS; i++)
		if (s->product[i].desc)
			cublasLtMatmulDescDestroy(s->product[i].desc);
}

/* ---- passes --------------------------------------------------------------------------------- */

/* D = alpha A B (+ D) */
static int multiply(const struct pass *p, const struct product *q, float alpha, struct operand a,
		    struct operand b, struct operand d, bool add, const char *what)
{
	struct cuda_net *net = p->net;
	const float beta = add ? 1.0f : 0.0f;
	void *to = (void *)d.at;
	cublasStatus_t rc;

	if (!q->ok)
		return backend_fail(p->error, -EOPNOTSUPP, "cuBLASLt has no algorithm for %s",
				    what);
	rc = cublasLtMatmul(net->gpu->lt, q->desc, &alpha, a.at, a.layout, b.at, b.layout, &beta,
			    to, d.layout, to, d.layout, &q->algo, net->workspace,
			    net->workspace_bytes, net->stream);
	return cublas_failed(net->gpu, rc, what, p->error);
}

int dense_forward(const struct pass *p, uint32_t group)
{
	struct cuda_net *net = p->net;
	const struct group *g = &net->plan.group[group];
	const struct backend_node *node = net_node(net, g->node);
	struct dense_shape *s = &p->shape->dense[group];
	struct product *fused = &s->product[DENSE_FUSED];
	struct operand w = {s->w, pass_packed(p, node, 0)}, x = {s->x, net_value(net, node->in[0])};
	struct operand y = {s->y, net_value(net, g->pre ? g->node : g->last)};
	int rc;

	if (!fused->ok) {
		rc = multiply(p, &s->product[DENSE_PLAIN], 1.0f, w, x, y, false, "a dense layer");
		return rc ? rc : linear_finish(p, g, true);
	}
	/* the bias of these parameters */
	rc = cublas_failed(net->gpu, make_epilogue(p, g, fused), "a dense layer's bias", p->error);
	return rc ? rc : multiply(p, fused, 1.0f, w, x, y, false, "a dense layer with bias");
}

int dense_backward(const struct pass *p, uint32_t group)
{
	struct cuda_net *net = p->net;
	const struct group *g = &net->plan.group[group];
	const struct edge *edge = &net->plan.edge[g->first_edge];
	const struct backend_node *node = net_node(net, g->node);
	struct dense_shape *s = &p->shape->dense[group];
	struct operand w = {s->w, pass_packed(p, node, 0)}, x = {s->x, net_value(net, node->in[0])};
	struct operand dy = {s->dy, net_gradient(net, g->last)};
	struct operand dx = {s->x, net_gradient(net, node->in[0])}, dw = {s->dw, NULL};
	bool add;
	int rc = linear_begin_backward(p, g);

	dw.at = pass_gradient(p, g, 0, &add);
	if (!rc && dw.at)
		rc = multiply(p, &s->product[DENSE_FILTER], 1.0f / net->loss_scale, dy, x, dw, add,
			      "the gradient of a dense kernel");
	if (!rc && edge->want)
		rc = multiply(p, &s->product[DENSE_DATA], 1.0f, w, dy, dx, edge->add,
			      "the input gradient of a dense layer");
	return rc;
}
