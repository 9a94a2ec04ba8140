"""Optimizers: how a training step updates the trained states. The formulas, and the results, are PyTorch's."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class SGD:
    """Stochastic gradient descent: g = gradient + weight_decay * w; v = momentum * v + g; w -= learning_rate * v.

    With `nesterov` the step is along g + momentum * v. The velocity v of a state `w` is the state `w/momentum`; there is
    none if momentum is 0.

    Example:
      >>> lockstep.optim.SGD(0.05, momentum=0.9)
    """

    learning_rate: float
    momentum: float = 0.0
    nesterov: bool = False
    weight_decay: float = 0.0


@dataclass(frozen=True)
class Adam:
    """Adam (Kingma and Ba, 2015), with bias correction; weight decay is added to the gradient.

    The moments of a state `w` are the states `w/adam_m` and `w/adam_v`; the steps are counted in `optimizer/step`.
    """

    learning_rate: float = 1e-3
    beta1: float = 0.9
    beta2: float = 0.999
    epsilon: float = 1e-8
    weight_decay: float = 0.0


@dataclass(frozen=True)
class AdamW:
    """Adam with decoupled weight decay (Loshchilov and Hutter, 2019): w -= learning_rate * weight_decay * w."""

    learning_rate: float = 1e-3
    beta1: float = 0.9
    beta2: float = 0.999
    epsilon: float = 1e-8
    weight_decay: float = 0.01
