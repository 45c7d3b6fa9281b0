\set SHOW_CONTEXT never
-- who may do what
SET client_min_messages = warning;
DROP ROLE IF EXISTS regress_cnn_one;
DROP ROLE IF EXISTS regress_cnn_two;
DROP ROLE IF EXISTS regress_cnn_none;
DROP ROLE IF EXISTS regress_cnn_admin;
CREATE ROLE regress_cnn_one IN ROLE gpu_cnn_user;
CREATE ROLE regress_cnn_two IN ROLE gpu_cnn_user;
CREATE ROLE regress_cnn_none;
CREATE ROLE regress_cnn_admin IN ROLE gpu_cnn_admin;
SELECT rolname, rolcanlogin FROM pg_roles WHERE rolname IN ('gpu_cnn_user', 'gpu_cnn_admin') ORDER BY 1;

-- nothing of the extension is PUBLIC's
SELECT p.proname FROM pg_proc p JOIN pg_depend d ON d.classid = 'pg_proc'::regclass AND d.objid = p.oid AND d.deptype = 'e'
	JOIN pg_extension e ON e.oid = d.refobjid AND e.extname = 'gpu_cnn'
WHERE p.proacl IS NULL OR EXISTS (SELECT 1 FROM aclexplode(p.proacl) WHERE grantee = 0);
SELECT has_table_privilege('regress_cnn_none', 'gpu_cnn_architectures', 'SELECT') AS none,
	has_table_privilege('regress_cnn_one', 'gpu_cnn_architectures', 'SELECT') AS one,
	has_table_privilege('regress_cnn_one', 'gpu_cnn_architectures', 'INSERT, UPDATE, DELETE') AS one_writes;
-- search_path is pinned, except for the functions that run the caller's query (they pin it themselves) and
-- the aggregate's, which run no SQL
SELECT p.proname FROM pg_proc p JOIN pg_depend d ON d.classid = 'pg_proc'::regclass AND d.objid = p.oid AND d.deptype = 'e'
	JOIN pg_extension e ON e.oid = d.refobjid AND e.extname = 'gpu_cnn'
WHERE p.prokind = 'f' AND NOT coalesce('search_path=pg_catalog, pg_temp' = ANY (p.proconfig), false) ORDER BY 1;
SELECT extrelocatable FROM pg_extension WHERE extname = 'gpu_cnn';

SET ROLE regress_cnn_none;
SELECT * FROM gpu_cnn_train('img', 'm');
SELECT * FROM gpu_cnn_progress();
SELECT gpu_cnn_load_architecture('x', 'lenet');
SET ROLE regress_cnn_one;
SELECT count(*) FROM gpu_cnn_progress();
SET gpu_cnn.socket = '/tmp/x';
SET gpu_cnn.daemon_user = 'root';
SET gpu_cnn.ring = 'memfd';
SHOW gpu_cnn.ring;
-- no right on the table, on the schema
SELECT * FROM gpu_cnn_train('img', 'm', architecture := 'dense2');
SELECT * FROM gpu_cnn_train('SELECT image, label FROM img', 'm', architecture := 'dense2');
RESET ROLE;
REVOKE CREATE ON SCHEMA public FROM PUBLIC;
GRANT SELECT ON img TO regress_cnn_one;
SET ROLE regress_cnn_one;
SELECT * FROM gpu_cnn_train('img', 'm', architecture := 'dense2');
SELECT * FROM gpu_cnn_train('img', 'nowhere.m', architecture := 'dense2');
RESET ROLE;
CREATE SCHEMA one AUTHORIZATION regress_cnn_one;
CREATE SCHEMA two AUTHORIZATION regress_cnn_two;
SET ROLE regress_cnn_one;
SELECT model, rows FROM gpu_cnn_train('img', 'one.m', architecture := 'dense2', epochs := 1, batch_size := 10, backend := 'ref');
SELECT tablename, tableowner FROM pg_tables WHERE schemaname = 'one' ORDER BY 1;
-- rights on columns are enough, row security holds
RESET ROLE;
CREATE TABLE few AS SELECT * FROM img;
GRANT SELECT (image, label) ON few TO regress_cnn_one;
SET ROLE regress_cnn_one;
SELECT rows FROM gpu_cnn_train('SELECT image, label FROM few', 'one.c', architecture := 'dense2', epochs := 1, batch_size := 10, backend := 'ref');
SELECT rows FROM gpu_cnn_train('few', 'one.c2', architecture := 'dense2', epochs := 1, batch_size := 10, backend := 'ref');
RESET ROLE;
CREATE TABLE secret AS SELECT * FROM img;
ALTER TABLE secret ENABLE ROW LEVEL SECURITY;
CREATE POLICY p ON secret FOR SELECT USING (id <= 30);
GRANT SELECT ON secret TO regress_cnn_one;
SET ROLE regress_cnn_one;
SELECT rows FROM gpu_cnn_train('secret', 'one.s', dependent := 'label', architecture := 'dense2', epochs := 1, batch_size := 10, backend := 'ref');

