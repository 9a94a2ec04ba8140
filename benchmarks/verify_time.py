"""Times verification against compilation of whole models:

    python benchmarks/verify_time.py [--ranks 4] [--models lenet,gpt] [--no-shrink]

Prints for each model the processor seconds of compile for one rank and of verify, which also checks gradients, and the
dimensions that verify made smaller.
"""

from __future__ import annotations

import argparse
import importlib
import sys
import time
from collections.abc import Callable
from pathlib import Path

import onnx

ROOT = Path(__file__).resolve().parents[1]
sys.path.append(str(ROOT / "examples"))

import lockstep as ls


def _mlp() -> ls.Graph:
    net = importlib.import_module("onnx_layers").Network("mlp", 0)
    x = net.input("x", (1024,))
    for i, (inputs, outputs) in enumerate([(1024, 4096), (4096, 4096)]):
        x = net.op("Relu", net.linear(x, f"fc{i}", inputs, outputs, 0.01))
    return _step(net.model(net.linear(x, "fc2", 4096, 1000, 0.01), "logits", (1000,)), batch=128)


def _step(model: onnx.ModelProto | Path, batch: int) -> ls.Graph:
    path = model if isinstance(model, Path) else model.SerializeToString()
    loss = ls.loss.softmax_cross_entropy("logits", "label")
    return ls.train_step(ls.load_onnx(path, dims={"batch": batch}), loss, ls.optim.AdamW(0.001))


def _gpt(batch: int, **sizes: int) -> ls.Graph:
    model = importlib.import_module("language.model")
    return _step(model.gpt(dropout=0.0, **sizes), batch)


def _resnet() -> ls.Graph:
    return _step(importlib.import_module("imagenet.model").resnet(50), batch=16)


MODELS: dict[str, Callable[[], ls.Graph]] = {
    "lenet": lambda: _step(ROOT / "examples/mnist/lenet.onnx", batch=128),
    "mlp": _mlp,
    "gpt": lambda: _gpt(8, layers=4, width=128, heads=4, length=128),
    "gpt2-small": lambda: _gpt(8, layers=12, width=768, heads=12, length=1024),
    "resnet50": _resnet,
}


def measure(name: str, ranks: int, shrink: bool) -> str:
    step = MODELS[name]()
    start = time.process_time()
    ls.compile(step, world=ls.Communicator.single(), threads=1)
    compiled = time.process_time()
    assumed = ls.verify(step, ranks, shrink=shrink)
    times = f"compile {compiled - start:.2f} s, verify {time.process_time() - compiled:.2f} s"
    return f"{name}: {times}\n  {assumed[-1]}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--models", default=",".join(MODELS))
    parser.add_argument("--no-shrink", action="store_true", help="do not make dimensions smaller")
    arguments = parser.parse_args()
    for name in arguments.models.split(","):
        print(measure(name, arguments.ranks, not arguments.no_shrink), flush=True)


if __name__ == "__main__":
    main()
