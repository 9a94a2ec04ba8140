"""Values and gradients of PyTorch's functions at kinks, at ties, at the origin and at the border of the domain,
compared with PyTorch.

The differentiated function is the sum of a function's float results, each element times its own weight, so that it
shows which of several equal elements gets the gradient.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

import lockstep as ls

torch = pytest.importorskip("torch")

from torch_kinks import CASES, DIFFERS, Case

# Cases per module, because an export takes long to start.
BATCH = 32
# Tolerance for cancellation, and for PyTorch's own sums in f32.
RTOL, ATOL = 1e-5, 2e-6


class Together(torch.nn.Module):
    """The results of several functions, after the sum of all. Its inputs are those of `given`."""

    def __init__(self, cases: list[Case]) -> None:
        super().__init__()
        self.cases = cases

    def forward(self, **inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
        total, results = torch.zeros(()), []
        for i, case in enumerate(self.cases):
            for y in _listed(case.function(*(inputs[f"x{i}_{j}"] for j in range(len(case.operands))))):
                results.append(y)
                if y.dtype.is_floating_point:
                    weights = 1 + torch.arange(y.numel(), dtype=y.dtype) / 4
                    total = total + (y * weights.reshape(y.shape)).sum()
        return (total, *results)


def _listed(results: Any) -> list[torch.Tensor]:
    return [results] if isinstance(results, torch.Tensor) else list(results)


def _given(cases: list[Case]) -> dict[str, torch.Tensor]:
    return {f"x{i}_{j}": x for i, case in enumerate(cases) for j, x in enumerate(case.tensors())}


@dataclass
class Found:
    """The results of a function, and the gradient with respect to each operand."""

    values: list[np.ndarray] = field(default_factory=list)
    gradients: list[np.ndarray] = field(default_factory=list)

    def named(self) -> Iterator[tuple[str, np.ndarray]]:
        yield from ((f"value {i}" if i else "value", value) for i, value in enumerate(self.values))
        one = len(self.gradients) == 1
        yield from (("gradient" if one else f"gradient of operand {i}", g) for i, g in enumerate(self.gradients))


def in_pytorch(case: Case) -> Found:
    inputs = {name: x.requires_grad_() for name, x in _given([case]).items()}
    total, *results = Together([case])(**inputs)
    gradients = torch.autograd.grad(total, list(inputs.values()), allow_unused=True, materialize_grads=True)
    return Found([y.detach().numpy() for y in results], [g.numpy() for g in gradients])


def in_lockstep(cases: list[Case], expected: list[Found]) -> list[list[Found]]:
    """The results of the interpreter and of the compiled program for each case."""
    given = _given(cases)
    names = [f"y{i}_{j}" for i, found in enumerate(expected) for j in range(len(found.values))]
    graph = ls.from_torch(Together(cases), given, output_names=["total", *names])
    step = ls.gradients(graph, of="total", wrt=list(given))
    [interpreted] = ls.interpret(step, [{name: x.numpy() for name, x in given.items()}])
    compiled = ls.compile(step)(**given)
    return [
        [
            Found(
                [np.asarray(results[f"y{i}_{j}"]) for j in range(len(found.values))],
                [np.asarray(results[f"grad/x{i}_{j}"]) for j in range(len(found.gradients))],
            )
            for results in (interpreted, compiled)
        ]
        for i, found in enumerate(expected)
    ]


def difference(ours: Found, pytorch: Found) -> str:
    """The first number that differs from PyTorch's, and how many differ; "" if all agree."""
    first, count = "", 0
    for (name, a), (_, b) in zip(ours.named(), pytorch.named(), strict=True):
        assert a.shape == b.shape, f"{name} has shape {a.shape}, expected {b.shape}"
        a, b = a.astype(np.float64).ravel(), b.astype(np.float64).ravel()
        differ = np.flatnonzero(~np.isclose(a, b, rtol=RTOL, atol=ATOL, equal_nan=True))
        if differ.size and not first:
            first = f"{name}[{differ[0]}] {a[differ[0]]:.3g}, PyTorch {b[differ[0]]:.3g}"
        count += differ.size
    return first and f"{first}; {count} in all"


def differences(cases: list[Case]) -> dict[str, str]:
    expected = [in_pytorch(case) for case in cases]
    result = {}
    for case, pytorch, (interpreted, compiled) in zip(cases, expected, in_lockstep(cases, expected), strict=True):
        result[case.name] = difference(interpreted, pytorch)
        of_compiled = difference(compiled, pytorch)
        if of_compiled != result[case.name]:
            result[case.name] += f" (compiled: {of_compiled or 'no difference'})"
    return result


def differences_of_each(cases: list[Case]) -> dict[str, str]:
    """Like `differences`. If the module of all cases is refused, checks each case alone and returns its error."""
    try:
        return differences(cases)
    except ls.Error as error:
        if len(cases) == 1:
            return {cases[0].name: f"refused: {error}"}
    return {name: text for case in cases for name, text in differences_of_each([case]).items()}


def batches() -> list[list[Case]]:
    return [CASES[i : i + BATCH] for i in range(0, len(CASES), BATCH)]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("cases", batches(), ids=lambda cases: cases[0].name)
def test_gradients_are_those_of_pytorch(cases: list[Case]) -> None:
    found = {name: text for name, text in differences_of_each(cases).items() if text}
    listed = {case.name: DIFFERS[case.name] for case in cases if case.name in DIFFERS}
    assert found == listed, "if a difference has gone, remove it from DIFFERS in torch_kinks.py"


def test_every_case_has_a_name_of_its_own_and_every_difference_a_case() -> None:
    names = [case.name for case in CASES]
    assert len(names) == len(set(names))
    assert set(DIFFERS) <= set(names)


def test_another_gradient_is_noticed() -> None:
    one = Found([np.array([1.0])], [np.array([0.5, np.nan, np.inf])])
    assert not difference(one, one)
    for gradient in ([0.51, np.nan, np.inf], [0.5, 0.0, np.inf], [0.5, np.nan, -np.inf]):
        assert difference(Found(one.values, [np.array(gradient)]), one)
    assert difference(Found([np.array([1.1])], one.gradients), one)
    with pytest.raises(AssertionError):
        difference(Found([np.ones((1, 1))], one.gradients), one)


if __name__ == "__main__":  # prints the new contents of DIFFERS
    for batch in batches():
        for case_name, text in differences_of_each(batch).items():
            if text:
                print(f'    "{case_name}": "{text}",', flush=True)
