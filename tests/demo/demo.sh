#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# demo.sh: loads a data set into a table of a private PostgreSQL server, trains a network on it from SQL,
# predicts the test table, prints accuracy and confusion matrix, draws the curves.
#   demo.sh fashion|cifar10
# EPOCHS=N and ROWS=N (training rows) make it shorter; the accuracy bar is checked only without them.
set -euo pipefail
top=$(cd "$(dirname "$0")/../.." && pwd)
cd "$top"
BUILD=${BUILD:-build}
export BUILD
data=${1:-fashion}

if [ -z "${SCRATCH:-}" ]; then
	case $data in
	fashion) [ -d /usr/share/datasets/fashion-mnist ] || { echo "demo: the package dataset-fashion-mnist is missing" >&2; exit 1; } ;;
	cifar10)
		archive=
		for f in "${CIFAR10:-}" "$top/../shared/data/cifar10-jpeg.tar.zst"; do
			[ -n "$f" ] && [ -r "$f" ] && { archive=$f; break; }
		done
		[ -n "$archive" ] || { echo "demo: no CIFAR-10 archive; CIFAR10=FILE names a tar of train/CLASS/*.jpg and test/CLASS/*.jpg" >&2; exit 1; }
		export DEMO_ARCHIVE=$archive
		;;
	*) echo "demo: there is no data set '$data' (fashion, cifar10)" >&2; exit 2 ;;
	esac
	# the private server around everything below; it is gone when this ends, however it ends
	exec udf/test/scratch.sh run "$0" "$data"
fi

start=$SECONDS
out=$BUILD/demo
mkdir -p "$out"
cnnctl=$BUILD/bin/cnnctl
sql() { "$SCRATCH_BIN/psql" -X -q -v ON_ERROR_STOP=1 "$@"; }
show() { # prints a statement as a user would type it, then its result
	printf '\n=> %s\n' "$1"
	sql -c "$1"
}

sql -c "CREATE EXTENSION gpu_cnn" -c "CREATE ROLE ann LOGIN" -c "GRANT gpu_cnn_user TO ann" \
	-c "GRANT CREATE ON SCHEMA public TO ann"
export PGUSER=ann
epochs=${EPOCHS:-6}
case $data in
fashion)
	d=/usr/share/datasets/fashion-mnist
	classes='T-shirt/top,Trouser,Pullover,Dress,Coat,Sandal,Shirt,Sneaker,Bag,Ankle boot'
	$cnnctl load -t fashion_train -c "$classes" $d/train-images-idx3-ubyte.gz $d/train-labels-idx1-ubyte.gz
	$cnnctl load -t fashion_test -c "$classes" $d/t10k-images-idx3-ubyte.gz $d/t10k-labels-idx1-ubyte.gz
	train=fashion_train test=fashion_test model=fashion_model
	arguments=(architecture=keras_cnn epochs="$epochs" learning_rate=0.02 'lr_schedule=cosine(warmup=0.5)')
	bar=0.90
	;;
cifar10)
	$cnnctl load -t cifar_train -p train/ "$DEMO_ARCHIVE"
	$cnnctl load -t cifar_test -p test/ "$DEMO_ARCHIVE"
	train=cifar_train test=cifar_test model=cifar_model
	arguments=(architecture=vgg_small epochs="$epochs" learning_rate=0.02 'lr_schedule=cosine(warmup=0.5)' 'augment=flip, pad_crop=4' normalization=standardize)
	bar=0.70
	;;
esac
source=$train
[ -z "${ROWS:-}" ] || source="SELECT * FROM $train WHERE id < $ROWS"

show "SELECT count(*) AS images, pg_size_pretty(pg_total_relation_size('$train')) AS size, min(length(x)) AS bytes_min, max(length(x)) AS bytes_max FROM $train"
echo
$cnnctl train -e -t "$source" -m $model "${arguments[@]}" dependent=y independent=x id_column=id validation_source=$test

show "SELECT epoch, round(loss::numeric, 4) AS loss, round(validation_loss::numeric, 4) AS test_loss, metric_name, round(metric::numeric, 4) AS train, round(validation_metric::numeric, 4) AS test, round(seconds_train::numeric, 1) AS seconds FROM gpu_cnn_history('$model')"
show "SELECT * FROM gpu_cnn_predict('$model', '$test', '${model}_predictions', id_column := 'id')"
show "SELECT round(avg((p.class_value = t.y)::int), 4) AS accuracy FROM ${model}_predictions p JOIN $test t USING (id)"
# the matrix as one column per class
columns=$(sql -At -c "SELECT string_agg(format('count(*) FILTER (WHERE p.class_value = %L) AS %I', y, left(y, 6)), ', ' ORDER BY y) FROM (SELECT DISTINCT y FROM $test) c")
echo
echo "confusion matrix (rows: truth, columns: prediction)"
sql -c "SELECT t.y AS truth, $columns FROM ${model}_predictions p JOIN $test t USING (id) GROUP BY t.y ORDER BY t.y"

accuracy=$(sql -At -c "SELECT round(avg((p.class_value = t.y)::int), 4) FROM ${model}_predictions p JOIN $test t USING (id)")
plot=$out/loss.png
[ "$data" = fashion ] || plot=$out/$data.png
$cnnctl plot -m $model -o "$plot"
rc=0
if [ -z "${ROWS:-}${EPOCHS:-}" ] && ! awk -v a="$accuracy" -v b="$bar" 'BEGIN { exit !(a >= b) }'; then
	echo "demo: accuracy $accuracy is below $bar"
	rc=1
fi
echo "demo: accuracy=$accuracy seconds=$((SECONDS - start)) model=$model plot=$plot"
exit $rc
