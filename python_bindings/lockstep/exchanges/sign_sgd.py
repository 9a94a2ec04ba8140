"""Ranks vote for the direction of a step, element by element."""

from __future__ import annotations

import numpy as np

from .. import graph
from .._exchange.define import Definition
from .._exchange.ranks import Ranks
from ..graph import Value


@Definition
def sign_sgd(g: Value, ranks: Ranks, momentum: float = 0.9) -> Value:
    """The sign that most ranks' momenta have, 1 or -1, and 0 if as many have the other (Bernstein et al.: "signSGD with
    Majority Vote", ICLR 2019, algorithm 1). An element takes one bit, and each rank receives the bits of all ranks: a
    momentum of 0 counts as 1, and NaN as -1. Use SGD without momentum, whose rate is then the length of a step of each
    weight.

    Args:
      momentum: of each rank's own gradients; 0: none.
    """
    average = ranks.state("momentum", g)
    average.next = momentum * average.value + (1 - momentum) * g
    flat = average.next.flatten()
    size = flat.shape[0]
    bits = graph.pad((flat >= 0).to("i32"), low=[0], high=[-size % 8]).reshape(-1, 8)
    places = np.arange(8, dtype=np.int32)
    packed = graph.shift_left(bits, places).sum(dims=1).to("u8")
    of_all = ranks.gather(packed).to("i32").reshape(ranks.count, -1, 1)
    votes = (graph.shift_right(of_all, places) & 1).sum(dims=0)
    signs = graph.sign(2 * votes - ranks.count)
    return signs.flatten()[:size].to(g.dtype).reshape(g.shape)
