"""`lockstep elastic`: runs mpirun, and after a failure again, on the hosts that are left; the program goes on from its checkpoint.

This process computes nothing and is no rank. What the job leaves on this host it ends before it goes on.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from ._errors import Error

PROBE_SECONDS = 20.0  # in which a host has to answer
PAUSE_SECONDS = 10.0  # before hosts are asked again, where too few have answered
LINGER_SECONDS = 10.0  # that mpirun gets when the ranks of this host have ended: it may wait for a host that is gone
GRACE_SECONDS = 5.0  # between SIGTERM and SIGKILL
_LAUNCHERS = ("mpirun", "mpiexec", "orterun")
_PLACES = (
    "-n",
    "--n",
    "-np",
    "--np",
    "-c",
    "--host",
    "-host",
    "-H",
    "--hostfile",
    "-hostfile",
    "--machinefile",
    "-machinefile",
)
_PR_SET_CHILD_SUBREAPER = 36

# Open MPI's own daemons would notice after minutes only that a host is gone. Ranks notice it after 15 s, and end by themselves.
_KEEP_ALIVE = {"time": "10", "intvl": "2", "probes": "10"}


def run(command: Sequence[str], restarts: int, hosts: str | None, min_ranks: int | None) -> int:
    """Runs the job until it succeeds or has failed too often. Once in a process, which is nothing else.

    Args:
      command: `mpirun PROGRAM …`.
      restarts: how often it is run again at most.
      hosts: "h0:2,h1:2", the hosts with the ranks of each; None leaves them to the command.
      min_ranks: hosts that do not answer are left out while there are so many ranks; None: none is.

    Returns:
      The job's last exit code.

    Raises:
      Error: of the arguments; or a process of the job could not be ended.
    """
    if not command or Path(command[0]).name not in _LAUNCHERS:
        raise Error(f"the command after -- is {command[0] if command else 'missing'}, expected mpirun")
    if restarts < 0:
        raise Error(f"--restart is {restarts}, expected at least 0")
    places = _hosts_of(hosts) if hosts is not None else {}
    if places:
        _check_leaves_places(command)
    least = _least_ranks(min_ranks, places)
    _adopt_orphans()
    signal.signal(signal.SIGTERM, _exit_by_signal)
    signal.signal(signal.SIGINT, _exit_by_signal)
    return _attempts(command, restarts, places, least)


def _check_leaves_places(command: Sequence[str]) -> None:
    """Of mpirun's options, which end where a program begins: those that --hosts stands for would be there twice."""
    for option in command[1:]:
        if shutil.which(option) is not None:
            return
        if option in _PLACES:
            raise Error(f"the command after -- has {option}, and --hosts says how many ranks run where: leave out one")


def _hosts_of(text: str) -> dict[str, int]:
    """The ranks of each host, from "h0:2,h1:2"; a host without a number has one."""
    hosts: dict[str, int] = {}
    for part in text.split(","):
        host, colon, count = part.partition(":")
        if not host or (colon and not (count.isdecimal() and int(count) > 0)):
            raise Error(f"--hosts: {part!r} is not HOST or HOST:N")
        if host in hosts:
            raise Error(f"--hosts: {host} is there twice")
        hosts[host] = int(count) if colon else 1
    return hosts


def _least_ranks(min_ranks: int | None, hosts: Mapping[str, int]) -> int:
    everyone = sum(hosts.values())
    if min_ranks is None:
        return everyone
    if not hosts:
        raise Error("--min-ranks: --hosts says which there are")
    if not 1 <= min_ranks <= everyone:
        raise Error(f"--min-ranks is {min_ranks}, expected 1 to {everyone}, the ranks of --hosts")
    return min_ranks


def _attempts(command: Sequence[str], restarts: int, hosts: Mapping[str, int], least: int) -> int:
    code, left = 1, dict(hosts)
    for attempt in range(restarts + 1):
        if attempt > 0 and hosts:
            left = _hosts_that_answer(command[0], hosts)
            if sum(left.values()) < least:
                _say(f"restart {attempt} of {restarts}: {sum(left.values())} ranks are left, {least} are needed")
                time.sleep(PAUSE_SECONDS if attempt < restarts else 0)
                continue
        if attempt > 0:
            _say(f"restart {attempt} of {restarts}" + (f" on {_text(left)}" if hosts else ""))
        begin = time.monotonic()
        code = _run(_with_options(command, left), _environment(attempt))
        if code == 0:
            return 0
        _say(f"the job failed after {time.monotonic() - begin:.0f} s, exit code {code}")
    return code


