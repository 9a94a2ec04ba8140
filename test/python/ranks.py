"""Ranks for tests: threads of this process, or processes under mpirun."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Callable
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


def run_in_threads(n: int, body: Callable[[ls.Communicator], Any], timeout: float = 120) -> list[Any]:
    """Calls body(world) on n ranks, each a thread; returns the results by rank, an exception where one was raised."""
    worlds = ls.Communicator.in_process(n)
    results: list[Any] = [None] * n

    def run(rank: int) -> None:
        try:
            results[rank] = body(worlds[rank])
        except Exception as error:  # noqa: BLE001 (whatever it is, the test gets it)
            worlds[rank].abort(str(error))
            results[rank] = error

    threads = [threading.Thread(target=run, args=(rank,), daemon=True) for rank in range(n)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout)
        assert not thread.is_alive(), f"a rank hangs after {timeout} s"
    return results


def mpirun(
    n: int, *arguments: str | Path, timeout: float = 120, cwd: Path | None = None
) -> subprocess.CompletedProcess[str]:
    """Runs a Python program on n processes and returns what they printed, whatever their exit code."""
    command = ["mpirun", "-np", str(n), sys.executable, *map(str, arguments)]
    return subprocess.run(
        command,
        capture_output=True,
        text=True,
        timeout=timeout,
        env={**os.environ, **MPI_ENVIRONMENT},
        cwd=cwd,
        check=False,
    )
