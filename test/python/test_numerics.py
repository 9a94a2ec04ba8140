"""find_nan and compile(check_numerics=True): the op that is named is the one that the model is made to fail in."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import lockstep as ls
from cases import CASES
from ranks import errors_of, mpirun, run_in_threads

HERE = Path(__file__).parent
ROWS = 12  # of all ranks
fused = pytest.mark.parametrize("optimize", [True, False], ids=["fused", "unfused"])

# The logarithm of a product: NaN for a row of x that is negative.
NET = """graph @net(%x: f32[12,4] split(0), state %w: f32[4,3], state %v: f32[3,2]) -> (y: f32[12,2]) {
  %a = matmul %x, %w : f32[12,3] @"net:/fc1"
  %b = log %a : f32[12,3] @"net:/log"
  %c = neg %b : f32[12,3] @"net:/neg"
  %y = matmul %c, %v : f32[12,2] @"net:/fc2"
  return %y
}
"""
LOSS = ls.loss.mean_squared_error("y", "target")


def graph_of(
    lines: str, results: str = "y", signature: str = "%x: f32[12] split(0)", kind: str = "f32[12]"
) -> ls.Graph:
    """A graph of one line for each op, whose sources are their lines' names."""
    return ls.parse(f"graph @net({signature}) -> ({results}: {kind}) {{\n{lines}\n  return %{results}\n}}\n")


def training(text: str = NET, optimizer: Any = None, **options: Any) -> ls.Graph:
    return ls.train_step(ls.parse(text), LOSS, optimizer or ls.optim.SGD(0.1), **options)


def wrong_with_a_result(name: str) -> ls.Graph:
    """A graph whose loss and state become NaN for x below 1, and whose result `name` is 0."""
    g = ls.graph.Builder("own")
    x, w = g.input("x", "f32", (4,), split=0), g.state("w", (), init=1.0)
    g.result("loss", ls.graph.log(x - 1).sum())
    g.result(name, (x < 0).to("f32").sum())
    g.next_state("w", w * ls.graph.log(x - 1).sum())
    return g.finish()


def with_states(exe: ls.Executable) -> ls.Executable:
    for name in ("w", "v"):
        exe.state[name] = np.ones(exe.state[name].shape, np.float32)
    return exe


def rows_of(world: ls.Communicator, rows: np.ndarray) -> np.ndarray:
    return np.array_split(rows, world.size)[world.rank]


def batch(world: ls.Communicator, wrong: int | None = None, value: float = -1.0) -> dict[str, np.ndarray]:
    """This rank's rows. The row `wrong` of the whole batch has this value; the others are positive."""
    x = np.full((ROWS, 4), 0.5, np.float32)
    if wrong is not None:
        x[wrong] = value
    return {"x": rows_of(world, x), "target": rows_of(world, np.zeros((ROWS, 2), np.float32))}


def states(exe: ls.Executable) -> dict[str, bytes]:
    return {name: exe.state[name].tobytes() for name in exe.state}


