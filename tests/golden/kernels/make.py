#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Golden values of the compute back ends, from Keras 3.

Writes, next to this file:
  layers.txt, layers.f32   networks: outputs, losses, gradients, moving statistics
  update.txt, update.f32   optimizers: parameters after each step, slots after the last
  train.txt,  train.f32    whole trainings of a few steps

The .txt files describe the cases line by line (see tests/unit/kernels/golden.h, which reads
them); the .f32 files hold the numbers they speak of, little-endian f32, in the order of the lines
"data". Everything is computed in float64, so that the files do not depend on the order of sums of
one version of Keras or of its back end.

  python3 -m venv /tmp/keras && /tmp/keras/bin/pip install keras jax
  /tmp/keras/bin/python tests/golden/kernels/make.py
"""
import os

os.environ["KERAS_BACKEND"] = "jax"
import jax  # noqa: E402

jax.config.update("jax_enable_x64", True)
import keras  # noqa: E402
import numpy as np  # noqa: E402
from keras import layers as L  # noqa: E402

keras.config.set_floatx("float64")
HERE = os.path.dirname(os.path.abspath(__file__))


def f32(v):
    """The value a C float has: hyper-parameters reach the back end as floats."""
    return float(np.float32(v))


class Writer:
    def __init__(self, name):
        self.text = open(os.path.join(HERE, name + ".txt"), "w")
        self.raw = open(os.path.join(HERE, name + ".f32"), "wb")
        self.line("# made by make.py with Keras " + keras.__version__)

    def line(self, *words):
        print(*words, file=self.text)

    def data(self, what, *arrays):
        flat = np.concatenate([np.asarray(a, np.float64).ravel() for a in arrays] or [[]])
        self.line("data", what, flat.size)
        self.raw.write(flat.astype("<f4").tobytes())


# ---- networks as lines ----------------------------------------------------------------------


def same(size, k, s, d):
    total = max((-(-size // s) - 1) * s + (k - 1) * d + 1 - size, 0)
    return total // 2, total - total // 2


def window(layer, kernel, strides, dilation, shape):
    """kh kw sh sw dh dw top bottom left right"""
    pads = (0, 0, 0, 0)
    if layer.padding == "same":
        pads = same(shape[0], kernel[0], strides[0], dilation[0]) + same(
            shape[1], kernel[1], strides[1], dilation[1]
        )
    return list(kernel) + list(strides) + list(dilation) + list(pads)


class Lines:
    """Translates a Keras model to the lines of golden.h; node numbers are line numbers."""

    def __init__(self, model, w):
        self.w, self.count, self.node = w, 0, {}
        for layer in model.layers:
            ins = layer.input if isinstance(layer.input, list) else [layer.input]
            if isinstance(layer, L.InputLayer):
                x, shape = [], layer.batch_shape[1:]
            else:
                x, shape = [self.node[id(t)] for t in ins], tuple(ins[0].shape[1:])
            self.node[id(layer.output)] = getattr(self, type(layer).__name__)(layer, x, shape)

    def put(self, *words):
        self.w.line(*words)
        self.count += 1
        return self.count - 1

    def act(self, layer, x):
        name = getattr(layer, "activation", None)
        name = name.__name__ if name is not None else "linear"
        return x if name == "linear" else self.put("activation", x, name, 0, "inf", 0)

    def InputLayer(self, layer, x, shape):
        return self.put("input", *([1] * (3 - len(shape))), *shape)

    def Conv2D(self, layer, x, shape):
        win = window(layer, layer.kernel_size, layer.strides, layer.dilation_rate, shape)
        y = self.put("conv2d", x[0], layer.filters, *win, layer.groups, int(layer.use_bias))
        return self.act(layer, y)

    def DepthwiseConv2D(self, layer, x, shape):
        win = window(layer, layer.kernel_size, layer.strides, layer.dilation_rate, shape)
        y = self.put("depthwise", x[0], layer.depth_multiplier, *win, int(layer.use_bias))
        return self.act(layer, y)

    def SeparableConv2D(self, layer, x, shape):
        win = window(layer, layer.kernel_size, layer.strides, layer.dilation_rate, shape)
        y = self.put("depthwise", x[0], layer.depth_multiplier, *win, 0)
        y = self.put("conv2d", y, layer.filters, 1, 1, 1, 1, 1, 1, 0, 0, 0, 0, 1, int(layer.use_bias))
        return self.act(layer, y)

    def Dense(self, layer, x, shape):
        return self.act(layer, self.put("dense", x[0], layer.units, int(layer.use_bias)))

    def pool(self, what, layer, x, shape):
        return self.put(what, x[0], *window(layer, layer.pool_size, layer.strides, (1, 1), shape))

    def MaxPooling2D(self, layer, x, shape):
        return self.pool("maxpool", layer, x, shape)

    def AveragePooling2D(self, layer, x, shape):
        return self.pool("avgpool", layer, x, shape)

    def GlobalAveragePooling2D(self, layer, x, shape):
        return self.put("global_avgpool", x[0])

    def GlobalMaxPooling2D(self, layer, x, shape):
        return self.put("global_maxpool", x[0])

    def BatchNormalization(self, layer, x, shape):
        return self.put("batchnorm", x[0], layer.momentum, layer.epsilon, int(layer.scale),
                        int(layer.center), int(not layer.trainable))

    def Activation(self, layer, x, shape):
        y = self.act(layer, x[0])
        return y if y != x[0] else self.put("activation", x[0], "linear", 0, "inf", 0)

    def ReLU(self, layer, x, shape):
        top = "inf" if layer.max_value is None else layer.max_value
        return self.put("activation", x[0], "relu", layer.negative_slope, top, layer.threshold)

    def LeakyReLU(self, layer, x, shape):
        return self.put("activation", x[0], "leaky_relu", layer.negative_slope, "inf", 0)

    def ELU(self, layer, x, shape):
        return self.put("activation", x[0], "elu", layer.alpha, "inf", 0)

    def Softmax(self, layer, x, shape):
        return self.put("activation", x[0], "softmax", 0, "inf", 0)

    def Add(self, layer, x, shape):
        return self.put("add", len(x), *x)

    def Concatenate(self, layer, x, shape):
        return self.put("concat", x[0], x[1], (layer.axis - 1) if layer.axis > 0 else 2)

    def ZeroPadding2D(self, layer, x, shape):
        (top, bottom), (left, right) = layer.padding
        return self.put("pad", x[0], top, bottom, left, right)

    def UpSampling2D(self, layer, x, shape):
        bilinear = int(layer.interpolation == "bilinear")
        return self.put("upsample", x[0], *layer.size, bilinear)

    def Rescaling(self, layer, x, shape):
        return self.put("rescale", x[0], layer.scale, layer.offset)

    def Flatten(self, layer, x, shape):
        return self.put("reshape", x[0], 1, 1, int(np.prod(shape)))

    def Reshape(self, layer, x, shape):
        t = layer.output.shape[1:]
        return self.put("reshape", x[0], *([1] * (3 - len(t))), *t)

    def Dropout(self, layer, x, shape):  # only in trainings without it would agree
        raise NotImplementedError


# ---- networks --------------------------------------------------------------------------------


def chain(shape, *stack):
    x = inputs = keras.Input(shape)
    for layer in stack:
        x = layer(x)
    return keras.Model(inputs, x)


def tail(units=3):
    return L.Flatten(), L.Dense(units, activation="softmax")


def branches():
    i = keras.Input((5, 6, 2))
    x = L.Conv2D(4, 3, padding="same", activation="tanh")(i)
    y = L.Conv2D(4, 3, padding="same", use_bias=False)(x)
    y = L.BatchNormalization(momentum=0.9)(y)
    z = L.Conv2D(4, 1)(i)
    a = L.ReLU()(L.Add()([x, y, z]))
    c = L.Concatenate()([a, L.AveragePooling2D(3, 1, padding="same")(x)])
    return keras.Model(i, L.Dense(3, activation="softmax")(L.GlobalAveragePooling2D()(c)))


def concat(axis, size):
    i = keras.Input((4, 3, 2))
    x = L.Conv2D(2, 1)(i)
    y = L.Conv2D(2, size)(i)
    x = L.Concatenate(axis=axis)([x, y])
    return keras.Model(i, L.Dense(3, activation="softmax")(L.Flatten()(x)))


def frozen():
    m = chain((4, 4, 2), L.Conv2D(3, 3), L.BatchNormalization(), L.Activation("tanh"), *tail())
    m.layers[2].trainable = False
    return m


def activation(layer):
    return chain((6,), L.Dense(8), L.Rescaling(2.5, 0.1), layer, L.Dense(3, activation="softmax"))


SHAPE = (6, 7, 3)


def conv(*args, **kw):
    return chain(SHAPE, L.Conv2D(*args, **kw), L.Activation("tanh"), *tail())


NETWORKS = {
    "conv valid": lambda: conv(4, 3),
    "conv same": lambda: conv(4, 3, padding="same"),
    "conv same stride 2": lambda: conv(4, 3, strides=2, padding="same"),
    "conv same stride 2, 5x5": lambda: conv(3, 5, strides=2, padding="same"),
    "conv same 2x2": lambda: conv(3, 2, padding="same"),
    "conv 3x2, strides 1 2": lambda: conv(3, (3, 2), strides=(1, 2), padding="same"),
    "conv dilated": lambda: conv(3, 3, dilation_rate=(2, 1), padding="same"),
    "conv groups": lambda: conv(6, 3, groups=3, padding="same"),
    "depthwise": lambda: chain(SHAPE, L.DepthwiseConv2D(3, padding="same"), *tail()),
    "depthwise multiplier stride": lambda: chain(
        SHAPE, L.DepthwiseConv2D(3, strides=2, depth_multiplier=2, padding="same"), *tail()),
    "depthwise dilated": lambda: chain(
        SHAPE, L.DepthwiseConv2D(3, dilation_rate=2, use_bias=False), *tail()),
    "separable": lambda: chain(
        SHAPE, L.SeparableConv2D(4, 3, depth_multiplier=2, padding="same", activation="relu"), *tail()),
    "dense": lambda: chain((7,), L.Dense(5, activation="relu"), L.Dense(4, activation="softmax")),
    "dense on the last axis": lambda: chain((3, 2, 4), L.Dense(3, activation="tanh"), *tail()),
    "max pooling": lambda: chain(SHAPE, L.Conv2D(3, 1), L.MaxPooling2D(2), *tail()),
    "max pooling same": lambda: chain(
        SHAPE, L.Conv2D(3, 1), L.MaxPooling2D(3, 2, padding="same"), *tail()),
    "average pooling": lambda: chain(SHAPE, L.Conv2D(3, 1), L.AveragePooling2D((2, 3)), *tail()),
    "average pooling same": lambda: chain(
        SHAPE, L.Conv2D(3, 1), L.AveragePooling2D(3, 2, padding="same"), *tail()),
    "global average pooling": lambda: chain(
        SHAPE, L.Conv2D(4, 1), L.GlobalAveragePooling2D(), L.Dense(3, activation="softmax")),
    "global max pooling": lambda: chain(
        SHAPE, L.Conv2D(4, 1), L.GlobalMaxPooling2D(), L.Dense(3, activation="softmax")),
    "batch norm": lambda: chain((4, 4, 2), L.Conv2D(3, 3), L.BatchNormalization(), L.ReLU(), *tail()),
    "batch norm momentum": lambda: chain(
        (4, 4, 2), L.Conv2D(3, 3),
        L.BatchNormalization(momentum=0.75, epsilon=0.01, scale=False), L.ReLU(), *tail()),
    "batch norm no centre": lambda: chain(
        (4, 4, 2), L.Conv2D(3, 3), L.BatchNormalization(center=False), L.ReLU(), *tail()),
    "batch norm dense": lambda: chain((6,), L.Dense(5), L.BatchNormalization(), L.ReLU(), L.Dense(3, activation="softmax")),
    "batch norm frozen": frozen,
    "branches": branches,
    "concat h": lambda: concat(1, (2, 1)),
    "concat w": lambda: concat(2, (1, 2)),
    "padding": lambda: chain((4, 3, 2), L.ZeroPadding2D(((1, 2), (0, 3))), L.Conv2D(3, 3), *tail()),
    "upsampling": lambda: chain((3, 2, 2), L.Conv2D(3, 1), L.UpSampling2D((2, 3)), *tail()),
    "upsampling bilinear": lambda: chain(
        (3, 4, 2), L.Conv2D(2, 1), L.UpSampling2D((3, 2), interpolation="bilinear"), *tail()),
    "rescaling": lambda: chain((3, 3, 2), L.Rescaling(0.5, offset=-0.25), L.Conv2D(3, 2), *tail()),
    "reshape": lambda: chain((4, 3, 4), L.Reshape((2, 12, 2)), L.Conv2D(3, 2), *tail()),
    "leaky relu": lambda: activation(L.LeakyReLU()),
    "relu slope": lambda: activation(L.ReLU(negative_slope=0.25)),
    "relu 6": lambda: activation(L.ReLU(max_value=1.5)),
    "relu all": lambda: activation(L.ReLU(max_value=2.0, negative_slope=0.125, threshold=0.5)),
    "elu layer": lambda: activation(L.ELU(alpha=0.5)),
    "softmax layer": lambda: activation(L.Softmax()),
}
for name in ("relu", "elu", "selu", "sigmoid", "hard_sigmoid", "tanh", "softplus", "softsign", "silu",
             "exponential", "softmax", "log_softmax", "linear"):
    NETWORKS["activation " + name] = lambda name=name: activation(L.Activation(name))


def gelu(x):
    return keras.activations.gelu(x, approximate=False)


def gelu_tanh(x):
    return keras.activations.gelu(x, approximate=True)


NETWORKS["activation gelu"] = lambda: activation(L.Activation(gelu))
NETWORKS["activation gelu tanh"] = lambda: activation(L.Activation(gelu_tanh))


def outputs(units, last):
    return chain((6,), L.Dense(5, activation="tanh"), L.Dense(units, activation=last))


def image(channels, last):
    return chain((3, 4, 2), L.Conv2D(channels, 3, padding="same", activation=last))


K = keras.losses
# name: network, loss line (kind, smoothing, from_logits), Keras loss
LOSSES = {
    "sparse softmax": (lambda: outputs(4, "softmax"), ("sparse", 0, 0), K.SparseCategoricalCrossentropy()),
    "sparse logits": (lambda: outputs(4, None), ("sparse", 0, 1),
                      K.SparseCategoricalCrossentropy(from_logits=True)),
    "sparse probabilities": (lambda: outputs(4, "sigmoid"), ("sparse", 0, 0),
                             K.SparseCategoricalCrossentropy()),
    "categorical softmax": (lambda: outputs(4, "softmax"), ("categorical", 0, 0), K.CategoricalCrossentropy()),
    "categorical smoothed": (lambda: outputs(4, "softmax"), ("categorical", 0.125, 0),
                             K.CategoricalCrossentropy(label_smoothing=0.125)),
    "categorical logits": (lambda: outputs(4, None), ("categorical", 0.25, 1),
                           K.CategoricalCrossentropy(from_logits=True, label_smoothing=0.25)),
    "categorical probabilities": (lambda: outputs(4, "sigmoid"), ("categorical", 0, 0),
                                  K.CategoricalCrossentropy()),
    "categorical image": (lambda: image(3, "softmax"), ("categorical", 0.125, 0),
                          K.CategoricalCrossentropy(label_smoothing=0.125)),
    "binary sigmoid": (lambda: outputs(3, "sigmoid"), ("binary", 0, 0), K.BinaryCrossentropy()),
    "binary one": (lambda: outputs(1, "sigmoid"), ("binary", 0, 0), K.BinaryCrossentropy()),
    "binary smoothed": (lambda: outputs(3, "sigmoid"), ("binary", 0.25, 0),
                        K.BinaryCrossentropy(label_smoothing=0.25)),
    "binary logits": (lambda: outputs(3, None), ("binary", 0.125, 1),
                      K.BinaryCrossentropy(from_logits=True, label_smoothing=0.125)),
    "binary probabilities": (lambda: outputs(3, "softmax"), ("binary", 0, 0), K.BinaryCrossentropy()),
    "mse": (lambda: outputs(3, None), ("mse", 0, 0), K.MeanSquaredError()),
    "mse image": (lambda: image(2, "tanh"), ("mse", 0, 0), K.MeanSquaredError()),
    "mae": (lambda: outputs(3, None), ("mae", 0, 0), K.MeanAbsoluteError()),
}


# ---- values ----------------------------------------------------------------------------------


def set_weights(model, rng):
    """Weights that are exact in f32, in Keras' own order."""
    new = []
    for v in model.weights:
        kind = v.path.rsplit("/", 1)[-1]
        if kind in ("gamma", "moving_variance"):
            a = rng.uniform(0.5, 1.5, v.shape)
        elif "kernel" in kind:
            bound = np.sqrt(3.0 / np.prod(v.shape[:-1]))
            a = rng.uniform(-bound, bound, v.shape)
        else:
            a = rng.uniform(-0.3, 0.3, v.shape)
        new.append(a.astype(np.float32).astype(np.float64))
    for v, a in zip(model.weights, new):
        v.assign(a)


