"""All raw collectives on one rank, compared with NumPy; a program under mpirun, and functions that tests call on
threads.

As a program it writes the number of ranks to <folder>/<rank> if everything was correct.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np

import lockstep as ls
from lockstep import _lockstep

COUNTS = (0, 1, 10, 1000, 100_001)
DTYPES = {"f64": np.float64, "f32": np.float32, "f16": np.float16, "i64": np.int64, "i32": np.int32, "u8": np.uint8}
KINDS = {"sum": np.sum, "mean": np.mean, "min": np.min, "max": np.max, "prod": np.prod}


def values(rank: int, count: int, dtype: type = np.float32) -> np.ndarray:
    """Small whole numbers, whose sums and products are exact."""
    return ((np.arange(count) * 7 + rank * 3) % 4 + 1).astype(dtype)


def registered(world: ls.Communicator, array: np.ndarray) -> np.ndarray:
    copy = _lockstep._allocate(world, array.nbytes, "memory")[: array.nbytes].view(array.dtype).reshape(array.shape)
    copy[...] = array
    return copy


def bfloat16(array: np.ndarray) -> np.ndarray:
    """The bits of numbers that bf16 represents exactly."""
    return (array.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)


def check_reductions(world: ls.Communicator) -> None:
    ranks = range(world.size)
    for dtype, of_numpy in DTYPES.items():
        for kind, reduce in KINDS.items():
            expected = reduce([values(rank, 10, of_numpy) for rank in ranks], axis=0).astype(of_numpy)
            own, found = values(world.rank, 10, of_numpy), np.zeros(10, of_numpy)
            _lockstep._wait(world, _lockstep._start_all_reduce(world, own, found, dtype, kind, f"{dtype} {kind}"))
            np.testing.assert_allclose(found, expected, 1e-3 if dtype == "f16" else 1e-6, err_msg=f"{dtype} {kind}")
    for count in COUNTS:
        expected = sum(values(rank, count) for rank in ranks)
        for own in (values(world.rank, count), registered(world, values(world.rank, count))):
            _lockstep._wait(world, _lockstep._start_all_reduce(world, own, own, "f32", "sum", "in place"))
            np.testing.assert_array_equal(own, expected)
        whole = np.concatenate([values(rank, count) for rank in ranks])
        share = np.zeros(count, np.float32)
        ticket = _lockstep._start_reduce_scatter(world, whole * (world.rank + 1), share, "f32", "sum", "slices")
        _lockstep._wait(world, ticket)
        np.testing.assert_array_equal(share, values(world.rank, count) * sum(rank + 1 for rank in ranks))
    bits = bfloat16(values(world.rank, 33))
    _lockstep._wait(world, _lockstep._start_all_reduce(world, bits, bits, "bf16", "sum", "bf16"))
    np.testing.assert_array_equal(bits, bfloat16(sum(values(rank, 33) for rank in ranks)))


def check_movements(world: ls.Communicator) -> None:
    ranks = range(world.size)
    for count in COUNTS:
        for root in ranks:
            found = values(world.rank, count)
            _lockstep._wait(world, _lockstep._start_broadcast(world, found, found, "f32", root, "broadcast"))
            np.testing.assert_array_equal(found, values(root, count))
        found = np.zeros((world.size, count), np.float32)
        _lockstep._wait(world, _lockstep._start_all_gather(world, values(world.rank, count), found, "f32", "gather"))
        np.testing.assert_array_equal(found, [values(rank, count) for rank in ranks])
        sent = np.stack([values(10 * world.rank + rank, count) for rank in ranks])
        _lockstep._wait(world, _lockstep._start_all_to_all(world, sent, found, "f32", "to all"))
        np.testing.assert_array_equal(found, [values(10 * rank + world.rank, count) for rank in ranks])


def check_many_in_flight(world: ls.Communicator) -> None:
    """Collectives are waited for in another order than they were started; only Lockstep keeps their arrays alive."""
    outputs = [np.zeros(1000, np.float32) for _ in range(8)]
    tickets = [
        _lockstep._start_all_reduce(world, values(world.rank + i, 1000), output, "f32", "sum", f"number {i}")
        for i, output in enumerate(outputs)
    ]
    for i in (3, 1, 7, 0, 2, 6, 5, 4):
        _lockstep._wait(world, tickets[i])
        np.testing.assert_array_equal(outputs[i], sum(values(rank + i, 1000) for rank in range(world.size)))


def check_parts(world: ls.Communicator) -> None:
    part = _lockstep._split(world, world.rank % 2, "even and odd")
    members = range(world.rank % 2, world.size, 2)
    assert (part.size, part.rank) == (len(members), world.rank // 2)
    found = np.zeros(5, np.float32)
    _lockstep._wait(part, _lockstep._start_all_reduce(part, values(world.rank, 5), found, "f32", "sum", "part"))
    np.testing.assert_array_equal(found, sum(values(rank, 5) for rank in members))


def check(world: ls.Communicator) -> int:
    check_reductions(world)
    check_movements(world)
    check_many_in_flight(world)
    check_parts(world)
    return world.size


if __name__ == "__main__":
    this = ls.Communicator.mpi()
    (Path(sys.argv[1]) / str(this.rank)).write_text(str(check(this)))
