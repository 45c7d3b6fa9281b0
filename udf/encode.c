// SPDX-License-Identifier: MIT
/*
 * encode.c: a row of the user's table in the form of userspace/ctl/row.h. Knows types and TOAST,
 * not where the bytes go (feed.c: the ring; predict_one.c: memory). Values that are stored out of
 * line and uncompressed are fetched slice by slice, so that a 1 GB value needs no 1 GB here.
 */
#include "gpu_cnn.h"

#if defined(WORDS_BIGENDIAN)
#error "rows are little-endian; this code copies elements as they are in memory"
#endif

#define SLICE_MIN (64 << 10) /* smaller values are fetched whole */
#define ARRAY_HEAD ((int32)(sizeof(ArrayType) - VARHDRSZ + 2 * sizeof(int) * MAXDIM))

/* ---- types ---- */

static enum row_type number_form(Oid type)
{
	switch (type) {
	case INT2OID:
		return ROW_I16;
	case INT4OID:
		return ROW_I32;
	case INT8OID:
		return ROW_I64;
	case FLOAT4OID:
		return ROW_F32;
	case FLOAT8OID:
	case NUMERICOID:
		return ROW_F64;
	default:
		return ROW_NONE;
	}
}

static enum row_type label_form(Oid type)
{
	enum row_type form = number_form(type);

	if (form != ROW_NONE)
		return form;
	switch (type) {
	case BOOLOID:
		return ROW_BOOL;
	case TEXTOID:
	case VARCHAROID:
	case BPCHAROID:
	case NAMEOID:
	case CHAROID:
		return ROW_TEXT;
	default:
		return type_is_enum(type) ? ROW_TEXT : ROW_NONE;
	}
}

bool column_form(Oid type, bool image, struct column *out)
{
	Oid element;

	memset(out, 0, sizeof(*out));
	out->type = getBaseType(type);
	if (image && out->type == BYTEAOID) {
		out->form = ROW_BYTES;
		return true;
	}
	element = get_element_type(out->type);
	if (OidIsValid(element)) {
		out->element = element = getBaseType(element);
		out->form = element == BOOLOID ? ROW_BOOL : number_form(element);
		if (image && (out->form == ROW_BOOL || out->form == ROW_I64))
			out->form = ROW_NONE;
		out->raw = element != NUMERICOID;
		out->size = (int16)row_type_bytes(out->form);
		return out->form != ROW_NONE;
	}
	if (image)
		return false;
	out->form = label_form(out->type);
	return out->form != ROW_NONE;
}

static void open_output(struct column *c)
{
	Oid function;
	bool is_varlena;

	getTypeOutputInfo(c->type, &function, &is_varlena);
	fmgr_info(function, &c->output);
}

void column_open(Oid type, bool image, const char *what, struct column *out)
{
	if (!column_form(type, image, out))
		ereport(ERROR,
			(errcode(ERRCODE_DATATYPE_MISMATCH),
			 errmsg("%s of type %s cannot be used", what, format_type_be(type)),
			 image ? errhint("Images are bytea (raw bytes, JPEG or PNG) or arrays of "
					 "smallint, integer, real, double precision or numeric.")
			       : errhint("Labels are integers, text, boolean, an enum, floats (for "
					 "a regression) or arrays of numbers.")));
	if (out->form == ROW_TEXT)
		open_output(out);
}

void column_open_id(Oid type, struct column *out)
{
	memset(out, 0, sizeof(*out));
	out->type = getBaseType(type);
	out->form = ROW_TEXT;
	open_output(out);
}

/* ---- values ---- */

static void put(struct piece *out, const void *p, size_t n)
{
	char *copy = palloc(n ? n : 1);

	memcpy(copy, p, n);
	out->data = copy;
	out->bytes = n;
}

static void text_piece(struct column *column, Datum value, struct piece *out)
{
	char *s = OutputFunctionCall(&column->output, value);
	size_t n = strlen(s);
	char *utf8;

	if (column->type == BPCHAROID)
		while (n && s[n - 1] == ' ')
			n--;
	utf8 = pg_server_to_any(s, (int)n, PG_UTF8);
	out->data = utf8;
	out->bytes = utf8 == s ? n : strlen(utf8);
}

