"""One rank of test_horovod_torch under `lockstep elastic`: trains eight epochs and commits each. With `die`, rank 1
dies once, in epoch 5.

mpi_horovod_elastic.py FOLDER [die]
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import Any

import torch

import lockstep.horovod.torch as hvd

hvd.init()
torch.manual_seed(hvd.rank())
model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2))
optimizer = hvd.DistributedOptimizer(torch.optim.Adam(model.parameters(), 0.01), model.named_parameters())
begins = []


@hvd.elastic.run
def train(state: Any) -> None:
    begins.append(state.epoch)
    while state.epoch < 8:
        torch.manual_seed(100 * state.epoch + hvd.rank())
        optimizer.zero_grad()
        model(torch.randn(6, 4)).square().sum().backward()
        optimizer.step()
        state.epoch += 1
        if "die" in sys.argv and hvd.rank() == 1 and state.epoch == 5 and os.environ["LOCKSTEP_ATTEMPT"] == "0":
            os.kill(os.getpid(), signal.SIGKILL)
        state.commit()


train(hvd.elastic.TorchState(model=model, optimizer=optimizer, epoch=0))
hvd.barrier()
torch.save((hvd.size(), begins[0], model.state_dict()), Path(sys.argv[1]) / f"{hvd.rank()}.pt")
