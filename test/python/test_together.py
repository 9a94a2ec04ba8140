"""Combined parts of a recipe: precision, micro-batches, clipping, averages, groups, dropout, meshes, a memory limit."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import lockstep as ls
from cases import BATCH, CASES, MLP_SPLIT
from ranks import run_in_threads
from test_accumulate import LOSS, step_of, wide
from test_mesh import MESH, whole
from test_random import LABELS, X, classifier

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
    """The smallest limit that a program of one rank can keep; it is more than each of several ranks needs."""
    with pytest.raises(ls.Error) as error:
        ls.compile(step, threads=1, memory_limit=1)
    found = re.search(r"needs at least (\d+) on each rank", str(error.value))
    assert found
    return int(found[1])


@pytest.mark.parametrize("optimizer", [ls.optim.AdamW(0.01), ls.optim.Adafactor(0.01), ls.optim.LAMB(0.01)], ids=repr)
@pytest.mark.parametrize("precision", ["f32", "bf16", "f16"])
def test_all_at_once(precision: str, optimizer: ls.optim.Optimizer) -> None:
    """Micro-batches and ranks change the results only by rounding; a memory limit does not change any bit."""
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


# In this step the batch has a NaN, on the ranks of the second half of the data.
BAD_STEP = 2


def train_mlp(
    step: ls.Graph, world: ls.Communicator, is_bad: bool, **options: Any
) -> tuple[list[float], list[float], dict[str, np.ndarray]]:
    """Losses, norms of the gradient, and the final states."""
    exe = ls.compile(step, world=world, threads=1, **options)
    samples, labels = (array[: 6 * BATCH].copy() for array in CASES[1].data())
    if is_bad:
        samples[BAD_STEP * BATCH + BATCH - 1] = np.nan
    losses, norms = [], []
    for x, y in ls.data.batches(samples, labels, size=BATCH, world=world, mesh=options.get("mesh")):
        results = exe(x=x, label=y)
        losses.append(float(results["loss"]))
        norms.append(float(results["gradient_norm"]))
    exe.check_replicas()
    return losses, norms, {name: exe.state[name] for name in exe.state}


@pytest.mark.parametrize("accumulate", [1, 4])
@pytest.mark.parametrize("precision", ["f32", "bf16", "f16"])
def test_a_mesh_of_two_axes_learns_what_a_rank_does(precision: str, accumulate: int) -> None:
    """The norm covers all parts of the gradient, and averages are split like their weights."""
    step = step_of(
        CASES[1],
        accumulate,
        optimizer=ls.optim.AdamW(0.01),
        precision=precision,
        clip=ls.clip.global_norm(0.05),
        average=ls.average.exponential(0.8),
        groups={"*.bias": ls.optim.SGD(0.1, momentum=0.9), "fc3.weight": ls.optim.LAMB(0.02)},
    )
    is_bad = precision == "f16"
    [(expected, norms, of_one)] = run_in_threads(1, lambda world: train_mlp(step, world, is_bad))
    results = run_in_threads(4, lambda world: train_mlp(step, world, is_bad, mesh=MESH, split=MLP_SPLIT))
    tolerance = 1e-4 if precision == "f32" else 2e-2
    for result in results:
        assert not isinstance(result, Exception), result
        np.testing.assert_allclose(result[0], expected, rtol=tolerance)
        np.testing.assert_allclose(result[1], norms, rtol=3 * tolerance)
    assert np.isnan(expected).tolist() == [is_bad and i == BAD_STEP for i in range(6)]
    states = [result[2] for result in results]
    if is_bad:
        assert [each["loss_scale/scale"].item() for each in (of_one, *states)] == [32768] * 5
    for name in ("fc1.weight", "fc1.weight/average", "fc2.weight", "fc3.weight", "fc1.bias", "fc1.bias/average"):
        dim = MLP_SPLIT.get(name.removesuffix("/average"), {}).get("model")
        found = states[0][name] if dim is None else np.concatenate([states[0][name], states[1][name]], axis=dim)
        assert found.shape == of_one[name].shape
        assert np.isfinite(found).all()
        scale = np.abs(of_one[name]).max()
        np.testing.assert_allclose(found, of_one[name], atol=10 * tolerance * scale, err_msg=name)
        for one, other in ((0, 2), (1, 3)):
            assert states[one][name].tobytes() == states[other][name].tobytes(), name
    np.testing.assert_array_equal(
        whole("fc1.weight", states), np.concatenate([states[0]["fc1.weight"], states[1]["fc1.weight"]])
    )


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("precision", ["f32", "f16"])
def test_a_run_that_is_resumed_ends_with_the_same_bits(precision: str, ranks: int, tmp_path: Path) -> None:
    """Draws, the loss scale and the averages continue. The steps after the saved one are run twice."""
    step = ls.train_step(
        classifier(),
        ls.loss.softmax_cross_entropy("y", "label"),
        ls.optim.AdamW(0.05),
        precision=precision,
        accumulate=3,
        seed=5,
        average=ls.average.stochastic(start=2),
        clip=ls.clip.global_norm(0.1),
    )
    path = tmp_path / "c.safetensors"

    def body(world: ls.Communicator) -> list[dict[str, bytes]]:
        one, other = (ls.compile(step, world=world, threads=1) for _ in range(2))
        one.set(learning_rate=ls.schedule.cosine(0.05, 7))
        other.set(learning_rate=ls.schedule.cosine(0.05, 7))
        mine = slice(world.rank * 12 // world.size, (world.rank + 1) * 12 // world.size)

        def run(exe: ls.Executable, begin: int, end: int) -> None:
            for i in range(begin, end):
                x = X[mine] * np.float32(np.inf if i == 1 and precision == "f16" else np.cos(i))
                exe(x=x, label=LABELS[mine])

        run(one, 0, 3)
        one.save(path)
        run(one, 3, 7)
        run(other, 0, 1)
        other.load(path)
        assert other.step == 3
        run(other, 3, 7)
        assert other.step == one.step == 7
        assert other.settings == one.settings
        return [{name: exe.state[name].tobytes() for name in exe.state} for exe in (one, other)]

    results = run_in_threads(ranks, body)
    assert len(results) == ranks
    for result in results:
        assert not isinstance(result, Exception), result
        one, other = result
        assert one == other
        assert "random/step" in one and "w1/average" in one and ("loss_scale/scale" in one) == (precision == "f16")
