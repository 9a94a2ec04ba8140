"""An exception that ends one rank's process must not leave the others waiting."""

from __future__ import annotations

import sys
import weakref
from types import TracebackType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ._lockstep import Communicator


def abort_on_exception(world: Communicator) -> None:
    """An exception that ends this process, once it is printed, aborts `world` with its message."""
    previous = sys.excepthook
    reference = weakref.ref(world)  # the hook lives as long as the process, the communicator as long as its user wants

    def abort_first(kind: type[BaseException], value: BaseException, traceback: TracebackType | None) -> None:
        previous(kind, value, traceback)
        if (alive := reference()) is not None:
            alive.abort(f"{kind.__name__}: {value}")

    sys.excepthook = abort_first
