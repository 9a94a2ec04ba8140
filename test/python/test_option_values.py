"""Extreme numbers and mappings as values of all options: each is accepted or gets a lockstep.Error; none ends the
process.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import lockstep as ls
from test_errors import CROSS_ENTROPY, LABELS, MLP, SGD, X, mlp, training

VALUES = [0, -1, 1.5, 2**31, 2**63, -(2**63), 10**30, float("nan"), float("inf"), "", [], {}, None, True]


def compiled(**options: Any) -> ls.Executable:
    return ls.compile(training(), **options)


CALLS: dict[str, Callable[[Any], Any]] = {
    "mesh": lambda v: compiled(mesh=v),
    "mesh of an axis": lambda v: compiled(mesh={"data": v}),
    "mesh of two axes": lambda v: compiled(mesh={"data": v, "model": v}),
    "mesh of stages": lambda v: ls.compile(training(accumulate=2), mesh={"stage": v}),
    "split": lambda v: compiled(split={"fc1.weight": {"data": v}}),
    "placements": lambda v: compiled(placements={"fc1.*": ls.split(v, "data")}),
    "threads": lambda v: compiled(threads=v),
    "virtual_ranks": lambda v: compiled(virtual_ranks=v),
    "shares": lambda v: ls.compile(training(uneven=True), shares=v),
    "shares of a rank": lambda v: ls.compile(training(uneven=True), shares=[v]),
    "bucket_bytes": lambda v: compiled(bucket_bytes=v),
    "bigarray_bound": lambda v: compiled(bigarray_bound=v),
    "max_staleness": lambda v: compiled(max_staleness=v),
    "factors": lambda v: compiled(factors=v),
    "wire": lambda v: compiled(wire=v),
    "check_every": lambda v: compiled(check_every=v),
    "verify_hardware": lambda v: compiled(verify_hardware=v),
    "memory_limit": lambda v: compiled(memory_limit=v),
    "set": lambda v: compiled().set(**{"optimizer/learning_rate": v}),
    "distribute": lambda v: ls.distribute(training(), v),
    "distribute on an axis": lambda v: ls.distribute(training(), {"data": v}),
    "distribute on two axes": lambda v: ls.distribute(training(), {"data": v, "model": v}),
    "plan": lambda v: ls.plan(training(), mesh={"data": v, "model": v}),
    "interpret": lambda v: ls.interpret(training(), v),
    "dims": lambda v: ls.load_onnx(MLP, dims={"batch": v}),
    "dims by place": lambda v: ls.load_onnx(MLP, dims={"x:0": v}),
    "split of an input": lambda v: ls.load_onnx(MLP, dims={"batch": 6}, split={"x": v}),
    "accumulate": lambda v: training(accumulate=v),
    "seed": lambda v: training(seed=v),
    "average": lambda v: training(average=v),
    "groups": lambda v: training(groups=v),
    "optimizer of a group": lambda v: training(groups={"*.bias": v}),
    "trained": lambda v: training(trained=v),
    "frozen": lambda v: training(frozen=v),
    "learning_rate": lambda v: ls.compile(training(ls.optim.SGD(v))),
    "momentum": lambda v: ls.compile(training(ls.optim.SGD(0.1, momentum=v))),
    "beta1": lambda v: ls.compile(training(ls.optim.Adam(0.1, beta1=v))),
    "epsilon": lambda v: ls.compile(training(ls.optim.Adam(0.1, epsilon=v))),
    "clip": lambda v: ls.compile(training(clip=ls.clip.global_norm(v))),
    "exponential average": lambda v: ls.compile(training(average=ls.average.exponential(v))),
    "ignore_index": lambda v: ls.train_step(
        mlp(), ls.loss.softmax_cross_entropy("logits", "label", ignore_index=v), SGD
    ),
    "label_smoothing": lambda v: ls.train_step(
        mlp(), ls.loss.softmax_cross_entropy("logits", "label", label_smoothing=v), SGD
    ),
    "weight of a loss": lambda v: ls.train_step(mlp(), CROSS_ENTROPY * v, SGD),
    "in_process": ls.Communicator.in_process,
    "size of batches": lambda v: list(ls.data.batches(X, LABELS, size=v)),
    "start of batches": lambda v: list(ls.data.batches(X, LABELS, size=2, start=v)),
    "seed of batches": lambda v: list(ls.data.batches(X, LABELS, size=2, seed=v)),
    "depth": lambda v: training().summary(v),
    "steps of a schedule": lambda v: ls.schedule.cosine(0.1, v)(3),
}


@pytest.mark.parametrize("option", CALLS)
def test_a_value_is_accepted_or_an_error(option: str) -> None:
    errors = 0
    for value in VALUES:
        try:
            CALLS[option](value)
        except ls.Error as error:
            errors += 1
            assert len(str(error)) < 1000, "the message is short"
        except TypeError:  # from an operator, for example of a loss and a string
            assert option == "weight of a loss"
    assert errors > 0, "no value is refused"
