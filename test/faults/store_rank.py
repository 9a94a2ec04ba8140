"""A worker of a job with servers that faults.py disturbs: store_rank.py FOLDER TIMEOUT.

It pushes to a store "dist_async" and pulls without end, and meets the other workers every tenth step. It writes
FOLDER/<rank>.begun and FOLDER/<rank>.error like rank.py. If there is a file FOLDER/finish, it writes
FOLDER/<rank>.finished and ends.
"""

import os
import sys
import time
from pathlib import Path

import numpy as np
from rank import write

import lockstep as ls

SHAPES = {"small": (5,), "shared memory": (300, 40), "cut": (900, 100)}
WARM_UP, MEET_EVERY = 3, 10


def train(store: ls.kv.KVStore, folder: Path) -> None:
    names, values = list(SHAPES), [np.ones(shape, np.float32) for shape in SHAPES.values()]
    store.bigarray_bound = 50_000
    store.init(names, values)
    store.set_optimizer(ls.optim.SGD(1e-4, momentum=0.9))
    gradients, step = [np.ones_like(value) for value in values], 0
    while not (folder / "finish").exists():
        store.push(names, gradients)
        store.pull(names, out=values)
        step += 1
        if step == WARM_UP:
            write(folder / f"{store.rank}.begun", os.getpid())
        if step % MEET_EVERY == 0:
            store.barrier()
        time.sleep(0.002)  # leaves time for the other processes of this machine
    write(folder / f"{store.rank}.finished", step)


def main(folder: Path, timeout: float) -> None:
    world = ls.Communicator.mpi(timeout=timeout)
    try:
        train(ls.kv.create("dist_async", world), folder)
    except ls.Error as error:
        write(folder / f"{world.rank}.error", {"time": time.time(), "message": str(error)})
        raise


if __name__ == "__main__":
    main(Path(sys.argv[1]), float(sys.argv[2]))
