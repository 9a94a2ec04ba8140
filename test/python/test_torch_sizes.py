"""Modules that depend on the number of their rows: an export is right for that number only."""

from __future__ import annotations

import copy
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
    "by whether there are several": lambda x: x.mean() if x.shape[0] > 1 else x.sum(),
    "by whether there is one": lambda x: x.sum() if x.shape[0] == 1 else x.mean(),
    "by how many elements there are": lambda x: x.mean() if x.numel() > 3 else x.sum(),
    "by another comparison": lambda x: x.mean() if x.shape[0] < 8 else x.sum(),
    "by a remainder": in_groups,
    "by its length": lambda x: x.sum() / len(x),
    "by a number": lambda x: x / int(x.shape[0]),
    "by a loop": lambda x: sum(i * x[i] for i in range(len(x))),
    "by chunks": lambda x: torch.cat([x, 2 * x]).chunk(2)[1],
    "by a constant": lambda x: x + torch.arange(8.0)[: len(x), None] if len(x) == 8 else x + torch.ones(len(x), 1),
}
# Modules that do not check the number of rows, and are right for any.
FREE = {
    "a mean": lambda x: x.mean(0),
    "a slice": lambda x: torch.cat([x, 2 * x])[: x.shape[0]],
    "a count": lambda x: x * torch.arange(x.shape[0])[:, None],
    "a reshape": lambda x: x.reshape(x.shape[0] * 3, 1).sum(1),
}


@pytest.mark.parametrize("name", DECIDES)
def test_what_decides_by_the_number_of_rows_is_for_that_number_alone(name: str) -> None:
    module = Of(DECIDES[name])
    with raises("from_torch: Of branches on the extents of its inputs (", "give example inputs of 8 rows, as in dims"):
        ls.from_torch(module, torch.randn(3, 3), dims={"batch": 8})
    with raises("from_torch: dims has x:0: 8, and the example input x is [3, 3]"):
        ls.from_torch(module, torch.randn(3, 3), dims={"x:0": 8})
    x = torch.randn(8, 3)
    for dims in ({"batch": 8}, {"x:0": 8}):
        model = ls.from_torch(module, torch.zeros(8, 3), dims=dims, output_names=["y"])
        assert model.inputs[0].placements, "the dimension is the batch"
        np.testing.assert_allclose(ls.compile(model)(x=x)["y"], module(x), rtol=1e-5, atol=1e-6)
        for other in ({"batch": 4}, {"x:0": 4}):
            with raises("with_dims: the module was exported only for the extents of its example inputs"):
                model.with_dims(other)


@pytest.mark.parametrize("rows_of_example", [0, 1, 3])
@pytest.mark.parametrize("name", FREE)
def test_what_does_not_is_for_any(name: str, rows_of_example: int) -> None:
    module, x = Of(FREE[name]), torch.randn(8, 3)
    model = ls.from_torch(module, torch.zeros(rows_of_example, 3), dims={"batch": 8}, output_names=["y"])
    for rows in (8, 4, 1):
        found = ls.compile(model.with_dims(batch=rows))(x=x[:rows])["y"]
        np.testing.assert_allclose(found, module(x[:rows]), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("rows_of_example", [1, 2])
def test_any_number_of_rows_trains_as_in_pytorch(rows_of_example: int) -> None:
    class Network(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.norm, self.fc = nn.Conv1d(1, 2, 2), nn.LayerNorm(4), nn.Linear(4, 3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.fc(self.norm(self.conv(x[:, None]).flatten(1))) - x.mean(0).squeeze()

    torch.manual_seed(0)
    first = Network()
    model = ls.from_torch(first, torch.zeros(rows_of_example, 3), dims={"batch": 8}, output_names=["y"])
    for rows in (8, 5, 1):
        module, x, target = copy.deepcopy(first), torch.randn(rows, 3), torch.randn(rows, 3)
        optimizer = torch.optim.SGD(module.parameters(), 0.1)
        loss = ls.loss.mean_squared_error("y", "target")
        exe = ls.compile(ls.train_step(model.with_dims(batch=rows), loss, ls.optim.SGD(0.1)))
        for _ in range(2):
            optimizer.zero_grad()
            expected = nn.functional.mse_loss(module(x), target)
            expected.backward()
            optimizer.step()
            assert exe(x=x, target=target)["loss"] == pytest.approx(expected.item(), rel=1e-5)


def test_what_torch_itself_asks_of_one_row_decides_nothing() -> None:
    """torch's batch normalisation refuses one row in training mode; a model imported with several rows accepts one row
    in an evaluation.
    """
    module = nn.BatchNorm1d(3)
    model = ls.from_torch(module, torch.zeros(2, 3), dims={"batch": 8}, output_names=["y"])
    with raises("torch cannot export BatchNorm1d: ValueError: Expected more than 1 value per channel when training"):
        ls.from_torch(module, torch.zeros(1, 3), dims={"batch": 8})
    x = torch.randn(1, 3)
    np.testing.assert_allclose(ls.compile(model.with_dims(batch=1))(input=x)["y"], module.eval()(x).detach(), rtol=1e-5)


def test_one_name_is_one_number_of_rows() -> None:
    class Sum(nn.Module):
        def forward(self, x: torch.Tensor, scale: float, more: list[torch.Tensor]) -> torch.Tensor:
            return (x + more[0]) * scale

    for count in (1, 3):
        given = [torch.zeros(2, 3), 2.0, [torch.zeros(2, 3), torch.zeros(count, 3)]]
        with raises(
            f"from_torch: dims has n, the number of rows of all example inputs, and x has 2, more has {count}; give"
        ):
            ls.from_torch(Sum(), given, dims={"n": 4})


def test_the_condition_is_shown() -> None:
    with raises("from_torch: Of branches on the extents of its inputs (x.shape[0] <= 4)"):
        ls.from_torch(Of(DECIDES["by a comparison"]), torch.randn(3, 3), dims={"batch": 8})
    with raises("from_torch: Of branches on the extents of its inputs (3 <= x.shape[0] and x.shape[0] <= 3)"):
        ls.from_torch(Of(DECIDES["by its length"]), torch.randn(3, 3), dims={"batch": 8})
    with raises("branches on the extents of its inputs (x.shape[0] <= 2), and would be right"):
        ls.from_torch(Of(DECIDES["by whether there are several"]), torch.randn(1, 3), dims={"batch": 8})
    with raises("branches on the extents of its inputs (s", " > 1 at test_torch_sizes.py:"):
        ls.from_torch(Of(DECIDES["by whether there are several"]), torch.randn(3, 3), dims={"batch": 8})
    batch = torch.export.Dim("n")
    with raises("branches on the extents of its inputs (3 <= x.shape[0]", "leave out dynamic_shapes, and give example"):
        ls.from_torch(Of(DECIDES["by its length"]), torch.randn(3, 3), dims={"n": 8}, dynamic_shapes={"x": {0: batch}})
