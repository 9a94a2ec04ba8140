"""Metrics: measures of a model's quality over the samples of all ranks.

Each rank adds its share of each batch. `compute(world)`, which all ranks call, sums the shares. So the result does not
depend on the number of ranks. It does not depend on padding either, if the weights from `data.batches(last="pad")` are
passed on: samples of weight 0 are ignored. In a mesh, ranks that differ only along axes other than "data" have the same
samples: `compute(world, mesh)` counts them once.

`lockstep.evaluation` makes a program that computes a loss and accuracies itself.

Example:
  >>> trained = lockstep.compile(model, world=world)
  >>> confusion = lockstep.metrics.ConfusionMatrix(10)
  >>> for image, label, weight in lockstep.data.batches(images, labels, size=1000, world=world, last="pad"):
  ...     confusion.add(trained(image=image)["logits"], label, weight)
  >>> confusion.compute(world).trace()
  8931.0
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from ._base import checks, names
from ._base.errors import Error
from ._lockstep import Communicator
from .data._batches import _is_first_of_its_share

__all__ = ["Accuracy", "ConfusionMatrix", "Mean", "Metric", "Perplexity"]


class Metric:
    """The base of this module's classes: sums in float64, added over batches and ranks."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        self._sums = np.zeros(shape)

    def reset(self) -> None:
        """Removes everything that was added."""
        self._sums[...] = 0

    def _of_all(self, world: Communicator | None, mesh: Mapping[str, int] | None) -> np.ndarray:
        """The sum over all ranks that have their own samples, added in the order of the ranks."""
        if world is None:
            return self._sums
        checks.instance("compute: world", world, Communicator, "a lockstep.Communicator")
        axes = {"data": world.size} if mesh is None else checks.extents("compute: mesh", mesh)
        is_counted = [_is_first_of_its_share("compute", axes, rank, world.size) for rank in range(world.size)]
        total = np.zeros_like(self._sums)
        about = f"{type(self).__name__}{self._sums.shape}\0".encode()
        for rank, part in enumerate(world.gather_bytes(about + self._sums.tobytes(), "compute() of a metric")):
            if not part.startswith(about):
                other = part.partition(b"\0")[0].decode(errors="replace")
                raise Error(f"{about[:-1].decode()} is computed here, and {other} on rank {rank}")
            if is_counted[rank]:
                total += np.frombuffer(part[len(about) :]).reshape(total.shape)
        return total


class Mean(Metric):
    """The weighted mean of numbers, such as the losses of batches.

    Example:
      >>> mean.add(exe(image=image, label=label)["loss"], weight=len(label))
    """

    def __init__(self) -> None:
        super().__init__((2,))

    def add(self, values: Any, weight: Any = 1.0) -> None:
        """Adds an array of numbers of any shape. `weight` is one number for all, one for each index of dimension 0, or
        one for each element."""
        values = _numbers(f"{type(self).__name__}: values", values).astype(np.float64)
        weights = _weights(type(self).__name__, weight, values.shape)
        counted = weights > 0
        self._sums += (np.sum(weights[counted] * values[counted]), np.sum(weights))

    def compute(self, world: Communicator | None = None, mesh: Mapping[str, int] | None = None) -> float:
        """The mean over all ranks; NaN if nothing was added."""
        total, weight = self._of_all(world, mesh)
        return float(total / weight) if weight else math.nan


class Perplexity(Mean):
    """The exponential of the mean of losses in nats, such as the losses of a language model's tokens."""

    def compute(self, world: Communicator | None = None, mesh: Mapping[str, int] | None = None) -> float:
        mean = super().compute(world, mesh)
        try:
            return math.exp(mean)
        except OverflowError:
            return math.inf


class Accuracy(Metric):
    """The share of labels that are among the `k` classes with the largest scores.

    Of classes with equal scores, the first counts as larger, as in `numpy.argmax`. A NaN is larger than any number.
    """

    def __init__(self, k: int = 1, ignore_index: int | None = None) -> None:
        """
        Args:
          k: 5 is the top-5 accuracy.
          ignore_index: a label that is not counted.
        """
        super().__init__((2,))
        self._k = checks.integer("Accuracy: k", k, low=1)
        self._ignored = None if ignore_index is None else checks.integer("Accuracy: ignore_index", ignore_index)

    def _options(self) -> dict[str, int]:
        """The options as a program that computes this accuracy takes them."""
        return {"k": self._k} | ({} if self._ignored is None else {"ignore_index": self._ignored})

    def add(self, scores: Any, labels: Any, weight: Any = 1.0) -> None:
        """Adds scores [batch, classes, ...] and labels [batch, ...]. `weight` is one number for all, one for each
        sample, or one for each label."""
        scores, labels, weights = _labelled("Accuracy", scores, labels, weight, self._ignored)
        of_label = np.take_along_axis(scores, labels[:, None], 1)
        classes = np.arange(scores.shape[1])
        is_nan, label_is_nan = np.isnan(scores), np.isnan(of_label)
        before = (scores > of_label) | (is_nan & ~label_is_nan)
        ties = ((scores == of_label) | (is_nan & label_is_nan)) & (classes < labels[:, None])
        right = np.sum(before | ties, axis=1) < self._k
        self._sums += (np.sum(weights[right]), np.sum(weights))

    def compute(self, world: Communicator | None = None, mesh: Mapping[str, int] | None = None) -> float:
        """The share over all ranks; NaN if nothing was added."""
        right, count = self._of_all(world, mesh)
        return float(right / count) if count else math.nan