def in_order(model):
    """get_weights order: per layer, trainable first."""
    return [v for layer in model.layers for v in layer.trainable_variables + [
        w for w in layer.non_trainable_variables]]


def make_batch(model, rng, n, kind):
    x = rng.uniform(-1, 1, (n,) + model.input_shape[1:]).astype(np.float32)
    shape = (n,) + model.output_shape[1:]
    if kind == "sparse":
        y = rng.integers(0, shape[-1], n)
    else:
        y = rng.uniform(0, 1, shape)
        if kind == "categorical":
            y /= y.sum(-1, keepdims=True)
        y = y.astype(np.float32)
    return x, y


def weights_for(weight, out):
    """Sample weights with the axes of the losses, which keep the places of an image."""
    if weight is None:
        return None
    return np.asarray(weight, np.float64).reshape((-1,) + (1,) * (len(out.shape) - 2))


def gradients(model, loss, x, y, weight):
    """Loss in training mode, outputs, gradients of the trainable variables, statistics after."""
    tv = [v.value for v in model.trainable_variables]
    ntv = [v.value for v in model.non_trainable_variables]

    def f(tv):
        out, new = model.stateless_call(tv, ntv, np.asarray(x, np.float64), training=True)
        value = loss(np.asarray(y, np.float64) if y.dtype.kind == "f" else y, out,
                     weights_for(weight, out))
        return value, (out, new)

    (value, (out, new)), grads = jax.value_and_grad(f, has_aux=True)(tv)
    return float(value), np.asarray(out), grads, new


