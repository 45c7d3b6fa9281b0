/* SPDX-License-Identifier: MIT */
/*
 * compat.h: everything that differs between the servers the extension is built for: PostgreSQL 9.4
 * to 17, Greenplum 6 (PostgreSQL 9.4) and 7 (12), Apache Cloudberry (14). No other file of udf/
 * looks at a version number. Include it first; it brings postgres.h and the project's headers.
 */
#ifndef GPU_CNN_COMPAT_H
#define GPU_CNN_COMPAT_H

#include "postgres.h"

#include "access/htup_details.h"
#include "access/xact.h"
#include "catalog/namespace.h"
#include "catalog/pg_foreign_data_wrapper.h"
#include "catalog/pg_foreign_server.h"
#include "catalog/pg_inherits.h"
#include "catalog/pg_class.h"
#include "catalog/pg_namespace.h"
#include "catalog/pg_type.h"
#include "catalog/pg_user_mapping.h"
#include "executor/spi.h"
#include "fmgr.h"
#include "foreign/foreign.h"
#include "funcapi.h"
#include "mb/pg_wchar.h"
#include "miscadmin.h"
#include "nodes/makefuncs.h"
#include "nodes/nodeFuncs.h"
#include "nodes/parsenodes.h"
#include "parser/parse_func.h"
#include "storage/fd.h"
#include "storage/ipc.h"
#include "storage/latch.h"
#include "storage/proc.h"
#include "tcop/tcopprot.h"
#include "utils/acl.h"
#include "utils/array.h"
#include "utils/builtins.h"
#include "utils/guc.h"
#include "utils/lsyscache.h"
#include "utils/memutils.h"
#include "utils/plancache.h"
#include "utils/rel.h"
#include "utils/resowner.h"
#include "utils/snapmgr.h"
#include "utils/syscache.h"
#include "utils/timeout.h"
#include "utils/tuplestore.h"

/* Of struct Port only its first member, the client's socket, is used: the headers of GSSAPI and
 * OpenSSL, which describe its last members, need not be there. */
#pragma push_macro("ENABLE_GSS")
#pragma push_macro("USE_OPENSSL")
#undef ENABLE_GSS
#undef USE_OPENSSL
#include "libpq/libpq-be.h"
#pragma pop_macro("ENABLE_GSS")
#pragma pop_macro("USE_OPENSSL")

#if PG_VERSION_NUM >= 130000
#include "access/detoast.h"
#else
#include "access/tuptoaster.h"
#endif
#if PG_VERSION_NUM >= 120000
#include "access/table.h"
#include "common/shortest_dec.h"
#include "utils/float.h"
#else
#include "access/heapam.h"
#define table_open(oid, mode) heap_open(oid, mode)
#define table_close(rel, mode) heap_close(rel, mode)
#endif
#if PG_VERSION_NUM < 110000
#include "catalog/pg_inherits_fn.h"
#endif
#if PG_VERSION_NUM >= 100000
#include "utils/varlena.h"
#endif
#if PG_VERSION_NUM >= 140000
#include "utils/wait_event.h"
#elif PG_VERSION_NUM >= 100000
#include "pgstat.h"
#endif
#if PG_VERSION_NUM >= 160000
#include "varatt.h"
#endif
#ifdef GP_VERSION_NUM
#include "cdb/cdbvars.h"
#include "cdb/cdbutil.h"
#endif

#include <arpa/inet.h>
#include <fcntl.h>
#include <poll.h>
#include <unistd.h>

#include "../userspace/base/err.h"
#include "../userspace/ctl/agree.h"
#include "../userspace/ctl/ctl.h"
#include "../userspace/ctl/row.h"
#include "../userspace/ring/ring.h"

/* Before 11 the server's bool is a char; the project's headers brought C's own. Prototypes of both
 * are read by now; the files of the extension go on with the server's. */
#if PG_VERSION_NUM < 110000
#undef bool
#undef true
#undef false
#define true ((bool)1)
#define false ((bool)0)
#endif

#if PG_VERSION_NUM < 110000 && !defined(TupleDescAttr)
#define TupleDescAttr(desc, i) ((desc)->attrs[i])
#endif
#ifndef PG_INT64_MAX
#define PG_INT64_MAX INT64CONST(0x7FFFFFFFFFFFFFFF)
#endif
#ifndef CURSOR_OPT_PARALLEL_OK
#define CURSOR_OPT_PARALLEL_OK 0
#endif
#ifndef pg_attribute_noreturn
#define pg_attribute_noreturn() __attribute__((noreturn))
#endif
#ifndef RELKIND_PARTITIONED_TABLE
#define RELKIND_PARTITIONED_TABLE 'p'
#endif
#ifndef RELKIND_MATVIEW
#define RELKIND_MATVIEW 'm'
#endif

/* Everything but what the server looks up by name is hidden. */
#define SQL_FUNCTION(name)                                                 \
	_Pragma("GCC visibility push(default)") PG_FUNCTION_INFO_V1(name); \
	_Pragma("GCC visibility pop") extern int gpu_cnn_semicolon

