"""Step 2: a store that all workers push to. Run: [mpirun -np 2] .venv/bin/python examples/tutorial/store.py"""

from __future__ import annotations

import numpy as np
from common import (
    BATCH,
    OPTIMIZER,
    accuracy,
    first_weights,
    gradient_step,
    gradients,
    parse_arguments,
    say,
    training_set,
)

import lockstep as ls


def show(store: ls.kv.KVStore) -> None:
    """Shows that the store adds up the values that all workers push to a key, and that all pull the sum."""
    shape = (2, 3)
    store.init("an example", np.zeros(shape, np.float32))
    store.push("an example", np.full(shape, store.rank + 1, np.float32))
    say(store.rank, f"{store.num_workers} workers pushed 1 to {store.num_workers}:\n{store.pull('an example')}")


def main() -> None:
    arguments = parse_arguments("Trains LeNet by pushing gradients to a store and pulling weights.")
    images, labels = training_set(arguments)
    show(ls.kv.create("dist_sync"))

    store = ls.kv.create("dist_sync")
    weights = first_weights()
    names = list(weights)
    store.init(names, list(weights.values()))
    store.set_optimizer(OPTIMIZER, rescale_grad=1 / store.num_workers)  # the mean over the workers
    step = gradient_step(BATCH // store.num_workers)
    for epoch in range(arguments.epochs):
        batches = ls.data.batches(
            images, labels, size=BATCH, seed=epoch, num_parts=store.num_workers, part_index=store.rank
        )
        for image, label in batches:
            store.push(names, gradients(step, weights, image, label))
            store.pull(names, out=list(weights.values()))
        if store.rank == 0:
            say(0, f"epoch {epoch + 1}: accuracy {accuracy(weights, arguments):.4f}")


if __name__ == "__main__":
    main()
