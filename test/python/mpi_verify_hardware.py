"""One rank of test_verify_hardware: writes the error of a step before which a bit changed in the memory of a rank.

mpi_verify_hardware.py FOLDER RANK; the file is <folder>/<rank>.txt.
"""

import sys
from pathlib import Path

import lockstep as ls
from test_verify_hardware import with_a_flipped_bit

world = ls.Communicator.mpi()
message = with_a_flipped_bit(world, int(sys.argv[2]), verify_hardware=2)
(Path(sys.argv[1]) / f"{world.rank}.txt").write_text(message)
