"""Measures what check_numerics and verify_hardware cost: steps of LeNet with and without them, in alternation.

    checks.py [ROUNDS]                                              # default: 60; at least 40

Runs on one rank, and on two ranks under mpirun, with one thread each. A round is eight steps of each of three programs:
plain, with check_numerics=True, and with verify_hardware=8, so that the last of the eight is verified. The programs have
the batch of 64, SGD with momentum and the same inputs. Prints medians of all steps, and the share of the time that
verify_hardware=512 takes: a verified step less a plain one, divided by 512 plain ones.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "python_bindings"))
import lockstep as ls

BATCH = 64
EVERY = 8  # steps in a round of a program, of which the last is verified
PROGRAMS = {"plain": {}, "check_numerics": {"check_numerics": True}, "verify_hardware": {"verify_hardware": EVERY}}
MPI = {
    "OMPI_ALLOW_RUN_AS_ROOT": "1",
    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    "OMPI_MCA_hwloc_base_binding_policy": "none",
}


def compiled(world: ls.Communicator) -> dict[str, ls.Executable]:
    model = ls.load_onnx(ROOT / "examples/mnist/lenet.onnx", dims={"batch": BATCH})
    step = ls.train_step(model, ls.loss.softmax_cross_entropy("logits", "label"), ls.optim.SGD(0.05, momentum=0.9))
    return {name: ls.compile(step, world=world, threads=1, **options) for name, options in PROGRAMS.items()}


def measured(world: ls.Communicator, rounds: int) -> dict[str, np.ndarray]:
    """Returns the seconds of steps of each program, by round and by step in it."""
    programs, share = compiled(world), BATCH // world.size
    random = np.random.default_rng(world.rank)
    inputs = {"image": random.random((share, 1, 28, 28), np.float32), "label": random.integers(0, 10, share)}
    seconds = {name: np.zeros((rounds + 1, EVERY)) for name in programs}
    for row in range(rounds + 1):
        names = list(programs)[:: 1 if row % 2 else -1]
        for name in names:
            world.barrier()
            for step in range(EVERY):
                begin = time.perf_counter()
                programs[name](**inputs)
                seconds[name][row, step] = time.perf_counter() - begin
    return {name: times[1:] for name, times in seconds.items()}  # without the first round, which allocates


def main(rounds: int) -> None:
    world = ls.Communicator.mpi()
    times = measured(world, rounds)
    if world.rank > 0:
        return
    plain, checked = (float(np.median(times[name])) for name in ("plain", "check_numerics"))
    verified = float(np.median(times["verify_hardware"][:, -1]))
    print(f"LeNet, {BATCH} on {world.size} ranks, one thread each, medians of {rounds * EVERY} steps:")
    print(f"  plain                {1e3 * plain:7.2f} ms")
    print(f"  check_numerics=True  {1e3 * checked:7.2f} ms, {1e3 * (checked - plain):.2f} ms more")
    print(f"  a verified step      {1e3 * verified:7.2f} ms, of {rounds}")
    print(f"  verify_hardware=512  {(verified - plain) / (512 * plain):7.2%} of the time", flush=True)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--rank"]:
        main(int(sys.argv[2]))
    else:
        given = max(40, int(sys.argv[1]) if len(sys.argv) > 1 else 60)
        for ranks in (1, 2):
            command = ["mpirun", "-np", str(ranks), sys.executable, __file__, "--rank", str(given)]
            subprocess.run(command, check=True, env={**os.environ, **MPI})