def layer_case(w, name, build, line, loss, rng, n, weighted):
    keras.backend.clear_session()
    model = build()
    set_weights(model, rng)
    x, y = make_batch(model, rng, n, line[0])
    weight = rng.uniform(0.25, 2, n).astype(np.float32) if weighted else None
    w.line("case", name.replace(" ", "_"))
    w.line("loss", *line)
    w.line("rows", n)
    Lines(model, w)
    order = in_order(model)
    w.data("input", x)
    w.data("label" if line[0] == "sparse" else "target", y)
    if weighted:
        w.data("weight", weight)
    w.data("values", *[v.value for v in order])
    out = np.asarray(model(np.asarray(x, np.float64), training=False))
    y64 = np.asarray(y, np.float64) if y.dtype.kind == "f" else y
    value = float(loss(y64, out, weights_for(weight, out)))
    w.line("number evaluate_loss", repr(value))
    w.data("evaluate", activated(out, line))
    value, out, grads, new = gradients(model, loss, x, y, weight)
    w.line("number train_loss", repr(value))
    w.data("train", activated(out, line))
    grad = {id(v): g for v, g in zip(model.trainable_variables, grads)}
    after = {id(v): a for v, a in zip(model.non_trainable_variables, new)}
    w.data("gradient", *[grad.get(id(v), np.zeros(v.shape)) for v in order])
    w.data("after", *[after.get(id(v), v.value) for v in order])
    w.line("end")