-- somebody else's model
SET ROLE regress_cnn_two;
SELECT * FROM gpu_cnn_predict('one.m', 'img', 'two.p');
RESET ROLE;
GRANT USAGE ON SCHEMA one TO regress_cnn_two;
SET ROLE regress_cnn_two;
SELECT * FROM gpu_cnn_predict('one.m', 'img', 'two.p');
SELECT gpu_cnn_predict('one.m', '\x00'::bytea);
SELECT gpu_cnn_export('one.m', 'weights');
SELECT * FROM gpu_cnn_history('one.m');
SELECT * FROM gpu_cnn_train('img', 'one.m', architecture := 'dense2', on_exists := 'replace');
-- tables that only look like a model
CREATE TABLE two.fake (kind text, part integer, data bytea);
CREATE VIEW two.fake_summary AS SELECT 1 AS format_version, ''::bytea AS agreed;
SELECT gpu_cnn_predict('two.fake', '\x00'::bytea);
DROP VIEW two.fake_summary;
CREATE TABLE two.fake_summary (format_version text, architecture integer, parameters integer, task integer,
	dependent integer, independent integer, classes integer, outputs text, agreed text);
CREATE TABLE two.fake_history (epoch text, loss text, validation_loss text, metric_name integer, metric text,
	validation_metric text, metrics integer, learning_rate text, steps text, rows text, seconds_train text,
	seconds_merge text, seconds_evaluate text, note integer);
INSERT INTO two.fake_history VALUES ('a', 'b', 'c', 1, 'd', 'e', 2, 'f', 'g', 'h', 'i', 'j', 'k', 3);
INSERT INTO two.fake_summary VALUES ('1', 2, 3, 4, 5, 6, 7, 'a', 'b');
SELECT gpu_cnn_predict('two.fake', '\x00'::bytea);
SELECT * FROM gpu_cnn_history('two.fake');
DROP TABLE two.fake_history;
SELECT * FROM gpu_cnn_history('two.fake');
DROP TABLE two.fake_summary;
CREATE TABLE two.fake_summary (format_version integer, architecture json, parameters json, task text,
	dependent text, independent text, classes text[], outputs integer, agreed bytea);
SELECT gpu_cnn_predict('two.fake', '\x00'::bytea);
INSERT INTO two.fake_summary VALUES (1, '{}', '[]', 'classification', 'y', 'x', '{a}', 10, '\x00');
SELECT gpu_cnn_predict('two.fake', '\x00'::bytea);
UPDATE two.fake_summary SET format_version = 99;
SELECT gpu_cnn_predict('two.fake', '\x00'::bytea);

