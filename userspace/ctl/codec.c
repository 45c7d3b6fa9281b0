// SPDX-License-Identifier: MIT
/*
 * codec.c: frames to messages and back. One table says which fields a type has, in which order and
 * width; encoding, decoding and the checks all read that table.
 */
#include "ctl.h"

#include <errno.h>
#include <stddef.h>
#include <string.h>

enum field_kind {
	F_END = 0,
	F_U8,
	F_BOOL,
	F_U16,
	F_U32,
	F_I32,
	F_U64,
	F_F64,
	F_ID,
	F_STR,
	F_METRICS
};

struct field {
	uint8_t kind;
	uint16_t offset; /* in struct ctl_msg */
	uint32_t max;	 /* F_STR: bytes; others: largest value, 0: any */
	const char *name;
};

#define MAX_NAME 256u
#define MAX_TEXT 8192u
#define MAX_SPEC ((16u << 20) + 65536u)
#define MAX_BLOB (64u << 20)
#define MAX_PEERS (CTL_HOSTS_MAX * 160u)

#define FIELD(kind_, member, max_)                                                 \
	{                                                                          \
		kind_, (uint16_t)offsetof(struct ctl_msg, u.member), max_, #member \
	}
#define FIELDS(name) static const struct field name[]
#define END                       \
	{                         \
		F_END, 0, 0, NULL \
	}

FIELDS(f_none) = {END};
FIELDS(f_hello) = {FIELD(F_U16, hello.version_min, 0),	   FIELD(F_U16, hello.version_max, 0),
		   FIELD(F_U64, hello.features, 0),	   FIELD(F_U32, hello.pid, 0),
		   FIELD(F_STR, hello.client, MAX_NAME),   FIELD(F_STR, hello.role, MAX_NAME),
		   FIELD(F_STR, hello.database, MAX_NAME), END};
FIELDS(f_hello_ok) = {FIELD(F_U16, hello_ok.version, 0),     FIELD(F_U64, hello_ok.features, 0),
		      FIELD(F_ID, hello_ok.uuid, 0),	     FIELD(F_U32, hello_ok.pid, 0),
		      FIELD(F_STR, hello_ok.host, MAX_NAME), FIELD(F_STR, hello_ok.build, MAX_TEXT),
		      FIELD(F_STR, hello_ok.ring, MAX_TEXT), END};
FIELDS(f_error) = {FIELD(F_U32, error.kind, ERR_KIND_COUNT - 1),
		   FIELD(F_STR, error.message, MAX_TEXT), FIELD(F_STR, error.hint, MAX_TEXT), END};
FIELDS(f_heartbeat) = {FIELD(F_U32, heartbeat.epoch, 0),       FIELD(F_U32, heartbeat.epochs, 0),
		       FIELD(F_U64, heartbeat.step, 0),	       FIELD(F_U64, heartbeat.steps, 0),
		       FIELD(F_U64, heartbeat.rows, 0),	       FIELD(F_F64, heartbeat.loss, 0),
		       FIELD(F_STR, heartbeat.wait, MAX_NAME), END};
FIELDS(f_begin) = {FIELD(F_ID, begin.secret, 0),
		   FIELD(F_U8, begin.kind, CTL_EVALUATION),
		   FIELD(F_U64, begin.start_us, 0),
		   FIELD(F_I32, begin.segindex, 0),
		   FIELD(F_U32, begin.segments, 0),
		   FIELD(F_STR, begin.role, MAX_NAME),
		   FIELD(F_STR, begin.leader, MAX_NAME),
		   FIELD(F_STR, begin.spec, MAX_SPEC),
		   END};
FIELDS(f_begin_ok) = {FIELD(F_BOOL, begin_ok.admitted, 0),
		      FIELD(F_ID, begin_ok.uuid, 0),
		      FIELD(F_U64, begin_ok.free_memory, 0),
		      FIELD(F_U32, begin_ok.running, 0),
		      FIELD(F_STR, begin_ok.address, MAX_NAME),
		      FIELD(F_STR, begin_ok.devices, MAX_TEXT),
		      FIELD(F_STR, begin_ok.reason, MAX_TEXT),
		      FIELD(F_STR, begin_ok.notice, MAX_TEXT),
		      END};