class ConfusionMatrix(Metric):
    """The number of samples of each class (row) that were predicted as each class (column).

    The prediction is the class with the largest score, as in `numpy.argmax`.
    """

    def __init__(self, classes: int, ignore_index: int | None = None) -> None:
        """
        Args:
          classes: the number of classes.
          ignore_index: a label that is not counted.
        """
        self._classes = checks.integer("ConfusionMatrix: classes", classes, low=1)
        self._ignored = None if ignore_index is None else checks.integer("ConfusionMatrix: ignore_index", ignore_index)
        super().__init__((self._classes, self._classes))

    def add(self, scores: Any, labels: Any, weight: Any = 1.0) -> None:
        """Adds scores, labels and weights as `Accuracy.add` does."""
        scores, labels, weights = _labelled("ConfusionMatrix", scores, labels, weight, self._ignored)
        if scores.shape[1] != self._classes:
            raise Error(f"ConfusionMatrix: scores of {scores.shape[1]} classes, expected {self._classes}")
        np.add.at(self._sums, (labels, np.argmax(scores, axis=1)), weights)

    def compute(self, world: Communicator | None = None, mesh: Mapping[str, int] | None = None) -> np.ndarray:
        """The matrix as f64[classes, classes], over all ranks."""
        return self._of_all(world, mesh).copy()


def _numbers(what: str, value: Any) -> np.ndarray:
    try:
        array = np.asarray(value)
    except (TypeError, ValueError):  # lists of different lengths
        array = np.empty(0, object)
    if array.dtype.name == "bfloat16":
        array = array.astype(np.float32)
    if array.dtype.kind not in "fiub":
        raise Error(f"{what} is {value!a}, expected numbers")
    return array


def _weights(owner: str, weight: Any, shape: tuple[int, ...]) -> np.ndarray:
    """Returns a weight for each element, from one number, one per index of dimension 0, or one per element."""
    weights = _numbers(f"{owner}: weight", weight).astype(np.float64)
    if weights.shape not in ((), shape[:1], shape):
        shapes = " or ".join(map(str, dict.fromkeys((shape[:1], shape))))
        raise Error(f"{owner}: weights of shape {weights.shape}, expected one number, or {shapes}")
    if not np.all(np.isfinite(weights) & (weights >= 0)):
        raise Error(f"{owner}: a weight is negative or no finite number")
    if weights.shape == shape[:1]:
        weights = weights.reshape(shape[:1] + (1,) * (len(shape) - 1))
    return np.broadcast_to(weights, shape)


def _labelled(
    owner: str, scores: Any, labels: Any, weight: Any, ignored: int | None
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Returns the samples that count: scores [n, classes], labels [n], weights [n]."""
    scores, labels = _numbers(f"{owner}: scores", scores), _numbers(f"{owner}: labels", labels)
    if scores.ndim < 2 or labels.shape != scores.shape[:1] + scores.shape[2:]:
        raise Error(
            f"{owner}: scores of shape {scores.shape} and labels of shape {labels.shape}, expected [batch, classes, ...] and "
            "[batch, ...]"
        )
    if not np.issubdtype(labels.dtype, np.integer):
        raise Error(f"{owner}: labels are {labels.dtype}, expected integers")
    weights = _weights(owner, weight, labels.shape)
    counted = (weights > 0) if ignored is None else (weights > 0) & (labels != ignored)
    scores, labels, weights = np.moveaxis(scores, 1, -1)[counted], labels[counted], weights[counted]
    if labels.size and not (0 <= labels.min() and labels.max() < scores.shape[1]):
        wrong = labels[(labels < 0) | (labels >= scores.shape[1])][0]
        raise Error(f"{owner}: label {wrong} is outside [0, {scores.shape[1]})")
    return scores, labels, weights


names.guard(
    globals(),
    {
        "acc": "Accuracy",
        "average": "Mean",
        "topkaccuracy": "Accuracy",
    },
)
