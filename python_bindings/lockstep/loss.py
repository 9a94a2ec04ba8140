"""Losses: the value that a training step minimises. The formulas and the results are PyTorch's.

There is one function for each loss. Its first arguments name results of the model. `target` names an input of the step,
which several losses may share.

A loss reduces over the global batch, so it does not depend on the number of ranks: its mean is divided by the number of
counted elements on all ranks. `sample_weight` and `element_weight` name a further input, which multiplies the loss of
each sample or element. The mean is then divided by the sum of these weights. A batch that is padded with samples of
weight 0 has the loss and the gradients of the batch without them, whatever their targets, even if a rank has only
padding. Batch normalisation in training is an exception: it ignores weights and counts the padding. Padding must be
finite, because 0 times NaN is NaN. If nothing counts, the mean is NaN.

Losses can be added and multiplied by numbers.

Example:
  >>> loss = lockstep.loss.softmax_cross_entropy("logits", "label", ignore_index=-100)
  >>> loss = loss + 0.1 * lockstep.loss.l1("boxes", "wanted_boxes", sample_weight="has_box")
  >>> step = lockstep.train_step(model, loss=loss, optimizer=...)
"""

from __future__ import annotations

import dataclasses
import inspect
import numbers
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from . import _lockstep
from ._base import checks, choices
from ._base import names as _names
from ._base.errors import Error


@dataclass(frozen=True)
class Term:
    """One loss of a sum: its name, the results and inputs that it reads, its options and its factor."""

    kind: str
    predictions: tuple[str, ...]
    inputs: tuple[str, ...] = ()
    options: dict[str, Any] = field(default_factory=dict, hash=False)
    factor: float = 1.0

    def __post_init__(self) -> None:
        for name in (*self.predictions, *self.inputs):
            checks.text(f"loss {self.kind}: the name of a result or an input", name)
        _lockstep._check_loss(self._choice())

    def _choice(self) -> tuple[str, list[str], list[str], dict[str, Any], float]:
        """The term as the extension module takes it."""
        return self.kind, list(self.predictions), list(self.inputs), self.options, self.factor


@dataclass(frozen=True)
class Loss:
    """The value that `lockstep.train_step` minimises: one loss or a sum. Made by this module's functions, + and *."""

    terms: tuple[Term, ...]

    __array_ufunc__ = None  # NumPy's numbers then call __rmul__ of this class

    def __add__(self, other: Loss) -> Loss:
        return Loss(self.terms + other.terms) if isinstance(other, Loss) else NotImplemented

    def __radd__(self, other: int) -> Loss:
        """Lets sum() add a list of losses."""
        return self if isinstance(other, int) and other == 0 else NotImplemented

    def __mul__(self, factor: float) -> Loss:
        if not isinstance(factor, numbers.Real) or isinstance(factor, bool):
            return NotImplemented
        return Loss(tuple(dataclasses.replace(term, factor=term.factor * float(factor)) for term in self.terms))

    __rmul__ = __mul__

    def _choices(self) -> list[tuple[str, list[str], list[str], dict[str, Any], float]]:
        """The terms as the extension module takes them."""
        return [term._choice() for term in self.terms]


def _function_of(definition: choices.Definition) -> Callable[..., Loss]:
    name, options = definition["name"], definition["options"]
    predictions, inputs = definition["predictions"], definition["inputs"]
    arguments = [*predictions, *inputs]
    signature = inspect.Signature(choices.parameters([*arguments, *options]), return_annotation=Loss)

    def make(*args: Any, **kwargs: Any) -> Loss:
        given = choices.bind(name, signature, args, kwargs)
        values = choices.options(f"loss {name}", options, given)

        def names(of: list[choices.Definition]) -> tuple[str, ...]:
            return tuple(given.get(each["name"], each.get("default")) for each in of)

        return Loss((Term(name, names(predictions), names(inputs), values),))

    make.__name__ = make.__qualname__ = name
    make.__doc__ = choices.docstring(definition["doc"], [*arguments, *options])
    make.__signature__ = signature  # type: ignore[attr-defined]
    return make


def _checked(what: str, value: Any) -> Loss:
    """Returns `value` if it is a loss of this module; otherwise raises an Error that suggests one."""
    if isinstance(value, Loss):
        return value
    name = value if isinstance(value, str) else getattr(value, "__name__", type(value).__name__)
    near = _names.nearest(name, _FUNCTIONS, _MEANT) or "softmax_cross_entropy"
    raise Error(f"{what} is {checks.shown(value)}, expected one of lockstep.loss, such as lockstep.loss.{near}()")


_FUNCTIONS = {each["name"]: _function_of(each) for each in _lockstep._losses()}
globals().update(_FUNCTIONS)
__all__ = ["Loss", "Term"]
__all__.extend(_FUNCTIONS)
_MEANT = {
    "bce": "binary_cross_entropy_with_logits",
    "bcewithlogits": "binary_cross_entropy_with_logits",
    "binarycrossentropy": "binary_cross_entropy_with_logits",
    "categoricalcrossentropy": "softmax_cross_entropy",
    "crossentropy": "softmax_cross_entropy",
    "kldivergence": "kl_div",
    "l2": "mean_squared_error",
    "mae": "l1",
    "meanabsoluteerror": "l1",
    "mse": "mean_squared_error",
    "sigmoidbce": "binary_cross_entropy_with_logits",
    "sigmoidbinarycrossentropy": "binary_cross_entropy_with_logits",
    "softmaxce": "softmax_cross_entropy",
    "sparsecategoricalcrossentropy": "softmax_cross_entropy",
    "triplet": "triplet_margin",
}
_names.guard(globals(), _MEANT)