/* ---- segments ---- */

/* gpu_cnn.segindex: the number of a node among several servers; -2: the server's own. */
#define COMPAT_OWN_SEGINDEX (-2)
extern int gpu_cnn_segindex;

#ifdef GP_VERSION_NUM
#define COMPAT_GREENPLUM true
/* behind CREATE TABLE, of tables without a primary key: no NOTICE that guesses at one */
#define COMPAT_RANDOMLY " DISTRIBUTED RANDOMLY"
#define COMPAT_SEGMENTS getgpsegmentCount()
#define compat_own_segindex() (GpIdentity.segindex)
#else
#define COMPAT_GREENPLUM false
#define COMPAT_RANDOMLY ""
#define COMPAT_SEGMENTS 1
#define compat_own_segindex() 0
#endif
#define COMPAT_SEGINDEX \
	(gpu_cnn_segindex == COMPAT_OWN_SEGINDEX ? compat_own_segindex() : gpu_cnn_segindex)

/* A statement that runs where it cannot start others: on a segment. */
#ifdef GP_VERSION_NUM
#define compat_on_segment() (Gp_role == GP_ROLE_EXECUTE)
#else
#define compat_on_segment() false
#endif

/* ---- waiting ---- */

#if PG_VERSION_NUM >= 90500
#define compat_latch MyLatch
#else
#define compat_latch (&MyProc->procLatch)
#endif

static inline int compat_wait(int fd, int events, long timeout_ms, const char *name)
{
	int rc;
#if PG_VERSION_NUM >= 170000
	/* one event in pg_stat_activity; the exact name is in gpu_cnn_progress() and in errors */
	static uint32 event;

	if (!event)
		event = WaitEventExtensionNew("GpuCnnDaemon");
	rc = WaitLatchOrSocket(compat_latch, events | WL_EXIT_ON_PM_DEATH, fd, timeout_ms, event);
#elif PG_VERSION_NUM >= 120000
	rc = WaitLatchOrSocket(compat_latch, events | WL_EXIT_ON_PM_DEATH, fd, timeout_ms,
			       PG_WAIT_EXTENSION);
#elif PG_VERSION_NUM >= 100000
	rc = WaitLatchOrSocket(compat_latch, events | WL_POSTMASTER_DEATH, fd, timeout_ms,
			       PG_WAIT_EXTENSION);
#else
	rc = WaitLatchOrSocket(compat_latch, events | WL_POSTMASTER_DEATH, fd, timeout_ms);
#endif
	(void)name;
	if (rc & WL_POSTMASTER_DEATH)
		proc_exit(1);
	return rc;
}

/* While the executor waits for parallel workers none of our loops runs: let the server's own timer
 * look at the client's socket (14+). Undone by the caller's AtEOXact_GUC. */
static inline void compat_watch_client(int nest)
{
	(void)nest;
#if PG_VERSION_NUM >= 140000
	if (MyProcPort && !client_connection_check_interval) {
		set_config_option("client_connection_check_interval", "500", PGC_USERSET,
				  PGC_S_SESSION, GUC_ACTION_SAVE, true, 0, false);
		if (!get_timeout_active(CLIENT_CONNECTION_CHECK_TIMEOUT))
			enable_timeout_after(CLIENT_CONNECTION_CHECK_TIMEOUT, 500);
	}
#endif
}

static inline void compat_set_config(const char *name, const char *value)
{
#if PG_VERSION_NUM >= 90500
	set_config_option(name, value, PGC_USERSET, PGC_S_SESSION, GUC_ACTION_SAVE, true, 0, false);
#else
	set_config_option(name, value, PGC_USERSET, PGC_S_SESSION, GUC_ACTION_SAVE, true, 0);
#endif
}

/* Makes the planner think that a parallel scan of the user's table costs nothing to start. */
static inline void compat_favour_parallel(void)
{
#if PG_VERSION_NUM >= 90600
	compat_set_config("parallel_setup_cost", "0");
	compat_set_config("parallel_tuple_cost", "0");
#endif
#if PG_VERSION_NUM >= 100000
	compat_set_config("min_parallel_table_scan_size", "0");
#elif PG_VERSION_NUM >= 90600
	compat_set_config("min_parallel_relation_size", "0");
#endif
}

/* ---- descriptors ---- */

#if PG_VERSION_NUM >= 130000
#define compat_acquire_fd() AcquireExternalFD()
#define compat_release_fd() ReleaseExternalFD()
#else
#define compat_acquire_fd() true
#define compat_release_fd() ((void)0)
#endif

/* ---- random ---- */

static inline bool compat_random(void *out, size_t n)
{
#if PG_VERSION_NUM >= 100000
	return pg_strong_random(out, n);
#else
	int fd = open("/dev/urandom", O_RDONLY | O_CLOEXEC);
	ssize_t got = fd >= 0 ? read(fd, out, n) : -1;

	if (fd >= 0)
		close(fd);
	return got == (ssize_t)n;
#endif
}

/* ---- names and rights ---- */

