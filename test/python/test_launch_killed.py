"""When `lockstep launch` or its mpirun is killed, nothing of the job is left."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from test_launch import ENVIRONMENT, LOCKSTEP, await_lines, processes_with, start_waiting


def mpirun_of(launcher: int) -> int:
    """The launcher's child that is mpirun, or starter.py; its other child is the guard."""
    children = Path(f"/proc/{launcher}/task/{launcher}/children").read_text().split()
    (mpirun,) = (each for each in children if "guard.py" not in Path(f"/proc/{each}/cmdline").read_text())
    return int(mpirun)


def await_none(mark: str) -> None:
    end = time.monotonic() + 15
    while left := processes_with(mark):
        assert time.monotonic() < end, [Path(f"/proc/{each}/cmdline").read_bytes() for each in left]
        time.sleep(0.1)


def test_ranks_do_not_outlive_an_mpirun_that_is_killed(how: str) -> None:
    mark = f"launch-{os.getpid()}-killed"
    job = start_waiting(how, mark, "trap '' TERM; echo ready; sleep 100; sleep 100")
    os.kill(mpirun_of(job.pid), signal.SIGKILL)
    assert job.wait(30) == 137
    assert not processes_with(mark)


def test_ranks_do_not_outlive_a_launcher_that_is_killed(how: str) -> None:
    """The ranks print nothing, so they do not notice a broken pipe; they refuse to end, and start a process outside
    their group.
    """
    mark = f"launch-{os.getpid()}-orphans"
    job = start_waiting(how, mark, "trap '' TERM; setsid sleep 100 & echo ready; sleep 100; sleep 100")
    assert len(processes_with(mark)) >= 9
    job.kill()
    job.wait()
    await_none(mark)


def test_nor_one_of_elastic() -> None:
    mark = f"elastic-{os.getpid()}-orphans"
    command = [LOCKSTEP, "elastic", "--", "mpirun", "-np", "2", "sh", "-c", "echo ready; sleep 100; sleep 100"]
    environment = {**ENVIRONMENT, "MARK_OF_JOB": mark}
    job = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)
    await_lines(job, 2)
    job.kill()
    job.wait()
    await_none(mark)


def test_a_launcher_that_is_killed_leaves_no_memory_of_ranks() -> None:
    program = """
import os, time, lockstep as ls
ls.Communicator.mpi().barrier()
print(f"{int(os.environ['PMIX_NAMESPACE']):x}", flush=True)
time.sleep(100)
"""
    mark = f"launch-{os.getpid()}-memory"
    environment = {**ENVIRONMENT, "MARK_OF_JOB": mark}
    command = [LOCKSTEP, "launch", "-n", "2", sys.executable, "-c", program]
    job = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)
    assert job.stdout is not None
    names = {job.stdout.readline().split()[-1] for _ in range(2)}
    (name,) = names

    def files() -> list[Path]:
        return list(Path("/dev/shm").glob(f"*.{name}.*"))

    assert len(files()) == 2, "one file of Open MPI for each rank"
    job.kill()
    job.wait()
    await_none(mark)
    assert not files()
