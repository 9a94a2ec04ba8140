"""Modules that decide by how many rows they are given: right for that number, and for no other."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

import lockstep as ls
from test_errors import raises

torch = pytest.importorskip("torch")
nn = torch.nn


class Of(nn.Module):
    def __init__(self, function: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.function(x)


def in_groups(x: torch.Tensor) -> torch.Tensor:
    groups = 4 if x.shape[0] % 4 == 0 else x.shape[0]
    return x.reshape(groups, -1, 3).std(0, unbiased=False).mean()


DECIDES = {
    "by a comparison": lambda x: x.mean() if x.shape[0] > 4 else x.sum(),
    "by another comparison": lambda x: x.mean() if x.shape[0] < 8 else x.sum(),
    "by a remainder": in_groups,
    "by its length": lambda x: x.sum() / len(x),
    "by a number": lambda x: x / int(x.shape[0]),
    "by a loop": lambda x: sum(i * x[i] for i in range(len(x))),
    "by chunks": lambda x: torch.cat([x, 2 * x]).chunk(2)[1],
    "by a constant": lambda x: x + torch.arange(8.0)[: len(x), None] if len(x) == 8 else x + torch.ones(len(x), 1),
}
# What asks for nothing, and is for any number of rows.
FREE = {
    "a mean": lambda x: x.mean(0),
    "a slice": lambda x: torch.cat([x, 2 * x])[: x.shape[0]],
    "a count": lambda x: x * torch.arange(x.shape[0])[:, None],
    "a reshape": lambda x: x.reshape(x.shape[0] * 3, 1).sum(1),
}


@pytest.mark.parametrize("name", DECIDES)
def test_what_decides_by_the_number_of_rows_is_for_that_number_alone(name: str) -> None:
    module = Of(DECIDES[name])
    with raises("from_torch: Of decides by the extents of its inputs (", "give example inputs of 8 rows, as dims says"):
        ls.from_torch(module, torch.randn(3, 3), dims={"batch": 8})
    with raises("from_torch: dims has x:0: 8, and the example input x is [3, 3]"):
        ls.from_torch(module, torch.randn(3, 3), dims={"x:0": 8})
    x = torch.randn(8, 3)
    for dims in ({"batch": 8}, {"x:0": 8}):
        model = ls.from_torch(module, torch.zeros(8, 3), dims=dims, output_names=["y"])
        assert model.inputs[0].placements, "it is the batch"
        np.testing.assert_allclose(ls.compile(model)(x=x)["y"], module(x), rtol=1e-5, atol=1e-6)
        for other in ({"batch": 4}, {"x:0": 4}):
            with raises("with_dims: the module was exported for the extents of its example inputs alone"):
                model.with_dims(other)


@pytest.mark.parametrize("name", FREE)
def test_what_does_not_is_for_any(name: str) -> None:
    module, x = Of(FREE[name]), torch.randn(8, 3)
    model = ls.from_torch(module, torch.zeros(3, 3), dims={"batch": 8}, output_names=["y"])
    for rows in (8, 4, 1):
        found = ls.compile(model.with_dims(batch=rows))(x=x[:rows])["y"]
        np.testing.assert_allclose(found, module(x[:rows]), rtol=1e-5, atol=1e-6)


def test_the_condition_is_shown() -> None:
    with raises("from_torch: Of decides by the extents of its inputs (x.shape[0] <= 4)"):
        ls.from_torch(Of(DECIDES["by a comparison"]), torch.randn(3, 3), dims={"batch": 8})
    with raises("from_torch: Of decides by the extents of its inputs (3 <= x.shape[0] and x.shape[0] <= 3)"):
        ls.from_torch(Of(DECIDES["by its length"]), torch.randn(3, 3), dims={"batch": 8})
    batch = torch.export.Dim("n")
    with raises("decides by the extents of its inputs (3 <= x.shape[0]", "give example inputs of"):
        ls.from_torch(Of(DECIDES["by its length"]), torch.randn(3, 3), dims={"n": 8}, dynamic_shapes={"x": {0: batch}})
