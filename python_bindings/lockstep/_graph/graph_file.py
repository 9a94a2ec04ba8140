"""Graphs in files and as bytes: `Graph.save`, `load_graph`, pickle, copy, and graphs that ranks send each other.

The format is a file of tensors (_base/tensor_file.py): the text of the graph, the values of its states and large
constants, and the model from which it was imported, under the names of python_bindings/graph_parts.cc. The metadata are

    lockstep.program     {name, version}: of the graph, and of the Lockstep that wrote it
    lockstep.facts       facts about the import
    lockstep.schedules   {setting: {description, function, arguments}}
    lockstep.note        a note of the writer for the reader
"""

from __future__ import annotations

import io
import json
import os
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any, BinaryIO

from .. import _lockstep, average, schedule
from .._base import atomic, checks
from .._base.errors import Error
from .._base.tensor_file import TensorFile, in_file_order
from .._base.tensor_file import write as write_tensors
from .._base.values import ValueInfo
from .._checkpoint.thread import naming
from .._lockstep import Graph
from .._version import VERSION

# The functions of schedules that a file can name: those of lockstep.schedule and lockstep.average.
_FUNCTIONS: dict[str, Callable[..., float]] = {
    "after_warmup": schedule._after_warmup,
    "constant": schedule._constant,
    "step": schedule._step,
    "multi_step": schedule._multi_step,
    "exponential": schedule._exponential,
    "linear": schedule._linear,
    "polynomial": schedule._polynomial,
    "cosine": schedule._cosine,
    "cosine_with_restarts": schedule._cosine_with_restarts,
    "one_cycle": schedule._one_cycle,
    "average.exponential": average._exponential,
    "average.stochastic": average._stochastic,
}
_SCHEDULE = "schedule"  # the key of an argument that is a schedule


def save(graph: Graph, path: Any) -> None:
    """Implements Graph.save."""
    file = checks.path(path)

    def write_file() -> None:
        schedules = {name: _facts_of(name, each) for name, each in _schedules(graph).items()}
        atomic.write(file, lambda out: _write(out, graph, schedules))

    naming(file, write_file)


def load_graph(path: str | os.PathLike[str]) -> Graph:
    """Reads a graph that `Graph.save` wrote.

    The graph computes the same bits and keeps its properties. A model can become a training step. `save_onnx` writes
    the executable of a step as the model from which the step was made. `with_dims` gives an imported model other
    extents. Either all ranks load the graph or none does: a training step made from a loaded model may number values
    differently, and ranks compare that.

    Raises:
      Error: the file is not a graph, is damaged, or has another version. The message names it.
    """
    return read(checks.path(path))[0]


def read(path: str, content: bytes | None = None) -> tuple[Graph, str]:
    """Returns the graph and its note. If `content` has the bytes of the file, `path` is only for messages."""
    file = GraphFile(path, content)
    return _graph_of(file), file.note


def as_bytes(graph: Graph, without: Iterable[str] = (), note: str = "") -> bytes:
    """Returns the bytes of a file of the graph, without schedules and the values of the states `without`."""
    out = io.BytesIO()
    _write(out, graph, {}, without, note)
    return out.getvalue()


def of_bytes(content: bytes, schedules: Mapping[str, Callable[[int], float]]) -> Graph:
    graph, _ = read("a graph in memory", content)
    graph._schedules = dict(schedules)
    return graph


def reduced(graph: Graph) -> tuple[Any, ...]:
    """Implements Graph.__reduce__. Pickle itself handles the schedules, which it finds by name."""
    return of_bytes, (as_bytes(graph), _schedules(graph))


class GraphFile(TensorFile):
    """A file of a graph that is open for reading."""

    _kind, _item = "graph", "part"

    def _understand(self, about: Mapping[str, str]) -> None:
        self.version: str = json.loads(about["lockstep.program"])["version"]
        self.facts: dict[str, Any] = json.loads(about["lockstep.facts"])
        self.schedules = {name: _schedule_of(each) for name, each in json.loads(about["lockstep.schedules"]).items()}
        self.note = about["lockstep.note"]


def _write(
    out: BinaryIO, graph: Graph, schedules: Mapping[str, Any], without: Iterable[str] = (), note: str = ""
) -> None:
    facts, parts = _lockstep._graph_parts(graph)
    left_out = {f"state/{name}" for name in without}
    tensors = in_file_order(
        [ValueInfo(name, dtype, tuple(shape)) for name, (dtype, shape, _) in parts.items() if name not in left_out]
    )
    texts = {
        "lockstep.program": json.dumps({"name": graph.name, "version": VERSION}),
        "lockstep.facts": json.dumps(facts),
        "lockstep.schedules": json.dumps(schedules),
        "lockstep.note": note,
    }
    write_tensors(out, "graph", tensors, (parts[each.name][2] for each in tensors), texts)


def _graph_of(file: GraphFile) -> Graph:
    try:
        parts = {name: (each.dtype, list(each.shape), file.read(name)) for name, each in file.tensors.items()}
    finally:
        file.close()
    try:
        graph = _lockstep._graph_of_parts(file.facts, parts)
    except (Error, TypeError) as error:  # a TypeError: the facts are no dict
        raise Error(
            f"{file.path}: this Lockstep, {VERSION}, does not understand the graph, which {file.version} wrote: {error}"
        ) from error
    graph._schedules = file.schedules
    return graph


def _schedules(graph: Graph) -> dict[str, Callable[[int], float]]:
    return getattr(graph, "_schedules", {})


def _facts_of(setting: str, follows: Any) -> dict[str, Any]:
    """A schedule as JSON."""
    function = follows._function if isinstance(follows, schedule.Schedule) else None
    name = next((n for n, f in _FUNCTIONS.items() if isinstance(function, partial) and function.func is f), None)
    if name is None:
        raise Error(
            f"the setting {setting} follows {follows!r}, which a file cannot represent, because it is not of lockstep.schedule or lockstep.average; "
            "make the step with a number, and set the schedule of the executable: exe.set(…)"
        )
    arguments = [
        {_SCHEDULE: _facts_of(setting, each)} if isinstance(each, schedule.Schedule) else each for each in function.args
    ]
    return {"description": follows.description, "function": name, "arguments": arguments}


def _schedule_of(facts: Mapping[str, Any]) -> schedule.Schedule:
    arguments = [_schedule_of(each[_SCHEDULE]) if isinstance(each, dict) else each for each in facts["arguments"]]
    return schedule.Schedule(facts["description"], partial(_FUNCTIONS[facts["function"]], *arguments))
