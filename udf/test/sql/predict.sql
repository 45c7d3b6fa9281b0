\set SHOW_CONTEXT never
-- forms of prediction and evaluation
SET client_min_messages = warning;
CREATE TABLE three AS SELECT id, image(id, id % 2 = 0) AS image, (ARRAY['a', 'b', 'c'])[1 + id % 3] AS label FROM img;
ALTER TABLE three ADD PRIMARY KEY (id);
SELECT gpu_cnn_load_architecture('dense3', dense(3));
SELECT rows FROM gpu_cnn_train('three', 'm', architecture := 'dense3', epochs := 2, batch_size := 20, backend := 'ref');

CREATE FUNCTION kind(pred_type text) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
	s text;
BEGIN
	DROP TABLE IF EXISTS p;
	EXECUTE 'SELECT rows FROM gpu_cnn_predict(''m'', ''three'', ''p'', pred_type := $1)' USING pred_type;
	EXECUTE 'SELECT format(''%s rows of %s ids, ranks %s to %s, prob over %s, sum %s'', count(*), count(DISTINCT id), '
		'min(rank), max(rank), trunc(min(prob)::numeric, 1), round(sum(prob)::numeric)) FROM p' INTO s;
	RETURN s;
END
$$;
SELECT kind('response') ~ '^200 rows of 200 ids, ranks 1 to 1';
SELECT kind('prob');
SELECT bool_and(abs(s - 1) < 1e-5) AS sums_to_one FROM (SELECT sum(prob) AS s FROM p GROUP BY id) s;
SELECT bool_and(falls) AS ranked FROM (SELECT prob <= lag(prob) OVER (PARTITION BY id ORDER BY rank) AS falls FROM p) s;
SELECT kind('2') ~ '^400 rows of 200 ids, ranks 1 to 2';
SELECT kind('99') ~ '^600 rows of 200 ids, ranks 1 to 3';
SELECT kind('0.3') ~ 'prob over 0\.[3-9]';
SELECT kind('0.999') ~ '^0 rows';
SELECT kind('0.0') ~ '^600 rows';
SELECT kind('0');
SELECT kind('-1');
SELECT kind('1.5');
SELECT kind('all');
SELECT kind(NULL);

-- ids of other types, from queries; columns of other names
DROP TABLE IF EXISTS p;
SELECT rows FROM gpu_cnn_predict('m', 'SELECT md5(id::text)::uuid AS "The Id", image AS picture FROM three', 'p', id_column := 'The Id');
\d p
SELECT count(*) FROM p JOIN three ON md5(id::text)::uuid = "The Id";
DROP TABLE p;
SELECT rows FROM gpu_cnn_predict('m', 'SELECT ROW(id, label) AS key, image FROM three', 'p', id_column := 'key');
SELECT rows FROM gpu_cnn_predict('m', 'SELECT CASE WHEN id > 3 THEN id END AS id, image FROM three', 'p', id_column := 'id');
SELECT count(*), count(id) FROM p;
DROP TABLE p;
SELECT rows FROM gpu_cnn_predict('m', 'SELECT image FROM three', 'p');
SELECT rows FROM gpu_cnn_predict('m', 'SELECT repeat(id::text, 1000) AS id, image FROM three', 'p', id_column := 'id');
SELECT rows FROM gpu_cnn_predict('m', 'SELECT id, label FROM three', 'p', id_column := 'id');
SELECT rows FROM gpu_cnn_predict('m', 'SELECT id, image FROM three WHERE false', 'p', id_column := 'id');
SELECT count(*) FROM p;
DROP TABLE p;
SELECT rows FROM gpu_cnn_predict('m', 'SELECT id AS rank, image FROM three', 'p', id_column := 'rank');

-- a scalar, in any place of a statement
SELECT count(*) FROM three WHERE gpu_cnn_predict('m', image) IN ('a', 'b', 'c');
SELECT rows FROM gpu_cnn_predict('m', 'three', 'p');
SELECT count(*) FILTER (WHERE gpu_cnn_predict('m', image) = class_value) AS same, count(*) FROM p JOIN three USING (id);
SELECT gpu_cnn_predict('m', pixels(id, id % 2 = 0)::real[]) IS NOT NULL AS real_array FROM img LIMIT 1;
SELECT gpu_cnn_predict('m', 1);
SELECT gpu_cnn_predict('m', 'x');
SELECT gpu_cnn_predict('nothing', image) FROM img;
-- two models in turn, an expression of PL/pgSQL that outlives its statement
SELECT rows FROM gpu_cnn_train('img', 'n', architecture := 'dense2', epochs := 1, batch_size := 20, backend := 'ref');
SELECT count(gpu_cnn_predict(CASE id % 2 WHEN 0 THEN 'm' ELSE 'n' END, image)) FROM img WHERE id <= 6;
DO $$
DECLARE
	r record;
	n integer := 0;
