"""One rank of a contestant of run.py: trains on command, and reports the wall and processor seconds of each step.

    worker.py CONTESTANT MODEL DIRECTORY THREADS [ROWS]

Commands come through the pipe DIRECTORY/command.<rank>, one per line: the number of steps to run, or "stop". After each,
the rank writes a line of JSON to DIRECTORY/report.<rank>. A worker without work blocks on its pipe and uses no core. The
ranks split the network's batch; with ROWS, each has so many rows instead.

MODEL is a network; a suffix "-bf16" or "-f16" trains it in mixed precision. CONTESTANT is one of:

- lockstep; lockstep-f32, always in f32; lockstep-reduced, without gathering factors of gradients; lockstep-wire and
  lockstep-int8, also without that, with gradients that travel as bf16 and int8; lockstep-alone, whose ranks do not
  communicate; lockstep-served and lockstep-served-async, with parameter servers;
- store-sync, store-async and store-sync-copied: Lockstep's step with a store of lockstep.kv;
- PyTorch: eager, eager-channels-last, compiled, compiled-channels-last, with DistributedDataParallel over gloo;
  eager-lockstep, over lockstep.torch_distributed; both also with "-views", whose gradients are views of buckets;
  eager-horovod, with lockstep.horovod.torch instead of DistributedDataParallel; eager-alone, whose ranks do not
  communicate.
"""

from __future__ import annotations

import json
import math
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
LEARNING_RATE, MOMENTUM = 0.01, 0.9


def model_path(model: str) -> Path:
    return ROOT / f"build/bench/{model}.onnx"


def network_of(model: str) -> str:
    """Returns "gpt" for "gpt-bf16"."""
    return model.partition("-")[0]


def precision_of(model: str) -> str:
    return model.partition("-")[2] or "f32"


