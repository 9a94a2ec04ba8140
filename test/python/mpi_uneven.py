"""One rank of test_uneven_models: a step of each network for each division of rows among the ranks, from the same
weights.

mpi_uneven.py FOLDER NAME...

Rank 0 writes the loss and the new states to <folder>/<name>.<number>.npz.
"""

import sys
from pathlib import Path

import numpy as np

import lockstep as ls
from uneven_models import NETWORKS, SHARES, compiled, data, start

folder, names = Path(sys.argv[1]), sys.argv[2:]
world = ls.Communicator.mpi()
most, shares = SHARES[world.size]
for name in names:
    network = NETWORKS[name]
    exe = compiled(network, world, most * world.size, uneven=True)
    for number, of_ranks in enumerate(shares):
        assert len(of_ranks) == world.size
        start(exe)
        begin = sum(of_ranks[: world.rank])
        rows = slice(begin, begin + of_ranks[world.rank])
        results = exe(**{key: value[rows] for key, value in data(network, sum(of_ranks)).items()})
        assert results["rows"] == sum(of_ranks), results["rows"]
        exe.check_replicas()
        if world.rank == 0:
            np.savez(folder / f"{name}.{number}.npz", loss=results["loss"], ranks=world.size, **exe.state)
