"""One rank of a contestant of pipeline.py, pipeline-HOW-K with K micro-batches per batch, by worker.py's protocol.

    pipeline_worker.py CONTESTANT MODEL DIRECTORY THREADS ROWS

HOW is alone, one rank of Lockstep; stages, Lockstep's pipeline on all ranks; or 1f1b or gpipe, schedules of
torch.distributed.pipelining over gloo, whose stages are cut by hand so that the most expensive stage is as cheap as
possible.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import worker

# The number of parts of a network (parts_of) in each stage except the last.
CUTS = {("gpt", 2): (5,), ("gpt", 4): (3, 2, 2), ("lstm", 2): (3,), ("lstm", 4): (2, 1, 1)}


class Stages:
    def __init__(self, model: str, threads: int, micro_batches: int) -> None:
        import lockstep as ls

        self.world = ls.Communicator.mpi()
        self.rank = self.world.rank
        path = worker.model_path(model)
        self.inputs = {name: np.load(path.with_suffix(f".{name}.npy")) for name in ("x", "label")}
        start = time.perf_counter()
        step = ls.train_step(
            ls.load_onnx(path, dims={"batch": len(self.inputs["x"])}),
            loss=ls.loss.softmax_cross_entropy("logits", "label"),
            optimizer=ls.optim.SGD(worker.LEARNING_RATE, momentum=worker.MOMENTUM),
            accumulate=micro_batches,
        )
        self.exe = ls.compile(step, world=self.world, mesh={"stage": self.world.size}, threads=threads)
        self.loss = self.step()
        self.compile_seconds = time.perf_counter() - start

    def step(self) -> float:
        return float(self.exe(**self.inputs)["loss"])

    def report(self) -> dict[str, Any]:
        memory = self.exe.memory
        return {
            "compile_seconds": self.compile_seconds,
            "first_loss": self.loss,
            "state_bytes": memory["states"],
            "value_bytes": sum(memory.values()),
        }


def parts_of(model: str) -> list[Any]:
    """Returns the network as a sequence of modules."""
    import networks
    from torch import nn

    network: Any = networks.network(model)
    if isinstance(network, nn.Sequential):
        return list(network)

    class Embedded(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.tokens, self.places = network.tokens, network.places

        def forward(self, x: Any) -> Any:
            return self.tokens(x) + self.places.weight

    return [Embedded(), *network.blocks, nn.Sequential(network.norm, network.head, nn.Flatten(0, 1))]


class PyTorch:
    def __init__(self, model: str, threads: int, how: str, micro_batches: int) -> None:
        import networks
        import torch
        from torch.distributed import pipelining

        torch.set_num_threads(threads)
        self.rank, ranks = (int(os.environ[f"OMPI_COMM_WORLD_{part}"]) for part in ("RANK", "SIZE"))
        os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
        torch.distributed.init_process_group("gloo", rank=self.rank, world_size=ranks)
        start = time.perf_counter()
        parts, ends = parts_of(model), [0, *np.cumsum(CUTS[model, ranks]), None]
        module = torch.nn.Sequential(*parts[ends[self.rank] : ends[self.rank + 1]])
        stage = pipelining.PipelineStage(module, self.rank, ranks, torch.device("cpu"))
        schedule = {"1f1b": pipelining.Schedule1F1B, "gpipe": pipelining.ScheduleGPipe}[how]
        self.schedule = schedule(stage, micro_batches, loss_fn=torch.nn.functional.cross_entropy)
        self.optimizer = torch.optim.SGD(module.parameters(), worker.LEARNING_RATE, worker.MOMENTUM)
        self.samples, self.labels = networks.batch(model)
        self.is_last = self.rank == ranks - 1
        self.loss = self.step()
        self.compile_seconds = time.perf_counter() - start
        self.state_bytes = 2 * sum(4 * each.numel() for each in module.parameters())  # includes momenta

    def step(self) -> float:
        """Runs a step. Returns the loss on the last rank, 0 on the others."""
        self.optimizer.zero_grad()
        losses: list[Any] = []
        samples = (self.samples,) if self.rank == 0 else ()
        ends = {"target": self.labels, "losses": losses} if self.is_last else {}
        self.schedule.step(*samples, **ends, return_outputs=False)
        self.optimizer.step()
        return sum(float(loss.detach()) for loss in losses) / max(1, len(losses))

    def report(self) -> dict[str, Any]:
        return {
            "compile_seconds": self.compile_seconds,
            "first_loss": self.loss if self.is_last else None,
            "state_bytes": self.state_bytes,
        }


def main() -> None:
    contestant, model, directory, threads = sys.argv[1], sys.argv[2], Path(sys.argv[3]), int(sys.argv[4])
    _, how, micro_batches = contestant.split("-")
    if how in ("alone", "stages"):
        runner: Any = Stages(model, threads, int(micro_batches))
    else:
        runner = PyTorch(model, threads, how, int(micro_batches))
    worker.obey(runner, directory)


if __name__ == "__main__":
    main()
