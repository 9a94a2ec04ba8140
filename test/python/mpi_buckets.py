"""A rank of the job of test_buckets.py: trains a LeNet, then again with buckets chosen from the times of the first run.

Rank 0 writes a line of JSON, by rank: the collectives of both programs, their losses, and the median milliseconds of a
step, measured in calls that alternate between the two programs.
"""

from __future__ import annotations

import json
import sys
import time

import numpy as np

import lockstep as ls
from cases import CASES

LENET = CASES[0]
BATCH = 32


def main(calls: int) -> None:
    world = ls.Communicator.mpi()
    model = ls.load_onnx(LENET.model, dims={"batch": BATCH})
    step = ls.train_step(model, ls.loss.softmax_cross_entropy("logits", "label"), LENET.optimizer)
    samples, labels = LENET.data()
    rows = slice(world.rank * BATCH // world.size, (world.rank + 1) * BATCH // world.size)
    batch = {LENET.input: samples[:BATCH][rows], "label": labels[:BATCH][rows]}

    first = ls.compile(step, world=world, threads=1)
    losses = [[float(first(**batch)["loss"]) for _ in range(calls)]]
    second = ls.compile(step, world=world, threads=1, buckets=first.report())
    losses.append([float(second(**batch)["loss"]) for _ in range(calls)])
    second.check_replicas()

    seconds: list[list[float]] = [[], []]
    for _ in range(calls):
        for exe, own in zip((first, second), seconds, strict=True):
            begin = time.perf_counter()
            exe(**batch)
            own.append(time.perf_counter() - begin)
    told = {
        "rank": world.rank,
        "collectives": [first.collectives, second.collectives],
        "losses": losses,
        "milliseconds": [1e3 * float(np.median(own)) for own in seconds],
    }
    of_ranks = [json.loads(each) for each in world.gather_bytes(json.dumps(told).encode())]
    if world.rank == 0:
        print(json.dumps(of_ranks), flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]))
