"""A rank of test_stages.test_a_stage_that_is_gone_is_named: two stages. The second is killed or stopped before its
second call.

    mpi_stage_fails.py FOLDER kill|stop

The first stage writes the error message of its call to <folder>/message.
"""

import os
import signal
import sys
from pathlib import Path

import numpy as np

import lockstep as ls
from test_stages import BATCH, TWO, mlp_step

folder, how = Path(sys.argv[1]), sys.argv[2]
world = ls.Communicator.mpi(timeout=2 if how == "stop" else 60)
exe = ls.compile(mlp_step(), world=world, mesh=TWO, threads=1)
processes = [int(each) for each in world.gather_bytes(str(os.getpid()).encode())]
batch = {"x": np.ones((BATCH, 12), np.float32), "label": np.zeros(BATCH, np.int64)}
exe(**batch)
world.barrier()
if world.rank == 1:
    os.kill(os.getpid(), signal.SIGKILL if how == "kill" else signal.SIGSTOP)
try:
    exe(**batch)
except ls.Error as error:
    (folder / "message").write_text(str(error))
    if how == "stop":
        os.kill(processes[1], signal.SIGKILL)
    os._exit(1)
