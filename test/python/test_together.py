"""Parts of a recipe together: precision, micro-batches, clipping, averages and a limit of memory, on 1 and 2 ranks."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

import lockstep as ls
from ranks import run_in_threads
from test_accumulate import LOSS, wide

ROWS, CLASSES = 1024, 4
RECIPE: dict[str, Any] = {
    "clip": ls.clip.global_norm(0.5),
    "average": ls.average.exponential(0.9),
    "groups": {"w3": ls.optim.SGD(0.05)},
}


def train(
    step: ls.Graph, world: ls.Communicator, **options: Any
) -> tuple[list[float], dict[str, bytes], ls.Executable]:
    exe = ls.compile(step, world=world, threads=1, **options)
    random = np.random.Generator(np.random.PCG64(6))
    share = ROWS // world.size
    mine = slice(world.rank * share, (world.rank + 1) * share)
    losses = []
    for _ in range(4):
        x = random.standard_normal((ROWS, 8)).astype(np.float32)
        label = x[:, :CLASSES].argmax(axis=1)
        losses.append(float(exe(x=x[mine], label=label[mine])["loss"]))
    exe.check_replicas()
    return losses, {name: exe.state[name].tobytes() for name in exe.state}, exe


def smallest(step: ls.Graph) -> int:
    """The limit that a program of one rank can keep: more than what each of several needs."""
    with pytest.raises(ls.Error) as error:
        ls.compile(step, threads=1, memory_limit=1)
    found = re.search(r"needs at least (\d+) on each rank", str(error.value))
    assert found
    return int(found[1])


@pytest.mark.parametrize("optimizer", [ls.optim.AdamW(0.01), ls.optim.Adafactor(0.01), ls.optim.LAMB(0.01)], ids=repr)
@pytest.mark.parametrize("precision", ["f32", "bf16", "f16"])
def test_all_at_once(precision: str, optimizer: ls.optim.Optimizer) -> None:
    """Micro-batches and ranks change what the step computes by rounding; a limit of memory changes no bit of it."""
    parts = {k: ls.train_step(wide(128), LOSS, optimizer, precision=precision, accumulate=k, **RECIPE) for k in (1, 4)}
    [(of_all, _, _)] = run_in_threads(1, lambda world: train(parts[1], world))
    assert of_all[-1] < of_all[0]
    limit = smallest(parts[4])
    tolerance = 1e-4 if precision == "f32" else 2e-2
    for ranks in (1, 2):
        free = run_in_threads(ranks, lambda world: train(parts[4], world))
        limited = run_in_threads(ranks, lambda world: train(parts[4], world, memory_limit=limit))
        assert len(free) == len(limited) == ranks
        for results in (free, limited):
            assert not [each for each in results if isinstance(each, Exception)], results
        for (losses, states, _), (same, equal, exe) in zip(free, limited, strict=True):
            np.testing.assert_allclose(losses, of_all, rtol=tolerance)
            assert same == losses and equal == states == free[0][1]
            assert sum(exe.memory.values()) <= limit
            assert ranks > 1 or exe.recomputed["kernels"] > 0
