-- a model's tables are the user's: whatever is in them, an error that says it, and no backend ends
SET client_min_messages = warning;
SELECT rows FROM gpu_cnn_train('img', 'm', architecture := 'dense2', epochs := 2, batch_size := 10, backend := 'ref');

CREATE FUNCTION try(statement text) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
	s text;
BEGIN
	EXECUTE statement INTO s;
	RETURN 'ok ' || coalesce(s, '');
EXCEPTION WHEN OTHERS THEN
	RETURN split_part(SQLERRM, E'\n', 1);
END
$$;
-- what each use of a model says after a change of its tables; uses that say the same are one row
CREATE FUNCTION damage(change text) RETURNS TABLE (uses text, says text) LANGUAGE plpgsql AS $$
BEGIN
	DROP TABLE IF EXISTS d, d_summary, d_history, d_bad_rows, w, w_summary, w_history, w_bad_rows, p;
	CREATE TABLE d AS TABLE m;
	CREATE TABLE d_summary AS TABLE m_summary;
	CREATE TABLE d_history AS TABLE m_history;
	CREATE TABLE d_bad_rows AS TABLE m_bad_rows;
	EXECUTE change;
	RETURN QUERY SELECT string_agg(u, ' ' ORDER BY o), s FROM (SELECT o, u, try(t) AS s FROM (VALUES
		(1, 'evaluate', $q$SELECT rows FROM gpu_cnn_evaluate('d', 'img')$q$),
		(2, 'one', $q$SELECT gpu_cnn_predict('d', image) FROM img WHERE id = 1$q$),
		(3, 'predict', $q$SELECT rows FROM gpu_cnn_predict('d', 'img', 'p', pred_type := 'prob')$q$),
		(4, 'export', $q$SELECT length(gpu_cnn_export('d', 'weights')) || ' ' || length(gpu_cnn_export('d', 'keras_json'))$q$),
		(5, 'warm', $q$SELECT rows FROM gpu_cnn_train('img', 'w', architecture := 'dense2', warm_start := 'd', epochs := 1,
			batch_size := 10, backend := 'ref')$q$),
		(6, 'history', $q$SELECT count(*) FROM gpu_cnn_history('d')$q$)) AS v(o, u, t)) r GROUP BY s ORDER BY min(o);
END
$$;
SELECT * FROM damage('SELECT 1');
SELECT c.change, d.* FROM (VALUES
	(1, 'UPDATE d_summary SET agreed = NULL'), (2, 'UPDATE d SET data = NULL'),
	(3, 'UPDATE d_summary SET classes = NULL'), (4, 'UPDATE d_summary SET classes = ''{a}'''),
	(5, 'UPDATE d_summary SET classes = ''{NULL,NULL}'''), (6, 'UPDATE d_summary SET classes = ''{{a,b},{c,d}}'''),
	(7, 'UPDATE d_summary SET classes = ''[0:1]={a,b}'''), (8, 'UPDATE d_summary SET outputs = 1000000000'),
	(9, 'UPDATE d_summary SET outputs = -1'), (10, 'UPDATE d_summary SET outputs = NULL'),
	(11, 'UPDATE d_summary SET architecture = NULL'), (12, 'UPDATE d_summary SET architecture = ''{"a":1}'''),
	(13, 'UPDATE d_summary SET task = NULL'), (14, 'UPDATE d_summary SET task = ''regression'''),
	(15, 'UPDATE d_summary SET task = ''foo'''), (16, 'UPDATE d_summary SET parameters = NULL'),
	(17, 'UPDATE d_summary SET parameters = ''[1]'''), (18, 'UPDATE d_summary SET dependent = NULL, independent = NULL'),
	(19, 'UPDATE d SET part = NULL'), (20, 'UPDATE d SET part = -5'), (21, 'UPDATE d SET kind = NULL'),
	(22, 'INSERT INTO d SELECT kind, part + 1, data FROM d'), (23, 'INSERT INTO d TABLE d'),
	(24, 'UPDATE d SET data = '''''), (25, 'UPDATE d_summary SET agreed = set_byte(agreed, 8, 255)'),
	(26, 'UPDATE d_summary SET agreed = agreed || ''\x00'''), (27, 'UPDATE d_summary SET agreed = substr(agreed, 1, length(agreed) - 3)'),
	(28, 'UPDATE d_summary SET agreed = '''''), (29, 'ALTER TABLE d_summary ALTER agreed TYPE text USING ''x'''),
	(30, 'ALTER TABLE d ALTER data TYPE text USING ''x'''), (31, 'ALTER TABLE d ALTER part TYPE bigint'),
	(32, 'ALTER TABLE d_summary ALTER classes TYPE text USING ''x'''), (33, 'ALTER TABLE d_summary DROP COLUMN task'),
	(34, 'UPDATE d_summary SET format_version = NULL'), (35, 'UPDATE d_summary SET format_version = 2'),
	(36, 'DELETE FROM d_summary'), (37, 'INSERT INTO d_summary TABLE d_summary'), (38, 'DELETE FROM d'),
	(39, 'UPDATE d_history SET loss = NULL, note = NULL, metrics = NULL, epoch = NULL'),
	(40, 'DROP TABLE d_history'), (41, 'ALTER TABLE d_history DROP COLUMN loss'),
	(42, 'DROP TABLE d_bad_rows')) AS c(n, change), LATERAL damage(c.change) d ORDER BY n;

-- a cast of the owner's does not run as whoever uses the model
CREATE DOMAIN trap AS bytea CHECK (length(VALUE) > 0);
SELECT * FROM damage('ALTER TABLE d ALTER data TYPE trap');
-- nor does a view
SELECT uses FROM damage('DROP TABLE d_history');
CREATE VIEW d_history AS TABLE m_history;
SELECT * FROM gpu_cnn_history('d');