def activated(out, line):
    """What evaluate returns: with from_logits the loss applies the activation."""
    if not line[2]:
        return out
    pair = keras.ops.sigmoid if line[0] == "binary" else keras.ops.softmax
    return np.asarray(pair(out))


def write_layers():
    w = Writer("layers")
    rng = np.random.default_rng(1)
    usual = LOSSES["sparse softmax"]
    for k, (name, build) in enumerate(NETWORKS.items()):
        layer_case(w, name, build, usual[1], usual[2], rng, 1 if k % 8 == 7 else 2, False)
    for name, (build, line, loss) in LOSSES.items():
        layer_case(w, "loss " + name, build, line, loss, rng, 3, False)
        layer_case(w, "loss " + name + " weighted", build, line, loss, rng, 3, True)


# ---- optimizers ------------------------------------------------------------------------------

O = keras.optimizers
DEFAULT = dict(momentum=0.0, nesterov=0, beta_1=0.9, beta_2=0.999, rho=0.9, epsilon=1e-7, amsgrad=0,
               centered=0, initial_accumulator_value=0.1, weight_decay=0.0, clipnorm=0.0,
               clipvalue=0.0, global_clipnorm=0.0)
# kind, Keras class, arguments, (l1, l2) of the first tensor
UPDATES = [
    ("sgd", O.SGD, {}, (0, 0)),
    ("sgd", O.SGD, dict(momentum=0.9), (0, 0)),
    ("sgd", O.SGD, dict(momentum=0.9, nesterov=True), (0, 0)),
    ("sgd", O.SGD, dict(momentum=0.5, weight_decay=0.1), (0.01, 0.02)),
    ("sgd", O.SGD, dict(clipvalue=0.3), (0, 0)),
    ("sgd", O.SGD, dict(clipnorm=1.0), (0, 0.05)),
    ("sgd", O.SGD, dict(global_clipnorm=1.5, momentum=0.9), (0.05, 0)),
    ("sgd", O.SGD, dict(global_clipnorm=1e3), (0, 0)),
    ("adam", O.Adam, {}, (0, 0)),
    ("adam", O.Adam, dict(beta_1=0.8, beta_2=0.95, epsilon=1e-3, amsgrad=True), (0, 0)),
    ("adam", O.Adam, dict(weight_decay=0.05, clipnorm=0.5), (0, 0.01)),
    ("adamw", O.AdamW, dict(weight_decay=0.04), (0, 0)),
    ("adamw", O.AdamW, dict(weight_decay=0.04, amsgrad=True, global_clipnorm=1.0), (0.01, 0.01)),
    ("rmsprop", O.RMSprop, {}, (0, 0)),
    ("rmsprop", O.RMSprop, dict(rho=0.8, momentum=0.7, epsilon=1e-4), (0, 0)),
    ("rmsprop", O.RMSprop, dict(centered=True), (0, 0)),
    ("rmsprop", O.RMSprop, dict(centered=True, momentum=0.9, weight_decay=0.02), (0, 0)),
    ("adagrad", O.Adagrad, {}, (0, 0)),
    ("adagrad", O.Adagrad, dict(initial_accumulator_value=0.5, weight_decay=0.1, clipvalue=0.5), (0, 0)),
    ("adadelta", O.Adadelta, dict(rho=0.95), (0, 0)),
    ("adadelta", O.Adadelta, dict(rho=0.8, epsilon=1e-3, weight_decay=0.01), (0.02, 0)),
]
SHAPES = [(5, 4), (7,), (3, 2, 2, 3)]  # the last takes no weight decay
STEPS = 6


