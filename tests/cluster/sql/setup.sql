-- SPDX-License-Identifier: MIT
-- setup.sql: what every host's database has before rows are there.
CREATE EXTENSION gpu_cnn;
CREATE ROLE trainer LOGIN PASSWORD 'not-a-secret';
GRANT gpu_cnn_user TO trainer;
CREATE SCHEMA lab AUTHORIZATION trainer;
ALTER ROLE ALL SET search_path = lab, public;
ALTER ROLE postgres PASSWORD 'not-a-secret';

-- 8 x 8 pixels of class 0..3: a bright quarter on noise of the row's own
CREATE FUNCTION lab.image(i integer, class integer) RETURNS bytea LANGUAGE sql IMMUTABLE AS $$
	SELECT decode(string_agg(lpad(to_hex(CASE WHEN (p / 32) * 2 + (p % 8) / 4 = class
		THEN 120 + (i * 7 + p * 13) % 130 ELSE (i * 11 + p * 5) % 140 END), 2, '0'), '' ORDER BY p), 'hex')
	FROM generate_series(0, 63) p
$$;

-- Keras JSON: hidden layers of so many units, four classes; 69 * units + 4 parameters for one layer
CREATE FUNCTION lab.net(units integer DEFAULT 32) RETURNS text LANGUAGE sql IMMUTABLE AS $$
	SELECT '{"class_name":"Sequential","config":{"name":"net","layers":['
		'{"class_name":"InputLayer","config":{"name":"input","batch_input_shape":[null,8,8,1]}},'
		'{"class_name":"Flatten","config":{"name":"flatten"}},'
		'{"class_name":"Dense","config":{"name":"hidden","units":' || units || ',"activation":"relu"}},'
		'{"class_name":"Dense","config":{"name":"dense","units":4,"activation":"softmax"}}]}}'
$$;

CREATE TABLE lab.rows (id integer PRIMARY KEY, image bytea, label text);
ALTER TABLE lab.rows OWNER TO trainer;

-- The rows first, first + step, ... below n; label by label where sorted, else mixed.
CREATE FUNCTION lab.fill(first integer, step integer, n integer) RETURNS void LANGUAGE sql AS $$
	INSERT INTO lab.rows SELECT i, lab.image(i, c), (ARRAY['north-west', 'north-east', 'south-west', 'south-east'])[c + 1]
	FROM (SELECT i, (i / 7 + i) % 4 AS c FROM generate_series(first, n - 1, step) i) s
$$;

-- A row every so often, for feeds that last.
CREATE FUNCTION lab.slowly(i integer, seconds double precision DEFAULT 0.1) RETURNS integer
LANGUAGE sql VOLATILE PARALLEL SAFE AS $$
	SELECT i FROM pg_sleep(seconds)
$$;
