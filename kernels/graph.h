/* SPDX-License-Identifier: MIT */
/* graph.h: for back ends, what graph.c offers beyond backend.h. */
#ifndef BACKEND_GRAPH_H
#define BACKEND_GRAPH_H

#include "ops.h"

/* Deep copy of a checked graph; freed with graph_copy_free. */
int graph_copy(const struct backend_graph *from, struct backend_graph *to);
void graph_copy_free(struct backend_graph *graph);

#endif
