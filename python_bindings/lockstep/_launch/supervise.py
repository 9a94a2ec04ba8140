"""Runs and watches mpirun for `lockstep elastic` and `launch`, and ends all processes left on this host."""

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

LINGER_SECONDS = 10.0  # for mpirun to end after the ranks of this host: it may wait for a lost host
_PR_SET_CHILD_SUBREAPER = 36

# Open MPI's daemons would notice a lost host only after minutes. Ranks notice it after 15 s, and end by themselves.
KEEP_ALIVE = {
    f"OMPI_MCA_oob_tcp_keepalive_{name}": value for name, value in (("time", "10"), ("intvl", "2"), ("probes", "10"))
}


def prepare_process() -> None:
    """Makes this process adopt orphans, and end its job when a signal ends it. Call once, before `run`."""
    _adopt_orphans()
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        if number != signal.SIGHUP or signal.getsignal(number) != signal.SIG_IGN:  # as under nohup
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
    """Runs mpirun and returns its exit code. Kills it if it long outlives this host's ranks, or if the job is lost.

    All processes of the job have ended when this returns or raises. If this process is killed, the guard ends them.

    Args:
      say: is told if mpirun is killed for the first reason.
      may_outlive_local_ranks: mpirun is not killed for the first reason: ranks of other hosts continue without those of
        this host.
    """
    job = subprocess.Popen(command, env=environment, stdout=stdout, stderr=stderr)
    for number in (signal.SIGUSR1, signal.SIGUSR2):  # mpirun passes them on to all ranks
        signal.signal(number, lambda which, _: job.send_signal(which))
    with _guard_of(job):
        had_ranks, last_seen = False, 0.0
        try:
            while job.poll() is None and not is_lost():
                now = time.monotonic()
                if any(map(_is_rank, _descendants())):
                    had_ranks, last_seen = True, now
                elif had_ranks and not may_outlive_local_ranks and now - last_seen > LINGER_SECONDS:
                    say(f"mpirun has not ended within {LINGER_SECONDS:.0f} s after the ranks of this host")
                    job.kill()  # the failure has already asked it to end
                wait_until(lambda: job.poll() is not None, 0.5)
        finally:
            end(job)
    return job.returncode if job.returncode >= 0 else 128 - job.returncode


def _guard_of(job: subprocess.Popen[bytes]) -> subprocess.Popen[bytes]:
    """Starts a guard, whose input ends with this process. Its own session protects it from our group's signals."""
    command, null = [sys.executable, guard.__file__, str(job.pid)], subprocess.DEVNULL
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=null, stderr=null, start_new_session=True)


def end(process: subprocess.Popen[bytes]) -> None:
    """Ends the process and all processes that it has left on this host."""
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
        raise Error(f"processes of the job do not end, even after SIGKILL: {left}")


def kill_descendants() -> None:
    for each in _descendants():
        with suppress(ProcessLookupError):  # it has already ended
            os.kill(each, signal.SIGKILL)


def _reap() -> None:
    """Reaps adopted processes that have ended. Requires that no exit code of a child is needed any more."""
    with suppress(ChildProcessError):  # there are no more
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


def wait_until(condition: Callable[[], bool], seconds: float) -> bool:
    """Waits until the condition is true. Returns false if it is not true in time."""
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() >= end:
            return False
        time.sleep(0.02)
    return True


def _descendants() -> list[int]:
    return guard.descendants(os.getpid())


def _is_rank(process: int) -> bool:
    """True if the process is a rank, or a descendant of a rank."""
    try:
        return b"\0OMPI_COMM_WORLD_RANK=" in b"\0" + Path(f"/proc/{process}/environ").read_bytes()
    except OSError:
        return False


def _adopt_orphans() -> None:
    """Makes descendants that lose their parent children of this process, so that they are found at the end of a job."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        raise Error(f"prctl(PR_SET_CHILD_SUBREAPER): {os.strerror(ctypes.get_errno())}")


def _exit_by_signal(number: int, _: object) -> None:
    raise SystemExit(128 + number)
