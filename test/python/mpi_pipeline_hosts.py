"""One rank of test_pipeline_hosts: trains a stage of an LSTM, and writes its results and the bytes that its host sent
to <folder>/<rank>.json.

    mpi_pipeline_hosts.py FOLDER '{"stage": 2}'
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

import numpy as np

import lockstep as ls
from example_parts import part

BATCH, LENGTH, WIDTH, MICRO_BATCHES, STEPS = 32, 32, 48, 4, 3
TOKENS = np.random.Generator(np.random.PCG64(3)).integers(256, size=(STEPS, BATCH, LENGTH + 1))


def step() -> ls.Graph:
    """A step with computations over all stages: the norm of all gradients, and draws from one seed."""
    network = part("pipeline/model").lstm(layers=3, width=WIDTH, length=LENGTH, dropout=0.2)
    model = ls.load_onnx(network, dims={"batch": BATCH})
    loss, optimizer = ls.loss.softmax_cross_entropy("logits", "label"), ls.optim.AdamW(0.02)
    return ls.train_step(model, loss, optimizer, clip=ls.clip.global_norm(0.5), accumulate=MICRO_BATCHES, seed=5)


def given(exe: ls.Executable) -> dict[str, int]:
    """The bytes of a step of one pipeline according to the printed plan, by the stages between which they travel, "0 to
    1".
    """
    sizes, found = {"f32": 4, "i64": 8}, dict[str, int]()
    for line in exe.collectives:
        if match := re.match(r"\w+ (f32|i64)\[(\d+)\] (\d to \d) along stage", line):
            dtype, count, way = match.groups()
            found[way] = found.get(way, 0) + sizes[dtype] * int(count)
    return found


def learn(
    world: ls.Communicator, graph: ls.Graph, mesh: dict[str, int] | None, sent: Path | None = None
) -> dict[str, Any]:
    """Trains and returns the results of this rank. Neighbouring ranks are replicas of one stage. `sent` is a file with
    the number of bytes that its host has sent.
    """
    exe = ls.compile(graph, world=world, mesh=mesh, threads=1)
    replicas = world.size // 2 if mesh else 1
    tokens = np.split(TOKENS, replicas, axis=1)[world.rank % replicas]
    world.barrier()
    before = int(sent.read_text()) if sent else 0
    losses = [float(exe(tokens=tokens[i, :, :-1], label=tokens[i, :, 1:])["loss"]) for i in range(STEPS)]
    world.barrier()
    after = int(sent.read_text()) if sent else 0
    exe.check_replicas()
    return {"losses": losses, "sent": after - before, "given": given(exe)}


def main(folder: Path, mesh: dict[str, int]) -> None:
    world = ls.Communicator.mpi()
    learnt = learn(world, step(), mesh, Path("/sys/class/net/eth0/statistics/tx_bytes"))
    facts = {"size": world.size, "on_host": world.ranks_on_this_host}
    (folder / f"{world.rank}.json").write_text(json.dumps(facts | learnt))


if __name__ == "__main__":
    main(Path(sys.argv[1]), json.loads(sys.argv[2]))
