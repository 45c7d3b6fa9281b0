# SPDX-License-Identifier: MIT
"""Golden values of tests/unit/train, computed by Keras 3 (any backend; written with jax):

    python3 -m venv venv && venv/bin/pip install keras jax && venv/bin/python make.py

Writes metrics.json, schedule.json, plan.json and cnn.json beside this file. The tests compare the
C code with these files; nothing else reads them.
"""
import json
import os

os.environ.setdefault("KERAS_BACKEND", "jax")
import keras
import numpy as np

HERE = os.path.dirname(os.path.abspath(__file__))


def save(name, value):
    with open(os.path.join(HERE, name), "w") as f:
        json.dump(value, f, separators=(",", ":"))
        f.write("\n")


def floats(a):
    """Shortest text that gives the same f32 back."""
    return [float(np.format_float_positional(np.float32(v), unique=True)) for v in np.ravel(a)]


# ---- metrics ----


def metric_cases():
    rng = np.random.default_rng(7)
    m = keras.metrics
    logits = rng.normal(size=(40, 6)).astype("f")
    prob = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    prob = np.round(prob, 3).astype("f")  # ties occur
    label = rng.integers(0, 6, 40)
    onehot = np.eye(6, dtype="f")[label]
    yield case("classes", prob, label, onehot, {
        "accuracy": m.SparseCategoricalAccuracy(),
        "top_2": m.SparseTopKCategoricalAccuracy(k=2),
        "top_5": m.SparseTopKCategoricalAccuracy(k=5),
    }, onehot_metrics={
        "binary_accuracy": m.BinaryAccuracy(), "auc": m.AUC(), "precision": m.Precision(),
        "recall": m.Recall(), "rmse": m.RootMeanSquaredError(),
    })
    y = rng.integers(0, 2, 50)
    p = np.clip(0.35 * y + 0.75 * rng.random(50), 0, 1).astype("f")
    p[:6] = [0, 1, 0.5, 1 / 199, 0.25, 0.75]
    yield case("binary", p[:, None], y, y[:, None].astype("f"), {}, onehot_metrics={
        "accuracy": m.BinaryAccuracy(), "binary_accuracy": m.BinaryAccuracy(), "auc": m.AUC(),
        "precision": m.Precision(), "recall": m.Recall(), "rmse": m.RootMeanSquaredError(),
    })
    v = rng.normal(size=(20, 3)).astype("f")
    t = (v + 0.3 * rng.normal(size=(20, 3))).astype("f")
    yield case("regression", v, None, t, {}, onehot_metrics={"rmse": m.RootMeanSquaredError()})


def case(name, value, label, target, metrics, onehot_metrics):
    want = {}
    for group, truth in ((metrics, label), (onehot_metrics, target)):
        for key, metric in group.items():
            half = len(value) // 2  # two batches: the sums must carry over
            metric.update_state(truth[:half], value[:half])
            metric.update_state(truth[half:], value[half:])
            want[key] = float(metric.result())
    return {"name": name, "outputs": int(value.shape[1]), "value": floats(value),
            "label": None if label is None else [int(v) for v in label],
            "target": floats(target), "want": want}


# ---- learning rate ----


def schedule_cases():
    s = keras.optimizers.schedules
    # 40 epochs of 7 updates
    yield {"name": "cosine", "spec": {"epochs": 40, "learning_rate": 0.1, "lr_schedule": "cosine"},
           "updates": 7, "want": [float(s.CosineDecay(0.1, 280)(u)) for u in range(280)]}
    warm = s.CosineDecay(0.0, 280 - 21, alpha=0.01 / 0.1, warmup_target=0.1, warmup_steps=21)
    yield {"name": "cosine with warm-up and floor",
           "spec": {"epochs": 40, "learning_rate": 0.1,
                    "lr_schedule": "cosine(min_lr=0.01, warmup=3)"}, "updates": 7,
           # Keras' warm-up starts at 0; ours begins one update later in that ramp
           "want": [float(warm(u + 1 if u < 21 else u)) for u in range(280)]}
    exp = s.ExponentialDecay(0.1, 7, 0.9)
    yield {"name": "exponential",
           "spec": {"epochs": 10, "learning_rate": 0.1, "lr_schedule": "exponential(gamma=0.9)"},
           "updates": 7, "want": [float(exp(u)) for u in range(70)]}
    stair = s.ExponentialDecay(0.1, 7 * 3, 0.5, staircase=True)
    yield {"name": "step",
           "spec": {"epochs": 10, "learning_rate": 0.1, "lr_schedule": "step(every=3, gamma=0.5)"},
           "updates": 7, "want": [float(stair(u)) for u in range(70)]}