FIELDS(f_feed) = {FIELD(F_ID, feed.secret, 0),	     FIELD(F_U8, feed.set, 2),
		  FIELD(F_I32, feed.segindex, 0),    FIELD(F_U8, feed.x_type, 15),
		  FIELD(F_U8, feed.y_type, 15),	     FIELD(F_BOOL, feed.x_array, 0),
		  FIELD(F_BOOL, feed.y_array, 0),    FIELD(F_BOOL, feed.has_y, 0),
		  FIELD(F_BOOL, feed.has_weight, 0), FIELD(F_BOOL, feed.has_id, 0),
		  FIELD(F_U8, feed.ring, 2),	     END};
FIELDS(f_feed_ok) = {FIELD(F_U32, feed_ok.feeder, 0),	     FIELD(F_U64, feed_ok.ring_bytes, 0),
		     FIELD(F_U64, feed_ok.max_value, 0),     FIELD(F_STR, feed_ok.ring, MAX_NAME),
		     FIELD(F_STR, feed_ok.notice, MAX_TEXT), END};
FIELDS(f_feed_end) = {FIELD(F_U64, feed_end.rows, 0), FIELD(F_U64, feed_end.bytes, 0), END};
FIELDS(f_feed_done) = {FIELD(F_U64, feed_done.rows, 0), FIELD(F_U64, feed_done.held, 0),
		       FIELD(F_U64, feed_done.bad, 0), FIELD(F_U64, feed_done.bytes, 0), END};
FIELDS(f_secret) = {FIELD(F_ID, secret.secret, 0), END};
FIELDS(f_blob) = {FIELD(F_ID, blob.secret, 0), FIELD(F_STR, blob.blob, MAX_BLOB), END};
FIELDS(f_rows) = {FIELD(F_ID, blob.secret, 0), FIELD(F_STR, blob.blob, CTL_ROWS_MAX), END};
FIELDS(f_predict) = {FIELD(F_ID, blob.secret, 0), FIELD(F_STR, blob.blob, MAX_BLOB), END};
FIELDS(f_apply) = {FIELD(F_ID, apply.secret, 0),
		   FIELD(F_STR, apply.blob, MAX_BLOB),
		   FIELD(F_U32, apply.rank, 0),
		   FIELD(F_U32, apply.hosts, CTL_HOSTS_MAX),
		   FIELD(F_BOOL, apply.reshuffle, 0),
		   FIELD(F_STR, apply.peers, MAX_PEERS),
		   END};
FIELDS(f_lead) = {FIELD(F_ID, lead.secret, 0), FIELD(F_STR, lead.role, MAX_NAME), END};
FIELDS(f_lead_ok) = {FIELD(F_STR, lead_ok.address, MAX_NAME), END};
FIELDS(f_members) = {FIELD(F_ID, members.secret, 0), FIELD(F_U32, members.hosts, CTL_HOSTS_MAX),
		     FIELD(F_U32, members.min_hosts, CTL_HOSTS_MAX),
		     FIELD(F_STR, members.names, MAX_PEERS), END};
FIELDS(f_apply_ok) = {FIELD(F_U64, apply_ok.parameters, 0),
		      FIELD(F_U32, apply_ok.h, 0),
		      FIELD(F_U32, apply_ok.w, 0),
		      FIELD(F_U32, apply_ok.c, 0),
		      FIELD(F_U32, apply_ok.outputs, 0),
		      FIELD(F_U32, apply_ok.batch_size, 0),
		      FIELD(F_U64, apply_ok.steps, 0),
		      FIELD(F_F64, apply_ok.effective_batch, 0),
		      FIELD(F_U64, apply_ok.bytes, 0),
		      FIELD(F_U64, apply_ok.rows, 0),
		      FIELD(F_U64, apply_ok.rows_moved, 0),
		      FIELD(F_F64, apply_ok.seconds_exchange, 0),
		      FIELD(F_STR, apply_ok.notice, MAX_TEXT),
		      END};
FIELDS(f_run) = {FIELD(F_ID, run.secret, 0),
		 FIELD(F_U32, run.first_epoch, 0),
		 FIELD(F_U32, run.count, 0),
		 FIELD(F_F64, run.lr_factor, 0),
		 FIELD(F_U32, run.flags, 0),
		 FIELD(F_U32, run.merge_every, 0),
		 END};
