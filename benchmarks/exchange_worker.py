"""One rank of a contestant of exchanges.py, exchange-HOW, by worker.py's protocol: trains a task of wire.py.

    exchange_worker.py CONTESTANT MODEL DIRECTORY THREADS [ROWS]

HOW is one of HOWS, or "alone": the rank trains on its share of the batch and does not communicate. Reports contain the
losses of a round and the collectives of the step.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import wire
import worker

import lockstep as ls
from lockstep import exchange, optim
from lockstep._exchange.define import Exchange


@dataclass(frozen=True)
class How:
    """The exchange of all gradients, and the optimizer of a model; that of the task for models not named here."""

    exchange: Exchange | None = None
    optimizers: Mapping[str, optim.Optimizer] = field(default_factory=dict)
    bucket_bytes: int | None = (
        None  # of what travels: less than by default if that is so small that it would leave last
    )


SMALL = 1 << 14

# Rates that are not the task's were the best of two to four by the loss after 100 steps, the GPT's for that of wire.py.
# With momentum 0.9, top_k diverged on LeNet at the rate of the others, and on the GPT with SGD at 0.3.
HOWS = {
    "alone": How(),
    "all_reduce": How(),
    "int8": How(exchange.all_reduce("int8")),
    "top_k": How(exchange.top_k(0.01), {"lenet": optim.SGD(0.2), "gpt": optim.AdamW(2e-3, weight_decay=0.1)}),
    "power_sgd": How(exchange.power_sgd(4), bucket_bytes=SMALL),
    "four_bit": How(exchange.four_bit()),
    "sign_sgd": How(exchange.sign_sgd(), {"lenet": optim.SGD(3e-4), "gpt": optim.SGD(3e-3)}, bucket_bytes=SMALL),
    "demo": How(exchange.demo(), {"lenet": optim.SGD(3e-3), "gpt": optim.SGD(3e-3)}),
}

# The GPT has the size that examples/graphs and examples/language have by default.
TASKS: dict[str, Callable[..., wire.Task]] = {
    "lenet": wire.lenet,
    "gpt": partial(wire.gpt, layers=4, width=128, length=128, size=16),
}


class Exchanging:
    def __init__(self, how: str, model: str, threads: int) -> None:
        self.world = ls.Communicator.mpi()
        self.rank = self.world.rank
        is_alone = how == "alone"
        with tempfile.TemporaryDirectory() as folder:
            self.task = TASKS[model](Path(folder), parts=self.world.size if is_alone else 1)
        start = time.perf_counter()
        optimizer = HOWS[how].optimizers.get(model, self.task.optimizer)
        step = ls.train_step(self.task.model, self.task.loss, optimizer, exchange=HOWS[how].exchange)
        world = ls.Communicator.single() if is_alone else self.world
        self.exe = ls.compile(step, world=world, threads=threads, bucket_bytes=HOWS[how].bucket_bytes)
        self.compile_seconds = time.perf_counter() - start
        self.losses: list[float] = []

    def step(self) -> float:
        loss = float(self.exe(**self.task.share(self.exe.step, self.world))["loss"])
        self.losses.append(loss)
        return loss

    def report(self) -> dict[str, Any]:
        losses, self.losses = self.losses, []
        return {"compile_seconds": self.compile_seconds, "losses": losses, "collectives": list(self.exe.collectives)}


if __name__ == "__main__":
    worker.obey(Exchanging(sys.argv[1].partition("-")[2], sys.argv[2], int(sys.argv[4])), Path(sys.argv[3]))
