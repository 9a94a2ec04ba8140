"""Mixed precision: what it loses is what PyTorch's autocast loses, n ranks compute what one does, and f16 skips what overflows."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import lockstep as ls
from precision_cases import CASES, STEPS, PrecisionCase
from ranks import run_in_threads

EXPECTED = json.loads(Path(__file__).with_name("pytorch_precision.json").read_text())
runs = pytest.mark.parametrize(
    ("case", "precision"),
    [(case, precision) for case in CASES for precision in case.precisions],
    ids=lambda value: getattr(value, "name", value),
)

MLP = """
graph @mlp(%x: f32[12,8] split(0), state %w: f32[8,16], state %b: f32[16], state %v: f32[16,4]) -> (logits: f32[12,4] split(0)) {
  %z = matmul %x, %w : f32[12,16]
  %c = broadcast %b {dims=[1], shape=[12,16]} : f32[12,16]
  %s = add %z, %c : f32[12,16]
  %h = tanh %s : f32[12,16]
  %y = matmul %h, %v : f32[12,4]
  return %y
}
"""


def step_of(case: PrecisionCase, precision: str) -> ls.Graph:
    return ls.train_step(
        ls.load_onnx(case.model, dims={"batch": case.batch}),
        loss=ls.loss.softmax_cross_entropy("logits", "label"),
        optimizer=ls.optim.SGD(case.learning_rate, momentum=0.9),
        precision=precision,
    )


def losses(case: PrecisionCase, precision: str, steps: int = STEPS) -> list[float]:
    exe = ls.compile(step_of(case, precision), threads=1)
    samples, labels = case.data()
    result = []
    for i in range(steps):
        rows = slice(i * case.batch, (i + 1) * case.batch)
        result.append(float(exe(**{case.input: samples[rows]}, label=labels[rows].reshape(-1))["loss"]))
    return result


@runs
def test_what_is_lost_is_what_autocast_loses(case: PrecisionCase, precision: str) -> None:
    of_torch, f32 = np.array(EXPECTED[case.name][precision]), np.array(EXPECTED[case.name]["f32"])
    found = np.array(losses(case, precision))
    assert len(found) == len(f32) == STEPS
    assert np.mean(f32[-10:]) < 0.9 * f32[0], "a run that learns nothing shows nothing"
    # The curves drift apart by chance: twice what PyTorch's differ by, over parts of the run.
    error, allowed = np.abs(found - f32), np.abs(of_torch - f32)
    for part in np.array_split(np.arange(STEPS), 4):
        assert error[part].mean() < 2 * allowed[part].mean() + 1e-3, (error[part].mean(), allowed[part].mean())


def mlp_step(precision: str, **options: Any) -> ls.Graph:
    loss, optimizer = ls.loss.softmax_cross_entropy("logits", "label"), ls.optim.Adam(0.01)
    return ls.train_step(ls.parse(MLP), loss=loss, optimizer=optimizer, precision=precision, **options)


def compiled(
    precision: str, world: ls.Communicator | None = None, clip: ls.clip.Clip | None = None, isa: str = ""
) -> ls.Executable:
    exe = ls.compile(mlp_step(precision, clip=clip), world=world, threads=1, isa=isa)
    random = np.random.default_rng(3)
    for name, shape in (("w", (8, 16)), ("b", (16,)), ("v", (16, 4))):
        exe.state[name] = random.standard_normal(shape, np.float32) / 4
    return exe


def train_mlp(world: ls.Communicator, precision: str, steps: int = 8, huge_at: int = -1) -> tuple[list[float], dict]:
    """The losses and the states at the end; at step `huge_at` the first sample, which rank 0 has, is huge."""
    exe = compiled(precision, world)
    random = np.random.default_rng(4)
    found = []
    for i in range(steps):
        x, y = random.standard_normal((12, 8), np.float32), random.integers(0, 4, 12)
        if i == huge_at:
            x[0] = 1e6
        rows = slice(world.rank * 12 // world.size, (world.rank + 1) * 12 // world.size)
        found.append(float(exe(x=x[rows], label=y[rows])["loss"]))
    return found, {name: exe.state[name].copy() for name in exe.state}


def on(n: int, precision: str, **options: int) -> list[tuple[list[float], dict]]:
    results = run_in_threads(n, lambda world: (world.size, *train_mlp(world, precision, **options)))
    failures = [result for result in results if isinstance(result, Exception)]
    assert not failures, failures
    assert [size for size, _, _ in results] == [n] * n
    return [(found, states) for _, found, states in results]


@pytest.mark.parametrize("precision", ["f32", "bf16", "f16"])
@pytest.mark.parametrize("n", [2, 3])
def test_n_ranks_compute_what_one_does(precision: str, n: int) -> None:
    [(expected, of_one)] = on(1, precision)
    ranks = on(n, precision)
    # Products see the same rounded operands; what ranks add, they add in f32.
    for found, states in ranks:
        np.testing.assert_allclose(found, expected, rtol=1e-5)
        for name, value in of_one.items():
            assert states[name].tobytes() == ranks[0][1][name].tobytes(), f"{name} differs between ranks"
            np.testing.assert_allclose(states[name], value, rtol=1e-3, atol=2e-3 if "adam" not in name else 1e-4)


def test_f32_is_what_a_step_without_a_precision_is() -> None:
    options = {"loss": ls.loss.softmax_cross_entropy("logits", "label"), "optimizer": ls.optim.Adam(0.01)}
    assert str(ls.train_step(ls.parse(MLP), **options, precision="f32")) == str(ls.train_step(ls.parse(MLP), **options))


def test_weights_and_what_the_optimizer_keeps_are_f32() -> None:
    [(_, states)] = on(1, "bf16", steps=1)
    assert {value.dtype for value in states.values()} == {np.dtype(np.float32), np.dtype(np.int64)}


@pytest.mark.parametrize("n", [1, 2, 3])
def test_a_step_that_overflows_changes_the_factor_alone_on_all_ranks(n: int) -> None:
    for _, before in on(n, "f16", steps=3)[:1]:
        for _, after in on(n, "f16", steps=4, huge_at=3):
            assert before["loss_scale/scale"] == 65536 and after["loss_scale/scale"] == 32768
            assert before["loss_scale/good_steps"] == 3 and after["loss_scale/good_steps"] == 0
            for name in before.keys() - {"loss_scale/scale", "loss_scale/good_steps"}:
                assert before[name].tobytes() == after[name].tobytes(), name
    # And the steps after it go on.
    for found, states in on(n, "f16", steps=6, huge_at=3):
        assert states["loss_scale/good_steps"] == 2 and states["optimizer/step"] == 5
        assert np.isfinite(found[4:]).all()


def test_the_factor_grows_after_an_interval_of_good_steps() -> None:
    exe = compiled("f16")
    exe.set(**{"loss_scale/interval": 2, "loss_scale/growth": 4})
    x, y = np.ones((12, 8), np.float32), np.zeros(12, np.int64)
    found = []
    for _ in range(4):
        exe(x=x, label=y)
        found.append(float(exe.state["loss_scale/scale"]))
    assert found == [65536, 4 * 65536, 4 * 65536, 16 * 65536]


def test_clipping_sees_gradients_that_are_not_scaled() -> None:
    x, y = np.ones((12, 8), np.float32), np.zeros(12, np.int64)
    norms = [float(compiled(p, clip=ls.clip.global_norm(1.0))(x=x, label=y)["gradient_norm"]) for p in ("f32", "f16")]
    assert norms[1] == pytest.approx(norms[0], rel=1e-2)


def test_the_factor_is_saved_and_loaded(tmp_path: Path) -> None:
    exe = compiled("f16")
    x = np.full((12, 8), 1e6, np.float32)
    exe(x=x, label=np.zeros(12, np.int64))
    assert exe.state["loss_scale/scale"] == 32768
    exe.save(tmp_path / "step.safetensors")
    other = compiled("f16")
    other.load(tmp_path / "step.safetensors")
    assert other.state["loss_scale/scale"] == 32768


def test_a_precision_that_there_is_not_is_an_error() -> None:
    with pytest.raises(ls.Error, match="precision is 'fp8', expected"):
        mlp_step("fp8")


SLOW = """
import logging, sys
import numpy as np
sys.path.insert(0, {folder!r})
logging.basicConfig(level=logging.WARNING, stream=sys.stdout)
import lockstep as ls
from test_precision import compiled
for _ in range(2):
    exe = compiled("bf16", isa={isa!r})
print(float(exe(x=np.ones((12, 8), np.float32), label=np.zeros(12, np.int64))["loss"]))
"""


def test_a_processor_without_bf16_computes_the_same_and_says_so_once() -> None:
    def run(isa: str) -> list[str]:
        code = SLOW.format(folder=str(Path(__file__).parent), isa=isa)
        return subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=300
        ).stdout.splitlines()

    slow, quick = run("avx2"), run("")
    warnings = [line for line in slow if "bf16: products are computed in f32" in line]
    assert len(warnings) == 1, slow
    assert float(slow[-1]) == pytest.approx(float(quick[-1]), rel=1e-3)
