"""Graph.explain, Graph.save_html and Executable.explain: what a step communicates, and what each pass changed."""

from __future__ import annotations

import difflib
import itertools
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, BinaryIO

from .. import _lockstep
from .._base import atomic, checks
from .._base.errors import Error
from .._compile.machine import Machine
from .._compile.verify import without_ranks
from .._reports.report import milliseconds
from .layers import OPTIMIZER, Layer, aligned, depth_of, layer_of, layers_of

if TYPE_CHECKING:
    from .._lockstep import Executable, Graph
    from .._reports.report import Report

SERVERS = "servers"  # the axis of pushes and pulls
_MOST_STRATEGY = 200  # characters that are shown


@dataclass(frozen=True)
class Tensor:
    """A tensor that a communication moves."""

    name: str
    layer: str  # whose value it is, as in Graph.summary; of a bucket that travels as int8, of one gradient
    bytes: int  # on this rank: of the operand; of the result if this rank only receives
    ready: int | None  # the step after which it has its value; -1: an input or a state; None: this rank only receives
    ready_at: float  # seconds from the beginning of the call to the end of that step; 0 without one


@dataclass(frozen=True)
class Communication:
    """A collective of a call, or a push to or a pull from parameter servers. Steps are numbers in Executable.steps."""

    op: str  # "all_reduce"
    kind: str  # of a reduction: "sum"
    dtype: str  # as which it travels; empty for pushes and pulls
    axis: str
    ranks: int  # that take part; for pushes and pulls, 1
    label: str  # "bucket 0 (%loss, %grad/fc2.bias)"
    is_urgent: bool  # it overtakes other communications
    tensors: tuple[Tensor, ...]
    started: int  # the step that starts it
    started_at: float  # seconds
    needed: int  # the step that waits for it: directly before the first use of its results
    needed_at: float  # seconds
    sent: int  # an estimate of the bytes that this rank sends if each rank is on its own host

    @property
    def bytes(self) -> int:
        """Of its tensors, as in Executable.collectives."""
        return sum(tensor.bytes for tensor in self.tensors)

    @property
    def ready(self) -> int | None:
        """The step after which all its tensors are ready."""
        steps = [tensor.ready for tensor in self.tensors if tensor.ready is not None]
        return max(steps) if steps else None

    @property
    def bucket(self) -> str:
        """Its label without the tensors."""
        return self.label.partition(" (")[0]

    @property
    def what(self) -> str:
        """Such as "all_reduce sum bf16 along data"."""
        return " ".join(filter(None, [self.op, self.kind, self.dtype, f"along {self.axis}"]))


@dataclass(frozen=True)
class Counts:
    """The numbers of a graph."""

    nodes: int  # of which a fusion or a loop is one
    collectives: int  # with pushes and pulls
    bytes: int  # of their operands, on a rank that has them


@dataclass(frozen=True)
class PassChange:
    """A pass that changed the program."""

    name: str
    before: Counts
    after: Counts
    text_before: str = field(repr=False)  # of the graph
    text_after: str = field(repr=False)

    def diff(self) -> str:
        """Returns a unified diff from the text before to the text after."""
        lines = difflib.unified_diff(self.text_before.splitlines(), self.text_after.splitlines(), n=1, lineterm="")
        return "".join(f"{line}\n" for line in lines)


@dataclass(frozen=True)
class ExplainedLayer:
    """A layer of Graph.summary. Parameters and operations are those of the whole step, not a rank's share."""

    name: str
    parameters: int
    operations: float  # of the forward computation
    gradient_operations: float
    communicated: tuple[tuple[Communication, Tensor], ...]  # its tensors, in the order in which they start

    @property
    def bytes(self) -> int:
        """Of the tensors that are communicated."""
        return sum(tensor.bytes for _, tensor in self.communicated)


