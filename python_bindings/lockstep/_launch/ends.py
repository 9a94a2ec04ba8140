"""The ends and stops of a job's ranks, as rank.py reports them. They decide whether mpirun is overdue, the job's exit
code, and the final messages.

The threads that copy output call the note functions. The main thread calls the others.
"""

from __future__ import annotations

import re
import signal
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass

from .supervise import LINGER_SECONDS

LOST_SECONDS = 30.0  # time for mpirun or the other ranks to end the job themselves after a rank failed
_MOST_LINES, _MOST_WORDS = 8, 300
# The rank that an error of the engine or of a server names as having failed first.
_BLAMED = re.compile(
    r"\b(rank|worker|server) (\d+)(?: \([^()]*\))?(?: on host [^\s:]+)?(?: \([^()]*\))?(?: (?:died|gave up|has left)\b|: its connection is (?:lost|closed)\b)"
)


@dataclass(frozen=True)
class End:
    """The end of a rank. It has not failed if it succeeded or was told to end. A rank that stays stopped has failed."""

    rank: int
    code: int  # 128 + n for signal n
    failed: bool
    host: str
    is_stopped: bool = False


class Ends:
    """The ends of the ranks of a job, in the order of their reports.

    A job without given numbers has only ranks, not workers and servers. Its ranks report their number.
    """

    def __init__(self, workers: int = 0, servers: int = 0, tolerates_workers: bool = False) -> None:
        self._workers, self._ranks, self._tolerates_workers = workers, workers + servers, tolerates_workers
        self._has_roles = workers > 0
        self._lock = threading.Lock()
        self._ends: dict[int, End] = {}
        self._last_at = 0.0
        self._lost: tuple[End, float] | None = None  # the first failure that should end the job, and its time
        self._words: dict[int, str] = {}
        self._stopped: dict[int, str] = {}  # hosts by stopped rank
        self._waiting: set[int] = set()  # ranks that wait for others in MPI_Finalize

    def name(self, rank: int) -> str:
        if not self._has_roles:
            return f"rank {rank}"
        return f"worker {rank}" if rank < self._workers else f"server {rank - self._workers}"

    def note(self, end: End, of: int = 0) -> None:
        """Notes that a rank has ended. `of` is the number of ranks that it reported, or 0."""
        with self._lock:
            if not self._has_roles:
                self._ranks = of
            self._last_at = time.monotonic()
            if end.rank in self._ends and self._ends[end.rank].is_stopped:
                return  # it was already counted as failed, and ended with the job
            self._ends[end.rank] = end
            is_tolerated = self._tolerates_workers and end.rank < self._workers
            if end.failed and not is_tolerated and self._lost is None:
                self._lost = end, self._last_at

    def note_words(self, rank: int, words: str) -> None:
        """Notes a line that a rank wrote to stderr. The last line of an exception is its message."""
        with self._lock:
            self._words[rank] = words

    def note_stop(self, rank: int, host: str, of: int = 0) -> None:
        """Notes that a rank is stopped, or continues if `host` is empty. `of` is the reported number of ranks."""
        with self._lock:
            if not self._has_roles:
                self._ranks = of
            self._last_at = time.monotonic()
            self._stopped.pop(rank, None)
            if host:
                self._stopped[rank] = host

    def note_wait(self, rank: int) -> None:
        """Notes that a rank has finished, and waits for others in MPI_Finalize."""
        with self._lock:
            self._last_at = time.monotonic()
            self._waiting.add(rank)

    def overdue(self) -> str:
        """Returns the reason why mpirun should have ended by now, on any host; "" if it need not end."""
        with self._lock:
            now = time.monotonic()
            if self._ends and len(self._ends) == self._ranks and now - self._last_at > LINGER_SECONDS:
                return f"the job has not ended within {LINGER_SECONDS:.0f} s after all ranks"
            workers = [rank for rank in range(self._workers) if rank not in self._ends]
            if self._has_roles and not workers and now - self._last_at > LINGER_SECONDS:
                left = ", ".join(self.name(rank) for rank in range(self._ranks) if rank not in self._ends)
                return f"the job has not ended within {LINGER_SECONDS:.0f} s after all workers; still running: {left}"
            if now - self._last_at > LINGER_SECONDS and (stopped := self._stopped_that_are_awaited()):
                return self._give_up(stopped)
            if self._lost is not None and now - self._lost[1] > LOST_SECONDS:
                return f"the job has not ended within {LOST_SECONDS:.0f} s after {self.name(self._lost[0].rank)} failed"
            return ""

    def _stopped_that_are_awaited(self) -> list[int]:
        """The stopped ranks, if all others have ended or wait for them. Servers, which always wait, are ignored."""
        stopped = [rank for rank in self._stopped if rank not in self._ends]
        done = self._waiting.union(self._ends)
        workers = range(self._workers if self._has_roles else self._ranks)
        return stopped if done and all(rank in done or rank in stopped for rank in workers) else []

    def _give_up(self, stopped: Sequence[int]) -> str:
        for rank in stopped:
            self._ends[rank] = End(rank, 128 + signal.SIGSTOP, True, self._stopped[rank], is_stopped=True)
        names = ", ".join(f"{self.name(rank)} on host {self._stopped[rank]}" for rank in stopped)
        verb = "are" if len(stopped) > 1 else "is"
        return f"{names} {verb} stopped by a signal, and the other ranks have waited only for that for {LINGER_SECONDS:.0f} s"

    def exit_code(self, code: int, was_overdue: bool) -> int:
        """Returns the exit code of the job. Call after all output is copied.

        Args:
          code: of mpirun. If workers may die, it is always 0. Such a job has failed if no worker succeeded, or if a
            server failed.
          was_overdue: mpirun was killed, so `code` means nothing.
        """
        failures = self._failures()
        if not was_overdue and not (failures and self._tolerates_workers):
            is_cause_later = failures and failures[0] is not next(end for end in self._ends.values() if end.failed)
            return failures[0].code if is_cause_later else code
        failed_workers = sum(end.rank < self._workers for end in failures)
        is_tolerated = self._tolerates_workers and failed_workers < self._workers and failed_workers == len(failures)
        if failures and not is_tolerated:
            return failures[0].code
        # If a job was ended before all of its ranks, its result is unknown.
        is_known = len(self._ends) == self._ranks or any(end.is_stopped for end in failures)
        return 0 if was_overdue and is_known else code

    def last_words(self, code: int) -> list[str]:
        """Returns the lines to print at the end of a job that failed with this code, the first failure first."""
        lines = self.failures()
        if not lines:
            return [f"the job has ended with exit code {code}, and no rank has reported a failure"]
        return [f"the job has failed with exit code {code}: {lines[0]}", *lines[1:]]

    def failures(self) -> list[str]:
        """Returns lines about the failures. The first line is the first failure, or the failure that it blames."""
        failures = self._failures()
        lines = [("then " if i > 0 else "") + self._described(end) for i, end in enumerate(failures[:_MOST_LINES])]
        return lines + ([f"and {len(failures) - _MOST_LINES} more"] if len(failures) > _MOST_LINES else [])

    def _failures(self) -> Sequence[End]:
        """The failures in the order of their reports. If the first one blames another failure, which was reported
        later, that one is moved before it."""
        failures = {end.rank: end for end in self._ends.values() if end.failed}
        if not failures:
            return []
        heard: list[int] = []
        cause: int | None = next(iter(failures))
        while cause in failures and cause not in heard:
            heard.append(cause)
            cause = self._blamed_by(cause)
        return [failures.pop(heard[-1]), *failures.values()]

    def _blamed_by(self, rank: int) -> int | None:
        """Returns the rank that the last words of `rank` blame for the failure."""
        found = _BLAMED.search(self._words.get(rank, ""))
        if found is None:
            return None
        return int(found[2]) + (self._workers if found[1] == "server" else 0)

    def _described(self, end: End) -> str:
        if end.is_stopped:
            return f"{self.name(end.rank)} on host {end.host} is stopped by a signal"
        how = f"by signal {end.code - 128}" if end.code > 128 else f"with exit code {end.code}"
        words = self._words.get(end.rank, "").strip()
        shown = words if len(words) <= _MOST_WORDS else words[:_MOST_WORDS] + "…"
        return f"{self.name(end.rank)} on host {end.host} ended {how}" + (f": {shown}" if shown else "")
