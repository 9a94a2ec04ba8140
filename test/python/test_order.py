"""Communicator.mpi(order="rank"): the bits of a sum do not depend on how ranks are distributed over hosts. With
virtual ranks they do not depend on the number of ranks either.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

import lockstep as ls
from order import digest
from ranks import run_in_threads

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent / "hosts"))

import hosts

pytestmark = pytest.mark.skipif(bool(hosts.why_not()), reason=f"no hosts on this machine: {hosts.why_not()}")


def on_hosts(ranks: list[int], order: str, folder: Path, *virtual_ranks: str) -> str:
    """The digest of the ranks' states, which must be equal on all."""
    with hosts.Hosts(len(ranks)) as these:
        done = these.mpirun(
            ranks,
            sys.executable,
            HERE / "mpi_order.py",
            folder,
            order,
            *virtual_ranks,
            timeout=120,
            capture_output=True,
        )
    assert done.returncode == 0, done.stderr
    (told,) = {(folder / str(rank)).read_text() for rank in range(sum(ranks))}
    size, found = told.split()
    assert size == str(sum(ranks))
    return found


def test_rank_order_gives_the_same_bits_however_ranks_are_placed(tmp_path: Path) -> None:
    expected, *_ = run_in_threads(4, digest)  # threads share memory and add in the order of ranks
    for ranks in ([2, 2], [1, 3]):
        assert on_hosts(ranks, "rank", tmp_path) == expected, ranks
    assert on_hosts([2, 2], "any", tmp_path) != expected, "the bits of this run do not depend on the order"


def test_virtual_ranks_give_the_same_bits_on_any_number_of_ranks_and_hosts(tmp_path: Path) -> None:
    expected = digest(ls.Communicator.single(), 8)
    for ranks in ([1, 1], [1, 3]):
        assert on_hosts(ranks, "any", tmp_path, "8") == expected, ranks
