"""compile(factors=…): ranks gather the factors of a gradient if they are smaller than the gradient."""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import lockstep as ls
from cases import CASES, HAS_AVX512, Case
from ranks import run_in_threads
from test_errors import raises

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent / "hosts"))

import hosts

BATCH, STEPS = 24, 4
LENET = CASES[0]

# Layers that are wider than the number of rows of a batch.
WIDE = """
graph @wide(%x: f32[24,64] split(0), state %w: f32[64,96], state %b: f32[96], state %v: f32[96,3]) -> (logits: f32[24,3] split(0)) {
  %h = matmul %x, %w : f32[24,96]
  %bb = broadcast %b {dims=[1], shape=[24,96]} : f32[24,96]
  %hb = add %h, %bb : f32[24,96]
  %a = tanh %hb : f32[24,96]
  %z = matmul %a, %v : f32[24,3]
  return %z
}
"""

# A vocabulary larger than the number of looked-up tokens of a batch; some tokens occur more than once.
TOKENS = """
graph @tokens(%x: i64[24,4] split(0), state %table: f32[300,6], state %w: f32[24,3]) -> (logits: f32[24,3] split(0)) {
  %e = gather %table, %x {dim=0} : f32[24,4,6]
  %f = reshape %e {shape=[24,24]} : f32[24,24]
  %z = matmul %f, %w : f32[24,3]
  return %z
}
"""


def step_of(case: Case, optimizer: Any = None, **options: Any) -> ls.Graph:
    model = ls.load_onnx(case.model, dims={"batch": BATCH})
    return ls.train_step(
        model,
        ls.loss.softmax_cross_entropy("logits", "label"),
        optimizer or ls.optim.SGD(0.05, momentum=0.9),
        **options,
    )


def batches_of(case: Case) -> list[dict[str, np.ndarray]]:
    samples, labels = case.data()
    return [
        {case.input: samples[begin : begin + BATCH], "label": labels[begin : begin + BATCH]}
        for begin in range(0, STEPS * BATCH, BATCH)
    ]


def wide_step(**options: Any) -> ls.Graph:
    return ls.train_step(
        ls.parse(WIDE), ls.loss.softmax_cross_entropy("logits", "label"), ls.optim.SGD(0.05, momentum=0.9), **options
    )


def wide_batches() -> list[dict[str, np.ndarray]]:
    random = np.random.default_rng(2)
    return [
        {"x": random.standard_normal((BATCH, 64), dtype=np.float32), "label": random.integers(0, 3, BATCH)}
        for _ in range(STEPS)
    ]


def train(step: ls.Graph, batches: list[dict[str, np.ndarray]], world: ls.Communicator, **options: Any) -> Any:
    """Losses, weights and the collectives of a step. States without values in `step` start with small random numbers."""
    exe = ls.compile(step, world=world, threads=1, **options)
    random = np.random.default_rng(3)
    for name in ("table", "w", "b", "v"):
        if name in exe.state:
            exe.state[name] = 0.1 * random.standard_normal(exe.state[name].shape, dtype=np.float32)
    share = BATCH // world.size
    own = slice(world.rank * share, (world.rank + 1) * share)
    losses = [float(exe(**{name: value[own] for name, value in batch.items()})["loss"]) for batch in batches]
    exe.check_replicas()
    return losses, {name: exe.state[name] for name in exe.state if "/" not in name}, list(exe.collectives)


def on_ranks(step: ls.Graph, batches: list[dict[str, np.ndarray]], n: int, **options: Any) -> list[Any]:
    ranks = run_in_threads(n, lambda world: train(step, batches, world, **options))
    for rank in ranks:
        assert not isinstance(rank, Exception), rank
    assert len(ranks) == n
    return ranks


def expect_as_on_one(
    step: ls.Graph, batches: list[dict[str, np.ndarray]], n: int, tolerance: float = 2e-5, **options: Any
) -> list[str]:
    """Expects that n ranks learn what one rank learns, with equal bits on all. Returns their collectives."""
    one = train(step, batches, ls.Communicator.single())
    ranks = on_ranks(step, batches, n, **options)
    for losses, weights, _ in ranks:
        np.testing.assert_allclose(losses, one[0], rtol=tolerance)
        for name, value in weights.items():
            np.testing.assert_allclose(value, one[1][name], rtol=0, atol=tolerance, err_msg=name)
            assert np.array_equal(value, ranks[0][1][name]), name
    return ranks[0][2]


def count(collectives: list[str], op: str) -> int:
    return sum(op in line for line in collectives)


@pytest.mark.parametrize("n", [2, 3, 4])
def test_ranks_train_lenet_as_one_does(n: int) -> None:
    collectives = expect_as_on_one(step_of(LENET), batches_of(LENET), n, factors=True)
    assert count(collectives, "all_gather") > 0


# The last layer has one column per class, so its gradient is smaller than its factors. The gradient of the bias adds no
# collective.
@pytest.mark.parametrize("n", [2, 3, 4])
def test_ranks_train_wide_layers_as_one_does(n: int) -> None:
    collectives = expect_as_on_one(wide_step(), wide_batches(), n, factors=True)
    assert count(collectives, "all_gather") > 0
    reduced = [line for line in collectives if "all_reduce" in line]
    assert len(reduced) == 1 and "grad/v" in reduced[0] and "grad/w" not in reduced[0] and "grad/b" not in reduced[0]


