"""A GPT (Radford et al., "Language models are unsupervised multitask learners", 2019) over bytes as an ONNX model:

    python examples/language/model.py --layers 4 --width 128 --out gpt.onnx

It has normalisation before each half of a block, learnt positions, and an embedding that also computes the logits.
"""

from __future__ import annotations

import argparse
import math
import sys
from pathlib import Path

import onnx
from onnx import TensorProto

sys.path.append(str(Path(__file__).resolve().parents[1]))
from onnx_layers import Network, write

VOCABULARY = 256  # bytes
DEVIATION = 0.02  # of initial weights, as in GPT-2


def _queries_keys_values(net: Network, x: str, name: str, width: int, separate: bool) -> list[str]:
    if separate:
        return [net.linear(x, f"{name}.{each}", width, width, DEVIATION) for each in ("query", "key", "value")]
    qkv = net.linear(x, f"{name}.qkv", width, 3 * width, DEVIATION)
    return net.op("Split", qkv, results=3, axis=-1, num_outputs=3, name=f"{name}/Split")


def _attention(net: Network, x: str, name: str, width: int, heads: int, deviation: float, separate: bool) -> str:
    q, k, v = _queries_keys_values(net, x, name, width, separate)
    y = net.op("Attention", q, k, v, q_num_heads=heads, kv_num_heads=heads, is_causal=1, name=f"{name}/Attention")
    return net.linear(y, f"{name}.out", width, width, deviation)


def _perceptron(net: Network, x: str, name: str, width: int, deviation: float) -> str:
    x = net.linear(x, f"{name}.up", width, 4 * width, DEVIATION)
    return net.linear(net.op("Gelu", x, approximate="tanh"), f"{name}.down", 4 * width, width, deviation)


def gpt(
    layers: int = 4,
    width: int = 128,
    heads: int = 4,
    length: int = 128,
    dropout: float = 0.1,
    seed: int = 0,
    separate: bool = False,
) -> onnx.ModelProto:
    """Returns a network from bytes `tokens` i64[batch, length] to `logits` f32[batch, 256, length] of the next byte.

    With `separate`, queries, keys and values have separate weights, so that ranks can have those of some heads.
    """
    if width % heads != 0:
        raise ValueError(f"a width of {width} cannot be shared by {heads} heads")
    net = Network("gpt", seed)
    tokens = net.input("tokens", (length,), TensorProto.INT64)
    embedding = net.normal("embedding.weight", (VOCABULARY, width), DEVIATION)
    positions = net.normal("positions.weight", (length, width), DEVIATION)
    x = net.op("Add", net.op("Gather", embedding, tokens, axis=0), positions)
    x = net.dropout(x, "dropout", dropout)
    residual = DEVIATION / math.sqrt(2 * layers)  # the residual stream sums 2 * layers results
    for i in range(layers):
        name = f"blocks.{i}"
        y = net.layer_norm(x, f"{name}.norm1", width)
        y = _attention(net, y, f"{name}.attention", width, heads, residual, separate)
        x = net.op("Add", x, net.dropout(y, f"{name}.dropout1", dropout))
        y = _perceptron(net, net.layer_norm(x, f"{name}.norm2", width), f"{name}.mlp", width, residual)
        x = net.op("Add", x, net.dropout(y, f"{name}.dropout2", dropout))
    x = net.layer_norm(x, "norm", width)
    logits = net.op("MatMul", x, net.op("Transpose", embedding, perm=[1, 0]), name="head/MatMul")
    return net.model(net.op("Transpose", logits, perm=[0, 2, 1]), "logits", (VOCABULARY, length))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for option, value in {"layers": 4, "width": 128, "heads": 4, "length": 128, "seed": 0}.items():
        parser.add_argument(f"--{option}", type=int, default=value)
    parser.add_argument("--dropout", type=float, default=0.1)
    parser.add_argument("--separate", action="store_true", help="separate weights for queries, keys and values")
    parser.add_argument("--out", type=Path, default=Path("build/gpt.onnx"), help="the file to write")
    chosen = vars(parser.parse_args())
    path = chosen.pop("out")
    write(gpt(**chosen), path)


if __name__ == "__main__":
    main()
