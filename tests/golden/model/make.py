#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Golden architectures for tests/unit/model/golden.c, made by Keras itself.

Run once under Keras 3 and once under Keras 2 (TensorFlow 2.15); each writes the files of its own
generation into this folder:

    pip install keras jax              && KERAS_BACKEND=jax ./make.py
    pip install 'tensorflow-cpu==2.15.*' && ./make.py

NAME.json is model.to_json(). NAME.expect has one fact a line:
    input D...                  shape of a row
    output N                    elements of the output
    params TRAINABLE FROZEN     as in model.summary()
    tensor NAME TRAINABLE D...  model.weights in order: the last part of the variable's name
    layer NAME D...             output shape of a layer without the batch
NAME.values (f32, little-endian): model.get_weights() with random values, two rows, their outputs.
k3_same.txt has, from convolutions with kernels of ones over the ramp 1, 2, 3, ..., the first and the
last output of 'same' padding: in kernel stride dilation out first last.
"""
import json
import os
import random

import numpy as np

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
try:
    import keras

    new = int(keras.__version__.split(".")[0]) >= 3
except ImportError:
    new = False
if not new:
    import tensorflow as tf

    keras = tf.keras

HERE = os.path.dirname(os.path.abspath(__file__))
L = keras.layers
PREFIX = "k3_" if new else "k2_"


def flat(layers):
    for layer in layers:
        if hasattr(layer, "layers"):
            yield from flat(layer.layers)
        elif not isinstance(layer, L.InputLayer):
            yield layer


def shape_of(layer):
    shape = layer.output.shape if new else layer.output_shape
    return list(shape)[1:]


def size(values):
    n = 1
    for v in values:
        n *= v
    return n


def count(weights):
    return sum(size(w.shape) for w in weights)


def values(model, path):
    """Weights drawn anew (a variance must be positive), two rows and what the model makes of them."""
    rng = np.random.default_rng(5)
    weights = [rng.uniform(0.5, 1.5, w.shape) if "variance" in v.name
               else rng.normal(0, 0.5, w.shape) for v, w in zip(model.weights, model.get_weights())]
    model.set_weights([w.astype("float32") for w in weights])
    x = rng.uniform(-1, 1, (2,) + tuple(model.input_shape[1:])).astype("float32")
    y = np.asarray(model(x, training=False), dtype="float32")
    with open(path + ".values", "wb") as f:
        for a in model.get_weights() + [x, y]:
            f.write(np.ascontiguousarray(a, dtype="<f4").tobytes())


def save(name, model, layers=True, text=None, run=False):
    path = os.path.join(HERE, PREFIX + name)
    with open(path + ".json", "w") as f:
        f.write((text or model.to_json(indent=1)) + "\n")
    lines = ["input " + " ".join(map(str, list(model.input_shape)[1:])),
             "output %d" % size(list(model.output_shape)[1:]),
             "params %d %d" % (count(model.trainable_weights), count(model.non_trainable_weights))]
    trainable = {id(w) for w in model.trainable_weights}
    for w in model.weights:
        last = (w.path if new else w.name.split(":")[0]).split("/")[-1]
        lines.append("tensor %s %d %s" % (last, id(w) in trainable, " ".join(map(str, w.shape))))
    if layers:
        for layer in flat(model.layers):
            lines.append("layer %s %s" % (layer.name, " ".join(map(str, shape_of(layer)))))
    with open(path + ".expect", "w") as f:
        f.write("\n".join(lines) + "\n")
    if run:
        values(model, path)


def mnist():
    return keras.Sequential([
        L.Input((28, 28, 1), name="image"), L.Conv2D(32, 3, activation="relu"),
        L.Conv2D(64, (3, 3), activation="relu"), L.MaxPooling2D((2, 2)), L.Dropout(0.25),
        L.Flatten(), L.Dense(128, activation="relu"), L.Dropout(0.5),
        L.Dense(10, activation="softmax")], name="mnist")


def every_layer():
    reg = keras.regularizers
    ini = keras.initializers
    x = i = L.Input((33, 29, 4), name="in")
    x = L.Rescaling([1 / 255., 1 / 127., 1., 2.], [0., -1., 0., 0.], name="rescale")(x)
    x = L.RandomFlip("horizontal", name="flip")(x)
    x = L.RandomTranslation(0.1, (-0.2, 0.2), fill_mode="constant", name="shift")(x)
    x = L.ZeroPadding2D(((1, 2), (3, 0)), name="pad")(x)
    x = L.Conv2D(8, (5, 3), strides=(2, 1), padding="same", groups=4, activation="relu",
                 kernel_regularizer=reg.L2(1e-4), bias_regularizer=reg.L1(1e-3),
                 kernel_initializer=ini.HeNormal(seed=7), name="group")(x)
    x = L.BatchNormalization(momentum=0.9, epsilon=1e-5, name="bn1")(x)
    x = L.Conv2D(8, 3, dilation_rate=2, padding="same", use_bias=False,
                 kernel_regularizer=reg.L1L2(1e-5, 1e-4), name="dilate")(x)
    x = L.ReLU(6.0, negative_slope=0.1, threshold=0.5, name="relu")(x)
    x = L.DepthwiseConv2D(3, strides=2, depth_multiplier=2, padding="same", name="depth")(x)
    x = L.LeakyReLU(0.2, name="leaky")(x)
    y = L.SeparableConv2D(12, 3, padding="same", depth_multiplier=2, activation="elu",
                          depthwise_initializer="he_uniform", name="sep")(x)
    z = L.MaxPooling2D(3, strides=1, padding="same", name="max")(x)
    w = L.AveragePooling2D((3, 2), strides=(1, 1), padding="same", name="avg")(x)
    x = L.Concatenate(name="cat")([y, z, w])
    x = L.BatchNormalization(center=False, name="bn2")(x)
    x = L.BatchNormalization(scale=False, trainable=False, name="bn3")(x)
    u = L.UpSampling2D((2, 3), name="up")(x)
    u = L.MaxPooling2D((2, 3), name="down")(u)
    x = L.Add(name="add")([x, u])
    a = L.GlobalAveragePooling2D(name="gavg")(x)
    b = L.GlobalMaxPooling2D(keepdims=True, name="gmax")(x)
    b = L.Flatten(name="flat")(b)
    x = L.Concatenate(axis=1, name="cat2")([a, b])
    x = L.Reshape((4, -1), name="fold")(x)
    x = L.Dense(6, activation="tanh", kernel_initializer="lecun_normal", name="rows")(x)
    x = L.Reshape((2, 4, 3), name="fold3")(x)
    x = L.ELU(0.5, name="elu")(x)
    x = L.Flatten(name="flat2")(x)
    x = L.Activation("selu", name="selu")(x)
    x = L.Dense(10, kernel_initializer=ini.RandomNormal(0.1, 0.2), bias_initializer="ones",
                name="logits")(x)
    return keras.Model(i, L.Softmax(name="soft")(x), name="every")


def twice():
    """A model without weights, called twice, the second time as the output."""
    e = L.Input((8, 8, 2), name="e")
    inner = keras.Model(e, L.ELU(name="elu")(L.AveragePooling2D(3, 1, "same", name="avg")(e)),
                        name="inner")
    i = L.Input((8, 8, 2), name="i")
    x = L.Conv2D(2, 3, padding="same", name="c2")(inner(L.Conv2D(2, 1, name="c1")(i)))
    return keras.Model(i, inner(x))


def augment():
    return keras.Sequential([
        L.Input((12, 10, 3), name="in"), L.ZeroPadding2D(2, name="pad"),
        L.RandomFlip(name="flip"), L.RandomCrop(12, 10, name="crop"),
        L.RandomTranslation((-0.1, 0.1), 0.2, fill_mode="constant", name="shift"),
        L.Conv2D(2, 3, name="conv"), L.Flatten(name="flat"), L.Dense(2, name="out")])


def branches():
    """Branches of different length: model.layers is neither the order of making nor of calling."""
    i = L.Input((8, 8, 3), name="in")
    x = L.Conv2D(4, 3, name="c")(i)
    f = L.Dense(3, name="f")(x)
    b = L.Conv2D(3, 3, name="b1", padding="same")(i)
    b = L.BatchNormalization(name="n")(b)
    b = L.Conv2D(3, 3, name="b2")(b)
    b = L.Conv2D(3, 1, name="b3")(b)
    r = L.ReLU(name="shared")
    y = L.Add(name="a")([r(f), r(b)])
    y = L.Add(name="a3")([y, r(y), f])
    return keras.Model(i, y)


def nested():
    i = L.Input((8, 8, 3), name="outer_in")
    e = L.Input((6, 6, 4), name="inner_in")
    inner = keras.Model(e, L.BatchNormalization(name="bn")(L.Conv2D(2, 1, name="c")(e)),
                        name="inner")
    s = keras.Sequential([L.Input((6, 6, 2)), L.Conv2D(4, 1, name="c"),
                          L.BatchNormalization(name="bn")], name="seq")
    x = L.Conv2D(4, 3, name="c")(i)
    y = s(inner(x))
    y = L.Add(name="add")([x, y])
    s.trainable = False
    return keras.Model(i, L.Dense(2, name="out")(L.Flatten(name="flatten")(y)))


def head():
    """A model in front of a Sequential one, as for transfer learning; the base is frozen."""
    i = L.Input((12, 12, 3), name="base_in")
    x = L.Conv2D(4, 3, name="conv")(i)
    base = keras.Model(i, L.BatchNormalization(name="bn")(x), name="base")
    base.trainable = False
    m = keras.Sequential([base, L.GlobalAveragePooling2D(name="gap"), L.Dense(5, name="dense")])
    m.build((None, 12, 12, 3))
    return m


def quick():
    """The first example of TensorFlow's guide: rows of two dimensions."""
    return keras.Sequential([L.Flatten(input_shape=(28, 28), name="flatten"),
                             L.Dense(16, activation="relu", name="dense"),
                             L.Dropout(0.2, name="dropout"), L.Dense(10, name="dense_1")])


