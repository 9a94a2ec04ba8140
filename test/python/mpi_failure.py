"""One rank of test_rank_errors: all train for two steps, then rank 1 fails in the way of the argument while the others
continue.

Writes <folder>/<rank>.json with the seconds from then until this rank's Error, and its message; and <folder>/failed-at,
the time.
"""

import json
import os
import signal
import sys
import time
from pathlib import Path

import numpy as np

import lockstep as ls

mode, folder = sys.argv[1], Path(sys.argv[2])
world = ls.Communicator.mpi()
culprit = world.rank == 1
model = ls.load_onnx(Path(__file__).resolve().parents[1] / "models/mlp.onnx", dims={"batch": 6})
rate = 0.2 if mode == "learning_rate" and culprit else 0.1
begin = time.time()
try:
    step = ls.train_step(model, ls.loss.softmax_cross_entropy("logits", "label"), ls.optim.SGD(rate))
    exe = ls.compile(step, world=world, threads=1)
    x, label = np.ones((6 // world.size, 12), np.float32), np.zeros(6 // world.size, np.int64)
    for _ in range(2):
        exe(x=x, label=label)
    world.barrier()
    begin = time.time()
    if culprit:
        (folder / "failed-at").write_text(str(begin))
        if mode == "raise":
            raise ValueError("no more data")
        if mode == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        if mode == "exit":
            sys.exit(0)
        label[1] = 9  # mode == "label"
    exe(x=x, label=label)
except ls.Error as error:
    (folder / f"{world.rank}.json").write_text(json.dumps({"seconds": time.time() - begin, "message": str(error)}))
    raise
