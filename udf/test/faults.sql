-- SPDX-License-Identifier: MIT
-- faults.sql: statements that last, for the tests of faults.
SET client_min_messages = warning;
CREATE TABLE noise AS SELECT i AS id, decode(repeat(md5(i::text), 49), 'hex') AS image, i % 10 AS label
FROM generate_series(1, 2000) i; -- 28 x 28 bytes

-- a training of one call that ends by itself in a year
CREATE FUNCTION long_training(model text DEFAULT 'long', more text DEFAULT '') RETURNS text LANGUAGE plpgsql AS $$
DECLARE
	m text;
BEGIN
	EXECUTE format('SELECT model FROM gpu_cnn_train(''noise'', %L, dependent := ''label'', architecture := ''lenet'', '
		'epochs := 100000, evaluate_every := 100000, batch_size := 64 %s)', model, more) INTO m;
	RETURN m;
END
$$;
-- a feed that lasts: a row every tenth of a second
CREATE FUNCTION slowly(i integer) RETURNS integer LANGUAGE sql VOLATILE PARALLEL SAFE AS $$
	SELECT i FROM pg_sleep(0.1)
$$;
CREATE FUNCTION long_feed(model text DEFAULT 'feed') RETURNS text LANGUAGE sql AS $$
	SELECT model FROM gpu_cnn_train('SELECT image, label, slowly(id) FROM noise', model, dependent := 'label',
		architecture := 'lenet')
$$;
-- a training that lasts some tenths of a second
CREATE FUNCTION short_training(model text) RETURNS text LANGUAGE sql AS $$
	SELECT model FROM gpu_cnn_train('img', model, architecture := 'dense2', epochs := 2, batch_size := 10, backend := 'ref')
$$;
