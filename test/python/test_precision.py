"""Mixed precision loses what PyTorch's autocast loses, n ranks compute what one does, and f16 skips steps that
overflow.
"""

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
    assert np.mean(f32[-10:]) < 0.9 * f32[0], "the run must learn something"
    # The curves drift apart by chance: allows twice the difference of PyTorch's curves, averaged over parts of the run.
    error, allowed = np.abs(found - f32), np.abs(of_torch - f32)
    for part in np.array_split(np.arange(STEPS), 4):
        assert error[part].mean() < 2 * allowed[part].mean() + 1e-3, (error[part].mean(), allowed[part].mean())


def mlp_step(precision: str, **options: Any) -> ls.Graph:
    loss, optimizer = ls.loss.softmax_cross_entropy("logits", "label"), ls.optim.Adam(0.01)
    return ls.train_step(ls.parse(MLP), loss=loss, optimizer=optimizer, precision=precision, **options)


def compiled(precision: str, world: ls.Communicator | None = None, isa: str = "", **options: Any) -> ls.Executable:
    exe = ls.compile(mlp_step(precision, **options), world=world, threads=1, isa=isa)
    random = np.random.default_rng(3)
    for name, shape in (("w", (8, 16)), ("b", (16,)), ("v", (16, 4))):
        exe.state[name] = random.standard_normal(shape, np.float32) / 4
    return exe


def train_mlp(world: ls.Communicator, precision: str, steps: int = 8, huge_at: int = -1) -> tuple[list[float], dict]:
    """The losses and the final states. At step `huge_at` the first sample, which is rank 0's, is huge."""
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
    # Products see the same rounded operands; sums over ranks are in f32.
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
    # The steps after it continue.
    for found, states in on(n, "f16", steps=6, huge_at=3):
        assert states["loss_scale/good_steps"] == 2 and states["optimizer/step"] == 5
        assert np.isfinite(found[4:]).all()


TWO = """
graph @two(%x: f32[4,3] split(0), state %w1: f32[3,4], state %c1: f32[4,4], state %w2: f32[3,4], state %c2: f32[4,4], state %seen: i64[]) -> (logits: f32[4,4] split(0), %seen: i64[]) {
  %a = matmul %x, %w1 : f32[4,4]
  %b = matmul %a, %c1 : f32[4,4]
  %c = matmul %x, %w2 : f32[4,4]
  %d = matmul %c, %c2 : f32[4,4]
  %z = add %b, %d : f32[4,4]
  %one = constant {value=dense<i64[]: 1>} : i64[]
  %seen.next = add %seen, %one : i64[]
  return %z, %seen.next
}
"""


@pytest.mark.parametrize("bad", ["c1", "c2"])
def test_one_gradient_that_is_not_finite_is_enough(bad: str) -> None:
    """Only the gradient of %w1 or %w2 is not finite. States that the model itself updates, such as running statistics,
    still change.
    """
    step = ls.train_step(
        ls.parse(TWO),
        ls.loss.softmax_cross_entropy("logits", "label"),
        ls.optim.SGD(0.1, momentum=0.9),
        precision="f16",
    )
    exe = ls.compile(step, threads=1)
    exe.state["c1"] = exe.state["c2"] = np.eye(4, dtype=np.float32)
    exe.state[bad] = np.full((4, 4), 1e4, np.float32) * np.eye(4, dtype=np.float32)
    before = {name: exe.state[name].copy() for name in exe.state}
    exe(x=np.ones((4, 3), np.float32), label=np.zeros(4, np.int64))
    changed = {name for name in exe.state if exe.state[name].tobytes() != before[name].tobytes()}
    assert changed == {"loss_scale/scale", "seen"}
    assert exe.state["loss_scale/scale"] == 32768 and exe.state["seen"] == 1


def test_the_factor_grows_after_an_interval_of_good_steps() -> None:
    exe = compiled("f16")
    exe.set(**{"loss_scale/interval": 2, "loss_scale/growth": 4})
    x, y = np.ones((12, 8), np.float32), np.zeros(12, np.int64)
    found = []
    for _ in range(4):
        exe(x=x, label=y)
        found.append(float(exe.state["loss_scale/scale"]))
    assert found == [65536, 4 * 65536, 4 * 65536, 16 * 65536]


