// SPDX-License-Identifier: MIT
/*
 * node_values.c: parameters into libpq's binary form, results out of it, for the few types that the
 * calls of a job have. Not by the types' receive functions: those take texts for the encoding of
 * this session's client, and bytes from another server are to be checked here all the same.
 */
#include "nodes.h"

/* ---- out ---- */

static void put32(StringInfo s, uint32 v)
{
	v = htonl(v);
	appendBinaryStringInfo(s, (char *)&v, sizeof(v));
}

static void put64(StringInfo s, uint64 v)
{
	put32(s, (uint32)(v >> 32));
	put32(s, (uint32)v);
}

static uint64 bits_of(float8 v)
{
	uint64 u;

	memcpy(&u, &v, sizeof(u));
	return u;
}

static void put_int4_array(StringInfo s, ArrayType *a)
{
	const int32 *v = (const int32 *)ARR_DATA_PTR(a);
	int n = ArrayGetNItems(ARR_NDIM(a), ARR_DIMS(a)), i;

	put32(s, n ? 1 : 0);
	put32(s, 0);
	put32(s, INT4OID);
	if (!n)
		return;
	put32(s, (uint32)n);
	put32(s, 1);
	for (i = 0; i < n; i++) {
		put32(s, sizeof(int32));
		put32(s, (uint32)v[i]);
	}
}

static void put_value(StringInfo s, Oid type, Datum d)
{
	struct varlena *v;

	switch (type) {
	case BOOLOID:
		appendStringInfoChar(s, DatumGetBool(d) ? 1 : 0);
		return;
	case INT4OID:
		put32(s, (uint32)DatumGetInt32(d));
		return;
	case INT8OID:
		put64(s, (uint64)DatumGetInt64(d));
		return;
	case FLOAT8OID:
		put64(s, bits_of(DatumGetFloat8(d)));
		return;
	case TEXTOID:
	case BYTEAOID:
		v = PG_DETOAST_DATUM_PACKED(d);
		appendBinaryStringInfo(s, VARDATA_ANY(v), (int)VARSIZE_ANY_EXHDR(v));
		return;
	case INT4ARRAYOID:
		put_int4_array(s, DatumGetArrayTypeP(d));
		return;
	default:
		elog(ERROR, "a parameter of type %u cannot be sent to a node", type);
	}
}

void node_encode(const struct args *args, struct node_params *out)
{
	size_t n = (size_t)args->n + 1;
	int i;

	out->n = args->n;
	out->type = palloc0(sizeof(*out->type) * n);
	out->value = palloc0(sizeof(*out->value) * n);
	out->length = palloc0(sizeof(*out->length) * n);
	out->format = palloc0(sizeof(*out->format) * n);
	for (i = 0; i < args->n; i++) {
		StringInfoData s;

		out->type[i] = args->type[i];
		out->format[i] = 1;
		if (args->null[i] == 'n')
			continue;
		initStringInfo(&s);
		put_value(&s, args->type[i], args->value[i]);
		out->value[i] = s.data;
		out->length[i] = s.len;
	}
}

/* ---- in ---- */

static void malformed(const struct node *n) __attribute__((noreturn));
static void malformed(const struct node *n)
{
	ereport(ERROR,
		(errcode(ERRCODE_PROTOCOL_VIOLATION),
		 errmsg("node \"%s\" sent a malformed answer", n->name),
		 errhint("The extension there may be another build than here, gpu_cnn_version() "
			 "says which.")));
	pg_unreachable();
}

void node_check(const struct node *n, const PGresult *r, TupleDesc desc)
{
	int i;

	if (PQnfields(r) != desc->natts)
		malformed(n);
	for (i = 0; i < desc->natts; i++)
		if (PQftype(r, i) != TupleDescAttr(desc, i)->atttypid || PQfformat(r, i) != 1)
			malformed(n);
}

struct in {
	const struct node *node;
	const char *p;
	int left;
};

static const char *take(struct in *in, int n)
{
	const char *p = in->p;

	if (n < 0 || n > in->left)
		malformed(in->node);
	in->p += n;
	in->left -= n;
	return p;
}

static uint32 get32(struct in *in)
{
	uint32 v;

	memcpy(&v, take(in, sizeof(v)), sizeof(v));
	return ntohl(v);
}

static uint64 get64(struct in *in)
{
	uint64 high = get32(in);

	return high << 32 | get32(in);
}

static float8 get_float8(struct in *in)
{
	uint64 u = get64(in);
	float8 v;

	memcpy(&v, &u, sizeof(v));
	return v;
}

static float4 get_float4(struct in *in)
{
	uint32 u = get32(in);
	float4 v;

	memcpy(&v, &u, sizeof(v));
	return v;
}

static text *get_text(struct in *in, int n)
{
	const char *p = take(in, n);

	pg_verify_mbstr(GetDatabaseEncoding(), p, n, false);
	return cstring_to_text_with_len(p, n);
}

static Datum get_scalar(struct in *in, Oid type, int n)
{
	switch (type) {
	case BOOLOID:
		return BoolGetDatum(*take(in, 1) != 0);
	case INT4OID:
		return Int32GetDatum((int32)get32(in));
	case INT8OID:
		return Int64GetDatum((int64)get64(in));
	case FLOAT4OID:
		return Float4GetDatum(get_float4(in));
	case FLOAT8OID:
		return Float8GetDatum(get_float8(in));
	case TEXTOID:
		return PointerGetDatum(get_text(in, n));
	case BYTEAOID:
		return PointerGetDatum(bytes_of(take(in, n), (size_t)n));
	default:
		malformed(in->node);
	}
}

/* One dimension, from 1, without NULLs. */
static Datum get_array(struct in *in, Oid element)
{
	uint32 dims = get32(in), n = 0, i;
	Datum *v;
	int16 size;
	bool by_value;
	char align;

	if (get32(in) || get32(in) != element || dims > 1)
		malformed(in->node);
	if (dims) {
		n = get32(in);
		if (get32(in) != 1)
			malformed(in->node);
	}
	if (n > (uint32)in->left / sizeof(uint32)) /* each has its length in front */
		malformed(in->node);
	v = palloc(sizeof(Datum) * ((size_t)n + 1));
	for (i = 0; i < n; i++) {
		struct in one = {in->node, NULL, 0};

		one.left = (int)get32(in);
		one.p = take(in, one.left);
		v[i] = get_scalar(&one, element, one.left);
		if (one.left)
			malformed(in->node);
	}
	get_typlenbyvalalign(element, &size, &by_value, &align);
	return PointerGetDatum(construct_array(v, (int)n, element, size, by_value, align));
}

void node_decode(const struct node *n, const PGresult *r, int row, TupleDesc desc, Datum *value,
		 bool *null)
{
	int i;

	for (i = 0; i < desc->natts; i++) {
		Oid type = TupleDescAttr(desc, i)->atttypid, element = get_element_type(type);
		struct in in = {n, PQgetvalue(r, row, i), PQgetlength(r, row, i)};

		value[i] = (Datum)0;
		null[i] = PQgetisnull(r, row, i) != 0;
		if (null[i])
			continue;
		value[i] = OidIsValid(element) ? get_array(&in, element)
					       : get_scalar(&in, type, in.left);
		if (in.left)
			malformed(n);
	}
}
