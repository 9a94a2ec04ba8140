"""verify(), compile(verify=True) and `lockstep verify`: n ranks equal one rank in exact arithmetic."""

from __future__ import annotations

from typing import Any

import pytest

import architectures
import lockstep as ls
from cases import CASES, MLP_SPLIT, Case

RECIPES: dict[str, dict[str, Any]] = {
    "adam": {"optimizer": ls.optim.Adam(0.01)},
    "clipped": {"optimizer": ls.optim.AdamW(0.01), "clip": ls.clip.global_norm(1.0)},
    "bf16": {"optimizer": ls.optim.SGD(0.1, momentum=0.9), "precision": "bf16"},
    "f16": {"optimizer": ls.optim.SGD(0.1), "precision": "f16"},
    "uneven": {"optimizer": ls.optim.SGD(0.1), "uneven": True},
    "accumulate": {"optimizer": ls.optim.SGD(0.1), "accumulate": 2},
    "lamb": {"optimizer": ls.optim.LAMB(0.01)},
}
OPTIONS: dict[str, dict[str, Any]] = {
    "default": {},
    "shard_optimizer": {"shard_optimizer": True},
    "bf16 wire": {"wire": "bf16"},
    "int8 wire": {"wire": "int8"},
    "factors": {"factors": True},
    "no optimization": {"optimize": False},
    "small buckets": {"bucket_bytes": 64},
}


def step_of(case: Case, optimizer: ls.optim.Optimizer, **recipe: Any) -> ls.Graph:
    model = ls.load_onnx(case.model, dims={"batch": 8})
    return ls.train_step(model, ls.loss.softmax_cross_entropy("logits", "label"), optimizer, **recipe)


@pytest.mark.parametrize("case", CASES[1:], ids=lambda case: case.name)
@pytest.mark.parametrize("recipe", RECIPES)
def test_recipes(case: Case, recipe: str) -> None:
    if case.name == "convnet_bn" and recipe == "accumulate":
        pytest.skip("batch normalisation of micro-batches is of each rank")
    ls.verify(step_of(case, **RECIPES[recipe]), 2)


@pytest.mark.parametrize("case", CASES[1:], ids=lambda case: case.name)
@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("ranks", [2, 4])
def test_options(case: Case, options: str, ranks: int) -> None:
    ls.verify(step_of(case, ls.optim.SGD(0.1, momentum=0.9)), ranks, **OPTIONS[options])


def test_a_mesh_of_two_axes() -> None:
    ls.verify(step_of(CASES[1], ls.optim.Adam(0.01)), 4, mesh={"data": 2, "model": 2}, split=MLP_SPLIT)


def test_stages() -> None:
    ls.verify(step_of(CASES[1], ls.optim.SGD(0.1), accumulate=2), 2, mesh={"stage": 2})


@pytest.mark.parametrize("file", [file for file in architectures.files() if file.endswith(".export")])
def test_architectures(file: str) -> None:
    about, _, label, _ = architectures.read(file.split(".")[0])
    model = ls.load_onnx(architectures.model_bytes(file), {"batch": len(label)})
    if about["loss"] == "cross_entropy":
        loss = ls.loss.softmax_cross_entropy("output", "label")
    else:
        loss = ls.loss.mean_squared_error("output", "label")
    ls.verify(ls.train_step(model, loss, ls.optim.SGD(1.0, momentum=0.9)), 2)


def test_a_program_that_is_distributed_cannot_be_verified() -> None:
    placed = ls.distribute(step_of(CASES[1], ls.optim.SGD(0.1)), {"data": 2})
    with pytest.raises(ls.Error, match="is distributed already"):
        ls.verify(placed, 2)
