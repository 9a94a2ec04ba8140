"""A rank of the jobs of test_elastic.py, which `lockstep elastic` starts: mpi_elastic.py FOLDER [FAULT…].

Trains for STEPS steps, with a checkpoint after every SAVE_EVERY. For each step, a rank appends a line to
FOLDER/<rank>.trained: the attempt, the step, and the numbers of the samples. At the end it writes FOLDER/<rank>.json.

FAULT is "die ATTEMPT RANK STEP", a kill -9; "raise ATTEMPT RANK STEP"; or "wait ATTEMPT RANK STEP", which makes the
file FOLDER/waits.
"""

import json
import os
import signal
import sys
import time
from pathlib import Path

import numpy as np

import lockstep as ls
from test_checkpoint import compiled

STEPS, SAVE_EVERY, BATCH, PER_EPOCH = 23, 5, 6, 8


def commit(fault: str, folder: Path) -> None:
    if fault == "die":
        os.kill(os.getpid(), signal.SIGKILL)
    if fault == "raise":
        raise ValueError("no more data")
    (folder / "waits").touch()
    while True:
        time.sleep(1)


def main(folder: Path, *faults: str) -> None:
    attempt = int(os.environ["LOCKSTEP_ATTEMPT"])
    world = ls.Communicator.mpi()
    exe = compiled(world)
    checkpoints = ls.Checkpoints(folder / "checkpoints")
    checkpoints.restore(exe, expected={"batch": BATCH})
    begin = exe.step
    samples = np.random.default_rng(0).standard_normal((BATCH * PER_EPOCH, 12)).astype(np.float32)
    with (folder / f"{world.rank}.trained").open("a") as trained:
        while exe.step < STEPS:
            epoch, first = divmod(exe.step, PER_EPOCH)
            numbers = ls.data.batches(np.arange(len(samples)), size=BATCH, world=world, seed=epoch, start=first)
            for (rows,) in numbers:
                place = f"{attempt} {world.rank} {exe.step}"
                for fault in faults:
                    kind, _, where = fault.partition(" ")
                    if where == place:
                        commit(kind, folder)
                exe(x=samples[rows], label=rows % 4)
                trained.write(f"{attempt} {exe.step} {' '.join(map(str, rows))}\n")
                trained.flush()
                if exe.step % SAVE_EVERY == 0:
                    checkpoints.save(exe, metadata={"batch": BATCH})
                if exe.step == STEPS:
                    break
    exe.check_replicas()
    state = {name: exe.state[name].tolist() for name in exe.state}
    report = {"attempt": attempt, "size": world.size, "host": world.host(world.rank), "begin": begin, "state": state}
    (folder / f"{world.rank}.json").write_text(json.dumps(report))


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
