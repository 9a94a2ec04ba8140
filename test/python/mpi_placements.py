"""One rank of test_placements.test_a_transformer_over_mpi: writes its losses, and shapes of its states, to
<folder>/<rank>.json.
"""

import json
import sys
from pathlib import Path

import lockstep as ls
from test_placements import BOTH, MEGATRON, OPTIMIZERS, gpt_step, learn

world = ls.Communicator.mpi()
losses, states, _ = learn(world, gpt_step(OPTIMIZERS[2]), BOTH, placements=MEGATRON)
report = {"size": world.size, "losses": losses, "shapes": {name: value.shape for name, value in states.items()}}
(Path(sys.argv[1]) / f"{world.rank}.json").write_text(json.dumps(report))
