"""Gradient clipping: limits on the gradients of the global batch, applied before the optimizer.

The limit is the setting `clipping/limit`, which `Executable.set` changes between calls, or a function of the step, such
as one of `lockstep.schedule`.

Example:
  >>> lockstep.train_step(model, loss, optimizer, clip=lockstep.clip.global_norm(1.0))
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

from ._base import checks, names

__all__ = ["Clip", "global_norm", "norm", "value"]

Limit = float | Callable[[int], float]


@dataclasses.dataclass(frozen=True)
class Clip:
    """A clipping rule, as the functions of this module return it."""

    by: str
    limit: Limit

    def _first(self) -> float:
        """The limit in the first step."""
        limit = self.limit(0) if callable(self.limit) else self.limit
        return checks.positive(f"clip.{self.by}: limit", limit)


def _clip(by: str, limit: Limit) -> Clip:
    clip = Clip(by, limit)
    clip._first()
    return clip


def value(limit: Limit) -> Clip:
    """Limits each element of a gradient to [-limit, limit], as `torch.nn.utils.clip_grad_value_` does."""
    return _clip("value", limit)


def norm(limit: Limit) -> Clip:
    """Scales each gradient whose 2-norm is above the limit down to the limit."""
    return _clip("norm", limit)


def global_norm(limit: Limit) -> Clip:
    """Scales all gradients by one factor, so that the 2-norm of all their elements together is at most the limit, as
    `torch.nn.utils.clip_grad_norm_` does (Pascanu, Mikolov and Bengio, 2013). The norm before clipping is the result
    `gradient_norm` of the step."""
    return _clip("global_norm", limit)


names.guard(
    globals(),
    {
        "bynorm": "norm",
        "byvalue": "value",
        "clipbyglobalnorm": "global_norm",
        "clipbynorm": "norm",
        "clipbyvalue": "value",
        "clipglobalnorm": "global_norm",
        "clipgradnorm": "global_norm",
        "clipgradvalue": "value",
    },
)
