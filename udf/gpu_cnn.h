/* SPDX-License-Identifier: MIT */
/*
 * gpu_cnn.h: what the files of the extension share. Each section is one .c file. Functions raise
 * errors by ereport; what they open is registered with the current resource owner first, so that
 * abort, subtransaction abort and exit close it.
 */
#ifndef GPU_CNN_H
#define GPU_CNN_H

#include "compat.h"

/* ---- module.c ---- */

enum ring_mode { RING_AUTO = 0, RING_MEMFD = 1, RING_DEVICE = 2 };

extern char *gpu_cnn_socket;
extern char *gpu_cnn_daemon_user;
extern int gpu_cnn_ring;
extern int gpu_cnn_node_timeout; /* seconds */

/* ---- wait.c: the one wait loop ---- */

#define WAIT_SLICE_MS 250 /* the client's socket and the peer are looked at so often */

int64 wait_now(void); /* ms, monotonic */
double wait_seconds(void);
/*
 * Waits until fd (or PGINVALID_SOCKET) shows one of events (WL_SOCKET_*), `until` is reached, or a
 * slice is over; returns the events seen. Raises on cancel, end of the client, end of the server.
 */
int wait_for(pgsocket fd, int events, int64 until, const char *name);

/* ---- nodes.c: other servers (nodes.h) ---- */

struct nodes;
void nodes_init(void); /* once, at load */
int nodes_count(const struct nodes *nodes);
int nodes_here(const struct nodes *nodes); /* the number of this server, -1: it is none */
const char *nodes_name(const struct nodes *nodes, int i);
const char *nodes_machine(const struct nodes *nodes, int i); /* NULL: this server, or not known */
const char *nodes_why(const struct nodes *nodes, int i);     /* its connection broke */
/* Stops asking the nodes whose connection broke, without an error. */
void nodes_leave_lost(struct nodes *nodes);
/* Looks at what nodes of this session have answered, without waiting; raises their errors. */
void nodes_look(void);

/* ---- job.c: job ids and secrets ---- */

#define JOB_TOKEN 65 /* hex id, ':', hex secret */

struct job {
	uint8 id[CTL_ID];
	uint8 secret[CTL_ID];
};

void job_new(struct job *job);
void job_token(const struct job *job, char out[JOB_TOKEN + 1]);
void job_parse(text *token, struct job *job);
/* A hex id without a secret. */
void job_parse_id(text *id, uint8 out[CTL_ID]);
char *job_hex(const uint8 *bytes, size_t n);

/* ---- daemon.c: a connection to cnnd ---- */

struct daemon {
	struct daemon *next;
	uint64 serial; /* never used twice in a session */
	ResourceOwner owner;
	struct ctl_conn *conn;
	struct ring *ring;
	int counted;	   /* descriptors counted by the server */
	int64 heard;	   /* when the last frame came, or a request was sent */
	int64 looked;	   /* when the socket was last looked at */
	bool end_on_abort; /* the job ends with this connection */
	bool training;	   /* that job is one */
	struct job job;
	struct ctl_heartbeat beat; /* the last one; its strings are not kept */
	struct agree_block block;  /* malloc'd memory, freed with the connection: driver.c */
};

void daemon_init(void); /* once, at load */
/* Connects, checks the owner of the socket, exchanges HELLO. */
struct daemon *daemon_open(void);
/* The same for another role, whose rights the caller has been found to have. */
struct daemon *daemon_open_as(const char *role);
/* Does this session hold a training? */
bool daemon_trains(void);
/* The open connection of that number; NULL: it is closed. */
struct daemon *daemon_find(uint64 serial);
/* The same, and copies of what HELLO_OK said; build and ring are palloc'd. */
struct daemon *daemon_open_info(struct ctl_hello_ok *hello);
/* Opens none, raises nothing: 0, or what is wrong (for gpu_cnn_version). */
int daemon_probe(struct daemon **out, struct ctl_hello_ok *hello, struct err *err);
void daemon_close(struct daemon *daemon);

void daemon_send(struct daemon *daemon, const struct ctl_msg *msg, const char *name);
/* The next frame that is no heartbeat; 0 or -errno with err. fds: as ctl_recv. */
int daemon_wait(struct daemon *daemon, struct ctl_msg *reply, int *fds, int *n_fds,
		const char *name, struct err *err);
/* Request and answer; raises unless the answer is of the wanted type. */
void daemon_call(struct daemon *daemon, const struct ctl_msg *request, struct ctl_msg *reply,
		 enum ctl_type wanted, const char *name);
