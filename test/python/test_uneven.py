"""train_step(uneven=True): batches that are not full, on ranks with different numbers of rows, compute one rank's step
on those rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

import lockstep as ls
from cases import CASES, MLP_SPLIT, Case
from ranks import errors_of, run_in_threads

ROWS = 24  # of each step, on all ranks together
BATCH = 48  # its capacity
STEPS = 3  # after more steps, rounding changes which of two equal values max pooling takes
cases = pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)


def shares(n: int, step: int) -> list[int]:
    """The number of rows of each rank. It differs in each step; in some a rank has none, or is full."""
    most = BATCH // n
    random = np.random.Generator(np.random.PCG64(100 * n + step))
    rows = [0] * n
    for _ in range(ROWS):
        free = [rank for rank in range(n) if rows[rank] < most and (step % 2 == 0 or n == 1 or rank != step % n)]
        rows[random.choice(free)] += 1
    assert sum(rows) == ROWS
    return rows


def step_of(case: Case, batch: int, **options: Any) -> ls.Graph:
    model = ls.load_onnx(case.model, dims={"batch": batch})
    return ls.train_step(model, ls.loss.softmax_cross_entropy("logits", "label"), case.optimizer, **options)


def plainly(case: Case, **options: Any) -> tuple[list[float], dict[str, np.ndarray]]:
    """Losses and states of one rank that has all rows."""
    samples, labels = case.data()
    exe = ls.compile(step_of(case, ROWS, **options), threads=1)
    losses = []
    for step in range(STEPS):
        rows = slice(step * ROWS, (step + 1) * ROWS)
        losses.append(float(exe(**{case.input: samples[rows], "label": labels[rows]})["loss"]))
    return losses, dict(exe.state)


def unevenly(case: Case, n: int, compile_options: dict[str, Any] | None = None, **options: Any) -> list[Any]:
    samples, labels = case.data()
    step = step_of(case, BATCH, uneven=True, **options)

    def body(world: ls.Communicator) -> tuple[list[float], dict[str, np.ndarray]]:
        exe = ls.compile(step, world=world, threads=1, **(compile_options or {}))
        losses = []
        for number in range(STEPS):
            of_ranks = shares(n, number)
            begin = number * ROWS + sum(of_ranks[: world.rank])
            rows = slice(begin, begin + of_ranks[world.rank])
            results = exe(**{case.input: samples[rows], "label": labels[rows]})
            assert results["rows"] == ROWS
            losses.append(float(results["loss"]))
        exe.check_replicas()
        return losses, dict(exe.state)

    return run_in_threads(n, body)


def assert_same(found: Any, expected: tuple[list[float], dict[str, np.ndarray]], tolerance: float = 2e-4) -> None:
    assert not isinstance(found, Exception), found
    np.testing.assert_allclose(found[0], expected[0], rtol=tolerance)
    assert found[1].keys() == expected[1].keys()
    for name, value in expected[1].items():
        np.testing.assert_allclose(
            found[1][name], value, rtol=tolerance, atol=tolerance * np.abs(value).max(), err_msg=name
        )


@cases
@pytest.mark.parametrize("n", [1, 2, 3, 4])
def test_ranks_are_one_with_all_rows(case: Case, n: int) -> None:
    expected = plainly(case)
    for found in unevenly(case, n):
        assert_same(found, expected)


def test_seven_ranks() -> None:
    model = ls.load_onnx(CASES[1].model, dims={"batch": 21})
    step = ls.train_step(model, ls.loss.softmax_cross_entropy("logits", "label"), ls.optim.SGD(0.1), uneven=True)
    samples, labels = CASES[1].data()
    rows_of = [3, 0, 1, 2, 0, 3, 1]

    def body(world: ls.Communicator) -> dict[str, np.ndarray]:
        exe = ls.compile(step, world=world, threads=1)
        begin = sum(rows_of[: world.rank])
        rows = slice(begin, begin + rows_of[world.rank])
        exe(x=samples[rows], label=labels[rows])
        return dict(exe.state)

    plain = ls.train_step(
        ls.load_onnx(CASES[1].model, dims={"batch": 10}),
        ls.loss.softmax_cross_entropy("logits", "label"),
        ls.optim.SGD(0.1),
    )
    one = ls.compile(plain, threads=1)
    one(x=samples[:10], label=labels[:10])
    for found in run_in_threads(7, body):
        assert_same(([], found), ([], dict(one.state)))


@pytest.mark.parametrize(
    "options", [{"accumulate": 2}, {"clip": ls.clip.global_norm(0.5)}, {"precision": "bf16"}], ids=str
)
def test_with(options: dict[str, Any]) -> None:
    expected = plainly(CASES[1], **options)
    for found in unevenly(CASES[1], 2, **options):
        assert_same(found, expected, 3e-2 if "precision" in options else 2e-4)


COMPILE_OPTIONS = [
    {"wire": "bf16"},
    {"wire": "int8"},
    {"shard_optimizer": True},
    {"shared_weights": True},
    {"factors": True},
    {"optimize": False},
]


@pytest.mark.parametrize("options", COMPILE_OPTIONS, ids=str)
def test_compiled_with(options: dict[str, Any]) -> None:
    def weights(states: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        return {name: value for name, value in states.items() if "/" not in name}  # the others are sharded

    losses, states = plainly(CASES[1])
    for found in unevenly(CASES[1], 2, options):
        assert not isinstance(found, Exception), found
        if "wire" in options:  # Adam divides by small gradients, so weights may differ more
            np.testing.assert_allclose(found[0], losses, rtol=5e-2)
        else:
            assert_same((found[0], weights(found[1])), (losses, weights(states)))


@pytest.mark.parametrize("precision", ["f32", "f16"])
@pytest.mark.parametrize("options", COMPILE_OPTIONS, ids=str)
def test_ranks_without_rows_change_nothing(options: dict[str, Any], precision: str) -> None:
    step = step_of(CASES[1], 8, uneven=True, precision=precision)

    def body(world: ls.Communicator) -> None:
        exe = ls.compile(step, world=world, threads=1, **options)
        exe(**batches_of(CASES[1], [3 - world.rank], 4 * world.rank)[0])
        before = {name: value.copy() for name, value in exe.state.items()}
        results = exe()
        assert results["rows"] == 0 and np.isnan(results["loss"])
        for name, value in exe.state.items():
            np.testing.assert_array_equal(value, before[name], err_msg=name)
        exe.check_replicas()

    for each in run_in_threads(2, body):
        assert each is None


@cases
def test_counts_travel_with_gradients(case: Case) -> None:
    def collectives(world: ls.Communicator) -> tuple[int, int]:
        plain, uneven = (
            ls.compile(step_of(case, BATCH, uneven=each), world=world, threads=1) for each in (False, True)
        )
        return len(plain.collectives), len(uneven.collectives)

    model = ls.load_onnx(case.model, dims={"batch": BATCH})
    normalisations = str(model).count(" = batch_norm_inference ")  # the variance of each waits for the mean
    for plain, uneven in run_in_threads(2, collectives):
        assert uneven == plain + normalisations


# --- Running out -----------------------------------------------------------------------------------------------------


def batches_of(case: Case, sizes: Sequence[int], begin: int) -> list[dict[str, np.ndarray]]:
    samples, labels = case.data()
    made = []
    for size in sizes:
        made.append({case.input: samples[begin : begin + size], "label": labels[begin : begin + size]})
        begin += size
    return made


def test_ranks_run_out_at_different_times() -> None:
    case = CASES[2]
    step = step_of(case, 12, uneven=True)
    sizes = [[4, 4, 1], [], [3]]

    def body(world: ls.Communicator) -> tuple[list[float], dict[str, np.ndarray], int]:
        exe = ls.compile(step, world=world, threads=1)
        own = batches_of(case, sizes[world.rank], 20 * world.rank)
        results = list(exe.joined(own))
        exe.check_replicas()
        return [float(each["rows"]) for each in results], dict(exe.state), exe.step

    found = run_in_threads(3, body)
    samples, labels = case.data()
    states: dict[str, np.ndarray] = {}
    for rows in ([*range(4), *range(40, 43)], range(4, 8), range(8, 9)):
        # With one row the plain step computes no batch statistics, so the uneven step is used there, too.
        plain = ls.compile(step_of(case, max(len(rows), 2), uneven=len(rows) == 1), threads=1)
        for name, value in states.items():
            plain.state[name] = value
        plain(**{case.input: samples[list(rows)], "label": labels[list(rows)]})
        states = dict(plain.state)
    for each in found:
        assert not isinstance(each, Exception), each
        assert each[0] == [7, 4, 1]
        assert each[2] == 3, "the call in which no rank has rows is not a step"
        assert_same(([], each[1]), ([], states))


@pytest.mark.parametrize("n", [1, 2])
def test_batches_without_rows_end_nothing(n: int) -> None:
    """In the first call no rank has a row, in the third the batches of one rank have run out, in the last those of all."""
    step = step_of(CASES[1], 12, uneven=True)
    sizes = [[0, 4, 0, 3, 0], [0, 2]]

    def body(world: ls.Communicator) -> tuple[list[float], int]:
        exe = ls.compile(step, world=world, threads=1)
        counts = [float(each["rows"]) for each in exe.joined(batches_of(CASES[1], sizes[world.rank], 0))]
        return counts, exe.step

    assert run_in_threads(n, body) == [([4, 3], 2) if n == 1 else ([6, 3], 2)] * n


def test_ranks_that_share_weights_alone_have_the_same_rows() -> None:
    """With one rank along "data" the batch is whole on each rank, and is padded and counted as on one rank."""
    case = CASES[1]
    step, mesh = step_of(case, 12, uneven=True), {"data": 1, "model": 2}

    def body(world: ls.Communicator, **options: Any) -> tuple[list[float], dict[str, np.ndarray]]:
        exe = ls.compile(step, world=world, threads=1, **options)
        assert exe()["rows"] == 0
        counts = [float(each["rows"]) for each in exe.joined(batches_of(case, [12, 5], 0))]
        return counts, dict(exe.state)

    counts, alone = body(ls.Communicator.single())
    assert counts == [12, 5]
    for rank, each in enumerate(run_in_threads(2, lambda world: body(world, mesh=mesh, split=MLP_SPLIT))):
        assert not isinstance(each, Exception), each
        assert each[0] == counts
        for name, value in each[1].items():
            dim = MLP_SPLIT.get(name.split("/")[0], {}).get("model")
            part = alone[name] if dim is None else np.split(alone[name], 2, dim)[rank]
            np.testing.assert_allclose(value, part, rtol=2e-4, atol=1e-5, err_msg=name)
    placed, model = ls.distribute(step, mesh, split=MLP_SPLIT), {"model": 2}
    for message in errors_of(
        2, lambda world: ls.compile(placed, world=world, mesh=model, threads=1)(**batches_of(case, [12], 0)[0])
    ):
        assert "input rows is missing, and no input of @mlp is known to be a batch" in message


def test_a_step_without_rows_changes_nothing() -> None:
    step = step_of(CASES[2], 8, uneven=True)
    exe = ls.compile(step, threads=1)
    exe(**batches_of(CASES[2], [5], 0)[0])
    before = dict(exe.state)
    results = exe()
    assert results["rows"] == 0 and np.isnan(results["loss"])
    for name, value in exe.state.items():
        np.testing.assert_array_equal(value, before[name], err_msg=name)


def test_rows_may_be_said() -> None:
    """A full batch in which some rows do not count. Their contents have no effect."""
    samples, labels = CASES[1].data()
    exe = ls.compile(step_of(CASES[1], 8, uneven=True), threads=1)
    rows = np.array([1, 0, 1, 1, 0, 0, 1, 1], np.float32)
    given, targets = samples[:8].copy(), labels[:8].copy()
    given[rows == 0], targets[rows == 0] = 1e6, 99
    found = exe(x=given, label=targets, rows=rows)
    plain = ls.compile(step_of(CASES[1], 5), threads=1)
    expected = plain(x=samples[:8][rows == 1], label=labels[:8][rows == 1])
    assert_same(([found["loss"]], dict(exe.state)), ([expected["loss"]], dict(plain.state)))


LOGARITHMS = """
graph @logarithms(%x: f32[{batch},4] split(0), state %w: f32[4,5]) -> (logits: f32[{batch},5]) {{
  %l = log %x : f32[{batch},4]
  %logits = matmul %l, %w : f32[{batch},5]
  return %logits
}}
"""


def test_what_pads_are_rows_that_a_rank_had() -> None:
    """With rows of zeros as padding, the logarithm times the weight of zero would be NaN."""
    random = np.random.Generator(np.random.PCG64(8))
    x, label = random.uniform(0.5, 2, (9, 4)).astype(np.float32), random.integers(0, 5, 9)
    step = lambda batch, uneven: ls.train_step(
        ls.parse(LOGARITHMS.format(batch=batch)), ls.loss.softmax_cross_entropy(), ls.optim.SGD(0.1), uneven=uneven
    )
    shares = [(slice(0, 3), slice(3, 4)), (slice(4, 6), slice(9, 9)), (slice(6, 6), slice(6, 9))]
    uneven = step(8, True)

    def body(world: ls.Communicator) -> dict[str, np.ndarray]:
        exe = ls.compile(uneven, world=world, threads=1)
        exe.state["w"] = np.zeros((4, 5), np.float32)
        for of_ranks in shares:
            rows = of_ranks[world.rank]
            exe(**({"x": x[rows], "label": label[rows]} if rows.stop > rows.start else {}))
        exe.check_replicas()
        return dict(exe.state)

    expected: dict[str, np.ndarray] = {"w": np.zeros((4, 5), np.float32)}
    for of_ranks in shares:
        rows = np.r_[of_ranks]
        plain = ls.compile(step(len(rows), False), threads=1)
        plain.state["w"] = expected["w"]
        plain(x=x[rows], label=label[rows])
        expected = dict(plain.state)
    for found in run_in_threads(2, body):
        assert not isinstance(found, Exception), found
        assert_same(([], found), ([], expected))


def test_a_row_with_nan_never_pads() -> None:
    """A batch that check_numerics refused leaves no NaN in the padding of later batches."""
    random = np.random.Generator(np.random.PCG64(9))
    x, label = random.uniform(0.5, 2, (8, 4)).astype(np.float32), random.integers(0, 5, 8)
    step = lambda batch, uneven: ls.train_step(
        ls.parse(LOGARITHMS.format(batch=batch)), ls.loss.softmax_cross_entropy(), ls.optim.SGD(0.1), uneven=uneven
    )
    exe, plain = ls.compile(step(8, True), threads=1, check_numerics=True), ls.compile(step(3, False), threads=1)
    for each in (exe, plain):
        each.state["w"] = np.ones((4, 5), np.float32)
    bad = x.copy()
    bad[0, 1] = np.nan
    with pytest.raises(ls.Error, match="NaN"):
        exe(x=bad, label=label)
    exe(x=x, label=label)
    exe.state["w"] = np.ones((4, 5), np.float32)
    loss = exe(x=x[:3], label=label[:3])["loss"]
    assert_same(([plain(x=x[:3], label=label[:3])["loss"]], dict(plain.state)), ([loss], dict(exe.state)))


# --- Losses ----------------------------------------------------------------------------------------------------------

WORDS = """
graph @words(%x: f32[{batch},4,3] split(0), state %w: f32[3,5]) -> (logits: f32[{words},5]) {{
  %rows = reshape %x {{shape=[{words}, 3]}} : f32[{words},3]
  %logits = matmul %rows, %w : f32[{words},5]
  return %logits
}}
"""


@pytest.mark.parametrize(
    "options",
    [{}, {"ignore_index": 2}, {"reduction": "sum"}, {"ignore_index": 1, "sample_weight": "weight"}],
    ids=str,
)
def test_losses_of_words_count_those_of_rows_that_are_there(options: dict[str, Any]) -> None:
    random = np.random.Generator(np.random.PCG64(7))
    x = random.standard_normal((6, 4, 3)).astype(np.float32)
    target = random.integers(0, 5, (6, 4))
    weight = random.random((6, 4)).astype(np.float32)

    def step(batch: int, uneven: bool) -> ls.Graph:
        model = ls.parse(WORDS.format(batch=batch, words=4 * batch))
        return ls.train_step(
            model, ls.loss.softmax_cross_entropy("logits", "target", **options), ls.optim.SGD(0.1), uneven=uneven
        )

    def inputs(rows: slice) -> dict[str, np.ndarray]:
        made = {"x": x[rows], "target": target[rows].reshape(-1)}
        return {**made, "weight": weight[rows].reshape(-1)} if "sample_weight" in options else made

    w = random.standard_normal((3, 5)).astype(np.float32)
    uneven = step(8, True)

    def body(world: ls.Communicator) -> tuple[list[float], dict[str, np.ndarray]]:
        exe = ls.compile(uneven, world=world, threads=1)
        exe.state["w"] = w
        rows = slice(0, 4) if world.rank == 0 else slice(4, 6)
        loss = exe(**inputs(rows))["loss"]
        return [float(loss)], dict(exe.state)

    plain = ls.compile(step(6, False), threads=1)
    plain.state["w"] = w
    expected = [float(plain(**inputs(slice(0, 6)))["loss"])]
    for found in run_in_threads(2, body):
        assert_same(found, (expected, dict(plain.state)))


# --- Errors ----------------------------------------------------------------------------------------------------------


def test_a_batch_of_one_row() -> None:
    """The batch cannot be split, and everything is computed from that row."""
    images, labels = CASES[0].data()
    exes = [ls.compile(step_of(CASES[0], 1, uneven=uneven), threads=1) for uneven in (True, False)]
    for i in range(3):
        uneven, full = (exe(image=images[i : i + 1], label=labels[i : i + 1]) for exe in exes)
        assert uneven["rows"] == 1 and uneven["loss"] == pytest.approx(full["loss"], rel=1e-4) and full["loss"] > 1


def test_an_op_that_mixes_rows_is_an_error() -> None:
    model = ls.parse("""