# ---- callbacks ----


class Stub(keras.Model):
    """As much of a model as the two callbacks touch."""

    def __init__(self, lr):
        super().__init__()
        self.optimizer = keras.optimizers.SGD(lr)
        self.epoch_weights = 0

    def get_weights(self):
        return self.epoch_weights

    def set_weights(self, weights):
        self.epoch_weights = weights


def early_case(name, spec, monitor, mode, figures, **options):
    stop = keras.callbacks.EarlyStopping(monitor=monitor, mode=mode, restore_best_weights=True,
                                         **options)
    model = Stub(0.1)
    stop.set_model(model)
    stop.on_train_begin()
    epochs = 0
    for epoch, value in enumerate(figures):
        model.epoch_weights = epoch
        model.stop_training = False
        stop.on_epoch_end(epoch, {monitor: value})
        epochs += 1
        if model.stop_training:
            break
    return {"name": name, "spec": spec, "monitor": monitor, "figures": figures, "epochs": epochs,
            "stopped": bool(model.stop_training), "best": int(stop.best_epoch)}


def plateau_case(name, spec, figures, **options):
    plateau = keras.callbacks.ReduceLROnPlateau(monitor="val_loss", **options)
    model = Stub(0.1)
    plateau.set_model(model)
    plateau.on_train_begin()
    lr = []
    for epoch, value in enumerate(figures):
        plateau.on_epoch_end(epoch, {"val_loss": value})
        lr.append(float(model.optimizer.learning_rate))
    return {"name": name, "spec": spec, "figures": figures, "lr": lr}


def plan_cases():
    rng = np.random.default_rng(3)
    falling = [round(float(1 / (1 + 0.5 * e) + 0.2 * rng.random()), 4) for e in range(30)]
    rising = [round(float(0.9 - 0.5 / (1 + e) + 0.1 * rng.random()), 4) for e in range(30)]
    early = [
        early_case("loss, patience 2", "patience=2", "val_loss", "min", falling, patience=2),
        early_case("loss, patience 5, delta", "patience=5, min_delta=0.05", "val_loss", "min",
                   falling, patience=5, min_delta=0.05),
        early_case("loss, patience 0", "patience=0", "val_loss", "min", falling, patience=0),
        early_case("accuracy, patience 3", "monitor=val_accuracy, patience=3", "val_accuracy",
                   "max", rising, patience=3),
        early_case("accuracy, delta", "monitor=val_accuracy, patience=3, min_delta=0.04",
                   "val_accuracy", "max", rising, patience=3, min_delta=0.04),
    ]
    plateau = [
        plateau_case("patience 2", "plateau(factor=0.5, patience=2)", falling, factor=0.5,
                     patience=2),
        plateau_case("patience 1, cooldown 2", "plateau(factor=0.1, patience=1, cooldown=2)",
                     falling, factor=0.1, patience=1, cooldown=2),
        plateau_case("floor", "plateau(factor=0.3, patience=1, min_lr=0.005)", falling, factor=0.3,
                     patience=1, min_lr=0.005),
        plateau_case("delta", "plateau(factor=0.5, patience=3, min_delta=0.1)", falling,
                     factor=0.5, patience=3, min_delta=0.1),
    ]
    return {"early": early, "plateau": plateau}


# ---- a small CNN with batch norm, full-batch steps: the order of rows does not matter ----


