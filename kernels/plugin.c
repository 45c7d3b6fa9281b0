/* SPDX-License-Identifier: MIT */
/*
 * plugin.c: finds a back end that is a shared object of its own, so that a program starts on a host
 * without the libraries it needs.
 */
#include <dlfcn.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "ops.h"

/* The folder of the program, or "". */
static void program_folder(char *folder, size_t size)
{
	ssize_t n = readlink("/proc/self/exe", folder, size - 1);
	char *slash;

	folder[n > 0 ? n : 0] = 0;
	slash = strrchr(folder, '/');
	if (slash)
		*slash = 0;
}

/* A file that is there must load; one that is not is passed over. */
static void *try_file(const char *path, char *why, size_t size, int *found)
{
	void *handle;

	if (strchr(path, '/') && access(path, R_OK))
		return NULL;
	handle = dlopen(path, RTLD_NOW | RTLD_LOCAL);
	if (!handle) {
		const char *text = dlerror();

		snprintf(why, size, "%.300s", text ? text : path);
	}
	*found |= handle || strchr(path, '/');
	return handle;
}

static void *find_object(const char *name, char *why, size_t size, int *found)
{
	char folder[PATH_MAX], path[PATH_MAX + 64];
	static const char *const form[] = {"%s/libcnn_%s.so", "%s/../lib/libcnn_%s.so",
					   "%s/../lib/cnn/libcnn_%s.so"};
	const char *given = getenv("CNN_CUDA_LIBRARY");
	void *handle = NULL;

	if (given && *given)
		return try_file(given, why, size, found);
	program_folder(folder, sizeof(folder));
	for (size_t i = 0; i < sizeof(form) / sizeof(*form) && !handle && !*found; i++) {
		snprintf(path, sizeof(path), form[i], folder, name);
		handle = try_file(path, why, size, found);
	}
	if (!handle && !*found) {
		snprintf(path, sizeof(path), "libcnn_%s.so", name);
		handle = try_file(path, why, size, found);
	}
	return handle;
}

int backend_plugin(const char *name, const struct backend_ops **out, struct backend_error *error)
{
	char why[384] = "no such file";
	backend_entry_fn entry;
	int found = 0;
	void *handle = find_object(name, why, sizeof(why), &found);

	if (!handle)
		return backend_fail(error, found ? -ELIBACC : -ENOENT,
				    "compute back end \"%s\" cannot be loaded: %s", name, why);
	*(void **)&entry = dlsym(handle, BACKEND_ENTRY);
	*out = entry ? entry(BACKEND_OPS_VERSION) : NULL;
	if (!*out) {
		dlclose(handle);
		return backend_fail(error, -EPROTO,
				    "compute back end \"%s\": the library has another version",
				    name);
	}
	return 0;
}
