"""Stores of several workers, as threads of this process and as processes under mpirun. The oracle is a store of one
process.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import lockstep as ls
import mpi_kv
from ranks import errors_of, mpirun, run_in_threads

HERE = Path(__file__).parent
RANKS = pytest.mark.parametrize("n", [1, 2, 3])
SHAPE = (2, 3)
Array = np.ndarray


def ones(times: float = 1, shape: tuple[int, ...] = SHAPE) -> Array:
    return np.full(shape, times, np.float32)


def on_ranks(n: int, body: Callable[[ls.kv.KVStore], Any], kind: str = "dist_sync") -> list[Any]:
    results = run_in_threads(n, lambda world: body(ls.kv.create(kind, world)))
    for result in results:
        if isinstance(result, Exception):
            raise result
    return results


@RANKS
@pytest.mark.parametrize("kind", ["dist_sync", "dist_device_sync", "dist"])
def test_pushes_are_added_up(kind: str, n: int) -> None:
    def body(store: ls.kv.KVStore) -> list[Any]:
        assert (store.type, store.num_workers) == (kind, n)
        store.init("w", ones(5 + store.rank))  # only rank 0's value counts
        pulled = [store.pull("w")]
        store.push("w", [ones(1 + store.rank)] * 2)
        pulled.append(store.pull("w"))
        store.barrier()
        return [store.rank, pulled]

    results = on_ranks(n, body, kind)
    assert [rank for rank, _ in results] == list(range(n))
    for _, pulled in results:
        np.testing.assert_array_equal(pulled, [ones(5), ones(n * (n + 1))])


@RANKS
def test_lists_and_single_keys_and_priorities(n: int) -> None:
    shapes = [
        (1,),
        (17, 3),
        (),
        (400,),
        (0, 4),
        (5_000_000,),
        (33,),
        (4_500_000,),
        (2,),
    ]  # keys travel together up to 16 MiB

    def value(rank: int, i: int) -> Array:
        return np.asarray(np.random.default_rng([rank, i]).normal(size=shapes[i]), np.float32)

    def body(store: ls.kv.KVStore) -> list[Any]:
        keys = list(range(len(shapes)))
        store.init(keys[:4], [value(0, i) for i in keys[:4]])
        for i in keys[4:]:
            store.init(i, value(0, i))
        pulled = [store.pull(keys)]
        values = [value(store.rank, i) for i in keys]
        store.push(keys, values)
        pulled.append(store.pull(keys[::-1])[::-1])
        for i in keys:
            store.push(i, values[i], priority=i % 3 - i)
        out = [np.empty(shape, np.float32) for shape in shapes]
        for i in (4, 8, 0, 3, 1, 2, 7, 6, 5):
            store.pull(i, out=out[i])
        return [*pulled, out]

    first = [value(0, i) for i in range(len(shapes))]
    sums = [sum((value(rank, i) for rank in range(1, n)), start=value(0, i)) for i in range(len(shapes))]
    for results in on_ranks(n, body):
        for pulled, expected in zip(results, (first, sums, sums), strict=True):
            for i, each in enumerate(pulled):
                np.testing.assert_array_equal(each, expected[i])


def pushed_by_all(n: int, steps: int) -> ls.kv.KVStore:
    """A store of one process, to which n devices push what n workers would."""
    store = ls.kv.create("device")
    keys = list(mpi_kv.SHAPES)
    store.init(keys, [ones(1, shape) for shape in mpi_kv.SHAPES.values()])
    store.set_optimizer(ls.optim.Adam(0.01), rescale_grad=1 / n)
    for step in range(steps):
        store.push(keys, [[mpi_kv.gradient(rank, step, key) for rank in range(n)] for key in keys])
    return store


@RANKS
def test_an_optimizer_on_threads(n: int) -> None:
    expected = pushed_by_all(n, 3)
    for weights in on_ranks(n, mpi_kv.train):
        for key, weight in weights.items():
            np.testing.assert_array_equal(weight, expected.pull(key))


@RANKS
def test_an_optimizer_on_processes(n: int, tmp_path: Path) -> None:
    """Also the optimizer's states: one process reads the file of a job of n."""
    done = mpirun(n, HERE / "mpi_kv.py", "train", tmp_path)
    assert done.returncode == 0, done.stderr
    expected = pushed_by_all(n, 3)
    for rank in range(n):
        found = np.load(tmp_path / f"{rank}.npz")
        assert found["ranks"] == n
        for key in mpi_kv.SHAPES:
            np.testing.assert_array_equal(found[key], expected.pull(key))
    store = ls.kv.create()
    keys = list(mpi_kv.SHAPES)
    store.init(keys, expected.pull(keys))
    store.set_optimizer(ls.optim.Adam(0.01), rescale_grad=1 / n)
    store.load_optimizer_states(tmp_path / "states")
    for each in (store, expected):
        each.push(keys, [mpi_kv.gradient(0, 3, key) for key in keys])
    for key in keys:
        np.testing.assert_array_equal(store.pull(key), expected.pull(key))