@pytest.mark.parametrize("n", [2, 3, 4])
def test_rows_of_an_embedding(n: int) -> None:
    random = np.random.default_rng(1)
    batches = [
        {"x": random.integers(0, 300, (BATCH, 4)) % [300, 300, 3, 3], "label": random.integers(0, 3, BATCH)}
        for _ in range(STEPS)
    ]
    assert all(len(np.unique(batch["x"])) < batch["x"].size / 1.5 for batch in batches)
    step = ls.train_step(ls.parse(TOKENS), ls.loss.softmax_cross_entropy("logits", "label"), ls.optim.SGD(0.5))
    collectives = expect_as_on_one(step, batches, n, factors=True)
    gathered = [line for line in collectives if "all_gather" in line]
    assert any("i64" in line for line in gathered), collectives
    assert not any("all_reduce" in line and "table" in line for line in collectives), collectives


@pytest.mark.parametrize(
    "options",
    [{"clip": ls.clip.global_norm(0.1)}, {"clip": ls.clip.norm(0.1)}, {"uneven": True}],
    ids=["global_norm", "norm", "uneven"],
)
def test_with_what_is_done_to_gradients(options: dict[str, Any]) -> None:
    collectives = expect_as_on_one(wide_step(**options), wide_batches(), 2, factors=True)
    assert count(collectives, "all_gather") > 0


@pytest.mark.parametrize("options", [{"wire": "bf16"}, {"shard_optimizer": True}, {"bucket_bytes": 1000}])
def test_with_other_options(options: dict[str, Any]) -> None:
    step = step_of(LENET)
    expect_as_on_one(step, batches_of(LENET), 2, tolerance=2e-2 if "wire" in options else 2e-5, factors=True, **options)


def test_factors_of_16_bits_travel_as_such() -> None:
    step = step_of(LENET, precision="bf16")
    plain, gathered = (on_ranks(step, batches_of(LENET), 2, factors=factors) for factors in (False, True))
    np.testing.assert_allclose(gathered[0][0], plain[0][0], rtol=1e-2)
    # On processors without 16-bit products they are computed in f32, and the factors are f32.
    dtypes = ("bf16",) if HAS_AVX512 else ("bf16", "f32")
    found = [line for line in gathered[0][2] if "all_gather" in line]
    assert any(dtype in line for line in found for dtype in dtypes), gathered[0][2]


def test_micro_batches_are_reduced() -> None:
    step, batches = wide_step(accumulate=2), wide_batches()
    plain, gathered = (on_ranks(step, batches, 2, factors=factors)[0] for factors in (False, True))
    assert gathered[2] == plain[2]
    assert gathered[0] == plain[0]


def test_on_one_host_all_gradients_are_reduced() -> None:
    step, batches = step_of(LENET), batches_of(LENET)
    default, reduced, gathered = (on_ranks(step, batches, 2, factors=factors)[0] for factors in (None, False, True))
    assert default[2] == reduced[2] != gathered[2]


def test_what_is_computed_has_a_price() -> None:
    step, batches = step_of(LENET), batches_of(LENET)
    cheap, dear = (on_ranks(step, batches, 2, factors=factors)[0][2] for factors in (1e9, 1e-3))
    assert count(cheap, "all_gather") > 0
    assert count(dear, "all_gather") == 0


def test_ranks_that_differ_are_told() -> None:
    step = step_of(LENET)
    results = run_in_threads(2, lambda world: ls.compile(step, world=world, threads=1, factors=world.rank == 1))
    for result in results:
        assert isinstance(result, ls.Error)
        assert "mesh={data=2},factors=false\n  on rank 1: mesh={data=2},factors=true\n" in str(result), result


@pytest.mark.parametrize("factors", [0, -1.0, math.nan, "auto", [1]])
def test_what_is_no_price(factors: Any) -> None:
    with raises(f"compile: factors is {factors!r}, expected True, False, or operations per byte, more than 0"):
        ls.compile(wide_step(), factors=factors)


def test_rank_order_is_only_a_default() -> None:
    """A communicator with order="rank" sends no factors, unless they are asked for."""
    with_defaults, world = ls._compile.options.with_defaults_of, SimpleNamespace(_in_rank_order=True)
    assert with_defaults(world, {"threads": 1})["factors"] is False
    assert with_defaults(world, {"threads": 1, "factors": 0.5})["factors"] == 0.5


@pytest.mark.parametrize("factors", [True, 100.0])
def test_a_program_that_is_not_optimized_has_none(factors: Any) -> None:
    with raises("compile: optimize=False does not go with factors:"):
        ls.compile(wide_step(), factors=factors, optimize=False)
    ls.compile(wide_step(), factors=False, optimize=False)


@pytest.mark.skipif(bool(hosts.why_not()), reason=f"no hosts on this machine: {hosts.why_not()}")
def test_fewer_bytes_are_on_the_wire_between_hosts(tmp_path: Path) -> None:
    sent, losses = {}, {}
    for how in ("factors", "f32", "rank"):
        with hosts.Hosts(2, "1gbit") as two:
            command = (sys.executable, HERE / "mpi_training.py", tmp_path, *([] if how == "factors" else [how]))
            done = two.mpirun([1, 1], *command, timeout=120, capture_output=True)
            assert done.returncode == 0, done.stderr
            sent[how] = two.sent_bytes(0)
        ranks = [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(2)]
        assert len({rank["digest"] for rank in ranks}) == 1
        losses[how] = ranks[0]["losses"]
    assert sent["factors"] < 0.8 * sent["f32"]
    np.testing.assert_allclose(losses["factors"], losses["f32"], rtol=1e-2)
    # With sums in the order of ranks, independent of hosts, nothing is gathered by default.
    assert losses["rank"] == losses["f32"]
    assert sent["rank"] > 0.95 * sent["f32"]
