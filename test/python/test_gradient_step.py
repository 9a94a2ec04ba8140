"""train_step(optimizer=None): the results are the gradients that a step of SGD would use, and no state is updated."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import lockstep as ls
from cases import CASES, Case
from ranks import run_in_threads

BATCH = 24
LENET = next(case for case in CASES if case.name == "lenet")


def run(
    case: Case, optimizer: ls.optim.Optimizer | None, n: int, **options: Any
) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """The results of a step on rank 0, and the states after it."""
    model = ls.load_onnx(case.model, dims={"batch": BATCH})
    step = ls.train_step(model, ls.loss.softmax_cross_entropy("logits", "label"), optimizer, **options)
    samples, labels = case.data()

    def body(world: ls.Communicator) -> Any:
        exe = ls.compile(step, world=world, threads=1)
        share = BATCH // n
        rows = slice(world.rank * share, (world.rank + 1) * share)
        results = exe(**{case.input: samples[rows], "label": labels[rows]})
        return {name: np.array(value) for name, value in results.items()}, dict(exe.state)

    found = run_in_threads(n, body)
    for each in found:
        assert not isinstance(each, Exception), each
        for name, value in each[0].items():
            np.testing.assert_array_equal(value, found[0][0][name])
    return found[0]


@pytest.mark.parametrize("n", [1, 2, 3])
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_gradients_are_those_of_the_step_that_updates(case: Case, n: int) -> None:
    options = {"clip": ls.clip.global_norm(0.5), "accumulate": 2 if case is LENET else 1}
    updated, after = run(case, ls.optim.SGD(1.0), n, **options)
    results, states = run(case, None, n, **options)
    for name in ("loss", "gradient_norm"):
        np.testing.assert_array_equal(results.pop(name), updated[name])
    assert results
    model = ls.load_onnx(case.model, dims={"batch": BATCH})
    for name, gradient in results.items():
        state = name.removeprefix("grad/")
        first = model.initial_value(state)
        assert np.any(gradient)
        np.testing.assert_array_equal(states[state], first)  # the state was not updated
        np.testing.assert_array_equal(first - gradient, after[state])


@pytest.mark.parametrize("precision", ["bf16", "f16"])
def test_gradients_are_f32_and_not_scaled(precision: str) -> None:
    exact, _ = run(LENET, None, 2)
    results, _ = run(LENET, None, 2, precision=precision)
    assert exact.keys() == results.keys()
    for name, gradient in results.items():
        assert gradient.dtype == np.float32
        np.testing.assert_allclose(gradient, exact[name], rtol=0.1, atol=0.05 * np.abs(exact[name]).max())


def test_what_is_trained_is_what_has_a_gradient() -> None:
    results, _ = run(LENET, None, 1, trained=["fc*"], frozen=["fc1.bias"])
    assert results.keys() == {"loss", "grad/fc1.weight", "grad/fc2.weight", "grad/fc2.bias"}


@pytest.mark.parametrize(
    "options, words",
    [
        ({"groups": {"*.bias": ls.optim.SGD(0.1)}}, "groups give states an optimizer of their own, but there is no optimizer for the other states"),
        ({"average": ls.average.exponential(0.9)}, "average needs states that an optimizer updates, and there is no optimizer"),
    ],
)  # fmt: skip
def test_options_of_updates_are_errors(options: dict[str, Any], words: str) -> None:
    with pytest.raises(ls.Error, match=words):
        run(LENET, None, 1, **options)
