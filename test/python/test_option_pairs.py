"""Every pair of options of compile: the step learns what it learns on one rank, or the error names both options, one of
which is documented to exclude the other.
"""

from __future__ import annotations

import inspect
import itertools
import re
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

import lockstep as ls
from lockstep._compile import options as _options
from ranks import run_in_threads

RANKS, BATCH, STEPS = 2, 8, 3
MODEL = """graph @mlp(%x: f32[8,16] split(0), state %w1: f32[16,16], state %w2: f32[16,4]) -> (logits: f32[8,4]) {
  %1 = matmul %x, %w1 : f32[8,16]
  %2 = relu %1 : f32[8,16]
  %3 = matmul %2, %w2 : f32[8,4]
  return %3
}"""


@ls.pass_(after="distribute")
def write_relu_anew(g: ls.graph.Builder) -> None:
    for node in g.nodes("relu"):
        with g.before(node):
            node.replace(ls.graph.max(node.operands[0], np.float32(0)))


# For each option a value that is not its default; any two form a pair. Not here: `isa`, which holds for the whole
# process, and GPUs. Parameter servers need a job of workers: test_strategy.py.
OPTIONS: dict[str, dict[str, Any]] = {
    "mesh data": {"mesh": {"data": RANKS}},
    "mesh stage": {"mesh": {"stage": RANKS}},
    "mesh and split": {"mesh": {"data": 1, "model": RANKS}, "split": {"w1": {"model": 1}}},
    "split": {"split": {"w1": {"data": 0}}},
    "placements": {"placements": {"w*": ls.split(0, "data")}},
    "virtual_ranks": {"virtual_ranks": 4},
    "shares": {"shares": [6, 2]},
    "shard_optimizer": {"shard_optimizer": True},
    "shared_weights": {"shared_weights": True},
    "threads": {"threads": 2},
    "strategy": {"strategy": "parameter_server"},
    "asynchronous": {"strategy": "parameter_server", "asynchronous": True},
    "max_staleness": {"strategy": "parameter_server", "asynchronous": True, "max_staleness": 1},
    "bigarray_bound": {"strategy": "parameter_server", "bigarray_bound": 10},
    "bucket_bytes": {"bucket_bytes": 64},
    "buckets": {"buckets": "a report"},
    "wire bf16": {"wire": "bf16"},
    "wire int8": {"wire": "int8"},
    "factors": {"factors": True},
    "optimize": {"optimize": False},
    "replicated": {"replicated": True},
    "check_numerics": {"check_numerics": True},
    "verify_hardware": {"verify_hardware": 2},
    "check_every": {"check_every": 1},
    "tf32": {"tf32": True},
    "tune": {"tune": True},
    "memory_limit": {"memory_limit": 1 << 24},
    "profile": {"profile": True},
    "verify": {"verify": True},
    "passes": {"passes": [write_relu_anew]},
}
ELSEWHERE = {"graph", "backend", "world", "isa"}
# These leave the program of this step as it is: the first is the default mesh, the small step fits one bucket, what is
# replicated is only not refused, tf32 and tune are of GPUs, verify only compares, and the others are about runs.
UNCHANGED = {"mesh data", "buckets", "replicated", "tf32", "tune", "check_every", "memory_limit", "profile", "verify"}
UNCHANGED |= {"check_numerics", "verify_hardware"}


def step_of(options: Mapping[str, Any]) -> ls.Graph:
    micro_batches = 2 if "stage" in options.get("mesh", {}) else 1
    loss = ls.loss.softmax_cross_entropy("logits", "label")
    uneven = "shares" in options
    optimizer = ls.optim.SGD(0.1, momentum=0.9)
    return ls.train_step(ls.parse(MODEL), loss, optimizer, accumulate=micro_batches, uneven=uneven)


