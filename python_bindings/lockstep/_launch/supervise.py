"""What `lockstep elastic` and `lockstep launch` do with mpirun: run it, look after it, and end all that it has left on this host."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from .._base.errors import Error
from . import guard
from .guard import GRACE_SECONDS

LINGER_SECONDS = 10.0  # that mpirun gets when the ranks of this host have ended: it may wait for a host that is gone
_PR_SET_CHILD_SUBREAPER = 36

# Open MPI's own daemons would notice after minutes only that a host is gone. Ranks notice it after 15 s, and end by themselves.
KEEP_ALIVE = {
    f"OMPI_MCA_oob_tcp_keepalive_{name}": value for name, value in (("time", "10"), ("intvl", "2"), ("probes", "10"))
}


def prepare_process() -> None:
    """Makes this process fit for `run`: it adopts orphans, and ends its job when it is told to end. Once in a process."""
    _adopt_orphans()
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        if number != signal.SIGHUP or signal.getsignal(number) != signal.SIG_IGN:  # as nohup has it
            signal.signal(number, _exit_by_signal)


def run(
    command: Sequence[str],
    environment: Mapping[str, str],
    say: Callable[[str], None],
    stdout: int | None = None,
    stderr: int | None = None,
    is_lost: Callable[[], bool] = lambda: False,
    may_outlive_local_ranks: bool = False,
) -> int:
    """The exit code of mpirun, which is ended if it stays long after the ranks of this host, or if the job is lost; and in any case before this
    returns or raises; by its guard, if this process is killed.

    Args:
      say: is told if it is ended for the first reason.
      may_outlive_local_ranks: it may not be: ranks of other hosts go on without those of this one.
    """
    job = subprocess.Popen(command, env=environment, stdout=stdout, stderr=stderr)
    for number in (signal.SIGUSR1, signal.SIGUSR2):  # which mpirun sends to all ranks
        signal.signal(number, lambda which, _: job.send_signal(which))
    with _guard_of(job):
        had_ranks, last_seen = False, 0.0
        try:
            while job.poll() is None and not is_lost():
                now = time.monotonic()
                if any(map(_is_rank, _descendants())):
                    had_ranks, last_seen = True, now
                elif had_ranks and not may_outlive_local_ranks and now - last_seen > LINGER_SECONDS:
                    say(f"mpirun has not ended in {LINGER_SECONDS:.0f} s since the ranks of this host have")
                    job.kill()  # it has been asked to end already, by the failure
                wait_until(lambda: job.poll() is not None, 0.5)
        finally:
            end(job)
    return job.returncode if job.returncode >= 0 else 128 - job.returncode


def _guard_of(job: subprocess.Popen[bytes]) -> subprocess.Popen[bytes]:
    """Its input ends with this process. It is in a session of its own, so that it outlives what is sent to this process' group."""
    command, null = [sys.executable, guard.__file__, str(job.pid)], subprocess.DEVNULL
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=null, stderr=null, start_new_session=True)


def end(process: subprocess.Popen[bytes]) -> None:
    """Ends it, and all that it has left on this host."""
    if process.poll() is None:
        process.terminate()
        wait_until(lambda: process.poll() is not None, GRACE_SECONDS)

    def is_over() -> bool:
        kill_descendants()
        if process.poll() is not None:
            _reap()
        return not _descendants()

    if not wait_until(is_over, GRACE_SECONDS):
        left = ", ".join(map(str, _descendants()))
        raise Error(f"processes of the job do not end, not even by SIGKILL: {left}")


def kill_descendants() -> None:
    for each in _descendants():
        with suppress(ProcessLookupError):  # it has ended meanwhile
            os.kill(each, signal.SIGKILL)


def _reap() -> None:
    """Takes leave of adopted processes that have ended. Requires that nobody asks for the exit code of any child any more."""
    with suppress(ChildProcessError):  # there are no more
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


def wait_until(condition: Callable[[], bool], seconds: float) -> bool:
    """Whether it has come true in time."""
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() >= end:
            return False
        time.sleep(0.02)
    return True


def _descendants() -> list[int]:
    return guard.descendants(os.getpid())


def _is_rank(process: int) -> bool:
    """Whether mpirun has started it as a rank, or a rank has."""
    try:
        return b"\0OMPI_COMM_WORLD_RANK=" in b"\0" + Path(f"/proc/{process}/environ").read_bytes()
    except OSError:
        return False


def _adopt_orphans() -> None:
    """What loses its parent below this process becomes its child, and so is found at the end of a job."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        raise Error(f"prctl(PR_SET_CHILD_SUBREAPER): {os.strerror(ctypes.get_errno())}")


def _exit_by_signal(number: int, _: object) -> None:
    raise SystemExit(128 + number)
