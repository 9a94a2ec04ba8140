"""Forms of inputs and states: lossless conversions are accepted; for lossy ones the error says how to convert."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import lockstep as ls
from test_errors import LABELS, X, mlp, raises, training

torch = pytest.importorskip("torch")


@pytest.fixture(scope="module")
def exe() -> ls.Executable:
    return ls.compile(ls.train_step(mlp(), ls.loss.softmax_cross_entropy(), None), threads=1)


@pytest.mark.parametrize(
    ("x", "label"),
    [
        (X, LABELS.astype(np.int32)),
        (X, LABELS.astype(np.uint8)),
        (X, LABELS.astype(np.int8)),
        (X.astype(np.float16), LABELS),
        (X.astype(np.float16).astype(">f4"), LABELS),
        (np.asfortranarray(X), np.repeat(LABELS, 2)[::2]),
        (torch.tensor(X), torch.tensor(LABELS, dtype=torch.int32)),
        (torch.tensor(X, requires_grad=True), torch.tensor(LABELS)),
        (torch.tensor(X).half(), torch.tensor(LABELS).short()),
        (torch.tensor(X).bfloat16(), LABELS),
    ],
)
def test_what_loses_nothing_is_accepted(x: Any, label: Any, exe: ls.Executable) -> None:
    """Narrower integers and floats, other byte orders, other memory orders."""
    numbers = x.detach().float().numpy() if isinstance(x, torch.Tensor) else x
    expected = exe(x=np.ascontiguousarray(numbers, np.float32), label=LABELS)
    found = exe(x=x, label=label)
    assert found.keys() == expected.keys() and len(found) == 7
    for name, value in expected.items():
        np.testing.assert_array_equal(found[name], value, err_msg=name)


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ({"x": X.astype(np.float64)}, "input x: expected f32[6,12], found f64[6,12]; .astype(np.float32) makes that"),
        ({"x": X.astype(np.uint8)}, "input x: expected f32[6,12], found u8[6,12]; .astype(np.float32) makes that"),
        ({"label": LABELS.astype(np.float32)}, "input label: expected i64[6], found f32[6]; .astype(np.int64) makes that"),
        ({"label": LABELS.astype(np.uint64)}, "input label: expected i64[6], found u64[6]; .astype(np.int64) makes that"),
        (
            {"x": torch.tensor(X).double()},
            "input x: expected f32[6,12], found f64[6,12]; .detach().cpu().to(torch.float32) makes that",
        ),
        ({"label": [0, 1, 2, 3, 4, 0]}, "input label is a list, expected an array of numbers"),
        ({"label": [0, 1, 2, 3, 4, 0]}, "; np.asarray(…, np.int64) makes that"),
    ],
)  # fmt: skip
def test_what_would_lose_something_is_an_error_that_says_how(
    inputs: dict[str, Any], message: str, exe: ls.Executable
) -> None:
    with raises(message):
        exe(**{"x": X, "label": LABELS, **inputs})


def test_what_fits_is_not_copied(exe: ls.Executable, monkeypatch: pytest.MonkeyPatch) -> None:
    def unexpected(*_: Any) -> None:
        raise AssertionError("the input was converted")

    monkeypatch.setattr("lockstep._base.arrays.widened", unexpected)
    assert np.isfinite(exe(x=X, label=LABELS)["loss"])
    with pytest.raises(AssertionError, match="the input was converted"):
        exe(x=X, label=LABELS.astype(np.int32))


def test_states() -> None:
    exe = ls.compile(training(), threads=1)
    exe.state["fc1.bias"] = np.arange(16, dtype=np.float16)
    np.testing.assert_array_equal(exe.state["fc1.bias"], np.arange(16, dtype=np.float32))
    with raises("state fc1.bias: expected f32[16], found f64[16]; .astype(np.float32) makes that"):
        exe.state["fc1.bias"] = np.zeros(16)


def test_inputs_of_the_interpreter() -> None:
    (expected,) = ls.interpret(mlp(), [{"x": X.astype(np.float16).astype(np.float32)}])
    (found,) = ls.interpret(mlp(), [{"x": X.astype(np.float16)}])
    np.testing.assert_array_equal(found["logits"], expected["logits"])
    with raises("input x on rank 0: expected f32[6,12], found f64[6,12]; .astype(np.float32) makes that"):
        ls.interpret(mlp(), [{"x": X.astype(np.float64)}])
