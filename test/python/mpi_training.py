"""One rank of test_training, test_wire and test_factors: writes its losses and a digest of the states common to all
ranks.

mpi_training.py FOLDER [f32 | bf16 | int8 | rank]

The file is <folder>/<rank>.json. With "f32", "bf16" and "int8" every gradient is reduced, and that is its wire. With
"rank" reductions are in the order of ranks.
"""

import hashlib
import json
import sys
from pathlib import Path

import lockstep as ls
from cases import CASES, train

how = sys.argv[2] if sys.argv[2:] else None
world = ls.Communicator.mpi(order="rank" if how == "rank" else "any")
is_reduced = how in ("f32", "bf16", "int8")
losses, exe = train(
    CASES[0], world, wire=how if how in ("bf16", "int8") else None, factors=False if is_reduced else None
)
exe.check_replicas()
shared = (name for name in sorted(exe.state) if "/residual/" not in name)
digest = hashlib.sha256(b"".join(exe.state[name].tobytes() for name in shared)).hexdigest()
report = {"rank": world.rank, "size": world.size, "losses": losses, "digest": digest}
(Path(sys.argv[1]) / f"{world.rank}.json").write_text(json.dumps(report))
