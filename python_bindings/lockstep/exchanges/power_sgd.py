"""A matrix of gradients travels as two thin ones."""

from __future__ import annotations

import math

from .. import graph
from .._base import checks
from .._exchange.define import Definition
from .._exchange.ranks import Ranks
from ..graph import Value


def length(x: Value) -> Value:
    return graph.sqrt((x * x).sum())


def orthogonal(p: Value) -> Value:
    """The columns of p[m, r], made orthonormal one after the other (Gram and Schmidt). A column that depends on those
    before it becomes zeros, instead of its rounding errors made large."""
    columns: list[Value] = []
    for i in range(p.shape[1]):
        column = p[:, i]
        least = 1e-5 * length(column)
        for other in columns:
            column = column - (other * column).sum() * other
        size = length(column)
        columns.append(column * graph.select(size > least, 1 / size, 0.0))
    return graph.concat([column.reshape(-1, 1) for column in columns], dim=1)


@Definition
def power_sgd(g: Value, ranks: Ranks, rank: int = 4) -> Value:
    """The best approximation of the gradients, as a matrix, by one of a low rank, by a step of the power method a step
    of training. What a rank's gradient has beside it is added to its next one (Vogels, Karimireddy, Jaggi: "PowerSGD",
    NeurIPS 2019, algorithms 1 and 2). Dimensions behind the first are one dimension. Vectors, and matrices that the
    approximation would not make smaller, are summed as they are.

    Args:
      rank: of the approximation. (m + n) * rank elements of m * n travel.
    """
    checks.integer("rank", rank, 1)
    rows, columns = (g.shape[0], math.prod(g.shape[1:])) if g.ndim > 1 else (0, 0)
    if (rows + columns) * rank >= rows * columns:
        return ranks.sum(g)
    error = ranks.state("error", g)
    q = ranks.state("q", shape=(columns, rank), init=graph.init.normal(), equal=True)
    matrix = (g + error.value).reshape(rows, columns)
    p = orthogonal(ranks.sum(matrix @ q.value))
    new = ranks.sum(matrix.T @ p)
    total = p @ new.T
    # A column of zeros, such as those of a gradient of zeros, would stay zeros in all later steps.
    q.next = graph.select((new * new).sum(dims=0, keepdims=True) > 0, new, q.value)
    error.next = (matrix - total / ranks.count).reshape(g.shape)
    return total.reshape(g.shape)
