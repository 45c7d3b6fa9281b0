/* SPDX-License-Identifier: MIT */
/*
 * load.c: libucp.so.0 by dlopen. It would print warnings, take over the signals of a crash and
 * patch mmap of the process: the first two belong to the program, so its log is swallowed and the
 * handlers are put back; the third serves a cache of registered memory, which TCP does not need.
 */
#include <dlfcn.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <ucs/debug/log_def.h>
#include "lib.h"

static ucs_log_func_rc_t swallow(const char *file, unsigned line, const char *function,
				 ucs_log_level_t level, const ucs_log_component_config_t *config,
				 const char *format, va_list ap)
{
	return UCS_LOG_FUNC_RC_STOP;
}

/* out: a pointer to a function, of the size that dlsym returns */
static bool find(void *library, const char *name, void *out)
{
	void *found = dlsym(library, name);

	memcpy(out, &found, sizeof(found));
	return found != NULL;
}

/*
 * The library patches mmap when it is loaded, unless its environment says otherwise: there is no
 * other way to tell it.
 */
static void *load(bool hooks)
{
	bool ours = !hooks && !getenv("UCX_MEM_EVENTS") && !setenv("UCX_MEM_EVENTS", "n", 0);
	void *library = dlopen("libucp.so.0", RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);

	if (ours)
		unsetenv("UCX_MEM_EVENTS");
	return library;
}

int ucx_load(struct ucx_lib *lib, bool hooks, struct merge_error *error)
{
	static const int crash[] = {SIGSEGV, SIGBUS, SIGILL, SIGFPE, SIGABRT};
	enum { N = sizeof(crash) / sizeof(crash[0]) };
	static atomic_flag quiet = ATOMIC_FLAG_INIT; /* the library's log is the process's */
	struct sigaction before[N];
	void (*push)(ucs_log_func_t handler);
	const char *missing = NULL;
	void *library;

	for (int i = 0; i < N; i++)
		sigaction(crash[i], NULL, &before[i]);
	library = load(hooks);
	for (int i = 0; i < N; i++)
		sigaction(crash[i], &before[i], NULL);
	if (!library)
		return merge_fail(error, -ENOTSUP, MERGE_NO_HOST, "merge_transport is 'ucx': %s",
				  dlerror());
#define UCX_FIND(name)                         \
	if (!find(library, #name, &lib->name)) \
		missing = #name;
	UCX_CALLS(UCX_FIND)
#undef UCX_FIND
	if (missing) {
		dlclose(library);
		return merge_fail(error, -ENOTSUP, MERGE_NO_HOST,
				  "merge_transport is 'ucx': libucp.so.0 has no %s", missing);
	}
	if (find(library, "ucs_log_push_handler", &push) && !atomic_flag_test_and_set(&quiet))
		push(swallow);
	return 0;
}
