"""Lockstep in the check: losses, ranks that fail, and contestants of the measurements. Runs in the bundle's Python.

ours.py losses NETWORK FILE.npz BACKEND RANKS PRECISION OUT.json
                                                         the losses from the weights and batches of torch_peer.py
ours.py steps NETWORK BACKEND PRECISION                  a contestant (contestant.py); PRECISION is f32, TF32 or bf16
ours.py loop NAME BACKEND                                a contestant: a graph of loops.py
ours.py copy BACKEND                                     a contestant: a copy within the device
ours.py feed call|start|pinned BACKEND                   a contestant: a large batch from the host to the device
ours.py graph FOLDER BACKEND                             under mpirun: steps as a CUDA graph against steps one by one, then rank 1 dies
ours.py rank kill|stop FOLDER BACKEND                    under mpirun: rank 1 dies or stops, and the others write the error they get
ours.py text NETWORK PRECISION FILE.ir                   writes the training step, for lockstep-run
ours.py gpus                                             prints the number of GPUs
"""

from __future__ import annotations

import ctypes
import itertools
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from contestant import serve
from loops import LOOPS
from specs import SPECS, Spec

import lockstep as ls

GRAPHS = Path(__file__).with_name("graphs")
STOPPED_TIMEOUT = 10.0  # of the communicator whose rank stops; ranks start more than a few seconds apart


def threads() -> int:
    return len(os.sched_getaffinity(0))


def step_of(spec: Spec, name: str, precision: str = "f32") -> ls.Graph:
    model = ls.parse((GRAPHS / f"{name}.ir").read_text())
    kind = {"sgd": ls.optim.SGD, "adam": ls.optim.Adam}[spec.optimizer]
    loss = ls.loss.softmax_cross_entropy("logits", "label")
    return ls.train_step(model, loss, kind(**spec.options), precision="bf16" if precision == "bf16" else "f32")