@dataclass(frozen=True, repr=False)
class Explanation:
    """What one rank's program of a step communicates, and what each pass of the compiler changed. It prints as tables,
    and notebooks show it."""

    program: str
    mesh: dict[str, int]
    rank: int
    strategy: str  # the options that differ from their defaults
    layers: tuple[ExplainedLayer, ...]
    communications: tuple[Communication, ...]  # in the order in which they start
    passes: tuple[PassChange, ...]  # in order
    steps: tuple[str, ...]  # of a call
    seconds: tuple[float, ...]  # of each step
    times: str  # a sentence on the origin of the seconds
    sends: str  # a sentence on the origin of Communication.sent
    graph: Graph = field(repr=False, compare=False)  # the program that was compiled

    @property
    def bytes(self) -> int:
        """Of all communications, on this rank."""
        return sum(each.bytes for each in self.communications)

    @property
    def sent(self) -> int:
        """The estimate of the bytes that this rank sends."""
        return sum(each.sent for each in self.communications)

    def facts(self) -> list[str]:
        """The first lines of the text."""
        mesh = ", ".join(f"{axis}={size}" for axis, size in self.mesh.items())
        strategy = self.strategy if len(self.strategy) <= _MOST_STRATEGY else f"{self.strategy[:_MOST_STRATEGY]}…"
        count = len(self.communications)
        numbers = f"{count} communication{'s' * (count != 1)} of {self.bytes:,} bytes, {self.sent:,} sent"
        return [
            f"@{self.program}, rank {self.rank} of the mesh {{{mesh}}}: {len(self.steps)} steps, {numbers}",
            f"strategy: {strategy}",
            self.times,
            self.sends,
        ]

    def __repr__(self) -> str:
        return f"<Explanation of {self.facts()[0]}>"

    def __str__(self) -> str:
        lines = [*self.facts(), f"layers ({len(self.layers)}), with what is communicated for each"]
        for layer, row in zip((None, *self.layers), aligned(_layer_rows(self), 1), strict=True):
            lines.append(row)
            lines += [f"    {tensor_text(self, *each)}" for each in (layer.communicated if layer else ())]
        if self.communications:
            lines += [f"communications ({len(self.communications)})", *aligned(communication_rows(self), 2)]
        if self.passes:
            lines += [f"passes that changed the program ({len(self.passes)})", *aligned(pass_rows(self), 1)]
        return "\n".join(lines) + "\n"

    def _repr_html_(self) -> str:
        """The display of notebooks."""
        from .explain_page import fragment

        return fragment(self)

    def save_html(self, path: Any, other: Explanation | None = None) -> None:
        """Writes the page of Graph.save_html, beside `other` if that is given."""
        from .explain_page import page

        if other is not None:
            checks.instance("save_html: other", other, Explanation, "what explain() returns")
        path = checks.path(path)
        text = page([self] if other is None else [self, other])

        def content(file: BinaryIO) -> None:
            file.write(text.encode())

        try:
            atomic.write(path, content)
        except OSError as error:
            raise Error(f"{path} cannot be written: {error.strerror}") from None


# --- Tables -----------------------------------------------------------------------------------------------------------


def layer_cells(layer: ExplainedLayer) -> list[str]:
    numbers = (layer.parameters, layer.operations, layer.gradient_operations, layer.bytes)
    return [layer.name, *(f"{number:,.0f}" for number in numbers)]


LAYER_HEADS = ["layer", "parameters", "operations", "for gradients", "communicated bytes"]


def _layer_rows(explanation: Explanation) -> list[list[str]]:
    return [LAYER_HEADS, *(layer_cells(layer) for layer in explanation.layers)]


def tensor_text(explanation: Explanation, communication: Communication, tensor: Tensor) -> str:
    """Returns a line on a tensor: what is done with it, and when."""
    return (
        f"{tensor.name}  {tensor.bytes:,} bytes  {communication.what}, {communication.bucket}  "
        f"{ready_text(tensor)}, needed at {communication.needed} ({milliseconds(communication.needed_at)})"
    )


def ready_text(tensor: Tensor) -> str:
    if tensor.ready is None:
        return "received"
    return "ready before" if tensor.ready < 0 else f"ready after {tensor.ready} ({milliseconds(tensor.ready_at)})"


COMMUNICATION_HEADS = ["communication", "what", "tensors", "bytes", "sent", "ready", "started", "needed"]


def communication_rows(explanation: Explanation) -> list[list[str]]:
    rows = [COMMUNICATION_HEADS]
    for each in explanation.communications:
        numbers = (len(each.tensors), each.bytes, each.sent)
        ready = "" if each.ready is None else str(each.ready)
        rows.append([each.bucket, each.what, *(f"{n:,}" for n in numbers), ready, str(each.started), str(each.needed)])
    return rows


PASS_HEADS = ["pass", "nodes", "after", "collectives", "after", "bytes", "after"]


