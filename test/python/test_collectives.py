"""Collectives over a user's own numbers: all_reduce, broadcast and all_gather of a Communicator, compared with NumPy.

As a program under mpirun it writes the number of ranks to <folder>/<rank> if all results were correct.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import lockstep as ls
from ranks import errors_of, mpirun, run_in_threads

DTYPES = [np.dtype(name) for name in ("?", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f2", "f4", "f8", ">f4")]
KINDS = {"sum": np.sum, "mean": np.mean, "min": np.min, "max": np.max, "prod": np.prod}


def values(rank: int, dtype: np.dtype) -> np.ndarray:
    """Small whole numbers, whose sums and products are exact, in column-major order."""
    return ((np.arange(6).reshape(3, 2) * 7 + rank * 3) % 4 + 1).astype(dtype, order="F")


def assert_same(found: np.ndarray, expected: object, dtype: np.dtype) -> None:
    assert isinstance(found, np.ndarray) and found.dtype == dtype.newbyteorder("=")
    assert found.shape == np.shape(expected)
    np.testing.assert_array_equal(found, expected)


def check(world: ls.Communicator) -> int:
    ranks = range(world.size)
    for dtype in DTYPES:
        own, of_ranks = values(world.rank, dtype), [values(rank, dtype) for rank in ranks]
        before = own.copy()
        if dtype != bool:
            for kind, reduce in KINDS.items():
                expected = reduce(of_ranks, axis=0)
                found = world.all_reduce(own, kind)
                np.testing.assert_allclose(
                    found, expected if dtype.kind == "f" else np.trunc(expected), 1e-3 if dtype.itemsize == 2 else 1e-6
                )
                assert found.dtype == dtype.newbyteorder("=")
        assert_same(world.all_gather(own), of_ranks, dtype)
        for root in ranks:
            assert_same(world.broadcast(own, root), of_ranks[root], dtype)
        np.testing.assert_array_equal(own, before)
    check_numbers(world)
    return world.size


def check_numbers(world: ls.Communicator) -> None:
    size, last = world.size, world.size - 1
    assert_same(world.all_reduce(world.rank), size * last // 2, np.dtype("i8"))
    assert_same(world.all_reduce(world.rank / 2, kind="max"), last / 2, np.dtype("f8"))
    assert_same(world.all_reduce(world.rank == last), True, np.dtype("?"))
    assert_same(world.all_reduce(world.rank == last, "min"), size == 1, np.dtype("?"))
    assert_same(world.all_gather([world.rank, 7]), [[rank, 7] for rank in range(size)], np.dtype("i8"))
    assert_same(world.broadcast(world.rank + 0.5), 0.5, np.dtype("f8"))
    assert world.all_reduce(np.zeros((0, 3), np.float32)).shape == (0, 3)
    assert world.all_gather(np.zeros((0, 3), np.float32)).shape == (size, 0, 3)


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_threads(ranks: int) -> None:
    assert run_in_threads(ranks, check) == [ranks] * ranks


def test_processes(tmp_path: Path) -> None:
    done = mpirun(3, Path(__file__), tmp_path)
    assert done.returncode == 0, done.stderr
    assert [(tmp_path / str(rank)).read_text() for rank in range(3)] == ["3"] * 3


def test_bfloat16() -> None:
    bfloat16 = pytest.importorskip("ml_dtypes").bfloat16
    own = np.array([1.5, 2], bfloat16)
    for call, expected in (
        (lambda world: world.all_reduce(own * (world.rank + 1)), [4.5, 6.0]),
        (lambda world: world.broadcast(own * (world.rank + 1), 1), [3.0, 4.0]),
        (lambda world: world.all_gather(own * (world.rank + 1)), [[1.5, 2.0], [3.0, 4.0]]),
    ):
        for found in run_in_threads(2, call):
            assert found.dtype == bfloat16 and found.tolist() == expected


def test_tensors_of_torch() -> None:
    torch = pytest.importorskip("torch")
    for found in run_in_threads(2, lambda world: world.all_gather(torch.full((2,), world.rank + 0.5).requires_grad_())):
        assert_same(found, [[0.5, 0.5], [1.5, 1.5]], np.dtype("f4"))


def test_a_result_is_a_new_array() -> None:
    world, own = ls.Communicator.single(), np.ones(3)
    for found in (world.all_reduce(own), world.broadcast(own), world.all_gather(own)):
        found += 1
    assert own.tolist() == [1, 1, 1]


@pytest.mark.parametrize(
    ("call", "of_0", "of_1"),
    [
        (
            lambda world: world.all_reduce(np.zeros((3, 2) if world.rank == 0 else (2, 3))),
            "all_reduce sum f64[6] `of an array [3, 2]`",
            "all_reduce sum f64[6] `of an array [2, 3]`",
        ),
        (
            lambda world: world.all_gather(np.zeros(world.rank + 1)),
            "all_gather f64[1] `of an array [1]`",
            "all_gather f64[2] `of an array [2]`",
        ),
        (
            lambda world: world.all_reduce(1 if world.rank == 0 else 1.0),
            "all_reduce sum i64[1]",
            "all_reduce sum f64[1]",
        ),
        (
            lambda world: world.all_reduce(1, ("min", "max")[world.rank]),
            "all_reduce min i64[1]",
            "all_reduce max i64[1]",
        ),
        (lambda world: world.broadcast(1, world.rank), "broadcast from rank 0 i64", "broadcast from rank 1 i64"),
        (lambda world: world.barrier() if world.rank == 0 else world.all_gather(1), "barrier", "all_gather i64[1]"),
    ],
)
def test_calls_that_differ_name_both_sides(call: Callable[[ls.Communicator], object], of_0: str, of_1: str) -> None:
    for message in errors_of(2, call):
        assert f"rank 0 on host {ls.Communicator.single().host(0)} is in {of_0}" in message
        assert f"rank 1 on host {ls.Communicator.single().host(0)} in {of_1}" in message


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda world: world.all_reduce("x"), "all_reduce: the array is an array of dtype <U1, expected booleans"),
        (lambda world: world.broadcast(1j), "broadcast: the array is an array of dtype complex128, expected booleans"),
        (lambda world: world.all_gather(None), "all_gather: the array is an array of dtype object, expected booleans"),
        (
            lambda world: world.all_gather([[1], [1, 2]]),
            "all_gather: the array is a list, which NumPy cannot convert to an array",
        ),
        (lambda world: world.all_reduce(1, "avg"), "all_reduce: kind is 'avg', expected \"sum\" or"),
        (lambda world: world.broadcast(1, 1), "broadcast: root is 1, expected one of 1 ranks, from 0"),
        (lambda world: world.broadcast(1, -1), "broadcast: root is -1, expected one of 1 ranks, from 0"),
        (lambda world: world.broadcast(1, 0.5), "broadcast: root is 0.5, expected a whole number"),
    ],
)
def test_wrong_arguments(call: Callable[[ls.Communicator], object], message: str) -> None:
    world = ls.Communicator.single()
    with pytest.raises(ls.Error) as caught:
        call(world)
    assert str(caught.value).startswith(message)
    assert world.all_reduce(2.0) == 2, "the world is still usable"


if __name__ == "__main__":
    this = ls.Communicator.mpi()
    (Path(sys.argv[1]) / str(this.rank)).write_text(str(check(this)))
