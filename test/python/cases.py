"""The training runs on which Lockstep and PyTorch must agree: a model, its data, an optimizer."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import lockstep as ls
from made_once import made_once

ROOT = Path(__file__).resolve().parents[2]
FASHION_MNIST = "/usr/share/datasets/fashion-mnist"
BATCH = 96  # divides among 1, 2, 3 and 4 ranks
STEPS = 50
HAS_AVX512 = "avx512f" in Path("/proc/cpuinfo").read_text()  # without it libraries use other kernels


@dataclass(frozen=True)
class Case:
    name: str
    model: Path
    input: str
    optimizer: ls.optim.Optimizer

    @made_once
    def data(self) -> tuple[np.ndarray, np.ndarray]:
        """Samples and labels of STEPS batches, read-only."""
        count = BATCH * STEPS
        if self.name == "lenet":
            images, labels = ls.data.mnist(FASHION_MNIST)
            return images[:count], labels[:count]
        random = np.random.Generator(np.random.PCG64(5))
        shape, classes = {"mlp": ((12,), 5), "convnet_bn": ((3, 8, 8), 4)}[self.name]
        x = random.standard_normal((count, *shape)).astype(np.float32)
        # Labels that can be learnt: the index of the largest of a few fixed linear functions.
        weights = random.standard_normal((int(np.prod(shape)), classes)).astype(np.float32)
        return x, (x.reshape(count, -1) @ weights).argmax(axis=1).astype(np.int64)


CASES = [
    Case("lenet", ROOT / "examples/mnist/lenet.onnx", "image", ls.optim.SGD(0.05, momentum=0.9)),
    Case("mlp", ROOT / "test/models/mlp.onnx", "x", ls.optim.Adam(0.01)),
    Case(
        "convnet_bn",
        ROOT / "test/models/convnet_bn.onnx",
        "image",
        ls.optim.SGD(0.05, momentum=0.9, nesterov=True, weight_decay=1e-3),
    ),
]


# Splits the first layer's outputs and the second layer's inputs, so the activations between them are split along
# "model" too.
MLP_SPLIT = {"fc1.weight": {"model": 0}, "fc1.bias": {"model": 0}, "fc2.weight": {"model": 1}}


SHARDED_BATCH = 24


def sharded_step(case: Case, optimizer: ls.optim.Optimizer, **options: Any) -> ls.Graph:
    """The step of the tests in which ranks share optimizers or weights, for SHARDED_BATCH rows."""
    model = ls.load_onnx(case.model, dims={"batch": SHARDED_BATCH})
    return ls.train_step(model, ls.loss.softmax_cross_entropy("logits", "label"), optimizer, **options)


def run_share(exe: ls.Executable, case: Any, world: ls.Communicator, number: int) -> float:
    """Runs such a step on this rank's rows of batch `number`, and returns the loss."""
    samples, labels = case.data()
    share = SHARDED_BATCH // world.size
    begin = number * SHARDED_BATCH + world.rank * share
    rows = slice(begin, begin + share)
    return float(exe(**{case.input: samples[rows], "label": labels[rows]})["loss"])


def train(
    case: Case,
    world: ls.Communicator,
    steps: int = STEPS,
    threads: int = 1,
    mesh: dict[str, int] | None = None,
    split: dict[str, dict[str, int]] | None = None,
    wire: str | None = None,
    factors: bool | float | None = None,
    virtual_ranks: int | None = None,
) -> tuple[list[float], ls.Executable]:
    """Trains on this rank. Returns the losses, and the executable with its states."""
    model = ls.load_onnx(case.model, dims={"batch": BATCH})
    step = ls.train_step(model, loss=ls.loss.softmax_cross_entropy("logits", "label"), optimizer=case.optimizer)
    options = {"mesh": mesh, "split": split, "wire": wire, "factors": factors, "virtual_ranks": virtual_ranks}
    exe = ls.compile(step, world=world, threads=threads, **options)
    samples, labels = (array[: steps * BATCH] for array in case.data())
    losses = [
        float(exe(**{case.input: x}, label=y)["loss"])
        for x, y in ls.data.batches(samples, labels, size=BATCH, world=world, mesh=mesh)
    ]
    return losses, exe
