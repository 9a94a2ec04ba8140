"""Executable.bind: states and results in the caller's arrays. The oracle, bit by bit, is a call that returns new
arrays.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import lockstep as ls
from cases import CASES
from ranks import run_in_threads

BATCH = 24
MLP = next(case for case in CASES if case.name == "mlp")
Arrays = dict[str, np.ndarray]


def compiled(optimizer: ls.optim.Optimizer | None = None, world: ls.Communicator | None = None) -> ls.Executable:
    model = ls.load_onnx(MLP.model, dims={"batch": BATCH})
    step = ls.train_step(model, ls.loss.softmax_cross_entropy("logits", "label"), optimizer)
    return ls.compile(step, world=world, threads=1)


def batch(step: int, rank: int = 0, ranks: int = 1) -> Arrays:
    x, label = MLP.data()
    begin, rows = step * BATCH + rank * BATCH // ranks, BATCH // ranks
    return {"x": x[begin : begin + rows], "label": label[begin : begin + rows]}


def unaligned(value: np.ndarray) -> np.ndarray:
    """A copy that is aligned to the size of an element, but no more."""
    memory = np.empty(value.nbytes + value.itemsize, np.uint8)[value.itemsize :].view(value.dtype).reshape(value.shape)
    memory[...] = value
    return memory


def weights_of(exe: ls.Executable) -> Arrays:
    return {name: unaligned(value) for name, value in exe.state.items()}


def assert_same(found: Arrays, expected: Arrays) -> None:
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        np.testing.assert_array_equal(found[name], value, err_msg=name)


def test_results_are_written_into_the_arrays() -> None:
    plain, bound = compiled(), compiled()
    gradients = {name: np.full_like(value, np.nan) for name, value in plain(**batch(0)).items() if "grad/" in name}
    bound.bind(results=gradients)
    for step in range(2):
        expected, found = plain(**batch(step)), bound(**batch(step))
        assert_same(found, expected)
        assert all(found[name] is array for name, array in gradients.items())
    found = bound.start(**batch(0)).wait()
    assert_same(found, plain(**batch(0)))
    assert found["grad/fc1.weight"] is gradients["grad/fc1.weight"]
    assert found["loss"] is not bound(**batch(1))["loss"]  # loss is not bound


def test_states_lie_in_the_arrays() -> None:
    plain, bound = compiled(ls.optim.Adam(0.01)), compiled(ls.optim.Adam(0.01))
    arrays = weights_of(bound)
    bound.bind(states=arrays)
    for step in range(3):
        if step == 2:  # the next call reads the value written there
            plain.state["fc1.bias"] = np.full_like(arrays["fc1.bias"], 0.25)
            arrays["fc1.bias"].fill(0.25)
        assert_same(bound(**batch(step)), plain(**batch(step)))
        assert_same(arrays, dict(plain.state))
        assert_same(dict(bound.state), dict(plain.state))
    bound.state["fc1.bias"] = np.zeros_like(arrays["fc1.bias"])
    assert not arrays["fc1.bias"].any()
    assert arrays["fc1.weight"].any()


def test_arrays_live_as_long_as_they_are_bound() -> None:
    plain, bound = compiled(ls.optim.SGD(0.1)), compiled(ls.optim.SGD(0.1))
    bound.bind(states=weights_of(bound))
    for step in range(2):
        assert_same(bound(**batch(step)), plain(**batch(step)))
        bound.bind(states=weights_of(bound))  # other arrays, with the present values
        _ = [np.full(1000, np.nan) for _ in range(100)]


def test_read_only_states() -> None:
    plain, bound = compiled(), compiled()
    arrays = weights_of(bound)
    for array in arrays.values():
        array.flags.writeable = False
    bound.bind(states=arrays)
    assert_same(bound(**batch(0)), plain(**batch(0)))
    with pytest.raises(ls.Error, match="state fc1.bias is bound to memory that may not be written"):
        bound.state["fc1.bias"] = np.zeros_like(arrays["fc1.bias"])
    with pytest.raises(ls.Error, match="state fc1.bias is updated by @.*, and the memory that it would be bound to"):
        compiled(ls.optim.SGD(0.1)).bind(states=arrays)


def test_a_file_is_not_read_into_what_cannot_be_written(tmp_path: Path) -> None:
    exe = compiled()
    arrays = weights_of(exe)
    exe.bind(states=arrays)
    exe.save(tmp_path / "states")
    before = {name: array.copy() for name, array in arrays.items()}
    for array in arrays.values():
        array.fill(0)
    exe.load(tmp_path / "states")
    assert_same(arrays, before)
    arrays["fc2.bias"].flags.writeable = False
    exe.bind(states=arrays)
    with pytest.raises(ls.Error, match="states: state fc2.bias is bound to a read-only array"):
        exe.load(tmp_path / "states")
    assert_same(exe(**batch(0)), compiled()(**batch(0)))  # the failed load has changed nothing


def test_of_several_ranks() -> None:
    """If a rank writes other values into a bound replica, they are found like other assigned values when contents are
    compared.
    """

    def body(world: ls.Communicator) -> Arrays:
        exe = compiled(ls.optim.SGD(0.1), world)
        arrays = weights_of(exe)
        exe.bind(states=arrays)
        for step in range(2):
            exe(**batch(step, world.rank, world.size))
        return arrays

    alone = run_in_threads(1, body)[0]
    for arrays in run_in_threads(2, body):
        assert not isinstance(arrays, Exception), arrays
        for name, array in arrays.items():
            np.testing.assert_allclose(array, alone[name], rtol=1e-5, atol=1e-6)

    def part(world: ls.Communicator) -> None:
        exe = compiled(ls.optim.SGD(0.1), world)
        exe(**batch(0, world.rank, world.size))  # contents assigned before this call would be compared in it
        arrays = weights_of(exe)
        arrays["fc1.bias"] += world.rank
        exe.bind(states=arrays)
        exe(**batch(1, world.rank, world.size))

    for error in run_in_threads(2, part):
        assert "replicas of the states differ" in str(error), error


def weight(exe: ls.Executable) -> np.ndarray:
    return np.array(exe.state["fc1.weight"])


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        (lambda w: {"states": {"fc1": w}}, "there is no state fc1"),
        (lambda w: {"results": {"grad/fc1": w}}, "there is no result grad/fc1; results are .*grad/fc1.weight"),
        (lambda w: {"states": {"fc1.weight": w[:1].copy()}}, "bind: state fc1.weight: expected f32.*found f32"),
        (lambda w: {"results": {"grad/fc1.weight": w.astype(np.float64)}}, "bind: result grad/fc1.weight: expected f32"),
        (lambda w: {"states": {"fc1.weight": w.tolist()}}, "state fc1.weight is a list, expected a NumPy array"),
        (lambda w: {"states": {"fc1.weight": np.asfortranarray(w)}}, "not in row-major order, expected a NumPy array"),
        (lambda w: {"states": {"fc1.weight": w.astype(">f4")}}, "state fc1.weight is an array of dtype >f4"),
        (lambda w: {"states": {3: w}}, "the name of a state is 3, expected text"),
        (lambda w: {"states": {"fc1.weight": w}, "results": {"grad/fc1.weight": w}}, "overlap"),
        (lambda w: {"results": {"grad/fc1.weight": np.broadcast_to(w, w.shape)}}, "the array is read-only"),
    ],
)  # fmt: skip
def test_arrays_that_do_not_fit(wrong: Callable[[np.ndarray], Any], words: str) -> None:
    exe = compiled()
    with pytest.raises(ls.Error, match=words):
        exe.bind(**wrong(weight(exe)))
    assert_same(exe(**batch(0)), compiled()(**batch(0)))


def test_calls_for_which_arrays_do_not_fit() -> None:
    exe = compiled()
    gradient = weight(exe)
    exe.bind(results={"grad/fc1.weight": gradient})
    gradient.flags.writeable = False
    with pytest.raises(ls.Error, match="result grad/fc1.weight is bound to an array that is read-only now"):
        exe(**batch(0))
    gradient.flags.writeable = True
    whole = np.empty(BATCH * 12 + gradient.size - 1, np.float32)  # x's last element is the gradient's first
    exe.bind(results={"grad/fc1.weight": whole[-gradient.size :].reshape(gradient.shape)})
    inputs = batch(0)
    x = whole[: BATCH * 12].reshape(BATCH, 12)
    x[...] = inputs["x"]
    with pytest.raises(ls.Error, match="input x overlaps the array to which result grad/fc1.weight is bound"):
        exe(x=x, label=inputs["label"])
    with pytest.raises(ls.Error, match="overlap"):
        exe.bind(results={"grad/fc2.bias": whole[-exe.state["fc2.bias"].size :]})
