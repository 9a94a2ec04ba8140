"""Checkpoints of ranks that are processes: on 1, 2 and 3 ranks, and errors of rank 0 when it writes."""

from __future__ import annotations

import json
import os
import re
import tempfile
from pathlib import Path
from typing import Any

import pytest

import lockstep as ls
from lockstep._checkpoint.checkpoint import on_all_ranks
from ranks import mpirun, run_in_threads
from test_checkpoint import compiled, run
from test_mesh import digests_of

HERE = Path(__file__).parent


def ranks_of(n: int, mode: str, folder: Path, path: Path) -> list[dict[str, Any]]:
    """The reports of n ranks."""
    folder.mkdir()
    done = mpirun(n, HERE / "mpi_checkpoint.py", mode, folder, path, cwd=path.parent)
    assert done.returncode == 0, done.stderr
    reports = [json.loads((folder / f"{rank}.json").read_text()) for rank in range(n)]
    assert [report["size"] for report in reports] == [n] * n
    return reports


def digests_in_threads(n: int, path: Path) -> list[dict[str, str]]:
    def body(world: ls.Communicator) -> dict[str, str]:
        exe = compiled(world)
        exe.load(path)
        run(exe, 3, 7)
        return digests_of(exe)

    return run_in_threads(n, body)


def test_runs_go_on_with_other_numbers_of_ranks(tmp_path: Path) -> None:
    path = tmp_path / "c.safetensors"
    uninterrupted = ranks_of(2, "train", tmp_path / "train", path)
    for n in (1, 2, 3):
        resumed = ranks_of(n, "resume", tmp_path / f"resume{n}", path)
        assert [report["metadata"] for report in resumed] == [{"step": 3, "note": "half"}] * n
        assert [report["digests"] for report in resumed] == digests_in_threads(n, path)
        if n == 2:
            assert [r["digests"] for r in resumed] == [r["digests"] for r in uninterrupted]


@pytest.mark.parametrize(
    ("mode", "what"),
    [
        ("full", "rank 0 on host .*: {path}: File too large"),
        ("forbidden", "rank 0 on host .*: {path}: Permission denied"),
        ("hidden", "rank 1 on host .*: c.safetensors: No such file or directory"),
    ],
)
def test_what_one_rank_meets_is_raised_on_all_and_the_old_file_stays(mode: str, what: str, tmp_path: Path) -> None:
    if mode == "forbidden" and os.geteuid() != 0:
        pytest.skip("only root can change its user")
    with tempfile.TemporaryDirectory() as folder:  # not in tmp_path, which only root can read
        os.chmod(folder, 0o755)
        refused(mode, what, Path(folder) / "c.safetensors", tmp_path)


def refused(mode: str, what: str, path: Path, tmp_path: Path) -> None:
    compiled().save(path)
    content = path.read_bytes()
    reports = ranks_of(3, mode, tmp_path / mode, path)
    for report in reports:
        assert report["errors"] == reports[0]["errors"]
        assert len(report["errors"]) == (2 if mode == "full" else 1)
        for message in report["errors"]:
            assert re.fullmatch(what.format(path=re.escape(str(path))), message), message
    assert len({json.dumps(report["digests"]) for report in reports}) == 1, "the ranks continue"
    assert path.read_bytes() == content
    assert os.listdir(path.parent) == [path.name]


def test_who_ends_because_of_another_is_not_blamed() -> None:
    """Each rank names the rank with the error, even if others end their world at once because of it, like a program
    that ends.
    """

    def refuse() -> str:
        raise ls.Error("the disk is full")

    def body(world: ls.Communicator) -> str:
        try:
            on_all_ranks(world, "save()", refuse if world.rank == 0 else str)
        except ls.Error as error:
            world.abort(f"Error: {error}")
            return str(error)
        return "nothing"

    for _ in range(60):
        for message in run_in_threads(4, body):
            assert re.fullmatch(r"rank 0 on host \S+: the disk is full", message), message