def train(name: str, file: Path, backend: str, precision: str, world: ls.Communicator) -> list[float]:
    """Returns the losses of this rank, which gets its share of each batch."""
    spec, stored = SPECS[name], np.load(file)
    step = step_of(spec, name, precision)
    exe = ls.compile(step, backend=backend, world=world, threads=max(1, threads() // world.size))
    for key in stored.files:
        if key.startswith("p:") and key[2:] in exe.state:
            exe.state[key[2:]] = stored[key]
    x, label, count = stored["x"], stored["label"], len(stored["losses"])
    share = [slice(world.rank * n // world.size, (world.rank + 1) * n // world.size) for n in (spec.batch, spec.rows)]
    return [float(exe(x=x[i % len(x)][share[0]], label=label[i % len(x)][share[1]])["loss"]) for i in range(count)]


def losses(name: str, file: Path, backend: str, ranks: int, precision: str, out: Path) -> None:
    worlds = ls.Communicator.in_process(ranks)
    found: list[Any] = [None] * ranks

    def run(rank: int) -> None:
        try:
            found[rank] = train(name, file, backend, precision, worlds[rank])
        except ls.Error as error:
            worlds[rank].abort(str(error))
            found[rank] = str(error)

    ranks_of = [threading.Thread(target=run, args=(rank,)) for rank in range(ranks)]
    for thread in ranks_of:
        thread.start()
    for thread in ranks_of:
        thread.join()
    wrong = [result for result in found if not isinstance(result, list)]
    if wrong:
        sys.exit(f"ours: {wrong[0]}")
    out.write_text(json.dumps(found))


def bytes_of_gpu_in_use() -> int:
    """GPU memory that all processes use, in bytes; 0 where there is no GPU."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return 0
    context, free, total = ctypes.c_void_p(), ctypes.c_size_t(), ctypes.c_size_t()
    if driver.cuInit(0) or driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0):
        return 0
    driver.cuCtxPushCurrent_v2(context)
    failed = driver.cuMemGetInfo_v2(ctypes.byref(free), ctypes.byref(total))
    driver.cuCtxPopCurrent_v2(ctypes.byref(ctypes.c_void_p()))
    return 0 if failed else total.value - free.value


def initial_values(graph: ls.Graph) -> dict[str, np.ndarray]:
    """Initial values of a model's states, such that no activation grows or vanishes, because speed may depend on
    values.
    """
    random = np.random.default_rng(0)
    values = {}
    for info in graph.states:
        if len(info.shape) > 1:
            scale = 1 / np.sqrt(np.prod(info.shape[1:]))
            values[info.name] = random.standard_normal(info.shape, dtype=np.float32) * np.float32(scale)
        elif info.name.endswith(("weight", "running_var")):
            values[info.name] = np.ones(info.shape, np.float32)
    return values


class Steps:
    def __init__(self, name: str, backend: str, precision: str) -> None:
        spec, before = SPECS[name], bytes_of_gpu_in_use()
        begin = time.perf_counter()
        step = step_of(spec, name, precision)
        self.exe = ls.compile(step, backend=backend, threads=threads(), tf32=precision == "TF32")
        compiled = time.perf_counter() - begin
        random = np.random.default_rng(1)
        if spec.kind == "gpt":
            x = random.integers(spec.classes, size=spec.x_shape, dtype=np.int64)
        else:
            x = random.standard_normal(spec.x_shape, dtype=np.float32)
        self.inputs = {"x": x, "label": random.integers(spec.classes, size=spec.rows, dtype=np.int64)}
        for state, value in initial_values(ls.parse((GRAPHS / f"{name}.ir").read_text())).items():
            self.exe.state[state] = value
        begin = time.perf_counter()
        self.step()
        self.compile_seconds = compiled + time.perf_counter() - begin
        self.step()
        self.gpu_bytes = bytes_of_gpu_in_use() - before

    def step(self) -> float:
        return float(self.exe(**self.inputs)["loss"])

    def started(self, steps: int) -> float:
        """Seconds of a step, if each loss is read while the next step computes."""
        ends, before = [], self.exe.start(**self.inputs)
        for _ in range(steps + 1):
            call = self.exe.start(**self.inputs)
            before.wait()
            ends.append(time.perf_counter())
            before = call
        before.wait()
        return (ends[-1] - ends[0]) / steps

    def ready(self) -> dict[str, Any]:
        header = self.exe.steps.splitlines()[0]
        return {"compile_seconds": self.compile_seconds, "gpu_bytes": self.gpu_bytes, "executable": header}

    def run(self, steps: int) -> dict[str, Any]:
        seconds = []
        for _ in range(steps):
            begin = time.perf_counter()
            loss = self.step()
            seconds.append(time.perf_counter() - begin)
            if not np.isfinite(loss):
                raise ArithmeticError(f"the loss is {loss}")
        found = {"seconds": seconds, "profile": self.profile(), "counters": self.exe.counters}
        return {**found, "started": self.started(steps)}

    def profile(self, count: int = 25) -> list[tuple[str, float]]:
        """The slowest steps, if the backend times them, in seconds since loading."""
        return sorted(self.exe.profile, key=lambda step: -step[1])[:count]


class Loop:
    """A program whose states stay on the device, so that a call moves only their bytes there."""

    def __init__(self, name: str, backend: str) -> None:
        begin = time.perf_counter()
        loop = LOOPS[name](backend)
        graph = ls.parse(loop.text)
        self.exe = ls.compile(graph, backend=backend, threads=threads())
        random = np.random.default_rng(0)
        for info in graph.states:
            self.exe.state[info.name] = random.standard_normal(info.shape, dtype=np.float32)
        self.exe()
        self.start = {"compile_seconds": time.perf_counter() - begin, "bytes": loop.bytes, "steps": self.exe.steps}

    def ready(self) -> dict[str, Any]:
        return self.start

    def run(self, steps: int) -> dict[str, Any]:
        return timed(self.exe, steps)


def timed(call: Callable[[], Any], steps: int) -> dict[str, Any]:
    seconds = []
    for _ in range(steps):
        begin = time.perf_counter()
        call()
        seconds.append(time.perf_counter() - begin)
    return {"seconds": seconds}


class Driver:
    """NVIDIA's driver, with the context of the first GPU."""

    def __init__(self) -> None:
        self._library = ctypes.CDLL("libcuda.so.1")
        context = ctypes.c_void_p()
        self.call("cuInit", 0)
        self.call("cuDevicePrimaryCtxRetain", ctypes.byref(context), 0)
        self.call("cuCtxPushCurrent_v2", context)

    def call(self, function: str, *arguments: Any) -> None:
        if code := getattr(self._library, function)(*arguments):
            raise RuntimeError(f"{function}: error {code}")

    def allocate(self, count: int) -> ctypes.c_uint64:
        address = ctypes.c_uint64()
        self.call("cuMemAlloc_v2", ctypes.byref(address), ctypes.c_size_t(count))
        return address

    def allocate_pinned(self, count: int) -> ctypes.c_void_p:
        address = ctypes.c_void_p()
        self.call("cuMemHostAlloc", ctypes.byref(address), ctypes.c_size_t(count), 0)
        return address

    def copy(self, function: str, to: Any, source: Any, count: int) -> None:
        self.call(function, to, source, ctypes.c_size_t(count))
        self.call("cuCtxSynchronize")


class Copy:
    """A copy of device memory, or of pinned host memory, to device memory by the driver; on the host by NumPy."""

    def __init__(self, backend: str, count: int, pinned: bool = False) -> None:
        if backend == "cuda":
            driver = Driver()
            target = driver.allocate(count)
            source = driver.allocate_pinned(count) if pinned else driver.allocate(count)
            function = "cuMemcpyHtoD_v2" if pinned else "cuMemcpyDtoD_v2"
            self.copy = lambda: driver.copy(function, target, source, count)
        else:
            zeros = np.zeros(count, np.uint8)
            ones = np.ones_like(zeros)
            self.copy = lambda: np.copyto(ones, zeros)
        self.bytes = count if pinned else 2 * count

    def ready(self) -> dict[str, Any]:
        return {"bytes": self.bytes}

    def run(self, steps: int) -> dict[str, Any]:
        return timed(self.copy, steps)


class Feed:
    """A program with a large input and next to nothing to compute. Its batches do not all fit in the host's caches."""

    def __init__(self, how: str, backend: str, count: int) -> None:
        text = f"""
graph @feed(%x: f32[{count // 4}]) -> (first: f32[1]) {{
  %first = slice %x {{limit=[1], start=[0], stride=[1]}} : f32[1]
  return %first
}}"""
        self.exe = ls.compile(ls.parse(text), backend=backend, threads=threads())
        self.batches = itertools.cycle([np.full(count // 4, i, np.float32) for i in range(4)])
        self.call = self.exe if how == "call" else self.exe.start
        self.bytes = count

    def ready(self) -> dict[str, Any]:
        return {"bytes": self.bytes}

    def run(self, steps: int) -> dict[str, Any]:
        return timed(lambda: self.call(x=next(self.batches)), steps)


def feed(how: str, backend: str) -> Feed | Copy:
    count = SPECS["resnet50"].batch * 3 * 224 * 224 * 4 if backend == "cuda" else 2**22
    return Copy(backend, count, pinned=True) if how == "pinned" else Feed(how, backend, count)


def rank(mode: str, folder: Path, backend: str) -> None:
    """Runs some steps on all ranks. Then rank 1 dies or stops, and the others continue until they get an error.

    The mode "graph" runs five steps one by one, then the same five with the last three launched as a CUDA graph. Each
    rank writes its losses of both; only then rank 1 dies, so that its peer waits in a collective of the graph.
    """
    world = ls.Communicator.mpi(timeout=STOPPED_TIMEOUT if mode == "stop" else 60.0)
    spec = SPECS["mlp-tiny"]
    rows = spec.batch // world.size
    random = np.random.default_rng(world.rank)
    x = random.standard_normal((rows, *spec.x_shape[1:]), np.float32)
    label = np.arange(rows, dtype=np.int64) % 2
    begin = time.time()

    def steps(count: int, profile: bool) -> tuple[ls.Executable, list[float]]:
        exe = ls.compile(step_of(spec, "mlp-tiny"), backend=backend, world=world, threads=1, profile=profile)
        of_all = np.random.default_rng(7)  # equal on all ranks; an optimizer's states may not be negative
        for key in exe.state:
            value = exe.state[key]
            exe.state[key] = np.abs(0.1 * of_all.standard_normal(value.shape)).astype(value.dtype)
        return exe, [float(exe(x=x, label=label)["loss"]) for _ in range(count)]

    try:
        one_by_one = steps(5, profile=True)[1] if mode == "graph" else []
        exe, found = steps(5 if mode == "graph" else 2, profile=False)
        if mode == "graph":
            (folder / f"{world.rank}.losses").write_text(json.dumps([one_by_one, found]))
        world.barrier()
        begin = time.time()
        if world.rank == 1:
            (folder / "victim").write_text(str(os.getpid()))
            os.kill(os.getpid(), signal.SIGSTOP if mode == "stop" else signal.SIGKILL)
        for _ in range(1000):
            exe(x=x, label=label)
        message = "nothing: a thousand steps ran without rank 1"
    except ls.Error as error:
        message = str(error)
    seconds = time.time() - begin
    (folder / f"{world.rank}.json").write_text(json.dumps({"seconds": seconds, "message": message}))


def main() -> None:
    what, *rest = sys.argv[1:]
    if what == "losses":
        losses(rest[0], Path(rest[1]), rest[2], int(rest[3]), rest[4], Path(rest[5]))
    elif what == "graph":
        rank(what, Path(rest[0]), rest[1])
    elif what == "rank":
        rank(rest[0], Path(rest[1]), rest[2])
    elif what == "loop":
        serve(lambda: Loop(rest[0], rest[1]))
    elif what == "copy":
        serve(lambda: Copy(rest[0], 2**30 if rest[0] == "cuda" else 2**22))
    elif what == "feed":
        serve(lambda: feed(rest[0], rest[1]))
    elif what == "text":
        name, precision, file = rest
        Path(file).write_text(str(step_of(SPECS[name], name, precision)) + "\n")
    elif what == "gpus":
        try:
            print(len(ls._lockstep._gpus()))
        except ls.Error:
            print(0)
    else:
        serve(lambda: Steps(*rest))


if __name__ == "__main__":
    main()
