"""Only the largest elements of a gradient travel; the rest is added to the next one."""

from __future__ import annotations

from .. import graph
from .._base.errors import Error
from .._exchange.define import Definition
from .._exchange.ranks import Ranks
from ..graph import Value


@Definition
def top_k(g: Value, ranks: Ranks, fraction: float = 0.01) -> Value:
    """Each rank sends the elements of the largest magnitudes of its gradient, and their positions. What it does not send
    it adds to its next gradient (Stich, Cordonnier, Jaggi: "Sparsified SGD with Memory", NeurIPS 2018).

    Args:
      fraction: of the elements that travel, at least one. Each takes 8 bytes, and each rank receives those of all.
    """
    if not 0 < fraction <= 1:
        raise Error(f"fraction is {fraction}, expected a number above 0, of at most 1")
    error = ranks.state("error", g)
    wanted = (g + error.value).flatten()
    size = wanted.shape[0]
    _, positions = graph.top_k(graph.abs(wanted), k=max(1, round(size * fraction)), dim=0)
    positions = positions.to("i32")
    values = wanted[positions]
    sent = graph.scatter_sum(positions, values, dim=0, size=size)
    error.next = (wanted - sent).reshape(g.shape)
    all_positions, all_values = ranks.gather(positions).flatten(), ranks.gather(values).flatten()
    return graph.scatter_sum(all_positions, all_values, dim=0, size=size).reshape(g.shape)
