"""Step 4: each worker has its own samples. Run: mpirun -np 2 .venv/bin/python examples/tutorial/split_sampler.py"""

from __future__ import annotations

from common import BATCH, LOSS, MODEL, parse_arguments, say, training_set

import lockstep as ls


def main() -> None:
    arguments = parse_arguments("Trains LeNet on parts of the data set.")
    images, labels = training_set(arguments)
    store = ls.kv.create("dist_sync")

    # Each epoch divides all samples anew among the workers; the parts differ by at most one sample.
    sampler = ls.data.SplitSampler(len(images), num_parts=store.num_workers, part_index=store.rank)
    mine = ls.data.batches(images, labels, size=BATCH // store.num_workers, sampler=sampler, last="pad")
    # Reads only this worker's part of the test set.
    tested = ls.data.mnist(arguments.data, train=False, num_parts=store.num_workers, part_index=store.rank)
    validation = ls.data.batches(*tested, size=BATCH // store.num_workers, last="pad")

    model = ls.load_onnx(MODEL, dims={"batch": BATCH})
    trainer = ls.Trainer(model, LOSS, "sgd", {"learning_rate": 0.05, "momentum": 0.9}, kvstore=store)
    for results in trainer.fit(mine, validation, epochs=arguments.epochs):
        say(store.rank, f"epoch {results['epoch']}: loss {results['loss']:.4f}, accuracy {results['accuracy']:.4f}")


if __name__ == "__main__":
    main()
