"""Plans: placements of a step's states that a search found, with their costs. See docs/model_parallelism.md."""

from __future__ import annotations

import dataclasses
import json
import math
import os
import tomllib
from collections.abc import Iterator, Mapping
from typing import Any, BinaryIO

from .. import _lockstep
from .._base import atomic, checks
from .._base.errors import Error
from .._lockstep import Graph
from . import placements as _placements
from .machine import Link, Machine
from .placements import Placement

_ASSUMED = Link(latency=2e-5, bandwidth=2e9)  # of ranks within a host, if no machine is given
_SIZES = 4 << 10, 16 << 20  # bytes: the time between hosts is a line through the times of these two sizes
_HEAD = """\
# A plan, for `lockstep.compile(..., placements=lockstep.Plan.read(...))`. Placements may be changed; the costs are
# then no longer right. Seconds and bytes of a rank.
"""


@dataclasses.dataclass(frozen=True)
class Costs:
    """The costs of a step for a rank, by the machine's numbers: seconds, without overlap, and bytes."""

    compute: float
    communication: float
    states: int  # weights and optimizer states
    gradients: int
    activations: int  # results of the forward half that the backward half needs

    @property
    def seconds(self) -> float:
        return self.compute + self.communication

    @property
    def bytes(self) -> int:
        return self.states + self.gradients + self.activations

    def __str__(self) -> str:
        return (
            f"{1e3 * self.seconds:.3f} ms: compute {1e3 * self.compute:.3f}, communication {1e3 * self.communication:.3f}; "
            f"{_megabytes(self.bytes)}: states {_megabytes(self.states)}, gradients {_megabytes(self.gradients)}, "
            f"activations {_megabytes(self.activations)}"
        )


@dataclasses.dataclass(frozen=True)
class PlannedState:
    """A state of a plan. Its optimizer states have the same placement."""

    name: str
    type: str  # of the whole state, such as "f32[128,64]"
    placement: Placement
    bytes: int  # on a rank, without optimizer states


@dataclasses.dataclass(frozen=True)
class RunnerUp:
    """A plan that is not the best: its differences from the best plan, and its costs."""

    changes: dict[str, Placement]
    costs: Costs


