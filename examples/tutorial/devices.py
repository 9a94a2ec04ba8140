"""Step 5: several devices per worker. Run: [mpirun -np 2] .venv/bin/python examples/tutorial/devices.py"""

from __future__ import annotations

from common import (
    BATCH,
    LOSS,
    MODEL,
    OPTIMIZER,
    accuracy,
    first_weights,
    parse_arguments,
    say,
    training_set,
)

import lockstep as ls

DEVICES = ["cpu:0", "cpu:1"]  # per worker; here they are shares of its threads


def main() -> None:
    arguments = parse_arguments("Trains LeNet on several devices of a worker.")
    images, labels = training_set(arguments)
    store = ls.kv.create("dist_sync")
    everywhere = len(DEVICES) * store.num_workers

    weights = first_weights()
    store.init(list(weights), list(weights.values()))
    store.set_optimizer(OPTIMIZER, rescale_grad=1 / everywhere)
    model = ls.load_onnx(MODEL, dims={"batch": BATCH // everywhere})  # for one device
    devices = ls.kv.Devices(ls.train_step(model, LOSS, optimizer=None), DEVICES, store)
    for epoch in range(arguments.epochs):
        batches = ls.data.batches(
            images, labels, size=BATCH, seed=epoch, num_parts=store.num_workers, part_index=store.rank
        )
        for image, label in batches:
            devices(image=image, label=label)
            # Pushes a list for each key, with an element for each device. The worker adds them up first.
            store.push(devices.names, devices.gradients)
            store.pull(devices.names, out=devices.weights)
        if store.rank == 0:
            trained = dict(zip(devices.names, devices.weights, strict=True))
            say(0, f"epoch {epoch + 1}: accuracy {accuracy(trained, arguments):.4f}")


if __name__ == "__main__":
    main()