static void scalar_piece(struct column *column, Datum value, struct piece *out)
{
	union {
		uint8 b;
		int16 i16;
		int32 i32;
		int64 i64;
		float f;
		double d;
	} v;

	switch (column->type) {
	case BOOLOID:
		v.b = DatumGetBool(value) ? 1 : 0;
		put(out, &v.b, 1);
		return;
	case INT2OID:
		v.i16 = DatumGetInt16(value);
		put(out, &v.i16, sizeof(v.i16));
		return;
	case INT4OID:
		v.i32 = DatumGetInt32(value);
		put(out, &v.i32, sizeof(v.i32));
		return;
	case INT8OID:
		v.i64 = DatumGetInt64(value);
		put(out, &v.i64, sizeof(v.i64));
		return;
	case FLOAT4OID:
		v.f = DatumGetFloat4(value);
		put(out, &v.f, sizeof(v.f));
		return;
	case FLOAT8OID:
	case NUMERICOID:
		v.d = piece_weight(column, value);
		put(out, &v.d, sizeof(v.d));
		return;
	default:
		text_piece(column, value, out);
	}
}

double piece_weight(const struct column *column, Datum value)
{
	switch (column->type) {
	case INT2OID:
		return DatumGetInt16(value);
	case INT4OID:
		return DatumGetInt32(value);
	case INT8OID:
		return (double)DatumGetInt64(value);
	case FLOAT4OID:
		return DatumGetFloat4(value);
	case FLOAT8OID:
		return DatumGetFloat8(value);
	case NUMERICOID:
		return DatumGetFloat8(DirectFunctionCall1(numeric_float8, value));
	default:
		elog(ERROR, "unexpected type %u of a number", column->type);
		return 0;
	}
}

/* Elements of an array by their dimensions; false when that overflows or there are too many. */
static bool array_count(int ndim, const int *dim, int64 *count)
{
	int i;

	*count = ndim ? 1 : 0;
	if (ndim < 0 || ndim > ROW_MAX_DIMS)
		return false;
	for (i = 0; i < ndim; i++) {
		if (dim[i] < 0 || (dim[i] && *count > PG_INT64_MAX / dim[i]))
			return false;
		*count *= dim[i];
	}
	return true;
}

static void set_dims(struct piece *out, int ndim, const int *dim)
{
	int i;

	out->dims = (uint8)(ndim ? ndim : 1);
	out->dim[0] = 0;
	for (i = 0; i < ndim; i++)
		out->dim[i] = (uint32)dim[i];
}

/* An out-of-line, uncompressed array without NULLs: its head only, the rest later in slices. */
static bool sliced_array(const struct column *column, Datum value, int64 bytes, struct piece *out)
{
	struct {
		int32 vl_len_; /* not in the slice */
		int ndim;
		int32 dataoffset;
		Oid elemtype;
		int dims[2 * MAXDIM];
	} head;
	struct varlena *slice = compat_slice(value, 0, ARRAY_HEAD);
	int64 count;
	int32 skip;

	if (VARSIZE_ANY_EXHDR(slice) < ARRAY_HEAD)
		return false;
	memcpy(&head.ndim, VARDATA_ANY(slice), ARRAY_HEAD);
	if (head.dataoffset || getBaseType(head.elemtype) != column->element ||
	    !array_count(head.ndim, head.dims, &count))
		return false;
	skip = (int32)ARR_OVERHEAD_NONULLS(head.ndim) - VARHDRSZ;
	if (count * column->size != bytes - skip)
		return false;
	set_dims(out, head.ndim, head.dims);
	out->sliced = true;
	out->toast = value;
	out->skip = skip;
	out->bytes = (uint64)(count * column->size);
	return true;
}

static void numeric_array(ArrayType *array, int64 count, struct piece *out)
{
	Datum *element;
	bool *nulls;
	int n, i;
	double *v;

	deconstruct_array(array, NUMERICOID, -1, false, 'i', &element, &nulls, &n);
	v = palloc(sizeof(double) * (size_t)(n ? n : 1));
	for (i = 0; i < n && i < count; i++)
		v[i] = DatumGetFloat8(DirectFunctionCall1(numeric_float8, element[i]));
	out->data = (const char *)v;
	out->bytes = sizeof(double) * (uint64)n;
}