/* Answer of a request already sent. */
void daemon_reply(struct daemon *daemon, struct ctl_msg *reply, enum ctl_type wanted,
		  const char *name);
/* A stream: true with a frame of the wanted type, false at DONE. */
bool daemon_next(struct daemon *daemon, struct ctl_msg *reply, enum ctl_type wanted,
		 const char *name);
/* Looks, without waiting, whether an ERROR or the end of the connection has come; raises it. */
void daemon_poll(struct daemon *daemon, const char *name);
/* A message with the job's id in its header and, where its struct begins with one, the secret. */
void daemon_message(struct ctl_msg *msg, enum ctl_type type, const struct job *job);
void daemon_raise(const struct err *err) pg_attribute_noreturn();
/* Lines, each a NOTICE; "W:" in front makes a WARNING. */
void daemon_notice(struct ctl_str lines);
void daemon_notice_lines(char *lines); /* in the server's encoding; written to */

static inline struct ctl_str str_of(const char *s)
{
	return ctl_str(s, strlen(s));
}
text *text_of(struct ctl_str s);
char *cstring_of(struct ctl_str s);

/* ---- rows.c: results of set-returning functions ---- */

struct rows {
	Tuplestorestate *store;
	TupleDesc desc;
};

void rows_begin(FunctionCallInfo fcinfo, struct rows *rows);
void rows_add(struct rows *rows, Datum *values, bool *nulls);
bytea *bytes_of(const void *p, size_t n);

/* ---- segment.c ---- */

/* Begins a call that every segment makes: argument 0 is the job's token and, where n_fixed is 2,
 * argument 1 the list of speakers. false: this segment is no speaker. */
bool call_open(FunctionCallInfo fcinfo, struct rows *rows, struct job *job, int n_fixed);

/* ---- collect.c: predictions ---- */

struct ranked_class {
	float4 value;
	int class;
};

/* Classes by falling value; out has room for `classes`. Returns how many there are. */
int rank_classes(const float4 *value, int outputs, int classes, struct ranked_class *out);
float4 *prediction_values(const struct row_prediction *prediction);

/* ---- encode.c: a row of the user's table in row.h's form ---- */

struct column {
	Oid type;	    /* base type; InvalidOid: not there */
	Oid element;	    /* of an array, else InvalidOid */
	enum row_type form; /* of the value or the element */
	bool raw;	    /* array elements are stored as they are sent */
	int16 size;	    /* of an element */
	FmgrInfo output;    /* text forms */
};

/* false: rows cannot carry such a type as x (image) or y (label). */
bool column_form(Oid type, bool image, struct column *out);
void column_open(Oid type, bool image, const char *what, struct column *out);
void column_open_id(Oid type, struct column *out);

/* A value ready to be written: in memory, or still in its TOAST table. */
struct piece {
	const char *data;
	uint64 bytes;
	uint8 dims;
	uint32 dim[ROW_MAX_DIMS];
	bool null, element_null;
	bool sliced; /* fetch from `toast`, skipping `skip` bytes */
	Datum toast;
	int32 skip;
};

/* Memory is taken from the current context, which the caller resets after each row. */
void piece_value(const struct column *column, Datum value, bool null, struct piece *out);
void piece_id(struct column *column, Datum value, bool null, struct piece *out);
double piece_weight(const struct column *column, Datum value);

struct encoder; /* where bytes go: feed.c's ring, or memory (scalar prediction) */
struct encoder {
	void (*begin)(struct encoder *encoder, uint64 total);
	void (*write)(struct encoder *encoder, const void *data, size_t n);
	void (*end)(struct encoder *encoder);
	size_t slice; /* bytes fetched at once from a TOAST table */
};
uint64 encode_row(struct encoder *encoder, const struct piece *id, const struct piece *x,
		  const struct piece *y, const struct piece *weight, double weight_value);

/* ---- feed.c ---- */

/* Tells cnnd the type of x, by a feed of no rows. */
void feed_declare(const struct job *job, const struct column *x);

/* ---- source.c: the user's table or query ---- */

struct source {
	const char *what; /* name of the argument, for messages */
	const char *text; /* as given */
	char *from;	  /* for a FROM clause */
	Oid relid;	  /* InvalidOid: a query */
	TupleDesc desc;
	const char *row_id; /* expression for a row's id, or NULL */
	const char *key;    /* column of a primary key of one column, or NULL */
	char **type;	    /* names of the columns' types */
	/* where there are nodes: what the source is on each of them */
	int n_nodes;
	struct source_there {
		char *from, *row_id;
	} * there;
};

