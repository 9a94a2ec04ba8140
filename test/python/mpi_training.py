"""One rank of test_training, test_wire and test_factors: writes its losses and a digest of its states to <folder>/<rank>.json.

mpi_training.py FOLDER [f32 | bf16 | rank]

"f32" and "bf16": every gradient is reduced, and travels so. "rank": reductions are in the order of ranks.
"""

import hashlib
import json
import sys
from pathlib import Path

import lockstep as ls
from cases import CASES, train

how = sys.argv[2] if sys.argv[2:] else None
world = ls.Communicator.mpi(order="rank" if how == "rank" else "any")
losses, exe = train(
    CASES[0], world, wire="bf16" if how == "bf16" else None, factors=False if how in ("f32", "bf16") else None
)
exe.check_replicas()
digest = hashlib.sha256(b"".join(exe.state[name].tobytes() for name in sorted(exe.state))).hexdigest()
report = {"rank": world.rank, "size": world.size, "losses": losses, "digest": digest}
(Path(sys.argv[1]) / f"{world.rank}.json").write_text(json.dumps(report))
