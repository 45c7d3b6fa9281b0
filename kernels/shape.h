/* SPDX-License-Identifier: MIT */
/* shape.h: output shapes of the operators, for backend_graph_check. */
#ifndef BACKEND_SHAPE_H
#define BACKEND_SHAPE_H

#include "ops.h"

/* Output shape of a node from its inputs (indices checked, shapes in range), its attributes and its
 * tensors, all of which are checked on the way. */
int shape_infer(const struct backend_graph *graph, const struct backend_node *node,
		struct backend_shape *out, struct backend_error *error);

#endif