def _text(hosts: Mapping[str, int]) -> str:
    return ",".join(f"{host}:{count}" for host, count in hosts.items())


def _with_options(command: Sequence[str], hosts: Mapping[str, int]) -> list[str]:
    places = ["-np", str(sum(hosts.values())), "--host", _text(hosts)] if hosts else []
    return [command[0], *places, "-x", "LOCKSTEP_ATTEMPT", *command[1:]]


def _environment(attempt: int) -> dict[str, str]:
    keep_alive = {f"OMPI_MCA_oob_tcp_keepalive_{name}": value for name, value in _KEEP_ALIVE.items()}
    return {**keep_alive, **os.environ, "LOCKSTEP_ATTEMPT": str(attempt)}


def _hosts_that_answer(launcher: str, hosts: Mapping[str, int]) -> dict[str, int]:
    """Those on which mpirun can start a program. One after the other: mpiruns that begin or end at once disturb each other."""
    answered = {}
    for host, count in hosts.items():
        if _answers([launcher, "-np", "1", "--host", host, "true"]):
            answered[host] = count
        else:
            _say(f"host {host} does not answer")
    return answered


def _answers(command: Sequence[str]) -> bool:
    quiet = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    probe = subprocess.Popen(command, **quiet)
    try:
        return _wait_until(lambda: probe.poll() is not None, PROBE_SECONDS) and probe.returncode == 0
    finally:
        _end(probe)


def _run(command: Sequence[str], environment: Mapping[str, str]) -> int:
    """The exit code of mpirun, which is ended if it stays long after the ranks of this host."""
    job = subprocess.Popen(command, env=environment)
    had_ranks, last_seen = False, 0.0
    try:
        while job.poll() is None:
            now = time.monotonic()
            if any(map(_is_rank, _descendants())):
                had_ranks, last_seen = True, now
            elif had_ranks and now - last_seen > LINGER_SECONDS:
                _say(f"mpirun has not ended in {LINGER_SECONDS:.0f} s since the ranks of this host have")
                job.kill()  # it has been asked to end already, by the failure
            _wait_until(lambda: job.poll() is not None, 0.5)
    finally:
        _end(job)
    return job.returncode if job.returncode >= 0 else 128 - job.returncode


def _end(process: subprocess.Popen[bytes]) -> None:
    """Ends it, and all that it has left on this host."""
    if process.poll() is None:
        process.terminate()
        _wait_until(lambda: process.poll() is not None, GRACE_SECONDS)

    def is_over() -> bool:
        for each in _descendants():
            with suppress(ProcessLookupError):  # it has ended meanwhile
                os.kill(each, signal.SIGKILL)
        if process.poll() is not None:
            _reap()
        return not _descendants()

    if not _wait_until(is_over, GRACE_SECONDS):
        left = ", ".join(map(str, _descendants()))
        raise Error(f"processes of the job do not end, not even by SIGKILL: {left}")


def _reap() -> None:
    """Takes leave of adopted processes that have ended. Requires that nobody asks for the exit code of any child any more."""
    with suppress(ChildProcessError):  # there are no more
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


def _wait_until(condition: Callable[[], bool], seconds: float) -> bool:
    """Whether it has come true in time."""
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() >= end:
            return False
        time.sleep(0.02)
    return True


def _descendants() -> list[int]:
    """The processes below this one, those that have ended but for their parents' notice left out."""
    children: dict[int, list[int]] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, parent = stat.read_text().rpartition(")")[2].split()[:2]
        except OSError:
            continue  # it has ended meanwhile
        if state not in "ZX":
            children.setdefault(int(parent), []).append(int(stat.parent.name))
    found = list(children.get(os.getpid(), ()))
    for each in found:
        found += children.get(each, ())
    return found


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


def _say(text: str) -> None:
    print(f"lockstep elastic: {text}", file=sys.stderr, flush=True)
