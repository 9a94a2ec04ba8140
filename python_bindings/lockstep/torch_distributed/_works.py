"""Calls in flight: what the functions of torch.distributed return, and the order in which a group's calls run."""

from __future__ import annotations

import collections
import datetime
import threading
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import distributed
from torch.distributed.distributed_c10d import Work

NO_LIMIT = datetime.timedelta(0)  # c10d's kNoTimeout


class InFlight(Work):
    """Something that becomes complete, with tensors as its result or with an exception. Any thread."""

    def __init__(self, result: list[torch.Tensor]) -> None:
        super().__init__()
        self._result = result
        self._done = threading.Event()
        self._error: Exception | None = None
        self._future: torch.futures.Future[Any] | None = None
        self._trigger: torch.futures.Future[None] | None = None  # completes the future
        self._future_lock = threading.Lock()

    def complete(self, error: Exception | None) -> None:
        """Marks it as complete. Callbacks of the future run in `announce`."""
        self._error = error
        self._done.set()

    def announce(self) -> None:
        """Completes the future, if there is one. Its callbacks, which are the user's, run in the calling thread."""
        with self._future_lock:
            trigger, self._trigger = self._trigger, None
        if trigger is not None:
            trigger.set_result(None)

    def get_future(self) -> torch.futures.Future[Any]:
        with self._future_lock:
            if self._future is None:
                trigger: torch.futures.Future[None] = torch.futures.Future()
                # PyTorch's C++ code sees the exception of a callback, but not that of set_exception, which is a result.
                self._future = trigger.then(self._outcome)
                if self._done.is_set():
                    trigger.set_result(None)
                else:
                    self._trigger = trigger
            return self._future

    def _outcome(self, _: object) -> list[torch.Tensor]:
        if self._error is not None:
            raise self._error
        return self._result

    def is_completed(self) -> bool:
        return self._done.is_set()

    def is_success(self) -> bool:
        return self._done.is_set() and self._error is None

    def exception(self) -> Exception | None:
        return self._error

    def result(self) -> list[torch.Tensor]:
        return self._result

    def synchronize(self) -> None:
        self.wait()

    def wait(self, timeout: datetime.timedelta = NO_LIMIT) -> bool:
        """Waits until it is complete, and raises its exception."""
        self._await(None if timeout <= NO_LIMIT else timeout.total_seconds())
        if self._error is not None:
            raise self._error
        return True

    def _await(self, limit: float | None) -> None:
        raise NotImplementedError


def _failure(error: Exception, where: str) -> Exception:
    """Returns the exception of torch.distributed for one of the engine: its message, and the group."""
    if isinstance(error, (ValueError, RuntimeError)):  # of torch, about operands
        return error
    wrapped = distributed.DistBackendError(f"{error} ({where})")
    wrapped.__cause__ = error
    return wrapped


class Call(InFlight):
    """A collective of a group."""

    def __init__(self, queue: Queue, run: Callable[[], None], result: list[torch.Tensor], where: str) -> None:
        """`where` names the group and the timeout, in messages."""
        super().__init__(result)
        self._queue, self._where = queue, where
        self._run: Callable[[], None] | None = run

    def run(self) -> None:
        body, self._run = self._run, None  # lets the operands go
        assert body is not None
        try:
            body()
        except Exception as error:  # noqa: BLE001 (raised by wait)
            self.complete(_failure(error, self._where))
        else:
            self.complete(None)

    def is_small(self) -> bool:
        """Returns whether its result holds little memory."""
        return all(not each.is_sparse and each.untyped_storage().nbytes() <= 512 for each in self._result)

    def _await(self, limit: float | None) -> None:
        if limit is None:
            self._queue.run_until(self)
        elif not self._done.wait(limit):
            raise RuntimeError(f"a call of torch.distributed was not complete within {limit:g} s")


