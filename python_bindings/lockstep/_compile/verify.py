"""The function `verify`: it proves that n ranks compute what one computes."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from .. import _lockstep
from .._base import checks, names
from .._base.errors import Error
from .._lockstep import Graph
from ..graph._pass import Pass, causes, runs_of
from . import options as _options
from .strategy import expanded

_MOST_RANKS = 64  # each is a copy of the program's values


def verify(
    graph: Graph,
    ranks: int | None = None,
    *,
    backend: str = "cpu",
    shrink: bool = True,
    passes: Sequence[Pass] = (),
    **options: Any,
) -> tuple[str, ...]:
    """Compares the program of n ranks with that of one rank in exact arithmetic, and the gradients of a training step
    with the derivatives of its loss. See docs/verify.md.

    The ranks need not exist: the program that `compile` would make for all of them runs in this process, as does
    `graph`. A program of more than a few million operations is made smaller first: its dimensions become as small as
    its structure allows, and the result says which.

    >>> lockstep.verify(step, 8, shard_optimizer=True)
    ('adam means its decomposition',)

    Args:
      graph: the one-rank program over the global batch: a training step, an evaluation or a model. Or one that
        `distribute` has placed already: it is compared with itself as it is, and its gradients are not checked.
      ranks: the number of ranks, at most 64. The default is the product of the sizes of `mesh`, or 2 without it.
      backend: "cpu" or "cuda". Passes depend on the ops that it supports. "cuda" needs a GPU and its driver.
      shrink: False compares the program as it is. This takes a few steps on one core for each rank in exact arithmetic,
        which is too long for large models.
      passes: functions with `@lockstep.pass_`, as for `compile`. One that does not keep the meaning is an error with its
        name, unless it says so.
      options: those of a `Strategy`, such as `mesh`, `split`, `shard_optimizer` and `wire`; or a `strategy`.

    Returns:
      What the comparison takes for granted: sentences, in alphabetical order.

    Raises:
      Error: a result of some rank differs from that of one rank. Names the pass of the compiler that made the
        difference, the first value that differs, the op, and the ranks. Or the gradients of some states are not the
        derivatives of the loss. Or an option or the graph is one that `compile` refuses, or a step has batch statistics
        of each rank, which depend on the number of ranks by definition.
    """
    checks.graph("the graph", graph)
    ranks, compiled = without_ranks("verify", ranks, options)
    if ranks > _MOST_RANKS:
        raise Error(f"verify: ranks is {ranks}, expected at most {_MOST_RANKS}")
    runs = runs_of("verify", passes)
    compiled.passes([each.native for each in runs])
    backend, shrink = checks.text("verify: backend", backend), checks.flag("verify: shrink", shrink)
    with causes(runs):
        return tuple(_lockstep._verify(graph, backend, ranks, compiled, shrink))


def without_ranks(called: str, ranks: int | None, options: Mapping[str, Any]) -> tuple[int, _lockstep._CompileOptions]:
    """Returns the number of ranks and the options of a program for ranks that need not exist. Without `ranks`, there
    are as many as the mesh has, or 2. Raises an Error that begins with `called`."""
    names.check_options(called, options, _options.OF_STRATEGY)
    given = _options.with_mesh_of_plan(expanded(options))
    if ranks is None:
        mesh = given.get("mesh")
        ranks = math.prod(checks.extents("mesh", mesh).values()) if mesh else 2
    if isinstance(given.get("buckets"), _options.Report):
        raise Error(f"{called}: buckets cannot be a report, because ranks must measure with it")
    compiled = _lockstep._CompileOptions()
    compiled.set(_options.texts_of(given))
    return checks.integer(f"{called}: ranks", ranks, 1), compiled
