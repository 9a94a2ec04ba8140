"""One rank of test_uneven_epoch: an epoch over its own samples or over those of all ranks, until no rank has samples
left.

mpi_uneven_epoch.py FOLDER own | shared

Writes the samples that it used in each step to <folder>/<rank>.json; rank 0 also writes its weights to
<folder>/weights.npz.
"""

import json
import sys
from pathlib import Path

import numpy as np

import lockstep as ls
from test_uneven_epoch import BATCH, SEED, SHARDS, samples, step_of

folder, whose = Path(sys.argv[1]), sys.argv[2]
world = ls.Communicator.mpi()
exe = ls.compile(step_of(BATCH * world.size, uneven=True), world=world, threads=1)
x, label = samples()
numbers = np.arange(len(label))
if whose == "own":
    begin = sum(SHARDS[world.size][: world.rank])
    own = slice(begin, begin + SHARDS[world.size][world.rank])
    batches = (
        ls.data.batches(x[own], label[own], numbers[own], size=BATCH, seed=SEED, last="pad") if own.stop > begin else []
    )
else:
    batches = ls.data.batches(x, label, numbers, size=BATCH * world.size, world=world, seed=SEED, last="pad")

used = []


def inputs():
    for of_x, of_label, of_numbers, rows in batches:
        used.append(of_numbers[rows == 1].tolist())
        yield {"x": of_x, "label": of_label, "rows": rows}


counts = [int(results["rows"]) for results in exe.joined(inputs())]
exe.check_replicas()
report = {"size": world.size, "used": used, "counts": counts, "step": exe.step}
(folder / f"{world.rank}.json").write_text(json.dumps(report))
if world.rank == 0:
    np.savez(folder / "weights.npz", **exe.state)
