"""compile(wire="int8"): no part of a gradient is lost for good, NaN and infinity stay visible, and what is owed is sent
later.
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import lockstep as ls
from cases import BATCH, CASES, Case
from ranks import run_in_threads

MLP, PARAMETERS = CASES[1], 6
BLOCK, ELEMENTS = 256, 600  # the last block is not full

# The gradient of %w is the sum of the rows of x, and the rate is 1, so -%w is the sum of the applied gradients.
SUMS = f"""
graph @sums(%x: f32[12,{ELEMENTS}] split(0), state %w: f32[{ELEMENTS}]) -> (total: f32[], %w: f32[{ELEMENTS}]) {{
  %grad/w = reduce_sum %x {{dims=[0]}} : f32[{ELEMENTS}]
  %total = reduce_sum %x {{dims=[0,1]}} : f32[]
  %w.next = sgd %w, %grad/w {{learning_rate=1.0}} : f32[{ELEMENTS}]
  return %total, %w.next
}}
"""

RESIDUAL = "w/residual/data"
ranks = pytest.mark.parametrize("n", [2, 3, 4])


def whole(results: list[Any]) -> list[Any]:
    for result in results:
        assert not isinstance(result, Exception), result
    return results


def applied(n: int, steps: list[np.ndarray], **options: Any) -> list[tuple[np.ndarray, np.ndarray]]:
    """The gradients that n ranks have applied after steps with these rows, and what each rank owes, by rank."""

    def body(world: ls.Communicator) -> tuple[np.ndarray, np.ndarray]:
        exe = ls.compile(ls.parse(SUMS), world=world, threads=1, wire="int8", **options)
        share = 12 // n
        for rows in steps:
            exe(x=rows[world.rank * share : (world.rank + 1) * share])
        return -exe.state["w"], exe.state[RESIDUAL][0]

    results = whole(run_in_threads(n, body))
    for weight, _ in results:
        np.testing.assert_array_equal(weight, results[0][0])
    return results


def random_rows(seed: int) -> np.ndarray:
    """Random rows with very different magnitudes in each block."""
    random = np.random.Generator(np.random.PCG64(seed))
    return (random.standard_normal((12, ELEMENTS)) * 10.0 ** random.integers(-3, 3, ELEMENTS)).astype(np.float32)


@pytest.mark.parametrize("optimize", [True, False])
@ranks
def test_what_is_applied_and_what_is_owed_is_the_sum_of_all_gradients(n: int, optimize: bool) -> None:
    steps = [random_rows(seed) for seed in range(5)]
    results = applied(n, steps, optimize=optimize)
    exact = np.sum(steps, axis=(0, 1), dtype=np.float64)
    owed = np.sum([owes for _, owes in results], axis=0, dtype=np.float64)
    assert np.any(owed != 0)
    size = np.abs(steps).max()
    np.testing.assert_allclose(results[0][0] + owed, exact, rtol=1e-5, atol=1e-5 * size)
    # At most half a code of each rank's part, and of the sum.
    assert np.abs(owed).max() <= 0.6 * (12 * size / 127)


def test_an_element_is_off_by_half_a_code_of_its_block() -> None:
    rows = np.zeros((12, ELEMENTS), np.float32)
    rows[0, :3] = 127, 1.25, -0.25
    rows[0, BLOCK : BLOCK + 2] = 1e-3, 1e-5  # beside larger elements they round to zero
    rows[0, -1] = 254
    (weight, _), _ = applied(2, [rows])
    expected = np.zeros(ELEMENTS, np.float32)
    expected[:3] = 127, 1, 0
    expected[BLOCK : BLOCK + 2] = 1e-3, np.float32(1e-3) / 127
    expected[-1] = 254
    np.testing.assert_allclose(weight, expected, rtol=1e-6)


@ranks
def test_small_and_large_numbers_and_zeros(n: int) -> None:
    rows = np.zeros((12, ELEMENTS), np.float32)
    rows[0, :BLOCK] = 1e-44  # 1/127 of it rounds to 0
    rows[1, BLOCK : 2 * BLOCK] = 1e-39
    rows[0, 2 * BLOCK :] = 3e38
    results = applied(n, [rows])
    weight, owed = results[0][0], np.sum([owes for _, owes in results], axis=0)
    np.testing.assert_array_equal(weight[:BLOCK] + owed[:BLOCK], rows[0, :BLOCK])
    np.testing.assert_allclose(weight[BLOCK : 2 * BLOCK], 1e-39, rtol=0.01)
    np.testing.assert_allclose(weight[2 * BLOCK :], 3e38, rtol=0.01)
    largest = np.full((12, ELEMENTS), np.finfo(np.float32).max * (np.arange(12) == 0)[:, None], np.float32)
    for weight, owes in applied(n, [largest, np.zeros_like(largest)]):
        assert not np.any(np.isfinite(weight) & (np.abs(weight) < 3e38)) and np.isfinite(owes).all()
    zero = applied(n, [np.zeros((12, ELEMENTS), np.float32)] * 2)
    for weight, owes in zero:
        assert not weight.any() and not owes.any()


@pytest.mark.parametrize("number", [np.nan, np.inf, -np.inf])
@ranks
def test_what_is_not_finite_is_seen_by_all_ranks(n: int, number: float) -> None:
    rows = random_rows(1)
    rows[11, BLOCK + 3] = number  # on the last rank
    for weight, owes in applied(n, [rows, random_rows(2)]):
        assert not np.isfinite(weight[BLOCK : 2 * BLOCK]).any()
        assert np.isfinite(weight[:BLOCK]).all() and np.isfinite(weight[2 * BLOCK :]).all()
        assert np.isfinite(owes).all(), "the next gradients are finite again"


def test_a_sum_that_overflows_is_not_finite() -> None:
    rows = np.zeros((12, ELEMENTS), np.float32)
    rows[[0, 11], 7] = 3e38
    for weight, owes in applied(2, [rows]):
        assert not np.isfinite(weight[:BLOCK]).any() and not weight[BLOCK:].any()
        assert np.isfinite(owes).all()


def step_of(case: Case, **options: Any) -> ls.Graph:
    model = ls.load_onnx(case.model, dims={"batch": BATCH})
    return ls.train_step(model, ls.loss.softmax_cross_entropy("logits", "label"), case.optimizer, **options)


def batches(case: Case, world: ls.Communicator, steps: int) -> list[dict[str, np.ndarray]]:
    samples, labels = (array[: steps * BATCH] for array in case.data())
    return [{case.input: x, "label": y} for x, y in ls.data.batches(samples, labels, size=BATCH, world=world)]


def trained(step: ls.Graph, case: Case, n: int, steps: int, wire: str | None = "int8", **options: Any) -> list[Any]:
    """The losses and states after training, by rank. Asserts that the losses, and the states common to all ranks, are
    equal.
    """

    def body(world: ls.Communicator) -> tuple[list[float], dict[str, np.ndarray]]:
        exe = ls.compile(step, world=world, threads=1, wire=wire, **options)
        losses = [float(exe(**batch)["loss"]) for batch in batches(case, world, steps)]
        exe.check_replicas()
        return losses, dict(exe.state)

    results = whole(run_in_threads(n, body))
    for losses, states in results:
        assert losses == results[0][0]
        for name, state in states.items():
            if "/residual/" not in name:
                np.testing.assert_array_equal(state, results[0][1][name], err_msg=name)
    return results


@pytest.mark.parametrize("n", [1, 2, 3, 4])
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_replicas_are_equal_bit_for_bit(case: Case, n: int) -> None:
    states = [states for _, states in trained(step_of(case), case, n, 3)]
    residuals = [name for name in states[0] if "/residual/" in name]
    assert bool(residuals) == (n > 1)
    for name in residuals:
        assert any(np.any(states[0][name] != other[name]) for other in states[1:]), f"{name} is each rank's own"


@ranks
def test_the_program_that_runs_means_the_same(n: int) -> None:
    """Compares with the interpreter of all ranks in lock step. Sums in another order may give a neighbouring code."""
    step, count = step_of(MLP), 3

    def body(world: ls.Communicator) -> tuple[ls.Graph, list[dict[str, np.ndarray]], dict[str, np.ndarray], Any]:
        exe = ls.compile(step, world=world, threads=1, wire="int8")
        begin = dict(exe.state)
        own = batches(MLP, world, count)
        for batch in own:
            exe(**batch)
        return exe.graph, own, begin, dict(exe.state)

    results = whole(run_in_threads(n, body))
    graph = results[0][0]
    states = [begin for _, _, begin, _ in results]
    for number in range(count):
        found = ls.interpret(graph, [{**own[number], **states[rank]} for rank, (_, own, _, _) in enumerate(results)])
        states = [{name: of_rank[name] for name in states[0]} for of_rank in found]
    for rank, (_, _, _, end) in enumerate(results):
        for name, state in end.items():
            difference = np.abs(states[rank][name] - state)
            assert np.mean(difference > 5e-3 * np.abs(state).max()) < 0.05, f"{name} on rank {rank}"


def test_its_bits_are_those_of_the_interpreter() -> None:
    """Two ranks with one row each, so that sums have no order."""
    steps = []
    for seed in range(4):
        rows = random_rows(seed)
        rows[np.arange(12) % 6 != 0] = 0
        steps.append(rows)

    def body(world: ls.Communicator) -> tuple[ls.Graph, dict[str, np.ndarray]]:
        exe = ls.compile(ls.parse(SUMS), world=world, threads=1, wire="int8")
        for rows in steps:
            exe(x=rows[world.rank * 6 : world.rank * 6 + 6])
        return exe.graph, dict(exe.state)

    results = whole(run_in_threads(2, body))
    states: list[dict[str, np.ndarray]] = [{}, {}]
    for rows in steps:
        found = ls.interpret(results[0][0], [{"x": rows[6 * rank : 6 * rank + 6], **states[rank]} for rank in range(2)])
        states = [{name: of_rank[name] for name in ("w", RESIDUAL)} for of_rank in found]
    for rank, (_, end) in enumerate(results):
        for name, state in end.items():
            np.testing.assert_array_equal(states[rank][name], state, err_msg=f"{name} on rank {rank}")


def test_buckets_change_who_adds_up_and_not_the_sum() -> None:
    one, _ = [states for _, states in trained(step_of(MLP), MLP, 2, 1)]
    for bucket_bytes in (1, 1000):
        other, _ = [states for _, states in trained(step_of(MLP), MLP, 2, 1, bucket_bytes=bucket_bytes)]
        for name, state in one.items():
            if "/residual/" not in name:
                np.testing.assert_array_equal(other[name], state, err_msg=name)


@pytest.mark.parametrize(
    "options",
    [
        {"accumulate": 4},
        {"clip": ls.clip.global_norm(0.5)},
        {"precision": "bf16"},
        {"precision": "f16", "clip": ls.clip.global_norm(0.5)},
        {"uneven": True},
        {"average": ls.average.exponential(0.9)},
    ],
    ids=lambda options: "+".join(options),
)
def test_recipes(options: dict[str, Any]) -> None:
    step = step_of(MLP, **options)
    (losses, _), *_ = trained(step, MLP, 2, 30, wire=None)
    (rounded, states), *_ = trained(step, MLP, 2, 30)
    assert sum("/residual/" in name for name in states) == PARAMETERS, "each parameter has a residual"
    assert rounded != losses and losses[-1] < 0.8 * losses[0]
    np.testing.assert_allclose(rounded, losses, rtol=0.05, atol=0.02 * losses[0])


def test_a_step_that_is_undone_owes_what_it_did_before() -> None:
    """In f16 with a loss scale that is too large and is then reduced."""
    step = step_of(MLP, precision="f16")

    def body(world: ls.Communicator) -> list[dict[str, np.ndarray]]:
        exe = ls.compile(step, world=world, threads=1, wire="int8")
        states = []
        for number, batch in enumerate(batches(MLP, world, 3)):
            if number == 1:
                exe.state["loss_scale/scale"] = np.float32(2.0**120)
            exe(**batch)
            states.append(dict(exe.state))
        return states

    for first, undone, next_one in whole(run_in_threads(2, body)):
        residuals = [name for name in first if "/residual/" in name]
        assert len(residuals) == PARAMETERS
        for name in residuals:
            assert first[name].any()
            np.testing.assert_array_equal(undone[name], first[name], err_msg=name)
            assert np.isfinite(next_one[name]).all()


# --- Checkpoints


def run(step: ls.Graph, world: ls.Communicator, numbers: range, wire: str | None, *files: Path | None) -> Any:
    """Runs the steps of these numbers, starting from the states of the first file, and saves the states to the second.
    Returns the states.
    """
    load, save = files
    exe = ls.compile(step, world=world, threads=1, wire=wire)
    if load:
        exe.load(load)
    begin = dict(exe.state)
    own = batches(MLP, world, numbers.stop)
    for number in numbers:
        exe(**own[number])
    if save:
        exe.save(save)
    return begin, dict(exe.state)


@ranks
def test_a_run_goes_on_bit_for_bit(n: int, tmp_path: Path) -> None:
    step, file = step_of(MLP), tmp_path / "half.safetensors"
    never = whole(run_in_threads(n, lambda world: run(step, world, range(6), "int8", None, None)))
    whole(run_in_threads(n, lambda world: run(step, world, range(3), "int8", None, file)))
    again = whole(run_in_threads(n, lambda world: run(step, world, range(3, 6), "int8", file, None)))
    for (_, expected), (_, found) in zip(never, again, strict=True):
        for name, state in expected.items():
            np.testing.assert_array_equal(found[name], state, err_msg=name)


@pytest.mark.parametrize(
    ("before", "after"),
    [(2, 3), (4, 3), *(pytest.param(*pair, marks=pytest.mark.everything) for pair in [(2, 4), (3, 2), (3, 4), (4, 2)])],
)
def test_on_other_ranks_the_sum_of_what_is_owed_stays(before: int, after: int, tmp_path: Path) -> None:
    step, file = step_of(MLP), tmp_path / "half.safetensors"
    ends = whole(run_in_threads(before, lambda world: run(step, world, range(3), "int8", None, file)))
    begins = whole(run_in_threads(after, lambda world: run(step, world, range(3, 5), "int8", file, None)))
    for name, state in ends[0][1].items():
        if "/residual/" not in name:
            np.testing.assert_array_equal(begins[0][0][name], state)
            continue
        owed = np.sum([end[name] for _, end in ends], axis=0)
        assert owed.any()
        np.testing.assert_allclose(np.sum([begin[name] for begin, _ in begins], axis=0), owed, rtol=1e-6, atol=1e-12)


@pytest.mark.parametrize("n", [1, 2])
def test_a_run_without_the_wire_says_that_it_drops_what_is_owed(
    n: int, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    step, file = step_of(MLP), tmp_path / "half.safetensors"
    whole(run_in_threads(2, lambda world: run(step, world, range(2), "int8", None, file)))
    wire = "int8" if n == 1 else None
    with caplog.at_level(logging.WARNING, logger="lockstep"):
        whole(run_in_threads(n, lambda world: run(step, world, range(2, 3), wire, file, None)))
    (warning,) = (record.message for record in caplog.records if "their rounding errors are dropped" in record.message)
    assert f"/residual/data is the first of {PARAMETERS} such states" in warning


def test_a_run_that_begins_to_travel_so_owes_nothing(tmp_path: Path) -> None:
    step, file = step_of(MLP), tmp_path / "half.safetensors"
    whole(run_in_threads(2, lambda world: run(step, world, range(2), None, None, file)))

    def body(world: ls.Communicator) -> Any:
        exe = ls.compile(step, world=world, threads=1, wire="int8")
        exe(**batches(MLP, world, 1)[0])
        assert any(exe.state[name].any() for name in exe.state if "/residual/" in name)
        exe.load(file)
        return {name: exe.state[name] for name in exe.state if "/residual/" in name}

    for residuals in whole(run_in_threads(2, body)):
        assert len(residuals) == PARAMETERS
        for name, residual in residuals.items():
            assert not residual.any(), name


def test_weights_in_a_file_of_their_own_are_without_what_is_owed(tmp_path: Path) -> None:
    step, weights, checkpoint = step_of(MLP), tmp_path / "weights.safetensors", tmp_path / "checkpoint.safetensors"

    def body(world: ls.Communicator) -> dict[str, np.ndarray]:
        exe = ls.compile(step, world=world, threads=1, wire="int8")
        exe(**batches(MLP, world, 1)[0])
        ls.save_weights(exe, weights)
        exe.save(checkpoint)
        return dict(exe.state)

    states, _ = whole(run_in_threads(2, body))
    for file in (weights, checkpoint):
        exe = ls.compile(ls.load_weights(step, file), threads=1)
        for name in exe.state:
            np.testing.assert_array_equal(exe.state[name], states[name], err_msg=name)
