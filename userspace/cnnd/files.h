/* SPDX-License-Identifier: MIT */
/* files.h: the daemon's places in the file system: state and spill folder, socket, lock. */
#ifndef CNND_FILES_H
#define CNND_FILES_H

#include "../base/err.h"
#include "conf.h"

/* Makes state_dir and the spill folder (0700) where they are missing; refuses a spill folder in
 * memory (tmpfs), which would be no relief. */
int files_prepare(const struct conf *conf, struct err *err);
/* The spill folder's path, or NULL for none; buffer: CONF_PATH + 16 bytes. */
const char *files_spill_dir(const struct conf *conf, char *buffer);

struct files_socket {
	int listen_fd, lock_fd;
};
/*
 * Listens on conf->socket, mode 0660, in a folder that is made 0750 when missing, both of
 * socket_group. A socket left by a dead daemon is replaced; a daemon that lives on this path is an
 * error that names its process id.
 */
int files_listen(const struct conf *conf, struct files_socket *out, struct err *err);
void files_unlisten(const struct conf *conf, struct files_socket *s);

#endif
