"""lockstep.horovod.torch under mpirun: the cases of mpi_horovod.py, ranks that differ or die, and restarted jobs."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import lockstep as ls
from ranks import MPI_ENVIRONMENT, mpirun

torch = pytest.importorskip("torch")

HERE = Path(__file__).parent
PROGRAM = HERE / "mpi_horovod.py"
LOCKSTEP = HERE.parents[1] / "tools" / "lockstep"
sys.path.insert(0, str(HERE.parent / "hosts"))

import hosts

CASES = [HERE / "horovod_calls.py", HERE / "horovod_training.py"]
NUMBER_OF_CASES = sum(path.read_text().count("\n@case\n") for path in CASES)


def assert_all_ran(folder: Path, ranks: int) -> None:
    assert NUMBER_OF_CASES == 24
    for rank in range(ranks):
        size, *cases = (folder / str(rank)).read_text().split()
        assert int(size) == ranks
        assert len(set(cases)) == NUMBER_OF_CASES


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_all_calls(ranks: int, tmp_path: Path) -> None:
    done = mpirun(ranks, PROGRAM, tmp_path, timeout=300)
    assert done.returncode == 0, done.stderr
    assert_all_ran(tmp_path, ranks)


@pytest.mark.skipif(bool(hosts.why_not()), reason=f"no hosts on this machine: {hosts.why_not()}")
@pytest.mark.everything
def test_all_calls_between_hosts(tmp_path: Path) -> None:
    with hosts.Hosts(2) as these:
        done = these.mpirun([2, 1], sys.executable, PROGRAM, tmp_path, timeout=300, capture_output=True)
    assert done.returncode == 0, done.stderr
    assert_all_ran(tmp_path, 3)


# Texts that both ranks' messages must contain.
DIFFERENT = {
    "shapes": [
        "rank 0 allreduce 'gradient' (dtype f32, shape [3]",
        "rank 1 allreduce 'gradient' (dtype f32, shape [4]",
    ],
    "names": ["rank 0 allreduce 'left'", "rank 1 allreduce 'right'"],
    "calls": ["rank 0 allreduce", "rank 1 broadcast"],
    "columns": ["rank 0 allgather", "row [3]", "rank 1 allgather", "row [4]"],
    "joined-min": ["rank 1 allreduce", "kind min", "needs all ranks, but [0] have called join()"],
    "joined-root": ["rank 1 broadcast", "root 0", "needs all ranks, but [0] have called join()"],
    "step": ["rank 0 step", "rank 1 allreduce"],
}


def test_ranks_that_differ_are_told_both_sides(tmp_path: Path) -> None:
    done = mpirun(2, HERE / "mpi_horovod_failure.py", tmp_path, *DIFFERENT)
    assert done.returncode == 0, done.stderr
    for mode, texts in DIFFERENT.items():
        for rank in range(2):
            message = (tmp_path / f"{mode}.{rank}").read_text()
            assert all(text in message for text in texts), f"{mode}: {message}"


def test_a_rank_that_dies_is_named(tmp_path: Path) -> None:
    done = mpirun(2, HERE / "mpi_horovod_failure.py", tmp_path, "dead")
    assert done.returncode != 0
    assert not (tmp_path / "dead.1").exists()
    message = (tmp_path / "dead.0").read_text()
    assert "rank 1" in message and "died" in message


def elastic(folder: Path, *arguments: str) -> list[tuple[int, int, dict[str, torch.Tensor]]]:
    """The final facts of the ranks: their number, the epoch in which the last attempt began, and the model's state."""
    folder.mkdir()
    command = [LOCKSTEP, "elastic", "--restart", "2", "--", "mpirun", "-np", "2", sys.executable]
    subprocess.run(
        [*map(str, command), str(HERE / "mpi_horovod_elastic.py"), str(folder), *arguments],
        env={**os.environ, **MPI_ENVIRONMENT},
        cwd=folder,
        timeout=240,
        check=True,
        capture_output=True,
    )
    return [torch.load(folder / f"{rank}.pt") for rank in range(2)]


@pytest.mark.everything
def test_a_job_that_is_started_again_goes_on_from_its_commit(tmp_path: Path) -> None:
    expected, found = elastic(tmp_path / "whole"), elastic(tmp_path / "again", "die")
    assert [(size, begin) for size, begin, _ in expected] == [(2, 0)] * 2
    begins = {(size, begin) for size, begin, _ in found}
    assert begins in ({(2, 4)}, {(2, 5)})  # rank 0 may have committed before it noticed
    for (_, _, mine), (_, _, theirs) in zip(found, expected, strict=True):
        assert mine.keys() == theirs.keys()
        assert all(torch.equal(mine[name], theirs[name]) for name in mine)


def test_every_public_name_is_there_and_used() -> None:
    import lockstep.horovod.torch as hvd

    programs = "".join(path.read_text() for path in [*CASES, PROGRAM, *HERE.glob("mpi_horovod_*.py")])
    assert len(hvd.__all__) > 50
    for name in hvd.__all__:
        assert hasattr(hvd, name)
        assert name in ("Handle", "ReduceOp") or f"hvd.{name}" in programs, f"no test calls hvd.{name}"


def test_before_init() -> None:
    import lockstep.horovod.torch as hvd

    assert not hvd.is_initialized()
    module = torch.nn.Linear(2, 2)
    for call in (
        hvd.rank,
        hvd.size,
        hvd.join,
        hvd.barrier,
        lambda: hvd.allreduce(torch.ones(2)),
        lambda: hvd.DistributedOptimizer(torch.optim.SGD(module.parameters(), 0.1)),
    ):
        with pytest.raises(ls.Error, match=r"hvd.init\(\) has not been called"):
            call()
    with pytest.raises(ls.Error, match="comm is 'world'"):
        hvd.init("world")
    with pytest.raises(AttributeError, match="has no 'allreduces'"):
        hvd.allreduces  # noqa: B018


@pytest.mark.parametrize("name", ["tensorflow", "keras"])
def test_what_is_not_there_says_so(name: str) -> None:
    with pytest.raises(
        ls.Error, match=r"lockstep.horovod.torch; train models of TensorFlow and Keras .*docs/frameworks.md"
    ):
        __import__(f"lockstep.horovod.{name}")


def test_the_package_does_not_import_torch() -> None:
    code = "import sys, lockstep, lockstep.horovod; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