class Queue:
    """The calls of a group, which run one after the other in the order in which they were made.

    A caller who waits runs them itself. A thread, which the first asynchronous call starts, runs those for which nobody
    waits, so that they overlap with the caller's work.
    """

    def __init__(self, name: str) -> None:
        """The name is that of its threads."""
        self._name = name
        self._calls: collections.deque[Call] = collections.deque()
        self._running = threading.Lock()  # of who runs calls
        self._posted = threading.Semaphore(0)
        # PyTorch's C++ code may keep a call without its Python part, as DDP's join does from a forward to a backward
        # pass. Its flags are small.
        self._kept: collections.deque[Call] = collections.deque(maxlen=16)
        self._threads: list[threading.Thread] = []  # the last one runs calls; the others end after a callback
        self._ended = False

    def add(self, call: Call) -> None:
        """Adds a call, which runs soon."""
        self._calls.append(call)
        if call.is_small():
            self._kept.append(call)
        # A callback of a future runs in the thread, and may wait for a call that it makes: another thread runs that.
        if not self._threads or self._threads[-1] is threading.current_thread():
            self._threads.append(threading.Thread(target=self._work, name=f"lockstep {self._name}", daemon=True))
            self._threads[-1].start()
        self._posted.release()

    def run(self, call: Call) -> None:
        """Adds a call, and runs it here."""
        self._calls.append(call)
        self.run_until(call)

    def run_until(self, call: Call) -> None:
        """Returns when the call is complete."""
        finished = []
        with self._running:
            while not call.is_completed():
                finished.append(self._run_next())
        for each in finished:
            each.announce()

    def _run_next(self) -> Call:
        call = self._calls.popleft()
        call.run()
        return call

    def _work(self) -> None:
        while True:
            self._posted.acquire()
            if self._ended or self._threads[-1] is not threading.current_thread():
                self._posted.release()  # for the next thread
                return
            with self._running:
                call = self._run_next() if self._calls else None
            if call is not None:
                call.announce()

    def end(self, limit: float) -> bool:
        """Ends the threads, after the calls that they run. Calls that have not begun never run. Returns False if a
        thread has not ended within so many seconds."""
        self._ended = True
        self._posted.release()
        deadline = time.monotonic() + limit
        others = [each for each in self._threads if each is not threading.current_thread()]
        for each in others:
            each.join(max(0.0, deadline - time.monotonic()))
        return not any(each.is_alive() for each in others)


class Message(InFlight):
    """A message in flight, whose other end is one rank."""

    def __init__(
        self, poll: Callable[[float], int | None], limit: float, what: str, where: str, tensor: torch.Tensor
    ) -> None:
        """`poll` waits for that many seconds, and returns the other rank once the message is complete. `what` names
        the message, and `where` the group."""
        super().__init__([tensor])
        self._poll = poll
        self._limit, self._what, self._where = limit, what, where
        self._lock = threading.Lock()
        self._source = -1

    def is_completed(self) -> bool:
        if not self._done.is_set() and self._lock.acquire(blocking=False):
            try:
                self._advance(0)
            finally:
                self._lock.release()
        return self._done.is_set()

    def get_future(self) -> torch.futures.Future[Any]:
        future = super().get_future()
        if not self._done.is_set():
            threading.Thread(target=self._await, args=(None,), name="lockstep message", daemon=True).start()
        return future

    def _source_rank(self) -> int:
        return self._source

    source_rank = _source_rank

    def _advance(self, limit: float) -> None:
        if self._done.is_set():
            return
        try:
            other = self._poll(limit)
        except Exception as error:  # noqa: BLE001 (raised by wait)
            self.complete(_failure(error, self._where))
        else:
            if other is not None:
                self._source = other
                self.complete(None)

    def _await(self, limit: float | None) -> None:
        end = time.monotonic() + (self._limit if limit is None else limit)
        while not self._done.is_set():
            with self._lock:
                self._advance(0.1)
            if not self._done.is_set() and time.monotonic() > end:
                if limit is not None:
                    raise RuntimeError(f"{self._what} was not complete within {limit:g} s")
                self.complete(
                    distributed.DistBackendError(
                        f"{self._what} was not complete within {self._limit:g} s ({self._where})"
                    )
                )
        self.announce()
