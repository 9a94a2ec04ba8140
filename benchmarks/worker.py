"""One rank of one contestant of run.py: trains on command, and reports the seconds of each step.

    worker.py CONTESTANT MODEL DIRECTORY THREADS

Commands come through the pipe DIRECTORY/command.<rank>, one line each: the number of steps to run, or "stop". After each the
rank writes a line of JSON to DIRECTORY/report.<rank>. A worker that has nothing to do blocks on its pipe and uses no core.
"""

from __future__ import annotations

import itertools
import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
MLP_SIZES = (1024, 4096, 4096, 1000)
BATCHES = {"lenet": 64, "mlp": 128}
LEARNING_RATE, MOMENTUM = 0.01, 0.9


def model_path(model: str) -> Path:
    return ROOT / "examples/mnist/lenet.onnx" if model == "lenet" else ROOT / "build/bench/mlp.onnx"


def write_mlp(path: Path) -> None:
    """The MLP 1024-4096-4096-1000 with ReLU as ONNX."""
    import onnx
    from onnx import TensorProto, helper, numpy_helper

    random = np.random.Generator(np.random.PCG64(0))
    nodes, initializers, value = [], [], "x"
    for i, (rows, columns) in enumerate(itertools.pairwise(MLP_SIZES)):
        weight = random.standard_normal((columns, rows), np.float32) / np.float32(np.sqrt(rows))
        initializers += [
            numpy_helper.from_array(weight, f"fc{i}.weight"),
            numpy_helper.from_array(np.zeros(columns, np.float32), f"fc{i}.bias"),
        ]
        last = i == len(MLP_SIZES) - 2
        nodes.append(
            helper.make_node(
                "Gemm",
                [value, f"fc{i}.weight", f"fc{i}.bias"],
                ["logits" if last else f"z{i}"],
                name=f"/fc{i}/Gemm",
                transB=1,
            )
        )
        if not last:
            nodes.append(helper.make_node("Relu", [f"z{i}"], [f"a{i}"], name=f"/relu{i}/Relu"))
            value = f"a{i}"
    graph = helper.make_graph(
        nodes,
        "mlp",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", MLP_SIZES[0]])],
        [helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["batch", MLP_SIZES[-1]])],
        initializers,
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]), path)


def global_batch(model: str) -> tuple[str, np.ndarray, np.ndarray]:
    """The name of the input, samples and labels of one global batch."""
    random = np.random.Generator(np.random.PCG64(1))
    size = BATCHES[model]
    name, shape, classes = ("image", (1, 28, 28), 10) if model == "lenet" else ("x", (MLP_SIZES[0],), MLP_SIZES[-1])
    return name, random.standard_normal((size, *shape), np.float32), random.integers(0, classes, size)


class Lockstep:
    def __init__(self, model: str, threads: int) -> None:
        import lockstep as ls

        self.world = ls.Communicator.mpi()
        self.rank = self.world.rank
        name, samples, labels = global_batch(model)
        share = len(samples) // self.world.size
        rows = slice(self.rank * share, (self.rank + 1) * share)
        graph = ls.load_onnx(model_path(model), dims={"batch": len(samples)})
        start = time.perf_counter()
        step = ls.train_step(
            graph,
            loss=ls.loss.softmax_cross_entropy("logits", "label"),
            optimizer=ls.optim.SGD(LEARNING_RATE, momentum=MOMENTUM),
        )
        self.exe = ls.compile(step, world=self.world, threads=threads)
        self.compile_seconds = time.perf_counter() - start
        self.inputs = {name: samples[rows], "label": labels[rows]}

    def step(self) -> float:
        return float(self.exe(**self.inputs)["loss"])

    def report(self) -> dict[str, Any]:
        return {"compile_seconds": self.compile_seconds, "counters": self.exe.counters}


class PyTorch:
    """Eager PyTorch; under mpirun with several ranks, DistributedDataParallel over gloo."""

    def __init__(self, model: str, threads: int) -> None:
        import torch
        from torch import nn

        torch.set_num_threads(threads)
        self.rank = int(os.environ.get("OMPI_COMM_WORLD_RANK", "0"))
        ranks = int(os.environ.get("OMPI_COMM_WORLD_SIZE", "1"))
        torch.manual_seed(0)
        if model == "lenet":
            sys.path.append(str(ROOT / "examples/mnist"))
            from export_lenet import LeNet

            self.module: Any = LeNet()
        else:
            a, b, c, d = MLP_SIZES
            self.module = nn.Sequential(nn.Linear(a, b), nn.ReLU(), nn.Linear(b, c), nn.ReLU(), nn.Linear(c, d))
        if ranks > 1:
            os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
            torch.distributed.init_process_group("gloo", rank=self.rank, world_size=ranks)
            self.module = nn.parallel.DistributedDataParallel(self.module)
        self.optimizer = torch.optim.SGD(self.module.parameters(), LEARNING_RATE, MOMENTUM)
        _, samples, labels = global_batch(model)
        share = len(samples) // ranks
        rows = slice(self.rank * share, (self.rank + 1) * share)
        self.samples, self.labels = torch.from_numpy(samples[rows]), torch.from_numpy(labels[rows])
        self.loss = nn.functional.cross_entropy

    def step(self) -> float:
        self.optimizer.zero_grad()
        loss = self.loss(self.module(self.samples), self.labels)
        loss.backward()
        self.optimizer.step()
        return float(loss.detach())

    def report(self) -> dict[str, Any]:
        return {}


def time_steps(step: Callable[[], float], count: int) -> list[float]:
    seconds = []
    for _ in range(count):
        start = time.perf_counter()
        loss = step()
        seconds.append(time.perf_counter() - start)
        assert np.isfinite(loss)
    return seconds


def peak_resident_bytes() -> int:
    """Of this program; unlike getrusage's figure it does not begin with that of the process that started it."""
    status = Path("/proc/self/status").read_text()
    return 1024 * int(next(line.split()[1] for line in status.splitlines() if line.startswith("VmHWM")))


def main() -> None:
    contestant, model, directory, threads = sys.argv[1], sys.argv[2], Path(sys.argv[3]), int(sys.argv[4])
    runner = {"lockstep": Lockstep, "pytorch": PyTorch}[contestant](model, threads)
    with (
        open(directory / f"command.{runner.rank}") as commands,
        open(directory / f"report.{runner.rank}", "w") as reports,
    ):
        for command in commands:
            if command.strip() == "stop":
                break
            seconds = time_steps(runner.step, int(command))
            peak = peak_resident_bytes()
            print(json.dumps({"seconds": seconds, "peak_bytes": peak, **runner.report()}), file=reports, flush=True)


if __name__ == "__main__":
    main()
