"""The names of results: the keys of what `forward` returns, unless the caller gives others."""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import lockstep as ls
from test_errors import raises

torch = pytest.importorskip("torch")
nn = torch.nn

X = torch.randn(4, 6, generator=torch.Generator().manual_seed(0))
Pair = namedtuple("Pair", ["first", "second"])


class Returning(nn.Module):
    def __init__(self, results: Callable[[torch.Tensor, torch.Tensor], Any]) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.fc, self.results = nn.Linear(6, 3), results

    def forward(self, x: torch.Tensor) -> Any:
        return self.results(x, self.fc(x))


@pytest.mark.parametrize(
    ("results", "given", "names"),
    [
        (lambda x, z: {"loss": z.sum(), "logits": z}, [], ["loss", "logits"]),
        (lambda x, z: {"loss": None, "logits": z}, [], ["logits"]),
        (lambda x, z: {"loss": z.sum(), "logits": z}, ["a"], ["a", "logits"]),
        (lambda x, z: {"loss": z.sum(), "logits": z}, ["a", "b"], ["a", "b"]),
        (lambda x, z: {"one": z, "same": z, "input": x}, [], ["one", "same", "input"]),
        (lambda x, z: {"linear": 2 * z, "logits": z}, [], ["linear", "logits"]),  # the exporter calls z so
        (lambda x, z: {"z": z, "more": [z + 1, {"deep": z + 2}]}, [], ["z", "more.0", "more.1.deep"]),
        (lambda x, z: Pair(z, 2 * z), [], ["first", "second"]),
        (lambda x, z: (z, {"twice": 2 * z}), ["z"], ["z", "twice"]),
    ],
)
def test_keys_are_names(results: Callable[..., Any], given: list[str], names: list[str]) -> None:
    module = Returning(results)
    model = ls.from_torch(module, X[:2], dims={"batch": 4}, output_names=given)
    assert [result.name for result in model.results] == names
    found = ls.compile(model)(x=X)
    expected = [each for each in torch.utils._pytree.tree_leaves(module(X)) if each is not None]
    for name, value in zip(names, expected, strict=True):
        np.testing.assert_allclose(found[name], value.detach(), atol=1e-6, err_msg=name)


def test_a_loss_by_its_key_is_trained() -> None:
    module = Returning(lambda x, z: {"loss": z.square().mean(), "logits": z})
    step = ls.train_step(ls.from_torch(module, X, dims={"batch": 4}), ls.loss.result("loss"), ls.optim.SGD(0.1))
    assert ls.compile(step)(x=X)["loss"] == pytest.approx(module(X)["loss"].item(), abs=1e-6)


def test_names_that_are_taken() -> None:
    module = Returning(lambda x, z: {"x": z, "fc.weight": 2 * z, "free": 3 * z})
    names = [result.name for result in ls.from_torch(module, X, dims={"batch": 4}).results]
    assert names[2] == "free" and not {"x", "fc.weight"} & set(names), "the exporter's"
    for given, said in (
        (["x"], "output_names has x, which is an input of Returning; give the result another name"),
        (["a", "fc.weight"], "output_names has fc.weight, which is a parameter or buffer of Returning"),
        (["a", "b", "a"], "output_names has a twice"),
    ):
        with raises(f"from_torch: {said}"):
            ls.from_torch(module, X, dims={"batch": 4}, output_names=given)
