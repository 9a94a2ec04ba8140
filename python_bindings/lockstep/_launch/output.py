"""What mpirun prints of its ranks, with `--tag-output`: put together in lines, and given the rank's name as a prefix, "[worker 0] "."""

from __future__ import annotations

import os
import re
import signal
import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import BinaryIO, Self

LOST_SECONDS = 30.0  # for workers, to end by themselves when a server has failed
_TAG = re.compile(rb"\[\d+,(\d+)\]<std(?:out|err)>:")
_ENDED = re.compile(rb"lockstep launch: ended (with exit code|by signal) (\d+)\n")  # as rank.py says it


class Lines:
    """Makes of the lines of one stream of mpirun those that are shown."""

    def __init__(self, workers: int, on_failure: Callable[[int, int], None]) -> None:
        """`on_failure` is called with the rank and the exit code of one that says that it has failed."""
        self._workers, self._on_failure = workers, on_failure
        self._begun: dict[int, bytes] = {}  # by rank, what has no end yet

    def take(self, line: bytes) -> bytes:
        """What to show for a line of mpirun: parts of lines of several ranks, each after its tag, of which the last ends; or its own words.

        mpirun passes on what ranks write in pieces of 4096 bytes, so that a piece may end, and one of another rank begin, in a line.
        """
        own, *tagged = _TAG.split(line)
        for rank, text in zip(map(int, tagged[0::2]), tagged[1::2], strict=True):
            self._begun[rank] = self._begun.get(rank, b"") + text
        if not tagged:
            return own
        rank = int(tagged[-2])
        return own + self._shown(rank, self._begun.pop(rank))

    def rest(self) -> bytes:
        """At the end, what has none."""
        return b"".join(self._shown(rank, text + b"\n") for rank, text in sorted(self._begun.items()))

    def _shown(self, rank: int, line: bytes) -> bytes:
        text = line.rstrip(b"\r\n").rstrip(b"\0")
        end = b"\r" if line.endswith(b"\r\n") else b"\n"
        ended = _ENDED.fullmatch(text + end)
        if ended:
            self._on_failure(rank, int(ended[2]) + (128 if ended[1] == b"by signal" else 0))
        return f"[{self.name(rank)}] ".encode() + text + end

    def name(self, rank: int) -> str:
        return f"worker {rank}" if rank < self._workers else f"server {rank - self._workers}"


class Copies:
    """Pipes for mpirun's output, and threads that copy from them, for as long as it is entered."""

    def __init__(self, workers: int, stdout: BinaryIO, stderr: BinaryIO) -> None:
        self._workers = workers
        self._failures: list[tuple[int, int]] = []  # ranks and exit codes
        self._server_failed_at: float | None = None
        self._ends: list[int] = []
        self._threads: list[threading.Thread] = []
        for to in (stdout, stderr):
            reading, writing = os.pipe()
            self._ends.append(writing)
            copy = _copier(reading, Lines(workers, self._note), to)
            self._threads.append(threading.Thread(target=copy, daemon=True))

    @property
    def stdout(self) -> int:
        return self._ends[0]

    @property
    def stderr(self) -> int:
        return self._ends[1]

    def is_lost(self) -> bool:
        """Whether a server has failed so long ago that workers should have noticed it."""
        return self._server_failed_at is not None and time.monotonic() - self._server_failed_at > LOST_SECONDS

    def exit_code(self, code: int) -> int:
        """That of a job whose workers may die, once all is copied. mpirun then has 0 always: it has failed if no worker succeeded, or a server did not."""
        failed_workers = sum(rank < self._workers for rank, _ in self._failures)
        if failed_workers == self._workers or failed_workers < len(self._failures):
            return self._failures[0][1]
        return code

    def _note(self, rank: int, code: int) -> None:
        self._failures.append((rank, code))
        if rank >= self._workers and self._server_failed_at is None:
            self._server_failed_at = time.monotonic()

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        for end in self._ends:
            os.close(end)
        for thread in self._threads:
            thread.join()


def _copier(source: int, lines: Lines, to: BinaryIO) -> Callable[[], None]:
    def copy() -> None:
        with open(source, "rb") as pieces:
            try:
                for line in pieces:
                    to.write(lines.take(line))
                    to.flush()
                to.write(lines.rest())
                to.flush()
            except BrokenPipeError:  # nobody reads any more, as after `| head`
                os.kill(os.getpid(), signal.SIGTERM)

    return copy
