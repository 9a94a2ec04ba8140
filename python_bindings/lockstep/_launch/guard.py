"""Ends a job whose launcher was killed, so that the launcher could not do it.

    python guard.py MPIRUN

`_launch/supervise.py` starts it beside mpirun, whose process number is MPIRUN. Its input is a pipe that ends with the
launcher. It ends the processes that mpirun started on this host; mpirun's daemons do so on other hosts. It runs as a
file and imports nothing of this package, so that it starts at once.
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
    """Returns the descendants of a process, without processes that have ended but whose parents have not noticed."""
    children: dict[int, list[int]] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, parent = stat.read_text().rpartition(")")[2].split()[:2]
        except OSError:
            continue  # it has already ended
        if state not in "ZX":
            children.setdefault(int(parent), []).append(int(stat.parent.name))
    found = list(children.get(process, ()))
    for each in found:
        found += children.get(each, ())
    return found


def _left(handles: list[int], seconds: float) -> list[int]:
    """Waits, and returns the processes that have not ended in time."""
    end, left = time.monotonic() + seconds, handles
    while left and (rest := end - time.monotonic()) > 0:
        ended = select.select(left, [], [], rest)[0]
        left = [handle for handle in left if handle not in ended]
    return left


def main(mpirun: int) -> None:
    job = os.pidfd_open(mpirun)  # handles, because process numbers are reused
    sys.stdin.buffer.read()
    if not _left([job], 0.001):
        return
    handles = [job]
    for each in descendants(mpirun):
        with suppress(ProcessLookupError):  # it has already ended
            handles.append(os.pidfd_open(each))
    signal.pidfd_send_signal(job, signal.SIGTERM)
    for handle in _left(handles, GRACE_SECONDS):
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(handle, signal.SIGKILL)


if __name__ == "__main__":
    main(int(sys.argv[1]))