BEGIN
	FOR r IN SELECT image FROM img WHERE id <= 5 LOOP
		n := n + (gpu_cnn_predict('n', r.image) IS NOT NULL)::integer;
	END LOOP;
	FOR r IN SELECT image FROM img WHERE id <= 5 LOOP
		n := n + (gpu_cnn_predict('n', r.image) IS NOT NULL)::integer;
	END LOOP;
	IF n <> 10 THEN
		RAISE EXCEPTION 'only %', n;
	END IF;
END
$$;
-- a job ends with its query, not with the statement that the client sent
DO $$
DECLARE
	most bigint := 0;
BEGIN
	FOR i IN 1 .. 100 LOOP
		PERFORM gpu_cnn_predict('n', image) FROM img LIMIT 1;
		most := greatest(most, (SELECT count(*) FROM gpu_cnn_progress()));
	END LOOP;
	IF most > 2 THEN
		RAISE EXCEPTION '% jobs at once', most;
	END IF;
END
$$;
-- each call in a query has a job; more than cnnd has places for are an error, not a wait for oneself
CREATE FUNCTION calls(n integer) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
	i integer;
BEGIN
	EXECUTE (SELECT 'SELECT num_nonnulls(' || string_agg('gpu_cnn_predict(''n'', image)', ', ') || ') FROM img LIMIT 1'
		FROM generate_series(1, n)) INTO i;
	RETURN i || ' calls';
EXCEPTION WHEN OTHERS THEN
	RETURN SQLSTATE || ' ' || SQLERRM;
END
$$;
SELECT calls(4);
SET statement_timeout = '20s';
SELECT calls(30);
RESET statement_timeout;
SELECT jobs_left();
BEGIN;
DECLARE c CURSOR FOR SELECT gpu_cnn_predict('n', image) IS NOT NULL AS p FROM img;
FETCH 2 FROM c;
SELECT count(*) FROM gpu_cnn_progress();
CLOSE c;
SELECT jobs_left();
SAVEPOINT s;
SELECT gpu_cnn_predict('n', image), 1 / (id - 3) FROM img ORDER BY id;
ROLLBACK TO s;
SELECT jobs_left();
COMMIT;

-- evaluation
SELECT rows, skipped, loss > 0 AS loss, metrics::jsonb ? 'accuracy' AS accuracy, classes, array_dims(confusion) AS dims,
	(SELECT sum(x) FROM unnest(confusion) x) AS sum FROM gpu_cnn_evaluate('m', 'three');
SELECT abs(e.loss - s.loss) < 0.2 AS near FROM gpu_cnn_evaluate('m', 'three') e, m_summary s;
SELECT (metrics->>'accuracy')::numeric = round((confusion[1][1] + confusion[2][2] + confusion[3][3]) / 200.0, 6) AS agree
FROM (SELECT jsonb_build_object('accuracy', round((metrics->>'accuracy')::numeric, 6)) AS metrics, confusion FROM gpu_cnn_evaluate('m', 'three')) e;
SELECT count(*) FILTER (WHERE p.class_value = label) = (SELECT confusion[1][1] + confusion[2][2] + confusion[3][3] FROM gpu_cnn_evaluate('m', 'three')) AS agree
FROM p JOIN three USING (id);
SELECT rows FROM gpu_cnn_evaluate('m', 'SELECT image AS a, label AS b FROM three', independent := 'a', dependent := 'b');
SELECT * FROM gpu_cnn_evaluate('m', 'SELECT image, ''d'' AS label FROM three');
SELECT * FROM gpu_cnn_evaluate('m', 'SELECT image, 1 AS label FROM three');
SELECT * FROM gpu_cnn_evaluate('m', 'SELECT image, label FROM three WHERE false');
SELECT * FROM gpu_cnn_evaluate('nothing', 'three');