def pass_cells(change: PassChange) -> list[str]:
    pairs = [(getattr(change.before, name), getattr(change.after, name)) for name in ("nodes", "collectives", "bytes")]
    return [change.name, *(f"{number:,}" for pair in pairs for number in pair)]


def pass_rows(explanation: Explanation) -> list[list[str]]:
    return [PASS_HEADS, *(pass_cells(change) for change in explanation.passes)]


# --- From the data of the extension module ----------------------------------------------------------------------------


class _Owners:
    """Finds the layer of a tensor: by its name in the given program, or else by the source of the step that makes it."""

    def __init__(self, graph: Graph, layers: list[Layer], depth: int | None) -> None:
        self._depth = depth
        self._of_state = {state: layer.name for layer in layers for state in layer.states}
        # The numbers of unnamed values differ between programs.
        self._of_value = {
            result: layer_of(node, depth)[0]
            for node in graph._nodes()
            for result in node["results"]
            if not result.isdecimal()
        }

    def layer(self, name: str, op: str, source: str) -> str:
        known = name
        while known:  # passes append parts: grad/fc1.weight/bf16, grad/fc1.weight.1, fc1.weight.next
            if known in self._of_state:
                return self._of_state[known]
            if self._of_value.get(known, OPTIMIZER) != OPTIMIZER:
                return self._of_value[known]
            known = known[: max(known.rfind("."), known.rfind("/"), 0)]
        source = source.partition(", micro-batch ")[0]
        return layer_of({"source": source, "updates": False, "op": op}, self._depth)[0]


class _Clock:
    """The seconds from the beginning of a call to its steps."""

    def __init__(self, seconds: list[float]) -> None:
        self._begins = [0.0, *itertools.accumulate(seconds)]

    def begin(self, step: int) -> float:
        return self._begins[step]

    def end(self, step: int | None) -> float:
        return 0.0 if step is None else self._begins[step + 1]


def _pairs(steps: list[dict[str, Any]]) -> Iterator[tuple[int, int]]:
    """Returns the steps that start a communication, each with the step that waits for it."""
    waits: dict[Any, int] = {}
    for number, step in enumerate(steps):
        if step["kind"] == "wait":
            waits[step["collective"]["id"]] = number
        elif step["kind"] == "wait_pull":
            waits[step["writes"][0][0]] = number
    for number, step in enumerate(steps):
        if step["kind"] == "push":
            yield number, number
        elif step["kind"] == "start_pull":
            yield number, waits[step["writes"][0][0]]
        elif step["kind"] == "start":
            yield number, waits[step["collective"]["id"]]


def _communications(
    steps: list[dict[str, Any]], owners: _Owners, clock: _Clock, machine: Machine
) -> list[Communication]:
    found = []
    for started, needed in _pairs(steps):
        start, wait = steps[started], steps[needed]
        of_servers = {"op": start["kind"].removeprefix("start_"), "kind": "", "dtype": "", "axis": SERVERS, "ranks": 1}
        info = start["collective"] or {**of_servers, "label": start["text"], "is_urgent": False}
        operands = start["reads"] or wait["writes"]
        tensors = []
        for name, size, writer in operands:
            ready = writer if start["reads"] else None
            source = steps[writer]["source"] if ready is not None and ready >= 0 else wait["source"]
            layer = owners.layer(name, info["op"], source)
            tensors.append(Tensor(name, layer, size, ready, clock.end(ready)))
        received = sum(size for _, size, _ in wait["writes"])
        sends = sum(size for _, size, _ in start["reads"])
        found.append(
            Communication(
                op=info["op"],
                kind=info["kind"],
                dtype=info["dtype"],
                axis=info["axis"],
                ranks=info["ranks"],
                label=info["label"],
                is_urgent=info["is_urgent"],
                tensors=tuple(tensors),
                started=started,
                started_at=clock.begin(started),
                needed=needed,
                needed_at=clock.begin(needed),
                sent=sends if info["axis"] == SERVERS else _sent(info, sends, received, machine),
            )
        )
    return found


def _sent(info: dict[str, Any], sends: int, received: int, machine: Machine) -> int:
    """Returns the bytes that a rank sends by the route that would be chosen if each rank had a host of its own."""
    if not sends:
        return 0
    link = () if machine.between is None else (machine.between.latency, machine.between.bandwidth)
    return _lockstep._travel(info["op"], max(sends, received), info["ranks"], 1, *link)[1]


