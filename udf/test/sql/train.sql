-- a training from end to end on one server
SELECT model, rows, skipped, lost, epochs, effective_batch, loss < 0.2 AS learnt, validation_loss,
	metrics->>'accuracy' AS accuracy, feeders > 0 AS fed, seconds_feed > 0 AS feed, seconds_train >= 0 AS train,
	seconds_merge, seconds_evaluate >= 0 AS evaluate, seconds_store > 0 AS store
FROM gpu_cnn_train('img', 'm', architecture := 'dense2', epochs := 3, batch_size := 10, backend := 'ref');

-- what a model is
\d m
\d m_summary
\d m_history
\d m_bad_rows
SELECT kind, part, length(data) FROM m ORDER BY kind, part;
SELECT attname, attstorage FROM pg_attribute WHERE attrelid = 'm'::regclass AND attname = 'data';
SELECT model, source, dependent, independent, dependent_type, task, classes, class_counts, class_weights,
	outputs, input_shape, weights_count, rows, skipped, epochs, batch_size, metrics, extension_version,
	format_version FROM m_summary;
SELECT scale[1] * 255 AS scale, "offset" FROM m_summary;
SELECT architecture->>'class_name' AS class, parameters->>'epochs' AS epochs, parameters->>'backend' AS backend,
	parameters ? 'architecture' AS has_architecture FROM (SELECT architecture, parameters::jsonb FROM m_summary) s;
SELECT epoch, round(learning_rate::numeric, 4) AS lr, steps, rows, metric_name, metric, validation_metric
FROM m_history ORDER BY epoch;
SELECT epoch, loss = lag(loss) OVER (ORDER BY epoch) AS same, loss < lag(loss) OVER (ORDER BY epoch) AS falls
FROM gpu_cnn_history('m');
SELECT count(*) FROM m_bad_rows;

-- predictions
SELECT predictions, rows, skipped, feeders > 0 AS fed FROM gpu_cnn_predict('m', 'img', 'p');
\d p
SELECT count(*), count(*) FILTER (WHERE p.class_value = img.label) AS good, min(rank), max(rank),
	bool_and(prob > 0.5) AS sure, min(class_name) AS class_name FROM p JOIN img USING (id);
SELECT id, gpu_cnn_predict('m', image) = label AS good FROM img ORDER BY id LIMIT 3;
SELECT count(*) FROM img WHERE gpu_cnn_predict('m', image) = label;
SELECT rows, skipped, loss < 0.2 AS learnt, metrics, classes, confusion FROM gpu_cnn_evaluate('m', 'img');

-- the same seed gives the same weights, another one others
SELECT epochs FROM gpu_cnn_train('img', 'm2', architecture := 'dense2', epochs := 3, batch_size := 10,
	backend := 'ref');
SELECT epochs FROM gpu_cnn_train('img', 'm3', architecture := 'dense2', epochs := 3, batch_size := 10,
	backend := 'ref', seed := 1);
SELECT checksum('m') = checksum('m2') AS same, checksum('m') = checksum('m3') AS other_seed;
SELECT checksum('m', 'optimizer') = checksum('m2', 'optimizer') AS same;

-- rows that are fed again before each iteration: the same weights
SELECT epochs, rows FROM gpu_cnn_train('SELECT * FROM img WHERE id <= 150', 'kept', architecture := 'dense2', epochs := 3,
	batch_size := 10, backend := 'ref', validation_source := 'SELECT * FROM img WHERE id > 150', id_column := 'id');
SELECT epochs, rows FROM gpu_cnn_train('SELECT * FROM img WHERE id <= 150', 'again', architecture := 'dense2', epochs := 3,
	batch_size := 10, backend := 'ref', validation_source := 'SELECT * FROM img WHERE id > 150', id_column := 'id', cache := false);
SELECT checksum('kept') = checksum('again') AS same, k.validation_loss = a.validation_loss AS same_loss FROM kept_summary k, again_summary a;

-- the optimized back end agrees with the reference
SELECT epochs FROM gpu_cnn_train('img', 'm4', architecture := 'dense2', epochs := 3, batch_size := 10,
	backend := 'cpu');
SELECT abs(a.loss - b.loss) < 1e-5 AS close FROM m_summary a, m4_summary b;

-- a convolutional network with the default arguments, validation by fraction and by source
SELECT metrics::jsonb ? 'accuracy' AS accuracy, metrics::jsonb ? 'val_accuracy' AS validation, epochs,
	validation_loss > 0 AS validated
FROM gpu_cnn_train('SELECT id, image(id, id % 2 = 0, 64) AS image, id % 2 AS label FROM img', 'conv',
	architecture := '{"class_name":"Sequential","config":{"name":"c","layers":[{"class_name":"InputLayer","config":{"name":"i","batch_input_shape":[null,8,8,1]}},{"class_name":"Conv2D","config":{"name":"c1","filters":4,"kernel_size":[3,3],"padding":"same","activation":"relu"}},{"class_name":"MaxPooling2D","config":{"name":"p","pool_size":[2,2]}},{"class_name":"Flatten","config":{"name":"f"}},{"class_name":"Dense","config":{"name":"d","units":2,"activation":"softmax"}}]}}',
	epochs := 2, batch_size := 20, validation_fraction := 0.25, id_column := 'id');
SELECT rows, (metrics->>'val_accuracy')::float8 > 0.9 AS good
FROM gpu_cnn_train('SELECT * FROM img WHERE id <= 150', 'val', architecture := 'dense2', epochs := 2,
	batch_size := 10, validation_source := 'SELECT * FROM img WHERE id > 150', id_column := 'id');

-- in a transaction: rows of its own, all or nothing
BEGIN;
INSERT INTO img SELECT i, image(i, i % 2 = 0), CASE WHEN i % 2 = 0 THEN 'top' ELSE 'bottom' END
FROM generate_series(201, 220) i;
SELECT rows FROM gpu_cnn_train('img', 'own', architecture := 'dense2', epochs := 1, batch_size := 10,
	backend := 'ref');
ROLLBACK;
SELECT to_regclass('own'), to_regclass('own_summary'), to_regclass('own_history'), to_regclass('own_bad_rows');

-- as the source of other statements
CREATE TABLE result AS SELECT model, rows FROM gpu_cnn_train('img', 'ctas', architecture := 'dense2', epochs := 1,
	batch_size := 10, backend := 'ref');
INSERT INTO result SELECT predictions, rows FROM gpu_cnn_predict('ctas', 'img', 'ctas_p');
SELECT * FROM result ORDER BY model;
