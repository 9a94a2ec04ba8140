"""Indices and labels of PyTorch modules: refused values, and the row without a gradient."""

from __future__ import annotations

import numpy as np
import pytest

import lockstep as ls
from ranks import run_in_threads
from test_errors import raises

torch = pytest.importorskip("torch")
nn = torch.nn


I = torch.tensor([[0, 2], [1, 0]])
X = torch.arange(12.0).reshape(3, 4)
INDEXING = {
    "embedding": lambda i: nn.functional.embedding(i, X),
    "index_select": lambda i: torch.index_select(X, 0, i.flatten()),
    "gather": lambda i: torch.gather(X, 0, i),
    "scatter": lambda i: torch.scatter(X, 0, i, torch.ones(2, 2)),
    "scatter_value": lambda i: torch.scatter(X, 0, i, 1.0),
    "scatter_add": lambda i: torch.scatter_add(X, 0, i, torch.ones(2, 2)),
    "scatter_reduce": lambda i: torch.scatter_reduce(X, 0, i, torch.ones(2, 2), "amax"),
    "index": lambda i: X[i],
    "take": lambda i: torch.take(X, i),
    "index_add": lambda i: torch.index_add(X, 0, i.flatten(), torch.ones(4, 4)),
    "index_copy": lambda i: torch.index_copy(X, 0, i.flatten()[:2], torch.ones(2, 4)),
    "index_fill": lambda i: torch.index_fill(X, 0, i.flatten(), 1.0),
    "one_hot": lambda i: nn.functional.one_hot(i, 3),
    "embedding_bag": lambda i: nn.functional.embedding_bag(i, X, mode="sum"),
}


@pytest.mark.parametrize("name", INDEXING)
def test_negative_indices_are_errors_where_pytorch_has_them(name: str) -> None:
    class Indexed(nn.Module):
        def forward(self, i: torch.Tensor) -> torch.Tensor:
            return INDEXING[name](i)

    exe = ls.compile(ls.from_torch(Indexed(), I, output_names=["y"]))
    np.testing.assert_array_equal(exe(i=I)["y"], INDEXING[name](I))
    negative = torch.tensor([[0, -1], [1, 0]])
    try:
        expected = INDEXING[name](negative)
    except (IndexError, RuntimeError):
        with raises("index is outside [0, 3)"):
            exe(i=negative)
    else:
        np.testing.assert_array_equal(exe(i=negative)["y"], expected)


@pytest.mark.parametrize("row", [0, 2])
@pytest.mark.parametrize("size", [1, 2])
def test_the_row_of_padding_has_no_gradient(size: int, row: int) -> None:
    class Padded(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table, self.fc = nn.Embedding(5, 3, padding_idx=row - 5 if row else 0), nn.Linear(3, 5)
            self.fc.weight = self.table.weight  # through this layer the row has a gradient

        def forward(self, i: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
            return self.table(i).square().mean() + 0.1 * self.fc(x).square().mean()

    module, x = Padded(), torch.randn(4, 3)
    with torch.no_grad():
        module.table.weight[row] = torch.tensor([0.5, -1.0, 2.0])
    i = torch.tensor([[0, 2], [2, 2], [4, 1], [1, 2]])
    model = ls.from_torch(module, (i, x), dims={"batch": 4}, output_names=["y"])
    step = ls.train_step(model, ls.loss.result("y"), ls.optim.SGD(0.1))
    module(i, x).backward()
    expected = module.table.weight.detach() - 0.1 * module.table.weight.grad
    assert module.table.weight.grad[row].abs().min() > 0

    def table(world: ls.Communicator) -> np.ndarray:
        exe = ls.compile(step, world=world, threads=1)
        mine = slice(world.rank, None, size)
        exe(i=i[mine], x=x[mine])
        return exe.state["table.weight"]

    for found in run_in_threads(size, table):
        np.testing.assert_allclose(found, expected, atol=1e-6)
