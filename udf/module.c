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
	compat_reserve_prefix("gpu_cnn");
	daemon_init();
}
