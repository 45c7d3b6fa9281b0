\set SHOW_CONTEXT never
-- architectures by name, models from and to elsewhere
SET client_min_messages = warning;
SELECT gpu_cnn_load_architecture('mine', dense(2), description := 'one layer');
SELECT name, description, owner, weights IS NULL AS no_weights FROM gpu_cnn_architectures ORDER BY name;
SELECT gpu_cnn_load_architecture('mine', dense(3));
SELECT count(*) FROM gpu_cnn_architectures WHERE name = 'mine';
SELECT gpu_cnn_load_architecture('bad', '{');
SELECT gpu_cnn_load_architecture('', dense(3));
SELECT gpu_cnn_load_architecture('{x', dense(3));
SELECT gpu_cnn_load_architecture(NULL, dense(3));
SELECT gpu_cnn_load_architecture('mine', dense(2), weights := '\x00000000');
SELECT gpu_cnn_summary('mine');
SELECT gpu_cnn_summary('nothing');
SELECT gpu_cnn_summary('keras_cnn', 28, 28, 1, 10) ~ 'Total params' AS keras_cnn, gpu_cnn_summary('lenet', 28, 28, 1, 10) ~ 'Total params: 61706' AS lenet,
	gpu_cnn_summary('resnet20', 32, 32, 3, 10) ~ 'Total params' AS resnet20, gpu_cnn_summary('vgg_small', 32, 32, 3, 10) ~ 'Total params' AS vgg_small;
SELECT gpu_cnn_summary('lenet', 0, 28, 1, 10);
SELECT gpu_cnn_summary(NULL);

-- owners: only one's own may be replaced, unless one is an administrator
CREATE ROLE regress_arch_one IN ROLE gpu_cnn_user;
CREATE ROLE regress_arch_two IN ROLE gpu_cnn_user;
CREATE ROLE regress_arch_admin IN ROLE gpu_cnn_admin;
SET ROLE regress_arch_one;
SELECT gpu_cnn_load_architecture('hers', '{"class_name":"Sequential","config":{"name":"n","layers":[{"class_name":"Dense","config":{"name":"d","units":2,"activation":"softmax"}}]}}');
SELECT gpu_cnn_load_architecture('mine', 'lenet');
SELECT current_user;
SET ROLE regress_arch_two;
SELECT gpu_cnn_load_architecture('hers', 'lenet');
DELETE FROM gpu_cnn_architectures;
SET ROLE regress_arch_admin;
SELECT gpu_cnn_load_architecture('hers', 'lenet');
SELECT name, owner FROM gpu_cnn_architectures ORDER BY name;
DELETE FROM gpu_cnn_architectures WHERE name = 'hers';
RESET ROLE;
DROP ROLE regress_arch_one, regress_arch_two, regress_arch_admin;

