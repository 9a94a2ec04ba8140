"""Each rank trains alone; from time to time the weights are averaged."""

from __future__ import annotations

from functools import partial

from .. import graph
from .._exchange.define import Definition
from .._exchange.ranks import RanksWithWeights
from ..graph import Value


@partial(Definition, of_weights=True)
def local_sgd(w: Value, ranks: RanksWithWeights, every: int = 8) -> Value:
    """Each rank updates its own weights, and every `every` steps all take the mean (Stich: "Local SGD Converges Fast and
    Communicates Little", ICLR 2019, algorithm 1). States of the optimizer are each rank's own.

    Args:
      every: the number of steps from one mean to the next.
    """
    due = ranks.every(every)
    mean = ranks.mean(w, when=due)
    ranks.agree(mean, when=due)
    return graph.select(due, mean, w)
