"""Ranks for tests: threads of this process, or processes under mpirun."""

from __future__ import annotations

import contextlib
import faulthandler
import gc
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import lockstep as ls

MPI_ENVIRONMENT = {
    "OMPI_ALLOW_RUN_AS_ROOT": "1",
    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    "OMPI_MCA_rmaps_base_oversubscribe": "1",
    "OMPI_MCA_hwloc_base_binding_policy": "none",
    "OMPI_MCA_btl_vader_single_copy_mechanism": "none",
    "OMP_NUM_THREADS": "1",
}


def run_in_threads(n: int, body: Callable[[ls.Communicator], Any], timeout: float = 300) -> list[Any]:
    """Calls body(world) on n ranks, each a thread. Returns the results by rank; if body raised an exception, the
    exception.

    Exceptions of pytest itself, such as that of a `pytest.raises` in which nothing was raised, are raised here too:
    they are not subclasses of Exception, and no test looks for them in results.
    """
    worlds = ls.Communicator.in_process(n)
    results: list[Any] = [None] * n
    outcomes: list[BaseException] = []

    def run(rank: int) -> None:
        try:
            results[rank] = body(worlds[rank])
        except Exception as error:  # noqa: BLE001 (the test gets any exception)
            worlds[rank].abort(str(error))
            results[rank] = error
        except BaseException as error:  # noqa: BLE001 (raised below)
            worlds[rank].abort(str(error))
            outcomes.append(error)

    threads = [threading.Thread(target=run, args=(rank,), daemon=True) for rank in range(n)]
    with _no_collection():
        for thread in threads:
            thread.start()
        for rank, thread in enumerate(threads):
            thread.join(timeout)
            assert not thread.is_alive(), f"rank {rank} hangs after {timeout} s:\n{_stacks()}"
    if outcomes:
        raise outcomes[0]
    return results


@contextlib.contextmanager
def _no_collection() -> Iterator[None]:
    """Turns the collection of cycles off.

    CPython before 3.11.8 counts the depth of ast.parse for all threads together (python/cpython#106905). A collection
    in the midst of it may run a finalizer, which lets another thread parse, and then both raise a SystemError. NumPy
    parses the header of every array that it loads, so ranks that are threads of one process meet this.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def _stacks() -> str:
    """The stack of each thread of this process, the latest call first."""
    with tempfile.TemporaryFile("w+") as file:
        faulthandler.dump_traceback(file, all_threads=True)
        file.seek(0)
        return file.read()


# Seconds that mpirun may run after its ranks have ended. At the end of a failed job Open MPI 4.1 with PMIx 4.2
# sometimes waits for ever for a lock of its own (in PMIx_server_finalize). At the end of any other job it needs some
# time, too.
LINGER = 10.0


def _has_children(process: int) -> bool:
    """True if a process has children that have not ended."""
    for task in Path(f"/proc/{process}/task").glob("*/children"):
        try:
            children = task.read_text().split()
        except OSError:
            continue  # the thread has ended
        for child in children:
            try:
                stat = Path(f"/proc/{child}/stat").read_text()
            except OSError:
                continue
            if stat.rpartition(")")[2].split()[0] not in "ZX":
                return True
    return False


def mpirun(
    n: int, *arguments: str | Path, timeout: float = 120, cwd: Path | None = None
) -> subprocess.CompletedProcess[str]:
    """Runs a Python program on n processes and returns their output, even if they fail.

    An mpirun that does not end after its ranks is killed; the exit code is then not 0.
    """
    command = ["mpirun", "-np", str(n), sys.executable, *map(str, arguments)]
    with subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, **MPI_ENVIRONMENT},
        cwd=cwd,
    ) as job:
        had_ranks, begin, alone_since = False, time.monotonic(), None
        while True:
            try:
                stdout, stderr = job.communicate(timeout=0.1)
                break
            except subprocess.TimeoutExpired:
                pass
            now = time.monotonic()
            has_ranks = _has_children(job.pid)
            had_ranks = had_ranks or has_ranks
            alone_since = (alone_since or now) if had_ranks and not has_ranks else None
            if now - begin > timeout:
                job.kill()
                raise subprocess.TimeoutExpired(command, timeout, *job.communicate())
            if alone_since is not None and now - alone_since > LINGER:
                job.kill()
    return subprocess.CompletedProcess(command, job.returncode, stdout, stderr)


def errors_of(n: int, body: Callable[[ls.Communicator], Any]) -> list[str]:
    """The messages of the ls.Error that every one of n ranks raises. Ranks get them only through Lockstep."""

    def caught(world: ls.Communicator) -> Any:
        try:
            return body(world)
        except ls.Error as error:
            return error

    results = run_in_threads(n, caught, timeout=30)
    assert [type(result) for result in results] == [ls.Error] * n, results
    return [str(result) for result in results]
