"""Steps of all kinds in four stages: a table used by both the first and the last stage, stages without states, fewer
micro-batches than stages and numbers that are no multiple of it, precisions, frozen states, groups, averages, results.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import lockstep as ls
from ranks import run_in_threads

BATCH, LENGTH, WORDS, WIDTH, STEPS = 24, 3, 7, 6, 3
ROWS = BATCH * LENGTH
FOUR = {"stage": 4}
LOSS = ls.loss.softmax_cross_entropy("logits", "label", ignore_index=-100)


def model(sines: int = 0) -> ls.Graph:
    """A language model with the same table for input and output, and `sines` nodes without states in its middle."""
    lines, inner = [], "b"
    for i in range(sines):
        lines.append(f"  %s{i} = sin %{inner} : f32[{ROWS},{WIDTH}]")
        inner = f"s{i}"
    middle = "\n".join(lines)
    return ls.parse(f"""graph @tied(%x: i64[{BATCH},{LENGTH}] split(0), state %table: f32[{WORDS},{WIDTH}], state %w: f32[{WIDTH},{WIDTH}], state %u: f32[{WIDTH},{WIDTH}]) -> (logits: f32[{BATCH},{WORDS},{LENGTH}] split(0)) {{
  %p = constant {{value=dense<f32[]: 0.2>}} : f32[]
  %e = gather %table, %x {{dim=0}} : f32[{BATCH},{LENGTH},{WIDTH}]
  %f = reshape %e {{shape=[{ROWS},{WIDTH}]}} : f32[{ROWS},{WIDTH}]
  %h = matmul %f, %w : f32[{ROWS},{WIDTH}]
  %a, %am = dropout %h, %p : f32[{ROWS},{WIDTH}], bool[{ROWS},{WIDTH}]
  %b = tanh %a : f32[{ROWS},{WIDTH}]
{middle}
  %g = matmul %{inner}, %u : f32[{ROWS},{WIDTH}]
  %c, %cm = dropout %g, %p : f32[{ROWS},{WIDTH}], bool[{ROWS},{WIDTH}]
  %d = add %c, %f : f32[{ROWS},{WIDTH}]
  %y = matmul %d, %table {{transpose_b=true}} : f32[{ROWS},{WORDS}]
  %z = reshape %y {{shape=[{BATCH},{LENGTH},{WORDS}]}} : f32[{BATCH},{LENGTH},{WORDS}]
  %t = transpose %z {{permutation=[0,2,1]}} : f32[{BATCH},{WORDS},{LENGTH}]
  return %t
}}""")


def values(seed: int, *shape: int) -> np.ndarray:
    return np.random.Generator(np.random.PCG64(seed)).standard_normal(shape).astype(np.float32) / 2


def batch(step: int) -> dict[str, np.ndarray]:
    """Some labels do not count, and their number differs between micro-batches."""
    random = np.random.Generator(np.random.PCG64(100 + step))
    label = random.integers(WORDS, size=(BATCH, LENGTH))
    label[random.random(label.shape) < 0.3] = -100
    return {"x": random.integers(WORDS, size=(BATCH, LENGTH)), "label": label}


def learn(
    world: ls.Communicator,
    step: ls.Graph,
    mesh: dict[str, int] | None,
    steps: range = range(STEPS),
    path: Path | None = None,
) -> tuple[list[dict[str, np.ndarray]], ls.Executable]:
    """The results of each step, starting from a checkpoint if there is one."""
    exe = ls.compile(step, world=world, mesh=mesh, threads=1)
    if path is not None:
        exe.load(path)
    for seed, name in enumerate(("table", "w", "u") if path is None else ()):
        if name in exe.state:
            exe.state[name] = values(seed, *exe.state[name].shape)
    return [{name: np.array(value) for name, value in exe(**batch(i)).items()} for i in steps], exe


def train_step(graph: ls.Graph, optimizer: ls.optim.Optimizer | None = None, **options: Any) -> ls.Graph:
    return ls.train_step(graph, LOSS, optimizer or ls.optim.AdamW(0.02), **options)


SGD = ls.optim.SGD(0.5, momentum=0.9)
# Steps, and the tolerance of their results relative to one rank's.
CASES: dict[str, tuple[ls.Graph, float]] = {
    "clipped": (train_step(model(), clip=ls.clip.global_norm(0.2), accumulate=3), 1e-5),
    "one-micro-batch": (train_step(model(), clip=ls.clip.value(0.02), keep_results=True), 1e-5),
    "results": (train_step(model(), average=ls.average.exponential(0.9), keep_results=True, accumulate=6), 1e-5),
    "groups": (train_step(model(), groups={"table": SGD}, frozen=["w"], accumulate=2), 1e-5),
    "no-states": (train_step(model(sines=8), ls.optim.LAMB(0.01), accumulate=3), 1e-5),
    "bf16": (train_step(model(), SGD, precision="bf16", accumulate=3), 1e-2),
    "f16": (train_step(model(), SGD, precision="f16", clip=ls.clip.global_norm(2.0), accumulate=3), 2e-3),
}


@pytest.mark.parametrize("case", CASES)
def test_four_stages_learn_what_one_rank_does(case: str, tmp_path: Path) -> None:
    step, tolerance = CASES[case]
    expected, whole = learn(ls.Communicator.single(), step, None)
    assert np.abs(whole.state["u"] - values(2, WIDTH, WIDTH)).max() > 5 * tolerance
    saved = tmp_path / "four.safetensors"

    def body(world: ls.Communicator) -> tuple[list[dict[str, np.ndarray]], ls.Executable]:
        found, exe = learn(world, step, FOUR)
        exe.save(saved)
        return found, exe

    ranks = run_in_threads(4, body)
    assert not [rank for rank in ranks if isinstance(rank, Exception)], ranks
    for results, exe in ranks:
        for found, wanted in zip(results, expected, strict=True):
            assert found.keys() == wanted.keys()
            for name, value in wanted.items():
                np.testing.assert_allclose(found[name], value, rtol=tolerance, atol=tolerance, err_msg=name)
        for name, value in exe.state.items():
            np.testing.assert_allclose(value, whole.state[name], rtol=tolerance, atol=tolerance, err_msg=name)
    names = [list(exe.state) for _, exe in ranks]
    assert sorted(name for each in names for name in each) == sorted(whole.state)
    assert any(not each for each in names) or case != "no-states"
    if case != "f16":
        return
    # The loss scale is among the states: one rank and two stages continue from the file of four stages.
    more = range(STEPS, STEPS + 1)
    wanted, _ = learn(ls.Communicator.single(), step, None, more, saved)
    for losses, _ in run_in_threads(2, lambda world: learn(world, step, {"stage": 2}, more, saved)):
        np.testing.assert_allclose(losses[0]["loss"], wanted[0]["loss"], rtol=tolerance)
