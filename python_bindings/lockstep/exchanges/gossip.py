"""Each rank averages its weights with its neighbours of a ring."""

from __future__ import annotations

from functools import partial

from .._exchange.define import Definition
from .._exchange.ranks import RanksWithWeights
from ..graph import Value


@partial(Definition, of_weights=True)
def gossip(w: Value, ranks: RanksWithWeights, agree: int = 50) -> Value:
    """After each update a rank's weights are the mean of its own and its two neighbours' (Lian et al.: "Can Decentralized
    Algorithms Outperform Centralized Algorithms?", NeurIPS 2017, D-PSGD with a ring, which mixes before the update).

    Args:
      agree: the number of steps after which `exe.state` gets the mean of all ranks' weights, which do not change by it.
    """
    due = ranks.every(agree)
    mixed = (w + ranks.shift(w, 1) + ranks.shift(w, -1)) / 3 if ranks.count > 2 else (w + ranks.shift(w, 1)) / 2
    ranks.agree(ranks.mean(mixed, when=due), when=due)
    return mixed
