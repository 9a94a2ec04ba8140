"""How samples are cut into parts, and in which order they come: by a seed and never by the part, so that no sample is in two."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from .._base import checks
from .._base.errors import Error


def order(count: int, seed: int | None, turn: int = 0) -> np.ndarray:
    """The numbers 0 to count - 1, i64[count], in the order of the seed; None keeps theirs. Each turn through the samples has
    another order."""
    if seed is None:
        return np.arange(count)
    # The generator is fixed by name, so that the order depends on neither the rank nor NumPy's default.
    generator = np.random.PCG64([seed, turn] if turn else seed)
    return np.random.Generator(generator).permutation(count)


def checked_part(owner: str, num_parts: int, part_index: int | None) -> tuple[int, int]:
    """The two as whole numbers; None is the only part.

    Raises:
      Error: if there is no such part, or nobody says which of several it is: workers that all took the first would train on a fraction
        of the data.
    """
    parts = checks.integer(f"{owner}: num_parts", num_parts, 1)
    if part_index is None and parts > 1:
        raise Error(
            f"{owner}: num_parts is {parts}, and part_index, which of them this is, is not given; a worker's is the rank of its store "
            "or world"
        )
    index = checks.integer(f"{owner}: part_index", 0 if part_index is None else part_index, 0)
    if index >= parts:
        raise Error(f"{owner}: part_index is {index}, of {parts} parts, which are numbered from 0")
    return parts, index


def bounds(count: int, parts: int, index: int) -> tuple[int, int]:
    """Where a part of `count` samples begins and ends. Parts differ by at most one in length, and every sample is in one."""
    return index * count // parts, (index + 1) * count // parts


def rows_of_part(owner: str, count: int, num_parts: int, part_index: int | None, seed: int | None) -> np.ndarray:
    """The numbers of a part's samples, of the order of the seed, which all parts have in common."""
    parts, index = checked_part(owner, num_parts, part_index)
    seed = None if seed is None else checks.integer(f"{owner}: seed", seed, 0)
    begin, end = bounds(count, parts, index)
    return order(count, seed)[begin:end]


class SplitSampler:
    """The numbers of the samples in one of several parts of a data set; one part for each worker.

    All parts cut the same shuffle, so together they have each sample once, and they differ by at most one in length. Each time
    that it is iterated is an epoch, with another shuffle and so with other samples in the part; that is `epoch`, which counts from
    0, and which a run that goes on assigns.

    Example:
      >>> sampler = lockstep.data.SplitSampler(len(images), num_parts=store.num_workers, part_index=store.rank)
      >>> for image, label in lockstep.data.batches(images, labels, size=64, sampler=sampler, last="pad"):
      ...     ...
    """

    def __init__(self, length: int, num_parts: int = 1, part_index: int | None = None, *, seed: int | None = 0) -> None:
        """
        Args:
          length: how many samples there are in all parts.
          num_parts: into how many parts they are cut.
          part_index: which part this is, from 0; of several it has to be given.
          seed: of the shuffles, the same in all parts; None keeps the order, so that a part is `length / num_parts` neighbours.

        Raises:
          Error: if there is no such part.
        """
        self._length = checks.integer("SplitSampler: length", length, 0)
        self._parts, self._index = checked_part("SplitSampler", num_parts, part_index)
        self._seed = None if seed is None else checks.integer("SplitSampler: seed", seed, 0)
        self._begin, self._end = bounds(self._length, self._parts, self._index)
        self._epoch = 0

    @property
    def epoch(self) -> int:
        """The epoch that the next iteration is."""
        return self._epoch

    @epoch.setter
    def epoch(self, epoch: int) -> None:
        self._epoch = checks.integer("SplitSampler: epoch", epoch, 0)

    def __len__(self) -> int:
        return self._end - self._begin

    def __iter__(self) -> Iterator[int]:
        return iter(self.rows().tolist())

    def rows(self) -> np.ndarray:
        """What an iteration gives, as i64[len(self)]; it is the next epoch then."""
        rows = order(self._length, self._seed, self._epoch)[self._begin : self._end]
        self._epoch += 1
        return rows

    def __repr__(self) -> str:
        return (
            f"SplitSampler(length={self._length}, num_parts={self._parts}, part_index={self._index}, seed={self._seed})"
        )
