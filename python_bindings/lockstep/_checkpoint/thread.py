"""The thread that writes a checkpoint while rank 0 gathers states or continues training."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from .._base import atomic
from .._base.errors import Error
from .._base.log import log
from .checkpoint_file import write

if TYPE_CHECKING:
    import numpy as np

    from .._base.values import ValueInfo

_PATIENCE = 0.2  # seconds: the longest wait of put() and progress()


class Writing:
    """A thread of rank 0 that writes a checkpoint of states, whose bytes it receives one after the other."""

    def __init__(
        self, request: Mapping[str, Any], states: list[ValueInfo], about: Mapping[str, Any], after: Callable[[], None]
    ) -> None:
        self._request, self._states, self._about, self._after = request, states, about, after
        # In the background, the queue holds all values at once. Otherwise one value is read while the previous one is
        # written.
        self._values: queue.Queue[np.ndarray | None] = queue.Queue(0 if request["background"] else 1)
        self._taken = self._take()
        self._given_up = False
        self._error: Error | None = None
        # A process that ends waits for this thread, because it is not a daemon.
        self._thread = threading.Thread(target=self._run, name="lockstep save", daemon=False)
        self._thread.start()

    def put(self, value: np.ndarray) -> str:
        """Adds a value. Waits for a moment, and returns "writing" if there is no room for the value yet."""
        try:
            self._values.put(value, timeout=_PATIENCE)
        except queue.Full:
            return "writing"
        return ""

    def give_up(self) -> None:
        """Ends the thread without a file. No more values follow."""
        self._given_up = True
        self._values.put(None)
        self._thread.join()

    def progress(self) -> str:
        """Waits for a moment, and returns "writing" or "written". Raises the Error of a failed thread."""
        self._thread.join(_PATIENCE)
        if self._thread.is_alive():
            return "writing"
        if self._error is not None:
            raise self._error
        return "written"

    def _run(self) -> None:
        try:
            naming(self._request["path"], self._write)
        except Error as error:
            self._error = error
            if self._request["background"] and not self._given_up:
                log.error("save: %s", error)
            with suppress(Error):  # from give_up
                for _ in self._taken:  # a caller of put() waits until its value is taken
                    pass

    def _write(self) -> None:
        atomic.write(
            self._request["path"],
            lambda file: write(file, self._states, self._taken, self._about),
        )
        self._after()

    def _take(self) -> Iterator[np.ndarray]:
        for _ in self._states:
            value = self._values.get()
            if value is None:
                raise Error("save was given up")
            yield value


class Elsewhere:
    """The counterpart on the other ranks of the Writing of rank 0."""

    def put(self, value: None) -> str:
        return ""

    def give_up(self) -> None:
        pass

    def progress(self) -> str:
        return ""


def naming(path: str, body: Callable[[], None]) -> None:
    """Calls body(). Any exception becomes an Error that names the file."""
    try:
        body()
    except OSError as error:
        raise Error(f"{path}: {error.strerror or error}") from error
    except Error as error:
        raise Error(f"{path}: {error}") from error
    except Exception as error:
        raise Error(f"{path}: {type(error).__name__}: {error}") from error
