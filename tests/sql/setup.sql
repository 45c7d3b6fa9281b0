-- SPDX-License-Identifier: MIT
-- setup.sql: what every node has, besides udf/test/setup.sql: the same rows, of which each test gives some
-- to each node, and functions to compare models.
SET client_min_messages = warning;

-- the class is the brighter half again, under noise that no two rows have in common
CREATE TABLE all_rows AS
	SELECT i AS id, (SELECT decode(string_agg(lpad(to_hex((get_byte(decode(md5(i || ' ' || p), 'hex'), 0) * 150) / 255
			+ CASE WHEN (p < 8) = (i % 2 = 0) THEN 100 ELSE 0 END), 2, '0'), '' ORDER BY p), 'hex')
		FROM generate_series(0, 15) p) AS image, CASE WHEN i % 2 = 0 THEN 'top' ELSE 'bottom' END AS label
	FROM generate_series(1, 240) i;

-- 4-byte floats of a model's weights
CREATE FUNCTION floats(b bytea) RETURNS float8[] LANGUAGE sql IMMUTABLE AS $$
	SELECT array_agg(CASE WHEN e = 0 THEN 0 ELSE (1 - 2 * s) * (1 + m / 8388608.0) * 2.0::float8 ^ (e - 127) END ORDER BY i)
	FROM (SELECT i, get_byte(b, 4 * i + 3) >> 7 AS s,
			((get_byte(b, 4 * i + 3) & 127) << 1) | (get_byte(b, 4 * i + 2) >> 7) AS e,
			((get_byte(b, 4 * i + 2) & 127) << 16) | (get_byte(b, 4 * i + 1) << 8) | get_byte(b, 4 * i) AS m
		FROM generate_series(0, length(b) / 4 - 1) i) f
$$;
-- the largest difference between the weights of two models, relative to the largest weight
CREATE FUNCTION difference(a regclass, b regclass) RETURNS float8 LANGUAGE plpgsql AS $$
DECLARE
	x bytea;
	y bytea;
	d float8;
BEGIN
	EXECUTE format('SELECT data FROM %s WHERE kind = ''weights''', a) INTO x;
	EXECUTE format('SELECT data FROM %s WHERE kind = ''weights''', b) INTO y;
	SELECT max(abs(p - q)) / max(abs(p)) INTO d FROM unnest(floats(x), floats(y)) AS u(p, q);
	RETURN d;
END
$$;
-- what the daemons agreed upon
CREATE FUNCTION agreed(model text) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
	t text;
BEGIN
	EXECUTE format('SELECT row(classes, class_counts, (SELECT array_agg(round(w::numeric, 9) ORDER BY o) FROM
		unnest(class_weights) WITH ORDINALITY u(w, o)), (SELECT array_agg(round(w::numeric, 9)) FROM unnest(scale) w),
		(SELECT array_agg(round(w::numeric, 9)) FROM unnest("offset") w), rows, outputs, input_shape)::text FROM %I',
		model || '_summary') INTO t;
	RETURN t;
END
$$;
