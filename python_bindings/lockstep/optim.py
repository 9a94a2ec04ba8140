"""Optimizers: how a training step updates the trained states. The formulas, and the results, are PyTorch's.

PyTorch's names of the options are understood too: `lr`, `betas` and `eps`. A value out of range is an `Error` at once.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

from . import _check
from ._errors import Error


@dataclass(frozen=True, init=False)
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

    def __init__(
        self,
        learning_rate: float | None = None,
        momentum: float = 0.0,
        nesterov: bool = False,
        weight_decay: float = 0.0,
        *,
        lr: float | None = None,
    ) -> None:
        rate = _one_of("SGD", "learning_rate", learning_rate, "lr", lr)
        if rate is None:
            raise Error("SGD: learning_rate is missing")
        _set(self, learning_rate=rate, momentum=momentum, nesterov=nesterov, weight_decay=weight_decay)
        if self.nesterov and self.momentum == 0:
            raise Error("SGD: nesterov needs a momentum")


@dataclass(frozen=True, init=False)
class Adam:
    """Adam (Kingma and Ba, 2015), with bias correction; weight decay is added to the gradient.

    The moments of a state `w` are the states `w/adam_m` and `w/adam_v`; the steps are counted in `optimizer/step`.
    """

    learning_rate: float = 1e-3
    beta1: float = 0.9
    beta2: float = 0.999
    epsilon: float = 1e-8
    weight_decay: float = 0.0

    def __init__(
        self,
        learning_rate: float | None = None,
        beta1: float | None = None,
        beta2: float | None = None,
        epsilon: float | None = None,
        weight_decay: float | None = None,
        *,
        lr: float | None = None,
        betas: tuple[float, float] | None = None,
        eps: float | None = None,
    ) -> None:
        kind = type(self).__name__
        first, second = _pair(kind, betas)
        given = {
            "learning_rate": _one_of(kind, "learning_rate", learning_rate, "lr", lr),
            "beta1": _one_of(kind, "beta1", beta1, "betas", first),
            "beta2": _one_of(kind, "beta2", beta2, "betas", second),
            "epsilon": _one_of(kind, "epsilon", epsilon, "eps", eps),
            "weight_decay": weight_decay,
        }
        defaults = {field.name: field.default for field in fields(self)}
        _set(self, **{name: defaults[name] if value is None else value for name, value in given.items()})


@dataclass(frozen=True, init=False)
class AdamW(Adam):
    """Adam with decoupled weight decay (Loshchilov and Hutter, 2019): w -= learning_rate * weight_decay * w."""

    weight_decay: float = 0.01


# The range of each option that is not [0, infinity).
_RANGES: dict[str, dict[str, float]] = {"beta1": {"below": 1.0}, "beta2": {"below": 1.0}, "epsilon": {"above": 0.0}}


def _set(optimizer: Any, **options: Any) -> None:
    kind = type(optimizer).__name__
    for name, value in options.items():
        what = f"{kind}: {name}"
        checked = _check.flag(what, value) if name == "nesterov" else _check.rate(what, value, **_RANGES.get(name, {}))
        object.__setattr__(optimizer, name, checked)


def _one_of(kind: str, name: str, value: Any, other: str, other_value: Any) -> Any:
    """The one of two spellings of an option that is given; None if none is."""
    if value is not None and other_value is not None:
        raise Error(f"{kind}: {name} and {other} are both given, and mean the same")
    return other_value if value is None else value


def _pair(kind: str, betas: Any) -> tuple[Any, Any]:
    if betas is None:
        return None, None
    try:
        first, second = betas
    except (TypeError, ValueError):
        raise Error(f"{kind}: betas is {betas!r}, expected two numbers") from None
    return first, second
