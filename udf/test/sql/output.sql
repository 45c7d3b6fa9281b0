\set SHOW_CONTEXT never
-- where models and predictions go, and what is there already
SET client_min_messages = warning;
CREATE FUNCTION try(model text, more text DEFAULT '') RETURNS text LANGUAGE plpgsql AS $$
DECLARE
	m text;
BEGIN
	EXECUTE format('SELECT model FROM gpu_cnn_train(''img'', %L, architecture := ''dense2'', epochs := 1, '
		'batch_size := 10, backend := ''ref''%s)', model, more) INTO m;
	RETURN m;
END
$$;
SELECT try('m');
SELECT checksum('m') AS sum \gset

-- existing tables
SELECT try('m');
SELECT try('M');
SELECT try('m', ', on_exists := ''maybe''');
SELECT try('m', ', on_exists := ''replace'', seed := 5');
SELECT checksum('m') <> :'sum' AS replaced, count(*) AS one FROM m_summary;
SELECT try('img', ', on_exists := ''replace''');
CREATE TABLE part_summary (a integer);
SELECT try('part');
SELECT try('part', ', on_exists := ''replace''');
CREATE TABLE part_bad_rows (a integer);
DROP TABLE part_summary;
SELECT try('part');
DROP TABLE part_bad_rows;
CREATE VIEW part AS SELECT * FROM img;
SELECT try('part', ', on_exists := ''replace''');
DROP VIEW part;
-- a failed replacement leaves the old model
SELECT checksum('m') AS sum \gset
SELECT try('m', ', on_exists := ''replace'', optimizer := ''none''');
SELECT try('m', ', on_exists := ''replace'', learning_rate := -1');
SELECT checksum('m') = :'sum' AS kept;
-- the model that is replaced may be the one to start from
SELECT try('m', ', on_exists := ''replace'', warm_start := ''m''');
SELECT checksum('m') <> :'sum' AS went_on;

-- names
SELECT try('');
SELECT try('a.b.c');
SELECT try('a b');
SELECT try('"A b"');
SELECT count(*) FROM "A b_history";
SELECT try(repeat('n', 60));
SELECT try(repeat('n', 54));
SELECT try('nowhere.m');
CREATE SCHEMA there;
SELECT try('there.m');
SELECT count(*) FROM there.m_summary;
SELECT regexp_replace(try('pg_temp.t'), '[0-9]+', 'N');
SELECT count(*) FROM pg_temp.t;
SELECT gpu_cnn_predict('pg_temp.t', image) IS NOT NULL AS predicted FROM img LIMIT 1;
SET search_path = there, public;
SELECT try('n');
SELECT schemaname FROM pg_tables WHERE tablename = 'n_history';
RESET search_path;

-- predictions
SELECT rows FROM gpu_cnn_predict('m', 'img', 'p');
SELECT rows FROM gpu_cnn_predict('m', 'img', 'p');
SELECT rows FROM gpu_cnn_predict('m', 'img', 'm');
SELECT rows FROM gpu_cnn_predict('m', 'img', 'nowhere.p');
SELECT rows FROM gpu_cnn_predict('m', 'img', 'a.b.c');
SELECT rows FROM gpu_cnn_predict('nothing', 'img', 'q');
SELECT rows FROM gpu_cnn_predict('img', 'img', 'q');
SELECT rows FROM gpu_cnn_predict('m', 'nothing', 'q');
SELECT to_regclass('q');
