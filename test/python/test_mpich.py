"""Ranks under MPICH's mpiexec, and its libraries: with MPICH's own binary interface, and with the standard one."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from ranks import MPI_ENVIRONMENT

MPICH = Path(__file__).parents[2] / ".venv/src/mpich"
LIBRARIES = ["libmpi.so.12", "libmpi_abi.so.1"]
MEET = r"""
import os, lockstep as ls, numpy as np
world = ls.Communicator.mpi()
total = world.all_reduce(np.full(1000, world.rank + 1.0, np.float32))
name = ls._lockstep._mpi_version().partition(" ")[0]
os.write(1, f"found {world.size} {world.transport} {int(total[0])} {name}\n".encode())  # in one piece
"""


def run(*command: object, **environment: str) -> subprocess.CompletedProcess[str]:
    given = {**os.environ, **MPI_ENVIRONMENT, **environment}
    return subprocess.run(list(map(str, command)), env=given, capture_output=True, text=True, timeout=120, check=False)


def mpiexec(ranks: int, *command: object, **environment: str) -> subprocess.CompletedProcess[str]:
    return run(MPICH / "bin/mpiexec", "-n", ranks, sys.executable, *command, **environment)


@pytest.mark.parametrize("library", LIBRARIES)
def test_ranks_meet_by_the_library_of_the_environment(library: str) -> None:
    done = mpiexec(3, "-c", MEET, LOCKSTEP_MPI_LIBRARY=str(MPICH / "lib" / library))
    assert (done.returncode, done.stdout) == (0, "found 3 mpi 6 MPICH\n" * 3), done.stderr


def test_the_library_of_the_mpiexec_is_taken_though_there_is_another() -> None:
    done = mpiexec(2, "-c", MEET, LD_LIBRARY_PATH=str(MPICH / "lib"))
    assert (done.returncode, done.stdout) == (0, "found 2 mpi 3 MPICH\n" * 2), done.stderr


def test_the_library_that_the_process_has_loaded_is_taken() -> None:
    load = f"import ctypes; ctypes.CDLL({str(MPICH / 'lib/libmpi_abi.so.1')!r}); "
    version = "import lockstep; print(lockstep._lockstep._mpi_version())"
    assert run(sys.executable, "-c", version).stdout.startswith("Open MPI")
    found = run(sys.executable, "-c", load + version, LD_LIBRARY_PATH=str(MPICH / "lib"))
    assert found.stdout.startswith("MPICH Version: 5"), found.stderr


@pytest.mark.parametrize(
    ("launcher", "library", "variable", "found"),
    [
        ("mpirun", str(MPICH / "lib/libmpi.so.12"), "OMPI_COMM_WORLD_SIZE", "MPICH Version: "),
        (str(MPICH / "bin/mpiexec"), "libmpi.so.40", "PMI_SIZE", "Open MPI v"),
    ],
)
def test_the_mpirun_of_another_mpi_is_named(launcher: str, library: str, variable: str, found: str) -> None:
    """Without this error each rank would train a model of its own."""
    done = run(launcher, "-n", 2, sys.executable, "-c", MEET, LOCKSTEP_MPI_LIBRARY=library)
    assert done.returncode != 0
    expected = f"as one of 2 ranks ({variable}), and is not of the same MPI as the library, which is {found}"
    assert expected in done.stderr
    assert "LOCKSTEP_MPI_LIBRARY names the library of this mpirun" in done.stderr


def test_an_example_trains() -> None:
    done = mpiexec(
        2, "-m", "lockstep.examples.digits", "--samples", "1280", LOCKSTEP_MPI_LIBRARY=str(MPICH / "lib/libmpi.so.12")
    )
    assert done.returncode == 0, done.stderr
    assert "2 ranks" in done.stdout


@pytest.mark.parametrize(
    ("options", "code", "says"),
    [
        ((), 0, "[worker 0] rank 0\n"),  # without MPI
        (
            ("--launcher", "local"),
            1,
            "--launcher local needs Open MPI's mpirun, and the mpirun on this host is MPICH's or Intel's",
        ),
        (("-s", "1"), 1, "-s needs Open MPI's mpirun, and the mpirun on this host is MPICH's or Intel's"),
    ],
)
def test_lockstep_launch_does_not_take_its_mpirun_for_open_mpis(options: tuple[str, ...], code: int, says: str) -> None:
    path = f"{MPICH}/bin:{os.environ['PATH']}"
    launch = (sys.executable, "-m", "lockstep", "launch", "-n", 2, *options, "--", "sh", "-c", "echo rank $RANK")
    done = run(*launch, PATH=path)
    assert done.returncode == code, done.stderr
    assert says in done.stdout + done.stderr


def test_doctor_names_it() -> None:
    done = run(sys.executable, "-m", "lockstep", "doctor", LOCKSTEP_MPI_LIBRARY=str(MPICH / "lib/libmpi.so.12"))
    line = next(line for line in done.stdout.splitlines() if line.startswith("MPI "))
    assert line.split(maxsplit=1)[1] == f"MPICH Version: 5.0.2  {MPICH}/lib/libmpi.so.12", done.stdout
