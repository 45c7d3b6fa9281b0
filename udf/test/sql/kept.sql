\set SHOW_CONTEXT never
-- which weights a training keeps, and whose figures its result has
CREATE FUNCTION show(model regclass) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
	s text;
BEGIN
	EXECUTE format('SELECT concat_ws('' '', s.epochs, round(s.loss::numeric, 4), s.metrics, ''history:'', (SELECT '
		'string_agg(h.epoch || coalesce('' '' || round(h.loss::numeric, 4), ''''), '', '' ORDER BY epoch) FROM %I h)) FROM %I s',
		model || '_history', model || '_summary') INTO s;
	RETURN s;
END
$$;
SELECT epochs, round(loss::numeric, 4) AS loss FROM gpu_cnn_train('img', 'one', architecture := 'dense2', epochs := 1, batch_size := 10, backend := 'ref');
-- the second epoch is no better by 10: the weights and the figures are those of the first
SELECT epochs, round(loss::numeric, 4) AS loss, metrics FROM gpu_cnn_train('img', 'early', architecture := 'dense2', batch_size := 10,
	backend := 'ref', early_stop := 'monitor=loss, patience=1, min_delta=10');
SELECT checksum('one') = checksum('early') AS same_weights, show('early');
SELECT epoch, note FROM early_history ORDER BY epoch;
SELECT epochs, round(loss::numeric, 4) AS loss FROM gpu_cnn_train('img', 'last', architecture := 'dense2', batch_size := 10,
	backend := 'ref', early_stop := 'monitor=loss, patience=1, min_delta=10, restore_best=false');
SELECT checksum('one') <> checksum('last') AS other_weights, show('last');
-- the epochs end before the patience does
SELECT epochs, round(loss::numeric, 4) AS loss FROM gpu_cnn_train('img', 'ended', architecture := 'dense2', epochs := 3, batch_size := 10,
	backend := 'ref', early_stop := 'monitor=loss, patience=9, min_delta=10');
SELECT checksum('one') = checksum('ended') AS same_weights, show('ended');
-- the last one is the best
SELECT epochs, round(loss::numeric, 4) AS loss FROM gpu_cnn_train('img', 'best', architecture := 'dense2', epochs := 3, batch_size := 10,
	backend := 'ref', early_stop := 'monitor=loss, patience=9');
SELECT show('best');

-- a loss that overflows in a later epoch: a row of it, and the weights and figures of the one before
SET client_min_messages = error;
SELECT epochs < 50 AS stopped, loss IS NOT NULL AS has_loss FROM gpu_cnn_train('SELECT image, id::float8 AS label FROM img', 'nan',
	architecture := dense(1, 'linear'), loss := 'mse', epochs := 50, batch_size := 200, learning_rate := 1e6, backend := 'ref', momentum := 0);
SELECT s.epochs > 0 AS some, h.epoch = s.epochs + 1 AS row_of_it, h.note ~ 'NaN|infinite' AS says_why,
	(SELECT loss FROM nan_history WHERE epoch = s.epochs) = s.loss AS loss_of_the_one_before
FROM nan_summary s, nan_history h WHERE h.epoch = (SELECT max(epoch) FROM nan_history);
RESET client_min_messages;

-- numbers in JSON are the shortest that read back the same
SELECT metrics::text FROM gpu_cnn_evaluate('one', 'SELECT image, CASE WHEN id % 7 < 2 THEN ''top'' ELSE label END AS label FROM img');
SELECT rows, seconds_feed * 1000 = round(seconds_feed * 1000) AND seconds_train * 1000 = round(seconds_train * 1000) AND
	seconds_store * 1000 = round(seconds_store * 1000) AS milliseconds
FROM gpu_cnn_train('img', 'lr', architecture := 'dense2', epochs := 1, batch_size := 10, backend := 'ref', learning_rate := 0.715, label_smoothing := 0.1);
SELECT parameters->'learning_rate' AS learning_rate, parameters->'label_smoothing' AS label_smoothing, parameters->>'normalization' AS normalization
FROM lr_summary;

-- warm_start takes over what the inputs of the weights were made with
SET client_min_messages = warning;
SELECT rows FROM gpu_cnn_train('img', 'raw', architecture := 'dense2', epochs := 1, batch_size := 10, backend := 'ref', normalization := 'none', learning_rate := 1e-4);
SELECT rows FROM gpu_cnn_train('img', 'raw2', architecture := 'dense2', epochs := 1, batch_size := 10, backend := 'ref', warm_start := 'raw', learning_rate := 1e-12);
SELECT a.scale, a.scale = b.scale AND a."offset" = b."offset" AS same FROM raw_summary a, raw2_summary b;
SELECT abs(e.loss - b.loss) < 1e-3 AS goes_on FROM gpu_cnn_evaluate('raw', 'img') e, raw2_summary b;
SELECT rows FROM gpu_cnn_train('img', 'std', architecture := 'dense2', epochs := 1, batch_size := 10, backend := 'ref', normalization := 'standardize');
SELECT rows FROM gpu_cnn_train('SELECT * FROM img WHERE id > 100', 'std2', architecture := 'dense2', epochs := 1, batch_size := 10, backend := 'ref',
	warm_start := 'std', dependent := 'label', id_column := 'id');
SELECT a.scale = b.scale AND a."offset" = b."offset" AS same FROM std_summary a, std2_summary b;
SELECT rows FROM gpu_cnn_predict('std2', 'img', 'std_p');
SELECT rows FROM gpu_cnn_train('img', 'std3', architecture := 'dense2', epochs := 1, batch_size := 10, backend := 'ref', normalization := 'standardize', warm_start := 'std');
-- other wishes than the model's: a warning
SELECT rows FROM gpu_cnn_train('img', 'std4', architecture := 'dense2', epochs := 1, batch_size := 10, backend := 'ref', normalization := 'scale', warm_start := 'std');
SELECT rows FROM gpu_cnn_train('img', 'std5', architecture := 'dense2', epochs := 1, batch_size := 10, backend := 'ref', normalizing_const := 200, warm_start := 'one');
-- and other classes
SELECT rows FROM gpu_cnn_train('SELECT image, upper(label) AS label FROM img', 'upper', architecture := 'dense2', epochs := 1, batch_size := 10, backend := 'ref', warm_start := 'one');
SELECT rows FROM gpu_cnn_train('SELECT image, id % 2 AS label FROM img', 'numbers', architecture := 'dense2', epochs := 1, batch_size := 10, backend := 'ref', warm_start := 'one');
SELECT rows FROM gpu_cnn_train('SELECT image, ARRAY[id % 2, 1 - id % 2] AS label FROM img', 'hot', architecture := 'dense2', epochs := 1, batch_size := 10,
	backend := 'ref', warm_start := 'one', independent := 'image');
SELECT rows FROM gpu_cnn_train('img', 'same', architecture := 'dense2', epochs := 1, batch_size := 10, backend := 'ref', warm_start := 'one');

-- nothing to validate on, nothing to train on
SELECT rows, validation_loss FROM gpu_cnn_train('img', 'v', architecture := 'dense2', epochs := 1, batch_size := 10, backend := 'ref',
	validation_source := 'SELECT * FROM img WHERE false');
SELECT rows FROM gpu_cnn_train('img', 'v2', architecture := 'dense2', epochs := 1, batch_size := 10, backend := 'ref', validation_fraction := 0.999);
SELECT rows FROM gpu_cnn_train('img', 'v3', architecture := 'dense2', epochs := 1, batch_size := 10, backend := 'ref', validation_fraction := 0.001);

-- a training within the source of another one would wait for itself
SELECT model FROM gpu_cnn_train('SELECT image, label FROM img, gpu_cnn_train($$img$$, $$inner$$, architecture := $$dense2$$, epochs := 1)',
	'outer', dependent := 'label', architecture := 'dense2', epochs := 1);
SELECT jobs_left();
SELECT rows FROM gpu_cnn_train('img', 'after', architecture := 'dense2', epochs := 1, batch_size := 10, backend := 'ref');

-- a model's answers as labels are no training
SELECT rows FROM gpu_cnn_train('SELECT image, gpu_cnn_predict(''one'', image) AS label FROM img', 'taught', architecture := 'dense2', epochs := 1,
	batch_size := 10, backend := 'ref');
SELECT classes FROM taught_summary;

-- a label that is the only one leaves the other array to be the image
SELECT rows FROM gpu_cnn_train('SELECT image, ARRAY[id % 2, 1 - id % 2] AS label FROM img', 'array', architecture := 'dense2', epochs := 1, batch_size := 10, backend := 'ref');
SELECT dependent, independent FROM array_summary;
SELECT rows FROM gpu_cnn_train('SELECT image, image AS picture, label FROM img', 'two', architecture := 'dense2', epochs := 1, batch_size := 10, backend := 'ref');