struct driver;
void source_open(struct driver *driver, const char *text, const char *what, struct source *out);
/* Its two halves: on this server; on the nodes (source_nodes.c), where the first one says what the
 * columns are if this server is none of them. */
void source_open_here(struct driver *driver, const char *text, const char *what,
		      struct source *out);
void source_open_nodes(struct driver *driver, const char *text, const char *what,
		       struct source *out);
/* A query with LIMIT, window functions or joins means the rows of one server, of several each
 * its own: a NOTICE. On Greenplum such a source is made a temporary table first: source_scope.c. */
void source_check_scope(struct driver *driver, struct source *source);
/* Attribute number of a column given by name (exact, or as an identifier); raises. */
int source_column(const struct source *source, const char *name, const char *argument);
struct columns {
	int x, y, id, weight; /* attribute numbers; 0: none */
};
/* Given names or the only candidates. */
void source_columns(const struct source *source, const char *independent, const char *dependent,
		    const char *id, const char *weight, bool want_y, struct columns *out);
const char *source_name(const struct source *source, int attnum);
/* A relation's name parsed; nsp may come out NULL. false: the text is no name. */
bool name_parse(const char *text, char **nsp, char **name);

/* ---- sql.c: statements ---- */

/* One SQL statement, %s already quoted; results in SPI_tuptable. */
void sql(int expected, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
struct args {
	int n;
	Oid type[28];
	Datum value[28];
	char null[28];
};
void args_add(struct args *args, Oid type, Datum value, bool null);
void args_text(struct args *args, const char *s); /* NULL: null */
void sql_args(int expected, struct args *args, const char *fmt, ...)
	__attribute__((format(printf, 3, 4)));
Datum sql_get(uint64 row, int column, bool *null);
int64 sql_int(uint64 row, int column);
double sql_double(uint64 row, int column);
char *sql_text(uint64 row, int column); /* NULL: null */
/* Copies of by-reference values for the time after the next statement. */
Datum sql_bytes(uint64 row, int column);
Datum sql_bytes_or_null(uint64 row, int column); /* 0: null */

/* ---- driver.c: a job that is driven from here ---- */

struct fed {
	int64 rows, held, bad, bytes;
	int feeders;
};

/* A daemon of the job; rank is its place. */
struct host {
	int segindex;  /* of its speaker */
	char *name;    /* for messages: the node's, or the machine's */
	char *machine; /* what the daemon calls its host */
	char *address; /* 'address port' of its merges, "" */
	uint8 uuid[CTL_ID];
	bool lost;
};

struct driver {
	char *schema_name; /* of the extension */
	char *schema;	   /* the same, quoted */
	char *caller_path; /* search_path of the caller */
	int nest;
	struct job job;
	enum ctl_job_kind kind;
	Datum token;
	struct daemon *watch; /* this host's daemon: its end ends the job */
	char *machine;	      /* what that one calls its host */
	uint8 uuid[CTL_ID];
	bool leads;	     /* it keeps the job's membership, too */
	char *leader;	     /* 'address port' that the others find it at, "" */
	struct nodes *nodes; /* NULL: this server, or all segments of this cluster */
	Snapshot snapshot;
	MemoryContext outer;   /* the caller's, for results */
	MemoryContext context; /* of the job, until driver_finish */

	/* from begin on */
	struct host *host;
	int n_hosts, n_lost, min_hosts; /* min_hosts 0: all */
	ArrayType *speakers;		/* of the hosts that are not lost */

	/* from agree and apply on */
	double skew_distance, skew_ratio; /* the worst host's; infinity: a host has no rows */
	int skewed_host;		  /* its rank */
	int64 rows_moved;
	double seconds_exchange;
};

void driver_start(FunctionCallInfo fcinfo, struct driver *driver);
/* Opens sessions on the servers in gpu_cnn_nodes, if there are any. */
void driver_nodes(struct driver *driver);
void driver_caller_path(struct driver *driver, int *nest); /* until AtEOXact_GUC(true, *nest) */
/* Arguments that every call begins with: the job, the speakers. */
void driver_args(struct driver *driver, struct args *args);
void driver_put(struct driver *driver, enum ctl_kind kind, int part, int parts, int64 total,
		Datum data);
/* All parts of a bytea. */
void driver_put_bytes(struct driver *driver, enum ctl_kind kind, bytea *data);
/* One part of at most CTL_PART_MAX bytes, of the lowest speaker; 0: there is nothing of that kind.
 */
Datum driver_get(struct driver *driver, enum ctl_kind kind, int part, int *parts, int64 *total);
/* The most frequent reasons as one text; *n: all bad rows. */
char *driver_bad_reasons(struct driver *driver, int64 *n);
/* Raises a NOTICE with the number of bad rows and the first reasons, if there are any. */
void driver_bad_rows(struct driver *driver, const char *what);
void driver_end(struct driver *driver);
/* After it, results must be built in the caller's memory, which is current again. */
void driver_finish(struct driver *driver);

/* ---- begin.c, hosts.c: admission; who takes part ---- */

void driver_begin(struct driver *driver, enum ctl_job_kind kind, const char *spec,
		  double queue_timeout);
/* The same number for all: of segments, or nodes. */
int driver_segments(const struct driver *driver);
/* Ends the job on all daemons; all: also on those that are not known to be in it. */
void driver_end_job(struct driver *driver, bool all);

/* Columns of gpu_cnn_begin's rows. */
enum {
	BEGIN_SEGINDEX = 1,
	BEGIN_UUID,
	BEGIN_ADMITTED,
	BEGIN_MEMORY,
	BEGIN_RUNNING,
	BEGIN_ADDRESS,
	BEGIN_DEVICES,
	BEGIN_REASON,
	BEGIN_NOTICE,
	BEGIN_HOST
};

struct answer;
/* Membership at this host's daemon, before the first begin. */
void hosts_lead(struct driver *driver);
/* Of the rows that begin gave, when every daemon has admitted the job. */
void hosts_found(struct driver *driver, const struct answer *begun);
/* Hosts that are not lost. */
int hosts_left(const struct driver *driver);
/* A line 'name address port' for each rank; "" where a daemon is alone. */
char *hosts_peers(const struct driver *driver);
/* The host at that rank is gone: a WARNING, or an ERROR where too few are left. */
void hosts_lose(struct driver *driver, int rank, const char *why);

/* ---- dispatch.c: one call on all segments ---- */

/* Rows by segment (column 1), columns from 1. */
struct answer {
	MemoryContext context;
	TupleDesc desc;
	HeapTuple *row;
	int n;
};

void driver_call(struct driver *driver, const char *function, const struct args *args,
		 struct answer *out);
/* On that segment alone, where segments can be asked one by one. */
void driver_call_one(struct driver *driver, int segindex, const char *function,
		     const struct args *args, struct answer *out);
/* A node that cannot be reached any more has no row, instead of raising an error. */
void driver_call_losing(struct driver *driver, const char *function, const struct args *args,
			struct answer *out);
void answer_free(struct answer *answer);
Datum answer_get(const struct answer *answer, int row, int column, bool *null);
int64 answer_int(const struct answer *answer, int row, int column);
double answer_double(const struct answer *answer, int row, int column);
char *answer_text(const struct answer *answer, int row, int column); /* NULL: null */
bytea *answer_bytes(const struct answer *answer, int row, int column);
ArrayType *answer_array(const struct answer *answer, int row, int column, Oid type);
/*
 * A stream of rows: the same function with the same arguments on all nodes of the job, where this
 * session has such a job. Asked before the rows of this server are taken; theirs are added one
 * by one to the result, which spills past work_mem.
 */
void rows_ask_nodes(FunctionCallInfo fcinfo, const struct job *job, const char *function);
void rows_take_nodes(struct rows *rows, const struct job *job, const char *function);

/* ---- drive_feed.c ---- */

void driver_feed(struct driver *driver, enum row_set set, const struct source *source,
		 const struct columns *columns, struct fed *fed);

/* ---- agreement.c ---- */

enum reshuffle { RESHUFFLE_AUTO = 0, RESHUFFLE_ON, RESHUFFLE_OFF };

/* Collects the daemons' parts and merges them; the block lives until driver_end. */
void driver_agree(struct driver *driver, struct agree_block **out, Datum *blob);
Datum agreed_bytes(const struct agree_block *block); /* as bytea */
/* On all hosts at once. Rows are exchanged first where that is wanted, or called for by skew. */
void driver_apply(struct driver *driver, Datum blob, enum reshuffle reshuffle,
		  struct ctl_apply_ok *out);

/* ---- iteration.c ---- */

/* Epochs [first, first + count) on all segments; the row's note is palloc'd. Sums over hosts:
 * merge_bytes; the longest: seconds. */
void driver_run(struct driver *driver, const struct ctl_run *run, struct ctl_run_row *row);
/* Metrics as a JSON object; both: training and, with val_ in front, validation. */
char *driver_metrics(const struct ctl_run_row *row, bool both);

/* ---- args.c: arguments by name ---- */

struct arguments {
	FunctionCallInfo fcinfo;
	int n;
	char **name;
	Oid *type;
};

void arguments_read(FunctionCallInfo fcinfo, struct arguments *out);
/* NULL when the argument is NULL; raises when there is none of that name. */
char *arguments_text(const struct arguments *args, const char *name);
char *arguments_wanted(const struct arguments *args, const char *name);
bool arguments_number(const struct arguments *args, const char *name, double *out);
bool arguments_flag(const struct arguments *args, const char *name, bool otherwise);
/* The spec of a job: a JSON object of the arguments that are not NULL, less those that only the
 * coordinator uses; architecture replaces the argument of that name, NULL leaves it out. */
char *arguments_spec(const struct arguments *args, const char *architecture);
void json_text(StringInfo out, const char *s);
/* NaN and infinities become null. */
void json_number(StringInfo out, double v);

/* ---- model.c: making the tables of a model; stored.c: reading them ---- */

#define MODEL_FORMAT 1

struct model {
	char *nsp, *name; /* plain */
	Oid nsp_oid;
	/* quoted and qualified */
	char *weights, *summary, *history, *bad_rows;
	bool replace;
};

/* A model that is to be made: where it goes, that nobody else makes it, that it is not there. */
void model_claim(struct driver *driver, const char *name, const char *on_exists, struct model *out);
/* Creates its tables; where they replace others, those are dropped first. */
void model_create(const struct model *model);
/* Names of the tables; stored.c has them for both. */
void model_parse_name(const char *text, struct model *model);
void model_set_names(struct model *model);
bool model_table_exists(const struct model *model, const char *suffix, Oid *oid);
/* Do these look like tables that this extension made? */
bool model_looks_like(const struct model *model);
/* A model that is there; its columns have the right types. */
void model_find(struct driver *driver, const char *name, struct model *out);

struct model_summary {
	char *architecture; /* Keras JSON */
	char *parameters;   /* JSON object */
	char *task;	    /* classification, regression */
	char *dependent, *independent;
	Datum classes; /* text[], 0: none */
	int n_classes, outputs;
	bytea *agreed;
	/* of the agreed block */
	int n_labels;
	uint32 labels, block_outputs, n_channels, normalize;
	double normalizing_const, *mul, *add;
};

void model_read(const struct model *model, struct model_summary *out);
/* Stores all parts of a kind under a name; returns bytes. */
int64 model_store(struct driver *driver, const struct model *model, enum ctl_kind kind,
		  const char *name);
/* Raises unless MODEL_history is a table as gpu_cnn makes it. */
void model_check_history(const struct model *model);
/* Parts stored under a name, and their bytes; each of them. Both raise where one is not whole. */
int model_parts(const struct model *model, const char *name, int64 *total);
Datum model_part(const struct model *model, const char *name, int part, int parts);
/* Sends all parts stored under a name to the daemons; false: there are none. */
bool model_send(struct driver *driver, const struct model *model, const char *name,
		enum ctl_kind kind);
/* The spec of a job for a stored model; kind: predict or evaluate. */
char *model_spec(const struct model_summary *summary, const char *kind);
/* After the feed: sends class map, normalisation and weights. */
void model_load(struct driver *driver, const struct model *model,
		const struct model_summary *summary);
/* The agreed block's class values as text[]; 0 where there are no classes. */
Datum model_classes(const struct agree_block *block);

/* ---- architecture.c ---- */

/* An architecture by name in gpu_cnn_architectures, else the text itself; weights: 0 or bytea. */
char *architecture_find(struct driver *driver, const char *text, Datum *weights);
/* What cnnd says of an architecture; daemon_close when the reply has been read. */
void architecture_describe(const char *architecture, const struct ctl_describe *shape,
			   struct daemon **daemon, struct ctl_msg *reply);
/* Raises unless a blob (NULL: none) has the size that the architecture wants. */
void architecture_check_weights(const struct ctl_describe_ok *described, const bytea *weights);

/* ---- info.c ---- */

bool role_is_admin(Oid role); /* superuser or member of gpu_cnn_admin */

#endif
