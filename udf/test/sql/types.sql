\set SHOW_CONTEXT never
-- types of images and labels
SET client_min_messages = warning;
CREATE TYPE half AS ENUM ('top', 'bottom');
CREATE DOMAIN picture AS bytea;
CREATE DOMAIN amount AS real;
CREATE TABLE x AS SELECT id, image, image::picture AS dom, id % 2 = 0 AS top,
	pixels(id, id % 2 = 0) AS i4, pixels(id, id % 2 = 0)::smallint[] AS i2, pixels(id, id % 2 = 0)::bigint[] AS i8,
	pixels(id, id % 2 = 0)::real[] AS f4, pixels(id, id % 2 = 0)::float8[] AS f8,
	pixels(id, id % 2 = 0)::numeric[] AS num, pixels(id, id % 2 = 0)::amount[] AS doms
FROM img;
ALTER TABLE x ADD d2 integer[], ADD d3 real[], ADD toasted bytea, ADD long real[];
UPDATE x SET d2 = ARRAY[i4[1:4], i4[5:8], i4[9:12], i4[13:16]];
UPDATE x SET d3 = ARRAY[ARRAY[ARRAY[i4[1]], ARRAY[i4[2]], ARRAY[i4[3]], ARRAY[i4[4]]],
	ARRAY[ARRAY[i4[5]], ARRAY[i4[6]], ARRAY[i4[7]], ARRAY[i4[8]]],
	ARRAY[ARRAY[i4[9]], ARRAY[i4[10]], ARRAY[i4[11]], ARRAY[i4[12]]],
	ARRAY[ARRAY[i4[13]], ARRAY[i4[14]], ARRAY[i4[15]], ARRAY[i4[16]]]]::real[];
CREATE TABLE y AS SELECT id, id % 2 AS i4, (id % 2)::smallint AS i2, (id % 2)::bigint * 10000000000 AS i8,
	id % 2 = 1 AS b, CASE id % 2 WHEN 0 THEN 'top' ELSE 'bottom' END AS t,
	(CASE id % 2 WHEN 0 THEN 'top' ELSE 'bottom' END)::varchar(10) AS v,
	(CASE id % 2 WHEN 0 THEN 'top' ELSE 'bottom' END)::char(10) AS c,
	(CASE id % 2 WHEN 0 THEN 'top' ELSE 'bottom' END)::half AS e,
	(CASE id % 2 WHEN 0 THEN 't' ELSE 'b' END)::"char" AS ch,
	ARRAY[id % 2, 1 - id % 2] AS oh, ARRAY[id % 2, 1 - id % 2]::real[] AS ohf
FROM img;

CREATE TABLE sums (x text, sum text, loss float8, classes text[]);
CREATE PROCEDURE train(x text, y text, arch text DEFAULT dense(2), more text DEFAULT '') LANGUAGE plpgsql AS $$
DECLARE
	l float8;
BEGIN
	EXECUTE format('SELECT loss FROM gpu_cnn_train(%L, ''m'', dependent := ''y'', independent := ''x'', '
		'architecture := $1, epochs := 2, batch_size := 10, backend := ''ref'', on_exists := ''replace''%s)',
		format('SELECT %s AS x, %s AS y FROM x JOIN y USING (id)', x, y), more) INTO l USING arch;
	EXECUTE 'INSERT INTO sums SELECT $1, checksum(''m''), $2, classes FROM m_summary' USING x || ' ' || y, l;
END
$$;

-- every form of the same pixels gives the same network, up to the order of rows (the key hashes the stored
-- bytes) and the division by 255 of integers
CALL train('image', 't');
CALL train('dom', 't');
CALL train('x.i2', 't', dense(2), ', normalizing_const := 255');
CALL train('x.i4', 't', dense(2), ', normalizing_const := 255');
CALL train('f4', 't', dense(2), ', normalizing_const := 255');
CALL train('f8', 't', dense(2), ', normalizing_const := 255');
CALL train('num', 't', dense(2), ', normalizing_const := 255');
CALL train('doms', 't', dense(2), ', normalizing_const := 255');
CALL train('d2', 't', dense(2), ', normalizing_const := 255');
CALL train('d3', 't', dense(2), ', normalizing_const := 255');
SELECT x, loss < 0.1 AS learnt, classes FROM sums;
SELECT count(DISTINCT sum) FROM sums WHERE x IN ('image t', 'dom t');
SELECT count(DISTINCT sum) FROM sums WHERE x IN ('f4 t', 'doms t', 'd3 t');
SELECT count(DISTINCT sum) FROM sums WHERE x IN ('x.i4 t', 'd2 t');
SELECT count(DISTINCT sum) FROM sums WHERE x IN ('f8 t', 'num t');
TRUNCATE sums;

