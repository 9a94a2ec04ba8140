"""Jobs that lose and gain ranks while they run, under `lockstep elastic` (docs/elastic.md).

    import lockstep as ls
    from lockstep import elastic

    def train(job: elastic.Job) -> None:
        exe = ls.compile(step, world=job.world, virtual_ranks=8, threads=1)
        job.adopt(exe)
        for epoch in range(exe.step // per_epoch, epochs):
            batches = ls.data.batches(images, labels, 128, job.world, seed=epoch, start=exe.step % per_epoch)
            for image, label in batches:
                job.step(exe, image=image, label=label)

    elastic.run(train, shares=8)

When a rank dies, the processes of the others remain. Their `train` ends with an error within, and is called again with
the world of the ranks that are left, to which `adopt` gives the states of the last step that one of them has completed.
The same happens when a rank joins.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np

from .._base import checks
from .._base.errors import Error
from .._lockstep import Communicator, Executable
from ._copies import Copies, PartsLostError
from ._member import SET, Member

__all__ = ["Job", "run"]

T = TypeVar("T")


class Job:
    """The argument of `train`: the job in one of its worlds. Made by `run`."""

    def __init__(self, world: Communicator, copies: Copies, member: Member | None) -> None:
        self._world, self._copies, self._member = world, copies, member
        self._exe: Executable | None = None
        self._has_stepped = False

    @property
    def world(self) -> Communicator:
        """The ranks that there are now."""
        return self._world

    def adopt(self, exe: Executable, otherwise: Callable[[], object] | None = None) -> bool:
        """Gives the executable the newest states of all ranks, their settings and their number of steps. Collective.

        A rank that dies costs the step in which it dies, as the others have copies of the states before it. Settings
        that follow a schedule are not changed.

        Args:
          exe: the step, compiled for `world`. Of states that ranks split, as with `shard_optimizer`, two ranks have
            each part.
          otherwise: is called if no rank has states, as at the start of the job, or if parts of them were lost, for
            example to restore a checkpoint.

        Returns:
          True if ranks had states, and false at the start.

        Raises:
          Error: another executable was adopted in this world; a state is split along another axis than "data"; parts
            of states were lost, and there is no `otherwise`; or a rank is lost.
        """
        checks.instance("adopt: the executable", exe, Executable, "an Executable of ls.compile")
        if self._exe is not None:
            raise Error("adopt: this world has an executable already, and an elastic job has one")
        self._copies.begin(exe, self._world)
        try:
            was_found = self._copies.give(exe, self._world)
        except PartsLostError:
            if otherwise is None:
                raise
            was_found = False
        if not was_found and otherwise is not None:
            otherwise()
        self._copies.take(exe)
        self._exe = exe
        return was_found

    def step(self, exe: Executable, **inputs: Any) -> dict[str, np.ndarray]:
        """Calls the executable with the inputs, copies its states to memory of this process, and returns its results.

        Args:
          exe: the executable that `adopt` was given.
          inputs: by name, as for the executable.

        Raises:
          Error: as of the executable; or another one was adopted.
        """
        if self._exe is None or exe is not self._exe:
            raise Error("step: the executable was not adopted: call adopt(exe) before the first step")
        results = exe(**inputs)
        self._copies.take(exe)
        if not self._has_stepped and self._member is not None:
            self._member.stepped()
        self._has_stepped = True
        return results


def run(train: Callable[[Job], T], shares: int | None = None, timeout: float = 600.0) -> T | None:
    """Calls train(job), again for each world that the ranks form, until it has returned on all ranks of one.

    An `Error` in `train` ends the job if no rank was lost. Any other exception ends this process, without which the
    other ranks continue. `train` is also called again if a rank is lost after it has returned here and before it has
    returned there; then it finds that no steps are left.

    In a process that `lockstep elastic` has not started, `train` is called once, with the ranks of
    `Communicator.from_environment()`.

    Args:
      train: the training, from the states that it adopts to its end.
      shares: a number that the number of ranks must divide: that of `virtual_ranks`, or that of the rows of a batch.
        Ranks beyond the largest such number wait until they are needed. None: there may be any number.
      timeout: the longest time, in seconds, that a call waits for a rank that is alive and does not arrive.

    Returns:
      The result of `train`, or None if this process was no rank when the job ended.

    Example:
      >>> elastic.run(train, shares=8)  # lockstep elastic -n 4 -- python train.py
    """
    if not callable(train):
        raise Error(f"run: train is {train!r}, expected a function of the job")
    divided = 0 if shares is None else checks.integer("run: shares", shares, 1)
    limit = checks.positive("run: timeout", timeout)
    if SET not in os.environ:
        return train(Job(Communicator.from_environment(timeout=limit), Copies(), None))
    member, copies = Member(), Copies()
    while (world := member.next_world(copies, divided, limit)) is not None:
        try:
            if member.collects:
                copies.collect(world)
                continue
            result = train(Job(world, copies, member))
        except Error as error:
            if not member.has_lost(copies, divided, str(error)):
                raise
            continue
        if member.is_over(copies, divided):
            return result
    return None
