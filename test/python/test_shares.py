"""Shares of a batch that are not equal: compile(shares=…), Executable.balance and train_step(uneven="measured"), with
injected times of kernels.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

import lockstep as ls
from cases import CASES, Case
from lockstep._compile import shares as _shares
from lockstep._compile.shares import shares_for
from ranks import errors_of, run_in_threads

BATCH, STEPS = 24, 3
LOSS = ls.loss.softmax_cross_entropy("logits", "label")
DROPOUT = """graph @mlp(%x: f32[24,12] split(0), %ratio: f32[], state %w: f32[12,16], state %v: f32[16,5])
    -> (logits: f32[24,5]) {
  %h = matmul %x, %w : f32[24,16]
  %d, %mask = dropout %h, %ratio : f32[24,16], bool[24,16]
  %z = matmul %d, %v : f32[24,5]
  return %z
}"""


def step_of(case: Case, uneven: bool | str = "measured", **options: Any) -> ls.Graph:
    model = ls.load_onnx(case.model, dims={"batch": BATCH})
    return ls.train_step(model, LOSS, case.optimizer, uneven=uneven, **options)


def trained(
    exe: ls.Executable, world: ls.Communicator, data: tuple[np.ndarray, np.ndarray], name: str, **more: Any
) -> list[float]:
    batches = ls.data.batches(data[0][: STEPS * BATCH], data[1][: STEPS * BATCH], size=BATCH, world=world, shares=exe)
    return [float(exe(**{name: x, "label": label}, **more)["loss"]) for x, label in batches]


def assert_same(found: Any, expected: tuple[list[float], dict[str, np.ndarray]], tolerance: float = 2e-4) -> None:
    assert not isinstance(found, Exception), found
    np.testing.assert_allclose(found[0], expected[0], rtol=tolerance)
    for name, value in expected[1].items():
        np.testing.assert_allclose(
            found[1][name], value, rtol=tolerance, atol=tolerance * np.abs(value).max(), err_msg=name
        )


# --- Programs with other shares


def of_one_rank(case: Case, **options: Any) -> tuple[list[float], dict[str, np.ndarray]]:
    exe = ls.compile(step_of(case, **options), threads=1)
    return trained(exe, ls.Communicator.single(), case.data(), case.input), dict(exe.state)


def of_ranks(case: Case, shares: Sequence[int], compile_options: dict[str, Any], **options: Any) -> list[Any]:
    step = step_of(case, uneven=True, **options)

    def body(world: ls.Communicator) -> tuple[list[float], dict[str, np.ndarray]]:
        exe = ls.compile(step, world=world, threads=1, shares=shares, **compile_options)
        assert exe.shares == list(shares)
        rows = next(each.shape for each in exe.graph.inputs if each.name == "rows")
        assert rows == (shares[world.rank],)  # the program is not one that pads
        losses = trained(exe, world, case.data(), case.input)
        exe.check_replicas()
        return losses, dict(exe.state)

    return run_in_threads(len(shares), body)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
@pytest.mark.parametrize("shares", [[16, 8], [1, 23], [5, 12, 7], [3, 1, 19, 1]], ids=str)
def test_ranks_with_any_shares_are_one_rank(case: Case, shares: list[int]) -> None:
    expected = of_one_rank(case)
    for found in of_ranks(case, shares, {}):
        assert_same(found, expected)


@pytest.mark.parametrize(
    "options", [{"accumulate": 2}, {"clip": ls.clip.global_norm(0.5)}, {"precision": "bf16"}], ids=str
)
def test_options_of_the_step(options: dict[str, Any]) -> None:
    expected = of_one_rank(CASES[1], **options)
    for found in of_ranks(CASES[1], [18, 6], {}, **options):
        assert_same(found, expected, 3e-2 if "precision" in options else 2e-4)


@pytest.mark.parametrize(
    "options",
    [{"optimize": False}, {"check_numerics": True}, {"verify": True}, {"bucket_bytes": 64}, {"memory_limit": 1 << 24}],
    ids=str,
)
def test_options_of_compile(options: dict[str, Any]) -> None:
    expected = of_one_rank(CASES[1])
    for found in of_ranks(CASES[1], [18, 6], options):
        assert_same(found, expected)


def test_the_same_elements_are_dropped() -> None:
    step = ls.train_step(ls.parse(DROPOUT), LOSS, ls.optim.SGD(0.1), uneven=True)
    random = np.random.default_rng(0)
    weights = {"w": random.standard_normal((12, 16), np.float32), "v": random.standard_normal((16, 5), np.float32)}

    def body(world: ls.Communicator, shares: Sequence[int] | None = None) -> Any:
        exe = ls.compile(step, world=world, threads=1, shares=shares)
        for name, value in weights.items():
            exe.state[name] = value
        return trained(exe, world, CASES[1].data(), "x", ratio=np.float32(0.5)), dict(exe.state)

    expected = body(ls.Communicator.single())
    for found in run_in_threads(3, lambda world: body(world, [2, 17, 5])):
        assert_same(found, expected, 1e-5)


def test_an_nan_is_found_in_programs_of_different_sizes() -> None:
    step = step_of(CASES[1], uneven=True)

    def body(world: ls.Communicator) -> Any:
        exe = ls.compile(step, world=world, threads=1, shares=[18, 6], check_numerics=True)
        x = np.ones((exe.shares[world.rank], 12), np.float32)
        x[-1, 0] = np.inf if world.rank == 1 else 1
        return exe(x=x, label=np.zeros(len(x), np.int64))

    for message in errors_of(2, body):
        assert "rank 1: matmul makes" in message and "first at [5, 0]" in message


def test_a_strategy_has_the_shares() -> None:
    step = step_of(CASES[1])

    def body(world: ls.Communicator) -> Any:
        exe = ls.compile(step, world=world, threads=1, shares=[18, 6])
        assert "shares=18|6" in str(exe.strategy)
        return ls.compile(step, world=world, threads=1, strategy=exe.strategy).shares

    assert run_in_threads(2, body) == [[18, 6]] * 2


@pytest.mark.parametrize(
    ("options", "step_options", "message"),
    [
        ({"shares": [20, 5]}, {}, "shares=20|5 is 25 rows, but the batch has 24"),
        ({"shares": [24, 0]}, {}, "shares[1] is 0, expected at least 1"),
        ({"shares": [8, 8, 8]}, {}, "has the shares of 3 ranks, but there are 2"),
        ({"shares": [19, 5]}, {"accumulate": 2}, "with accumulate=k, shares are multiples of k"),
        ({"shares": [18, 6]}, {"uneven": False}, "train_step(..., uneven=True) makes a step that does not"),
        ({"shard_optimizer": True}, {"uneven": "measured"}, "shares=12|12 does not go with shard_optimizer=True"),
        ({"shares": [14, 10], "virtual_ranks": 8}, {}, "14 rows are no whole number of virtual ranks"),
        ({"mesh": {"stage": 2}}, {"uneven": "measured", "accumulate": 2}, "does not go with stages"),
    ],
    ids=str,
)
def test_wrong_shares_are_errors(options: dict[str, Any], step_options: dict[str, Any], message: str) -> None:
    step = step_of(CASES[1], **{"uneven": True, **step_options})
    for found in errors_of(2, lambda world: ls.compile(step, world=world, threads=1, **options)):
        assert message in found


# --- The choice of shares


def slowest(per_row: Sequence[float], shares: Sequence[int]) -> float:
    return max(each * rows for each, rows in zip(per_row, shares, strict=True))


@pytest.mark.parametrize("unit", [1, 2])
@pytest.mark.parametrize("per_row", [(1, 2), (5, 1), (1, 1, 3), (2.5, 1, 4)], ids=str)
def test_no_other_shares_are_faster(per_row: tuple[float, ...], unit: int) -> None:
    rows = 24
    even = [rows // len(per_row)] * len(per_row)
    found = shares_for([each * even[0] for each in per_row], even, unit, 0.0)
    all_shares = [
        [unit * each for each in units]
        for units in itertools.product(range(1, rows // unit + 1), repeat=len(per_row))
        if sum(units) == rows // unit
    ]
    assert found in all_shares
    assert slowest(per_row, found) == min(slowest(per_row, each) for each in all_shares)


def test_half_the_processor_is_half_the_rows() -> None:
    assert shares_for([1.0, 2.0], [48, 48], 1, 0.05) == [64, 32]
    assert shares_for([1.0, 1.0], [64, 32], 1, 0.05) == [64, 32]


def test_a_small_gain_changes_nothing() -> None:
    # 50 and 46 rows would be faster by 4 %.
    assert shares_for([1.0, 1.09], [48, 48], 1, 0.05) == [48, 48]
    assert shares_for([1.0, 1.09], [48, 48], 1, 0.03) == [50, 46]


def test_each_rank_keeps_a_row() -> None:
    assert shares_for([1.0, 1e6], [4, 4], 1, 0.05) == [7, 1]
    assert shares_for([1.0, 1e6], [4, 4], 2, 0.05) == [6, 2]


# --- balance


@pytest.fixture
def inject(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[int, int], dict[str, float]]], None]:
    """Replaces the measured seconds of layers by a function of the rank and its rows."""

    def injected(layers: Callable[[int, int], dict[str, float]]) -> None:
        def of(executable: ls.Executable) -> dict[str, float]:
            rank = executable._world().rank
            return layers(rank, executable.shares[rank])

        monkeypatch.setattr(_shares, "layers_of", of)

    return injected


def half_as_fast(rank: int, rows: int) -> dict[str, float]:
    """Rank 1 needs twice the time."""
    return {"matmul": 1e-3 * rows * (1 + rank), "relu": 1e-4 * rows * (1 + rank)}


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_balance_keeps_the_training(case: Case, inject: Any) -> None:
    inject(half_as_fast)
    step = step_of(case)
    data = case.data()

    def body(world: ls.Communicator) -> Any:
        exe = ls.compile(step, world=world, threads=1)
        assert exe.shares == [BATCH // world.size] * world.size
        losses = trained(exe, world, data, case.input)
        exe.set(learning_rate=0.02)
        before = exe.step, dict(exe.state)
        changed = exe.balance()
        assert changed == (world.size > 1)
        assert exe.step == before[0] and exe.settings["optimizer/learning_rate"] == 0.02
        for name, value in exe.state.items():
            np.testing.assert_array_equal(value, before[1][name])
        assert not exe.balance()
        losses += trained(exe, world, data, case.input)
        exe.check_replicas()
        return losses, dict(exe.state), exe.shares

    expected = body(ls.Communicator.single())
    assert expected[2] == [BATCH]
    for found in run_in_threads(2, body):
        assert_same(found, expected)
        assert found[2] == [16, 8]


def test_shares_are_multiples_of_the_micro_batches(inject: Any) -> None:
    inject(half_as_fast)
    step = step_of(CASES[1], accumulate=3)

    def body(world: ls.Communicator) -> Any:
        exe = ls.compile(step, world=world, threads=1)
        exe.balance()
        trained(exe, world, CASES[1].data(), "x")
        return exe.shares

    assert run_in_threads(2, body) == [[15, 9]] * 2


def test_a_schedule_goes_on(inject: Any) -> None:
    inject(half_as_fast)
    model = ls.load_onnx(CASES[1].model, dims={"batch": BATCH})
    step = ls.train_step(model, LOSS, ls.optim.SGD(lambda step: 0.1 / (1 + step)), uneven="measured")

    def body(world: ls.Communicator) -> Any:
        exe = ls.compile(step, world=world, threads=1)
        trained(exe, world, CASES[1].data(), "x")
        assert exe.balance()
        trained(exe, world, CASES[1].data(), "x")
        return exe.settings["optimizer/learning_rate"]

    np.testing.assert_allclose(run_in_threads(2, body), 0.1 / (2 * STEPS), rtol=1e-6)


def test_kernels_are_measured_after_a_few_calls() -> None:
    step = step_of(CASES[1])

    def body(world: ls.Communicator) -> Any:
        exe = ls.compile(step, world=world, threads=1)
        trained(exe, world, CASES[1].data(), "x")
        assert _shares.layers_of(exe) == {} and not exe.balance()
        trained(exe, world, CASES[1].data(), "x")
        layers = _shares.layers_of(exe)
        assert 0 < sum(layers.values()) <= exe.report().total * STEPS * 2
        exe.balance(threshold=1e9)
        return list(layers)

    for names in run_in_threads(2, body):
        assert "onednn.matmul (onnx:node_linear)" in names
        assert not any("all_reduce" in name for name in names)


@pytest.mark.parametrize("value", ["no", "", 1, None], ids=str)
def test_other_words_are_errors(value: Any) -> None:
    with pytest.raises(ls.Error, match='expected True or False(, or "measured")?'):
        step_of(CASES[1], uneven=value)


def test_an_executable_of_fixed_shares_does_not_balance() -> None:
    step = step_of(CASES[1], uneven=True)
    for message in errors_of(2, lambda world: ls.compile(step, world=world, threads=1).balance()):
        assert 'train_step(..., uneven="measured")' in message
    with pytest.raises(ls.Error, match="requires full batches"):
        _ = ls.compile(step_of(CASES[1], uneven=False), threads=1).shares


def test_bound_arrays_are_an_error_on_all_ranks(inject: Any) -> None:
    inject(half_as_fast)
    step = step_of(CASES[1])

    def body(world: ls.Communicator) -> Any:
        exe = ls.compile(step, world=world, threads=1)
        if world.rank == 1:
            exe.bind(states={"fc1.bias": np.array(exe.state["fc1.bias"])})
        return exe.balance()

    for message in errors_of(2, body):
        assert "arrays are bound" in message


# --- Slow ranks


def warnings_of(
    caplog: pytest.LogCaptureFixture, inject: Any, layers: Sequence[Callable[[int, int], dict[str, float]]]
) -> list[list[str]]:
    """The warnings of each of several calls of balance, which get these times."""
    turn = [0]
    inject(lambda rank, rows: layers[turn[0]](rank, rows))
    step = step_of(CASES[1])
    texts: list[list[str]] = []

    def body(world: ls.Communicator) -> None:
        exe = ls.compile(step, world=world, threads=1)
        for number in range(len(layers)):
            world.barrier()
            turn[0] = number
            world.barrier()
            with caplog.at_level(logging.WARNING, "lockstep"):
                exe.balance(threshold=1.5)
            world.barrier()
            if world.rank == 0:
                texts.append([each.getMessage() for each in caplog.records])
                caplog.clear()
            world.barrier()

    assert run_in_threads(3, body) == [None] * 3
    return texts


def equal(rank: int, rows: int) -> dict[str, float]:
    return {"matmul (fc1)": 2e-3, "relu (fc1)": 1e-3}


def slow_relu(rank: int, rows: int) -> dict[str, float]:
    return {"matmul (fc1)": 2.1e-3, "relu (fc1)": 3e-3} if rank == 2 else equal(rank, rows)


def test_a_rank_that_becomes_slow_is_named_once_with_its_layer(caplog: Any, inject: Any) -> None:
    first, second, third = warnings_of(caplog, inject, [equal, slow_relu, slow_relu])
    assert first == third == []
    (text,) = second
    assert text.startswith("rank 2 on ")
    assert (
        "is slow: its kernels take 5.100 ms of a call, 3.000 ms before; most in relu (fc1), 3.000 ms, 1.000 ms before"
        in text
    )


def test_a_rank_that_is_slow_from_the_beginning_is_named(caplog: Any, inject: Any) -> None:
    first, second = warnings_of(caplog, inject, [slow_relu, slow_relu])
    (text,) = first
    assert "5.100 ms of a call, 3.000 ms on the others; most in relu (fc1), 3.000 ms, 1.000 ms on the others" in text
    assert second == []


# --- Epochs


def test_joined_balances_at_its_end(inject: Any) -> None:
    inject(half_as_fast)
    step = step_of(CASES[1])
    x, label = (each[: 2 * BATCH] for each in CASES[1].data())

    def body(world: ls.Communicator) -> Any:
        exe = ls.compile(step, world=world, threads=1)
        batches = ls.data.batches(x, label, size=BATCH, world=world, shares=exe)
        counts = []
        for _ in range(2):
            for result in exe.joined({"x": each, "label": labels} for each, labels in batches):
                counts.append((float(result["rows"]), exe.shares))
        return counts

    expected = [(BATCH, shares) for shares in ([12, 12], [12, 12], [16, 8], [16, 8])]
    assert run_in_threads(2, body) == [expected] * 2


def test_a_trainer_balances_within_an_epoch(inject: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from lockstep._trainer import trainer as _trainer

    inject(half_as_fast)
    monkeypatch.setattr(_trainer, "_STEPS_BETWEEN_MEASUREMENTS", 2)
    model = ls.load_onnx(CASES[1].model, dims={"batch": BATCH})
    x, label = (each[: 4 * BATCH - 5] for each in CASES[1].data())

    def body(world: ls.Communicator) -> Any:
        trainer = ls.Trainer(model, LOSS, ls.optim.SGD(0.1), kvstore=world, uneven="measured", threads=1)
        trainer.fit((x, label), (x, label), epochs=2, progress=False)
        return trainer.losses, dict(trainer.executable.state), trainer.executable.shares

    expected = body(ls.Communicator.single())
    for found in run_in_threads(2, body):
        assert_same(found, expected)
        assert found[2] == [16, 8]


def test_a_trainer_that_measures_gets_all_samples() -> None:
    model = ls.load_onnx(CASES[1].model, dims={"batch": BATCH})
    batch = tuple(each[:BATCH] for each in CASES[1].data())

    def body(world: ls.Communicator) -> Any:
        ls.Trainer(model, LOSS, ls.optim.SGD(0.1), kvstore=world, uneven="measured", threads=1).fit([batch])

    for message in errors_of(2, body):
        assert 'uneven="measured"' in message and "all workers pass all samples" in message


# --- Batches


@pytest.mark.parametrize("last", ["drop", "pad"])
def test_batches_have_the_rows_of_equal_shares(last: str) -> None:
    samples = np.arange(53)
    shares = [7, 0, 3]

    def of(world: Any, **options: Any) -> list[tuple[np.ndarray, ...]]:
        return list(ls.data.batches(samples, size=10, world=world, seed=4, last=last, **options))

    ranks = [type("Rank", (), {"rank": rank, "size": 3})() for rank in range(3)]
    whole = of(None)
    parts = [of(rank, shares=shares) for rank in ranks]
    assert [len(each) for each in parts] == [len(whole)] * 3
    for number, arrays in enumerate(whole):
        for i, array in enumerate(arrays):
            found = [part[number][i] for part in parts]
            assert [len(each) for each in found] == shares
            np.testing.assert_array_equal(np.concatenate(found), array)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"shares": [5, 4]}, "expected 2 numbers of rows, whose sum is the batch of 10"),
        ({"shares": [10]}, "expected 2 numbers of rows"),
        ({"shares": "5|5"}, "expected the rows of each rank"),
        ({"shares": [11, -1]}, r"shares\[1\] is -1"),
    ],
    ids=str,
)
def test_wrong_shares_of_batches(options: dict[str, Any], message: str) -> None:
    world = type("Rank", (), {"rank": 0, "size": 2})()
    with pytest.raises(ls.Error, match=message):
        ls.data.batches(np.arange(20), size=10, world=world, **options)
    with pytest.raises(ls.Error, match="shares and num_parts"):
        ls.data.batches(np.arange(20), size=10, num_parts=2, part_index=0, shares=[5, 5])


# --- Virtual ranks


def of_virtual_ranks(case: Case, shares: Sequence[int], step: ls.Graph, virtual_ranks: int = 8) -> list[Any]:
    def body(world: ls.Communicator) -> Any:
        exe = ls.compile(step, world=world, threads=1, virtual_ranks=virtual_ranks, shares=shares)
        losses = trained(exe, world, case.data(), case.input)
        return losses, {name: value.tobytes() for name, value in exe.state.items()}

    return run_in_threads(len(shares), body)


@pytest.mark.parametrize(
    ("case", "shares"),
    [(case, [15, 9]) for case in CASES]
    + [(CASES[1], shares) for shares in ([3, 21], [9, 9, 6], [12, 6, 6], [3, 6, 12, 3])],
    ids=str,
)
def test_virtual_ranks_keep_the_bits(case: Case, shares: list[int]) -> None:
    step = step_of(case, uneven=True)
    (expected,) = of_virtual_ranks(case, [BATCH], step)
    for found in of_virtual_ranks(case, shares, step):
        assert found == expected


@pytest.mark.parametrize(
    "options", [{"accumulate": 3, "clip": ls.clip.global_norm(0.5)}, {"precision": "bf16"}], ids=str
)
def test_virtual_ranks_keep_the_bits_with_options_of_the_step(options: dict[str, Any]) -> None:
    step = step_of(CASES[1], uneven=True, **options)
    (expected,) = of_virtual_ranks(CASES[1], [BATCH], step)
    for found in of_virtual_ranks(CASES[1], [15, 9], step):
        assert found == expected


def test_virtual_ranks_drop_the_same_elements() -> None:
    step = ls.train_step(ls.parse(DROPOUT), LOSS, ls.optim.SGD(0.1), uneven=True)
    weights = np.random.default_rng(0).standard_normal((12, 16), np.float32)

    def body(world: ls.Communicator, shares: Sequence[int]) -> Any:
        exe = ls.compile(step, world=world, threads=1, virtual_ranks=8, shares=shares)
        exe.state["w"], exe.state["v"] = weights, np.ones((16, 5), np.float32)
        losses = trained(exe, world, CASES[1].data(), "x", ratio=np.float32(0.5))
        return losses, {name: value.tobytes() for name, value in exe.state.items()}

    expected = body(ls.Communicator.single(), [BATCH])
    assert run_in_threads(2, lambda world: body(world, [15, 9])) == [expected] * 2


def test_balance_gives_whole_virtual_ranks(inject: Any) -> None:
    inject(half_as_fast)
    step = step_of(CASES[1])

    def body(world: ls.Communicator) -> Any:
        exe = ls.compile(step, world=world, threads=1, virtual_ranks=8)
        losses = trained(exe, world, CASES[1].data(), "x")
        exe.balance()
        losses += trained(exe, world, CASES[1].data(), "x")
        return exe.shares, losses, {name: value.tobytes() for name, value in exe.state.items()}

    _, *expected = body(ls.Communicator.single())
    assert run_in_threads(2, body) == [([15, 9], *expected)] * 2
