"""One rank of test_training and test_wire: writes its losses and a digest of the states that ranks have in common to <folder>/<rank>.json.

mpi_training.py FOLDER [WIRE]
"""

import hashlib
import json
import sys
from pathlib import Path

import lockstep as ls
from cases import CASES, train

world = ls.Communicator.mpi()
losses, exe = train(CASES[0], world, wire=sys.argv[2] if sys.argv[2:] else None)
exe.check_replicas()
shared = (name for name in sorted(exe.state) if "/residual/" not in name)
digest = hashlib.sha256(b"".join(exe.state[name].tobytes() for name in shared)).hexdigest()
report = {"rank": world.rank, "size": world.size, "losses": losses, "digest": digest}
(Path(sys.argv[1]) / f"{world.rank}.json").write_text(json.dumps(report))
