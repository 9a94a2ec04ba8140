"""Losses: what a training step minimises. Each is a mean over the global batch, so it does not change with the ranks.

There is a function for each loss that is compiled in. Its first argument names a result of the model; a `target` names
the input that the step gets.

Example:
  >>> step = lockstep.train_step(model, loss=lockstep.loss.softmax_cross_entropy("logits", "label"), optimizer=...)
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from . import _check, _choices, _lockstep


@dataclass(frozen=True)
class Loss:
    """A loss of a result of the model, for `lockstep.train_step`. Made by the functions of this module."""

    kind: str
    prediction: str
    target: str = ""
    options: dict[str, Any] = field(default_factory=dict, hash=False)

    def __post_init__(self) -> None:
        _check.text(f"loss {self.kind}: the prediction", self.prediction)
        _check.text(f"loss {self.kind}: the target", self.target)

    def _choice(self) -> tuple[str, str, str, dict[str, Any]]:
        """As the extension module takes it."""
        return self.kind, self.prediction, self.target, self.options


def _function_of(definition: _choices.Definition) -> Callable[..., Loss]:
    name, options = definition["name"], definition["options"]
    names = [each for each in (definition["prediction"], definition["target"]) if each is not None]
    signature = inspect.Signature(_choices.parameters(names) + _choices.parameters(options), return_annotation=Loss)

    def make(*args: Any, **kwargs: Any) -> Loss:
        given = _choices.bind(name, signature, args, kwargs)
        values = _choices.options(f"loss {name}", options, given)
        _lockstep._check_loss(name, values)
        return Loss(name, *(given.get(each["name"], each.get("default")) for each in names), options=values)

    make.__name__ = make.__qualname__ = name
    make.__doc__ = _choices.docstring(definition["doc"], [*names, *options])
    make.__signature__ = signature  # type: ignore[attr-defined]
    return make


_FUNCTIONS = {each["name"]: _function_of(each) for each in _lockstep._losses()}
globals().update(_FUNCTIONS)
__all__ = ["Loss"]
__all__.extend(_FUNCTIONS)