@fused
@pytest.mark.parametrize("n", [1, 2, 3])
def test_the_op_the_layer_and_the_rank_are_named(n: int, optimize: bool) -> None:
    def body(world: ls.Communicator) -> Any:
        exe = with_states(ls.compile(training(), world=world, threads=1, optimize=optimize))
        exe(**batch(world))
        before = states(exe)
        assert ls.find_nan(exe, **batch(world)) is None
        found = ls.find_nan(exe, **batch(world, ROWS - 1))
        assert states(exe) == before
        after = exe(**batch(world))["loss"]  # the program still runs
        return found, float(after)

    for found, loss in run_in_threads(n, body):
        assert (found.op, found.layer, found.rank, found.step) == ("log", "net:/log", n - 1, 1)
        assert (found.value.nans, found.value.infinities, found.value.elements) == (3, 0, 36 // n)
        assert len(found.operands) == 1 and found.operands[0].nans == 0 and found.operands[0].least < 0
        text = str(found)
        assert f"step 1, rank {n - 1}: log makes %b: 3 NaN of {36 // n}, first at [{ROWS // n - 1}, 0]" in text
        assert found.first == (ROWS // n - 1, 0) and "at net:/log" in text
        assert "%a: -" in text
        assert np.isfinite(loss)


@fused
def test_an_input_is_named_if_the_nan_came_from_there(optimize: bool) -> None:
    def body(world: ls.Communicator) -> Any:
        exe = with_states(ls.compile(training(), world=world, threads=1, optimize=optimize))
        return ls.find_nan(exe, **batch(world, ROWS - 1, np.nan))

    for found in run_in_threads(2, body):
        assert (found.op, found.value.name, found.rank) == ("input", "x", 1), found
        assert (found.value.nans, found.value.elements) == (4, 24)
        assert str(found) == "step 0, rank 1: input %x: 4 NaN of 24, first at [5, 0], the others 0.5 to 0.5"


@fused
def test_a_state_is_named_if_the_nan_came_from_there(optimize: bool) -> None:
    def body(world: ls.Communicator) -> Any:
        exe = with_states(ls.compile(training(), world=world, threads=1, optimize=optimize))
        w = np.array(exe.state["w"])
        w[2, 1] = np.nan
        exe.state["w"] = w
        return ls.find_nan(exe, **batch(world)), np.isnan(exe.state["w"]).sum()

    for found, nans in run_in_threads(2, body):
        assert (found.op, found.value.name, found.rank, found.value.nans) == ("state", "w", 0, 1), found
        assert nans == 1


@fused
def test_an_op_of_the_gradient_is_named(optimize: bool) -> None:
    """The square root of 0 is 0, but its derivative is infinite; 0 times that is NaN."""
    text = NET.replace("log", "sqrt")
    exe = with_states(ls.compile(training(text), threads=1, optimize=optimize))
    exe.state["v"] = np.zeros((3, 2), np.float32)
    x = np.zeros((ROWS, 4), np.float32)
    inputs = {"x": x, "target": np.ones((ROWS, 2), np.float32)}
    assert ls.find_nan(exe, **(inputs | {"x": x + 1})) is None
    found = ls.find_nan(exe, **inputs)
    assert found is not None
    assert found.layer == "gradient of net:/sqrt", found
    assert all(operand.nans == operand.infinities == 0 for operand in found.operands)
    assert np.isfinite(exe(**inputs)["loss"])


def test_a_quotient_of_zeros_in_a_loss_is_named() -> None:
    exe = ls.compile(
        graph_of(
            '  %s = reduce_sum %x {dims=[0]} : f32[] @"loss:/sum"\n  %loss = div %s, %s : f32[] @"loss:/mean"',
            "loss",
            kind="f32[]",
        ),
        threads=1,
    )
    assert ls.find_nan(exe, x=np.ones(12, np.float32)) is None
    found = ls.find_nan(exe, x=np.zeros(12, np.float32))
    assert found is not None
    assert (found.op, found.layer, found.value.nans, found.value.elements) == ("div", "loss:/mean", 1, 1)


@fused
def test_an_infinity_that_becomes_nan_is_named_where_it_was_made(optimize: bool) -> None:
    """In f16, 300 squared overflows, and the difference of infinities is NaN."""
    graph = graph_of(
        '  %h = convert %x {dtype=f16} : f16[12] @"/half"\n  %q = mul %h, %h : f16[12] @"/square"\n'
        '  %r = neg %q : f16[12] @"/neg"\n  %t = add %q, %r : f16[12] @"/sum"\n  %y = convert %t {dtype=f32} : f32[12] @"/float"'
    )

    def body(world: ls.Communicator) -> Any:
        exe = ls.compile(graph, world=world, threads=1, optimize=optimize)
        x = np.full(12, 2, np.float32)
        x[7] = 300
        return ls.find_nan(exe, x=rows_of(world, x)), ls.find_nan(exe, x=rows_of(world, x * 0))

    for found, none in run_in_threads(2, body):
        assert none is None
        assert (found.op, found.layer, found.rank) == ("mul", "/square", 1), found
        assert (found.value.nans, found.value.infinities) == (0, 1)
        assert found.operands[0].most == 300
        assert found.becomes_nan == "add %t, at /sum"
        assert str(found).endswith("which becomes NaN in add %t, at /sum")


def test_an_infinity_without_a_nan_is_named_if_it_is_made_by_arithmetic() -> None:
    exe = ls.compile(graph_of('  %y = exp %x : f32[12] @"/exp"'), threads=1)
    found = ls.find_nan(exe, x=np.full(12, 100, np.float32))
    assert found is not None
    assert (found.op, found.layer, found.value.infinities, found.becomes_nan) == ("exp", "/exp", 12, "")
    assert ls.find_nan(exe, x=np.full(12, -np.inf, np.float32)) is None
    assert ls.find_nan(exe, x=np.full(12, 10, np.float32)) is None


MASKED = """graph @masked(%x: f32[4,3] split(0), %keep: bool[4,3] split(0)) -> (y: f32[4,3]) {
  %m = constant {value=dense<f32[4,3]: -inf>} : f32[4,3] @"/mask"
  %s = select %keep, %x, %m : f32[4,3] @"/where"
  %y = softmax %s {dim=1} : f32[4,3] @"/softmax"
  return %y
}
"""


def test_a_mask_is_intended_but_a_row_of_masks_is_not() -> None:
    exe = ls.compile(ls.parse(MASKED), threads=1)
    x, keep = np.zeros((4, 3), np.float32), np.ones((4, 3), bool)
    keep[1, 1:] = False
    assert ls.find_nan(exe, x=x, keep=keep) is None
    keep[1] = False
    found = ls.find_nan(exe, x=x, keep=keep)
    assert found is not None
    assert (found.layer, found.value.nans, found.operands[0].infinities) == ("/softmax", 3, 3), found
    assert found.infinite_since.startswith("constant %") and found.first == (1, 0), found


def test_a_mask_computed_from_constants_is_intended() -> None:
    """The lowest number of f32 is -inf in f16."""
    exe = ls.compile(
        graph_of(
            '  %m = constant {value=dense<f32[12]: -3e+38>} : f32[12] @"/mask"\n  %n = convert %m {dtype=f16} : f16[12] @"/half"\n'
            '  %o = convert %n {dtype=f32} : f32[12] @"/float"\n  %y = max %x, %o : f32[12] @"/max"'
        ),
        threads=1,
    )
    assert ls.find_nan(exe, x=np.zeros(12, np.float32)) is None


def test_a_constant_with_a_nan_is_named() -> None:
    text = "  %m = constant {value=dense<f32[]: nan>} : f32[]\n  %b = broadcast %m {dims=[], shape=[12]} : f32[12]\n"
    exe = ls.compile(graph_of(text + '  %y = add %x, %b : f32[12] @"/add"'), threads=1)
    found = ls.find_nan(exe, x=np.zeros(12, np.float32))
    assert found is not None and (found.op, found.value.nans > 0) == ("constant", True), found


@pytest.mark.parametrize("operands", ["%m, %e", "%e, %m"])
def test_an_overflow_beside_a_mask_is_named(operands: str) -> None:
    text = '  %m = constant {value=dense<f32[12]: -inf>} : f32[12]\n  %e = exp %x : f32[12] @"/exp"\n'
    exe = ls.compile(graph_of(text + f'  %y = add {operands} : f32[12] @"/add"'), threads=1)
    found = ls.find_nan(exe, x=np.full(12, 100, np.float32))
    assert found is not None and (found.op, found.layer, found.becomes_nan) == ("exp", "/exp", "add %y, at /add"), found


# The exponential overflows, and the minimum of it and 1 is finite.
CLAMPED = """  %e = exp %x : f32[12] @"/exp"
  %o = constant {value=dense<f32[]: 1.0>} : f32[]
  %p = broadcast %o {dims=[], shape=[12]} : f32[12]
  %m = min %e, %p : f32[12] @"/min"
"""


def test_an_infinity_without_effect_is_not_named() -> None:
    exe = ls.compile(graph_of(CLAMPED + '  %y = neg %m : f32[12] @"/neg"'), threads=1, check_numerics=True)
    x = np.full(12, 100, np.float32)
    assert ls.find_nan(exe, x=x) is None
    assert (exe(x=x)["y"] == -1).all()


@fused
@pytest.mark.parametrize("op", ["log", "exp"], ids=["NaN", "infinity"])
def test_an_infinity_without_effect_is_not_named_beside_a_cause(op: str, optimize: bool) -> None:
    """The cause comes later in the program than the exponential."""
    sign = "neg" if op == "log" else "abs"
    lines = f'  %n = {sign} %x : f32[12] @"/sign"\n  %l = {op} %n : f32[12] @"/cause"\n'
    exe = ls.compile(graph_of(CLAMPED + lines + '  %y = add %m, %l : f32[12] @"/add"'), threads=1, optimize=optimize)
    found = ls.find_nan(exe, x=np.full(12, 100, np.float32))
    assert found is not None and (found.op, found.layer, found.becomes_nan) == (op, "/cause", ""), found


@fused
def test_the_nan_of_a_state_is_traced_and_not_that_of_an_unused_value(optimize: bool) -> None:
    """The loss is the mean of y; a NaN in a branch that `select` drops reaches neither it nor a gradient."""
    text = """graph @net(%x: f32[12,4] split(0), state %w: f32[4,2], state %v: f32[4,2]) -> (y: f32[12,2]) {
  %a = matmul %x, %w : f32[12,2] @"net:/fc1"
  %l = log %a : f32[12,2] @"net:/dropped"
  %z = constant {value=dense<f32[]: 0.0>} : f32[]
  %zs = broadcast %z {dims=[], shape=[12,2]} : f32[12,2]
  %is = compare %a, %zs {direction=gt} : bool[12,2] @"net:/compare"
  %s = select %is, %l, %zs : f32[12,2] @"net:/select"
  %b = matmul %x, %v : f32[12,2] @"net:/fc2"
  %r = sqrt %b : f32[12,2] @"net:/sqrt"
  %y = add %s, %r : f32[12,2] @"net:/add"
  return %y
}
"""
    exe = ls.compile(training(text), threads=1, optimize=optimize)
    exe.state["w"] = np.full((4, 2), -1, np.float32)
    exe.state["v"] = np.full((4, 2), -1, np.float32)
    x, target = np.ones((12, 4), np.float32), np.zeros((12, 2), np.float32)
    found = ls.find_nan(exe, x=x, target=target)
    assert found is not None and (found.op, found.layer) == ("sqrt", "net:/sqrt"), found


def test_a_sum_that_overflows_only_in_the_optimized_program() -> None:
    """With `uneven`, the optimized program divides the gradient by the number of rows after summing it over ranks. Each
    rank's sum is 2.4e38, and that of both is more than f32 holds.
    """
    text = """graph @net(%x: f32[12,1] split(0), state %w: f32[1,1]) -> (y: f32[12,1]) {
  %y = matmul %x, %w : f32[12,1] @"net:/fc"
  return %y
}
"""
    step = ls.train_step(ls.parse(text), ls.loss.l1("y", "target"), ls.optim.SGD(1e-38), uneven=True)

    def body(world: ls.Communicator, **options: Any) -> Any:
        exe = ls.compile(step, world=world, threads=1, **options)
        inputs = {"x": np.full((6, 1), 4e37, np.float32), "target": np.full((6, 1), -1, np.float32)}
        found = ls.find_nan(exe, **inputs)
        before = exe.state["w"].tobytes()
        with pytest.raises(ls.Error) as error:
            ls.compile(step, world=world, threads=1, check_numerics=True, **options)(**inputs)
        assert exe.state["w"].tobytes() == before
        return found, str(error.value)

    for found, error in run_in_threads(2, body):
        assert found.only_optimized and found.value.infinities == 1, found
        assert found.op == "all_reduce" and all(each.infinities == 0 for each in found.operands), found
        assert "only in the optimized program: with optimize=False it is finite" in str(found) and str(found) in error
    found = run_in_threads(
        2,
        lambda world: ls.find_nan(
            ls.compile(step, world=world, threads=1, optimize=False),
            x=np.full((6, 1), 4e37, np.float32),
            target=np.full((6, 1), -1, np.float32),
        ),
    )
    assert found == [None, None]


def test_the_gradient_that_a_loss_scale_found_is_named() -> None:
    """The step is skipped, so nothing of it is infinite; find_nan names the op that overflowed all the same."""
    exe = with_states(ls.compile(training(NET.replace("log", "exp"), precision="f16"), threads=1))
    inputs = batch(ls.Communicator.single()) | {"target": np.full((ROWS, 2), 100, np.float32)}
    found = ls.find_nan(exe, **inputs)
    assert found is not None and found.value.infinities > 0 and "gradient of" in found.layer, found
    assert all(each.infinities == each.nans == 0 for each in found.operands)
    assert found.has_no_effect
    assert str(found).endswith("which reaches no result and no state: the loss scale skips this step")
    before = exe.state["w"].tobytes()
    exe(**inputs)
    assert exe.state["w"].tobytes() == before and float(exe.state["loss_scale/scale"]) == 32768


def test_uneven_batches() -> None:
    """Rank 1 has one row, and it is the wrong one. The rows that are not there make no NaN."""

    def body(world: ls.Communicator) -> Any:
        exe = with_states(ls.compile(training(uneven=True), world=world, threads=1))
        own = slice(0, 3) if world.rank == 0 else slice(0, 1)
        inputs = {name: value[own] for name, value in batch(world, 6).items()}
        fine = {name: value[own] for name, value in batch(world).items()}
        return ls.find_nan(exe, **fine), ls.find_nan(exe, **inputs)

    for none, found in run_in_threads(2, body):
        assert none is None
        assert (found.op, found.layer, found.rank) == ("log", "net:/log", 1), found


@pytest.mark.parametrize("n", [1, 2])
def test_rows_that_pad_an_input_are_not_counted(n: int) -> None:
    """One row of 4 numbers, with one NaN, of as many as `share`, to which copies of the row are added."""

    def body(world: ls.Communicator) -> Any:
        exe = with_states(ls.compile(training(uneven=True), world=world, threads=1))
        x = np.full((1, 4), 0.5, np.float32)
        x[0, 2] = np.nan if world.rank == n - 1 else 0.5
        return ls.find_nan(exe, x=x, target=np.zeros((1, 2), np.float32))

    for found in run_in_threads(n, body):
        text = f"step 0, rank {n - 1}: input %x: 1 NaN of 4, first at [0, 2], the others 0.5 to 0.5"
        assert str(found) == text and found.value.elements == 4


@pytest.mark.parametrize(
    "rows",
    [np.array([1, 1, 0, 0], np.float32), np.zeros(4096, bool), np.zeros((), np.int64)],
    ids=["f32", "bool", "i64"],
)
def test_an_input_called_rows_tells_nothing_of_padding(rows: np.ndarray) -> None:
    g = ls.graph.Builder("own")
    g.result("y", g.input("x", "f32", (4,), split=0))
    g.input("rows", rows.dtype, rows.shape, split=0 if rows.shape == (4,) else None)
    found = ls.find_nan(ls.compile(g.finish()), x=np.array([1, np.nan, 1, 1], np.float32), rows=rows)
    assert str(found) == "step 0, rank 0: input %x: 1 NaN of 4, first at [1], the others 1.0 to 1.0"


@fused
def test_an_infinite_input_that_makes_a_nan_is_named_beside_the_op(optimize: bool) -> None:
    """Infinite inputs may be intended, but the difference of infinities in the product is NaN."""

    def body(world: ls.Communicator) -> Any:
        exe = with_states(ls.compile(training(NET.replace("log", "abs")), world=world, threads=1, optimize=optimize))
        exe.state["v"] = np.float32([[1, -1], [-1, 1], [1, 1]])
        inputs = batch(world)
        if world.rank == 1:
            inputs["x"][5, 0] = np.inf
        return ls.find_nan(exe, **inputs)

    for found in run_in_threads(2, body):
        since = "input %x on rank 1: 1 infinite of 24, first at [5, 0], the others 0.5 to 0.5"
        assert (found.op, found.rank, found.infinite_since) == ("matmul", 1, since), found
        assert f"\n  infinite since {since}" in str(found)


@pytest.mark.parametrize("n", [1, 2])
def test_a_micro_batch(n: int) -> None:
    def body(world: ls.Communicator) -> Any:
        exe = with_states(ls.compile(training(accumulate=2), world=world, threads=1))
        return ls.find_nan(exe, **batch(world)), ls.find_nan(exe, **batch(world, ROWS - 1))

    for none, found in run_in_threads(n, body):
        assert none is None
        assert (found.op, found.layer, found.rank) == ("log", "net:/log", n - 1), found
        assert found.iteration == "iteration 1 of 2" and ", at net:/log, iteration 1 of 2\n" in str(found)


def test_shards_of_the_optimizer_and_a_sum_over_ranks_that_overflows() -> None:
    """Each rank's gradient of v is finite in f32, and their sum is not."""

    def body(world: ls.Communicator) -> Any:
        exe = with_states(ls.compile(training(), world=world, threads=1, shard_optimizer=True))
        exe.state["v"] = np.full((3, 2), 3e19, np.float32)
        return ls.find_nan(exe, **(batch(world) | {"x": np.full((6, 4), 1e25, np.float32)}))

    first, second = run_in_threads(2, body)
    assert first == second and first.value.infinities > 0, first
    assert all(operand.infinities == 0 for operand in first.operands)


def test_an_error_leaves_the_states() -> None:
    exe = with_states(ls.compile(training(), threads=1))
    before = states(exe)
    with pytest.raises(ls.Error, match="input target is missing"):
        ls.find_nan(exe, x=np.ones((12, 4), np.float32))
    with pytest.raises(ls.Error, match="find_nan: exe is 'text', expected a lockstep.Executable"):
        ls.find_nan("text")  # type: ignore[arg-type]
    assert states(exe) == before
    assert np.isfinite(exe(**batch(ls.Communicator.single()))["loss"])


@pytest.mark.parametrize("wrong", [(0, 1), (1,)], ids=["all ranks", "one rank"])
@pytest.mark.parametrize(
    ("mistake", "message"),
    [
        ({"target": None}, "input target is missing"),
        ({"y": np.zeros((6, 2), np.float32)}, "there is no input y"),
        ({"target": np.zeros((6, 3), np.float32)}, "input target: expected"),
        ({"target": "text"}, "input target"),
    ],
    ids=["missing", "unknown", "shape", "no array"],
)
def test_inputs_that_do_not_fit_are_harmless(wrong: tuple[int, ...], mistake: dict[str, Any], message: str) -> None:
    def body(world: ls.Communicator) -> Any:
        exe = with_states(ls.compile(training(), world=world, threads=1))
        inputs = batch(world) | (mistake if world.rank in wrong else {})
        with pytest.raises((ls.Error, TypeError)) as error:
            ls.find_nan(exe, **{name: value for name, value in inputs.items() if value is not None})
        assert ls.find_nan(exe, **batch(world, 0)) is not None
        assert np.isfinite(exe(**batch(world))["loss"])
        return str(error.value)

    errors = run_in_threads(2, body)
    assert all(message in error for error in errors), errors
    assert ("rank 1" in errors[0]) == (0 not in wrong), errors


def test_stages_are_an_error() -> None:
    def body(world: ls.Communicator) -> Any:
        model = ls.load_onnx(HERE.parent / "models/mlp.onnx", dims={"batch": 6})
        step = ls.train_step(model, ls.loss.softmax_cross_entropy("logits", "label"), ls.optim.SGD(0.1), accumulate=2)
        exe = ls.compile(step, world=world, threads=1, mesh={"data": 1, "stage": 2})
        with pytest.raises(ls.Error, match="find_nan: a mesh with the axis stage"):
            ls.find_nan(exe, x=np.ones((6, 12), np.float32), label=np.zeros(6, np.int64))

    assert run_in_threads(2, body) == [None, None]


# --- The warning


def test_a_loss_that_is_nan_says_so_once(caplog: pytest.LogCaptureFixture) -> None:
    def body(world: ls.Communicator) -> None:
        exe = with_states(ls.compile(training(), world=world, threads=1))
        exe(**batch(world))
        for _ in range(3):
            exe(**batch(world, 0))

    with caplog.at_level(logging.WARNING, "lockstep"):
        assert run_in_threads(2, body) == [None, None]
    told = [record.getMessage() for record in caplog.records if "loss" in record.getMessage()]
    assert len(told) == 1 and "the loss of step 1 is nan" in told[0]
    assert told[0].index("check_numerics=True") < told[0].index("find_nan")


def test_a_started_call_says_so_when_it_is_read(caplog: pytest.LogCaptureFixture) -> None:
    exe = with_states(ls.compile(training(), threads=1))
    with caplog.at_level(logging.WARNING, "lockstep"):
        started = exe.start(**batch(ls.Communicator.single(), 0))
        assert not caplog.records
        assert np.isnan(started["loss"])
    assert [record.getMessage().split(";")[0] for record in caplog.records] == ["@net: the loss of step 0 is nan"]


def test_an_evaluation_and_a_call_without_rows_do_not(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "lockstep"):
        exe = with_states(ls.compile(ls.evaluation(ls.parse(NET), LOSS), threads=1))
        assert np.isnan(exe.evaluate([])["loss"])
        exe = with_states(ls.compile(training(uneven=True), threads=1))
        assert list(exe.joined([])) == []
    assert not caplog.records


def test_a_result_called_rows_that_is_zero_does_not_hide_the_loss(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "lockstep"):
        ls.compile(wrong_with_a_result("rows"))(x=np.full(4, 0.5, np.float32))
    assert [record.getMessage().split(";")[0] for record in caplog.records] == ["@own: the loss of step 0 is nan"]


# --- Over MPI


def test_processes_name_the_same_op(tmp_path: Path) -> None:
    done = mpirun(2, HERE / "mpi_numerics.py", tmp_path)
    assert done.returncode == 0, done.stderr
    texts = [(tmp_path / f"{rank}.txt").read_text() for rank in range(2)]
    assert texts[0] == texts[1]
    assert texts[0].startswith("step 0, rank 1: log makes %b: 3 NaN of 18") and "net:/log" in texts[0]


# --- compile(check_numerics=True)


@fused
@pytest.mark.parametrize("n", [1, 2, 3])
def test_a_wrong_step_is_an_error_and_is_undone(n: int, optimize: bool) -> None:
    step = training(optimizer=ls.optim.Adam(0.01))

    def body(world: ls.Communicator) -> Any:
        exe = with_states(ls.compile(step, world=world, threads=1, optimize=optimize, check_numerics=True))
        plain = with_states(ls.compile(step, world=world, threads=1, optimize=optimize))
        exe(**batch(world))
        before = states(exe)
        with pytest.raises(ls.Error) as error:
            exe(**batch(world, ROWS - 1))
        assert states(exe) == before and exe.step == 1
        with pytest.raises(ls.Error, match="step 1, rank"):
            dict(exe.start(**batch(world, ROWS - 1)))
        exe(**batch(world))
        for _ in range(2):
            plain(**batch(world))
        assert states(exe) == states(plain)  # as if the wrong steps had not been
        return str(error.value)

    errors = run_in_threads(n, body)
    assert errors == [errors[0]] * n, errors
    assert f"check_numerics: step 1, rank {n - 1}: log makes %b: 3 NaN of {36 // n}" in str(errors[0])
    assert "net:/log" in str(errors[0]) and "The states are those before this step." in str(errors[0])


@pytest.mark.parametrize(
    ("options", "of_step"),
    [
        ({"wire": "bf16"}, {}),
        ({"wire": "int8"}, {}),
        ({"shard_optimizer": True}, {}),
        ({"shared_weights": True}, {}),
        ({"virtual_ranks": 4}, {}),
        ({"mesh": {"data": 1, "model": 2}, "split": {"w": {"model": 0}}}, {}),
        ({}, {"accumulate": 2}),
        ({}, {"uneven": True}),
        ({}, {"frozen": ["w"]}),
        ({}, {"precision": "bf16"}),
        ({}, {"clip": ls.clip.global_norm(1.0), "average": lambda step: 0.9}),
    ],
    ids=lambda options: ",".join(options) or "no option",
)
def test_a_wrong_step_is_undone_in_other_programs(options: dict[str, Any], of_step: dict[str, Any]) -> None:
    count = 24
    step = training(NET.replace("[12", f"[{count}"), ls.optim.Adam(0.01), **of_step)

    def inputs(world: ls.Communicator, row: int | None = None) -> dict[str, np.ndarray]:
        if "mesh" in options:  # both ranks have all rows
            world = ls.Communicator.single()
        x, target = np.full((count, 4), 0.5, np.float32), np.zeros((count, 2), np.float32)
        if row is not None:
            x[row] = -1
        return {"x": rows_of(world, x), "target": rows_of(world, target)}

    def body(world: ls.Communicator) -> Any:
        exe = with_states(ls.compile(step, world=world, threads=1, check_numerics=True, **options))
        exe(**inputs(world))
        before = states(exe)
        with pytest.raises(ls.Error) as error:
            exe(**inputs(world, count - 1))
        undone = states(exe) == before
        exe(**inputs(world))
        return str(error.value), undone, states(exe)

    def without(world: ls.Communicator) -> Any:
        exe = with_states(ls.compile(step, world=world, threads=1, **options))
        for _ in range(2):
            exe(**inputs(world))
        return states(exe)

    found = run_in_threads(2, body)
    assert not isinstance(found[0], Exception), found
    plain = run_in_threads(2, without)
    for rank, (error, undone, after) in enumerate(found):
        of_all_rows = "mesh" in options
        assert f"check_numerics: step 1, rank {0 if of_all_rows else 1}: log makes " in error and "net:/log" in error
        assert undone
        assert after == plain[rank]


def test_an_overflow_of_the_learning_rate_that_is_set_is_named() -> None:
    """Only with the rate that was set later, and not with that of the compilation, does the update overflow."""

    def body(world: ls.Communicator) -> Any:
        exe = with_states(ls.compile(training(), world=world, threads=1))
        none = ls.find_nan(exe, **batch(world))
        exe.set(**{"optimizer/learning_rate": 3e38})
        found = ls.find_nan(exe, **batch(world))
        exe.set(**{"optimizer/learning_rate": lambda step: 1e-3 if step == 0 else 3e38})
        scheduled = ls.find_nan(exe, **batch(world))
        exe(**batch(world))
        return none, found, scheduled, ls.find_nan(exe, **batch(world))

    for none, found, scheduled, later in run_in_threads(2, body):
        assert none is None and scheduled is None
        assert found.layer.startswith("optimizer of") and (found.rank, found.step) == (0, 0), found
        assert found.value.infinities > 0 and all(each.infinities == 0 for each in found.operands)
        assert later.layer.startswith("optimizer of") and later.step == 1


def test_frozen_states_in_memory_that_is_not_writable() -> None:
    exe = with_states(ls.compile(training(frozen=["w"]), threads=1, check_numerics=True))
    w = np.ones((4, 3), np.float32)
    w.setflags(write=False)
    exe.bind(states={"w": w})
    world = ls.Communicator.single()
    exe(**batch(world))
    before = states(exe)
    with pytest.raises(ls.Error, match="rank 0: log makes"):
        exe(**batch(world, 0))
    assert states(exe) == before
    exe(**batch(world))


def test_a_state_that_is_infinite_before_and_after_is_no_error() -> None:
    """The largest value so far, which is -inf in a channel that has had none."""
    text = """graph @net(%x: f32[12] split(0), state %m: f32[12]) -> (y: f32[12], %m: f32[12]) {
  %n = max %m, %x : f32[12] @"net:/max"
  %y = exp %n : f32[12] @"net:/exp"
  return %y, %n
}
"""
    exe = ls.compile(ls.parse(text), threads=1, check_numerics=True)
    exe.state["m"] = np.full(12, -np.inf, np.float32)
    x = np.full(12, -np.inf, np.float32)
    x[3] = 1
    for _ in range(2):
        exe(x=x)
    assert np.isinf(exe.state["m"]).sum() == 11
    x[4] = 100
    with pytest.raises(
        ls.Error, match=r"exp makes %y: 1 infinite of 12, first at \[4\], the others 0.0 to 2.71828, at net:/exp"
    ):
        exe(x=x)
    assert exe.state["m"][4] == -np.inf
    found = ls.find_nan(exe, x=np.where(x == 100, np.nan, x))
    assert found is not None and (found.op, found.value.name) == ("input", "x")


@pytest.mark.parametrize("op", ["log", "exp"], ids=["NaN", "infinity"])
def test_the_element_tells_which_operand_is_the_cause(op: str) -> None:
    """`select` takes the first half from a value that is wrong in the second, and the second from the cause."""
    exe = ls.compile(
        graph_of(
            CLAMPED
            + "  %k = constant {value=dense<bool[12]: true, true, true, true, true, true, false, false, false, false, false, false>}"
            f' : bool[12]\n  %s = neg %x : f32[12]\n  %d = {op} %x : f32[12] @"/dropped"\n'
            f'  %l = {op} %s : f32[12] @"/cause"\n  %y = select %k, %d, %l : f32[12] @"/select"'
        ),
        threads=1,
    )
    bad, fine = (-1, 1) if op == "log" else (100, -100)
    x = np.repeat(np.float32([fine, bad]), 6)  # %d is wrong in the second half, and %l in the first
    assert ls.find_nan(exe, x=x) is None
    x[6] = -bad
    found = ls.find_nan(exe, x=x)
    assert found is not None and (found.op, found.layer) == (op, "/cause"), found


def test_a_nan_that_reaches_only_a_state_is_an_error(caplog: pytest.LogCaptureFixture) -> None:
    """The gradient of sqrt at 0 is infinite; the loss is finite. Without check_numerics, nothing tells of it."""
    exe = with_states(ls.compile(training(NET.replace("log", "sqrt")), threads=1, check_numerics=True))
    before = states(exe)
    inputs = {"x": np.zeros((ROWS, 4), np.float32), "target": np.ones((ROWS, 2), np.float32)}
    with pytest.raises(ls.Error, match="check_numerics: step 0, rank 0: .*gradient of net:/sqrt"):
        exe(**inputs)
    assert states(exe) == before
    exe = with_states(ls.compile(training(NET.replace("log", "sqrt")), threads=1))
    with caplog.at_level(logging.WARNING, "lockstep"):
        assert np.isfinite(exe(**inputs)["loss"]) and np.isnan(exe.state["w"]).any()
    assert not caplog.records


def test_steps_that_a_loss_scale_skips_are_no_errors() -> None:
    """With a scale of 65536, gradients in f16 overflow at first; the scale falls, and then the step is made."""
    text = NET.replace("log", "exp")
    step = training(text, precision="f16")
    exe = with_states(ls.compile(step, threads=1, check_numerics=True))
    inputs = batch(ls.Communicator.single()) | {"target": np.full((ROWS, 2), 100, np.float32)}
    scales, updated = [], 0
    for _ in range(30):
        before = exe.state["w"].tobytes()
        exe(**inputs)
        scales.append(float(exe.state["loss_scale/scale"]))
        updated += exe.state["w"].tobytes() != before
    assert scales[0] < 65536 and updated > 0, (scales, updated)


@pytest.mark.parametrize("n", [1, 2])
def test_a_loss_that_is_nan_is_an_error_although_a_loss_scale_skips_the_step(n: int) -> None:
    """No scale makes the logarithm of a negative number finite."""

    def body(world: ls.Communicator) -> str:
        exe = with_states(ls.compile(training(precision="f16"), world=world, threads=1, check_numerics=True))
        before = states(exe)
        with pytest.raises(ls.Error) as error:
            exe(**batch(world, ROWS - 1))
        assert states(exe) == before
        assert np.isfinite(exe(**batch(world))["loss"])
        return str(error.value)

    for error in run_in_threads(n, body):
        assert f"check_numerics: step 0, rank {n - 1}: log makes %" in error and "at net:/log" in error, error


def test_running_statistics_of_a_step_that_a_loss_scale_skips() -> None:
    """A skipped step updates no weight, but the running statistics: they must stay finite."""
    case = CASES[2]
    model = ls.load_onnx(case.model, dims={"batch": 32})
    loss = ls.loss.softmax_cross_entropy("logits", "label")
    exe = ls.compile(ls.train_step(model, loss, ls.optim.SGD(0.1), precision="f16"), threads=1, check_numerics=True)
    x, label = (array[:32] for array in case.data())
    exe.state["loss_scale/scale"] = np.float32(1e30)  # every gradient overflows
    before = {name: np.array(exe.state[name]) for name in exe.state}
    found = ls.find_nan(exe, **{case.input: x, "label": label})
    assert found is not None and found.value.nans + found.value.infinities > 0
    exe(**{case.input: x, "label": label})
    changed = {name for name in exe.state if not np.array_equal(before[name], exe.state[name])}
    statistics = {name for name in exe.state if "mean" in name or "var" in name}
    assert statistics and statistics <= changed, changed
    assert changed - statistics <= {"loss_scale/scale", "loss_scale/good_steps"}, changed

    before = {name: np.array(exe.state[name]) for name in exe.state}
    x = x.copy()
    x[3] = 1e5  # more than f16 holds
    with pytest.raises(ls.Error, match="check_numerics: step 1, rank 0: ") as error:
        exe(**{case.input: x, "label": label})
    assert "convert makes" in str(error.value) and "infinite of" in str(error.value), error.value
    assert all(np.array_equal(before[name], exe.state[name]) for name in exe.state)


def test_the_element_tells_which_input_is_the_cause() -> None:
    """The first half of y is of x, and the second of z."""
    signature = "%x: f32[12] split(0), %z: f32[12] split(0)"
    mask = ", ".join(["true"] * 6 + ["false"] * 6)
    lines = f"  %k = constant {{value=dense<bool[12]: {mask}>}} : bool[12]\n  %y = select %k, %x, %z : f32[12]"
    exe = ls.compile(graph_of(lines, signature=signature), threads=1)
    x, z = np.ones(12, np.float32), np.ones(12, np.float32)
    x[8] = np.nan
    assert ls.find_nan(exe, x=x, z=z) is None
    z[9] = np.nan
    found = ls.find_nan(exe, x=x, z=z)
    assert found is not None and (found.op, found.value.name) == ("input", "z"), found


def test_fit_stops_at_a_wrong_step(caplog: pytest.LogCaptureFixture) -> None:
    def body(world: ls.Communicator, **options: Any) -> Any:
        trainer = ls.Trainer(ls.parse(NET), LOSS, ls.optim.SGD(0.1), kvstore=world, threads=1, **options)
        with_states(trainer.executable)
        x = np.full((4 * ROWS, 4), 0.5, np.float32)
        x[2] = -1
        return trainer.fit((x, np.zeros((4 * ROWS, 2), np.float32)), epochs=1, progress=False)

    errors = run_in_threads(2, lambda world: body(world, check_numerics=True))
    assert all(isinstance(error, ls.Error) and "log makes %b: 3 NaN of 18" in str(error) for error in errors), errors
    with caplog.at_level(logging.WARNING, "lockstep"):
        results = run_in_threads(2, body)
    assert all(np.isnan(result[0]["loss"]) for result in results), results
    assert len([record for record in caplog.records if "the loss of step" in record.getMessage()]) == 1


def test_a_rank_that_calls_it_alone() -> None:
    def body(world: ls.Communicator) -> Any:
        exe = with_states(ls.compile(training(), world=world, threads=1))
        return exe(**batch(world)) if world.rank == 0 else ls.find_nan(exe, **batch(world))

    for message in errors_of(2, body):
        assert "rank 1 on host" in message and "`find_nan`" in message


def test_an_intended_infinity_is_no_error() -> None:
    text = MASKED.replace("-> (y: f32[4,3])", "-> (y: f32[4,3], s: f32[4,3])").replace("return %y", "return %y, %s")
    exe = ls.compile(ls.parse(text), threads=1, check_numerics=True)
    x, keep = np.zeros((4, 3), np.float32), np.ones((4, 3), bool)
    keep[1, 1:] = False
    for _ in range(3):
        results = exe(x=x, keep=keep)
        assert np.isinf(results["s"]).sum() == 2 and np.isfinite(results["y"]).all()
    keep[1] = False
    with pytest.raises(ls.Error, match="/softmax"):
        exe(x=x, keep=keep)


def test_an_intended_infinity_is_no_fault_of_the_hardware() -> None:
    text = MASKED.replace("-> (y: f32[4,3])", "-> (y: f32[4,3], s: f32[4,3])").replace("return %y", "return %y, %s")

    def body(world: ls.Communicator) -> None:
        exe = ls.compile(ls.parse(text), world=world, threads=1, check_numerics=True, verify_hardware=1)
        keep = np.ones((2, 3), bool)
        keep[1, 1:] = False
        for _ in range(2):
            assert np.isinf(exe(x=np.zeros((2, 3), np.float32), keep=keep)["s"]).sum() == 2

    assert run_in_threads(2, body) == [None, None]


def test_a_call_without_rows_is_no_error() -> None:
    exe = with_states(ls.compile(training(uneven=True), threads=1, check_numerics=True))
    assert list(exe.joined([])) == []


def test_a_result_called_rows_does_not_turn_the_check_off() -> None:
    exe = ls.compile(wrong_with_a_result("rows"), check_numerics=True)
    with pytest.raises(ls.Error, match=r"check_numerics: step 0, rank 0: log makes .*: 4 NaN of 4"):
        exe(x=np.full(4, 0.5, np.float32))
    assert exe.state["w"] == 1


@pytest.mark.parametrize("shape", [(), (0,)], ids=str)
def test_a_state_called_as_the_loss_scale_skips_no_step(shape: tuple[int, ...]) -> None:
    """It falls, as a loss scale does in a step that is skipped, or has no element."""
    g = ls.graph.Builder("own")
    x, scale = g.input("x", "f32", (4,)), g.state("loss_scale/scale", shape, init=8.0)
    g.result("y", ls.graph.log(x - 1))
    g.next_state("loss_scale/scale", scale * 0.5)
    exe = ls.compile(g.finish(), check_numerics=True)
    with pytest.raises(ls.Error, match=r"check_numerics: step 0, rank 0: log makes .*: 4 NaN of 4"):
        exe(x=np.full(4, 0.5, np.float32))
    exe(x=np.full(4, 1.5, np.float32))
    assert np.all(np.asarray(exe.state["loss_scale/scale"]) == 4)


@pytest.mark.parametrize("name", ["two\nlines", "\n", "2 3", "ä"], ids=ascii)
def test_names_of_results_may_have_any_characters(name: str) -> None:
    g = ls.graph.Builder("own")
    g.result(name, ls.graph.log(g.input("x", "f32", (4,), split=0) - 1))
    graph = g.finish()

    def body(world: ls.Communicator) -> None:
        exe = ls.compile(graph, world=world, threads=1, check_numerics=True)
        exe(x=np.full(2, 0.5 if world.rank == 1 else 1.5, np.float32))

    for message in errors_of(2, body):
        assert "check_numerics: step 0, rank 1: log makes " in message and "2 NaN of 2" in message


def test_stages_and_servers_exclude_check_numerics() -> None:
    def body(world: ls.Communicator) -> None:
        model = ls.load_onnx(HERE.parent / "models/mlp.onnx", dims={"batch": 6})
        step = ls.train_step(model, ls.loss.softmax_cross_entropy("logits", "label"), ls.optim.SGD(0.1), accumulate=2)
        with pytest.raises(ls.Error, match="check_numerics=True does not go with stages"):
            ls.compile(step, world=world, threads=1, mesh={"data": 1, "stage": 2}, check_numerics=True)

    assert run_in_threads(2, body) == [None, None]
