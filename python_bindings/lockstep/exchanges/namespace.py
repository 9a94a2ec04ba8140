"""lockstep.exchange: the decorator, and the exchanges that the library has."""

from __future__ import annotations

from .._exchange import define
from .._exchange.define import AllReduce, Definition, Exchange
from .._exchange.ranks import Ranks, RanksWithWeights, State
from .demo import demo
from .diloco import diloco
from .four_bit import four_bit
from .gossip import gossip
from .local_sgd import local_sgd
from .power_sgd import power_sgd
from .sign_sgd import sign_sgd
from .top_k import top_k


class Namespace:
    """How the ranks bring the gradients of a step together: what travels, and what stays behind for the next step.

    `lockstep.train_step(model, loss, optimizer, exchange={"*.weight": lockstep.exchange.power_sgd(rank=4)})` chooses an
    exchange for the gradients of some states; all others are summed by an all_reduce. `@lockstep.exchange` makes an
    exchange of a function, which gets this rank's gradient and the ranks, and returns what the optimizer gets: a value
    that is equal on all ranks, usually an approximation of the sum of the ranks' gradients.

    Example:
      >>> @lockstep.exchange
      ... def rounded(g: lockstep.graph.Value, ranks: lockstep.exchange.Ranks, dtype: str = "bf16"):
      ...     return ranks.gather(g.to(dtype)).to(g.dtype).sum(dims=0)
      >>> step = lockstep.train_step(model, loss, optimizer, exchange={"*": rounded(dtype="f16")})
    """

    Definition = Definition
    Exchange = Exchange
    Ranks = Ranks
    RanksWithWeights = RanksWithWeights
    State = State
    all_reduce = AllReduce
    demo = demo
    diloco = diloco
    four_bit = four_bit
    gossip = gossip
    local_sgd = local_sgd
    power_sgd = power_sgd
    sign_sgd = sign_sgd
    top_k = top_k

    def __call__(self, function: define.Body[define.P]) -> define.Definition[define.P]:
        return define.Definition(function)

    def of_weights(self, function: define.BodyOfWeights[define.P]) -> define.Definition[define.P]:
        """Makes an exchange of weights of a function, which gets this rank's weights after its own update, and the ranks. It
        returns this rank's next weights, and says by `ranks.agree` on which weights all agree.

        Each rank updates its weights by the gradient of its own part of the batch.
        """
        return define.Definition(function, of_weights=True)

    def __repr__(self) -> str:
        return "<lockstep.exchange>"


exchange = Namespace()