-- labels
CALL train('image', 'y.i4');
CALL train('image', 'y.i2');
CALL train('image', 'y.i8');
CALL train('image', 'b');
CALL train('image', 'v');
CALL train('image', 'c');
CALL train('image', 'e');
CALL train('image', 'ch');
CALL train('image', 'oh');
CALL train('image', 'ohf');
SELECT x, loss < 0.1 AS learnt, classes FROM sums;
TRUNCATE sums;

-- two classes through one sigmoid, a number, several numbers
CALL train('image', 'b', dense(1, 'sigmoid'));
SELECT task, outputs, classes, loss < 0.2 AS learnt FROM m_summary;
SELECT count(*) FILTER (WHERE gpu_cnn_predict('m', image) = (id % 2 = 1)::text) AS good FROM x;
SELECT rows FROM gpu_cnn_predict('m', 'x', 'p', independent := 'image', id_column := 'id', pred_type := 'prob');
SELECT count(*), count(DISTINCT class_value), round(sum(prob)::numeric) FROM p;
DROP TABLE p;
SET max_parallel_workers_per_gather = 0;
CALL train('image', 'y.i4 + 0.25::float8', dense(1, 'linear'));
RESET max_parallel_workers_per_gather;
CALL train('image', 'y.i4 + 0.25::float8', dense(1, 'linear'), ', loss := ''mse''');
SELECT task, outputs, classes, loss < 0.2 AS learnt FROM m_summary;
SELECT predictions, rows FROM gpu_cnn_predict('m', 'x', 'p', independent := 'image', id_column := 'id');
\d p
SELECT count(*) FILTER (WHERE abs(prediction - id % 2 - 0.25) < 0.5) AS good FROM p;
SELECT bool_and(abs(gpu_cnn_predict('m', image)::float8 - prediction) < 1e-5) FROM p JOIN x USING (id);
DROP TABLE p;
CALL train('image', 'ARRAY[y.i4, 1 - y.i4, 3]::float8[]', dense(3, 'linear'), ', loss := ''mse''');
SELECT task, outputs, classes FROM m_summary;
SELECT rows FROM gpu_cnn_predict('m', 'x', 'p', independent := 'image', id_column := 'id');
SELECT array_length(prediction, 1) AS n, count(*) FROM p GROUP BY 1;
DROP TABLE p;

-- what cannot be used
CALL train('y.t', 't');
CALL train('image', 'now()');
CALL train('ARRAY[y.t]', 't');
CALL train('image', 'ARRAY[y.t]');
CALL train('top', 't');
CALL train('x.i8', 't');
CALL train('x.id', 't');
CALL train('image', 'image');
CALL train('NULL', 't');
CALL train('image', '''text''');

-- values out of line: compressed, and uncompressed in slices
CREATE TABLE big (id integer, e bytea, c bytea, f real[], label integer);
ALTER TABLE big ALTER e SET STORAGE EXTERNAL, ALTER f SET STORAGE EXTERNAL;
INSERT INTO big SELECT i, v, v, f, i % 2 FROM generate_series(1, 12) i,
	LATERAL (SELECT decode(repeat(CASE i % 2 WHEN 0 THEN '10203040506070f0' ELSE 'f0b0a09080706050' END, 150000), 'hex') AS v) s,
	LATERAL (SELECT array_agg((i * 3 + g) % 100)::real[] AS f FROM generate_series(1, 40000) g) a;
SELECT max(pg_column_size(e)), max(pg_column_size(c)) < 100000 AS compressed, max(pg_column_size(f)) FROM big;
CREATE TABLE wide AS SELECT loss FROM gpu_cnn_train('big', 'e', independent := 'e', dependent := 'label',
	architecture := dense(2, 'softmax', '1000,1200,1'), epochs := 1, batch_size := 4, learning_rate := 1e-6);
INSERT INTO wide SELECT loss FROM gpu_cnn_train('big', 'c', independent := 'c', dependent := 'label',
	architecture := dense(2, 'softmax', '1000,1200,1'), epochs := 1, batch_size := 4, learning_rate := 1e-6);
SELECT checksum('e') = checksum('c') AS same, count(DISTINCT loss) FROM wide;
SELECT rows FROM gpu_cnn_train('big', 'f', independent := 'f', dependent := 'label',
	architecture := dense(2, 'softmax', '200,200,1'), epochs := 1, batch_size := 4, learning_rate := 1e-6);
SELECT rows FROM gpu_cnn_train('SELECT f || ''{}''::real[] AS f, label FROM big', 'f2', independent := 'f', dependent := 'label',
	architecture := dense(2, 'softmax', '200,200,1'), epochs := 1, batch_size := 4, learning_rate := 1e-6);
SELECT checksum('f') = checksum('f2') AS same;
