\set SHOW_CONTEXT never
-- what may be a source, and which of its columns is which
CREATE FUNCTION try(source text, more text DEFAULT '') RETURNS text LANGUAGE plpgsql AS $$
DECLARE
	n bigint;
BEGIN
	EXECUTE format('SELECT rows FROM gpu_cnn_train(%L, ''t'', architecture := ''dense2'', epochs := 1, '
		'batch_size := 10, backend := ''ref'', on_exists := ''replace''%s)', source, more) INTO n;
	RETURN n || ' rows';
END
$$;
SET client_min_messages = warning;

-- names
SELECT try('img');
SELECT try('public.img');
SELECT try(' "public" . img ');
SELECT try('PUBLIC.IMG');
SELECT try('"IMG"');
SELECT try('no.such.name');
SELECT try('nothing');
SELECT try('');
CREATE TABLE "Mixed Case; Name" AS SELECT id AS "Id", image AS "The Image", label AS "la""bel" FROM img;
SELECT try('"Mixed Case; Name"');
SELECT try('"Mixed Case; Name"', ', dependent := ''la"bel'', independent := ''The Image''');
SELECT try('"Mixed Case; Name"', ', dependent := ''"la""bel"'', independent := ''"The Image"''');
SELECT try('"Mixed Case; Name"', ', dependent := ''la"bel'', id_column := ''Id''');
SELECT independent, dependent FROM t_summary;

-- queries
SELECT try('SELECT image, label FROM img');
SELECT try('SELECT image, label FROM img;');
SELECT try('SELECT image, label FROM img -- all of it');
SELECT try('SELECT image, label FROM img /* all; of it */ ; ');
SELECT try('TABLE img', ', id_column := ''id''');
SELECT try('VALUES (image(1, true), ''a''), (image(2, false), ''b'')');
SELECT try('WITH w AS (SELECT * FROM img) SELECT image, label FROM w');
SELECT try('SELECT image, label FROM img UNION ALL SELECT image, label FROM img');
SELECT try('SELECT image, label FROM img ORDER BY id LIMIT 20');
SELECT try('SELECT image, count(*) OVER () AS n, label FROM img', ', dependent := ''label''');
SELECT try('SELECT 1; SELECT 2');
SELECT try('SELECT image, label FROM img); DROP TABLE img; --');
SELECT try('DELETE FROM img');
SELECT try('WITH w AS (DELETE FROM img RETURNING *) SELECT image, label FROM w');
SELECT try('SELECT image, label INTO other FROM img');
SELECT try('SELECT image, label FROM img FOR UPDATE');
SELECT try('SELECT image, label FROM img WHERE id = $1');
SELECT try('SELECT $1 AS image, $2 AS label');
SELECT try('EXPLAIN SELECT 1');
SELECT try('selct 1');
SELECT try('SELECT image, nothing FROM img');
SELECT count(*) FROM img;

-- relations of other kinds
CREATE VIEW v AS SELECT image, label FROM img WHERE id <= 100;
SELECT try('v');
CREATE MATERIALIZED VIEW mv AS SELECT image, label FROM img WHERE id <= 50;
SELECT try('mv');
CREATE TABLE part (image bytea, label text, n integer) PARTITION BY RANGE (n);
CREATE TABLE part1 PARTITION OF part FOR VALUES FROM (0) TO (100);
CREATE TABLE part2 PARTITION OF part FOR VALUES FROM (100) TO (1000);
INSERT INTO part SELECT image, label, id FROM img;
SELECT try('part', ', dependent := ''label''');
CREATE TABLE parent (image bytea, label text);
CREATE TABLE child () INHERITS (parent);
INSERT INTO parent SELECT image, label FROM img WHERE id <= 20;
INSERT INTO child SELECT image, label FROM img WHERE id > 180;
SELECT try('parent');
CREATE TEMPORARY TABLE tmp AS SELECT image, label FROM img;
SELECT try('tmp');
CREATE SEQUENCE s;
SELECT try('s');
CREATE SCHEMA other;
CREATE TABLE other.hidden AS SELECT image, label FROM img;
SELECT try('hidden');
SET search_path = other, public;
SELECT try('hidden');
SELECT source, rows FROM t_summary;
SELECT n.nspname FROM pg_class c JOIN pg_namespace n ON n.oid = relnamespace WHERE relname = 't';
-- functions of the caller's path are found while the query runs
CREATE FUNCTION other.half(b bytea) RETURNS bytea LANGUAGE plpgsql AS $$ BEGIN RETURN other_half(b); END $$;
CREATE FUNCTION other.other_half(b bytea) RETURNS bytea LANGUAGE sql AS $$ SELECT b $$;
SELECT try('SELECT half(image) AS image, label FROM img');
RESET search_path;

-- columns
SELECT try('img', ', dependent := ''nothing''');
SELECT try('img', ', independent := ''nothing''');
SELECT try('img', ', dependent := ''image''');
SELECT try('img', ', independent := ''label''');
SELECT try('img', ', id_column := ''nothing''');
SELECT try('img', ', sample_weight := ''label''');
CREATE TABLE label_first AS SELECT label, image FROM img;
SELECT try('label_first');
CREATE TABLE label_last AS SELECT image, label FROM img;
SELECT try('label_last');
CREATE TABLE two AS SELECT image, image AS picture, label, id AS number FROM img;
SELECT try('two');
SELECT try('two', ', independent := ''picture''');
SELECT try('two', ', independent := ''picture'', dependent := ''label''');
SELECT try('SELECT image AS a, image AS a, label FROM img', ', dependent := ''label''');
SELECT try('SELECT label FROM img');
SELECT try('SELECT image FROM img');
SELECT try('SELECT image, now() AS t FROM img');
ALTER TABLE two DROP COLUMN picture, DROP COLUMN number;
SELECT try('two');