-- another one's job: the secret and the owner's role are needed
SELECT admitted, reason FROM gpu_cnn_begin(repeat('0', 32) || ':' || repeat('1', 32), 0, 1, 1, '{"architecture": "lenet"}', '');
RESET ROLE;
-- (begun by regress_cnn_two; an orphan until somebody ends it)
SET ROLE regress_cnn_one;
SELECT * FROM gpu_cnn_end(repeat('0', 32) || ':' || repeat('1', 32), '{0}');
SELECT * FROM gpu_cnn_end(repeat('0', 32) || ':' || repeat('2', 32), '{0}');
SELECT * FROM gpu_cnn_agree(repeat('0', 32) || ':' || repeat('1', 32), '{0}');
SELECT gpu_cnn_feed(repeat('0', 32) || ':' || repeat('1', 32), 0, id, image, label, NULL) FROM img;
SELECT gpu_cnn_stop(repeat('0', 32));
SELECT job, state, role, model, device IS NOT NULL AS device, memory > 0 AS memory, own FROM gpu_cnn_progress();
RESET ROLE;
GRANT regress_cnn_two TO regress_cnn_one;
SET ROLE regress_cnn_one;
SELECT kind, state, role, database, own FROM gpu_cnn_progress();
RESET ROLE;
REVOKE regress_cnn_two FROM regress_cnn_one;
SET ROLE regress_cnn_admin;
SELECT kind, state, role, own FROM gpu_cnn_progress();
SET ROLE regress_cnn_two;
SELECT * FROM gpu_cnn_end(repeat('0', 32) || ':' || repeat('2', 32), '{0}');
SELECT * FROM gpu_cnn_end(repeat('0', 32) || ':' || repeat('1', 32), '{0}');
SELECT count(*) FROM gpu_cnn_progress();
SELECT * FROM gpu_cnn_agree(repeat('0', 32) || ':' || repeat('1', 32), '{0}');
SELECT * FROM gpu_cnn_run('nonsense', '{0}', 0, 1, 1, 0, 0);
SELECT * FROM gpu_cnn_run(NULL, '{0}', 0, 1, 1, 0, 0);
SELECT * FROM gpu_cnn_put(repeat('0', 32) || ':' || repeat('1', 32), '{NULL}', 0, 0, 1, 0, '');
-- a segment that is no speaker says nothing
SELECT * FROM gpu_cnn_agree(repeat('0', 32) || ':' || repeat('1', 32), '{7}');

RESET ROLE;
-- the aggregate is no function for windows, and its parts are not for calling
SELECT gpu_cnn_feed(repeat('0', 32) || ':' || repeat('1', 32), 0, id, image, label, NULL) OVER () FROM img;
SELECT gpu_cnn_feed_final(NULL::internal);
SELECT gpu_cnn_feed(NULL, 0, id, image, label, NULL) FROM img;
SELECT gpu_cnn_feed(repeat('0', 32) || ':' || repeat('1', 32), 9, id, image, label, NULL) FROM img;
SELECT gpu_cnn_feed(repeat('0', 32) || ':' || repeat('1', 32), 0, id, image, label, NULL) FROM img WHERE false;

RESET ROLE;
DROP SCHEMA one, two CASCADE;
DROP TABLE few, secret;
REVOKE ALL ON img FROM regress_cnn_one;
DROP ROLE regress_cnn_one, regress_cnn_two, regress_cnn_none, regress_cnn_admin;

-- a function with the aggregate's name and exact types must not get the job's secret
CREATE FUNCTION gpu_cnn_feed(text, integer, tid, bytea, text, text) RETURNS bigint[] LANGUAGE plpgsql AS $$
BEGIN
	RAISE EXCEPTION 'the secret is %', $1;
END
$$;
SELECT rows FROM gpu_cnn_train('SELECT image, label FROM img', 'm', architecture := 'dense2', epochs := 1, batch_size := 10, backend := 'ref');
CREATE AGGREGATE gpu_cnn_feed(text, integer, tid, bytea, text, unknown) (SFUNC = gpu_cnn_feed_row, STYPE = internal);
SELECT * FROM gpu_cnn_train('img', 'm2', architecture := 'dense2');
DROP FUNCTION gpu_cnn_feed(text, integer, tid, bytea, text, text);
CREATE FUNCTION gpu_cnn_feed(text, integer, tid, bytea, text, anyelement) RETURNS bigint[] LANGUAGE sql AS 'SELECT NULL::bigint[]';
SELECT * FROM gpu_cnn_train('img', 'm2', architecture := 'dense2', sample_weight := 'id');
DROP FUNCTION gpu_cnn_feed(text, integer, tid, bytea, text, anyelement);
SELECT rows FROM gpu_cnn_train('img', 'm2', architecture := 'dense2', epochs := 1, batch_size := 10, backend := 'ref');
