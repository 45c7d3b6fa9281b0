\set SHOW_CONTEXT never
-- images as JPEG and PNG: what is decoded, what is left out and why
SET client_min_messages = warning;
SET max_parallel_workers_per_gather = 0;
CREATE TABLE pictures (name text PRIMARY KEY, image bytea, pixels bytea);
\set load 'INSERT INTO pictures VALUES (:''name'', decode(:''image'', ''base64''), decode(:''pixels'', ''base64''))'
\set name rgb444.jpg
\set image `base64 -w0 ../../../tests/golden/data/rgb444.jpg`
\set pixels `base64 -w0 ../../../tests/golden/data/rgb444.rgb`
:load;
\set name rgb420.jpg
\set image `base64 -w0 ../../../tests/golden/data/rgb420.jpg`
\set pixels `base64 -w0 ../../../tests/golden/data/rgb420.rgb`
:load;
\set name progressive.jpg
\set image `base64 -w0 ../../../tests/golden/data/progressive.jpg`
\set pixels `base64 -w0 ../../../tests/golden/data/progressive.rgb`
:load;
\set name grey.jpg
\set image `base64 -w0 ../../../tests/golden/data/grey.jpg`
\set pixels `base64 -w0 ../../../tests/golden/data/grey.rgb`
:load;
\set name cmyk.jpg
\set image `base64 -w0 ../../../tests/golden/data/cmyk.jpg`
\set pixels `base64 -w0 ../../../tests/golden/data/cmyk.rgb`
:load;
\set name rgb.png
\set image `base64 -w0 ../../../tests/golden/data/rgb.png`
\set pixels `base64 -w0 ../../../tests/golden/data/rgb.rgb`
:load;
\set name rgba.png
\set image `base64 -w0 ../../../tests/golden/data/rgba.png`
\set pixels `base64 -w0 ../../../tests/golden/data/rgba.rgb`
:load;
\set name rgb16.png
\set image `base64 -w0 ../../../tests/golden/data/rgb16.png`
\set pixels `base64 -w0 ../../../tests/golden/data/rgb16.rgb`
:load;
\set name rgba16.png
\set image `base64 -w0 ../../../tests/golden/data/rgba16.png`
\set pixels `base64 -w0 ../../../tests/golden/data/rgba16.rgb`
:load;
\set name grey8.png
\set image `base64 -w0 ../../../tests/golden/data/grey8.png`
\set pixels `base64 -w0 ../../../tests/golden/data/grey8.rgb`
:load;
\set name grey16.png
\set image `base64 -w0 ../../../tests/golden/data/grey16.png`
\set pixels `base64 -w0 ../../../tests/golden/data/grey16.rgb`
:load;
\set name la.png
\set image `base64 -w0 ../../../tests/golden/data/la.png`
\set pixels `base64 -w0 ../../../tests/golden/data/la.rgb`
:load;
\set name palette.png
\set image `base64 -w0 ../../../tests/golden/data/palette.png`
\set pixels `base64 -w0 ../../../tests/golden/data/palette.rgb`
:load;
\set name palette4.png
\set image `base64 -w0 ../../../tests/golden/data/palette4.png`
\set pixels `base64 -w0 ../../../tests/golden/data/palette4.rgb`
:load;
\set name bits1.png
\set image `base64 -w0 ../../../tests/golden/data/bits1.png`
\set pixels `base64 -w0 ../../../tests/golden/data/bits1.rgb`
:load;
\set name bits2.png
\set image `base64 -w0 ../../../tests/golden/data/bits2.png`
\set pixels `base64 -w0 ../../../tests/golden/data/bits2.rgb`
:load;
\set name transparent.png
\set image `base64 -w0 ../../../tests/golden/data/transparent.png`
\set pixels `base64 -w0 ../../../tests/golden/data/transparent.rgb`
:load;

-- a network that adds up the pixels: 663 weights of 1, a bias of 0
SELECT gpu_cnn_import_weights('sum', dense(1, 'linear', '13,17,3'), decode(repeat('0000803f', 663) || '00000000', 'hex'));
CREATE FUNCTION total(pixels bytea) RETURNS float8 LANGUAGE sql IMMUTABLE AS $$
	SELECT sum(get_byte(pixels, i)) / 255.0 FROM generate_series(0, length(pixels) - 1) i
