"""Ranks that are processes fork and make many communicators; and how tests run ranks."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

import lockstep as ls
from ranks import mpirun, run_in_threads

HERE = Path(__file__).parent


@pytest.mark.parametrize("mode", ["exit", "raise", "abort", "multiprocessing"])
def test_a_forked_process_does_nothing_to_the_job(mode: str) -> None:
    done = mpirun(2, HERE / "mpi_fork.py", mode, timeout=60)
    assert done.returncode == 0, done.stderr
    for rank in range(2):
        assert f"rank {rank} of 2 worked on" in done.stdout
    assert ("of the child alone" in done.stderr) == (mode == "raise")
    assert "gave up" not in done.stderr


def test_an_mpirun_that_outlives_its_ranks_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake = tmp_path / "mpirun"
    fake.write_text("#!/bin/sh\nsleep 0.5\necho the ranks are gone\nexec python3 -c 'import time; time.sleep(60)'\n")
    fake.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    begin = time.monotonic()
    monkeypatch.setattr("ranks.LINGER", 1.0)
    done = mpirun(1, "-c", "pass", timeout=40)
    assert time.monotonic() - begin < 30
    assert done.returncode != 0
    assert done.stdout == "the ranks are gone\n"


def test_a_check_that_fails_on_a_rank_that_is_a_thread_fails_the_test() -> None:
    """pytest's own exceptions are not subclasses of Exception, which tests look for in results."""

    def body(world: ls.Communicator) -> None:
        if world.rank == 1:
            with pytest.raises(ls.Error):
                pass
        world.barrier()

    with pytest.raises(pytest.fail.Exception, match="DID NOT RAISE Error"):
        run_in_threads(2, body)


def test_communicators_leave_nothing_behind() -> None:
    done = mpirun(2, HERE / "mpi_many_communicators.py", 2000, timeout=300)
    for rank in range(2):
        assert f"rank {rank} of 2 made 2000" in done.stdout, done.stderr
    assert done.returncode != 0
    assert "ValueError: at the end" in done.stderr
    assert "RecursionError" not in done.stderr