def flat_input():
    return keras.Sequential([L.Input((20,), name="in"), L.Dense(7, activation="sigmoid", name="a"),
                             L.BatchNormalization(name="n"), L.Dense(3, name="b")])


def activations():
    names = ["relu", "elu", "selu", "sigmoid", "tanh", "softplus", "softsign", "swish", "gelu",
             "exponential", "linear", "softmax", "hard_sigmoid"]
    if new:
        names += ["relu6", "leaky_relu", "log_softmax", "silu"]
    i = L.Input((2, 2, 3), name="in")
    out = [L.Dense(2, activation=L.LeakyReLU(0.1), name="object")(i)]
    for n in names:
        out.append(L.Conv2D(2, 1, activation=n, name="conv_" + n)(i))
        out.append(L.Activation(getattr(keras.activations, n, n), name="act_" + n)(i))
    return keras.Model(i, L.Concatenate(name="cat")(out))


def shuffled(model, rng):
    """The same model with its layers listed in another order, as Keras reads it."""
    d = json.loads(model.to_json())
    rng.shuffle(d["config"]["layers"])
    text = json.dumps(d)
    return keras.models.model_from_json(text), text


def random_graph(rng, n):
    """Layers of one shape, connected at random: their order is all that matters."""
    made = [L.Input((4, 4, 2), name="in")]
    shared = L.ReLU(name="shared")
    for k in range(n):
        if rng.random() < 0.2:
            made.append(shared(rng.choice(made)))
        elif rng.random() < 0.4:
            made.append(L.Add(name="add%d" % k)([rng.choice(made) for _ in range(2)]))
        else:
            made.append(L.Conv2D(2, (1, 1 + k), padding="same", name="conv%d" % k)(
                rng.choice(made[-4:])))
    return keras.Model(made[0], L.Add(name="end")(made[-6:]))


