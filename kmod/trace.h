/* SPDX-License-Identifier: GPL-2.0 */
/* trace.h: tracepoints of the module, /sys/kernel/tracing/events/cnnring. */
#undef TRACE_SYSTEM
#define TRACE_SYSTEM cnnring

#if !defined(CNNRING_TRACE_H) || defined(TRACE_HEADER_MULTI_READ)
#define CNNRING_TRACE_H

#include <linux/tracepoint.h>

#include "cnnring.h"

TRACE_EVENT(cnnring_create,
	TP_PROTO(const struct cnnring *ring),
	TP_ARGS(ring),
	TP_STRUCT__entry(
		__field(u32, id)
		__field(u64, bytes)
		__field(u32, huge)
	),
	TP_fast_assign(
		__entry->id = ring->id;
		__entry->bytes = cnnring_bytes(ring);
		__entry->huge = ring->huge_pages;
	),
	TP_printk("ring=%u bytes=%llu huge=%u", __entry->id, __entry->bytes, __entry->huge)
);

TRACE_EVENT(cnnring_refuse,
	TP_PROTO(const struct cnnring *ring, const struct cnnring_create *arg, int error),
	TP_ARGS(ring, arg, error),
	TP_STRUCT__entry(
		__field(u32, id)
		__field(u32, limit)
		__field(u64, want)
		__field(int, error)
	),
	TP_fast_assign(
		__entry->id = ring->id;
		__entry->limit = arg->limit;
		__entry->want = arg->want_bytes;
		__entry->error = error;
	),
	TP_printk("ring=%u limit=%u want=%llu error=%d", __entry->id, __entry->limit,
		  __entry->want, __entry->error)
);

DECLARE_EVENT_CLASS(cnnring_end_class,
	TP_PROTO(const struct cnnring_end *end),
	TP_ARGS(end),
	TP_STRUCT__entry(
		__field(u32, id)
		__field(u32, role)
	),
	TP_fast_assign(
		__entry->id = end->ring->id;
		__entry->role = end->role;
	),
	TP_printk("ring=%u end=%s", __entry->id,
		  __entry->role == CNNRING_PRODUCER ? "producer" : "consumer")
);

DEFINE_EVENT(cnnring_end_class, cnnring_wake,
	TP_PROTO(const struct cnnring_end *end),
	TP_ARGS(end)
);

DEFINE_EVENT(cnnring_end_class, cnnring_gone,
	TP_PROTO(const struct cnnring_end *end),
	TP_ARGS(end)
);

TRACE_EVENT(cnnring_free,
	TP_PROTO(const struct cnnring *ring),
	TP_ARGS(ring),
	TP_STRUCT__entry(
		__field(u32, id)
		__field(u64, moved)
	),
	TP_fast_assign(
		__entry->id = ring->id;
		__entry->moved = ring->moved;
	),
	TP_printk("ring=%u moved=%llu", __entry->id, __entry->moved)
);

#endif

#undef TRACE_INCLUDE_PATH
#define TRACE_INCLUDE_PATH .
#undef TRACE_INCLUDE_FILE
#define TRACE_INCLUDE_FILE trace
#include <trace/define_trace.h>