def test_the_factor_is_that_of_pytorch_unless_something_is_set() -> None:
    defaults = {"loss_scale/growth": 2.0, "loss_scale/backoff": 0.5, "loss_scale/interval": 2000.0}
    settings = mlp_step("f16").settings
    assert {name: settings[name] for name in defaults} == defaults
    assert not [name for precision in ("f32", "bf16") for name in mlp_step(precision).settings if "scale" in name]
    assert mlp_step("f16").initial_value("loss_scale/scale") == 65536


def test_a_checkpoint_of_another_precision_is_refused_where_there_is_no_factor(tmp_path: Path) -> None:
    for precision in ("f32", "f16"):
        compiled(precision).save(tmp_path / precision)
    with pytest.raises(ls.Error, match="there is no state loss_scale/scale, which the program @mlp"):
        compiled("f16").load(tmp_path / "f32")
    with pytest.raises(ls.Error, match="there is a state loss_scale/good_steps, which the program @mlp"):
        compiled("f32").load(tmp_path / "f16")
    compiled("bf16").load(tmp_path / "f32")


DROPPED = """%p = constant {value=dense<f32[]: 0.5>} : f32[]
  %d, %m = dropout %h, %p : f32[12,16], bool[12,16]
  %y = matmul %d,"""


def test_a_step_that_is_skipped_has_drawn() -> None:
    """So the next step draws other numbers."""
    text = MLP.replace("%y = matmul %h,", DROPPED)
    loss = ls.loss.softmax_cross_entropy("logits", "label")
    exe = ls.compile(ls.train_step(ls.parse(text), loss, ls.optim.SGD(0.1), precision="f16"), threads=1)
    exe(x=np.full((12, 8), np.inf, np.float32), label=np.arange(12) % 4)
    assert exe.state["loss_scale/scale"] == 32768 and exe.state["random/step"] == 1


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


def test_a_factor_that_nobody_gave_is_the_first_and_none_is_too_small() -> None:
    """The text of a step has no values: the scale is 0, which stands for 65536. A scale below 2^-126 has no reciprocal."""
    x = np.random.Generator(np.random.PCG64(8)).standard_normal((12, 8)).astype(np.float32)
    label = np.arange(12) % 4
    for scale in (None, 0.0, 1e-40, 1e-45, float("nan"), float("inf"), -1.0):
        step = mlp_step("f16")
        exe = ls.compile(ls.parse(str(step)) if scale is None else step, threads=1)
        for name in ("w", "v"):
            shape = exe.state[name].shape
            exe.state[name] = np.random.Generator(np.random.PCG64(9)).standard_normal(shape).astype(np.float32)
        before = exe.state["w"].copy()
        if scale is not None:
            exe.state["loss_scale/scale"] = np.float32(scale)
        exe(x=x, label=label)
        after = exe.state["w"]
        assert np.isfinite(after).all(), scale
        is_tiny = scale is not None and 0 < scale < 1  # with it all gradients in f16 are 0
        assert (after != before).any() != is_tiny, scale
        assert exe.state["loss_scale/scale"] == (2.0**-126 if is_tiny else 65536), scale


def test_a_factor_falls_to_the_least_and_no_further() -> None:
    exe = ls.compile(mlp_step("f16"), threads=1)
    exe.set(**{"loss_scale/backoff": 1e-30})
    bad = np.full((12, 8), np.inf, np.float32)
    factors = []
    for _ in range(4):
        exe(x=bad, label=np.arange(12) % 4)
        factors.append(float(exe.state["loss_scale/scale"]))
    assert factors[1:] == [2.0**-126] * 3
    exe(x=np.ones((12, 8), np.float32), label=np.arange(12) % 4)
    assert all(np.isfinite(exe.state[name]).all() for name in exe.state)


