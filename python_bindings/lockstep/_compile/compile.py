"""From a graph to what a rank runs."""

from __future__ import annotations

import inspect
import os
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from .. import _lockstep
from .._base import checks, job, names
from .._base.errors import Error
from .._base.log import warn_once
from .._lockstep import Communicator, Executable, Graph
from . import buckets as _buckets
from . import options as _options
from .plan import Plan
from .servers import client_of
from .strategy import expanded


def compile(graph: Graph, backend: str = "cpu", world: Communicator | None = None, **options: Any) -> Executable:
    """Compiles a graph for this rank, and loads it; the distribute pass runs in here. All ranks of `world` call it.

    The ranks compare what they compiled: different models, values or options are an error that shows the first difference, and so
    are different builds, libraries, processors and numbers of threads, whose kernels may compute different bits. Options that
    concern one machine, such as a limit of memory, may differ. Later calls compare more: that all ranks call the same program and
    have assigned the same states, and, in the first call and every `check_every`-th, that inputs and states which should be equal
    are. Programs that neither communicate nor update states that ranks have in common, such as a model that predicts, are not
    compared: each rank may call them as often as it likes.

    With `LOCKSTEP_DUMP=directory` in the environment the graph after each pass that changed it is written to a new folder there,
    `<graph>` or, of several ranks, `<graph>.rank<r>`; a compilation that fails also leaves the graph on which it failed, which
    `lockstep-opt` reads, and the Error says where.

    Args:
      graph: a model (for inference) or a training step; the one-rank program over the global batch.
      backend: "cpu", or "cuda" for NVIDIA's GPUs, one for each rank of a host as far as there are; `lockstep doctor` says whether
        they and their libraries are found. That backend has not run on hardware yet: docs/gpu.md.
      world: the ranks; None is one. A step that trains is an error then in a job of several, as `mpirun`, `srun` and `torchrun` start them.

    Returns:
      An executable; call it with the inputs by name, or `start` a call and look at its results later.

    Raises:
      Error: naming the op with its source in the model, the option, or the ranks that disagree.
    """
    alone = world is None
    world = Communicator.single() if world is None else world
    checks.instance("world", world, Communicator, "a lockstep.Communicator")
    try:
        names.check_options("compile", options, _SIGNATURE.parameters)
        checks.graph("the graph", graph)
        given = expanded(options)
        if alone and graph.trained and not given.get("replicated", False):
            job.check_is_one("compile", "world=ls.Communicator.mpi()")
        compiled = _resolved(graph, checks.text("backend", backend), world, given)
        dump = os.environ.get("LOCKSTEP_DUMP", "")
        dump = checks.path(dump) if dump else ""
        report = given.get("buckets")
        times = _buckets.times_of(report, world.size) if isinstance(report, _options.Report) else None
    except BaseException as error:
        told = str(error) if isinstance(error, Error) else f"compile: {type(error).__name__}: {error}"
        with suppress(Error):  # the other ranks hear of it; this one has it
            _lockstep._agree_on_arguments(world, told.encode(errors="backslashreplace").decode())
        raise
    _lockstep._agree_on_arguments(world, "")
    if times is not None:
        compiled.measured(_buckets.measured(world, compiled.mesh, report.program, times))
    executable = _lockstep._compile(graph, backend, world, compiled, dump)
    for dtype in _lockstep._slow_dtypes(graph, backend, given.get("isa", "")):
        warn_once(f"{dtype}: products are computed in f32 if this processor or its library is not faster in {dtype}")
    executable._schedules.update(getattr(graph, "_schedules", {}))
    return executable


def _resolved(graph: Graph, backend: str, world: Communicator, given: Mapping[str, Any]) -> _lockstep._CompileOptions:
    """The options for these ranks; an Error of those that no rank could compile with."""
    options = _options.with_defaults_of(world, given)
    texts = _options.texts_of(options)
    if ("shared_weights", "true") in texts:
        _options.check_on_one_host(world)
    plan = options.get("placements")
    if isinstance(plan, Plan) and plan.unused and _is_meant(graph, plan, world):
        texts = [(name, text) for name, text in texts if name != "replicated"] + [("replicated", "true")]
    compiled = _lockstep._CompileOptions()
    compiled.set(texts)
    compiled.resolve(graph, backend, world)
    if compiled.has_servers:
        compiled.client(client_of(world))
    return compiled


def _is_meant(graph: Graph, plan: Plan, world: Communicator) -> bool:
    """Whether ranks that compute the same do so by the plan alone, which says that they share nothing; then they are warned."""
    if plan.mesh.get("data", 1) > 1 and not any("data" in each.placements for each in (*graph.inputs, *graph.states)):
        return False
    if world.rank == 0:
        warn_once(f"the plan splits no state along {', '.join(plan.unused)}: the ranks along it all compute the same")
    return True


def _signature() -> inspect.Signature:
    own = inspect.signature(compile)
    first = [each for each in own.parameters.values() if each.kind is not inspect.Parameter.VAR_KEYWORD]
    return own.replace(parameters=[*first, *_options.parameters(_options.TABLE)])


_SIGNATURE = _signature()
compile.__signature__ = _SIGNATURE  # type: ignore[attr-defined]
compile.__doc__ = (inspect.getdoc(compile) or "").replace(
    "\n\nReturns:", f"\n{_options.documentation(_options.TABLE)}\n\nReturns:"
)