static void array_piece(const struct column *column, Datum value, struct piece *out)
{
	ArrayType *array;
	int64 count, bytes;

	if (column->raw && compat_external(value, &bytes) && bytes > SLICE_MIN &&
	    sliced_array(column, value, bytes, out))
		return;
	array = DatumGetArrayTypeP(value);
	if (!array_count(ARR_NDIM(array), ARR_DIMS(array), &count))
		ereport(ERROR, (errcode(ERRCODE_PROGRAM_LIMIT_EXCEEDED),
				errmsg("array with too many elements")));
	set_dims(out, ARR_NDIM(array), ARR_DIMS(array));
	if (ARR_HASNULL(array) && array_contains_nulls(array)) {
		out->element_null = true;
		return;
	}
	if (!column->raw) {
		numeric_array(array, count, out);
		return;
	}
	out->data = ARR_DATA_PTR(array);
	out->bytes = (uint64)(count * column->size);
}

static void bytes_piece(Datum value, struct piece *out)
{
	struct varlena *v;
	int64 bytes;

	if (compat_external(value, &bytes) && bytes > SLICE_MIN) {
		out->sliced = true;
		out->toast = value;
		out->bytes = (uint64)bytes;
		return;
	}
	v = PG_DETOAST_DATUM_PACKED(value);
	out->data = VARDATA_ANY(v);
	out->bytes = VARSIZE_ANY_EXHDR(v);
}

void piece_value(const struct column *column, Datum value, bool null, struct piece *out)
{
	memset(out, 0, sizeof(*out));
	if (null)
		out->null = true;
	else if (column->form == ROW_BYTES)
		bytes_piece(value, out);
	else if (OidIsValid(column->element))
		array_piece(column, value, out);
	else
		scalar_piece((struct column *)column, value, out);
}

void piece_id(struct column *column, Datum value, bool null, struct piece *out)
{
	memset(out, 0, sizeof(*out));
	if (null || !OidIsValid(column->type))
		return;
	text_piece(column, value, out);
	if (out->bytes > ROW_MAX_ID)
		ereport(ERROR, (errcode(ERRCODE_STRING_DATA_RIGHT_TRUNCATION),
				errmsg("id of " UINT64_FORMAT " bytes, at most %u", out->bytes,
				       ROW_MAX_ID),
				errhint("Choose a shorter id_column.")));
}

/* ---- the row ---- */

static void write_piece(struct encoder *e, const struct piece *p)
{
	uint64 at, n;

	if (!p->sliced) {
		if (p->bytes)
			e->write(e, p->data, p->bytes);
		return;
	}
	for (at = 0; at < p->bytes; at += n) {
		struct varlena *v;

		n = Min(p->bytes - at, e->slice);
		v = compat_slice(p->toast, p->skip + (int32)at, (int32)n);
		if (VARSIZE_ANY_EXHDR(v) != n)
			ereport(ERROR, (errcode(ERRCODE_DATA_CORRUPTED),
					errmsg("a stored value is shorter than its header says")));
		e->write(e, VARDATA_ANY(v), n);
		pfree(v);
	}
}

uint64 encode_row(struct encoder *e, const struct piece *id, const struct piece *x,
		  const struct piece *y, const struct piece *weight, double weight_value)
{
	struct row_head head;
	uint8 bytes[ROW_HEAD];
	uint64 total;

	memset(&head, 0, sizeof(head));
	if (y->bytes > PG_UINT32_MAX)
		ereport(ERROR, (errcode(ERRCODE_PROGRAM_LIMIT_EXCEEDED),
				errmsg("label of " UINT64_FORMAT " bytes", y->bytes)));
	head.id_bytes = (uint32)id->bytes;
	head.y_bytes = (uint32)y->bytes;
	head.x_bytes = x->bytes;
	head.flags = (x->null ? ROW_X_NULL : 0) | (y->null ? ROW_Y_NULL : 0) |
		     (weight->null ? ROW_W_NULL : 0) |
		     (x->element_null || y->element_null ? ROW_ARRAY_NULL : 0);
	head.x_dims = x->element_null ? 0 : x->dims;
	head.y_dims = y->element_null ? 0 : y->dims;
	memcpy(head.x_dim, x->dim, sizeof(uint32) * head.x_dims);
	head.weight = weight_value;
	row_head_encode(&head, bytes);
	total = ROW_HEAD + id->bytes + y->bytes + x->bytes;
	e->begin(e, total);
	e->write(e, bytes, ROW_HEAD);
	write_piece(e, id);
	write_piece(e, y);
	write_piece(e, x);
	e->end(e);
	return total;
}
