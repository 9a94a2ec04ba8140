"""Trains on every number of ranks with virtual_ranks and compares the bits: benchmarks/same_bits.py [MODEL ...]

LeNet on Fashion-MNIST, a GPT with dropout on Shakespeare's sonnets, and ResNet-50 on random images, by ranks that are
threads, with one thread each. Prints for each number of ranks a hash of all states and losses, which must be equal, the
milliseconds of a step, and their ratio to the step without virtual ranks, whose hashes differ. With --job, the ranks
are those of the job that runs this script (mpirun, lockstep launch), and only rank 0 prints: equal lines on other
hosts, or on other numbers of ranks, are equal bits.

    python benchmarks/same_bits.py --lenet 10000 --gpt 500 --resnet 500
"""

from __future__ import annotations

import argparse
import hashlib
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

import lockstep as ls

ROOT = Path(__file__).resolve().parents[1]
sys.path += [str(ROOT / "examples"), str(ROOT / "examples/language"), str(ROOT / "benchmarks")]

import text as sonnets
from onnx_layers import write

FASHION_MNIST = "/usr/share/datasets/fashion-mnist"
RANKS = (1, 2, 4, 8)
LOSS = ls.loss.softmax_cross_entropy("logits", "label")
WARM_UP = 2  # steps that are not timed

Batch = Mapping[str, np.ndarray]


@dataclass(frozen=True)
class Task:
    step: ls.Graph
    batch: Callable[[int], Batch]  # the batch of all ranks, by the number of the step


@dataclass(frozen=True)
class Outcome:
    bits: str  # a hash
    seconds: float  # the median step


def _module(path: Path) -> dict[str, object]:
    """Runs a file as a module: two examples have a model.py."""
    names: dict[str, object] = {"__name__": path.stem, "__file__": str(path)}
    exec(compile(path.read_text(), path, "exec"), names)  # noqa: S102 (a file of this repository)
    return names


def lenet(_: Path) -> Task:
    images, labels = ls.data.mnist(FASHION_MNIST)
    size = 64
    graph = ls.load_onnx(ROOT / "examples/mnist/lenet.onnx", dims={"batch": size})

    def batch(number: int) -> Batch:
        begin = number * size % (len(images) - size)
        return {"image": images[begin : begin + size], "label": labels[begin : begin + size]}

    return Task(ls.train_step(graph, LOSS, ls.optim.SGD(0.05, momentum=0.9)), batch)


def gpt(folder: Path) -> Task:
    size, length = 16, 64
    make = _module(ROOT / "examples/language/model.py")["gpt"]
    write(make(layers=2, width=64, heads=4, length=length, dropout=0.1), folder / "gpt.onnx")  # type: ignore[operator]
    text, _ = sonnets.read(ROOT / "examples/language/sonnets.txt", length)
    graph = ls.load_onnx(folder / "gpt.onnx", dims={"batch": size})

    def batch(number: int) -> Batch:
        begins = np.random.Generator(np.random.PCG64([1, number])).integers(len(text) - length, size=size)
        windows = np.stack([text[begin : begin + length + 1] for begin in begins]).astype(np.int64)
        return {"tokens": windows[:, :-1], "label": windows[:, 1:]}

    optimizer = ls.optim.AdamW(5e-4, weight_decay=0.1)
    return Task(ls.train_step(graph, LOSS, optimizer, clip=ls.clip.global_norm(1.0)), batch)


def resnet(folder: Path) -> Task:
    size, pixels = 16, 64
    make = _module(ROOT / "examples/imagenet/model.py")["resnet"]
    write(make(size=pixels), folder / "resnet.onnx")  # type: ignore[operator]
    graph = ls.load_onnx(folder / "resnet.onnx", dims={"batch": size})
    image = next(each.name for each in graph.inputs)

    def batch(number: int) -> Batch:
        random = np.random.Generator(np.random.PCG64([2, number]))
        images = random.standard_normal((size, 3, pixels, pixels), dtype=np.float32)
        return {image: images, "label": random.integers(1000, size=size)}

    return Task(ls.train_step(graph, LOSS, ls.optim.SGD(0.05, momentum=0.9, weight_decay=1e-4)), batch)


TASKS = {"lenet": lenet, "gpt": gpt, "resnet": resnet}


def train(task: Task, world: ls.Communicator, steps: int, virtual_ranks: int | None) -> Outcome:
    exe = ls.compile(task.step, world=world, threads=1, virtual_ranks=virtual_ranks)
    seen, times = hashlib.sha256(), []
    for number in range(steps):
        batch = task.batch(number)
        share = len(batch["label"]) // world.size
        rows = slice(world.rank * share, (world.rank + 1) * share)
        start = time.perf_counter()
        loss = exe(**{name: array[rows] for name, array in batch.items()})["loss"]
        times.append(time.perf_counter() - start)
        seen.update(loss.tobytes())
    exe.check_replicas()
    for name in sorted(exe.state):
        seen.update(exe.state[name].tobytes())
    return Outcome(seen.hexdigest()[:16], float(np.median(times[WARM_UP:] or times)))


def in_threads(task: Task, ranks: int, steps: int, virtual_ranks: int | None) -> Outcome:
    outcomes: list[Outcome | None] = [None] * ranks

    def run(world: ls.Communicator) -> None:
        outcomes[world.rank] = train(task, world, steps, virtual_ranks)

    threads = [threading.Thread(target=run, args=(world,)) for world in ls.Communicator.in_process(ranks)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert outcomes[0] is not None and all(each and each.bits == outcomes[0].bits for each in outcomes), outcomes
    return outcomes[0]


def line(name: str, ranks: int, steps: int, virtual: Outcome, plain: Outcome) -> str:
    ratio = virtual.seconds / plain.seconds
    return (
        f"{name:7}{ranks:3} ranks {steps:6} steps  bits {virtual.bits}  {virtual.seconds * 1e3:9.2f} ms"
        f"  plain {plain.bits}  {plain.seconds * 1e3:9.2f} ms  ratio {ratio:5.2f}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("models", nargs="*", default=list(TASKS), help="lenet, gpt, resnet")
    parser.add_argument("--virtual", type=int, default=8, help="the number of virtual ranks")
    parser.add_argument("--plain", type=int, default=20, help="the steps without virtual ranks, which are only timed")
    parser.add_argument("--job", action="store_true", help="the ranks are those of this job")
    for name, steps in {"lenet": 300, "gpt": 20, "resnet": 5}.items():
        parser.add_argument(f"--{name}", type=int, default=steps, help=f"steps of {name}")
    arguments = parser.parse_args()
    world = ls.Communicator.from_environment() if arguments.job else None
    for name in arguments.models:
        steps, bits = getattr(arguments, name), set()
        with tempfile.TemporaryDirectory() as folder:
            task = TASKS[name](Path(folder))
        for ranks in [world.size] if world else RANKS:
            if world:
                virtual = train(task, world, steps, arguments.virtual)
                plain = train(task, world, min(steps, arguments.plain), None)
            else:
                virtual = in_threads(task, ranks, steps, arguments.virtual)
                plain = in_threads(task, ranks, min(steps, arguments.plain), None)
            bits.add(virtual.bits)
            if not world or world.rank == 0:
                print(line(name, ranks, steps, virtual, plain), flush=True)
        if len(bits) != 1:
            sys.exit(f"{name}: the bits depend on the number of ranks")


if __name__ == "__main__":
    main()
