"""Aborts communicators when an exception ends this rank's process, so that the other ranks do not wait for it."""

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
    """An excepthook that calls the previous one, and then aborts the communicators that are alive."""

    def __init__(self) -> None:
        self._previous = sys.excepthook

    def __call__(self, kind: type[BaseException], value: BaseException, traceback: TracebackType | None) -> None:
        self._previous(kind, value, traceback)
        for world in list(_worlds):
            world.abort(f"{kind.__name__}: {value}")


def abort_on_exception(world: Communicator) -> None:
    """Makes an exception that ends this process abort `world` with its message, after it is printed."""
    _worlds.add(world)
    if not isinstance(sys.excepthook, _AbortFirst):  # the first call, or another hook replaced ours
        sys.excepthook = _AbortFirst()
