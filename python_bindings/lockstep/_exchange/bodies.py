"""The exchanges of a step get their bodies, when the number of ranks is known."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np

from .. import _lockstep
from .._base.errors import Error
from .._lockstep import Graph
from .define import parse


@dataclass
class Exchanged:
    """A graph whose exchanges have bodies, and what its executable gets beside it."""

    graph: Graph
    values: dict[str, np.ndarray] = field(default_factory=dict)  # the first values of states, other than zeros
    schedules: dict[str, Callable[[int], float]] = field(default_factory=dict)  # by setting


def with_bodies(graph: Graph, mesh: Mapping[str, int]) -> Exchanged:
    """Gives the exchanges of the graph their bodies for the ranks of the mesh. States have the names that they get in the
    program (passes/distribute/exchange_body.h)."""
    bodies: dict[str, Graph] = {}
    made: dict[tuple[object, ...], Graph] = {}
    result = Exchanged(graph)
    found = [each for each in _lockstep._exchanges(graph) if mesh.get(each[4], 1) > 1 and not each[2].startswith("all_reduce")]
    weights = [(by, trained) for of_weights, _, by, trained, *_ in found if of_weights]
    for of_weights, name, by, trained, axis, dtype, shape in found:
        exchange = parse(by)
        if exchange.definition.of_weights != of_weights:
            continue  # a rank's own gradient updates its own weights
        alike = [state for text, state in weights if text == by]
        number = (alike.index(trained), len(alike)) if of_weights else (0, 1)
        key = (by, axis, dtype, tuple(shape), number)
        if key not in made:
            try:
                made[key] = exchange.body(dtype, tuple(shape), axis, mesh[axis], *number)
            except Error as error:
                raise Error(f"the exchange of %{trained or name}: {error}") from error
        body = bodies[name] = made[key]
        for state in body.states:
            value = body.initial_value(state.name)
            if value.any():
                result.values[f"{trained or name}/{body.name}/{state.name}"] = value
        result.schedules.update({setting: _due(setting) for setting in body.settings})
    if bodies:
        result.graph = _lockstep._with_bodies(graph, bodies)
    return result


def _due(setting: str) -> Callable[[int], float]:
    """Returns the schedule of a setting of Ranks.every."""
    *_, steps, offset = setting.split("/")
    return lambda step: float((step + 1) % int(steps) == int(offset))
