"""Step 5: several devices of a worker. Run: .venv/bin/python examples/tutorial/devices.py, or with mpirun -np 2 before it."""

from __future__ import annotations

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

DEVICES = 2  # of each worker; here they are programs of the CPU, which compute one after the other


def main() -> None:
    arguments = parse_arguments("Trains LeNet on several devices of a worker.")
    images, labels = training_set(arguments)
    store = ls.kv.create("dist_sync")
    everywhere = DEVICES * store.num_workers

    weights = [first_weights() for _ in range(DEVICES)]
    names = list(weights[0])
    store.init(names, list(weights[0].values()))
    store.set_optimizer(OPTIMIZER, rescale_grad=1 / everywhere)
    steps = [gradient_step(BATCH // everywhere) for _ in range(DEVICES)]
    for epoch in range(arguments.epochs):
        parts = [
            ls.data.batches(
                images, labels, size=BATCH, seed=epoch, num_parts=everywhere, part_index=store.rank * DEVICES + device
            )
            for device in range(DEVICES)
        ]
        for batch in zip(*parts, strict=True):
            of_devices = [gradients(steps[i], weights[i], *batch[i]) for i in range(DEVICES)]
            # A list for each key, with an element for each device: added up in the worker first.
            store.push(names, [list(each) for each in zip(*of_devices, strict=True)])
            store.pull(names, out=[[weights[i][name] for i in range(DEVICES)] for name in names])
        if store.rank == 0:
            say(0, f"epoch {epoch + 1}: accuracy {accuracy(weights[0], arguments):.4f}")


if __name__ == "__main__":
    main()
