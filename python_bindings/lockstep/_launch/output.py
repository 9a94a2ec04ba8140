"""Processing of mpirun's output with `--tag-output`: joins pieces of the ranks' lines, and shows each line with the
prefix "[worker 0] ", or as the rank wrote it."""

from __future__ import annotations

import os
import re
import signal
import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import BinaryIO, Self

from .ends import End, Ends

DRAWN_SECONDS = 10.0
_TAG = re.compile(rb"\[\d+,(\d+)\]<std(?:out|err)>:")
# The messages of rank.py.
_ENDED = re.compile(
    rb"lockstep launch: ended (with exit code|by signal) (\d+) on host ([^\n,]+)(, one of (\d+) ranks)?(, as it was told)?\n"
)
_STOPPED = re.compile(rb"lockstep launch: (stopped by a signal|goes on) on host ([^\n,]+)(, one of (\d+) ranks)?\n")
# The message of the rank itself, from runtime/comm/mpi/mpi_wait.h.
_WAITS = re.compile(rb"lockstep: rank (\d+) on host \S+ has waited \d+ s in MPI_Finalize for ")


class Lines:
    """Converts the lines of one output stream of mpirun to the lines to show."""

    def __init__(self, ends: Ends, keeps_words: bool, is_terminal: bool = True, names_ranks: bool = True) -> None:
        """
        Args:
          ends: is told about ranks that end and, if `keeps_words`, about the lines that they write.
          names_ranks: add prefixes, and show how ranks failed.
          is_terminal: the output is a terminal. Otherwise, of lines that overwrite each other, such as progress bars,
            one in ten seconds is shown for each rank, with a newline.
        """
        self._ends, self._keeps_words = ends, keeps_words
        self._is_terminal, self._names_ranks = is_terminal, names_ranks
        self._drawn_at: dict[int, float] = {}  # by rank
        self._begun: dict[int, bytes] = {}  # by rank, the incomplete line

    def take(self, line: bytes) -> bytes:
        """Returns the text to show for a line of mpirun. The line is mpirun's own, or has tagged pieces of several
        ranks' lines, of which only the last is complete.

        mpirun passes on the output of ranks in pieces of 4096 bytes, so a piece of another rank may begin within a
        line.
        """
        own, *tagged = _TAG.split(line)
        for rank, text in zip(map(int, tagged[0::2]), tagged[1::2], strict=True):
            self._begun[rank] = self._begun.get(rank, b"") + text
        if not tagged:
            return own
        rank = int(tagged[-2])
        return own + self._shown(rank, self._begun.pop(rank))

    def rest(self) -> bytes:
        """Returns the incomplete lines. Call at the end."""
        return b"".join(self._shown(rank, text + b"\n") for rank, text in sorted(self._begun.items()))

    def _shown(self, rank: int, line: bytes) -> bytes:
        text = line.rstrip(b"\r\n").rstrip(b"\0")
        end = b"\r" if line.endswith(b"\r\n") else b"\n"
        message = text.removeprefix(b" ")  # Open MPI 5 writes a space after its tag
        ended = _ENDED.fullmatch(message + end)
        if ended:
            code = int(ended[2]) + (128 if ended[1] == b"by signal" else 0)
            failed = code != 0 and not ended[6]
            self._ends.note(End(rank, code, failed, ended[3].decode(errors="replace")), of=int(ended[5] or 0))
            if not failed or not self._names_ranks:  # not worth a line
                return b""
            text = text.replace(ended[4] or b"", b"")
        elif stopped := _STOPPED.fullmatch(message + end):
            host = stopped[2].decode(errors="replace")
            self._ends.note_stop(rank, host if stopped[1] != b"goes on" else "", of=int(stopped[4] or 0))
            if not self._names_ranks:
                return b""
            text = text.replace(stopped[3] or b"", b"")
        elif (waits := _WAITS.match(message)) and int(waits[1]) == rank:
            self._ends.note_wait(rank)
        elif self._keeps_words and text.strip():
            self._ends.note_words(rank, text.decode(errors="replace"))
        if end == b"\r" and not self._is_terminal:
            if not text.strip() or time.monotonic() - self._drawn_at.get(rank, -DRAWN_SECONDS) < DRAWN_SECONDS:
                return b""
            self._drawn_at[rank], end = time.monotonic(), b"\n"
        return (f"[{self._ends.name(rank)}] ".encode() if self._names_ranks else b"") + text + end


class Copies:
    """Pipes for mpirun's output, with threads that copy from them while the context is entered."""

    def __init__(self, ends: Ends, stdout: BinaryIO, stderr: BinaryIO, names_ranks: bool = True) -> None:
        self._to: list[int] = []
        self._threads: list[threading.Thread] = []
        for to in (stdout, stderr):
            reading, writing = os.pipe()
            self._to.append(writing)
            lines = Lines(ends, keeps_words=to is stderr, is_terminal=to.isatty(), names_ranks=names_ranks)
            copy = _copier(reading, lines, to)
            self._threads.append(threading.Thread(target=copy, daemon=True))

    @property
    def stdout(self) -> int:
        return self._to[0]

    @property
    def stderr(self) -> int:
        return self._to[1]

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        for writing in self._to:
            os.close(writing)
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
            except BrokenPipeError:  # the reader has ended, as with `| head`
                # Otherwise Python would fail again to flush its buffer when it ends, and exit with 120.
                os.dup2(os.open(os.devnull, os.O_WRONLY), to.fileno())
                os.kill(os.getpid(), signal.SIGTERM)

    return copy
