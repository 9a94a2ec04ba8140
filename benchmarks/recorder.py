"""Measures the cost of recording: training steps of LeNet with the recorder on and off, in alternation.

    recorder.py [ROUNDS]                                            # default: 60
    mpirun -np 2 recorder.py [ROUNDS]

A round is a block of steps with the recorder on and one with it off; the order alternates. Prints the medians over the
rounds of a block's fastest step, and of the ratio of the two with its quartiles: by wall time, and by the processor
time of the rank's thread, which other programs on the machine disturb less.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "python_bindings"))
import lockstep as ls
from lockstep import _lockstep
from lockstep._reports import record

BATCH = 64
STEPS = 20  # per block


CLOCKS = {"wall": time.perf_counter, "processor": time.thread_time}


def block(exe: ls.Executable, inputs: dict[str, np.ndarray]) -> list[float]:
    """Returns the minimum seconds of a step by each clock. Other load on the machine only adds to them."""
    seconds = []
    for _ in range(STEPS):
        begin = [clock() for clock in CLOCKS.values()]
        exe(**inputs)
        seconds.append([clock() - before for clock, before in zip(CLOCKS.values(), begin)])
    return np.min(seconds, axis=0).tolist()


def main(rounds: int) -> None:
    world = ls.Communicator.mpi()
    model = ls.load_onnx(ROOT / "examples/mnist/lenet.onnx", dims={"batch": BATCH})
    loss = ls.loss.softmax_cross_entropy("logits", "label")
    exe = ls.compile(ls.train_step(model, loss=loss, optimizer=ls.optim.SGD(0.05)), world=world)
    random = np.random.default_rng(world.rank)
    share = BATCH // world.size
    inputs = {
        "image": random.standard_normal((share, 1, 28, 28), np.float32),
        "label": random.integers(0, 10, share),
    }
    for _ in range(3):
        block(exe, inputs)
    times: dict[bool, list[list[float]]] = {True: [], False: []}
    for number in range(rounds):
        for on in (True, False) if number % 2 == 0 else (False, True):
            world.barrier()
            _lockstep._set_recording(world, on)
            times[on].append(block(exe, inputs))
    _lockstep._set_recording(world, True)
    exe(**inputs)
    if world.rank > 0:
        return
    recorded = exe._record()
    steps = record.rank_of(recorded).steps
    last = steps[(steps["program"] == recorded["program"]) & (steps["call"] == steps["call"].max())]
    print(f"LeNet, {BATCH} on {world.size} ranks, {rounds} rounds, {len(last)} events of steps in a call")
    for column, clock in enumerate(CLOCKS):
        on, off = (np.array(times[each])[:, column] for each in (True, False))
        low, middle, high = np.percentile(on / off, [25, 50, 75])
        print(
            f"  {clock + ' time':<15} {1e3 * np.median(on):.3f} ms on, {1e3 * np.median(off):.3f} ms off; "
            f"ratio {middle:.4f} ({low:.4f} to {high:.4f})"
        )


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 60)
