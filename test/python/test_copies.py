"""copy, pickle and processes that are spawned: each public class works, or says what to do instead."""

from __future__ import annotations

import copy
import multiprocessing
import pickle
from collections.abc import Callable
from types import ModuleType
from typing import Any

import numpy as np
import pytest

import lockstep as ls
from test_errors import CROSS_ENTROPY, SGD, mlp, training

MODULES = [ls, *(each for name in ls.__all__ if isinstance(each := getattr(ls, name), ModuleType))]
CLASSES = {value for module in MODULES for name in module.__all__ if isinstance(value := getattr(module, name), type)}
# Bases, and protocols of what users write.
ABSTRACT = {ls.optim.Optimizer, ls.metrics.Metric, ls.data.Dataset}


@ls.pass_(before="localize")
def idle(g: ls.graph.Builder) -> None:
    g.nodes()


SCHEDULE = ls.schedule.cosine(0.1, steps=9)
VALUES: list[Any] = [
    *(getattr(ls.optim, name)(0.1) for name in ls.optim.__all__ if name != "Optimizer"),
    ls.optim.SGD(SCHEDULE), SCHEDULE, ls.clip.global_norm(1.0), CROSS_ENTROPY, CROSS_ENTROPY.terms[0],
    ls.Strategy(mesh={"data": 2}), ls.split(0, "data"), mlp().inputs[0], ls.Error("a value"),
    ls.metrics.Mean(), ls.metrics.Perplexity(), ls.metrics.Accuracy(), ls.metrics.ConfusionMatrix(3),
    ls.Checkpoints("folder"), ls.data.SplitSampler(9), ls.data.batches(np.zeros((8, 2), np.float32), size=2, seed=0),
    ls.data.batches(np.zeros((8, 2), np.float32), size=2, sampler=ls.data.SplitSampler(8)),
    ls.kv.RowSparse([0], np.ones((1, 2), np.float32), (3, 2)), training(SGD),
]  # fmt: skip
REFUSED: list[tuple[Callable[[], Any], str]] = [
    (lambda: ls.compile(training(SGD)), "compile that again"),
    (lambda: ls.compile(training(SGD)).state, r"dict\(exe.state\)"),
    (ls.Communicator.single, "from_environment"),
    (lambda: ls.Trainer(mlp(), CROSS_ENTROPY), "lockstep.Checkpoints"),
    (ls.kv.create, r"lockstep.kv.create\(\)"),
    (lambda: ls.graph.Builder("g"), r"finish\(\) returns a lockstep.Graph"),
    (lambda: ls.graph.Builder("g").input("x", "f32", ()), "it belongs to one graph"),
    (lambda: ls.graph.Builder.of(mlp()).nodes()[0], "it belongs to one graph"),
    (lambda: idle, "import it from the module of its function"),
]
# Classes whose values need files, several ranks or a search; other tests make these.
ELSEWHERE = {
    ls.Plan, ls.data.ImageFolder, ls.data.ImageRecords, ls.data.RecordHeader, ls.data.Records, ls.kv.Devices,
    ls.kv.Staleness,
}  # fmt: skip
REFUSED_CLASSES = {
    ls.Communicator, ls.Executable, ls.Trainer, ls.kv.KVStore, ls.graph.Builder, ls.graph.Node, ls.graph.Pass,
    ls.graph.Value,
}  # fmt: skip


def same(one: Any, other: Any) -> bool:
    if isinstance(one, ls.Graph):
        return str(one) == str(other)
    if type(one).__eq__ is not object.__eq__:
        return bool(one == other)
    if isinstance(one, ls.data.Batches):
        return all(np.array_equal(a, b) for a, b in zip(one, other, strict=True))
    return type(one) is type(other) and (not hasattr(one, "__dict__") or one.__dict__.keys() == other.__dict__.keys())


def test_the_lists_have_every_public_class() -> None:
    assert {type(value) for value in VALUES} | REFUSED_CLASSES | ELSEWHERE | ABSTRACT == CLASSES


@pytest.mark.parametrize("value", VALUES, ids=lambda value: type(value).__name__)
def test_copies(value: Any) -> None:
    for copied in (copy.copy(value), copy.deepcopy(value), pickle.loads(pickle.dumps(value))):
        assert same(value, copied)


def test_values_reach_a_spawned_process_and_return() -> None:
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        for value, returned in zip(VALUES, pool.map(copy.copy, VALUES), strict=True):
            assert same(value, returned)


@pytest.mark.parametrize(("make", "instead"), REFUSED)
@pytest.mark.parametrize("how", [copy.copy, copy.deepcopy, pickle.dumps])
def test_refused(make: Callable[[], Any], instead: str, how: Callable[[Any], Any]) -> None:
    with pytest.raises(TypeError, match=rf"^a .* can be neither copied nor pickled; .*{instead}"):
        how(make())
