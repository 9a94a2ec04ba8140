"""One rank of test_order: trains with a given order of additions, and writes a digest of its states to <folder>/<rank>.

mpi_order.py FOLDER ORDER [VIRTUAL_RANKS]
"""

import sys
from pathlib import Path

import lockstep as ls
from order import digest

folder, order, *virtual_ranks = sys.argv[1:]
world = ls.Communicator.mpi(order=order)
(Path(folder) / str(world.rank)).write_text(f"{world.size} {digest(world, *map(int, virtual_ranks))}")
