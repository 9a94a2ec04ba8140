"""Writes networks as ONNX models. NumPy draws the weights, so no framework is needed.

Names and shapes of weights are those of PyTorch's exporter (`layer1.0.conv1.weight`), so that weights of the same
network in PyTorch fit. All dimensions are fixed except the symbolic dimension `batch`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

OPSET = 23  # the first opset with Attention


class Network:
    """A network under construction. A layer takes the name of a value, and returns the name of its result.

    The same calls with the same seed produce the same bytes.
    """

    def __init__(self, name: str, seed: int) -> None:
        self._name = name
        self.random = np.random.Generator(np.random.PCG64(seed))
        self._nodes: list[onnx.NodeProto] = []
        self._weights: dict[str, np.ndarray] = {}
        self._inputs: list[onnx.ValueInfoProto] = []

    def input(self, name: str, shape: Sequence[int], dtype: int = TensorProto.FLOAT) -> str:
        """Adds an input [batch, *shape]."""
        self._inputs.append(helper.make_tensor_value_info(name, dtype, ["batch", *shape]))
        return name

    def weight(self, name: str, value: np.ndarray) -> str:
        assert name not in self._weights, f"two weights are called {name}"
        self._weights[name] = value
        return name

    def normal(self, name: str, shape: Sequence[int], deviation: float) -> str:
        """Adds a weight that is drawn from a normal distribution around 0."""
        return self.weight(name, (deviation * self.random.standard_normal(shape)).astype(np.float32))

    def filled(self, name: str, size: int, value: float) -> str:
        return self.weight(name, np.full(size, value, np.float32))

    def op(self, op: str, *inputs: str, name: str = "", results: int = 1, **attributes: Any) -> Any:
        """Adds a node of any operator. Returns the name of its result, or a list of names if it has several."""
        name = f"/{name or f'{op}_{len(self._nodes)}'}"
        outputs = [f"{name}_output_{i}" for i in range(results)]
        self._nodes.append(helper.make_node(op, inputs, outputs, name, **attributes))
        return outputs[0] if results == 1 else outputs

    def model(self, x: str, name: str, shape: Sequence[int]) -> onnx.ModelProto:
        """Returns the model, whose result `name` [batch, *shape] is the value x."""
        self._nodes.append(helper.make_node("Identity", [x], [name], f"/{name}"))
        result = helper.make_tensor_value_info(name, TensorProto.FLOAT, ["batch", *shape])
        weights = [numpy_helper.from_array(value, each) for each, value in self._weights.items()]
        graph = helper.make_graph(self._nodes, self._name, self._inputs, [result], weights)
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=11)

    # Layers. `name` is the name of the module in PyTorch.

    def linear(self, x: str, name: str, inputs: int, outputs: int, deviation: float) -> str:
        """Maps [..., inputs] to [..., outputs], with weights [outputs, inputs] and a bias that starts at 0."""
        weight = self.normal(f"{name}.weight", (outputs, inputs), deviation)
        bias = self.filled(f"{name}.bias", outputs, 0)
        product = self.op("MatMul", x, self.op("Transpose", weight, perm=[1, 0]), name=f"{name}/MatMul")
        return self.op("Add", product, bias, name=f"{name}/Add")

    def conv(
        self, x: str, name: str, inputs: int, outputs: int, kernel: int, stride: int = 1, *, bias: bool = False,
        fan: str = "out",
    ) -> str:  # fmt: skip
        """Maps [batch, inputs, h, w] to [batch, outputs, h / stride, w / stride]. Weights are drawn for ReLU by He et
        al. (2015): `fan` is the number of outputs per input ("out") or of inputs per output ("in")."""
        deviation = math.sqrt(2 / (kernel**2 * (outputs if fan == "out" else inputs)))
        operands = [x, self.normal(f"{name}.weight", (outputs, inputs, kernel, kernel), deviation)]
        if bias:
            operands.append(self.filled(f"{name}.bias", outputs, 0))
        return self.op(
            "Conv", *operands, name=f"{name}/Conv", kernel_shape=[kernel] * 2, strides=[stride] * 2, pads=[kernel // 2] * 4
        )  # fmt: skip

    def conv_transpose(self, x: str, name: str, inputs: int, outputs: int) -> str:
        """Maps [batch, inputs, h, w] to [batch, outputs, 2h, 2w]: each position becomes a square of four."""
        weight = self.normal(f"{name}.weight", (inputs, outputs, 2, 2), math.sqrt(1 / inputs))
        bias = self.filled(f"{name}.bias", outputs, 0)
        return self.op(
            "ConvTranspose", x, weight, bias, name=f"{name}/ConvTranspose", kernel_shape=[2, 2], strides=[2, 2]
        )

    def batch_norm(self, x: str, name: str, channels: int, scale: float = 1) -> str:
        """Batch normalisation in inference form. A training step turns it into training form."""
        weights = {"weight": scale, "bias": 0, "running_mean": 0, "running_var": 1}
        operands = [self.filled(f"{name}.{weight}", channels, value) for weight, value in weights.items()]
        return self.op(
            "BatchNormalization", x, *operands, name=f"{name}/BatchNormalization", epsilon=1e-5, momentum=0.9
        )

    def layer_norm(self, x: str, name: str, width: int) -> str:
        scale, shift = self.filled(f"{name}.weight", width, 1), self.filled(f"{name}.bias", width, 0)
        return self.op("LayerNormalization", x, scale, shift, name=f"{name}/LayerNormalization", epsilon=1e-5, axis=-1)

    def lstm(self, x: str, name: str, inputs: int, outputs: int) -> str:
        """Maps [length, batch, inputs] to [length, batch, outputs] by one LSTM layer, from a state of zeros, drawn as
        in PyTorch.

        Its weights `weight_ih` [1, 4 * outputs, inputs] and `weight_hh` are those of ONNX's operator, with gates in the
        order i, o, f, c; PyTorch's order is i, f, c, o. The bias of the forget gate starts at 1 (Jozefowicz et al.,
        2015).
        """
        bound = 1 / math.sqrt(outputs)

        def drawn(part: str, *shape: int) -> str:
            return self.weight(f"{name}.{part}", self.random.uniform(-bound, bound, shape).astype(np.float32))

        weights = [drawn("weight_ih", 1, 4 * outputs, inputs), drawn("weight_hh", 1, 4 * outputs, outputs)]
        bias = np.zeros((1, 8 * outputs), np.float32)  # for inputs, then for the state; both are added
        bias[0, 2 * outputs : 3 * outputs] = 1
        operands = [x, *weights, self.weight(f"{name}.bias", bias)]
        y = self.op("LSTM", *operands, name=f"{name}/LSTM", hidden_size=outputs)  # [length, directions, batch, outputs]
        return self.op("Squeeze", y, self.op("Constant", value_ints=[1]), name=f"{name}/Squeeze")

    def dropout(self, x: str, name: str, ratio: float) -> str:
        """Dropout, which is active in training steps only."""
        if ratio == 0:
            return x
        return self.op("Dropout", x, self.weight(f"{name}.ratio", np.array(ratio, np.float32)), name=f"{name}/Dropout")

    def max_pool(self, x: str, kernel: int, stride: int, padding: int = 0) -> str:
        return self.op("MaxPool", x, kernel_shape=[kernel] * 2, strides=[stride] * 2, pads=[padding] * 4)


def write(model: onnx.ModelProto, path: Path) -> None:
    """Checks a model with ONNX, and writes it to a file."""
    onnx.checker.check_model(model, full_check=True)
    path.parent.mkdir(parents=True, exist_ok=True)
    onnx.save(model, path)
    weights = [weight for weight in model.graph.initializer if weight.dims]
    print(f"wrote {path}: {sum(math.prod(weight.dims) for weight in weights):,} numbers in {len(weights)} tensors")
