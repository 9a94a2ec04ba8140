"""One worker of test_servers: runs the mode of the first argument on the job's servers, and writes
<folder>/<rank>.json.

mpi_servers.py MODE FOLDER
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path

import numpy as np

import lockstep as ls

mode, folder = sys.argv[1], Path(sys.argv[2])
timeout = float(os.environ.get("TEST_TIMEOUT", "60"))
world = ls.Communicator.mpi(timeout=timeout)
report: dict[str, object] = {"rank": world.rank, "size": world.size, "process": os.getpid()}
KEYS = ["small", "wide", "cut"]
SHAPES = [(3,), (2, 30_000), (600, 100)]


def first(shape: tuple[int, ...]) -> np.ndarray:
    return np.cos(np.arange(np.prod(shape), dtype=np.float32)).reshape(shape)


def gradient(shape: tuple[int, ...], rank: int, step: int) -> np.ndarray:
    return np.sin(np.arange(np.prod(shape), dtype=np.float32) * (rank + 2) + step).reshape(shape)


def store_with(optimizer: ls.optim.Optimizer | None) -> ls.kv.KVStore:
    store = ls.kv.create("dist_async", world)
    store.bigarray_bound = 50_000
    store.init(KEYS, [first(shape) for shape in SHAPES])
    if optimizer is not None:
        store.set_optimizer(optimizer, rescale_grad=0.5)
    return store


def sequential() -> None:
    """One worker's training gives the weights of a local store, bit by bit."""
    for optimizer in (ls.optim.SGD(0.1), ls.optim.SGD(0.1, momentum=0.9, weight_decay=0.01), ls.optim.Adam(0.01)):
        name = f"{type(optimizer).__name__}{getattr(optimizer, 'momentum', '')}"
        local, store = ls.kv.create("local"), ls.kv.create("dist_async", world)
        store.bigarray_bound = 50_000
        keys = [f"{name}/{key}" for key in KEYS]
        for each in (local, store):
            each.init(keys, [first(shape) for shape in SHAPES])
            each.set_optimizer(optimizer, rescale_grad=0.5)
        outs = [np.empty(shape, np.float32) for shape in SHAPES]
        weights, places = store.data(keys), store.grad(keys)
        for step in range(6):
            if step == 3:
                local.set(learning_rate=0.02)
                store.set(learning_rate=0.02)
            gradients = [gradient(shape, 0, step) for shape in SHAPES]
            before = [weight.copy() for weight in weights]
            local.push(keys, gradients)
            for place, each in zip(places, gradients, strict=True):
                place[...] = each
            store.push(keys, places if step % 2 else gradients)
            store.pull(keys, out=outs)
            assert all(map(np.array_equal, weights, before)), step  # only a pull into them changes them
            store.pull(keys, out=weights)
            for key, out, weight in zip(keys, outs, weights, strict=True):
                assert np.array_equal(local.pull(key), out), (key, step)
                assert np.array_equal(local.pull(key), weight), (key, step)
                assert np.array_equal(local.pull(key), store.pull(key)), (key, step)
    rows = store.row_sparse_pull(keys[2], row_ids=[599, 0, 300, 299])
    assert np.array_equal(rows.values, outs[2][[0, 299, 300, 599]])
    report["staleness"] = {str(late): times for late, times in store.staleness().updates.items()}


def states() -> None:
    """The states of an optimizer are saved to a file and loaded."""
    store = store_with(ls.optim.SGD(0.1, momentum=0.9))
    store.push(KEYS, [np.ones(shape, np.float32) for shape in SHAPES])
    path = str(folder / "states")
    store.barrier()
    store.save_optimizer_states(path, dump_optimizer=True)
    store.push(KEYS, [np.ones(shape, np.float32) for shape in SHAPES])
    store.barrier()
    before = [store.pull(key) for key in KEYS]
    store.barrier()
    store.load_optimizer_states(path)
    store.push(KEYS, [np.zeros(shape, np.float32) for shape in SHAPES])  # the weights move by the momentum of the file
    store.barrier()
    after = [store.pull(key) for key in KEYS]
    report["moved"] = [
        sorted({round(float(x), 4) for x in (a - b).reshape(-1)}) for a, b in zip(after, before, strict=True)
    ]


def lost() -> None:
    """All pushes of all workers arrive: whole numbers, whose sum is exact."""
    store = store_with(ls.optim.SGD(1.0))
    for step in range(40):
        store.push(KEYS, [np.full(shape, 2.0 * (1 + world.rank), np.float32) for shape in SHAPES])
        if step % 8 == 0:
            store.pull(KEYS, out=[np.empty(shape, np.float32) for shape in SHAPES])
    store.barrier()
    expected = 40 * sum(range(1, world.size + 1))
    for key, shape in zip(KEYS, SHAPES, strict=True):
        found = first(shape).astype(np.float64) - store.pull(key)
        assert np.allclose(found, expected, atol=1e-3), (key, found.min(), found.max())
    staleness = store.staleness()
    assert sum(staleness.updates.values()) == 40 * world.size * 5, staleness  # two keys are cut over both servers
    report["staleness"] = str(staleness)


