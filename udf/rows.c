// SPDX-License-Identifier: MIT
/* rows.c: the result of a set-returning function as a tuplestore, alike on all server versions. */
#include "gpu_cnn.h"

void rows_begin(FunctionCallInfo fcinfo, struct rows *rows)
{
	ReturnSetInfo *info = (ReturnSetInfo *)fcinfo->resultinfo;
	MemoryContext old;
	TupleDesc desc;

	if (!info || !IsA(info, ReturnSetInfo) || !(info->allowedModes & SFRM_Materialize))
		ereport(ERROR,
			(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
			 errmsg("this function returns rows, in a context that cannot take them"),
			 errhint("Call it as SELECT * FROM function(...).")));
	if (get_call_result_type(fcinfo, NULL, &desc) != TYPEFUNC_COMPOSITE)
		elog(ERROR, "return type must be a row type");
	old = MemoryContextSwitchTo(info->econtext->ecxt_per_query_memory);
	rows->desc = CreateTupleDescCopy(desc);
	rows->store = tuplestore_begin_heap((info->allowedModes & SFRM_Materialize_Random) != 0,
					    false, work_mem);
	info->returnMode = SFRM_Materialize;
	info->setResult = rows->store;
	info->setDesc = rows->desc;
	MemoryContextSwitchTo(old);
}

void rows_add(struct rows *rows, Datum *values, bool *nulls)
{
	tuplestore_putvalues(rows->store, rows->desc, values, nulls);
}

bytea *bytes_of(const void *p, size_t n)
{
	bytea *b = palloc(VARHDRSZ + n);

	SET_VARSIZE(b, VARHDRSZ + n);
	if (n)
		memcpy(VARDATA(b), p, n);
	return b;
}

text *text_of(struct ctl_str s)
{
	/* the daemon's texts are UTF-8, but what is in them may have come from anywhere */
	char *p = pnstrdup(s.n ? s.p : "", s.n);
	char *q;

	if (!pg_verify_mbstr(PG_UTF8, p, (int)s.n, true))
		for (q = p; *q; q++)
			if (*q & 0x80)
				*q = '?';
	return cstring_to_text(pg_any_to_server(p, (int)strlen(p), PG_UTF8));
}

char *cstring_of(struct ctl_str s)
{
	return text_to_cstring(text_of(s));
}