def share(whole: Any, rank: int, rows: int, samples: int) -> Any:
    """Returns a rank's part of `whole`, which belongs to a batch of so many samples: the part of `rows` samples. After
    the last sample the first one follows."""
    part = rows * (len(whole) // samples)  # there may be a label for each token
    return whole[np.arange(rank * part, (rank + 1) * part) % len(whole)]


class Lockstep:
    def __init__(self, model: str, threads: int, how: str, precision: str, rows: int) -> None:
        import lockstep as ls

        self.world = ls.Communicator.mpi()
        self.rank = self.world.rank
        samples, labels = (np.load(model_path(model).with_suffix(f".{part}.npy")) for part in ("x", "label"))
        size = self.world.size
        rows = rows or len(samples) // size
        own = {name: share(value, self.rank, rows, len(samples)) for name, value in (("x", samples), ("label", labels))}
        is_alone = how == "alone"
        start = time.perf_counter()
        own_batch = is_alone or how == "served-async"
        graph = ls.load_onnx(model_path(model), dims={"batch": rows if own_batch else rows * size})
        step = ls.train_step(
            graph,
            loss=ls.loss.softmax_cross_entropy("logits", "label"),
            optimizer=ls.optim.SGD(LEARNING_RATE, momentum=MOMENTUM),
            precision="f32" if how == "f32" else precision,
        )
        self.exe = ls.compile(
            step,
            world=ls.Communicator.single() if is_alone else self.world,
            threads=threads,
            wire={"wire": "bf16", "int8": "int8"}.get(how),
            factors=False if how in ("wire", "int8", "reduced") else None,
            strategy="parameter_server" if how.startswith("served") else "all_reduce",
            asynchronous=how == "served-async",
        )
        self.inputs = own
        self.gradient_bytes = 4 * sum(math.prod(state.shape) for state in graph.states)
        self.step()
        self.compile_seconds = time.perf_counter() - start

    def step(self) -> float:
        return float(self.exe(**self.inputs)["loss"])

    def report(self) -> dict[str, Any]:
        return {
            "compile_seconds": self.compile_seconds,
            "counters": self.exe.counters,
            "value_bytes": sum(self.exe.memory.values()),
            "gradient_bytes": self.gradient_bytes,
        }


class Store:
    """Pushes the gradients of a rank's share to a store, "dist_sync" or "dist_async", with the optimizer, and pulls the
    weights.

    The step reads weights and writes gradients in the store's arrays; with "sync-copied", in its own arrays.
    """

    def __init__(self, model: str, threads: int, how: str, precision: str, rows: int) -> None:
        import lockstep as ls

        kind, _, copied = how.partition("-")
        self.store = ls.kv.create(f"dist_{kind}")
        self.rank, ranks = self.store.rank, self.store.num_workers
        samples, labels = (np.load(model_path(model).with_suffix(f".{part}.npy")) for part in ("x", "label"))
        rows = rows or len(samples) // ranks
        self.inputs = {
            name: share(value, self.rank, rows, len(samples)) for name, value in (("x", samples), ("label", labels))
        }
        start = time.perf_counter()
        graph = ls.load_onnx(model_path(model), dims={"batch": rows})
        loss = ls.loss.softmax_cross_entropy("logits", "label")
        self.exe = ls.compile(ls.train_step(graph, loss, optimizer=None, precision=precision), threads=threads)
        self.weights = {state.name: np.array(graph.initial_value(state.name)) for state in graph.states}
        self.names = list(self.weights)
        self.store.init(self.names, list(self.weights.values()))
        optimizer = ls.optim.SGD(LEARNING_RATE, momentum=MOMENTUM)
        self.store.set_optimizer(optimizer, rescale_grad=1 / ranks if kind == "sync" else 1.0)
        self.gradients: list[np.ndarray] = []
        if not copied:
            self.weights = dict(zip(self.names, self.store.data(self.names), strict=True))
            self.gradients = self.store.grad(self.names)
            results = {f"grad/{name}": array for name, array in zip(self.names, self.gradients, strict=True)}
            self.exe.bind(states=self.weights, results=results)
        self.step()
        self.compile_seconds = time.perf_counter() - start

    def step(self) -> float:
        if not self.gradients:
            self.exe.state.update(self.weights)
        results = self.exe(**self.inputs)
        self.store.push(self.names, [results[f"grad/{name}"] for name in self.names])
        self.store.pull(self.names, out=list(self.weights.values()))
        return float(results["loss"])

    def report(self) -> dict[str, Any]:
        return {"compile_seconds": self.compile_seconds}


class PyTorch:
    """PyTorch, eager or compiled; on several ranks, with DistributedDataParallel."""

    def __init__(self, model: str, threads: int, how: str, precision: str, rows: int) -> None:
        import networks
        import torch

        torch.set_num_threads(threads)
        self.rank = int(os.environ.get("OMPI_COMM_WORLD_RANK", "0"))
        ranks = int(os.environ.get("OMPI_COMM_WORLD_SIZE", "1"))
        start = time.perf_counter()
        self.module: Any = networks.network(model)
        samples, labels = networks.batch(model)
        rows = rows or len(samples) // ranks
        self.samples, self.labels = (share(whole, self.rank, rows, len(samples)) for whole in (samples, labels))
        if how.endswith("channels-last"):
            self.module = self.module.to(memory_format=torch.channels_last)
            self.samples = self.samples.contiguous(memory_format=torch.channels_last)
        if ranks > 1 and how not in ("eager-horovod", "eager-alone"):
            backend = "lockstep" if how.startswith("eager-lockstep") else "gloo"
            self.module = self.distributed(torch, backend, ranks, how.endswith("-views"))
        self.optimizer = torch.optim.SGD(self.module.parameters(), LEARNING_RATE, MOMENTUM)
        if how == "eager-horovod":
            import lockstep.horovod.torch as hvd

            hvd.init()
            self.optimizer = hvd.DistributedOptimizer(self.optimizer, self.module.named_parameters())
        if how.startswith("compiled"):
            self.module = torch.compile(self.module)
        self.loss = torch.nn.functional.cross_entropy
        dtype = {"f32": None, "bf16": torch.bfloat16, "f16": torch.float16}[precision]
        self.precision = lambda: torch.autocast("cpu", dtype=dtype, enabled=dtype is not None)
        self.step()
        self.compile_seconds = time.perf_counter() - start

    def distributed(self, torch: Any, backend: str, ranks: int, views: bool) -> Any:
        if backend == "lockstep":
            import lockstep.torch_distributed  # noqa: F401
        os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
        torch.distributed.init_process_group(backend, rank=self.rank, world_size=ranks)
        return torch.nn.parallel.DistributedDataParallel(self.module, gradient_as_bucket_view=views)

    def step(self) -> float:
        self.optimizer.zero_grad()
        with self.precision():
            loss = self.loss(self.module(self.samples), self.labels)
        loss.backward()
        self.optimizer.step()
        return float(loss.detach())

    def report(self) -> dict[str, Any]:
        gradients = [each.grad for each in self.module.parameters() if each.grad is not None]
        return {
            "compile_seconds": self.compile_seconds,
            "gradient_bytes": sum(each.numel() * each.element_size() for each in gradients),
        }


def time_steps(step: Callable[[], float], count: int) -> list[float]:
    seconds = []
    for _ in range(count):
        start = time.perf_counter()
        loss = step()
        seconds.append(time.perf_counter() - start)
        assert np.isfinite(loss)
    return seconds


def peak_resident_bytes() -> int:
    """Returns the peak of this program. The number of getrusage would include that of the process that started it."""
    status = Path("/proc/self/status").read_text()
    return 1024 * int(next(line.split()[1] for line in status.splitlines() if line.startswith("VmHWM")))


def obey(runner: Any, directory: Path) -> None:
    """Trains by commands. If the runner has `finish`, its steps return before their work has ended, and a round is
    timed as a whole."""
    with (
        open(directory / f"command.{runner.rank}") as commands,
        open(directory / f"report.{runner.rank}", "w") as reports,
    ):
        for command in commands:
            if command.strip() == "stop":
                break
            before = time.process_time()
            began = time.perf_counter()
            seconds = time_steps(runner.step, int(command))
            if hasattr(runner, "finish"):
                runner.finish()
                seconds = [(time.perf_counter() - began) / len(seconds)] * len(seconds)
            report = {
                "seconds": seconds,
                "processor_seconds": (time.process_time() - before) / len(seconds),  # per step, all threads
                "peak_bytes": peak_resident_bytes(),
                **runner.report(),
            }
            print(json.dumps(report), file=reports, flush=True)


def main() -> None:
    contestant, model, directory, threads = sys.argv[1], sys.argv[2], Path(sys.argv[3]), int(sys.argv[4])
    rows = int(sys.argv[5]) if len(sys.argv) > 5 else 0
    network, precision = network_of(model), precision_of(model)
    if contestant.startswith("lockstep"):
        runner: Any = Lockstep(network, threads, contestant.partition("-")[2], precision, rows)
    elif contestant.startswith("store"):
        runner = Store(network, threads, contestant.partition("-")[2], precision, rows)
    else:
        runner = PyTorch(network, threads, contestant, precision, rows)
    obey(runner, directory)


if __name__ == "__main__":
    main()
