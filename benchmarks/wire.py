"""Compares loss curves of smaller wire dtypes: benchmarks/wire.py [MODEL ...] [--ranks 2] [--steps 200].

LeNet on Fashion-MNIST and a GPT of two layers on Shakespeare's sonnets are trained by ranks that are threads, on the
same batches. Gradients travel as f32, as bf16, as int8, and as int8 without residuals, which are set to zero after each
step. Prints the mean loss of ten steps at several points, and the mean distance of all losses from those with f32, as
the tables of docs/wire.md.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

import lockstep as ls

ROOT = Path(__file__).resolve().parents[1]
sys.path += [str(ROOT / "examples"), str(ROOT / "examples/language")]

import model as language
import text as sonnets
from onnx_layers import write

FASHION_MNIST = "/usr/share/datasets/fashion-mnist"
WIRES = {"f32": None, "bf16": "bf16", "int8": "int8", "int8, nothing kept": "int8"}
MEAN_OF = 10  # steps

Batch = Mapping[str, np.ndarray]


@dataclass(frozen=True)
class Task:
    model: ls.Graph
    loss: ls.loss.Loss
    optimizer: ls.optim.Optimizer
    batch: Callable[[int], Batch]  # the batch of all ranks, by the number of the step

    def share(self, number: int, world: ls.Communicator) -> Batch:
        """Returns the rank's part of the batch of a step."""
        batch = self.batch(number)
        rows = len(next(iter(batch.values()))) // world.size
        return {name: value[world.rank * rows : (world.rank + 1) * rows] for name, value in batch.items()}


def lenet(_: Path, parts: int = 1) -> Task:
    """The model takes one of so many parts of a batch."""
    images, labels = ls.data.mnist(FASHION_MNIST)
    size = 96
    model = ls.load_onnx(ROOT / "examples/mnist/lenet.onnx", dims={"batch": size // parts})
    loss = ls.loss.softmax_cross_entropy("logits", "label")

    def batch(number: int) -> Batch:
        rows = slice(number * size % len(images), number * size % len(images) + size)
        return {"image": images[rows], "label": labels[rows]}

    return Task(model, loss, ls.optim.SGD(0.05, momentum=0.9), batch)


def gpt(folder: Path, parts: int = 1, layers: int = 2, width: int = 64, length: int = 64, size: int = 12) -> Task:
    write(language.gpt(layers, width, heads=4, length=length, dropout=0.0), folder / "gpt.onnx")
    text, _ = sonnets.read(ROOT / "examples/language/sonnets.txt", length)
    model = ls.load_onnx(folder / "gpt.onnx", dims={"batch": size // parts})
    loss = ls.loss.softmax_cross_entropy("logits", "next")

    def batch(number: int) -> Batch:
        begins = np.random.Generator(np.random.PCG64([1, number])).integers(len(text) - length, size=size)
        windows = np.stack([text[begin : begin + length + 1] for begin in begins]).astype(np.int64)
        return {"tokens": windows[:, :-1], "next": windows[:, 1:]}

    return Task(model, loss, ls.optim.AdamW(5e-4, weight_decay=0.1), batch)


TASKS = {"lenet": lenet, "gpt": gpt}


def on_ranks(ranks: int, body: Callable[[ls.Communicator], list[float]]) -> list[float]:
    """Runs `body` on all ranks. Returns its result on rank 0, which must be that of all ranks."""
    results: list[list[float]] = [[] for _ in range(ranks)]

    def run(world: ls.Communicator) -> None:
        results[world.rank] = body(world)

    threads = [threading.Thread(target=run, args=(world,)) for world in ls.Communicator.in_process(ranks)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if any(result != results[0] for result in results):
        raise SystemExit("a rank failed, or had a different loss")
    return results[0]


def losses(task: Task, ranks: int, steps: int, how: str) -> list[float]:
    step = ls.train_step(task.model, task.loss, task.optimizer)

    def train(world: ls.Communicator) -> Iterator[float]:
        exe = ls.compile(step, world=world, threads=1, wire=WIRES[how])
        residuals = [name for name in exe.state if "/residual/" in name]
        for number in range(steps):
            yield float(exe(**task.share(number, world))["loss"])
            if how == "int8, nothing kept":
                for name in residuals:
                    exe.state[name] = np.zeros_like(exe.state[name])
        exe.check_replicas()

    return on_ranks(ranks, lambda world: list(train(world)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("models", nargs="*", default=list(TASKS), help=f"models of {', '.join(TASKS)} (default: all)")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--steps", type=int, default=200)
    options = parser.parse_args()
    marks = range(options.steps // 4, options.steps + 1, options.steps // 4)
    with tempfile.TemporaryDirectory() as folder:
        for name in options.models:
            task = TASKS[name](Path(folder))
            curves = {how: losses(task, options.ranks, options.steps, how) for how in WIRES}
            print(f"\n{name}, {options.ranks} ranks\n")
            print(f"| travels as | {' | '.join(f'step {mark}' for mark in marks)} | from f32 |")
            print("|---|" + "---|" * (len(marks) + 1))
            for how, curve in curves.items():
                means = [f"{np.mean(curve[mark - MEAN_OF : mark]):.4f}" for mark in marks]
                distance = np.mean(np.abs(np.subtract(curve, curves["f32"])))
                print(f"| {how} | {' | '.join(means)} | {distance:.4f} |", flush=True)


if __name__ == "__main__":
    main()
