/* SPDX-License-Identifier: MIT */
/*
 * lib.h: the calls of libucp.so.0 that are used, found by dlopen, so that a daemon starts where UCX
 * is not installed.
 */
#ifndef MERGE_UCX_LIB_H
#define MERGE_UCX_LIB_H

#include <ucp/api/ucp.h>
#include "ucx.h"

#define UCX_CALLS(X)                  \
	X(ucp_init_version)           \
	X(ucp_cleanup)                \
	X(ucp_config_read)            \
	X(ucp_config_modify)          \
	X(ucp_config_release)         \
	X(ucp_worker_create)          \
	X(ucp_worker_destroy)         \
	X(ucp_worker_get_efd)         \
	X(ucp_worker_get_address)     \
	X(ucp_worker_release_address) \
	X(ucp_worker_progress)        \
	X(ucp_worker_arm)             \
	X(ucp_worker_flush_nbx)       \
	X(ucp_ep_create)              \
	X(ucp_ep_close_nbx)           \
	X(ucp_tag_send_nbx)           \
	X(ucp_tag_recv_nbx)           \
	X(ucp_tag_recv_request_test)  \
	X(ucp_request_check_status)   \
	X(ucp_request_cancel)         \
	X(ucp_request_free)           \
	X(ucs_status_string)

struct ucx_lib {
#define UCX_MEMBER(name) __typeof__(&name) name;
	UCX_CALLS(UCX_MEMBER)
#undef UCX_MEMBER
};

/*
 * Loaded once and never unloaded: it has threads and handlers of its own. hooks: it may watch the
 * memory of the process, for RDMA.
 */
int ucx_load(struct ucx_lib *lib, bool hooks, struct merge_error *error);

#endif
