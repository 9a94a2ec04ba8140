"""`lockstep elastic`: runs mpirun, and restarts it after a failure on the remaining hosts, from a checkpoint. Programs
without mpirun are the business of stay.py.

This process computes nothing and is not a rank. Before a restart it ends all processes that the job left on this host.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from .._base.errors import Error
from . import stay, supervise
from .ends import Ends
from .mpirun import RANK
from .watch import watch

PROBE_SECONDS = 20.0  # for a host to answer
PAUSE_SECONDS = 10.0  # before hosts are asked again after too few have answered
_LAUNCHERS = ("mpirun", "mpiexec", "orterun")
_TAGS = ("--tag-output", "-tag-output")  # options of mpirun, with which lines begin with the rank's name
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


def run(
    command: Sequence[str], restarts: int, hosts: str | None, min_ranks: int | None, ranks: int | None = None
) -> int:
    """Runs the job until it succeeds or has failed too often. Call once, in a process that does nothing else.

    Args:
      command: `mpirun PROGRAM …`; or, with `hosts` or `ranks`, the program of each rank, which calls lockstep.elastic.run.
      restarts: the largest number of restarts.
      hosts: "h0:2,h1:2", the hosts with their numbers of ranks. None leaves them to the command.
      min_ranks: the job continues as long as this many ranks remain. None with mpirun: all ranks; otherwise 1.
      ranks: their number on this host, without mpirun.

    Returns:
      The job's last exit code.

    Raises:
      Error: an argument is invalid, or a process of the job could not be ended.
    """
    if restarts < 0:
        raise Error(f"--restart is {restarts}, expected at least 0")
    if not command or Path(command[0]).name not in _LAUNCHERS:
        return stay.run(command, *_places_without_mpirun(command, hosts, min_ranks, ranks), restarts)
    if ranks is not None:
        raise Error("-n is for a program without mpirun; with mpirun, use its -np")
    if " " in sys.executable + RANK:
        raise Error(f"mpirun cannot start ranks by {sys.executable} {RANK}: one of the paths has a space")
    places = _hosts_of(hosts) if hosts is not None else {}
    if places:
        _check_leaves_places(command)
    least = _least_ranks(min_ranks, places)
    supervise.prepare_process()
    return _attempts(command, restarts, places, least)


def _places_without_mpirun(
    command: Sequence[str], hosts: str | None, min_ranks: int | None, ranks: int | None
) -> tuple[dict[str, int], int]:
    """Returns the ranks of each host, "" for this one, and the smallest number of ranks."""
    if not command:
        raise Error("the command after -- is missing, expected mpirun")
    if hosts is None and ranks is None:
        raise Error(
            f"the command after -- is {command[0]}, expected mpirun; a program that calls lockstep.elastic.run needs -n or "
            "--hosts"
        )
    if hosts is not None and ranks is not None:
        raise Error("-n is for ranks on this host: leave it out, or --hosts")
    if ranks is not None and ranks < 1:
        raise Error(f"-n is {ranks}, expected at least 1")
    if shutil.which(command[0]) is None:
        raise Error(f"there is no program {command[0]} on this host")
    places = _hosts_of(hosts) if hosts is not None else {"": ranks or 1}
    everyone = sum(places.values())
    if min_ranks is not None and not 1 <= min_ranks <= everyone:
        raise Error(f"--min-ranks is {min_ranks}, expected 1 to {everyone}, the ranks at the start")
    return places, min_ranks or 1


def _check_leaves_places(command: Sequence[str]) -> None:
    """Raises an Error if mpirun's options, which end at the program, include one that --hosts replaces."""
    for option in command[1:]:
        if shutil.which(option) is not None:
            return
        if option in _PLACES:
            raise Error(f"the command after -- has {option}, but --hosts also places the ranks: leave out one")


def _hosts_of(text: str) -> dict[str, int]:
    """Returns the ranks of each host, from "h0:2,h1:2". A host without a number has one rank."""
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
        raise Error("--min-ranks requires --hosts")
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
        ends, names_ranks = Ends(), any(option in command for option in _TAGS)
        code, overdue = watch(_with_options(command, left), _environment(attempt), ends, names_ranks=names_ranks)
        for reason in overdue:
            _say(reason)
        if code == 0:
            return 0
        _say(f"the job failed after {time.monotonic() - begin:.0f} s, exit code {code}")
        for failure in ends.failures():
            _say(failure)
    return code


def _text(hosts: Mapping[str, int]) -> str:
    return ",".join(f"{host}:{count}" for host, count in hosts.items())


def _with_options(command: Sequence[str], hosts: Mapping[str, int]) -> list[str]:
    places = ["-np", str(sum(hosts.values())), "--host", _text(hosts)] if hosts else []
    options = ["--tag-output", "--mca", "orte_fork_agent", f"{sys.executable} {RANK}"]  # for output.py and ends.py
    return [command[0], *options, *places, "-x", "LOCKSTEP_ATTEMPT", *command[1:]]


def _environment(attempt: int) -> dict[str, str]:
    return {**supervise.KEEP_ALIVE, **os.environ, "LOCKSTEP_ATTEMPT": str(attempt)}


def _hosts_that_answer(launcher: str, hosts: Mapping[str, int]) -> dict[str, int]:
    """Returns the hosts on which mpirun can start a program. Asks them one by one, because concurrent mpiruns disturb
    each other when they start or end."""
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
        return supervise.wait_until(lambda: probe.poll() is not None, PROBE_SECONDS) and probe.returncode == 0
    finally:
        supervise.end(probe)


def _say(text: str) -> None:
    print(f"lockstep elastic: {text}", file=sys.stderr, flush=True)
