"""One rank of test_numerics: writes what find_nan says of a batch whose last row makes a NaN.

mpi_numerics.py FOLDER; the file is <folder>/<rank>.txt.
"""

import sys
from pathlib import Path

import lockstep as ls
from test_numerics import ROWS, batch, training, with_states

world = ls.Communicator.mpi()
exe = with_states(ls.compile(training(), world=world, threads=1))
(Path(sys.argv[1]) / f"{world.rank}.txt").write_text(str(ls.find_nan(exe, **batch(world, ROWS - 1))))
