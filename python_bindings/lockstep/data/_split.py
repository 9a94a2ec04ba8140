"""The division of samples into parts, and their order. The order depends on a seed but not on the part, so that no
sample is in two parts."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from .._base import checks
from .._base.errors import Error


def order(count: int, seed: int | None, turn: int = 0) -> np.ndarray:
    """Returns the numbers 0 to count - 1, i64[count], shuffled by the seed; unshuffled if it is None. `turn` is the
    number of the pass over the samples, and each pass has another order."""
    if seed is None:
        return np.arange(count)
    # The generator is fixed by name, so that the order depends on neither the rank nor NumPy's default.
    generator = np.random.PCG64([seed, turn] if turn else seed)
    return np.random.Generator(generator).permutation(count)


def checked_part(owner: str, num_parts: int, part_index: int | None) -> tuple[int, int]:
    """Returns both as whole numbers. None is the only part.

    Raises:
      Error: there is no such part, or `part_index` is None and there are several parts. Workers that all took the first
        part would train on a fraction of the data.
    """
    parts = checks.integer(f"{owner}: num_parts", num_parts, 1)
    if part_index is None and parts > 1:
        raise Error(
            f"{owner}: num_parts is {parts}, but part_index, the number of this part, is missing; for a worker it is the rank of its store "
            "or world"
        )
    index = checks.integer(f"{owner}: part_index", 0 if part_index is None else part_index, 0)
    if index >= parts:
        raise Error(f"{owner}: part_index is {index}, of {parts} parts, which are numbered from 0")
    return parts, index


def bounds(count: int, parts: int, index: int) -> tuple[int, int]:
    """Returns the begin and end of a part of `count` samples. Every sample is in one part, and sizes differ by at most
    one."""
    return index * count // parts, (index + 1) * count // parts


def rows_of_part(owner: str, count: int, num_parts: int, part_index: int | None, seed: int | None) -> np.ndarray:
    """Returns the numbers of a part's samples in the order of the seed, which is the same for all parts."""
    parts, index = checked_part(owner, num_parts, part_index)
    seed = None if seed is None else checks.integer(f"{owner}: seed", seed, 0)
    begin, end = bounds(count, parts, index)
    return order(count, seed)[begin:end]


class SplitSampler:
    """The numbers of the samples in one of several parts of a data set, with one part for each worker.

    All parts divide the same shuffle, so together they have each sample once. Their sizes differ by at most one. Each
    iteration is an epoch with another shuffle, and so with other samples in the part. `epoch` counts from 0; a run that
    is resumed assigns it.

    Example:
      >>> sampler = lockstep.data.SplitSampler(len(images), num_parts=store.num_workers, part_index=store.rank)
      >>> for image, label in lockstep.data.batches(images, labels, size=64, sampler=sampler, last="pad"):
      ...     ...
    """

    def __init__(self, length: int, num_parts: int = 1, part_index: int | None = None, *, seed: int | None = 0) -> None:
        """
        Args:
          length: the number of samples in all parts.
          num_parts: the number of parts.
          part_index: the number of this part, from 0. Required if there are several parts.
          seed: of the shuffles, the same in all parts. None keeps the order, so a part is `length / num_parts`
            neighbours.

        Raises:
          Error: there is no such part.
        """
        self._length = checks.integer("SplitSampler: length", length, 0)
        self._parts, self._index = checked_part("SplitSampler", num_parts, part_index)
        self._seed = None if seed is None else checks.integer("SplitSampler: seed", seed, 0)
        self._begin, self._end = bounds(self._length, self._parts, self._index)
        self._epoch = 0

    @property
    def epoch(self) -> int:
        """The number of the next iteration's epoch."""
        return self._epoch

    @epoch.setter
    def epoch(self, epoch: int) -> None:
        self._epoch = checks.integer("SplitSampler: epoch", epoch, 0)

    def __len__(self) -> int:
        return self._end - self._begin

    def __iter__(self) -> Iterator[int]:
        return iter(self.rows().tolist())

    def rows(self) -> np.ndarray:
        """Returns the samples of the next iteration, as i64[len(self)], and advances the epoch."""
        rows = order(self._length, self._seed, self._epoch)[self._begin : self._end]
        self._epoch += 1
        return rows

    def __repr__(self) -> str:
        return (
            f"SplitSampler(length={self._length}, num_parts={self._parts}, part_index={self._index}, seed={self._seed})"
        )
