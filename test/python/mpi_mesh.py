"""One rank of test_mesh.test_split_weights_over_mpi: writes its losses and digests of its states to
<folder>/<rank>.json.
"""

import json
import sys
from pathlib import Path

import lockstep as ls
from cases import CASES, MLP_SPLIT, train
from test_mesh import MESH, STEPS, digests_of

world = ls.Communicator.mpi()
losses, exe = train(CASES[1], world, steps=STEPS, mesh=MESH, split=MLP_SPLIT)
exe.check_replicas()
report = {"rank": world.rank, "size": world.size, "losses": losses, "digests": digests_of(exe)}
(Path(sys.argv[1]) / f"{world.rank}.json").write_text(json.dumps(report))
