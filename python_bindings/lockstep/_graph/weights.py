"""States in safetensors files."""

from __future__ import annotations

import os
from typing import Any

from .. import _lockstep
from .._base import atomic, checks
from .._base.errors import Error, listed
from .._base.values import ValueInfo
from .._checkpoint import residuals
from .._lockstep import Executable, Graph


def load_weights(
    graph: Graph, path: str | os.PathLike[str], *, rename: dict[str, str] | None = None, strict: bool = True
) -> Graph:
    """Returns the graph with initial values of its states from a safetensors file, by name.

    Args:
      graph: a model or a training step. The states of a step include those of the optimizer.
      path: of the file.
      rename: the states' names in the graph, by the names in the file.
      strict: report a tensor of the file that is not a state, a state of the graph that is not in the file, and a name
        in `rename` that is not in the file. PyTorch's counts of batches ("bn.num_batches_tracked"), which no training
        step needs, are ignored. If False, only tensors that are in both are loaded.

    Raises:
      Error: names the file, the tensor, its type and the type of the state; or two tensors for one state.
    """
    checks.instance("load_weights: the graph", graph, Graph, "a lockstep.Graph")
    file = checks.path(path)
    rename = checks.instance("load_weights: rename", {} if rename is None else rename, dict, "a dict of names")
    names = {checks.text("rename", old): checks.text("rename", new) for old, new in rename.items()}
    strict = checks.flag("load_weights: strict", strict)
    states = {info.name for info in graph.states}
    values, source = {}, {}
    tensors = _read(file)
    for name in names.keys() - tensors.keys() if strict else ():
        raise Error(f"{file}: there is no tensor {name}, which rename names; there are {listed(tensors.keys())}")
    for name, value in tensors.items():
        state = names.get(name, name)
        if state in source:
            raise Error(f"{file}: {source[state]} and {name} are both for the state {state}")
        if state in states:
            values[state], source[state] = value, name
        elif strict and not name.endswith("num_batches_tracked") and not residuals.is_residual(state, states):
            raise Error(f"{file}: {name} is not a state of @{graph.name}; its states are {listed(states)}")
    missing = states - values.keys()
    if strict and missing:
        raise Error(f"{file}: no value for the state {listed(missing)} of @{graph.name}")
    try:
        loaded = _lockstep._with_values(graph, values)
        loaded._schedules = getattr(graph, "_schedules", {})
        return loaded
    except Error as error:
        raise Error(f"{file}: {error}") from None


def save_weights(executable: Executable, path: str | os.PathLike[str]) -> None:
    """Writes the current values of all states, also of the optimizer, to a safetensors file.

    Rank 0 writes; the others return. The residuals of gradients that travel as int8 are not written, and neither are the
    states of exchanges. The file appears complete or not at all.

    Raises:
      Error: the file cannot be written; ranks have parts of a state (`Executable.save` writes these); or a call failed
        while it was updating the states.
    """
    save = _safetensors().save
    checks.instance("save_weights: the executable", executable, Executable, "what compile() returns")
    file = checks.path(path)
    executable._check_usable()
    kept = whole_states("save_weights", executable)
    if executable._world().rank != 0:
        return
    try:
        values = executable.state
        content = save(
            {state.name: values[state.name] for state in kept}, metadata={"format": "np", "writer": "lockstep"}
        )
        atomic.write(file, lambda out: out.write(content))
    except (OSError, _safetensors_error()) as error:
        raise Error(f"{file}: {error}") from error


def whole_states(call: str, executable: Executable) -> list[ValueInfo]:
    """Returns the states without residuals and those of exchanges. Raises an Error, on all ranks, if no rank has all of some state."""
    states = {state.name: state for state in executable._whole_states()}
    kept = [state for name, state in states.items() if not residuals.is_kept(name, states, executable)]
    for state in kept:
        if state.placements:
            raise Error(
                f"{call}: ranks have only parts of states, such as {state.name}; exe.save(path) writes whole states"
            )
    return kept


def _read(file: str) -> dict[str, Any]:
    safetensors = _safetensors()
    try:
        return safetensors.load_file(file)
    except (OSError, ValueError, _safetensors_error()) as error:
        raise Error(f"{file}: {error}") from error


def _safetensors() -> Any:
    try:
        import safetensors.numpy
    except ImportError as error:
        raise Error("reading and writing weights needs the package safetensors, which is not installed") from error
    return safetensors.numpy


def _safetensors_error() -> type[Exception]:
    from safetensors import SafetensorError

    return SafetensorError
