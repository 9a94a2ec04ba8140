"""Losses: what a training step minimises. Each is a mean over the global batch, so it does not change with the ranks."""

from __future__ import annotations

from dataclasses import dataclass

from . import _check


@dataclass(frozen=True)
class Loss:
    """A loss of a result of the model, for `lockstep.train_step`. Made by the functions of this module."""

    kind: str
    prediction: str
    target: str = ""

    def __post_init__(self) -> None:
        _check.text(f"loss {self.kind}: the prediction", self.prediction)
        _check.text(f"loss {self.kind}: the target", self.target)


def softmax_cross_entropy(logits: str = "logits", target: str = "label") -> Loss:
    """The mean of -log softmax(logits)[label].

    Args:
      logits: a result of the model, f32[batch, classes].
      target: the name of the input that the step gets for the labels, i64[batch], each in [0, classes).
        `exe(image=..., label=...)` gives it by this name; a label out of range is an error that says where.

    Example:
      >>> step = lockstep.train_step(model, loss=lockstep.loss.softmax_cross_entropy("logits", "label"), optimizer=...)
    """
    return Loss("softmax_cross_entropy", logits, target)


def mean_squared_error(prediction: str, target: str = "target") -> Loss:
    """The mean of (prediction - target)**2 over all elements.

    Args:
      prediction: a float result of the model, of any shape with the batch first.
      target: the name of the input that the step gets for the wanted values, of the prediction's dtype and shape.
    """
    return Loss("mean_squared_error", prediction, target)


def result(name: str) -> Loss:
    """A float scalar that the model itself computes, under this name."""
    return Loss("result", name)
