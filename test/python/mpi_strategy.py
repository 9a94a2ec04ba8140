"""One worker of test_strategy: trains with strategy="parameter_server" on the job's servers, and writes
<folder>/<rank>.json.

mpi_strategy.py FOLDER
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np

import lockstep as ls

folder = Path(sys.argv[1])
world = ls.Communicator.mpi(timeout=60, order="rank")
report: dict[str, object] = {"rank": world.rank, "size": world.size}
BATCH, STEPS = 12, 3
MODEL = """
graph @model(%x: f32[ROWS,6] split(0), state %w1: f32[6,10], state %b1: f32[10], state %w2: f32[10,4]) -> (logits: f32[ROWS,4] split(0)) {
  %z = matmul %x, %w1 : f32[ROWS,10]
  %b = broadcast %b1 {dims=[1], shape=[ROWS, 10]} : f32[ROWS,10]
  %a = add %z, %b : f32[ROWS,10]
  %h = tanh %a : f32[ROWS,10]
  %logits = matmul %h, %w2 : f32[ROWS,4]
  return %logits
}
"""


def step_of(rows: int, optimizer: ls.optim.Optimizer) -> ls.Graph:
    model = ls.parse(MODEL.replace("ROWS", str(rows)))
    return ls.train_step(model, ls.loss.softmax_cross_entropy("logits", "label"), optimizer)


def begin(exe: ls.Executable) -> None:
    for number, (name, shape) in enumerate({"w1": (6, 10), "b1": (10,), "w2": (10, 4)}.items()):
        exe.state[name] = np.random.default_rng(number).normal(size=shape).astype(np.float32) / 3


def train(exe: ls.Executable, steps: range, rows: int = BATCH // world.size) -> float:
    for step in steps:
        x = np.random.default_rng(100 + step).normal(size=(BATCH, 6)).astype(np.float32)
        mine = slice(world.rank * rows, (world.rank + 1) * rows) if rows < BATCH else slice(None)
        loss = exe(x=x[mine], label=np.arange(BATCH)[mine] % 4)["loss"]
    return float(loss)


def states_of(exe: ls.Executable) -> dict[str, np.ndarray]:
    return {name: exe.state[name] for name in exe.state}


def same(a: dict[str, np.ndarray], b: dict[str, np.ndarray]) -> bool:
    return a.keys() == b.keys() and all(np.array_equal(a[name], b[name]) for name in a)


def synchronous() -> None:
    """Servers give the bits of all_reduce, also after one loads the other's file, and with a schedule."""
    step = step_of(BATCH, ls.optim.Adam(ls.schedule.cosine(0.05, steps=2 * STEPS)))
    reduced = ls.compile(step, world=world)
    served = ls.compile(step, world=world, strategy="parameter_server", bigarray_bound=40)
    for exe in (reduced, served):
        begin(exe)
    losses = [train(exe, range(STEPS)) for exe in (reduced, served)]
    assert losses[0] == losses[1]
    assert same(states_of(reduced), states_of(served))
    report["memory"] = [exe.memory["states"] for exe in (reduced, served)]
    report["steps"] = served.steps
    path = folder / "served.safetensors"
    served.save(path)
    train(served, range(STEPS, 2 * STEPS))
    reduced.load(path)
    train(reduced, range(STEPS, 2 * STEPS))
    assert same(states_of(reduced), states_of(served))
    served.load(path)
    train(served, range(STEPS, 2 * STEPS))
    assert same(states_of(reduced), states_of(served))
    served.check_replicas()
    with_defaults = ls.Trainer(
        ls.parse(MODEL.replace("ROWS", str(BATCH))),
        ls.loss.softmax_cross_entropy("logits", "label"),
        kvstore=world,
        strategy="parameter_server",
    )
    begin(with_defaults.executable)
    x = np.random.default_rng(0).normal(size=(4 * BATCH, 6)).astype(np.float32)
    with_defaults.fit((x, np.arange(4 * BATCH) % 4), epochs=1, progress=False)
    assert with_defaults.executable.step == 4
    told = served.report(calls=2)
    assert told.to_servers == told.from_servers == 4 * (6 * 10 + 10 + 10 * 4)
    assert told.exposed > 0
    assert told.staleness is None
    report["synchronous"] = served.staleness().max


def asynchronous() -> None:
    """Each worker steps on its own, and reads the servers' current states."""
    exe = ls.compile(
        step_of(BATCH, ls.optim.SGD(0.1, momentum=0.9)),
        world=world,
        strategy="parameter_server",
        asynchronous=True,
        max_staleness=2,
    )
    begin(exe)
    first = train(exe, range(1), BATCH)
    steps = 20 if world.rank == 0 else 22  # within the staleness bound
    losses = [train(exe, range(1), BATCH) for _ in range(steps)]
    assert losses[-1] < first
    path = folder / "asynchronous.safetensors"
    exe.save(path)  # all workers meet in it
    now = states_of(exe)
    exe.load(path)
    assert same(now, states_of(exe))
    train(exe, range(1), BATCH)
    report["asynchronous"] = str(exe.staleness())
    told = exe.report().staleness
    assert told is not None
    assert sum(told.updates.values()) >= 3 * (2 * 20)
    assert "updates by staleness: 0: " in str(exe.report())
    try:
        exe(x=np.zeros((1, 1), np.float32), label=np.zeros(1, np.int64))
    except ls.Error as error:
        report["error"] = str(error)
    try:
        if world.rank == 1:  # the other worker is not waited for
            ls.find_nan(exe, x=np.zeros((1, 1), np.float32), label=np.zeros(1, np.int64))
    except ls.Error as error:
        report["find_nan"] = str(error)
    exe.save(path)  # the errors of calls leave it usable


def trainer() -> None:
    """A Trainer with servers gives the numbers and bits of one without, and can load its file. With full batches only."""
    rows = 3 * BATCH + 5
    data = np.random.default_rng(7).normal(size=(rows, 6)).astype(np.float32), np.arange(rows) % 4

    def fit(path: Path, **options: object) -> ls.Trainer:
        made = ls.Trainer(
            ls.parse(MODEL.replace("ROWS", str(BATCH))),
            ls.loss.softmax_cross_entropy("logits", "label"),
            "sgd",
            {"learning_rate": 0.1, "momentum": 0.9},
            kvstore="dist_sync",
            average=ls.average.exponential(0.5),
            **options,
        )
        if path.exists():
            made.load_states(path)
        else:
            begin(made.executable)
        made.fit(data, validation=data, epochs=2)
        made.set_learning_rate(0.05)
        made.save_states(path)
        made.fit(data, validation=data)
        return made

    reduced = fit(folder / "reduced.states", uneven=False)
    served = fit(folder / "served.states", strategy="parameter_server")
    assert served.world.size == world.size and "push" in served.executable.steps
    assert served.history == reduced.history and served.losses == reduced.losses
    assert same(states_of(reduced.executable), states_of(served.executable))
    report["trained"] = served.executable.step
    again = [
        fit(folder / f"{name}.states", **options)
        for name, options in (("served", {"uneven": False}), ("reduced", {"strategy": "parameter_server"}))
    ]
    assert again[0].history == again[1].history and again[0].epoch == 5
    assert same(states_of(again[0].executable), states_of(again[1].executable))


synchronous()
asynchronous()
trainer()
(folder / f"{world.rank}.json").write_text(json.dumps(report))