def _explained_layers(layers: list[Layer], communications: list[Communication]) -> list[ExplainedLayer]:
    of_layer: dict[str, list[tuple[Communication, Tensor]]] = {layer.name: [] for layer in layers}
    for communication in communications:
        for tensor in communication.tensors:
            of_layer.setdefault(tensor.layer, []).append((communication, tensor))
    known = {layer.name: layer for layer in layers}
    found = []
    for name, communicated in of_layer.items():
        layer = known.get(name, Layer(name))
        found.append(ExplainedLayer(name, layer.parameters, layer.flops, layer.gradient_flops, tuple(communicated)))
    return found


def _pass_changes(data: dict[str, Any]) -> list[PassChange]:
    texts = [before for _, before, _ in data["passes"]] + [data["text"]]
    counts = [Counts(*data["given"]), *(Counts(*after) for _, _, after in data["passes"])]
    return [
        PassChange(name, counts[i], counts[i + 1], texts[i], texts[i + 1])
        for i, (name, _, _) in enumerate(data["passes"])
    ]


def _explanation(
    graph: Graph, data: dict[str, Any], rank: int, depth: int | None, machine: Machine, report: Report | None = None
) -> Explanation:
    steps = data["steps"]
    if report is None:
        seconds = [max(step["operations"] / machine.operations, step["bytes"] / machine.memory) for step in steps]
        times = (
            f"times are estimates: each kernel by {machine.operations:.3g} operations and {machine.memory:.3g} bytes a "
            "second, one after the other, without communication"
        )
    else:
        seconds = [each for _, each in report.steps]
        times = f"times are measured: the means of {report.calls} calls on this rank"
    network = "a network of 10 Gb/s" if machine.between is None else f"{machine.between.bandwidth:.3g} bytes a second"
    layers = layers_of(graph, depth)
    communications = _communications(steps, _Owners(graph, layers, depth), _Clock(seconds), machine)
    return Explanation(
        program=graph.name,
        mesh=dict(data["mesh"]),
        rank=rank,
        strategy=data["strategy"],
        layers=tuple(_explained_layers(layers, communications)),
        communications=tuple(communications),
        passes=tuple(_pass_changes(data)),
        steps=tuple(step["text"] for step in steps),
        seconds=tuple(seconds),
        times=times,
        sends=f"sent is an estimate: by the route that is chosen for {network}, with each rank on its own host",
        graph=graph,
    )


def explain(
    graph: Graph,
    ranks: int | None = None,
    *,
    rank: int = 0,
    depth: int | None = None,
    machine: Machine | None = None,
    backend: str = "cpu",
    **options: Any,
) -> Explanation:
    """Implements Graph.explain()."""
    checks.graph("explain: the graph", graph)
    depth = depth_of("explain", depth)
    machine = Machine() if machine is None else machine
    checks.instance("explain: machine", machine, Machine, "a lockstep.forecast.Machine")
    ranks, compiled = without_ranks("explain", ranks, options)
    if checks.integer("explain: rank", rank, 0) >= ranks:
        raise Error(f"explain: rank is {rank}, expected one of {ranks} ranks, from 0")
    data = _lockstep._explain(graph, checks.text("explain: backend", backend), ranks, rank, compiled)
    return _explanation(graph, data, rank, depth, machine)


def explain_executable(executable: Executable, depth: int | None) -> Explanation:
    """Implements Executable.explain()."""
    depth = depth_of("explain", depth)
    try:
        report = executable.report()
    except Error:  # there were no calls
        report = None
    world = executable._world()
    return _explanation(executable._given(), executable._explain(), world.rank, depth, Machine(), report)


def save_html(
    graph: Graph, path: str | os.PathLike[str], ranks: int | None = None, *, other: Any = None, **options: Any
) -> None:
    """Implements Graph.save_html()."""
    path = checks.path(path)
    if other is not None and not isinstance(other, (Explanation, _lockstep.Graph)):
        raise Error(f"save_html: other is {checks.shown(other)}, expected a lockstep.Graph, or what explain() returns")
    explained = explain(graph, ranks, **options)
    if isinstance(other, _lockstep.Graph):
        other = explain(other, ranks, **options)
    explained.save_html(path, other)
