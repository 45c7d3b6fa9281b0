\set SHOW_CONTEXT never
-- rows that cannot be used, few rows, strange labels
SET client_min_messages = warning;
-- one feeder: the numbers of rows in messages do not depend on how two of them share the table
SET max_parallel_workers_per_gather = 0;
CREATE FUNCTION try(source text, more text DEFAULT '', arch text DEFAULT 'dense2') RETURNS text LANGUAGE plpgsql AS $$
DECLARE
	n bigint;
	s bigint;
BEGIN
	EXECUTE format('SELECT rows, skipped FROM gpu_cnn_train(%L, ''t'', architecture := $1, epochs := 1, '
		'backend := ''ref'', on_exists := ''replace''%s)', source, more) INTO n, s USING arch;
	RETURN n || ' rows, ' || s || ' skipped';
END
$$;

-- few rows
SELECT try('SELECT image, label FROM img WHERE false');
SELECT try('SELECT image, label FROM img WHERE id = 1');
SELECT try('SELECT image, label FROM img WHERE id <= 5', ', batch_size := 128');
SELECT batch_size, rows FROM t_summary;
SELECT steps FROM t_history;
SET client_min_messages = notice;
SELECT try('SELECT image, label FROM img WHERE id <= 50');
SELECT try('SELECT image, label FROM img WHERE id % 2 = 0', ', batch_size := 10');
SET client_min_messages = warning;
SELECT classes FROM t_summary;

-- labels
SELECT try('SELECT image, 1 + id % 2 AS label FROM img', ', batch_size := 10');
SELECT classes, outputs FROM t_summary;
SELECT try('SELECT image, -1 + id % 2 AS label FROM img', ', batch_size := 10');
SELECT classes FROM t_summary;
SELECT try('SELECT image, id % 3 AS label FROM img', ', batch_size := 10');
SELECT try('SELECT image, id % 2 AS label FROM img', ', batch_size := 10', dense(5));
SELECT classes, outputs FROM t_summary;
SELECT count(DISTINCT gpu_cnn_predict('t', image)) <= 2 AS known_classes_only FROM img;
SELECT try('SELECT image, ARRAY[1, 0, 0] AS label FROM img', ', batch_size := 10, dependent := ''label''');
SELECT try('SELECT image, ARRAY[1, NULL] AS label FROM img', ', batch_size := 10, dependent := ''label''');
SELECT try('SELECT image, ''NaN''::float8 AS label FROM img', ', loss := ''mse'', batch_size := 10', dense(1, 'linear'));

-- NULL, wrong size: left out, with a reason
CREATE TABLE bad AS SELECT id, image, label FROM img;
UPDATE bad SET image = NULL WHERE id = 11;
UPDATE bad SET label = NULL WHERE id = 12;
UPDATE bad SET image = NULL, label = NULL WHERE id = 13;
UPDATE bad SET image = '' WHERE id = 14;
UPDATE bad SET image = '\x00' WHERE id = 15;
UPDATE bad SET image = image || '\x00' WHERE id = 16;
SET client_min_messages = notice;
SELECT rows, skipped FROM gpu_cnn_train('bad', 'b', architecture := 'dense2', epochs := 1, batch_size := 10,
	backend := 'ref', id_column := 'id', dependent := 'label');
SELECT * FROM b_bad_rows ORDER BY id;
SELECT rows, skipped FROM b_summary;
SELECT rows, skipped FROM gpu_cnn_train('bad', 'b2', architecture := 'dense2', epochs := 1, batch_size := 10,
	backend := 'ref', dependent := 'label');
SELECT count(*), bool_and(id ~ '^\(\d+,\d+\)$') AS ctid FROM b2_bad_rows;
SELECT rows, skipped FROM gpu_cnn_predict('b', 'SELECT * FROM bad WHERE id < 20', 'p', id_column := 'id');
SELECT count(*) FROM p;
SELECT rows, skipped FROM gpu_cnn_evaluate('b', 'SELECT * FROM bad WHERE id < 20');
SELECT gpu_cnn_predict('b', NULL::bytea) IS NULL AS null, gpu_cnn_predict(NULL, image) IS NULL AS null FROM img LIMIT 1;
SELECT gpu_cnn_predict('b', '\x0011'::bytea);
SET client_min_messages = warning;
SELECT try('bad', ', dependent := ''label'', max_bad_rows := 6');
SELECT try('bad', ', dependent := ''label'', max_bad_rows := 5');
SELECT try('SELECT image, label FROM bad WHERE id BETWEEN 11 AND 16');
SELECT try('SELECT NULL::bytea AS image, label FROM bad');
SELECT try('SELECT ARRAY[1, NULL, 3, 4]::real[] AS image, label FROM img', '', dense(2, 'softmax', '2,2,1'));
SELECT try('SELECT ''{}''::real[] AS image, label FROM img', '', dense(2, 'softmax', '2,2,1'));

-- weights
SELECT try('SELECT image, label, CASE WHEN id = 5 THEN NULL ELSE id END AS w FROM img', ', sample_weight := ''w'', dependent := ''label'', batch_size := 10');
SELECT reason FROM t_bad_rows;
SELECT try('SELECT image, label, -1.5 AS w FROM img', ', sample_weight := ''w'', dependent := ''label'', batch_size := 10');
SELECT try('SELECT image, label, 2::numeric AS w FROM img', ', sample_weight := ''w'', dependent := ''label'', batch_size := 10');
SELECT checksum('t') AS twice \gset
SELECT try('SELECT image, label, 1 AS w FROM img', ', sample_weight := ''w'', dependent := ''label'', batch_size := 10');
SELECT checksum('t') <> :'twice' AS weights_count;
SELECT checksum('t') AS once \gset
SELECT try('img', ', batch_size := 10');
SELECT checksum('t') = :'once' AS one_is_none;
SELECT try('img', ', class_weight := ''balanced'', batch_size := 10');
SELECT checksum('t') = :'once' AS balanced_already, class_weights FROM t_summary;
SELECT try('img', ', class_weight := ''{"top": 3, "bottom": 0.5}'', batch_size := 10');
SELECT checksum('t') <> :'once' AS differs, class_weights FROM t_summary;
SELECT try('img', ', class_weight := ''{"left": 3}'', batch_size := 10');

-- a value that makes no sense of training
SELECT rows FROM gpu_cnn_train('SELECT array_fill(1e30::float8, ARRAY[16]) AS image, label FROM img', 'inf', architecture := 'dense2',
	epochs := 3, batch_size := 10, backend := 'ref', learning_rate := 1e6);
SELECT count(*) > 0 AS stored FROM inf;
SELECT epoch, note ~ 'NaN|Inf' AS says_why FROM inf_history;
SELECT try('SELECT ARRAY[''NaN'', 1, 2, 3]::real[] AS image, label FROM img', '', dense(2, 'softmax', '2,2,1'));
