-- SPDX-License-Identifier: MIT
-- setup.sql: what every regression test finds in its database: the extension, small synthetic images and
-- networks that the reference back end computes, in well under a second.
SET client_min_messages = warning;
CREATE EXTENSION gpu_cnn;

-- 4 x 4 pixels, one byte each; the brighter half is the class. i gives each image its own noise.
CREATE FUNCTION pixels(i integer, top boolean, n integer DEFAULT 16) RETURNS integer[] LANGUAGE sql IMMUTABLE AS $$
	SELECT array_agg(CASE WHEN (p < n / 2) = top THEN 200 + (i * 7 + p * 13) % 50
		ELSE (i * 11 + p * 5) % 60 END ORDER BY p) FROM generate_series(0, n - 1) p
$$;
CREATE FUNCTION image(i integer, top boolean, n integer DEFAULT 16) RETURNS bytea LANGUAGE sql IMMUTABLE AS $$
	SELECT decode(string_agg(lpad(to_hex(v), 2, '0'), '' ORDER BY o), 'hex')
	FROM unnest(pixels(i, top, n)) WITH ORDINALITY AS u(v, o)
$$;

CREATE TABLE img AS
	SELECT i AS id, image(i, i % 2 = 0) AS image, CASE WHEN i % 2 = 0 THEN 'top' ELSE 'bottom' END AS label
	FROM generate_series(1, 200) i;
ALTER TABLE img ADD PRIMARY KEY (id);

-- Keras JSON of a network with one dense layer
CREATE FUNCTION dense(units integer, activation text DEFAULT 'softmax', shape text DEFAULT '4,4,1')
RETURNS text LANGUAGE sql IMMUTABLE AS $$
	SELECT '{"class_name":"Sequential","config":{"name":"net","layers":[{"class_name":"InputLayer","config":'
		|| '{"name":"input","batch_input_shape":[null,' || shape || ']}},{"class_name":"Flatten","config":'
		|| '{"name":"flatten"}},{"class_name":"Dense","config":{"name":"dense","units":' || units
		|| ',"activation":"' || activation || '"}}]}}'
$$;
SELECT gpu_cnn_load_architecture('dense2', dense(2));

-- the sum of a model's weights, for comparing models
CREATE FUNCTION checksum(model regclass, kind text DEFAULT 'weights') RETURNS text LANGUAGE plpgsql AS $$
DECLARE
	sum text;
BEGIN
	EXECUTE format('SELECT md5(string_agg(data, '''' ORDER BY part)) FROM %s WHERE kind = $1', model)
		INTO sum USING kind;
	RETURN sum;
END
$$;

-- jobs that are left, once there was a second for cnnd to take them apart
CREATE FUNCTION jobs_left() RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
	n bigint;
BEGIN
	FOR i IN 1 .. 50 LOOP
		SELECT count(*) INTO n FROM gpu_cnn_progress();
		EXIT WHEN n = 0;
		PERFORM pg_sleep(0.02);
	END LOOP;
	RETURN n;
END
$$;
RESET client_min_messages;