@dataclasses.dataclass(frozen=True)
class Plan(Mapping[str, Placement]):
    """Placements of states by name, as `compile(placements=...)` takes them, with their costs. `str` shows everything.

    Example:
      >>> plan = ls.plan(step, {"data": 2, "model": 2}, memory_limit=1 << 30)
      >>> print(plan)
      >>> plan.save("plan.toml")
      >>> exe = ls.compile(step, world=world, placements=ls.Plan.read("plan.toml"))
    """

    program: str
    mesh: dict[str, int]
    states: tuple[PlannedState, ...]
    costs: Costs
    replicated: Costs  # of the step with all states replicated, except for given placements
    runners_up: tuple[RunnerUp, ...]  # the next best plans, in order
    exact: bool  # true if all plans were compared, false for a beam search
    memory_limit: int | None = None

    def __getitem__(self, name: str) -> Placement:
        for state in self.states:
            if state.name == name:
                return state.placement
        raise KeyError(name)

    def __iter__(self) -> Iterator[str]:
        return (state.name for state in self.states)

    def __len__(self) -> int:
        return len(self.states)

    @property
    def unused(self) -> list[str]:
        """The axes of several ranks, other than "data", that split no state: their ranks all compute the same."""
        used = {axis for state in self.states for axis, _ in state.placement.splits}
        return [axis for axis, size in self.mesh.items() if size > 1 and axis != "data" and axis not in used]

    def __str__(self) -> str:
        mesh = ", ".join(f"{axis}={size}" for axis, size in self.mesh.items())
        limit = "" if self.memory_limit is None else f", within {_megabytes(self.memory_limit)}"
        lines = [
            f"plan of @{self.program} for {{{mesh}}}{limit}, {'exact' if self.exact else 'by beam search'}",
            f"  {self.costs}",
            f"  all replicated: {self.replicated}",
        ]
        lines += [f"  no state is split along {axis}, whose ranks all compute the same" for axis in self.unused]
        names = max((len(state.name) for state in self.states), default=0)
        types = max((len(state.type) for state in self.states), default=0)
        lines += [
            f"  {state.name:{names}}  {state.type:{types}}  {state.bytes:>10} bytes  {state.placement}"
            for state in self.states
        ]
        for place, other in enumerate(self.runners_up, 2):
            changes = ", ".join(f"{name} {placement}" for name, placement in other.changes.items())
            lines.append(f"  {place}. {other.costs}; {changes}")
        return "\n".join(lines)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes the plan as TOML. The file appears complete or not at all."""

        path = checks.path(path)

        def content(file: BinaryIO) -> None:
            file.write(f"{_HEAD}{_toml(self)}".encode())

        try:
            atomic.write(path, content)
        except OSError as error:
            raise Error(f"{path} cannot be written: {error.strerror}") from None

    @classmethod
    def read(cls, path: str | os.PathLike[str]) -> Plan:
        """Reads a file that `save` wrote. Raises an Error that names the file and the reason."""
        path = checks.path(path)
        try:
            with open(path, "rb") as file:
                return _plan_of(tomllib.load(file))
        except OSError as error:
            raise Error(f"{path} cannot be read: {error.strerror}") from None
        except (tomllib.TOMLDecodeError, UnicodeDecodeError, Error) as error:
            raise Error(f"{path}: {error}") from None
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise Error(f"{path} is not a plan: {type(error).__name__}: {error}") from None


def _megabytes(count: int) -> str:
    return f"{count / 1e6:.3f} MB"


def _table(values: Mapping[str, Any]) -> list[str]:
    """Returns lines of TOML. Strings are written as in JSON."""
    return [f"{json.dumps(str(name))} = {json.dumps(value)}" for name, value in values.items()]


def _toml(plan: Plan) -> str:
    limit = {} if plan.memory_limit is None else {"memory_limit": plan.memory_limit}
    lines = _table({"program": plan.program, "exact": plan.exact, **limit})
    lines += ["", "[mesh]", *_table(plan.mesh)]
    lines += ["", "[placements]", *_table({state.name: str(state.placement) for state in plan.states})]
    for title, costs in (("costs", plan.costs), ("replicated", plan.replicated)):
        lines += ["", f"[{title}]", *_table(dataclasses.asdict(costs))]
    for other in plan.runners_up:
        lines += ["", "[[runners_up]]", *_table(dataclasses.asdict(other.costs)), "[runners_up.changes]"]
        lines += _table({name: str(placement) for name, placement in other.changes.items()})
    for state in plan.states:
        lines += ["", "[[states]]", *_table({"name": state.name, "type": state.type, "bytes": state.bytes})]
    return "\n".join(lines) + "\n"


def _plan_of(values: dict[str, Any]) -> Plan:
    placements = {name: Placement.parse(text) for name, text in values["placements"].items()}
    known = {state["name"]: state for state in values["states"]}
    if unknown := placements.keys() - known.keys():
        raise Error(f"there is a placement of {min(unknown)}, which is not a state of the plan")
    runners_up = []
    for other in values.get("runners_up", []):
        changes = {name: Placement.parse(text) for name, text in other.pop("changes").items()}
        runners_up.append(RunnerUp(changes, Costs(**other)))
    return Plan(
        program=values["program"],
        mesh=checks.extents("mesh", values["mesh"]),
        states=tuple(
            PlannedState(name, known[name]["type"], placement, known[name]["bytes"])
            for name, placement in placements.items()
        ),
        costs=Costs(**values["costs"]),
        replicated=Costs(**values["replicated"]),
        runners_up=tuple(runners_up),
        exact=values["exact"],
        memory_limit=values.get("memory_limit"),
    )


def _line(machine: Machine, hosts: int, ranks_a_host: int, beside: int) -> tuple[float, float]:
    """Latency and seconds per byte of an all_reduce between hosts, while `beside` groups share the network."""
    link = machine.between
    seconds = []
    for size in _SIZES:
        messages, sent = _lockstep._travel("all_reduce", size, hosts, ranks_a_host, link.latency, link.bandwidth)
        seconds.append(messages * link.latency + beside * sent / link.bandwidth)
    per_byte = (seconds[1] - seconds[0]) / (_SIZES[1] - _SIZES[0])
    return max(seconds[0] - per_byte * _SIZES[0], 0.0), per_byte


_MOST_RANKS = 1 << 15  # of a mesh, as in the verifier


def links_of(mesh: Mapping[str, int], machine: Machine | None) -> dict[str, tuple[float, float]]:
    """Returns, by axis, the latency and the seconds per byte of an all_reduce. Ranks are on hosts in order,
    `machine.ranks` on each. All ranks are on one host if no machine is given."""
    world = math.prod(mesh.values())
    on_host = world if machine is None else min(machine.ranks, world)
    within = _ASSUMED if machine is None else machine.within
    links, stride = {}, world
    for axis, size in mesh.items():
        stride //= max(size, 1)
        if size < 2:
            continue
        hosts = len({rank * stride // on_host for rank in range(size)})
        if hosts > 1 and machine.between is None:
            raise Error(
                f"plan: the ranks along axis {axis} are on {hosts} hosts, but the machine has no link between hosts"
            )
        if hosts < size and within is None:
            raise Error(f"plan: ranks along axis {axis} are on one host, but the machine has no link within a host")
        ranks_a_host = math.ceil(size / hosts)
        link = (0.0, 0.0) if hosts == 1 else _line(machine, hosts, ranks_a_host, max(1, on_host // ranks_a_host))
        if hosts < size:
            link = link[0] + within.latency, link[1] + 1 / within.bandwidth
        links[axis] = link
    return links


def plan(
    graph: Graph,
    mesh: Mapping[str, int],
    *,
    machine: Machine | None = None,
    memory_limit: int | None = None,
    placements: Mapping[str, Placement] | None = None,
) -> Plan:
    """Searches placements of a step's states along the axes of a mesh other than "data". Returns the plan with the
    shortest step among those within the memory limit.

    The costs of a plan follow from the placement rules of `distribute`: the operations and bytes of a rank's kernels,
    the bytes that its collectives move, and the bytes that it stores. If the layers of a model are a chain, as in most
    models, all plans are compared. Otherwise, or if the memory limit excludes plans, a beam search may miss some, and
    `Plan.exact` is false.

    Args:
      graph: a training step or a model: the one-rank program over the global batch, which is passed to `compile` later.
      mesh: as for `compile`.
      machine: the speed of a rank, and of the links between ranks and hosts: a `lockstep.forecast.Machine`, for example
        from `Machine.read`. If None, the numbers of a usual processor, with all ranks on one host.
      memory_limit: bytes that a rank may use: states, gradients, and the activations that the backward half needs. This
        is an estimate. `exe.memory` is the exact number of a compiled step, and `compile(memory_limit=...)` limits
        that.
      placements: fixed placements, as for `compile`. The plan includes them.

    Raises:
      Error: names the axis, the state or the option. If no plan is within the limit, names the smallest need that was
        found.
    """
    checks.graph("plan: the graph", graph)
    axes = checks.extents("mesh", mesh)
    for axis, size in axes.items():
        checks.integer(f"plan: mesh: the size of axis {axis}", size, 1)
    if math.prod(axes.values()) > _MOST_RANKS:
        raise Error(f"plan: mesh is {axes}, which has too many ranks; expected at most {_MOST_RANKS}")
    if "stage" in axes:
        raise Error(
            f"plan: mesh is {axes}: stages are not planned; compile divides a step into stages by the costs of its layers"
        )
    if machine is not None:
        checks.instance("plan: machine", machine, Machine, "a lockstep.forecast.Machine")
    limit = None if memory_limit is None else checks.integer("plan: memory_limit", memory_limit, 1)
    of = Machine() if machine is None else machine
    given = _placements.choices(None, placements)
    found = _lockstep._plan(
        graph, list(axes.items()), given, of.operations, of.memory, links_of(axes, machine), limit
    )  # fmt: skip
    states = tuple(
        PlannedState(name, kind, Placement(tuple(sorted(dims.items()))), size)
        for name, kind, dims, size in found["states"]
    )
    best = found["best"]["splits"]
    return Plan(
        program=graph.name,
        mesh=axes,
        states=states,
        costs=Costs(**found["best"]["costs"]),
        replicated=Costs(**found["replicated"]["costs"]),
        runners_up=tuple(
            RunnerUp(_changes(best, other["splits"], states), Costs(**other["costs"])) for other in found["runners_up"]
        ),
        exact=found["exact"],
        memory_limit=limit,
    )


def _changes(
    best: dict[str, dict[str, int]], other: dict[str, dict[str, int]], states: tuple[PlannedState, ...]
) -> dict[str, Placement]:
    """Returns the placements of states that differ from those of the best plan."""
    return {
        state.name: Placement(tuple(sorted(other.get(state.name, {}).items())))
        for state in states
        if best.get(state.name, {}) != other.get(state.name, {})
    }
