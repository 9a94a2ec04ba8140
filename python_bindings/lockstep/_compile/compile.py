"""The function `compile`: it makes an executable from a graph."""

from __future__ import annotations

import inspect
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from .. import _lockstep
from .._base import checks, job, names
from .._base.errors import Error
from .._base.log import warn_once
from .._exchange.bodies import with_bodies
from .._lockstep import Communicator, Executable, Graph
from ..graph._pass import Pass, Run, causes, runs_of
from . import buckets as _buckets
from . import options as _options
from .mistakes import warn_of_draws
from .plan import Plan
from .servers import client_of
from .shares import begin
from .strategy import expanded


def compile(
    graph: Graph,
    backend: str = "cpu",
    world: Communicator | None = None,
    *,
    passes: Sequence[Pass] = (),
    **options: Any,
) -> Executable:
    """Compiles a graph for this rank and loads it. All ranks of `world` call it. It distributes the graph.

    The ranks compare their programs. Different models, values or options are an error that shows the first difference.
    Different builds, libraries, processors and numbers of threads are an error too, because their kernels may compute
    different bits. Options of one machine, such as a limit of memory, may differ. Calls of the executable compare more:
    that all ranks call the same program and have assigned the same states. The first call and every `check_every`-th
    also compare inputs and states that must be equal. Programs that neither communicate nor update common states, such
    as a model for inference, are not compared: each rank may call them any number of times.

    With `LOCKSTEP_DUMP=directory` in the environment, the graph after each pass that changed it is written to a new
    folder in that directory: `<graph>`, or `<graph>.rank<r>` if there are several ranks. If a compilation fails, the
    graph on which it failed is written too. `lockstep-opt` reads it, and the Error names the file.

    Args:
      graph: a model (for inference) or a training step. It is the one-rank program over the global batch.
      backend: "cpu", or "cuda" for NVIDIA's GPUs, one for each rank of a host as far as there are. `lockstep doctor`
        says whether the GPUs and their libraries are found. NCCL with several ranks has not run on hardware yet
        (docs/gpu.md).
      world: the ranks. None: this rank alone. A training step is then an error in a job of several ranks, as `mpirun`,
        `srun` and `torchrun` start them.
      passes: functions with `@lockstep.pass_`, which change the program among the passes of the compiler. All ranks
        must have the same (docs/passes_in_python.md).

    Returns:
      An executable. Call it with the inputs by name, or `start` a call and use its results later.

    Raises:
      Error: names the op with its source in the model, the option, or the ranks that disagree.
    """
    alone = world is None
    world = Communicator.single() if world is None else world
    checks.instance("world", world, Communicator, "a lockstep.Communicator")
    try:
        names.check_options("compile", options, _SIGNATURE.parameters)
        checks.graph("the graph", graph)
        given = _with_measured_shares(expanded(options), graph, world)
        if alone and graph.trained and not given.get("replicated", False):
            job.check_is_one("compile", "world=ls.Communicator.from_environment()")
        runs = runs_of("compile", passes)
        compiled = _resolved(graph, checks.text("backend", backend), world, given, runs)
        exchanged = with_bodies(graph, dict(compiled.mesh))
        dump = os.environ.get("LOCKSTEP_DUMP", "")
        dump = checks.path(dump) if dump else ""
        report = given.get("buckets")
        times = _buckets.times_of(report, world.size) if isinstance(report, _options.Report) else None
    except BaseException as error:
        told = str(error) if isinstance(error, Error) else f"compile: {type(error).__name__}: {error}"
        with suppress(Error):  # tells the other ranks; this rank raises its own error
            _lockstep._agree_on_arguments(world, told.encode(errors="backslashreplace").decode())
        raise
    _lockstep._agree_on_arguments(world, "")
    if times is not None:
        compiled.measured(_buckets.measured(world, compiled.mesh, report.program, times))
    with causes(runs):
        executable = _lockstep._compile(exchanged.graph, backend, world, compiled, dump)
    for below, values in exchanged.states.items():
        for name, value in values.items():
            executable._assign_state(below + name, value)
    for dtype in _lockstep._slow_dtypes(graph, backend, given.get("isa", "")):
        warn_once(f"{dtype}: products are computed in f32 if this processor or its library is not faster in {dtype}")
    if world.rank == 0:
        warn_of_draws(graph)
    settings = executable._setting_names()
    executable._schedules.update({name: each for name, each in exchanged.schedules.items() if name in settings})
    executable._exchanged.update(exchanged.states)
    executable._schedules.update(getattr(graph, "_schedules", {}))
    executable._wrong_labels.update(getattr(graph, "_wrong_labels", {}))
    if unit := _unit_of_shares(graph):
        virtual_ranks = given.get("virtual_ranks")
        begin(executable, sum(executable.shares) // virtual_ranks if virtual_ranks else unit)
    return executable


def _unit_of_shares(graph: Graph) -> int:
    """The rows of which measured shares are multiples; 0 if the graph's shares are not measured."""
    return getattr(graph, "_measured_in", 0)


def _with_measured_shares(given: dict[str, Any], graph: Graph, world: Communicator) -> dict[str, Any]:
    """Returns the options. Measured shares are equal at first, so that options that exclude other shares are errors."""
    if not _unit_of_shares(graph) or world.size == 1 or given.get("shares") is not None:
        return given
    rows = next(each for each in graph.inputs if each.name == "rows").shape[0]
    return given if rows % world.size else {**given, "shares": [rows // world.size] * world.size}


def _resolved(
    graph: Graph, backend: str, world: Communicator, given: Mapping[str, Any], runs: Sequence[Run]
) -> _lockstep._CompileOptions:
    """Returns the options for these ranks. Raises an Error for options that no rank could compile."""
    options = _options.with_defaults_of(world, given)
    texts = _options.texts_of(options)
    if ("shared_weights", "true") in texts:
        _options.check_on_one_host(world)
    plan = options.get("placements")
    if isinstance(plan, Plan) and plan.unused and _is_meant(graph, plan, world):
        texts = [(name, text) for name, text in texts if name != "replicated"] + [("replicated", "true")]
    compiled = _lockstep._CompileOptions()
    compiled.set(texts)
    compiled.passes([each.native for each in runs])
    compiled.resolve(graph, backend, world)
    if compiled.has_servers:
        compiled.client(client_of(world))
    return compiled


def _is_meant(graph: Graph, plan: Plan, world: Communicator) -> bool:
    """True if ranks compute the same only because the plan splits no state along some axes. Rank 0 then warns."""
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
