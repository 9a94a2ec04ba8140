"""Writes the networks of specs.py as graph texts: write_graphs.py FOLDER. `make cuda-bundle` runs it.

Each network is built as ONNX and imported, as a user's model is, but without weights: those of 100 million parameters
would not fit into the bundle. States have the names of the parameters of torch_peer.py's modules.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import onnx
from onnx import helper, numpy_helper
from specs import SPECS, Spec

import lockstep as ls

OPSET = 23


class Model:
    """An ONNX graph under construction; a value is represented by its name."""

    def __init__(self) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.initializers: list[onnx.TensorProto] = []

    def op(self, kind: str, *inputs: str, outputs: int = 1, **attributes: object) -> str | list[str]:
        names = [f"{kind}_{len(self.nodes)}_{i}" for i in range(outputs)]
        self.nodes.append(helper.make_node(kind, inputs, names, name=f"{kind}_{len(self.nodes)}", **attributes))
        return names[0] if outputs == 1 else names

    def parameter(self, name: str, *shape: int) -> str:
        self.initializers.append(numpy_helper.from_array(np.zeros(shape, np.float32), name))
        return name

    def constant(self, values: list[int]) -> str:
        name = f"constant_{len(self.initializers)}"
        self.initializers.append(numpy_helper.from_array(np.array(values, np.int64), name))
        return name

    def linear(self, x: str, name: str, inputs: int, outputs: int, bias: bool = True) -> str:
        weight = self.op("Transpose", self.parameter(f"{name}.weight", outputs, inputs), perm=[1, 0])
        y = self.op("MatMul", x, weight)
        return self.op("Add", y, self.parameter(f"{name}.bias", outputs)) if bias else y

    def convolution(self, x: str, name: str, shape: tuple[int, ...], stride: int = 1, pad: int = 0) -> str:
        attributes = {"strides": [stride] * 2, "pads": [pad] * 4, "kernel_shape": list(shape[2:])}
        return self.op("Conv", x, self.parameter(f"{name}.weight", *shape), **attributes)

    def batch_norm(self, x: str, name: str, channels: int) -> str:
        parts = ("weight", "bias", "running_mean", "running_var")
        return self.op("BatchNormalization", x, *(self.parameter(f"{name}.{part}", channels) for part in parts))

    def layer_norm(self, x: str, name: str, width: int) -> str:
        parts = (self.parameter(f"{name}.weight", width), self.parameter(f"{name}.bias", width))
        return self.op("LayerNormalization", x, *parts, axis=-1)


def mlp(m: Model, spec: Spec) -> str:
    x = "x"
    for i in range(len(spec.sizes) - 1):
        x = m.op("Relu", x) if i > 0 else x
        x = m.linear(x, str(2 * i), *spec.sizes[i : i + 2])
    return x


def lenet(m: Model, spec: Spec) -> str:
    x = "x"
    for name, shape in (("conv1", (20, 1, 5, 5)), ("conv2", (50, 20, 5, 5))):
        y = m.op("Conv", x, m.parameter(f"{name}.weight", *shape), m.parameter(f"{name}.bias", shape[0]))
        x = m.op("MaxPool", m.op("Tanh", y), kernel_shape=[2, 2], strides=[2, 2])
    x = m.op("Tanh", m.linear(m.op("Flatten", x), "fc1", 800, 500))
    return m.linear(x, "fc2", 500, spec.classes)


def convnet(m: Model, spec: Spec) -> str:
    x = m.convolution("x", "conv1", (16, 3, 3, 3), pad=1)
    x = m.op("Relu", m.batch_norm(x, "bn1", 16))
    x = m.convolution(x, "conv2", (32, 16, 3, 3), stride=2, pad=1)
    x = m.op("Relu", m.batch_norm(x, "bn2", 32))
    return m.linear(m.op("Flatten", m.op("GlobalAveragePool", x)), "fc", 32, spec.classes)


def resnet50(m: Model, spec: Spec) -> str:
    """The ResNet-50 of benchmarks/networks.py."""
    x = m.op("Relu", m.batch_norm(m.convolution("x", "0", (64, 3, 7, 7), 2, 3), "1", 64))
    x = m.op("MaxPool", x, kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1])
    channels, number = 64, 4
    for width, blocks, first in ((64, 3, 1), (128, 4, 2), (256, 6, 2), (512, 3, 2)):
        for block in range(blocks):
            stride, name = (first if block == 0 else 1), str(number)
            y = m.convolution(x, f"{name}.body.0", (width, channels, 1, 1))
            y = m.op("Relu", m.batch_norm(y, f"{name}.body.1", width))
            y = m.convolution(y, f"{name}.body.3", (width, width, 3, 3), stride, 1)
            y = m.op("Relu", m.batch_norm(y, f"{name}.body.4", width))
            y = m.batch_norm(m.convolution(y, f"{name}.body.6", (4 * width, width, 1, 1)), f"{name}.body.7", 4 * width)
            if stride > 1 or channels != 4 * width:
                x = m.convolution(x, f"{name}.shortcut.0", (4 * width, channels, 1, 1), stride)
                x = m.batch_norm(x, f"{name}.shortcut.1", 4 * width)
            x = m.op("Relu", m.op("Add", y, x))
            channels, number = 4 * width, number + 1
    x = m.op("Flatten", m.op("GlobalAveragePool", x))
    return m.linear(x, str(number + 2), channels, spec.classes)


def gpt(m: Model, spec: Spec) -> str:
    """The GPT of benchmarks/networks.py."""
    width, heads = spec.width, spec.heads
    x = m.op("Gather", m.parameter("tokens.weight", spec.classes, width), "x")
    x = m.op("Add", x, m.parameter("places.weight", spec.tokens, width))
    apart = m.constant([0, 0, heads, width // heads])
    together, flat = m.constant([0, 0, width]), m.constant([-1, spec.classes])
    for layer in range(spec.layers):
        name = f"blocks.{layer}"
        y = m.linear(m.layer_norm(x, f"{name}.norm1", width), f"{name}.qkv", width, 3 * width)
        parts = m.op("Split", y, outputs=3, axis=-1, num_outputs=3)
        parts = [m.op("Transpose", m.op("Reshape", part, apart), perm=[0, 2, 1, 3]) for part in parts]
        y = m.op("Transpose", m.op("Attention", *parts, is_causal=1), perm=[0, 2, 1, 3])
        x = m.op("Add", x, m.linear(m.op("Reshape", y, together), f"{name}.out", width, width))
        y = m.linear(m.layer_norm(x, f"{name}.norm2", width), f"{name}.up", width, 4 * width)
        x = m.op("Add", x, m.linear(m.op("Gelu", y), f"{name}.down", 4 * width, width))
    x = m.linear(m.layer_norm(x, "norm", width), "head", width, spec.classes, bias=False)
    return m.op("Reshape", x, flat)


def graph_of(spec: Spec) -> ls.Graph:
    model = Model()
    make = {"mlp": mlp, "lenet": lenet, "convnet": convnet, "resnet50": resnet50, "gpt": gpt}[spec.kind]
    logits = make(model, spec)
    model.nodes.append(helper.make_node("Identity", [logits], ["logits"], name="logits"))
    kind = onnx.TensorProto.INT64 if spec.kind == "gpt" else onnx.TensorProto.FLOAT
    graph = helper.make_graph(
        model.nodes,
        spec.kind,
        [helper.make_tensor_value_info("x", kind, ["batch", *spec.x_shape[1:]])],
        [helper.make_tensor_value_info("logits", onnx.TensorProto.FLOAT, None)],
        model.initializers,
    )
    file = helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)])
    return ls.load_onnx(file, dims={"batch": spec.batch})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    folder = parser.parse_args().folder
    folder.mkdir(parents=True, exist_ok=True)
    for name, spec in SPECS.items():
        (folder / f"{name}.ir").write_text(str(graph_of(spec)) + "\n")


if __name__ == "__main__":
    main()
