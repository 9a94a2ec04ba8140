"""Runs a plan: prepares hosts, writes a file, runs a command, and returns the command's exit code."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from .._base.errors import Error
from . import supervise
from .command import _OWN
from .ends import Ends
from .job import Plan, Step
from .watch import watch

_AT_ONCE = 16  # hosts
_PACKAGES = {
    "mpirun": "Open MPI (Debian: openmpi-bin)",
    "ssh": "OpenSSH (Debian: openssh-client)",
    "rsync": "rsync (Debian: rsync)",
    "sbatch": "Slurm's commands (Debian: slurm-client); this is for hosts that submit jobs to Slurm",
    "qsub": "Grid Engine's commands (Debian: gridengine-client); this is for hosts that submit jobs to Grid Engine",
}


def start(plan: Plan, tolerates_workers: bool, workers: int, servers: int) -> int:
    """Returns the exit code of the plan's command. For mpirun it is that of the first rank that failed.

    Args:
      plan: the plan to run.
      tolerates_workers: failed workers do not change the exit code, as long as one worker succeeds.
      workers, servers: their numbers in the job.

    Raises:
      Error: a program is missing, a host cannot be reached, or the copy cannot be written there.
    """
    for command in (*(step.command for step in plan.steps), plan.command):
        _check_is_there(command)
    supervise.prepare_process()
    _prepare(plan.steps)
    if plan.file:
        _write(plan.file, plan.text)
    if not plan.command:
        say(f"written to {plan.file}")
        return 0
    environment = {**plan.environment, **{name: value for name, value in os.environ.items() if name not in _OWN}}
    if not plan.supervised:
        return subprocess.run(plan.command, env=environment, check=False).returncode
    ends = Ends(workers, servers, tolerates_workers)
    code, overdue = watch(plan.command, environment, ends, may_outlive_local_ranks=tolerates_workers)
    for line in overdue + (ends.last_words(code) if code != 0 else []):
        say(line)
    return code


def say(text: str) -> None:
    print(f"lockstep launch: {text}", file=sys.stderr, flush=True)


def _check_is_there(command: Sequence[str]) -> None:
    if command and shutil.which(command[0]) is None:
        what = _PACKAGES.get(command[0])
        raise Error(f"there is no program {command[0]} on this host" + (f": install {what}" if what else ""))


def _prepare(steps: Sequence[Step]) -> None:
    """Runs the steps of each host in order, and different hosts at the same time."""
    by_host: dict[str, list[Step]] = {}
    for step in steps:
        by_host.setdefault(step.host, []).append(step)
    pool = ThreadPoolExecutor(_AT_ONCE)
    try:
        failures = [failure for failure in pool.map(_first_failure, by_host.values()) if failure]
    except BaseException:  # such as a signal to this process
        pool.shutdown(wait=False, cancel_futures=True)
        supervise.kill_descendants()
        raise
    if failures:
        raise Error("; ".join(failures))


def _first_failure(steps: Sequence[Step]) -> str:
    quiet = {"stdin": subprocess.DEVNULL, "capture_output": True, "text": True, "errors": "replace"}
    for step in steps:
        try:
            done = subprocess.run(step.command, timeout=step.seconds, check=False, **quiet)
        except subprocess.TimeoutExpired:
            return f"{step.what}: not done in {step.seconds:.0f} s"
        if done.returncode != 0:
            said = " ".join((done.stderr or done.stdout).split()) or "without output"
            return f"{step.what}: exit code {done.returncode}, {said}"
    return ""


def _write(path: str, text: str) -> None:
    try:
        Path(path).write_bytes(os.fsencode(text))
    except OSError as error:
        raise Error(f"{path} cannot be written: {error.strerror}") from None
