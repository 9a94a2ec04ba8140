"""The collectives over arrays that the package's own Python code uses."""

from __future__ import annotations

import gc
from pathlib import Path

import numpy as np
import pytest

import lockstep as ls
from lockstep import _lockstep
from ranks import errors_of, mpirun, run_in_threads
from raw_collectives import check

PROGRAM = Path(__file__).with_name("raw_collectives.py")
FLOATS = np.zeros(4, np.float32)


@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
def test_threads(ranks: int) -> None:
    assert run_in_threads(ranks, check) == [ranks] * ranks


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_processes(ranks: int, tmp_path: Path) -> None:
    done = mpirun(ranks, PROGRAM, tmp_path)
    assert done.returncode == 0, done.stderr
    assert [(tmp_path / str(rank)).read_text() for rank in range(ranks)] == [str(ranks)] * ranks


def test_calls_that_differ_name_both_sides() -> None:
    def body(world: ls.Communicator) -> None:
        count = 4 if world.rank == 0 else 5
        own = np.zeros(count, np.float32)
        _lockstep._wait(world, _lockstep._start_all_reduce(world, own, own, "f32", "sum", f"of rank {world.rank}"))

    for message in errors_of(2, body):
        assert "of rank 0" in message and "of rank 1" in message


def test_a_rank_that_gives_its_communicator_up_in_flight_fails_its_peers() -> None:
    first, second = ls.Communicator.in_process(2)
    _lockstep._start_all_reduce(first, FLOATS.copy(), FLOATS.copy(), "f32", "sum", "left alone")
    del first
    gc.collect()
    with pytest.raises(ls.Error, match="rank 0 .* destroyed its communicator with collectives in flight"):
        _lockstep._start_all_reduce(second, FLOATS.copy(), FLOATS.copy(), "f32", "sum", "left alone")


READ_ONLY = np.zeros(4, np.float32)
READ_ONLY.flags.writeable = False


@pytest.mark.parametrize(
    ("input", "output", "dtype", "kind", "message"),
    [
        ([1.0], FLOATS, "f32", "sum", "all_reduce: input is a list, expected an array"),
        (FLOATS[::2], FLOATS[:2], "f32", "sum", "all_reduce: input is an array of dtype float32, expected .*row-major"),
        (FLOATS, READ_ONLY, "f32", "sum", "all_reduce: output is .*that may be written"),
        (FLOATS, np.zeros(3, np.float32), "f32", "sum", "input has 4 elements and output 3, expected 4"),
        (FLOATS, FLOATS, "f31", "sum", 'all_reduce: dtype is "f31"'),
        (FLOATS, FLOATS, "f32", "median", 'all_reduce: kind is "median", expected "sum"'),
        (np.zeros(3, np.uint8), FLOATS, "f32", "sum", "all_reduce: input has 3 bytes, expected whole f32"),
    ],
)
def test_wrong_arguments(input: object, output: np.ndarray, dtype: str, kind: str, message: str) -> None:
    world = ls.Communicator.single()
    with pytest.raises(ls.Error, match=message):
        _lockstep._start_all_reduce(world, input, output, dtype, kind, "x")
    _lockstep._wait(world, _lockstep._start_all_reduce(world, FLOATS, FLOATS, "f32", "sum", "afterwards"))


def test_wrong_counts_roots_and_tickets() -> None:
    def body(world: ls.Communicator) -> list[str]:
        messages = []
        three, two = np.zeros(3, np.float32), np.zeros(2, np.float32)
        for wrong in (
            lambda: _lockstep._start_all_gather(world, two, three, "f32", "g"),
            lambda: _lockstep._start_all_to_all(world, three, three.copy(), "f32", "a"),
            lambda: _lockstep._start_reduce_scatter(world, three, two, "f32", "sum", "r"),
            lambda: _lockstep._start_broadcast(world, two, two, "f32", 2, "b"),
            lambda: _lockstep._wait(world, 12345),
            lambda: _lockstep._allocate(world, -1, "m"),
        ):
            with pytest.raises(ls.Error) as raised:
                wrong()
            messages.append(str(raised.value))
        return messages

    for gather, to_all, scatter, broadcast, wait, memory in run_in_threads(2, body):
        assert "input has 2 elements and output 3, expected 4" in gather
        assert "input has 3 elements, expected a multiple of 2" in to_all
        assert "input has 3 elements, expected a multiple of 2" in scatter
        assert "2" in broadcast and "root" in broadcast
        assert "12345 is not a collective in flight" in wait
        assert "bytes is -1" in memory
