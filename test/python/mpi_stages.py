"""One rank of test_stages.test_a_transformer_over_mpi: writes its results to <folder>/<rank>.json, and a checkpoint."""

import json
import sys
from pathlib import Path

import lockstep as ls
from test_stages import BOTH, gpt_step, learn

folder = Path(sys.argv[1])
world = ls.Communicator.mpi()
losses, exe = learn(world, gpt_step(), BOTH)
exe.save(folder / "stages.safetensors")
report = {
    "size": world.size,
    "losses": losses,
    "states": sorted(exe.state),
    "memory": exe.memory,
    "report": str(exe.report()),
}
(folder / f"{world.rank}.json").write_text(json.dumps(report))