def test_n_workers_are_one_with_the_whole_batch() -> None:
    """A linear model with a batch of 12 on one worker, or of 4 on each of three."""
    random = np.random.default_rng(0)
    x, y = random.normal(size=(12, 5)).astype(np.float32), random.normal(size=(12, 1)).astype(np.float32)

    def body(store: ls.kv.KVStore) -> Array:
        mine = slice(store.rank * 12 // store.num_workers, (store.rank + 1) * 12 // store.num_workers)
        store.init("w", ones(0, (5, 1)))
        store.set_optimizer(ls.optim.SGD(0.1, momentum=0.9), rescale_grad=1 / 12)
        w = store.pull("w")
        for _ in range(20):
            store.push("w", x[mine].T @ (x[mine] @ w - y[mine]))
            store.pull("w", out=w)
        return w

    (one,), three = on_ranks(1, body), on_ranks(3, body)
    for w in three:
        np.testing.assert_array_equal(w, three[0])
        np.testing.assert_allclose(w, one, rtol=1e-4, atol=1e-6)
    assert np.abs(one).max() > 0.1


@RANKS
@pytest.mark.parametrize("kind", ["2bit", "1bit"])
def test_compressed_pushes(kind: str, n: int) -> None:
    def gradient(rank: int, step: int) -> Array:
        return np.random.default_rng([rank, step]).normal(size=(7, 11)).astype(np.float32)

    def body(store: ls.kv.KVStore) -> list[Array]:
        store.init(["a", "b"], [ones(0, (7, 11))] * 2)
        store.set_gradient_compression({"type": kind, "threshold": 0.4})
        pulled = []
        for step in range(4):
            store.push(["a", "b"], [gradient(store.rank, step), gradient(store.rank + 10, step)])
            pulled += store.pull(["a", "b"])
        return pulled

    local = ls.kv.create("device")
    local.init(["a", "b"], [ones(0, (7, 11))] * 2)
    local.set_gradient_compression({"type": kind, "threshold": 0.4})
    expected = []
    for step in range(4):
        values = [[gradient(rank + first, step) for rank in range(n)] for first in (0, 10)]
        local.push(["a", "b"], values)
        expected += local.pull(["a", "b"])
    for pulled in on_ranks(n, body):
        np.testing.assert_allclose(pulled, expected, rtol=1e-6)


@RANKS
def test_rows(n: int) -> None:
    def body(store: ls.kv.KVStore) -> list[Array]:
        store.init("e", ls.kv.RowSparse([1], ones(1 + store.rank, (1, 2)), (4, 2)))
        pulled = [store.pull("e")]
        store.set_optimizer(ls.optim.SGD(1.0))
        store.push("e", ls.kv.RowSparse([store.rank, 3], ones(1, (2, 2)), (4, 2)))
        rows = store.row_sparse_pull("e", row_ids=[3, 0])
        assert rows.indices.tolist() == [0, 3]
        return [*pulled, rows.values]

    for first, rows in on_ranks(n, body):
        np.testing.assert_array_equal(first, [[0, 0], [1, 1], [0, 0], [0, 0]])
        np.testing.assert_array_equal(rows, [[-1, -1], [-n, -n]])


@RANKS
def test_an_updater_sees_every_push(n: int) -> None:
    def body(store: ls.kv.KVStore) -> list[Any]:
        calls = []

        def update(key: str, pushed: Array, stored: Array) -> None:
            calls.append((key, float(pushed[0, 0])))
            stored += 2 * pushed

        store.init(["a", "b"], [ones(10)] * 2)
        store.set_updater(update)
        for times in (1, 2, 3):
            store.push("b", ones(times))
        store.push("a", ones(5))
        return [store.pull("a"), store.pull("b"), calls]

    for a, b, calls in on_ranks(n, body):
        np.testing.assert_array_equal([a, b], [ones(10 + 10 * n), ones(10 + 12 * n)])
        assert calls == [("b", n), ("b", 2 * n), ("b", 3 * n), ("a", 5 * n)]


def test_an_updater_that_raises_leaves_the_store_usable() -> None:
    def body(store: ls.kv.KVStore) -> Any:
        def update(key: str, pushed: Array, stored: Array) -> None:
            if key == "a" and pushed[0, 0] > 3:
                raise ValueError("too much")
            stored += pushed

        store.init(["a", "b"], [ones(0)] * 2)
        store.set_updater(update)
        store.push(["a", "b"], [ones(2), ones(1)])
        with pytest.raises(ValueError, match="too much"):
            store.pull("b")
        pulled = store.pull(["a", "b"])
        store.push(["a", "b"], [ones(1), ones(1)])
        return [*pulled, *store.pull(["a", "b"])]

    for pulled in on_ranks(2, body):
        np.testing.assert_array_equal(pulled, [ones(0), ones(2), ones(2), ones(4)])


@RANKS
def test_states_in_files(n: int, tmp_path: Path) -> None:
    def body(store: ls.kv.KVStore) -> list[Array]:
        store.init(3, ones(1))
        store.set_optimizer(ls.optim.SGD(0.5, momentum=0.5))
        store.push(3, ones(1))
        store.save_optimizer_states(tmp_path / "states", dump_optimizer=True)
        store.push(3, ones(1))
        again = ls.kv.create("dist_sync", store._world)
        again.init(3, ones(1))
        again.load_optimizer_states(tmp_path / "states")
        again.push(3, ones(0))
        return [store.pull(3), again.pull(3)]

    for pulled in on_ranks(n, body):
        np.testing.assert_array_equal(pulled, [ones(1 - 0.5 * n - 0.75 * n), ones(1 - 0.25 * n)])


# --- Workers that end or differ


def store_of(world: ls.Communicator, shape: tuple[int, ...] = SHAPE) -> ls.kv.KVStore:
    store = ls.kv.create("dist_sync", world)
    store.init(["a", "b"], [ones(1, shape), ones(1)])
    return store


def other_keys(world: ls.Communicator) -> None:
    store = store_of(world)
    key = "ab"[world.rank]
    store.push(key, ones())
    store.pull(key)


def more_keys(world: ls.Communicator) -> None:
    store = store_of(world)
    keys = ["a", "b"][: 1 + world.rank]
    store.push(keys, [ones()] * len(keys))
    store.pull("a")


def other_shapes(world: ls.Communicator) -> None:
    store_of(world, (2, 3 + world.rank)).pull("a")


def many_other_keys(world: ls.Communicator) -> None:
    store = ls.kv.create("dist_sync", world)
    store.init([f"layer{i + world.rank}.weight" for i in range(100)], [ones()] * 100)
    store.barrier()


def other_optimizers(world: ls.Communicator) -> None:
    store = store_of(world)
    store.set_optimizer(ls.optim.SGD(0.1) if world.rank == 0 else ls.optim.Adam(0.1))
    store.push("a", ones())
    store.pull("a")


def other_settings(world: ls.Communicator) -> None:
    store = store_of(world)
    store.set_optimizer(ls.optim.SGD(0.1))
    store.set(learning_rate=0.1 * (1 + world.rank))
    store.push("a", ones())
    store.pull("a")


def other_updaters(world: ls.Communicator) -> None:
    store = store_of(world)
    store.set_updater(lambda key, pushed, stored: np.add(stored, world.rank, out=stored))
    store.push("b", ones())
    store.pull("b")


def reversed_updaters(world: ls.Communicator) -> None:
    store = store_of(world)
    row = np.arange(3, dtype=np.float32)[:: 1 - 2 * world.rank]  # its sum is the same
    store.set_updater(lambda key, pushed, stored: np.copyto(stored, row))
    store.push("b", ones())
    store.pull("b")


def other_schedules(world: ls.Communicator) -> None:
    store = store_of(world)
    store.set_optimizer(ls.optim.SGD(lambda step: 0.1 if step < 3 or world.rank == 0 else 0.2))
    for push in range(5):
        store.push("a", ones())
        assert push < 4, "the fourth update differed, but no rank got an error"
        store.pull("a")


def other_bits(world: ls.Communicator) -> None:
    store = store_of(world)
    store.set_optimizer(ls.optim.SGD(0.1))
    for push in range(1, 514):
        store.push("a", ones())
        store.pull("a")
        if push == 1 and world.rank == 1:
            store._entries["a"].update.executable.state["value"] = store.pull("a") + 1
        assert push < 513, "after 512 pushes no rank got an error"


@pytest.mark.parametrize(
    ("body", "messages"),
    [
        (other_keys, [r"kv push of 'a' f32\[2,3\]", r"kv push of 'b' f32\[2,3\]"]),
        (more_keys, [r"kv push of 'a' f32\[2,3\]", r"kv push of 'a' f32\[2,3\], 'b' f32\[2,3\]"]),
        (other_shapes, [r"'a' f32\[2,3\], 'b'", r"'a' f32\[2,4\], 'b'"]),
        (many_other_keys, [r"of 100 keys #\w{8}: 'layer0.weight'", r"of 100 keys #\w{8}: 'layer1.weight'"]),
        (other_optimizers, ["different optimizers: rank 0 SGD", "rank 1 Adam"]),
        (other_settings, ["different settings: rank 0 {'learning_rate': 0.1}, rank 1 {'learning_rate': 0.2}"]),
        (other_bits, ["key 'a': after push 512 its value differs between ranks 0 and 1"]),
        (other_updaters, ["key 'b': after push 1 its value differs between ranks 0 and 1"]),
        (reversed_updaters, ["key 'b': after push 1 its value differs between ranks 0 and 1"]),
        (
            other_schedules,
            ["kv push at learning_rate=0.1 of 'a'", "kv push at learning_rate=0.2 of 'a'"],
        ),
    ],
)
def test_ranks_that_part(body: Callable[[ls.Communicator], Any], messages: list[str]) -> None:
    for found in errors_of(2, body):
        for message in messages:
            assert re.search(message, found), found
        assert "rank 1" in found or "ranks 0 and 1" in found, found


def test_an_updater_that_raises_on_one_rank_ends_the_store() -> None:
    def body(world: ls.Communicator) -> tuple[str, str]:
        store = store_of(world)

        def update(key: str, pushed: Array, stored: Array) -> None:
            if world.rank == 1 and pushed[0, 0] == 6:
                raise ValueError("no more room")
            stored += pushed

        store.set_updater(update)
        for times in (1, 2):
            store.push(["a", "b"], [ones(times), ones(times)])
            np.testing.assert_array_equal(store.pull("b"), ones(3 if times == 1 else 7))
        store.push("b", ones(3))
        with pytest.raises(ValueError if world.rank == 1 else ls.Error) as caught:
            store.pull("b")
        with pytest.raises(ls.Error) as later:
            store.pull("a")
        world.barrier()  # the world continues
        return str(caught.value), str(later.value)

    message = "key 'b': the updater raised on rank 1, but not on all: ValueError: no more room"
    for rank, (caught, later) in enumerate(run_in_threads(2, body)):
        assert caught == ("no more room" if rank == 1 else message)
        assert later == f"the store has failed: {message}"


def test_an_updater_that_differs_by_rank_ends_the_store() -> None:
    def body(world: ls.Communicator) -> list[str]:
        store = store_of(world)
        store.set_updater(lambda key, pushed, stored: np.add(stored, world.rank if key == "a" else 1, out=stored))
        store.push(["a", "b"], [ones(), ones()])
        messages = []
        calls = (
            lambda: store.pull("b"),
            lambda: store.pull("b"),
            lambda: store.pull("a"),
            lambda: store.push("b", ones()),
        )
        for call in (*calls, store.barrier):
            with pytest.raises(ls.Error) as caught:
                call()
            messages.append(str(caught.value))
        world.barrier()  # the world continues
        return messages

    message = "key 'a': after push 1 its value differs between ranks 0 and 1: the updater computes other bits there"
    for first, *later in run_in_threads(2, body):
        assert first == message
        assert later == [f"the store has failed: {message}"] * 4


def test_errors_name_the_rank() -> None:
    def body(store: ls.kv.KVStore) -> list[str]:
        store.init("w", ones())
        messages = []
        for call in (lambda: store.push("w", ones(1, (3,))), lambda: store.pull("v")):
            with pytest.raises(ls.Error) as caught:
                call()
            messages.append(str(caught.value))
        store.push("w", ones())
        np.testing.assert_array_equal(store.pull("w"), ones(2))
        return messages

    for rank, messages in enumerate(on_ranks(2, body)):
        assert messages[0] == f"push on rank {rank} of 2: key 'w': the value is f32[3], expected f32[2,3]"
        assert messages[1] == f"pull on rank {rank} of 2: key 'v' was not initialised; there are 'w'"


def test_a_store_that_has_failed_says_so() -> None:
    def body(world: ls.Communicator) -> str:
        store = store_of(world)
        store.push("ab"[world.rank], ones())
        with pytest.raises(ls.Error, match="kv push of 'a'"):
            store.barrier()
        for call in (lambda: store.pull("a"), lambda: store.push("b", ones()), store.barrier):
            with pytest.raises(ls.Error) as caught:
                call()
        return str(caught.value)

    for message in run_in_threads(2, body):
        assert message.startswith("the store has failed: "), message
        assert "kv push of 'a'" in message, message


@pytest.mark.parametrize("n", [2, 3])
def test_processes_may_leave_with_pushes_on_their_way(n: int, tmp_path: Path) -> None:
    done = mpirun(n, HERE / "mpi_kv.py", "leave", tmp_path, timeout=60)
    assert done.returncode == 0, done.stderr
    assert [int(np.load(tmp_path / f"{rank}.npz")["ranks"]) for rank in range(n)] == [n] * n


def test_a_process_that_dies_is_named(tmp_path: Path) -> None:
    done = mpirun(3, HERE / "mpi_kv.py", "die", tmp_path, timeout=60)
    assert done.returncode != 0
    for rank in (0, 1):
        message = (tmp_path / f"{rank}.txt").read_text()
        assert "rank 2" in message, message
        assert "no more" in message, message