def test_an_average_begins_with_the_first_call_whether_it_is_skipped_or_not() -> None:
    exe = ls.compile(mlp_step("f16", average=ls.average.exponential(0.9)), threads=1)
    rng = np.random.Generator(np.random.PCG64(8))
    for name in ("w", "v"):
        exe.state[name] = rng.standard_normal(exe.state[name].shape).astype(np.float32)
    weights = exe.state["w"].copy()
    exe(x=np.full((12, 8), np.inf, np.float32), label=np.arange(12) % 4)
    assert exe.state["w"].tobytes() == weights.tobytes() == exe.state["w/average"].tobytes()
    for _ in range(3):
        exe(x=rng.standard_normal((12, 8)).astype(np.float32), label=np.arange(12) % 4)
    assert (exe.state["w/average"] != weights).any()
    np.testing.assert_allclose(exe.state["w/average"], exe.state["w"], atol=0.1)


@pytest.mark.parametrize("precision", ["bf16", "f16"])
def test_a_mask_of_the_least_number_masks_and_makes_no_nan(precision: str) -> None:
    """Exporters mask attention with the least number of f32. One sample is masked entirely and has weight 0."""
    text = """
graph @masked(%x: f32[4,5,8] split(0), %hidden: bool[4,5,5] split(0), state %w: f32[8,8], state %v: f32[40,3]) -> (logits: f32[4,3] split(0)) {
  %k = matmul %x, %w : f32[4,5,8]
  %s = matmul %x, %k {transpose_b=true} : f32[4,5,5]
  %least = constant {value=dense<f32[]: -3.4028235e+38>} : f32[]
  %leasts = broadcast %least {dims=[], shape=[4,5,5]} : f32[4,5,5]
  %m = select %hidden, %leasts, %s : f32[4,5,5]
  %p = softmax %m {dim=2} : f32[4,5,5]
  %y = matmul %p, %x : f32[4,5,8]
  %f = reshape %y {shape=[4,40]} : f32[4,40]
  %z = matmul %f, %v : f32[4,3]
  return %z
}
"""
    rng = np.random.Generator(np.random.PCG64(3))
    hidden = np.broadcast_to(np.triu(np.ones((5, 5), bool), 1), (4, 5, 5)).copy()
    hidden[3] = True
    feeds = {
        "x": rng.standard_normal((4, 5, 8)).astype(np.float32),
        "hidden": hidden,
        "label": np.arange(4) % 3,
        "weight": np.array([1, 1, 1, 0], np.float32),
    }
    values = {"w": rng.standard_normal((8, 8)).astype(np.float32), "v": rng.standard_normal((40, 3)).astype(np.float32)}
    curves = []
    for of in ("f32", precision):
        loss = ls.loss.softmax_cross_entropy("logits", "label", sample_weight="weight")
        exe = ls.compile(ls.train_step(ls.parse(text), loss, ls.optim.SGD(0.05), precision=of), threads=1)
        for name, value in values.items():
            exe.state[name] = value
        if of == "f16":
            exe.state["loss_scale/scale"] = np.float32(256)  # with it no step is skipped
        curves.append([float(exe(**feeds)["loss"]) for _ in range(8)])
        assert all(np.isfinite(exe.state[name]).all() for name in exe.state)
    np.testing.assert_allclose(curves[1], curves[0], rtol=0.05)
    assert curves[1][-1] < curves[1][0]


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
    exe = compiled("bf16", isa={isa!r}, accumulate={accumulate})
print(sum("= matmul" in line and "bf16" in line for line in str(exe.graph).splitlines()))
print(float(exe(x=np.ones((12, 8), np.float32), label=np.zeros(12, np.int64))["loss"]))
"""


@pytest.mark.parametrize("accumulate", [1, 2])
def test_a_processor_without_bf16_computes_the_same_and_says_so_once(accumulate: int) -> None:
    def run(isa: str) -> list[str]:
        code = SLOW.format(folder=str(Path(__file__).parent), isa=isa, accumulate=accumulate)
        return subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=300
        ).stdout.splitlines()

    slow, quick = run("avx2"), run("")
    warnings = [line for line in slow if "bf16: products are computed in f32" in line]
    assert len(warnings) == 1, slow
    assert slow[-2] == "0", "no products are in bf16, not even in the loop over micro-batches"
    assert float(slow[-1]) == pytest.approx(float(quick[-1]), rel=1e-3)
