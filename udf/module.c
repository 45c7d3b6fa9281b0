// SPDX-License-Identifier: MIT
/* module.c: loading of the library, its settings. */
#include "gpu_cnn.h"

#pragma GCC visibility push(default)
PG_MODULE_MAGIC;
void _PG_init(void);
#pragma GCC visibility pop

char *gpu_cnn_socket;
char *gpu_cnn_daemon_user;
int gpu_cnn_ring;
int gpu_cnn_node_timeout;
int gpu_cnn_segindex = COMPAT_OWN_SEGINDEX;

static const struct config_enum_entry ring_modes[] = {{"auto", RING_AUTO, false},
						      {"memfd", RING_MEMFD, false},
						      {"device", RING_DEVICE, false},
						      {NULL, 0, false}};

void _PG_init(void)
{
	DefineCustomStringVariable("gpu_cnn.socket", "Unix socket of this host's cnnd.", NULL,
				   &gpu_cnn_socket, CTL_DEFAULT_SOCKET, PGC_SUSET, 0, NULL, NULL,
				   NULL);
	DefineCustomStringVariable("gpu_cnn.daemon_user",
				   "Operating system user that cnnd runs as.",
				   "A socket of any other user is refused.", &gpu_cnn_daemon_user,
				   "cnnd", PGC_SUSET, 0, NULL, NULL, NULL);
	DefineCustomEnumVariable("gpu_cnn.ring", "Ring that rows travel through.",
				 "auto takes what cnnd offers; memfd or device insist on one.",
				 &gpu_cnn_ring, RING_AUTO, ring_modes, PGC_SUSET, 0, NULL, NULL,
				 NULL);
	DefineCustomIntVariable("gpu_cnn.segindex", "Number of this server among several.",
				"Set by gpu_cnn_train and its like in the sessions that they open "
				"on other servers; -2: the server's own.",
				&gpu_cnn_segindex, COMPAT_OWN_SEGINDEX, COMPAT_OWN_SEGINDEX,
				PG_INT32_MAX, PGC_USERSET, 0, NULL, NULL, NULL);
	DefineCustomIntVariable(
		"gpu_cnn.node_timeout",
		"Time that a session on another server may keep its answer.",
		"Counted from when the answer is due; then its host counts as lost.",
		&gpu_cnn_node_timeout, 60, 2, 86400, PGC_USERSET, GUC_UNIT_S, NULL, NULL, NULL);
	compat_reserve_prefix("gpu_cnn");
	nodes_init();
	daemon_init(); /* last: its clean-up runs first, and ends the jobs */
}
