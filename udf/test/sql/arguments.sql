\set SHOW_CONTEXT never
-- arguments of gpu_cnn_train: each refusal names argument, value and range
SET client_min_messages = warning;
CREATE FUNCTION try(more text) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
	r record;
	state text;
	message text;
BEGIN
	EXECUTE format('SELECT epochs, rows FROM gpu_cnn_train(''img'', ''t'', batch_size := 20, backend := ''ref'', '
		'on_exists := ''replace'', %s)', more) INTO r;
	RETURN r.epochs || ' epochs';
EXCEPTION WHEN OTHERS THEN
	GET STACKED DIAGNOSTICS state = RETURNED_SQLSTATE, message = MESSAGE_TEXT;
	RETURN state || ' ' || message;
END
$$;
CREATE FUNCTION d(more text) RETURNS text LANGUAGE sql AS $$ SELECT try('architecture := ''dense2'', ' || more) $$;

SELECT d(a) FROM (VALUES ('epochs := 0'), ('epochs := -1'), ('epochs := 100001'), ('epochs := NULL'),
	('epochs := 1, optimizer := ''sdg'''), ('epochs := 1, optimizer := ''SGD'''), ('learning_rate := 0'),
	('learning_rate := ''NaN'''), ('learning_rate := ''Infinity'''), ('momentum := 1'), ('beta_1 := 0.5'),
	('epochs := 1, optimizer := ''adam'', beta_1 := 0.5'), ('clipnorm := 1, clipvalue := 1'),
	('lr_schedule := ''steps'''), ('epochs := 1, lr_schedule := ''step(every=1, gamma=0.5)'''),
	('lr_schedule := ''step(gama=0.5)'''), ('lr_scaling := ''cubic'''), ('loss := ''hinge'''), ('loss := ''mse'''),
	('epochs := 1, loss := ''categorical_crossentropy'''), ('label_smoothing := 1'), ('from_logits := ''perhaps'''),
	('epochs := 1, from_logits := ''false'''), ('from_logits := ''true'''), ('metrics := ''f1'''),
	('epochs := 1, metrics := ''accuracy, auc, precision, recall'''), ('evaluate_every := 0'),
	('epochs := 3, evaluate_every := 2'), ('epochs := 3, evaluate_every := 30'), ('validation_fraction := 1'),
	('class_weight := ''{'''), ('accumulate := 0'), ('epochs := 1, accumulate := 3'), ('early_stop := ''monitor=nothing'''),
	('augment := ''flop'''), ('epochs := 1, augment := ''flip, pad_crop=1, cutout=1'''), ('normalization := ''some'''),
	('epochs := 1, normalization := ''standardize'''), ('normalizing_const := 0'), ('merge := ''mean'''),
	('epochs := 1, merge := ''average'', merge_every := ''10'', reshuffle := ''auto'''), ('min_hosts := 0'),
	('devices := ''gpu'''), ('replicas := 65'), ('"precision" := ''f16'''), ('seed := -1'), ('max_bad_rows := -1'), ('cache := false'),
	('queue_timeout := ''NaN''::float8, epochs := 1'), ('validation_source := ''nothing'''),
	('validation_source := ''img'', validation_fraction := 0.5'), ('warm_start := ''nothing'''), ('warm_start := ''img'''),
	('sample_weight := ''nothing''')) AS v(a);

-- architectures
SELECT try(a) FROM (VALUES ('architecture := NULL'), ('architecture := '''''), ('architecture := ''nothing'''),
	('architecture := ''{'''), ('architecture := ''{}'''), ('architecture := ''{"class_name": "Sequential"}'''),
	('architecture := ''{"class_name":"Sequential","config":{"name":"s","layers":[{"class_name":"Lambda","config":{"name":"l"}}]}}'''),
	('architecture := ''{"class_name":"Sequential","class_name":"Sequential","config":{}}'''),
	('architecture := ''{"a": NaN}'''), ('architecture := repeat(''['', 10000)'),
	('architecture := dense(2, ''softmax'', ''5,5,1'')'), ('architecture := dense(2, ''softmax'', ''4,4'')'),
	('architecture := dense(2, ''nonsense'')'), ('architecture := dense(1, ''softmax'')'), ('architecture := dense(0)'),
	('architecture := dense(2000000000)'),
	('architecture := dense(2, ''softmax'', ''null,null,null''), epochs := 1')) AS v(a);
SELECT input_shape FROM t_summary;

-- learning rate plan, early stopping, restoring the best
SELECT d('epochs := 4, learning_rate := 0.1, lr_schedule := ''step(every=2, gamma=0.1)''');
SELECT round(learning_rate::numeric, 5) FROM t_history ORDER BY epoch;
SELECT d('epochs := 50, learning_rate := 1e-12, momentum := 0, early_stop := ''monitor=loss, patience=3, min_delta=0.1''');
SELECT count(*), min(note) FROM t_history;
SELECT kind, count(*) FROM t GROUP BY kind;
SELECT d('epochs := 1, learning_rate := 0.05, seed := 7');
SELECT checksum('t') AS first \gset
SELECT d('epochs := 6, learning_rate := 0.05, seed := 7, early_stop := ''monitor=loss, patience=2, min_delta=100, restore_best=true''');
SELECT count(*) AS epochs, checksum('t') = :'first' AS best_is_first FROM t_history;
SELECT epochs, evaluated FROM (SELECT epochs FROM t_summary) s, (SELECT array_agg(epoch ORDER BY epoch) AS evaluated FROM t_history) h;

-- going on from another model's weights: a tiny learning rate leaves them as they are
SELECT d('epochs := 2, seed := 3, momentum := 0');
ALTER TABLE t RENAME TO u;
ALTER TABLE t_summary RENAME TO u_summary;
ALTER TABLE t_history RENAME TO u_history;
ALTER TABLE t_bad_rows RENAME TO u_bad_rows;
SELECT d('epochs := 1, seed := 3, warm_start := ''u'', learning_rate := 1e-12, momentum := 0');
SELECT abs(a.loss - b.loss) < 1e-6 AS went_on FROM gpu_cnn_evaluate('t', 'img') a, gpu_cnn_evaluate('u', 'img') b;
SELECT try('architecture := dense(3), warm_start := ''u'', epochs := 1');

-- the last epoch is the best: its weights, not those of an older snapshot
SELECT d('epochs := 3, seed := 9');
SELECT checksum('t') AS plain \gset
SELECT d('epochs := 3, seed := 9, early_stop := ''monitor=loss, patience=5, restore_best=true''');
SELECT checksum('t') = :'plain' AS last_is_best FROM t_history WHERE epoch = 3;
-- the plateau rule's factor goes from one call to the next
SELECT d('epochs := 4, learning_rate := 0.1, lr_schedule := ''plateau(monitor=loss, factor=0.5, patience=1, min_delta=100)''');
SELECT round(learning_rate::numeric, 5) AS lr FROM t_history ORDER BY epoch;
-- iterations of several epochs see the same rows as single ones
SELECT d('epochs := 4, seed := 9, evaluate_every := 1');
SELECT checksum('t') AS single \gset
SELECT d('epochs := 4, seed := 9, evaluate_every := 3');
SELECT checksum('t') = :'single' AS same, count(*) AS iterations FROM t_history;