def cnn_model():
    l, r = keras.layers, keras.regularizers
    return keras.Sequential([
        keras.Input((8, 8, 2)),
        l.Conv2D(4, 3, padding="same", activation="relu", kernel_regularizer=r.L2(0.01),
                 name="conv1"),
        l.BatchNormalization(name="bn1"),
        l.MaxPooling2D(2, name="pool1"),
        # no bias: before batch norm its gradient is rounding noise, which Adam would blow up
        l.Conv2D(6, 3, strides=2, padding="same", use_bias=False, name="conv2"),
        l.BatchNormalization(momentum=0.9, name="bn2"),
        l.Activation("relu", name="relu2"),
        l.Flatten(name="flat"),
        l.Dense(3, activation="softmax", kernel_regularizer=r.L1(0.001), name="out"),
    ], name="golden")


def cnn_run(x, y, xv, yv, weights, optimizer, loss, epochs):
    model = cnn_model()
    model.set_weights(weights)
    model.compile(optimizer=optimizer, loss=loss,
                  metrics=["accuracy"])
    h = model.fit(x, y, batch_size=len(x), epochs=epochs, shuffle=False, verbose=0,
                  validation_data=(xv, yv), validation_batch_size=len(xv)).history
    end = np.concatenate([w.ravel() for w in model.get_weights()])
    return {"loss": h["loss"], "accuracy": h["accuracy"], "val_loss": h["val_loss"],
            "val_accuracy": h["val_accuracy"], "weights": floats(end)}


def cnn():
    rng = np.random.default_rng(11)
    keras.utils.set_random_seed(5)
    y = rng.integers(0, 3, 36)
    raw = rng.integers(0, 160, (36, 8, 8, 2))
    for i, c in enumerate(y):  # a bright band whose place is the class
        raw[i, :, 2 * c:2 * c + 3, c % 2] += 90
    raw = raw.astype("uint8")
    x = (raw.astype("f") * np.float32(1 / 255)).astype("f")
    train, val = slice(0, 24), slice(24, 36)
    weights = cnn_model().get_weights()
    o = keras.optimizers
    runs = []
    for name, spec, optimizer in [
        ("sgd", {"optimizer": "sgd", "learning_rate": 0.05, "momentum": 0.9},
         lambda: o.SGD(0.05, momentum=0.9)),
        ("adam", {"optimizer": "adam", "learning_rate": 0.01}, lambda: o.Adam(0.01)),
        ("adamw, clipped", {"optimizer": "adamw", "learning_rate": 0.01, "weight_decay": 0.1,
                            "global_clipnorm": 0.5},
         lambda: o.AdamW(0.01, weight_decay=0.1, global_clipnorm=0.5)),
        ("rmsprop", {"optimizer": "rmsprop", "learning_rate": 0.002, "rho": 0.8},
         lambda: o.RMSprop(0.002, rho=0.8)),
    ]:
        run = cnn_run(x[train], y[train], x[val], y[val], weights, optimizer(),
                      "sparse_categorical_crossentropy", 6)
        runs.append({"name": name, "spec": spec, **run})
    smooth = keras.losses.CategoricalCrossentropy(label_smoothing=0.1)
    eye = np.eye(3, dtype="f")
    run = cnn_run(x[train], eye[y[train]], x[val], eye[y[val]], weights, o.SGD(0.05, momentum=0.9),
                  smooth, 4)
    runs.append({"name": "label smoothing",
                 "spec": {"optimizer": "sgd", "learning_rate": 0.05, "label_smoothing": 0.1},
                 **run})
    return {"architecture": cnn_model().to_json(), "h": 8, "w": 8, "c": 2, "train": 24,
            "x": [int(v) for v in raw.ravel()], "y": [int(v) for v in y],
            "weights": floats(np.concatenate([w.ravel() for w in weights])), "runs": runs}


if __name__ == "__main__":
    save("metrics.json", list(metric_cases()))
    save("schedule.json", list(schedule_cases()))
    save("plan.json", plan_cases())
    save("cnn.json", cnn())
