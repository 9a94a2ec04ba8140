"""The exchanges of a step get their bodies, when the number of ranks is known."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from .. import _lockstep
from .._base.errors import Error
from .._lockstep import Graph
from .define import parse


def with_bodies(graph: Graph, mesh: Mapping[str, int]) -> tuple[Graph, dict[str, np.ndarray]]:
    """Returns the graph with the bodies of its exchanges for the ranks of the mesh, and the initial values of those of
    their states that do not begin as zeros, by the names that they have in the program (lower_exchanges.h)."""
    bodies: dict[str, Graph] = {}
    values: dict[str, np.ndarray] = {}
    made: dict[tuple[str, str, str, tuple[int, ...]], tuple[Graph, dict[str, np.ndarray]]] = {}
    for name, by, trained, axis, dtype, shape in _lockstep._exchanges(graph):
        if mesh.get(axis, 1) == 1 or by.startswith("all_reduce"):
            continue
        key = (by, axis, dtype, tuple(shape))
        if key not in made:
            try:
                body = parse(by).body(dtype, tuple(shape), axis, mesh[axis])
            except Error as error:
                raise Error(f"the exchange of %{name}: {error}") from error
            made[key] = body, {each.name: body.initial_value(each.name) for each in body.states}
        bodies[name], initial = made[key]
        for state, value in initial.items():
            if value.any():
                values[f"{trained or name}/{bodies[name].name}/{state}"] = value
    return (_lockstep._with_bodies(graph, bodies) if bodies else graph), values
