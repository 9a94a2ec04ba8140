"""Ends a job whose launcher was killed, and so could not do it.

    python guard.py MPIRUN

`_launch/supervise.py` starts it beside mpirun, whose process number is MPIRUN, with a pipe as its input that ends with the launcher. On this host it ends
what mpirun has started; on other hosts mpirun's daemons do. Run as a file, and of this package it imports nothing, so that it starts at once.
"""

import os
import select
import signal
import sys
import time
from contextlib import suppress
from pathlib import Path

GRACE_SECONDS = 5.0  # between SIGTERM and SIGKILL


def descendants(process: int) -> list[int]:
    """The processes below one, those that have ended but for their parents' notice left out."""
    children: dict[int, list[int]] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, parent = stat.read_text().rpartition(")")[2].split()[:2]
        except OSError:
            continue  # it has ended meanwhile
        if state not in "ZX":
            children.setdefault(int(parent), []).append(int(stat.parent.name))
    found = list(children.get(process, ()))
    for each in found:
        found += children.get(each, ())
    return found


def _left(handles: list[int], seconds: float) -> list[int]:
    """The processes that have not ended in time."""
    end, left = time.monotonic() + seconds, handles
    while left and (rest := end - time.monotonic()) > 0:
        ended = select.select(left, [], [], rest)[0]
        left = [handle for handle in left if handle not in ended]
    return left


def main(mpirun: int) -> None:
    job = os.pidfd_open(mpirun)  # handles, as numbers of processes are used again
    sys.stdin.buffer.read()
    if not _left([job], 0.001):
        return
    handles = [job]
    for each in descendants(mpirun):
        with suppress(ProcessLookupError):  # it has ended meanwhile
            handles.append(os.pidfd_open(each))
    signal.pidfd_send_signal(job, signal.SIGTERM)
    for handle in _left(handles, GRACE_SECONDS):
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(handle, signal.SIGKILL)


if __name__ == "__main__":
    main(int(sys.argv[1]))
