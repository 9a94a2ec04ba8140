"""One rank of test_kv_ranks.py, under mpirun: runs the mode of the first argument. Writes <folder>/<rank>.npz, or the
message of an Error to <rank>.txt.
"""

import os
import sys
from pathlib import Path

import numpy as np

import lockstep as ls

SHAPES = {"fc.weight": (700, 500), "fc.bias": (500,), "embedding": (3000, 2000), "scale": ()}  # one key has 24 MB


def gradient(rank: int, step: int, key: str) -> np.ndarray:
    seed = [rank, step, list(SHAPES).index(key)]
    return np.asarray(np.random.default_rng(seed).normal(size=SHAPES[key]), np.float32)


def train(store: ls.kv.KVStore) -> dict[str, np.ndarray]:
    """Three steps of Adam, with lists of keys and key by key. Initial values differ between ranks; those of rank 0
    count.
    """
    keys = list(SHAPES)
    store.init(keys, [np.full(shape, 1 + store.rank, np.float32) for shape in SHAPES.values()])
    store.set_optimizer(ls.optim.Adam(0.01), rescale_grad=1 / store.num_workers)
    weights = [np.empty(shape, np.float32) for shape in SHAPES.values()]
    for step in range(3):
        gradients = [gradient(store.rank, step, key) for key in keys]
        if step == 1:
            for i, key in enumerate(keys):
                store.push(key, gradients[i], priority=-i)
            for key, out in zip(keys, weights, strict=True):
                store.pull(key, out=out)
        else:
            store.pushpull(keys, gradients, out=weights)
    return dict(zip(keys, weights, strict=True))


def main(mode: str, folder: Path) -> None:
    world = ls.Communicator.mpi()
    store = ls.kv.create("dist_sync", world)
    if mode == "train":
        weights = train(store)
        store.save_optimizer_states(folder / "states")
        np.savez(folder / f"{world.rank}.npz", ranks=world.size, **weights)
    elif mode == "leave":  # with a push that no rank has pulled
        store.init("w", np.zeros(5_000_000, np.float32))
        store.push("w", np.ones(5_000_000, np.float32))
        np.savez(folder / f"{world.rank}.npz", ranks=world.size)
    elif mode == "die":
        store.init("w", np.zeros(3, np.float32))
        store.pull("w")
        if world.rank == world.size - 1:
            raise RuntimeError("no more")
        store.push("w", np.ones(3, np.float32))
        store.pull("w")


if __name__ == "__main__":
    folder = Path(sys.argv[2])
    try:
        main(sys.argv[1], folder)
    except ls.Error as error:
        (folder / f"{os.environ['OMPI_COMM_WORLD_RANK']}.txt").write_text(str(error))
        raise
