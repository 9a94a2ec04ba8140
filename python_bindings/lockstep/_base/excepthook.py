"""An exception that ends one rank's process must not leave the others waiting."""

from __future__ import annotations

import sys
import weakref
from types import TracebackType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .._lockstep import Communicator

# The hook lives as long as the process, communicators as long as their users want.
_worlds: weakref.WeakSet[Communicator] = weakref.WeakSet()


class _AbortFirst:
    """An excepthook that prints as the one before it did, and then aborts the worlds that are alive."""

    def __init__(self) -> None:
        self._previous = sys.excepthook

    def __call__(self, kind: type[BaseException], value: BaseException, traceback: TracebackType | None) -> None:
        self._previous(kind, value, traceback)
        for world in list(_worlds):
            world.abort(f"{kind.__name__}: {value}")


def abort_on_exception(world: Communicator) -> None:
    """An exception that ends this process, once it is printed, aborts `world` with its message."""
    _worlds.add(world)
    if not isinstance(sys.excepthook, _AbortFirst):  # first time, or somebody has put another in its place
        sys.excepthook = _AbortFirst()
