"""Only the strongest frequencies of a momentum travel, and what travels leaves it."""

from __future__ import annotations

import math

import numpy as np

from .. import graph
from .._base import checks
from .._exchange.define import Definition
from .._exchange.ranks import Ranks
from ..graph import Value


def cosines(size: int) -> np.ndarray:
    """The orthonormal DCT-II as a matrix f32[size, size]: frequency times position."""
    at = np.arange(size)
    matrix = np.cos(np.pi / size * np.outer(at, at + 0.5)) * math.sqrt(2 / size)
    matrix[0] /= math.sqrt(2)
    return matrix.astype(np.float32)


def divisor(extent: int, most: int) -> int:
    return next(size for size in range(min(extent, most), 0, -1) if extent % size == 0)


@Definition
def demo(g: Value, ranks: Ranks, keep: int = 8, chunk: int = 64, decay: float = 0.999, sign: bool = True) -> Value:
    """Decoupled momentum (Peng, Quesnelle, Kingma: "DeMo: Decoupled Momentum Optimization", 2024, algorithm 1). Each rank
    adds its gradient to its own momentum, sends the `keep` strongest of the frequencies of each chunk of it, and takes
    them out of the momentum. Use SGD without momentum.

    Args:
      keep: frequencies of a chunk that travel, 8 bytes each; each rank receives those of all.
      chunk: the largest extent of a chunk, which divides the extents of the gradient as a matrix.
      decay: of the momentum.
      sign: what the optimizer gets is the sign of the sum, as in the paper's experiments.
    """
    checks.integer("keep", keep, 1), checks.integer("chunk", chunk, 1)
    rows, columns = (g.shape[0], math.prod(g.shape[1:])) if g.ndim > 1 else (1, math.prod(g.shape))
    height, width = divisor(rows, chunk), divisor(columns, chunk)
    size, down, right = height * width, rows // height, columns // width
    frequencies_of, positions_of = cosines(height), cosines(width)
    momentum = ranks.state("momentum", g)
    total = decay * momentum.value + g
    chunks = total.reshape(down, height, right, width).transpose(0, 2, 1, 3)
    spectrum = (frequencies_of @ chunks @ positions_of.T).reshape(-1, size)
    _, at = graph.top_k(graph.abs(spectrum), k=min(keep, size), dim=1)
    values = graph.gather(spectrum, at, dim=1, batch_dims=1)

    def decoded(at: Value, values: Value) -> Value:
        kept = graph.scatter_sum(at, values, dim=1, batch_dims=1, size=size).reshape(down, right, height, width)
        return (frequencies_of.T @ kept @ positions_of).transpose(0, 2, 1, 3).reshape(g.shape)

    momentum.next = total - decoded(at, values)
    every = ranks.gather(at.to("i32")), ranks.gather(values)
    of_all = decoded(*(each.transpose(1, 0, 2).reshape(down * right, -1) for each in every))
    return graph.sign(of_all) if sign else of_all