def slots(opt, kind):
    if kind in ("adam", "adamw"):
        return [opt._momentums, opt._velocities] + ([opt._velocity_hats] if opt.amsgrad else [])
    if kind == "sgd":
        return [opt.momentums] if opt.momentum else []
    if kind == "rmsprop":
        return [opt._velocities] + [s for s in (opt._momentums, opt._average_gradients) if s]
    if kind == "adagrad":
        return [opt._accumulators]
    return [opt._accumulated_grads, opt._accumulated_delta_vars]


def optimizer_line(w, kind, args):
    full = dict(DEFAULT, **args)
    w.line("optimizer", kind, *[float(full[k]) for k in DEFAULT])


def optimizer(cls, args):
    return cls(learning_rate=0.05, **{k: v if isinstance(v, bool) else f32(v) for k, v in args.items()})


def write_updates():
    w = Writer("update")
    rng = np.random.default_rng(2)
    for kind, cls, args, (l1, l2) in UPDATES:
        start = [rng.uniform(-1, 1, s).astype(np.float32) for s in SHAPES]
        grads = [[rng.normal(0, 0.7, s).astype(np.float32) for s in SHAPES] for _ in range(STEPS)]
        grads[2][1][:] = 0  # a tensor without gradient
        rates = [f32(0.05 / (1 + k)) for k in range(STEPS)]
        variables = [keras.Variable(s, name="v%d" % k, dtype="float64") for k, s in enumerate(start)]
        opt = optimizer(cls, args)
        opt.exclude_from_weight_decay(var_list=[variables[2]])
        opt.build(variables)
        penalty = keras.regularizers.L1L2(f32(l1), f32(l2))
        w.line("case", kind)
        optimizer_line(w, kind, args)
        w.line("penalty", l1, l2)
        w.line("rates", *[repr(r) for r in rates])
        w.data("start", *start)
        for k in range(STEPS):
            w.data("gradient", *grads[k])
            opt.learning_rate = rates[k]
            g = [np.asarray(v, np.float64) for v in grads[k]]
            if l1 or l2:
                g[0] = g[0] + np.asarray(jax.grad(lambda v: penalty(v))(variables[0].value))
            w.line("number norm", repr(float(np.sqrt(sum((v**2).sum() for v in g)))))
            opt.apply_gradients(list(zip(g, variables)))
            w.data("after", *[v.value for v in variables])
        for s in slots(opt, kind):
            w.data("slot", *[v.value for v in s])
        w.line("end")