FIELDS(f_run_row) = {FIELD(F_U32, run_row.epoch, 0),
		     FIELD(F_U32, run_row.flags, 0),
		     FIELD(F_U64, run_row.steps, 0),
		     FIELD(F_U64, run_row.rows, 0),
		     FIELD(F_F64, run_row.loss, 0),
		     FIELD(F_F64, run_row.validation_loss, 0),
		     FIELD(F_F64, run_row.lr, 0),
		     FIELD(F_F64, run_row.lr_factor, 0),
		     FIELD(F_F64, run_row.seconds_train, 0),
		     FIELD(F_F64, run_row.seconds_merge, 0),
		     FIELD(F_F64, run_row.seconds_evaluate, 0),
		     FIELD(F_U32, run_row.hosts, 0),
		     FIELD(F_U32, run_row.merge_auto, 0),
		     FIELD(F_U64, run_row.merges, 0),
		     FIELD(F_U64, run_row.merge_bytes, 0),
		     FIELD(F_U64, run_row.merge_number, 0),
		     FIELD(F_U64, run_row.merge_checksum, 0),
		     FIELD(F_F64, run_row.distance, 0),
		     FIELD(F_METRICS, run_row.metrics, 0),
		     FIELD(F_STR, run_row.note, MAX_TEXT),
		     END};
FIELDS(f_get) = {FIELD(F_ID, get.secret, 0), FIELD(F_U32, get.kind, CTL_CONFUSION),
		 FIELD(F_U32, get.part, 0), END};
FIELDS(f_part) = {FIELD(F_ID, part.secret, 0),
		  FIELD(F_U32, part.kind, CTL_CONFUSION),
		  FIELD(F_U32, part.part, 0),
		  FIELD(F_U32, part.parts, 0),
		  FIELD(F_U64, part.total, 0),
		  FIELD(F_STR, part.data, CTL_PART_MAX),
		  END};
FIELDS(f_bad_row) = {FIELD(F_U8, bad_row.set, 2), FIELD(F_STR, bad_row.id, MAX_TEXT),
		     FIELD(F_STR, bad_row.reason, MAX_TEXT), END};
FIELDS(f_describe) = {FIELD(F_U32, describe.h, 0),
		      FIELD(F_U32, describe.w, 0),
		      FIELD(F_U32, describe.c, 0),
		      FIELD(F_U32, describe.outputs, 0),
		      FIELD(F_STR, describe.architecture, MAX_SPEC),
		      END};
FIELDS(f_describe_ok) = {
	FIELD(F_U64, describe_ok.trainable, 0),	  FIELD(F_U64, describe_ok.frozen, 0),
	FIELD(F_U32, describe_ok.h, 0),		  FIELD(F_U32, describe_ok.w, 0),
	FIELD(F_U32, describe_ok.c, 0),		  FIELD(F_U32, describe_ok.outputs, 0),
	FIELD(F_U32, describe_ok.layers, 0),	  FIELD(F_U64, describe_ok.blob_bytes, 0),
	FIELD(F_STR, describe_ok.name, MAX_NAME), FIELD(F_STR, describe_ok.summary, MAX_SPEC),
	FIELD(F_STR, describe_ok.json, MAX_SPEC), END};
FIELDS(f_job) = {FIELD(F_ID, entry.id, 0),
		 FIELD(F_U8, entry.kind, CTL_EVALUATION),
		 FIELD(F_BOOL, entry.own, 0),
		 FIELD(F_U32, entry.epoch, 0),
		 FIELD(F_U32, entry.epochs, 0),
		 FIELD(F_U64, entry.step, 0),
		 FIELD(F_U64, entry.steps, 0),
		 FIELD(F_U64, entry.rows, 0),
		 FIELD(F_F64, entry.loss, 0),
		 FIELD(F_F64, entry.seconds, 0),
		 FIELD(F_U64, entry.memory, 0),
		 FIELD(F_U32, entry.merges, 0),
		 FIELD(F_U64, entry.checksum, 0),
		 FIELD(F_BOOL, entry.ended, 0),
		 FIELD(F_STR, entry.role, MAX_NAME),
		 FIELD(F_STR, entry.database, MAX_NAME),
		 FIELD(F_STR, entry.state, MAX_NAME),
		 FIELD(F_STR, entry.wait, MAX_NAME),
		 FIELD(F_STR, entry.device, MAX_NAME),
		 FIELD(F_STR, entry.model, MAX_NAME),
		 END};
