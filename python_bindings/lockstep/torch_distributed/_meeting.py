"""The meeting of the ranks of a group, by the store of torch.distributed."""

from __future__ import annotations

import datetime
import itertools
from collections.abc import Callable

from torch import distributed

from .. import _lockstep
from .._base.errors import Error
from .._base.excepthook import abort_on_exception
from .._lockstep import Communicator

_SHORTEST = datetime.timedelta(milliseconds=1)  # a store takes 0 as no limit


class LateError(Error):
    """Some ranks of a group did not come in time."""

    def __init__(self, name: str, size: int, ranks: list[int], limit: datetime.timedelta) -> None:
        self.ranks = ranks
        super().__init__(
            f"group {name}: of {size} ranks, {', '.join(f'rank {each}' for each in ranks)} did not come within "
            f"{limit.total_seconds():g} s"
        )


def meet(store: distributed.Store, rank: int, size: int, timeout: datetime.timedelta, name: str) -> Communicator:
    """Returns the communicator of a group's ranks. Collective over them.

    Args:
      store: of the group alone.
      timeout: for the ranks to come, and for each wait of a collective.
      name: of the group, in messages.

    Raises:
      LateError: a rank does not come in time.
      Error: the ranks run different versions, or cannot reach each other. The message names them.
    """
    world = _lockstep._meet(rank, size, gatherer(store, rank, size, timeout, name), timeout.total_seconds(), "torch")
    abort_on_exception(world)
    return world


def gatherer(
    store: distributed.Store, rank: int, size: int, timeout: datetime.timedelta, name: str
) -> Callable[[bytes], list[bytes]]:
    """Returns a function that returns the bytes of all ranks, by rank. All ranks make the same calls of it. It raises a
    LateError if some do not within `timeout`."""
    calls = itertools.count()

    def gather(mine: bytes) -> list[bytes]:
        call = next(calls)
        keys = [f"lockstep/{call}/{each}" for each in range(size)]
        store.set(keys[rank], mine)
        try:
            store.wait(keys, max(timeout, _SHORTEST))
        except RuntimeError as error:
            late = [each for each in range(size) if not store.check([keys[each]])]
            if late:
                raise LateError(name, size, late, timeout) from error
        return [store.get(key) for key in keys]

    return gather