def same_ramp():
    with open(os.path.join(HERE, "k3_same.txt"), "w") as f:
        for n in (4, 5, 7, 8):
            for k in (1, 2, 3, 4, 5):
                for s, d in ((1, 1), (2, 1), (3, 1), (1, 2), (1, 3)):
                    m = keras.Sequential([L.Input((1, n, 1)), L.Conv2D(
                        1, (1, k), strides=(1, s), dilation_rate=(1, d), padding="same",
                        use_bias=False, kernel_initializer="ones")])
                    x = np.arange(1, n + 1, dtype="float32").reshape(1, 1, n, 1)
                    y = np.asarray(m(x)).reshape(-1)
                    f.write("%d %d %d %d %d %g %g\n" % (n, k, s, d, len(y), y[0], y[-1]))


save("mnist", mnist())
save("every", every_layer(), run=True)
save("branches", branches(), run=True)
save("nested", nested(), run=True)
save("head", head(), run=True)
save("quick", quick())
save("twice", twice(), run=True)
save("augment", augment())
save("flat", flat_input(), run=True)
save("activations", activations(), run=True)
model, text = shuffled(branches(), random.Random(2))
save("shuffled", model, text=text)
for seed in range(4):
    model, text = shuffled(random_graph(random.Random(seed), 24), random.Random(seed + 10))
    save("random%d" % seed, model, text=text)
if new:
    same_ramp()
print("written by Keras", keras.__version__ if new else "2 (TensorFlow %s)" % tf.__version__)