FIELDS(f_device) = {FIELD(F_U32, device.index, 0),	 FIELD(F_U64, device.memory, 0),
		    FIELD(F_U64, device.free_memory, 0), FIELD(F_U32, device.jobs, 0),
		    FIELD(F_STR, device.name, MAX_NAME), FIELD(F_STR, device.kind, MAX_NAME),
		    FIELD(F_STR, device.info, MAX_TEXT), END};
FIELDS(f_drain) = {FIELD(F_BOOL, drain.on, 0), END};

static const struct {
	const char *name;
	const struct field *field;
} types[CTL_TYPE_COUNT] = {
	[CTL_HELLO] = {"HELLO", f_hello},
	[CTL_HELLO_OK] = {"HELLO_OK", f_hello_ok},
	[CTL_ERROR] = {"ERROR", f_error},
	[CTL_HEARTBEAT] = {"HEARTBEAT", f_heartbeat},
	[CTL_OK] = {"OK", f_none},
	[CTL_DONE] = {"DONE", f_none},
	[CTL_BEGIN] = {"BEGIN", f_begin},
	[CTL_BEGIN_OK] = {"BEGIN_OK", f_begin_ok},
	[CTL_WATCH] = {"WATCH", f_secret},
	[CTL_FEED] = {"FEED", f_feed},
	[CTL_FEED_OK] = {"FEED_OK", f_feed_ok},
	[CTL_FEED_END] = {"FEED_END", f_feed_end},
	[CTL_FEED_DONE] = {"FEED_DONE", f_feed_done},
	[CTL_AGREE] = {"AGREE", f_secret},
	[CTL_AGREE_PART] = {"AGREE_PART", f_blob},
	[CTL_APPLY] = {"APPLY", f_apply},
	[CTL_APPLY_OK] = {"APPLY_OK", f_apply_ok},
	[CTL_RUN] = {"RUN", f_run},
	[CTL_RUN_ROW] = {"RUN_ROW", f_run_row},
	[CTL_GET] = {"GET", f_get},
	[CTL_PUT] = {"PUT", f_part},
	[CTL_PART] = {"PART", f_part},
	[CTL_COLLECT] = {"COLLECT", f_secret},
	[CTL_ROWS] = {"ROWS", f_rows},
	[CTL_BAD_ROWS] = {"BAD_ROWS", f_secret},
	[CTL_BAD_ROW] = {"BAD_ROW", f_bad_row},
	[CTL_PREDICT] = {"PREDICT", f_predict},
	[CTL_END] = {"END", f_secret},
	[CTL_DESCRIBE] = {"DESCRIBE", f_describe},
	[CTL_DESCRIBE_OK] = {"DESCRIBE_OK", f_describe_ok},
	[CTL_STATUS] = {"STATUS", f_none},
	[CTL_JOB] = {"JOB", f_job},
	[CTL_DEVICES] = {"DEVICES", f_none},
	[CTL_DEVICE] = {"DEVICE", f_device},
	[CTL_STOP] = {"STOP", f_secret},
	[CTL_DRAIN] = {"DRAIN", f_drain},
	[CTL_LEAD] = {"LEAD", f_lead},
	[CTL_LEAD_OK] = {"LEAD_OK", f_lead_ok},
	[CTL_MEMBERS] = {"MEMBERS", f_members},
};

static uint32_t field_max(const struct field *f)
{
	switch (f->kind) {
	case F_U8:
	case F_BOOL:
		return 1;
	case F_U16:
		return 2;
	case F_U32:
	case F_I32:
		return 4;
	case F_U64:
	case F_F64:
		return 8;
	case F_ID:
		return CTL_ID;
	case F_STR:
		return 4 + f->max;
	case F_METRICS:
		return 4 + CTL_METRICS * (32 + 8 + 8);
	}
	return 0;
}

uint32_t ctl_max_length(unsigned int type)
{
	const struct field *f;
	uint32_t sum = 0;

	if (type >= CTL_TYPE_COUNT || !types[type].field)
		return 0;
	for (f = types[type].field; f->kind != F_END; f++)
		sum += field_max(f);
	return sum ? sum : 1; /* an empty payload is legal, 0 would mean unknown */
}