def losses_of(options: dict[str, Any], world: ls.Communicator) -> list[float]:
    random = np.random.default_rng(0)
    weights = {"w1": random.standard_normal((16, 16)) / 4, "w2": random.standard_normal((16, 4)) / 4}
    exe = ls.compile(step_of(options), world=world, **{"threads": 1, **options})
    for name, value in weights.items():
        exe.state[name] = value.astype(np.float32)
    is_shared = options.get("mesh", {"data": world.size}).get("data", 1) == world.size
    share = (
        slice(BATCH // world.size * world.rank, BATCH // world.size * (world.rank + 1)) if is_shared else slice(None)
    )
    if "shares" in options:
        begin = sum(options["shares"][: world.rank])
        share = slice(begin, begin + options["shares"][world.rank])
    losses = []
    for _ in range(STEPS):
        x, label = random.standard_normal((BATCH, 16)).astype(np.float32), random.integers(0, 4, BATCH)
        losses.append(float(exe(x=x[share], label=label[share])["loss"]))
    return losses


@pytest.fixture(scope="module")
def reports() -> list[ls.Report]:
    def report(world: ls.Communicator) -> ls.Report:
        exe = ls.compile(step_of({}), world=world, threads=1)
        exe(x=np.ones((BATCH // RANKS, 16), np.float32), label=np.zeros(BATCH // RANKS, np.int64))
        return exe.report()

    return run_in_threads(RANKS, report)


def test_each_option_is_here() -> None:
    here = {name for options in OPTIONS.values() for name in options}
    assert here == set(inspect.signature(ls.compile).parameters) - ELSEWHERE, "add a value of the new option to OPTIONS"


def test_each_option_changes_the_program(reports: list[ls.Report]) -> None:
    def program_of(options: dict[str, Any]) -> list[tuple[str, str]]:
        def body(world: ls.Communicator) -> tuple[str, str]:
            given = options | ({"buckets": reports[world.rank]} if "buckets" in options else {})
            exe = ls.compile(step_of(options), world=world, **{"threads": 1, **given})
            return str(exe.graph), exe.steps

        return run_in_threads(RANKS, body)

    default = program_of({})
    same = {name for name, options in OPTIONS.items() if "strategy" not in options and program_of(options) == default}
    assert same == UNCHANGED, "an option that compile does not apply, or add it to UNCHANGED with the reason"


@pytest.mark.parametrize("first", OPTIONS)
def test_a_pair_works_as_on_one_rank_or_the_error_names_both(first: str, reports: list[ls.Report]) -> None:
    expected = losses_of({}, ls.Communicator.single())
    for second in itertools.dropwhile(lambda name: name != first, OPTIONS):
        if second != first and OPTIONS[first].keys() & OPTIONS[second].keys():
            continue
        options = OPTIONS[first] | OPTIONS[second]
        is_excluded = first != second and (_excludes(first, second) or _excludes(second, first))

        def body(world: ls.Communicator, options: dict[str, Any] = options) -> list[float]:
            given = options | ({"buckets": reports[world.rank]} if "buckets" in options else {})
            return losses_of(given, world)

        for found in run_in_threads(RANKS, body):
            if isinstance(found, list):
                assert not is_excluded, (first, second)
                np.testing.assert_allclose(found, expected, rtol=2e-4 if "wire" in options else 2e-6, err_msg=second)
            elif "strategy" in options and "this world has the transport" in str(found):
                assert isinstance(found, ls.Error) and not is_excluded, (first, second)  # only servers are missing
            else:
                assert isinstance(found, ls.Error) and is_excluded, (first, second, found)
                assert all(any(word in str(found) for word in _words(name)) for name in (first, second)), found


def _words(options: str) -> list[str]:
    """Names that an error may use for the options."""
    return ["stage"] if options == "mesh stage" else [f"{name}=" for name in OPTIONS[options]] + list(OPTIONS[options])


def _excludes(one: str, other: str) -> bool:
    """True if the documentation of an option in `one` says that it excludes an option in `other`."""
    texts = [" ".join(_options.TABLE[name]["doc"].split()) for name in OPTIONS[one] if name in _options.TABLE]
    sentences = [each for text in texts for each in re.split(r"(?<=[.]) ", text) if "xclude" in each]
    of_other_values = [begin for value, begin in _OF_VALUES.items() if value != one]
    names = [rf"`{name}`|\b{name}=" for name in OPTIONS[other]]
    if other == "mesh stage":
        names = ['axis "stage"']
    elif other == "mesh and split":
        names.append('another axis than "data"')
    elif "strategy" in OPTIONS[other]:
        names.append("parameter servers")
    return any(
        re.search("|".join(names), sentence) and not sentence.startswith(tuple(of_other_values))
        for sentence in sentences
    )


# The beginnings of sentences about one value of an option.
_OF_VALUES = {"mesh stage": 'An axis "stage"', "wire int8": '"int8"'}
