# SPDX-License-Identifier: MIT
"""nets.py: the study's networks as Keras 3 JSON: an MLP, a plain CNN, a batch-norm ResNet.

Small ones, so that many cells can be run on a few cores; the built-in names of gpu_cnn_train work too.
"""
import json


class Net:
    def __init__(self, shape, functional):
        self.layers, self.functional = [], functional
        self.add("InputLayer", "input", [], batch_shape=[None] + shape)

    def add(self, kind, name, inputs, **config):
        layer = {"module": "keras.layers", "class_name": kind,
                 "config": dict(name=name, dtype="float32", **config), "registered_name": None}
        if self.functional:
            tensors = [{"class_name": "__keras_tensor__", "config": {
                "shape": None, "dtype": "float32", "keras_history": [i, 0, 0]}} for i in inputs]
            layer["name"] = name
            layer["inbound_nodes"] = [{
                "args": [tensors] if len(tensors) > 1 else tensors, "kwargs": {}}] if inputs else []
        self.layers.append(layer)
        return name

    def json(self, name):
        config = {"name": name, "trainable": True, "layers": self.layers}
        if self.functional:
            last = self.layers[-1]["name"]
            config.update(input_layers=["input", 0, 0], output_layers=[last, 0, 0])
        return json.dumps({"module": "keras.src.models.functional" if self.functional else "keras",
                           "class_name": "Functional" if self.functional else "Sequential",
                           "config": config, "registered_name": None})


def mlp(shape, classes):
    n = Net(shape, False)
    n.add("Flatten", "flatten", [])
    n.add("Dense", "dense", [], units=128, activation="relu")
    n.add("Dense", "dense_1", [], units=64, activation="relu")
    n.add("Dense", "predictions", [], units=classes, activation="softmax")
    return n.json("mlp")


def cnn(shape, classes):
    n = Net(shape, False)
    for i, filters in enumerate((16, 32)):
        n.add("Conv2D", "conv%d" % i, [], filters=filters, kernel_size=[3, 3], padding="same",
              activation="relu", kernel_initializer="he_uniform")
        n.add("MaxPooling2D", "pool%d" % i, [], pool_size=[2, 2])
    n.add("Flatten", "flatten", [])
    n.add("Dense", "dense", [], units=64, activation="relu")
    n.add("Dense", "predictions", [], units=classes, activation="softmax")
    return n.json("cnn")


def resnet8(shape, classes):
    """He et al. 2016 for CIFAR with n = 1: 8 layers, batch norm after every convolution."""
    n = Net(shape, True)

    def conv_norm(name, last, filters, kernel, stride):
        n.add("Conv2D", name, [last], filters=filters, kernel_size=[kernel, kernel],
              strides=[stride, stride], padding="same", use_bias=False,
              kernel_initializer="he_normal")
        return n.add("BatchNormalization", name + "_bn", [name])

    last = n.add("Activation", "relu0", [conv_norm("conv0", "input", 16, 3, 1)], activation="relu")
    for stage, filters in enumerate((16, 32, 64)):
        stride, skip = (2 if stage else 1), last
        a = conv_norm("s%d_conv1" % stage, last, filters, 3, stride)
        a = n.add("Activation", "s%d_relu1" % stage, [a], activation="relu")
        a = conv_norm("s%d_conv2" % stage, a, filters, 3, 1)
        if stride > 1:
            skip = conv_norm("s%d_short" % stage, last, filters, 1, stride)
        a = n.add("Add", "s%d_add" % stage, [a, skip])
        last = n.add("Activation", "s%d_relu2" % stage, [a], activation="relu")
    n.add("GlobalAveragePooling2D", "pool", [last])
    n.add("Dense", "predictions", ["pool"], units=classes, activation="softmax")
    return n.json("resnet8")


NETS = {"mlp": mlp, "cnn": cnn, "resnet8": resnet8}


def architecture(name, shape, classes):
    return NETS[name](shape, classes) if name in NETS else name
