"""What recording costs: training steps of LeNet with the recorder on and off, in turns.

    recorder.py [ROUNDS]                                            # default: 60
    mpirun -np 2 recorder.py [ROUNDS]

A round is a block of steps with it on and one with it off, the first of them in turns. Printed are the median over the
rounds of a block's quickest step, and of the ratio of the two, with its quartiles.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "python_bindings"))
import lockstep as ls
from lockstep import _lockstep, _record

BATCH = 64
STEPS = 20  # of a block


def block(exe: ls.Executable, inputs: dict[str, np.ndarray]) -> float:
    """The least seconds of a step: what else the machine does only adds to them."""
    least = float("inf")
    for _ in range(STEPS):
        begin = time.perf_counter()
        exe(**inputs)
        least = min(least, time.perf_counter() - begin)
    return least


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
    times: dict[bool, list[float]] = {True: [], False: []}
    for number in range(rounds):
        for on in (True, False) if number % 2 == 0 else (False, True):
            world.barrier()
            _lockstep._set_recording(world, on)
            times[on].append(block(exe, inputs))
    _lockstep._set_recording(world, True)
    exe(**inputs)
    if world.rank > 0:
        return
    ratios = np.array(times[True]) / np.array(times[False])
    low, middle, high = np.percentile(ratios, [25, 50, 75])
    recorded = exe._record()
    steps = _record.rank_of(recorded).steps
    last = steps[(steps["program"] == recorded["program"]) & (steps["call"] == steps["call"].max())]
    print(
        f"LeNet, {BATCH} on {world.size} ranks: {1e3 * np.median(times[True]):.3f} ms on, "
        f"{1e3 * np.median(times[False]):.3f} ms off; ratio {middle:.4f} ({low:.4f} to {high:.4f}) over {rounds} rounds; "
        f"{len(last)} events of steps in a call"
    )


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 60)
