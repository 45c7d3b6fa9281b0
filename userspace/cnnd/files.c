// SPDX-License-Identifier: MIT
/* files.c: see files.h. */
#include "files.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/vfs.h>
#include <unistd.h>

#define TMPFS 0x01021994
#define RAMFS 0x858458f6
#define BACKLOG 1024

const char *files_spill_dir(const struct conf *conf, char *buffer)
{
	if (!strcmp(conf->spill_dir, "none"))
		return NULL;
	if (conf->spill_dir[0])
		snprintf(buffer, CONF_PATH + 16, "%s", conf->spill_dir);
	else
		snprintf(buffer, CONF_PATH + 16, "%s/spill", conf->state_dir);
	return buffer;
}

static int make_folder(const char *key, const char *path, struct err *err)
{
	struct stat st;

	if (mkdir(path, 0700) && errno != EEXIST) {
		int code = -errno;

		err_set(err, ERR_IO, code, "%s: cannot make the folder %s: %s", key, path,
			strerror(-code));
		err_hint(err, "Make it, owned by the user that cnnd runs as, or set %s.", key);
		return code;
	}
	if (stat(path, &st) || !S_ISDIR(st.st_mode))
		return err_set(err, ERR_IO, -ENOTDIR, "%s: %s is no folder", key, path);
	if (access(path, W_OK | X_OK))
		return err_set(err, ERR_IO, -EACCES, "%s: no right to write into %s", key, path);
	return 0;
}

int files_prepare(const struct conf *conf, struct err *err)
{
	char buffer[CONF_PATH + 16];
	const char *spill = files_spill_dir(conf, buffer);
	struct statfs fs;
	int rc = make_folder("state_dir", conf->state_dir, err);

	if (rc || !spill)
		return rc;
	rc = make_folder("spill_dir", spill, err);
	if (rc)
		return rc;
	if (statfs(spill, &fs))
		return err_set(err, ERR_IO, -errno, "spill_dir: %s: %s", spill, strerror(errno));
	if ((unsigned long)fs.f_type == TMPFS || (unsigned long)fs.f_type == RAMFS) {
		err_set(err, ERR_IO, -EINVAL, "spill_dir: %s is in memory (tmpfs)", spill);
		err_hint(err, "Set spill_dir to a folder on a disk, or to none.");
		return -EINVAL;
	}
	return 0;
}

/* ---- socket ---- */

/* The folder of the socket; a folder that is there already keeps its mode and owner. */
static int socket_folder(const struct conf *conf, struct err *err)
{
	char path[sizeof(conf->socket)], *slash;

	strcpy(path, conf->socket);
	slash = strrchr(path, '/');
	if (slash == path)
		return 0;
	*slash = '\0';
	if (mkdir(path, 0750)) {
		if (errno == EEXIST)
			return 0;
		return err_set(err, ERR_IO, -errno, "socket: cannot make the folder %s: %s", path,
			       strerror(errno));
	}
	if (conf->socket_gid != (gid_t)-1 && chown(path, (uid_t)-1, conf->socket_gid))
		return err_set(err, ERR_IO, -errno, "socket_group: cannot give %s to group %s: %s",
			       path, conf->socket_group, strerror(errno));
	if (chmod(path, 0750)) /* past the umask */
		return err_set(err, ERR_IO, -errno, "socket: %s: %s", path, strerror(errno));
	return 0;
}

/* A record lock: it ends with this process, and no child holds it. */
static int take_lock(const struct conf *conf, int *out, struct err *err)
{
	struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET};
	char path[sizeof(conf->socket) + 8];
	int fd;

	snprintf(path, sizeof(path), "%s.lock", conf->socket);
	fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
	if (fd < 0)
		return err_set(err, ERR_IO, -errno, "socket: cannot open %s: %s", path,
			       strerror(errno));
	if (!fcntl(fd, F_SETLK, &lock)) {
		*out = fd;
		return 0;
	}
	if (fcntl(fd, F_GETLK, &lock) || lock.l_type == F_UNLCK)
		lock.l_pid = 0;
	close(fd);
	return err_set(err, ERR_BUSY, -EADDRINUSE, "another cnnd (process %d) serves %s",
		       (int)lock.l_pid, conf->socket);
}

/* Removes a socket that nobody listens on; anything else on that path stays. */
static int remove_stale(const struct conf *conf, const struct sockaddr_un *a, struct err *err)
{
	struct stat st;
	int fd, rc;

	if (lstat(conf->socket, &st))
		return 0;
	if (!S_ISSOCK(st.st_mode))
		return err_set(err, ERR_IO, -EEXIST, "socket: %s is there and is no socket",
			       conf->socket);
	fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	if (fd < 0)
		return err_set(err, ERR_LIMIT, -errno, "socket: %s", strerror(errno));
	rc = connect(fd, (const struct sockaddr *)a, sizeof(*a)) ? -errno : 0;
	close(fd);
	if (!rc || rc == -EAGAIN)
		return err_set(err, ERR_BUSY, -EADDRINUSE, "somebody listens on %s already",
			       conf->socket);
	if (unlink(conf->socket))
		return err_set(err, ERR_IO, -errno, "socket: cannot replace %s: %s", conf->socket,
			       strerror(errno));
	return 0;
}

static int bind_socket(const struct conf *conf, const struct sockaddr_un *a, int *out,
		       struct err *err)
{
	int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0), rc;
	mode_t old;

	if (fd < 0)
		return err_set(err, ERR_LIMIT, -errno, "socket: %s", strerror(errno));
	old = umask(0117);
	rc = bind(fd, (const struct sockaddr *)a, sizeof(*a)) ? -errno : 0;
	umask(old);
	if (rc)
		err_set(err, ERR_IO, rc, "socket: cannot bind %s: %s", conf->socket, strerror(-rc));
	if (!rc && conf->socket_gid != (gid_t)-1 &&
	    chown(conf->socket, (uid_t)-1, conf->socket_gid)) {
		rc = err_set(err, ERR_IO, -errno, "socket_group: cannot give %s to group %s: %s",
			     conf->socket, conf->socket_group, strerror(errno));
		err_hint(err, "The user that cnnd runs as must be a member of socket_group.");
	}
	if (!rc && listen(fd, BACKLOG))
		rc = err_set(err, ERR_IO, -errno, "socket: cannot listen on %s: %s", conf->socket,
			     strerror(errno));
	if (rc) {
		close(fd);
		return rc;
	}
	*out = fd;
	return 0;
}

int files_listen(const struct conf *conf, struct files_socket *out, struct err *err)
{
	struct sockaddr_un a = {.sun_family = AF_UNIX};
	int rc;

	*out = (struct files_socket){-1, -1};
	memcpy(a.sun_path, conf->socket, strlen(conf->socket) + 1);
	rc = socket_folder(conf, err);
	if (!rc)
		rc = take_lock(conf, &out->lock_fd, err);
	if (!rc)
		rc = remove_stale(conf, &a, err);
	if (!rc)
		rc = bind_socket(conf, &a, &out->listen_fd, err);
	if (rc && out->lock_fd >= 0) {
		close(out->lock_fd);
		out->lock_fd = -1;
	}
	return rc;
}

void files_unlisten(const struct conf *conf, struct files_socket *s)
{
	if (s->listen_fd >= 0) {
		close(s->listen_fd);
		unlink(conf->socket);
	}
	if (s->lock_fd >= 0)
		close(s->lock_fd);
	*s = (struct files_socket){-1, -1};
}
