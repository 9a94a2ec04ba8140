"""One rank of test_horovod_torch: ranks that make different calls, or one of which dies.

    mpi_horovod_failure.py FOLDER MODE …

Runs each mode in a job of its own, and writes the message of this rank's Error to <folder>/<mode>.<rank>.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

import torch

import lockstep.horovod.torch as hvd
from lockstep import Error


def fail(mode: str) -> None:
    first = hvd.rank() == 0
    if mode == "shapes":
        hvd.allreduce(torch.ones(3 if first else 4), name="gradient")
    elif mode == "names":
        hvd.allreduce(torch.ones(3), name="left" if first else "right")
    elif mode == "calls":
        handle = hvd.allreduce_async(torch.ones(3)) if first else hvd.broadcast_async(torch.ones(3), 0)
        hvd.synchronize(handle)
    elif mode == "columns":
        hvd.allgather(torch.ones(2, 3 if first else 4))
    elif mode == "joined-min":
        hvd.join() if first else hvd.allreduce(torch.ones(3), op=hvd.Min)
    elif mode == "joined-root":
        hvd.join() if first else hvd.broadcast(torch.ones(3), 0)
    else:
        torch.manual_seed(0)
        module = torch.nn.Linear(4, 2)
        optimizer = hvd.DistributedOptimizer(torch.optim.SGD(module.parameters(), 0.1), module.named_parameters())
        for _ in range(2):
            optimizer.step()
            hvd.barrier()
            module(torch.ones(1, 4)).sum().backward()
        if mode == "step" and not first:
            hvd.allreduce(torch.ones(3))
        if mode == "dead" and not first:
            os.kill(os.getpid(), signal.SIGKILL)
        optimizer.step()
        hvd.barrier()


for mode in sys.argv[2:]:
    hvd.init()
    rank = hvd.rank()
    try:
        fail(mode)
    except Error as error:
        (Path(sys.argv[1]) / f"{mode}.{rank}").write_text(str(error))
    hvd.shutdown()

# At the end of a failed job, the others wait two seconds for a rank, and a rank may be later than that.
end = time.monotonic() + 60
while (
    mode != "dead"
    and time.monotonic() < end
    and not all((Path(sys.argv[1]) / f"{mode}.{rank}").exists() for rank in range(2))
):
    time.sleep(0.01)