-- export and import: the same model again
SELECT rows FROM gpu_cnn_train('img', 'm', architecture := 'dense2', epochs := 2, batch_size := 20, backend := 'ref');
SELECT convert_from(gpu_cnn_export('m', 'keras_json'), 'UTF8')::json ->> 'class_name' AS class, length(gpu_cnn_export('m', 'weights')) AS bytes;
SELECT gpu_cnn_export('m', 'onnx');
SELECT gpu_cnn_export('nothing', 'weights');
SELECT gpu_cnn_export(NULL, 'weights');
SELECT gpu_cnn_import_weights('i', convert_from(gpu_cnn_export('m', 'keras_json'), 'UTF8'), gpu_cnn_export('m', 'weights'), ARRAY['bottom', 'top'], dependent := 'label');
SELECT checksum('m') = checksum('i') AS same;
SELECT task, classes, outputs, input_shape, weights_count, epochs FROM i_summary;
SELECT count(*) FILTER (WHERE gpu_cnn_predict('i', image) = gpu_cnn_predict('m', image)) AS same FROM img;
SELECT abs(a.loss - b.loss) < 1e-6 AS same, a.confusion = b.confusion AS same FROM gpu_cnn_evaluate('m', 'img') a, gpu_cnn_evaluate('i', 'img') b;
-- as a start, from the table of architectures
SELECT gpu_cnn_load_architecture('trained', convert_from(gpu_cnn_export('m', 'keras_json'), 'UTF8'), gpu_cnn_export('m', 'weights'));
SELECT rows FROM gpu_cnn_train('img', 'w', architecture := 'trained', epochs := 1, batch_size := 20, backend := 'ref', learning_rate := 1e-12);
SELECT abs(w.loss - m.loss) < 0.05 AS started_there FROM w_summary w, gpu_cnn_evaluate('m', 'img') m;
SELECT rows FROM gpu_cnn_train('img', 'w2', architecture := 'dense2', warm_start := 'i', epochs := 1, batch_size := 20, backend := 'ref', learning_rate := 1e-12);
SELECT abs(w.loss - v.loss) < 1e-6 AS same FROM w_summary w, w2_summary v;
-- classes in another order than a training would give them: by number
SELECT gpu_cnn_import_weights('j', dense(2), gpu_cnn_export('m', 'weights'), ARRAY['z', 'a']);
SELECT gpu_cnn_predict('j', image) AS value, label, count(*) FROM img GROUP BY 1, 2 ORDER BY 1;
SELECT gpu_cnn_import_weights('k', dense(2), gpu_cnn_export('m', 'weights'));
SELECT DISTINCT gpu_cnn_predict('k', image) AS value FROM img ORDER BY 1;
SELECT gpu_cnn_import_weights('l', dense(2), gpu_cnn_export('m', 'weights'), ARRAY['a', 'b', 'c']);
SELECT gpu_cnn_import_weights('l', dense(2), gpu_cnn_export('m', 'weights'), ARRAY['a', NULL]);
SELECT gpu_cnn_import_weights('l', dense(2), '\x0000');
SELECT gpu_cnn_import_weights('l', dense(2), NULL);
SELECT gpu_cnn_import_weights('l', 'lenet', '\x00000000');
SELECT gpu_cnn_import_weights('l', dense(2), gpu_cnn_export('m', 'weights'), normalizing_const := 0);
SELECT gpu_cnn_import_weights('m', dense(2), gpu_cnn_export('m', 'weights'));
SELECT to_regclass('l');

-- what cnnd is, and its devices
SELECT component, version IS NOT NULL AS version, fits FROM gpu_cnn_version();
SELECT device, kind, memory > 0 AS memory, free_memory > 0 AS free, jobs FROM gpu_cnn_devices();
SET gpu_cnn.socket = '/nowhere/cnnd.sock';
SELECT component, version IS NOT NULL AS version, detail, fits FROM gpu_cnn_version() WHERE component <> 'extension';
SELECT * FROM gpu_cnn_devices();
SET gpu_cnn.socket = '/tmp';
SELECT * FROM gpu_cnn_devices();
RESET gpu_cnn.socket;
SET gpu_cnn.daemon_user = 'nobody_at_all';
SELECT * FROM gpu_cnn_devices();
SET gpu_cnn.daemon_user = 'daemon';
SELECT regexp_replace(detail, 'user id [0-9]+', 'user id N', 'g') AS detail FROM gpu_cnn_version() WHERE NOT fits;
RESET gpu_cnn.daemon_user;
SET gpu_cnn.ring = 'device';
SELECT component, fits FROM gpu_cnn_version() WHERE component = 'ring';
SELECT rows FROM gpu_cnn_train('img', 'never', architecture := 'dense2');
SET gpu_cnn.ring = 'memfd';
SELECT rows FROM gpu_cnn_train('img', 'memfd', architecture := 'dense2', epochs := 1, batch_size := 20);
SET gpu_cnn.ring = 'other';
