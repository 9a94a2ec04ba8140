"""Each rank trains alone for long; what all have learnt is a gradient for an outer optimizer."""

from __future__ import annotations

from functools import partial

from .. import graph
from .._base import checks
from .._exchange.define import Definition
from .._exchange.ranks import RanksWithWeights
from ..graph import Value


@partial(Definition, of_weights=True)
def diloco(
    w: Value, ranks: RanksWithWeights, every: int = 50, rate: float = 0.7, momentum: float = 0.9, fragments: int = 1
) -> Value:
    """Every `every` steps, the mean of how far the ranks have come from the weights on which they agreed last is the
    gradient of an outer SGD with Nesterov momentum (Douillard et al.: "DiLoCo: Distributed Low-Communication Training of
    Language Models", 2023, algorithm 1). The optimizer of the step is the inner one, whose states are each rank's own.

    Args:
      rate, momentum: of the outer optimizer.
      fragments: weights are divided among so many, which travel at different times ("Streaming DiLoCo", 2025).
    """
    checks.integer("fragments", fragments, 1)
    due = ranks.every(every, offset=(ranks.number % fragments) * every // fragments)
    velocity = ranks.state("velocity", w, equal=True)
    gradient = ranks.mean(ranks.agreed - w, when=due)
    moved = momentum * velocity.value + gradient
    velocity.next = graph.select(due, moved, velocity.value)
    outer = ranks.agreed - rate * (gradient + momentum * moved)
    ranks.agree(outer, when=due)
    return graph.select(due, outer, w)
