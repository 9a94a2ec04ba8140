"""The exchanges of a step get their bodies, when the number of ranks is known."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from .. import _lockstep
from .._base.errors import Error
from .._lockstep import Graph
from .define import parse


def with_bodies(graph: Graph, mesh: Mapping[str, int]) -> tuple[Graph, dict[str, dict[str, np.ndarray]]]:
    """Returns the graph with the bodies of its exchanges for the ranks of the mesh, and the initial values of those of
    their states that do not begin as zeros. These are by name, below the beginning of the names that the states of an
    exchange have in a program (lower_exchanges.h), which is also there for an axis of one rank."""
    bodies: dict[str, Graph] = {}
    initial: dict[str, dict[str, np.ndarray]] = {}
    made: dict[tuple[str, str, str, tuple[int, ...]], tuple[Graph, dict[str, np.ndarray]]] = {}
    for name, by, trained, axis, dtype, shape in _lockstep._exchanges(graph):
        if by.startswith("all_reduce"):
            continue
        try:
            exchange = parse(by)
            below = f"{trained or name}/{exchange.definition.__name__}/"
            initial[below] = {}
            key = (by, axis, dtype, tuple(shape))
            if mesh.get(axis, 1) == 1:
                continue
            if key not in made:
                body = exchange.body(dtype, tuple(shape), axis, mesh[axis])
                values = {each.name: body.initial_value(each.name) for each in body.states}
                made[key] = body, {state: value for state, value in values.items() if value.any()}
        except Error as error:
            raise Error(f"the exchange of %{trained or name}: {error}") from error
        bodies[name], initial[below] = made[key]
    return (_lockstep._with_bodies(graph, bodies) if bodies else graph), initial