def errors() -> None:
    store = store_with(None)
    messages = []

    def caught(call: object) -> None:
        try:
            call()  # type: ignore[operator]
        except ls.Error as error:
            messages.append(str(error))

    caught(lambda: store.set_updater(lambda *_: None))
    caught(lambda: store.set_gradient_compression({"type": "2bit"}))
    caught(lambda: store.set_optimizer(ls.optim.SGD(lambda step: 0.1)))
    caught(lambda: store.push("small", np.zeros(3, np.float32)))
    store.barrier()
    caught(lambda: store.set_optimizer(ls.optim.LAMB(0.1)))
    store.set_optimizer(ls.optim.SGD(0.5))
    caught(lambda: store.set(learning_rate=0.7, bogus=1))
    store.push("small", np.ones(3, np.float32))
    store.barrier()
    moved = first(SHAPES[0]) - store.pull("small")  # by 0.5 for each worker's push
    assert np.allclose(moved, 0.5 * world.size, atol=1e-5), moved
    caught(lambda: store.push("other", np.zeros(3, np.float32)))
    caught(lambda: store.init("small", np.zeros(3, np.float32)))
    report["errors"], messages = messages, []

    # All workers get an error if their calls differ, or if only one of them fails.
    value = np.zeros(3, np.float32)
    caught(lambda: store.init(["first", f"of {world.rank}"], [value, value]))
    caught(lambda: store.init("typed", value if world.rank == 0 else value.astype(np.float64)))
    caught(lambda: ls.kv.create("dist_async", world).init("small", value))  # another store on the servers has this key
    caught(lambda: store.set_optimizer("none" if world.rank == 0 else ls.optim.SGD(0.1)))  # type: ignore[arg-type]
    caught(lambda: store.set_optimizer(ls.optim.SGD(0.1 + world.rank)))
    caught(lambda: store.set(learning_rate=0.5 * (1 + world.rank)))
    caught(lambda: store.barrier() if world.rank == 0 else store.set(learning_rate=0.5))
    store.barrier()
    before = store.pull("small")
    store.barrier()
    store.push("small", np.ones(3, np.float32))
    store.barrier()
    moved = before - store.pull("small")
    assert np.allclose(moved, 0.5 * world.size, atol=1e-5), moved
    report["of one"], messages = messages, []

    # Keys whose names servers must keep apart: whole numbers, and texts that look like numbers.
    for key in (1, "1"):
        ls.kv.create("dist_async", world).init(key, value)
        caught(lambda key=key: ls.kv.create("dist_async", world).init(key, value))
    report["names"] = messages


def fault() -> None:
    """Trains until a process is disturbed. The message names it."""
    store = store_with(ls.optim.SGD(0.01))
    out = np.empty(SHAPES[0], np.float32)
    report["steps"] = 0
    (folder / f"{world.rank}.started").write_text(str(os.getpid()))
    end = time.monotonic() + float(os.environ.get("TEST_SECONDS", "30"))
    try:
        while time.monotonic() < end:
            if (folder / "kill-worker").exists() and world.rank == int(os.environ.get("TEST_VICTIM", "1")):
                os.kill(os.getpid(), signal.SIGKILL)
            if (folder / "stop-worker").exists() and world.rank == 1:
                os.kill(os.getpid(), signal.SIGSTOP)
            if (folder / "stop-worker").exists():
                store.barrier()
            store.push("small", np.ones(SHAPES[0], np.float32))
            store.pull(["small", "cut"], out=[out, np.empty(SHAPES[2], np.float32)])
            report["steps"] = int(report["steps"]) + 1  # type: ignore[call-overload]
            time.sleep(0.01)
        store.barrier()
        before = store.pull("small")
        store.set(learning_rate=1.0)
        store.push("small", np.ones(SHAPES[0], np.float32))
        store.barrier()
        report["moved"] = float((before - store.pull("small"))[0])
        report["finished"] = True
    except ls.Error as error:
        report["error"], report["at"] = str(error), time.time()
        (folder / f"{world.rank}.json").write_text(json.dumps(report))
        raise


def idle() -> None:
    """Ends when it is told to, without using a server."""
    (folder / f"{world.rank}.started").write_text(str(os.getpid()))
    while not (folder / "go").exists():
        time.sleep(0.05)


{"idle": idle, "sequential": sequential, "states": states, "lost": lost, "errors": errors, "fault": fault}[mode]()
(folder / f"{world.rank}.json").write_text(json.dumps(report))
