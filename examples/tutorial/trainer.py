"""Step 3: a trainer with the store. Run: mpirun -np 2 .venv/bin/python examples/tutorial/trainer.py"""

from __future__ import annotations

from common import BATCH, LOSS, MODEL, parse_arguments, say, training_set

import lockstep as ls


def main() -> None:
    arguments = parse_arguments("Trains LeNet with lockstep.Trainer.")
    validation = ls.data.mnist(arguments.data, train=False)

    store = ls.kv.create("dist_sync")
    model = ls.load_onnx(MODEL, dims={"batch": BATCH})  # the batch of all workers together
    trainer = ls.Trainer(model, LOSS, "sgd", {"learning_rate": 0.05, "momentum": 0.9}, kvstore=store)
    for results in trainer.fit(training_set(arguments), validation, epochs=arguments.epochs):
        say(store.rank, f"epoch {results['epoch']}: loss {results['loss']:.4f}, accuracy {results['accuracy']:.4f}")


if __name__ == "__main__":
    main()