graph @mixes(%x: f32[8,4] split(0), state %w: f32[4,5]) -> (logits: f32[8,5]) {
  %z = matmul %x, %w : f32[8,5]
  %logits = softmax %z {dim=0} : f32[8,5]
  return %logits
}
""")
    with pytest.raises(ls.Error, match=r"uneven: .*mixes the rows of a batch"):
        ls.train_step(model, ls.loss.softmax_cross_entropy(), ls.optim.SGD(0.1), uneven=True)


def test_a_loss_of_the_model_is_an_error() -> None:
    model = ls.parse("""
graph @own(%x: f32[8,4] split(0), state %w: f32[4]) -> (cost: f32[]) {
  %wide = broadcast %w {dims=[1], shape=[8, 4]} : f32[8,4]
  %z = mul %x, %wide : f32[8,4]
  %cost = reduce_sum %z {dims=[0, 1]} : f32[]
  return %cost
}
""")
    with pytest.raises(
        ls.Error,
        match="loss result: result cost is .*which the model reduces itself.* and uneven=False takes full batches",
    ):
        ls.train_step(model, ls.loss.result("cost"), ls.optim.SGD(0.1), uneven=True)


def test_statistics_of_ranks_are_an_error() -> None:
    with pytest.raises(ls.Error, match='uneven and batch_statistics="rank"'):
        step_of(CASES[2], 8, uneven=True, batch_statistics="rank")


def test_a_model_without_a_batch_is_an_error() -> None:
    model = ls.parse(
        "graph @none(%x: f32[8,4], state %w: f32[4,5]) -> (logits: f32[8,5]) {\n  %logits = matmul %x, %w : f32[8,5]\n  return %logits\n}"
    )
    with pytest.raises(ls.Error, match="uneven: no input of graph @none is a batch"):
        ls.train_step(model, ls.loss.softmax_cross_entropy(), ls.optim.SGD(0.1), uneven=True)


def test_inputs_with_different_rows_are_an_error() -> None:
    samples, labels = CASES[1].data()
    exe = ls.compile(step_of(CASES[1], 8, uneven=True), threads=1)
    with pytest.raises(
        ls.Error, match="input .* has . rows, and .* has ., expected a whole number, the same for all inputs"
    ):
        exe(x=samples[:3], label=labels[:4])
    with pytest.raises(ls.Error, match=r"input x: expected f32\[8,12\], found f32\[9,12\]"):
        exe(x=samples[:9], label=labels[:9])


# A model of numbers, with an input that weighs them.
WEIGHED = """
graph @weighed(%x: f32[8] split(0), %rows: f32[8] split(0), state %w: f32[]) -> (y: f32[8]) {
  %wide = broadcast %w {dims=[], shape=[8]} : f32[8]
  %z = mul %x, %wide : f32[8]
  %y = mul %z, %rows : f32[8]
  return %y
}
"""
OF_NUMBERS = ls.loss.l1("y", "target")


@pytest.mark.parametrize(
    ("model", "found"),
    [(WEIGHED, r"f32\[8\]"), (WEIGHED.replace("%rows: f32[8] split(0), state %w", "state %rows").replace("%w ", "%rows ").replace("%z, %rows", "%z, %x"), r"f32\[\]")],
    ids=["input", "state"],
)  # fmt: skip
@pytest.mark.parametrize(
    "made",
    [
        lambda model: ls.train_step(model, OF_NUMBERS, ls.optim.SGD(0.1), uneven=True),
        lambda model: ls.evaluation(model, OF_NUMBERS),
        lambda model: ls.Trainer(model, OF_NUMBERS, ls.optim.SGD(0.1)),
    ],
    ids=["train_step", "evaluation", "Trainer"],
)
def test_a_model_with_an_input_of_its_own_called_rows_is_an_error(model: str, found: str, made: Any) -> None:
    with pytest.raises(
        ls.Error, match=rf"uneven: graph @weighed has an input %rows {found} of its own, .*uneven=False"
    ):
        made(ls.parse(model))


def test_a_target_called_rows_is_an_error() -> None:
    model = ls.parse(WEIGHED.replace("%rows: f32[8] split(0), ", "").replace("%z, %rows", "%z, %x"))
    loss = ls.loss.l1("y", "rows")
    with pytest.raises(
        ls.Error, match=r"loss l1: target is named %rows, .*: give it another name, or set uneven=False"
    ):
        ls.train_step(model, loss, ls.optim.SGD(0.1), uneven=True)
    assert "rows" in [each.name for each in ls.train_step(model, loss, ls.optim.SGD(0.1)).inputs]


def test_full_batches_go_with_an_input_of_the_models_own_called_rows() -> None:
    """It is an input like others: neither optional, nor the mark of a step that is uneven."""
    random, model = np.random.Generator(np.random.PCG64(6)), ls.parse(WEIGHED)
    x, rows, target = random.uniform(0.5, 2, (3, 8)).astype(np.float32)
    step = ls.compile(ls.train_step(model, OF_NUMBERS, ls.optim.SGD(0.0)), threads=1)
    step.state["w"] = np.float32(2)
    expected = pytest.approx(np.abs(2 * x * rows - target).mean(), rel=1e-5)
    assert step(x=x, rows=rows, target=target)["loss"] == expected
    with pytest.raises(ls.Error, match="input rows is missing"):
        step(x=x, target=target)
    with pytest.raises(ls.Error, match=r"joined: .*uneven=True"):
        step.joined([])
    evaluation = ls.compile(ls.evaluation(model, OF_NUMBERS, uneven=False), threads=1)
    evaluation.state["w"] = np.float32(2)
    for batch in ((x, rows, target), {"x": x, "rows": rows, "target": target}):
        assert evaluation.evaluate([batch]) == {"loss": expected}
    with pytest.raises(ls.Error, match="a batch has 4 arrays, expected x, rows, target"):
        evaluation.evaluate([(x, rows, target, rows)])
    with pytest.raises(ls.Error, match="Trainer: @weighed has an input %rows, .*: give it another name"):
        ls.Trainer(model, OF_NUMBERS, ls.optim.SGD(0.0), uneven=False)


@pytest.mark.parametrize("rows", [np.zeros(3, bool), np.zeros((), np.float32)], ids=["bools", "scalar"])
def test_an_input_called_rows_of_another_type_that_is_missing(rows: np.ndarray) -> None:
    g = ls.graph.Builder("own")
    g.result("y", g.input("x", "f32", (4,), split=0))
    g.result("rows", g.input("rows", rows.dtype, rows.shape))
    exe = ls.compile(g.finish(), threads=1)
    with pytest.raises(ls.Error, match="input rows is missing"):
        exe(x=np.ones(4, np.float32))
    assert exe(x=np.ones(4, np.float32), rows=rows)["rows"].shape == rows.shape


def test_joined_needs_a_step_that_is_uneven() -> None:
    exe = ls.compile(step_of(CASES[1], 8), threads=1)
    with pytest.raises(ls.Error, match=r"joined: .*uneven=True"):
        exe.joined([])


@pytest.mark.parametrize("batch", [("x", "label"), None, 5], ids=str)
def test_what_is_no_batch_is_an_error_on_all_ranks(batch: Any) -> None:
    step = step_of(CASES[1], 8, uneven=True)

    def body(world: ls.Communicator) -> None:
        exe = ls.compile(step, world=world, threads=1)
        list(exe.joined([batch] if world.rank == 0 else batches_of(CASES[1], [4], 0)))

    for message in errors_of(2, body):
        assert f"joined: a batch is a {type(batch).__name__}, expected inputs by name" in message


# --- Padding ---------------------------------------------------------------------------------------------------------

# The directions of rows. For a row of zeros the direction is NaN, and its gradient is multiplied by infinity.
DIRECTIONS = """
graph @directions(%x: f32[8,3] split(0), state %v: f32[3,3], state %w: f32[3,2]) -> (logits: f32[8,2] split(0)) {
  %h = matmul %x, %v : f32[8,3]
  %squares = mul %h, %h : f32[8,3]
  %sum = reduce_sum %squares {dims=[1]} : f32[8]
  %inverse = rsqrt %sum : f32[8]
  %wide = broadcast %inverse {dims=[0], shape=[8,3]} : f32[8,3]
  %y = mul %h, %wide : f32[8,3]
  %z = matmul %y, %w : f32[8,2]
  return %z
}
"""


def test_what_pads_is_computed_of_numbers() -> None:
    """The model computes NaN from zeros, and NaN times a weight of 0 is NaN."""
    random = np.random.Generator(np.random.PCG64(5))
    x, label = random.standard_normal((6, 3)).astype(np.float32), random.integers(0, 2, 6)
    values = {"v": random.standard_normal((3, 3)).astype(np.float32), "w": np.ones((3, 2), np.float32)}
    loss, optimizer = ls.loss.softmax_cross_entropy("logits", "label"), ls.optim.SGD(0.1)
    uneven = ls.train_step(ls.parse(DIRECTIONS), loss, optimizer, uneven=True)

    def body(world: ls.Communicator) -> tuple[list[float], dict[str, np.ndarray]]:
        exe = ls.compile(uneven, world=world, threads=1)
        for name, value in values.items():
            exe.state[name] = value
        own = [slice(0, 3), slice(5, 6)] if world.rank == 0 else [slice(3, 5)]
        losses = [float(each["loss"]) for each in exe.joined({"x": x[rows], "label": label[rows]} for rows in own)]
        return losses, dict(exe.state)

    expected, states = [], values
    for rows in (slice(0, 5), slice(5, 6)):
        model = ls.parse(DIRECTIONS.replace("[8", f"[{rows.stop - rows.start}"))
        exe = ls.compile(ls.train_step(model, loss, optimizer), threads=1)
        for name, value in states.items():
            exe.state[name] = value
        expected.append(float(exe(x=x[rows], label=label[rows])["loss"]))
        states = dict(exe.state)
    for found in run_in_threads(2, body):
        assert_same(found, (expected, states))
