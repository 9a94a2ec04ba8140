"""A language model of LSTM layers over bytes as an ONNX model:

    python examples/pipeline/model.py --layers 4 --width 128 --out lstm.onnx

The result of each layer is added to its input, as in Google's translation (Wu et al., 2016); otherwise four layers
learn slowly at first. Dropout is between layers, not within a recurrence (Zaremba et al., 2014).
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


def lstm(layers: int = 4, width: int = 128, length: int = 64, dropout: float = 0.1, seed: int = 0) -> onnx.ModelProto:
    """Returns a network from bytes `tokens` i64[batch, length] to `logits` f32[batch, 256, length] of the next byte."""
    net = Network("lstm", seed)
    tokens = net.input("tokens", (length,), TensorProto.INT64)
    embedding = net.normal("embedding.weight", (VOCABULARY, width), 1.0)
    in_time = net.op("Transpose", tokens, perm=[1, 0])
    x = net.op("Gather", embedding, in_time, axis=0, name="embedding/Gather")  # [length, batch, width]
    for i in range(layers):
        y = net.lstm(x, f"layers.{i}", width, width)
        x = net.op("Add", x, net.dropout(y, f"layers.{i}.dropout", dropout), name=f"layers.{i}/Add")
    logits = net.linear(x, "head", width, VOCABULARY, 1 / math.sqrt(width))
    return net.model(net.op("Transpose", logits, perm=[1, 2, 0]), "logits", (VOCABULARY, length))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for option, value in {"layers": 4, "width": 128, "length": 64, "seed": 0}.items():
        parser.add_argument(f"--{option}", type=int, default=value)
    parser.add_argument("--dropout", type=float, default=0.1)
    parser.add_argument("--out", type=Path, default=Path("build/lstm.onnx"), help="the file to write")
    chosen = vars(parser.parse_args())
    path = chosen.pop("out")
    write(lstm(**chosen), path)


if __name__ == "__main__":
    main()