const char *ctl_type_name(unsigned int type)
{
	if (type >= CTL_TYPE_COUNT || !types[type].name)
		return "unknown";
	return types[type].name;
}

/* ---- little-endian pieces ---- */

static void put_le(uint8_t *p, uint64_t v, int n)
{
	for (int i = 0; i < n; i++)
		p[i] = (uint8_t)(v >> (8 * i));
}

static uint64_t get_le(const uint8_t *p, int n)
{
	uint64_t v = 0;

	for (int i = 0; i < n; i++)
		v |= (uint64_t)p[i] << (8 * i);
	return v;
}

static void put_f64(uint8_t *p, double d)
{
	uint64_t v;

	memcpy(&v, &d, 8);
	put_le(p, v, 8);
}

static double get_f64(const uint8_t *p)
{
	uint64_t v = get_le(p, 8);
	double d;

	memcpy(&d, &v, 8);
	return d;
}

/* ---- encoding ---- */

struct out {
	uint8_t *p, *end;
	bool overflow;
};

static uint8_t *out_take(struct out *o, size_t n)
{
	uint8_t *p = o->p;

	if ((size_t)(o->end - o->p) < n) {
		o->overflow = true;
		return NULL;
	}
	o->p += n;
	return p;
}

static void encode_metrics(struct out *o, const struct ctl_run_row *row)
{
	uint8_t *p = out_take(o, 4);

	if (!p)
		return;
	put_le(p, row->metrics, 4);
	for (uint32_t i = 0; i < row->metrics; i++) {
		p = out_take(o, 48);
		if (!p)
			return;
		memcpy(p, row->metric[i].name, 32);
		put_f64(p + 32, row->metric[i].train);
		put_f64(p + 40, row->metric[i].validation);
	}
}

static int encode_field(struct out *o, const struct field *f, const struct ctl_msg *msg)
{
	const uint8_t *src = (const uint8_t *)msg + f->offset;
	uint8_t *p;
	struct ctl_str s;
	uint64_t v = 0;
	uint32_t n = field_max(f);

	switch (f->kind) {
	case F_STR:
		memcpy(&s, src, sizeof(s));
		if (s.n > f->max || (s.n && !s.p))
			return -EINVAL;
		p = out_take(o, 4 + (size_t)s.n);
		if (!p)
			return 0;
		put_le(p, s.n, 4);
		if (s.n)
			memcpy(p + 4, s.p, s.n);
		return 0;
	case F_METRICS:
		if (msg->u.run_row.metrics > CTL_METRICS)
			return -EINVAL;
		encode_metrics(o, &msg->u.run_row);
		return 0;
	case F_ID:
		p = out_take(o, CTL_ID);
		if (p)
			memcpy(p, src, CTL_ID);
		return 0;
	default:
		/* the struct's own fields have the wire's width; the host is little-endian or not
		 */
		if (n == 1) {
			v = *src;
		} else if (n == 2) {
			uint16_t w;

			memcpy(&w, src, 2);
			v = w;
		} else if (n == 4) {
			uint32_t w;

			memcpy(&w, src, 4);
			v = w;
		} else {
			memcpy(&v, src, 8);
		}
		p = out_take(o, n);
		if (p)
			put_le(p, v, (int)n);
		return 0;
	}
}

long ctl_encode(const struct ctl_msg *msg, void *out, size_t capacity)
{
	struct out o = {out, (uint8_t *)out + capacity, false};
	const struct field *f;
	uint8_t *head;

	if ((unsigned int)msg->type >= CTL_TYPE_COUNT || !types[msg->type].field)
		return -EINVAL;
	head = out_take(&o, CTL_HEADER);
	if (!head)
		return -ENOSPC;
	for (f = types[msg->type].field; f->kind != F_END; f++)
		if (encode_field(&o, f, msg))
			return -EINVAL;
	if (o.overflow)
		return -ENOSPC;
	put_le(head, CTL_MAGIC, 4);
	put_le(head + 4, CTL_VERSION, 2);
	put_le(head + 6, (uint64_t)msg->type, 2);
	put_le(head + 8, (uint64_t)(o.p - head - CTL_HEADER), 4);
	put_le(head + 12, 0, 4);
	memcpy(head + 16, msg->job, CTL_ID);
	return o.p - head;
}