# ---- whole trainings -------------------------------------------------------------------------


def small_cnn():
    reg = keras.regularizers.L1L2(f32(0.001), f32(0.01))
    return chain((6, 6, 2), L.Conv2D(4, 3, padding="same", use_bias=False, kernel_regularizer=reg),
                 L.BatchNormalization(momentum=0.75), L.ReLU(), L.MaxPooling2D(2), L.Flatten(),
                 L.Dense(5, activation="relu"), L.Dense(3, activation="softmax"))


def write_trainings():
    w = Writer("train")
    rng = np.random.default_rng(3)
    loss = LOSSES["sparse softmax"][2]
    for kind, cls, args in (("sgd", O.SGD, dict(momentum=0.9, nesterov=True)), ("adam", O.Adam, {}),
                            ("rmsprop", O.RMSprop, dict(clipnorm=0.5))):
        keras.backend.clear_session()
        model = small_cnn()
        set_weights(model, rng)
        order = in_order(model)
        opt = optimizer(cls, args)
        opt.build(model.trainable_variables)
        w.line("case", "train_" + kind)
        w.line("loss", "sparse", 0, 0)
        w.line("rows", 4)
        Lines(model, w)
        optimizer_line(w, kind, args)
        w.line("penalty", 0.001, 0.01)
        w.data("values", *[v.value for v in order])
        for k in range(5):
            x, y = make_batch(model, rng, 4, "sparse")
            w.data("input", x)
            w.data("label", y)
            opt.learning_rate = f32(0.02)
            value, _, grads, new = gradients(model, loss, x, y, None)
            kernel = model.layers[1].kernel
            extra = jax.grad(lambda v: model.layers[1].kernel_regularizer(v))(kernel.value)
            penalty = float(model.layers[1].kernel_regularizer(kernel.value))
            grads = [g + extra if v is kernel else g for g, v in zip(grads, model.trainable_variables)]
            w.line("number train_loss", repr(value))
            w.line("number penalty", repr(penalty))
            opt.apply_gradients(list(zip(grads, model.trainable_variables)))
            for v, a in zip(model.non_trainable_variables, new):
                v.assign(a)
        w.data("after", *[v.value for v in order])
        w.line("end")


write_layers()
write_updates()
write_trainings()
