"""Compares equal shares of a batch with shares by the measured speeds of ranks: benchmarks/uneven_shares.py [--rounds 9].

Two ranks train LeNet on random images, each pinned to a core of its own, with one thread. On the core of rank 1 a busy
process takes half of the time. Both programs run in turns, some steps each, after the measured one has balanced itself.
Prints the shares, the steps per second of each turn, their medians and the ratio. If nothing but rows took time, it
would be 1.5. With --job, the ranks are those of the job that runs this script (mpirun, lockstep launch), which are not
slowed down.

    python benchmarks/uneven_shares.py
"""

from __future__ import annotations

import argparse
import logging
import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np

import lockstep as ls

ROOT = Path(__file__).resolve().parents[1]
LENET = ROOT / "examples/mnist/lenet.onnx"
BALANCES = 5  # at most, before times are compared
STEPS_OF_A_BALANCE = 20


def run_ranks(options: list[str]) -> int:
    """Starts two ranks, and a busy process on the core of rank 1. Returns the exit code of the ranks."""
    environment = {**os.environ, "OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    ranks = ["mpirun", "-np", "2", "--bind-to", "none", "--oversubscribe", sys.executable, __file__, "--pinned"]
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) < 2:
        sys.exit("two ranks need two cores")
    with subprocess.Popen(["taskset", "-c", str(cores[1]), sys.executable, "-c", "while True: pass"]) as busy:
        try:
            return subprocess.run([*ranks, *options], env=environment, check=False).returncode
        finally:
            busy.kill()


def compiled(world: ls.Communicator, batch: int, uneven: bool | str) -> ls.Executable:
    model = ls.load_onnx(LENET, dims={"batch": batch})
    loss = ls.loss.softmax_cross_entropy("logits", "label")
    return ls.compile(
        ls.train_step(model, loss, ls.optim.SGD(0.01, momentum=0.9), uneven=uneven), world=world, threads=1
    )


def train(exe: ls.Executable, world: ls.Communicator, data: tuple[np.ndarray, np.ndarray], steps: int) -> float:
    """Returns the steps per second."""
    (own,) = list(ls.data.batches(*data, size=len(data[1]), world=world, shares=exe))
    world.barrier()
    begin = time.perf_counter()
    for _ in range(steps):
        exe(image=own[0], label=own[1])
    return steps / (time.perf_counter() - begin)


def compare(world: ls.Communicator, batch: int, steps: int, rounds: int) -> None:
    random = np.random.default_rng(0)
    data = (random.standard_normal((batch, 1, 28, 28), np.float32), random.integers(0, 10, batch))
    even, measured = compiled(world, batch, True), compiled(world, batch, "measured")
    train(even, world, data, STEPS_OF_A_BALANCE)
    for _ in range(BALANCES):
        train(measured, world, data, STEPS_OF_A_BALANCE)
        measured.balance()
    speeds = []
    for _ in range(rounds):
        speeds.append((train(even, world, data, steps), train(measured, world, data, steps)))
        if world.rank == 0:
            print(f"equal {speeds[-1][0]:7.2f}  measured {speeds[-1][1]:7.2f} steps/s", flush=True)
    if world.rank == 0:
        medians = np.median(speeds, axis=0)
        print(
            f"batch {batch}: shares {even.shares} {medians[0]:.2f} steps/s, {measured.shares} {medians[1]:.2f} steps/s, "
            f"ratio of medians {medians[1] / medians[0]:.2f}"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--batch", type=int, default=384)
    parser.add_argument("--steps", type=int, default=20, help="of a turn")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--job", action="store_true", help="the ranks are those of this job")
    parser.add_argument("--pinned", action="store_true", help=argparse.SUPPRESS)  # a rank that this script started
    options = parser.parse_args()
    if not options.job and not options.pinned:
        sys.exit(run_ranks(sys.argv[1:]))
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    if options.pinned:
        cores = sorted(os.sched_getaffinity(0))
        os.sched_setaffinity(0, {cores[int(os.environ["OMPI_COMM_WORLD_RANK"])]})
    world = ls.Communicator.from_environment()
    compare(world, options.batch, options.steps, options.rounds)


if __name__ == "__main__":
    main()
