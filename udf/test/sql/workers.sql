\set SHOW_CONTEXT never
-- parallel workers: more than one feeder at default settings, and the same weights however rows arrive
SET client_min_messages = warning;
SHOW max_parallel_workers_per_gather;
SHOW min_parallel_table_scan_size;
-- 3 kB rows are stored out of line: the heap is small, the server would scan it serially
CREATE TABLE toast (id integer, image bytea, label integer);
ALTER TABLE toast ALTER image SET STORAGE EXTERNAL;
INSERT INTO toast SELECT i, decode(repeat(encode(image(i, i % 2 = 0), 'hex'), 192), 'hex'), i % 2
FROM generate_series(1, 12000) i;
ANALYZE toast;
SELECT pg_relation_size('toast') < 2000000 AS small_heap, pg_table_size('toast') > 36000000 AS toast;
EXPLAIN (COSTS OFF) SELECT count(image) FROM toast;
CREATE FUNCTION train(source text, model text) RETURNS text LANGUAGE sql AS $$
	SELECT CASE WHEN feeders > 1 THEN 'several' ELSE feeders::text END || ' feeders, ' || rows || ' rows'
	FROM gpu_cnn_train(source, model, architecture := '{"class_name":"Sequential","config":{"name":"c","layers":['
		'{"class_name":"InputLayer","config":{"name":"i","batch_input_shape":[null,32,32,3]}},'
		'{"class_name":"AveragePooling2D","config":{"name":"a","pool_size":[8,8]}},'
		'{"class_name":"Conv2D","config":{"name":"c1","filters":4,"kernel_size":[3,3],"activation":"relu"}},'
		'{"class_name":"Flatten","config":{"name":"f"}},'
		'{"class_name":"Dropout","config":{"name":"o","rate":0.2}},'
		'{"class_name":"Dense","config":{"name":"d","units":2,"activation":"softmax"}}]}}',
		dependent := 'label', id_column := 'id', epochs := 2, batch_size := 400, validation_fraction := 0.2,
		augment := 'flip, pad_crop=2', seed := 11)
$$;
SELECT train('toast', 'parallel');
SET max_parallel_workers_per_gather = 0;
SELECT train('toast', 'serial');
RESET max_parallel_workers_per_gather;
-- loaded in another order, into pages of its own
CREATE TABLE shuffled AS SELECT * FROM toast ORDER BY md5(id::text);
ALTER TABLE shuffled ALTER image SET STORAGE PLAIN;
CREATE TABLE reverse AS SELECT * FROM toast ORDER BY id DESC;
SELECT train('shuffled', 'other_order');
SET max_parallel_workers_per_gather = 0;
SELECT train('reverse', 'backwards');
RESET max_parallel_workers_per_gather;
SELECT train('SELECT * FROM toast ORDER BY id', 'query');
SELECT checksum('serial') = checksum('parallel') AS parallel, checksum('serial') = checksum('other_order') AS other_order,
	checksum('serial') = checksum('backwards') AS backwards, checksum('serial') = checksum('query') AS query;
SELECT checksum('serial', 'optimizer') = checksum('other_order', 'optimizer') AS optimizer;
SELECT count(DISTINCT (loss, validation_loss, metrics::text)) AS one FROM (SELECT * FROM serial_history WHERE epoch = 2
	UNION ALL SELECT * FROM parallel_history WHERE epoch = 2 UNION ALL SELECT * FROM other_order_history WHERE epoch = 2) h;
-- settings were changed for the feed only
SHOW min_parallel_table_scan_size;
SHOW parallel_setup_cost;
SHOW search_path;
-- predictions too
SELECT rows, feeders > 1 AS several FROM gpu_cnn_predict('serial', 'toast', 'p1', id_column := 'id', pred_type := 'prob');
SET max_parallel_workers_per_gather = 0;
SELECT rows, feeders FROM gpu_cnn_predict('parallel', 'shuffled', 'p2', id_column := 'id', pred_type := 'prob');
SELECT count(*) FROM (TABLE p1 EXCEPT TABLE p2) d;