$$;
SELECT name, length(pixels) AS pixels, abs(gpu_cnn_predict('sum', pixels)::float8 - total(pixels)) < 0.001 AS raw,
	abs(gpu_cnn_predict('sum', image)::float8 - total(pixels)) < CASE WHEN name ~ 'jpg' THEN 2 ELSE 0.001 END AS decoded
FROM pictures ORDER BY name;
SELECT rows, skipped FROM gpu_cnn_predict('sum', 'pictures', 'p', independent := 'image');
SELECT count(*), bool_and(abs(prediction - total(pixels)) < 2) AS right FROM p JOIN pictures USING (name);

-- what cannot be used
CREATE TABLE broken AS SELECT name, image FROM pictures WHERE false;
\set load 'INSERT INTO broken VALUES (:''name'', decode(:''image'', ''base64''))'
\set name picture.bmp
\set image `base64 -w0 ../../../tests/golden/data/picture.bmp`
:load;
\set name picture.gif
\set image `base64 -w0 ../../../tests/golden/data/picture.gif`
:load;
\set name picture.tiff
\set image `base64 -w0 ../../../tests/golden/data/picture.tiff`
:load;
\set name picture.webp
\set image `base64 -w0 ../../../tests/golden/data/picture.webp`
:load;
INSERT INTO broken SELECT 'truncated jpeg', substring(image FROM 1 FOR 700) FROM pictures WHERE name = 'rgb444.jpg';
INSERT INTO broken SELECT 'truncated progressive', substring(image FROM 1 FOR 500) FROM pictures WHERE name = 'progressive.jpg';
INSERT INTO broken SELECT 'truncated png', substring(image FROM 1 FOR 300) FROM pictures WHERE name = 'rgb.png';
INSERT INTO broken SELECT 'jpeg header only', substring(image FROM 1 FOR 20) FROM pictures WHERE name = 'rgb444.jpg';
INSERT INTO broken SELECT 'png signature only', substring(image FROM 1 FOR 8) FROM pictures WHERE name = 'rgb.png';
INSERT INTO broken SELECT 'jpeg of 500 megapixels', decode(replace(encode(image, 'hex'), 'ffc0001108000d0011', 'ffc00011084e2061a8'), 'hex') FROM pictures WHERE name = 'rgb444.jpg';
INSERT INTO broken VALUES ('png of 500 megapixels', '\x89504e470d0a1a0a0000000d49484452000061a800004e2008020000008ca4e38a'), ('empty', ''), ('one byte', '\xff'), ('noise', decode(repeat('deadbeef', 100), 'hex')), ('null', NULL);
INSERT INTO broken SELECT 'jpeg with damage', set_byte(set_byte(image, 650, 255), 651, 217) FROM pictures WHERE name = 'rgb444.jpg';
INSERT INTO broken SELECT 'png with damage', set_byte(image, 100, 255 - get_byte(image, 100)) FROM pictures WHERE name = 'rgb.png';
CREATE TABLE mixed AS SELECT name, image, length(name) % 2 AS label FROM pictures UNION ALL SELECT name, image, 1 FROM broken;
SELECT rows, skipped FROM gpu_cnn_train('mixed', 'm', dependent := 'label', independent := 'image', id_column := 'name',
	architecture := dense(2, 'softmax', '13,17,3'), epochs := 1, batch_size := 4, backend := 'ref');
SELECT id, reason FROM m_bad_rows ORDER BY id COLLATE "C";
-- the most frequent shape decides where the architecture leaves it open
SELECT rows, skipped FROM gpu_cnn_train('mixed', 'open', dependent := 'label', independent := 'image', id_column := 'name',
	architecture := dense(2, 'softmax', 'null,null,null'), epochs := 1, batch_size := 4, backend := 'ref');
SELECT input_shape FROM open_summary;
SELECT gpu_cnn_predict('m', image) FROM broken WHERE name = 'truncated png';
SELECT gpu_cnn_predict('m', image) FROM broken WHERE name = 'png of 500 megapixels';
SELECT count(gpu_cnn_predict('m', image)) FROM pictures;
