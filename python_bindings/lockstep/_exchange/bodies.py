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
    # By the beginning of the names that the states of an exchange have in a program (passes/distribute/exchange_body.h,
    # own_weights.h), also for an axis of one rank: the initial values of those that do not begin as zeros.
    states: dict[str, dict[str, np.ndarray]] = field(default_factory=dict)
    schedules: dict[str, Callable[[int], float]] = field(default_factory=dict)  # by setting


def with_bodies(graph: Graph, mesh: Mapping[str, int]) -> Exchanged:
    """Gives the exchanges of the graph their bodies for the ranks of the mesh."""
    bodies: dict[str, Graph] = {}
    made: dict[tuple[object, ...], tuple[Graph, dict[str, np.ndarray]]] = {}
    result = Exchanged(graph)
    found = [each for each in _lockstep._exchanges(graph) if not each[2].startswith("all_reduce(")]
    weights = [(by, trained) for of_weights, _, by, trained, *_ in found if of_weights]
    for of_weights, name, by, trained, axis, dtype, shape in found:
        try:
            exchange = parse(by)
            if exchange.definition.of_weights != of_weights:
                continue  # a rank's own gradient updates its own weights
            below = f"{trained or name}/{exchange.definition.__name__}/"
            result.states[below] = {}
            if of_weights:
                result.states[f"{trained}/own"] = {}
            if mesh.get(axis, 1) == 1:
                continue
            alike = [state for text, state in weights if text == by]
            number = (alike.index(trained), len(alike)) if of_weights else (0, 1)
            key = (by, axis, dtype, tuple(shape), number)
            if key not in made:
                body = exchange.body(dtype, tuple(shape), axis, mesh[axis], *number)
                values = {each.name: body.initial_value(each.name) for each in body.states}
                made[key] = body, {state: value for state, value in values.items() if value.any()}
        except Error as error:
            raise Error(f"the exchange of %{trained or name}: {error}") from error
        bodies[name], result.states[below] = made[key]
        result.schedules.update({setting: _due(setting) for setting in bodies[name].settings})
    if bodies:
        result.graph = _lockstep._with_bodies(graph, bodies)
    return result


def _due(setting: str) -> Callable[[int], float]:
    """Returns the schedule of a setting of Ranks.every."""
    *_, steps, offset = setting.split("/")
    return lambda step: float((step + 1) % int(steps) == int(offset))