/* ---- decoding ---- */

struct in {
	const uint8_t *p, *end;
};

static const uint8_t *in_take(struct in *i, size_t n)
{
	const uint8_t *p = i->p;

	if ((size_t)(i->end - i->p) < n)
		return NULL;
	i->p += n;
	return p;
}

static int decode_metrics(struct in *in, struct ctl_run_row *row)
{
	const uint8_t *p = in_take(in, 4);

	if (!p)
		return -EPROTO;
	row->metrics = (uint32_t)get_le(p, 4);
	if (row->metrics > CTL_METRICS)
		return -EPROTO;
	for (uint32_t i = 0; i < row->metrics; i++) {
		p = in_take(in, 48);
		if (!p || !memchr(p, '\0', 32))
			return -EPROTO;
		memcpy(row->metric[i].name, p, 32);
		row->metric[i].train = get_f64(p + 32);
		row->metric[i].validation = get_f64(p + 40);
	}
	return 0;
}

static int decode_number(struct in *in, const struct field *f, uint8_t *dst)
{
	uint32_t n = field_max(f);
	const uint8_t *p = in_take(in, n);
	uint64_t v;

	if (!p)
		return -EPROTO;
	v = get_le(p, (int)n);
	if ((f->max && v > f->max) || (f->kind == F_BOOL && v > 1))
		return -EPROTO;
	if (n == 1) {
		*dst = (uint8_t)v;
	} else if (n == 2) {
		uint16_t w = (uint16_t)v;

		memcpy(dst, &w, 2);
	} else if (n == 4) {
		uint32_t w = (uint32_t)v;

		memcpy(dst, &w, 4);
	} else {
		memcpy(dst, &v, 8);
	}
	return 0;
}

static int decode_field(struct in *in, const struct field *f, struct ctl_msg *msg)
{
	uint8_t *dst = (uint8_t *)msg + f->offset;
	const uint8_t *p;
	struct ctl_str s;

	switch (f->kind) {
	case F_STR:
		p = in_take(in, 4);
		if (!p)
			return -EPROTO;
		s.n = (uint32_t)get_le(p, 4);
		if (s.n > f->max)
			return -EPROTO;
		s.p = (const char *)in_take(in, s.n);
		if (!s.p)
			return -EPROTO;
		memcpy(dst, &s, sizeof(s));
		return 0;
	case F_METRICS:
		return decode_metrics(in, &msg->u.run_row);
	case F_ID:
		p = in_take(in, CTL_ID);
		if (!p)
			return -EPROTO;
		memcpy(dst, p, CTL_ID);
		return 0;
	default:
		return decode_number(in, f, dst);
	}
}

int ctl_decode(const void *frame, size_t bytes, struct ctl_msg *msg, struct err *err)
{
	const uint8_t *h = frame;
	struct in in = {h + CTL_HEADER, h + bytes};
	const struct field *f;
	unsigned int type;

	if (bytes < CTL_HEADER || get_le(h, 4) != CTL_MAGIC)
		return err_set(err, ERR_PROTOCOL, -EPROTO, "not a frame of the control protocol");
	type = (unsigned int)get_le(h + 6, 2);
	if (type >= CTL_TYPE_COUNT || !types[type].field)
		return err_set(err, ERR_PROTOCOL, -EPROTO, "frame of unknown type %u", type);
	if (get_le(h + 8, 4) != bytes - CTL_HEADER || get_le(h + 12, 4) != 0)
		return err_set(err, ERR_PROTOCOL, -EPROTO, "%s frame: bad header",
			       types[type].name);
	memset(msg, 0, sizeof(*msg));
	msg->type = (enum ctl_type)type;
	memcpy(msg->job, h + 16, CTL_ID);
	for (f = types[type].field; f->kind != F_END; f++)
		if (decode_field(&in, f, msg))
			return err_set(err, ERR_PROTOCOL, -EPROTO, "%s frame: bad field %s",
				       types[type].name, f->name);
	if (in.p != in.end)
		return err_set(err, ERR_PROTOCOL, -EPROTO, "%s frame: %zu bytes too many",
			       types[type].name, (size_t)(in.end - in.p));
	return 0;
}
