"""The gradients of a DistributedOptimizer in buckets of registered memory, and the reductions of buckets.

Buckets are in the reverse order of the parameters, which is roughly the order in which a backward pass computes
gradients. They start in that order on every rank, whatever the order of the pass. They have their own communicator, so
other calls may occur at any point between them.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from .. import _lockstep
from .._base import checks
from .._base.errors import Error
from .._torch.memory import DTYPES, bytes_of
from ._calls import Call
from ._session import Session
from ._tensors import ReduceOp

_ALIGNMENT = 64  # bytes; each gradient begins at a multiple
DEFAULT_BYTES = 16 << 20  # of a bucket
Named = tuple[str, torch.nn.Parameter]


def bucket_bytes() -> int:
    """The largest size of a bucket in bytes: HOROVOD_FUSION_THRESHOLD, as in Horovod."""
    text = os.environ.get("HOROVOD_FUSION_THRESHOLD", "")
    if not text:
        return DEFAULT_BYTES
    if not text.isdecimal():
        raise Error(f"HOROVOD_FUSION_THRESHOLD is {text!r}, expected a number of bytes")
    return int(text)


def partition(named: Sequence[Named], groups: Any) -> list[list[Named]]:
    """Divides the gradients into buckets.

    Args:
      named: the parameters, in an order that is the same on all ranks.
      groups: as for DistributedOptimizer. None uses `bucket_bytes`.
    """
    backwards = list(reversed(named))
    if groups is None or groups == 0:
        return _by_bytes(backwards, bucket_bytes())
    if isinstance(groups, int):
        number = min(checks.integer("hvd.DistributedOptimizer: groups", groups, 1), len(backwards))
        return _of_one_dtype([list(part) for part in np.array_split(np.arange(len(backwards)), number)], backwards)
    place = {id(parameter): i for i, (_, parameter) in enumerate(backwards)}
    parts: list[list[int]] = []
    for group in groups:
        part = [place.pop(id(parameter), None) for parameter in group]
        if None in part:
            raise Error(
                "hvd.DistributedOptimizer: groups has a tensor twice, or one that is not a parameter of the optimizer"
            )
        parts.append(sorted(i for i in part if i is not None))
    parts += [[i] for i in place.values()]
    return _of_one_dtype(sorted(parts), backwards)


def _by_bytes(named: Sequence[Named], limit: int) -> list[list[Named]]:
    buckets: list[list[Named]] = []
    filled = 0
    for name, parameter in named:
        size = parameter.numel() * parameter.element_size()
        if not buckets or buckets[-1][0][1].dtype != parameter.dtype or filled + size > limit:
            buckets.append([])
            filled = 0
        buckets[-1].append((name, parameter))
        filled += size
    return buckets


def _of_one_dtype(parts: Sequence[Sequence[int]], named: Sequence[Named]) -> list[list[Named]]:
    buckets: list[list[Named]] = []
    for part in parts:
        by_dtype: dict[torch.dtype, list[Named]] = {}
        for i in part:
            by_dtype.setdefault(named[i][1].dtype, []).append(named[i])
        buckets += by_dtype.values()
    return buckets


class Bucket:
    """Gradients that are reduced by one collective."""

    def __init__(self, world: Any, number: int, named: Sequence[Named], wire: torch.dtype | None) -> None:
        """
        Args:
          world: the communicator of all buckets of the optimizer. Collective.
          wire: the dtype in which the bucket travels; None is its own.
        """
        dtype = named[0][1].dtype
        self.label = f"gradients {number} ({', '.join(name for name, _ in named)})"
        self.parameters = [parameter for _, parameter in named]
        places, end = [], 0
        for parameter in self.parameters:
            places.append(end)
            end += -(-parameter.numel() * parameter.element_size() // _ALIGNMENT) * _ALIGNMENT
        is_compressed = wire is not None and wire != dtype and dtype.is_floating_point
        self._memory = np.zeros(end, np.uint8) if is_compressed else _lockstep._allocate(world, end, self.label)[:end]
        self.gradients = torch.from_numpy(self._memory).view(dtype)
        self.travels = self.gradients
        if is_compressed:
            bytes_ = self.gradients.numel() * wire.itemsize
            self.travels = torch.from_numpy(_lockstep._allocate(world, bytes_, self.label)[:bytes_]).view(wire)
        self.views = [
            self.gradients[place // dtype.itemsize :][: parameter.numel()].view(parameter.shape)
            for place, parameter in zip(places, self.parameters, strict=True)
        ]
        self.waits_for = len(self.parameters)
        self._bytes = bytes_of(self.travels)  # a view of `travels`, made once for all starts
        self._ticket: int | None = None

    def start(self, world: Any, op: ReduceOp, factor: float) -> None:
        """Starts to reduce the gradients, multiplied by `factor`."""
        if factor != 1:
            self.gradients.mul_(factor)
        if self.travels is not self.gradients:
            self.travels.copy_(self.gradients)
        self._ticket = _lockstep._start_all_reduce(
            world, self._bytes, self._bytes, DTYPES[self.travels.dtype], op.kind, self.label
        )

    def finish(self, world: Any, factor: float) -> None:
        """Waits until the gradients are reduced, and multiplies them by `factor`."""
        assert self._ticket is not None
        ticket, self._ticket = self._ticket, None
        _lockstep._wait(world, ticket)
        if self.travels is not self.gradients:
            self.gradients.copy_(self.travels)
        if factor != 1:
            self.gradients.mul_(factor)


class Step(Call):
    """The reduction of all buckets of an optimizer. The backward pass starts the buckets. A rank that has joined starts
    them here, with zeros."""

    def __init__(self, number: int, buckets: Buckets, is_stand_in: bool = False) -> None:
        super().__init__({"op": "step", "number": number})
        self._buckets = buckets
        self._is_stand_in = is_stand_in

    def start(self, world: Any) -> None:
        if self._is_stand_in:
            for bucket in self._buckets.all:
                bucket.gradients.zero_()
        self._buckets.start_rest()

    def wait_first(self, world: Any) -> None:
        self._buckets.wait()

    def finish(self, world: Any) -> None:
        self._buckets.wait()


class Buckets:
    """All buckets of one optimizer. The caller holds the session's lock."""

    def __init__(
        self, job: Session, parts: Sequence[Sequence[Named]], wire: torch.dtype | None, op: ReduceOp, predivide: float
    ) -> None:
        """Collective."""
        self.op = op
        self._before, self._after = 1 / predivide, predivide
        self._number = len(job.optimizers)
        # The same ranks, but collectives with their own order.
        self.world = _lockstep._split(job.world, 0, f"horovod: optimizer {self._number}")
        self.all = [Bucket(self.world, i, part, wire) for i, part in enumerate(parts)]
        self._started = self._finished = 0
        job.optimizers.append(weakref.ref(self))

    def is_filling(self) -> bool:
        """True if there are gradients of a backward pass that no step has used."""
        return self._started > 0 or any(bucket.waits_for < len(bucket.parameters) for bucket in self.all)

    def arrived(self, bucket: Bucket) -> None:
        """Notes that one more gradient of the bucket is complete. Starts complete buckets, in order."""
        bucket.waits_for -= 1
        while self._started < len(self.all) and self.all[self._started].waits_for == 0:
            self._start_next()

    def _start_next(self) -> None:
        bucket = self.all[self._started]
        self._started += 1
        bucket.start(self.world, self.op, self._before)

    def start_rest(self) -> None:
        while self._started < len(self.all):
            self._start_next()

    def wait(self) -> None:
        """Waits for all started buckets. After all, they can be filled again."""
        while self._finished < self._started:
            bucket = self.all[self._finished]
            self._finished += 1
            bucket.finish(self.world, self._after)
        if self._finished == len(self.all):
            self._started = self._finished = 0
            for bucket in self.all:
                bucket.waits_for = len(bucket.parameters)

    def step(self) -> Step:
        return Step(self._number, self)

    def stand_in(self) -> Step:
        return Step(self._number, self, is_stand_in=True)