#if PG_VERSION_NUM >= 90500
#define compat_user_name(oid) GetUserNameFromId(oid, false)
#else
#define compat_user_name(oid) GetUserNameFromId(oid)
#endif
#if PG_VERSION_NUM >= 160000
#define compat_may_create(nsp, role) \
	(object_aclcheck(NamespaceRelationId, nsp, role, ACL_CREATE) == ACLCHECK_OK)
#define compat_owns_class(rel, role) object_ownercheck(RelationRelationId, rel, role)
#define compat_may_use_server(server, role) \
	(object_aclcheck(ForeignServerRelationId, server, role, ACL_USAGE) == ACLCHECK_OK)
#else
#define compat_may_create(nsp, role) (pg_namespace_aclcheck(nsp, role, ACL_CREATE) == ACLCHECK_OK)
#define compat_owns_class(rel, role) pg_class_ownercheck(rel, role)
#define compat_may_use_server(server, role) \
	(pg_foreign_server_aclcheck(server, role, ACL_USAGE) == ACLCHECK_OK)
#endif

/* ---- parse trees ---- */

/* The statement inside; its place in the text: end -1 = to the end of the text. */
static inline Node *compat_statement(Node *raw, int *start, int *end)
{
	*start = 0;
	*end = -1;
#if PG_VERSION_NUM >= 100000
	if (IsA(raw, RawStmt)) {
		RawStmt *r = (RawStmt *)raw;

		*start = r->stmt_location > 0 ? r->stmt_location : 0;
		if (r->stmt_len > 0)
			*end = *start + r->stmt_len;
		return r->stmt;
	}
#endif
	return raw;
}

/* ---- memory ---- */

static inline MemoryContext compat_context(MemoryContext parent, const char *name)
{
#if PG_VERSION_NUM >= 110000
	/* the macro wants a literal; names are for people who read memory dumps */
	(void)name;
	return AllocSetContextCreate(parent, "gpu_cnn", ALLOCSET_DEFAULT_SIZES);
#elif PG_VERSION_NUM >= 90600
	return AllocSetContextCreate(parent, name, ALLOCSET_DEFAULT_SIZES);
#else
	return AllocSetContextCreate(parent, name, ALLOCSET_DEFAULT_MINSIZE,
				     ALLOCSET_DEFAULT_INITSIZE, ALLOCSET_DEFAULT_MAXSIZE);
#endif
}

/* Calls f(arg) when the context goes. Before 9.5 nothing tells: then the end of the statement that
 * the client sent has to do. */
static inline void compat_on_reset(MemoryContext context, void (*f)(void *), void *arg)
{
#if PG_VERSION_NUM >= 90500
	MemoryContextCallback *c = MemoryContextAllocZero(context, sizeof(*c));

	c->func = f;
	c->arg = arg;
	MemoryContextRegisterResetCallback(context, c);
#else
	(void)context;
	(void)f;
	(void)arg;
#endif
}

/* ---- row types ---- */

#if PG_VERSION_NUM >= 120000
#define compat_tuple_desc(columns) CreateTemplateTupleDesc(columns)
#else
#define compat_tuple_desc(columns) CreateTemplateTupleDesc(columns, false)
#endif

/* ---- TOAST ---- */

/* Is the value stored out of line and not compressed, so that slices of it can be had? Bytes of it
 * without its header. */
static inline bool compat_external(Datum value, int64 *bytes)
{
#if PG_VERSION_NUM >= 130000
	struct varlena *attr = (struct varlena *)DatumGetPointer(value);
	struct varatt_external toast;

	if (!VARATT_IS_EXTERNAL_ONDISK(attr))
		return false;
	VARATT_EXTERNAL_GET_POINTER(toast, attr);
	if (VARATT_EXTERNAL_IS_COMPRESSED(toast))
		return false;
	*bytes = (int64)toast.va_rawsize - VARHDRSZ;
	return true;
#else
	(void)value;
	(void)bytes;
	return false;
#endif
}

static inline struct varlena *compat_slice(Datum value, int32 offset, int32 bytes)
{
	return PG_DETOAST_DATUM_SLICE(value, offset, bytes);
}

/* ---- numbers ---- */

#define COMPAT_FLOAT8 32

/* The shortest text that reads back as the same number, as the server writes it from 12 on unless
 * extra_float_digits says otherwise. The value is finite. */
static inline const char *compat_float8(double v, char text[COMPAT_FLOAT8])
{
#if PG_VERSION_NUM >= 120000
	double_to_shortest_decimal_buf(v, text);
#else
	int digits = 15;

	do
		snprintf(text, COMPAT_FLOAT8, "%.*g", digits, v);
	while (digits++ < 17 && strtod(text, NULL) != v);
#endif
	return text;
}

/* ---- custom settings ---- */

#if PG_VERSION_NUM >= 150000
#define compat_reserve_prefix(prefix) MarkGUCPrefixReserved(prefix)
#else
#define compat_reserve_prefix(prefix) EmitWarningsOnPlaceholders(prefix)
#endif

#endif
