"""Stores of one process: MXNet's documented examples with the import changed, and its numbers; PyTorch's optimizers."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import lockstep as ls

torch = pytest.importorskip("torch")

SHAPE = (2, 3)
Array = np.ndarray


def ones(times: float = 1, shape: tuple[int, ...] = SHAPE) -> Array:
    return np.full(shape, times, np.float32)


def store_of(**values: Array) -> ls.kv.KVStore:
    store = ls.kv.create()
    for key, value in values.items():
        store.init(key, value)
    return store


# --- MXNet's examples


@pytest.mark.parametrize("kind", ["local", "device", "LOCAL"])
def test_who_and_how_many(kind: str) -> None:
    store = ls.kv.create(kind)
    assert (store.type, store.rank, store.num_workers) == (kind.lower(), 0, 1)
    assert store.is_capable("optimizer")
    assert repr(store) == f"<lockstep.kv.KVStore {kind.lower()}, rank 0 of 1, 0 keys>"
    store.barrier()


def test_init_and_pull() -> None:
    store = ls.kv.create("local")
    store.init(3, ones(2))
    a = np.zeros(SHAPE, np.float32)
    assert store.pull(3, out=a) is None
    np.testing.assert_array_equal(a, ones(2))
    np.testing.assert_array_equal(store.pull(3), ones(2))


def test_a_push_replaces_the_value_and_adds_up_devices() -> None:
    store = store_of(a=ones(2))
    store.push("a", ones(8))
    np.testing.assert_array_equal(store.pull("a"), ones(8))
    store.push("a", [ones()] * 4)
    np.testing.assert_array_equal(store.pull("a"), ones(4))


def test_an_updater() -> None:
    calls = []

    def update(key: int, pushed: Array, stored: Array) -> None:
        calls.append((key, float(pushed[0, 0])))
        stored += pushed * 2

    store = ls.kv.create("local")
    store.init(3, ones(2))
    store.set_updater(update)
    np.testing.assert_array_equal(store.pull(3), ones(2))
    store.push(3, ones())
    store.push(3, [ones()] * 4)
    np.testing.assert_array_equal(store.pull(3), ones(12))
    assert calls == [(3, 1), (3, 4)]


def test_lists_of_keys_and_of_devices() -> None:
    store = ls.kv.create("local")
    keys = ["5", "7", "9"]
    store.init(keys, [ones()] * 3)
    store.push(keys, [ones(2)] * 3)
    b = [ones(0) for _ in keys]
    store.pull(keys, out=b)
    np.testing.assert_array_equal(b, [ones(2)] * 3)
    store.push(keys, [[ones()] * 4] * 3)
    b = [[ones(0) for _ in range(4)] for _ in keys]
    store.pull(keys, out=b)
    np.testing.assert_array_equal(b, [[ones(4)] * 4] * 3)
    pulled = store.pull(keys)
    assert isinstance(pulled, list)
    np.testing.assert_array_equal(pulled, [ones(4)] * 3)


def test_pushpull_and_broadcast() -> None:
    store = ls.kv.create("local")
    a = ones(0)
    store.broadcast("3", ones(2), out=a)
    np.testing.assert_array_equal(a, ones(2))
    store.pushpull("3", ones(8), out=a)
    np.testing.assert_array_equal(a, ones(8))
    both = [ones(1), ones(2)]
    store.pushpull("3", both)
    np.testing.assert_array_equal(both, [ones(3)] * 2)


@pytest.mark.parametrize(
    "out", [ones(0, shape=(3, 2)), [ones(0), 7], None, ls.kv.RowSparse([], ones(shape=(0, 2)), (3, 2))]
)
def test_a_broadcast_with_a_wrong_out_leaves_no_key(out: Any) -> None:
    store = ls.kv.create("local")
    with pytest.raises(ls.Error, match="broadcast: .*3"):
        store.broadcast("3", ones(2), out=out)
    store.init("3", ones(4))
    np.testing.assert_array_equal(store.pull("3"), ones(4))


@pytest.mark.parametrize(
    ("ids", "rows", "dense"), [([0, 2], [0, 2], [1, 0, 1]), ([2, 2], [2], [0, 0, 1]), ([1, 0], [0, 1], [1, 1, 0])]
)
def test_row_sparse_pull(ids: list[int], rows: list[int], dense: list[int]) -> None:
    store = ls.kv.create()
    every = ls.kv.RowSparse([0, 1, 2], ones(shape=(3, 3)), (3, 3))
    store.init("3", every)
    a = ls.kv.RowSparse([], ones(shape=(0, 3)), (3, 3))
    assert store.row_sparse_pull("3", out=a, row_ids=np.array(ids)) is None
    np.testing.assert_array_equal(a.indices, rows)
    np.testing.assert_array_equal(a.dense(), np.array(dense, np.float32)[:, None] * ones(shape=(3, 3)))
    np.testing.assert_array_equal(store.row_sparse_pull("3", row_ids=ids).dense(), a.dense())
    store.pull("3", out=a)  # leaves the value unchanged
    np.testing.assert_array_equal(a.indices, rows)
    store.pull("3", out=a, ignore_sparse=False)
    np.testing.assert_array_equal(a.dense(), every.dense())
    np.testing.assert_array_equal(store.pull("3"), every.dense())


def test_rows_are_pushed() -> None:
    store = ls.kv.create()
    store.init("e", ones(0, (4, 2)))
    first = ls.kv.RowSparse([0, 2], np.array([[1, 1], [2, 2]], np.float32), (4, 2))
    second = ls.kv.RowSparse([2], np.array([[5, 5]], np.float32), (4, 2))
    store.push("e", [first, second])
    np.testing.assert_array_equal(store.pull("e"), [[1, 1], [0, 0], [7, 7], [0, 0]])
    store.push("e", second)
    np.testing.assert_array_equal(store.pull("e"), [[0, 0], [0, 0], [5, 5], [0, 0]])
    store.push("e", [ones(1, (4, 2)), second])
    np.testing.assert_array_equal(store.pull("e"), [[1, 1], [1, 1], [6, 6], [1, 1]])
    store.init("f", ones(3, (4, 2)))
    pulled = store.row_sparse_pull(["e", "f"], row_ids=[np.array([2]), np.array([3, 0])])
    np.testing.assert_array_equal(pulled[0].values, [[6, 6]])
    np.testing.assert_array_equal(pulled[1].dense(), [[3, 3], [0, 0], [0, 0], [3, 3]])
    both = [ls.kv.RowSparse([], ones(0, (0, 2)), (4, 2)) for _ in range(2)]
    store.row_sparse_pull("e", out=both, row_ids=[np.array([1])])
    assert [each.indices.tolist() for each in both] == [[1], [1]]


def test_rows_that_are_there_twice_are_added() -> None:
    rows = ls.kv.RowSparse([3, 0, 3, 3], np.array([[1], [2], [4], [8]], np.float32), (4, 1))
    np.testing.assert_array_equal(rows.dense(), [[2], [0], [0], [13]])
    assert repr(rows) == "<lockstep.kv.RowSparse 4 rows of float32[4, 1]>"


def test_rows_of_bool_that_are_there_twice() -> None:
    rows = ls.kv.RowSparse([2, 0, 2], np.array([[True, False], [False, True], [False, False]]), (3, 2))
    np.testing.assert_array_equal(rows.dense(), [[False, True], [False, False], [True, False]])


@pytest.mark.parametrize("ids", [[], (), np.array([], int)])
def test_no_rows_are_pulled(ids: Any) -> None:
    rows = store_of(e=ones(3)).row_sparse_pull("e", row_ids=ids)
    assert (rows.indices.tolist(), rows.values.shape) == ([], (0, 3))


def test_a_key_that_is_there_twice_is_added() -> None:
    store = ls.kv.create()
    store.init([3, 4], [ones()] * 2)
    store.push([3, 4, 3], [ones(1), ones(2), ones(4)])
    np.testing.assert_array_equal(store.pull([3, 4, 3]), [ones(5), ones(2), ones(5)])


# MXNet 1.9.1's results of three pushes, [g, k g] in push k, to a value of -1 to 1: with its SGD(learning_rate=.1,
# momentum=.9, rescale_grad=.5, wd=.01), and its Adam(learning_rate=.01).
GRADIENT = np.linspace(0.3, -0.7, 6, dtype=np.float32).reshape(SHAPE)
MXNET = [
    (
        ls.optim.SGD(0.1, momentum=0.9, weight_decay=0.01),
        0.5,
        [-1.1369578838348389, -0.6441579461097717, -0.15135794878005981]
        + [0.34144195914268494, 0.8342419266700745, 1.3270418643951416],
    ),
    (
        ls.optim.Adam(0.01),
        1.0,
        [-1.0292320251464844, -0.6292320489883423, -0.17076803743839264]
        + [0.22923201322555542, 0.6292320489883423, 1.0292320251464844],
    ),
]


@pytest.mark.parametrize(("optimizer", "rescale", "expected"), MXNET)
def test_optimizers_as_of_mxnet(optimizer: ls.optim.Optimizer, rescale: float, expected: list[float]) -> None:
    store = store_of(w=np.linspace(-1, 1, 6, dtype=np.float32).reshape(SHAPE))
    store.set_optimizer(optimizer, rescale_grad=rescale)
    for k in range(3):
        store.push("w", [GRADIENT, np.float32(k) * GRADIENT])
    np.testing.assert_allclose(store.pull("w").reshape(-1), expected, rtol=2e-6)


# MXNet 1.9.1's results with a store "device", for four pushes of [g, g / 2], each of which replaced the value.
COMPRESSED = {
    0.5: [[0, 0.5, -0.5, -0.5, 1, 0], [0, 1, -1, -1, 1, 0], [0.5, 0.5, -0.5, -0.5, 1, 0], [0, 1, -1, -1, 1, 0]],
    0.25: [[0, 0.5, -0.5, -0.5, 0.5, 0], [0.25, 0.5, -0.5, -0.5, 0.5, 0], [0.5, 0.5, -0.5, -0.5, 0.5, 0]]
    + [[0.25, 0.5, -0.5, -0.5, 0.5, 0]],
}


@pytest.mark.parametrize("threshold", COMPRESSED)
def test_two_bits_as_of_mxnet(threshold: float) -> None:
    store = ls.kv.create("device")
    store.init("w", ones(0, (6,)))
    store.set_gradient_compression({"type": "2bit", "threshold": threshold})
    gradient = np.array([0.2, 0.5, -0.5, -0.6, 1.7, 0], np.float32)
    for expected in COMPRESSED[threshold]:
        store.push("w", [gradient, gradient / 2])
        np.testing.assert_array_equal(store.pull("w"), np.array(expected, np.float32))


def test_one_bit() -> None:
    store = ls.kv.create("device")
    store.init("w", ones(0, (3,)))
    store.set_gradient_compression({"type": "1bit", "threshold": "0.25"})
    gradient = np.array([0.2, 0.5, -0.5], np.float32)
    sums = np.zeros(3, np.float32)
    for expected in ([-1, 1, -1], [1, -1, -1], [1, 1, 1], [-1, 1, -1]):  # owed + 0.2: 0.2, 1.4, 0.6, -0.2; ...
        store.push("w", gradient)
        np.testing.assert_array_equal(store.pull("w"), expected)
        sums += store.pull("w")
    assert np.abs(sums - 4 * gradient).max() <= 1.25  # at most one step is owed


@pytest.mark.parametrize("elements", [1, 7, 8, 65535, 65536, 65537, 200001])
@pytest.mark.parametrize("kind", ["2bit", "1bit"])
def test_packed_pushes_are_rounded_pushes(kind: str, elements: int) -> None:
    from lockstep.kv._compression import Compression
    from lockstep.kv._entry import Entry

    compression = Compression.of({"type": kind, "threshold": 0.3})
    gradients = np.random.default_rng(elements).normal(size=(3, elements)).astype(np.float32)
    entries = [Entry("w", np.dtype(np.float32), (elements,), False) for _ in range(6)]
    for _ in range(2):
        packed = np.empty((3, compression.packed_bytes(elements)), np.uint8)
        rounded = np.zeros(elements, np.float32)
        for rank, gradient in enumerate(gradients):
            compression.pack(entries[rank], gradient, packed[rank])
            rounded += compression.rounded(entries[3 + rank], 0, gradient)
        total = np.empty(elements, np.float32)
        compression.unpack(packed, total)
        np.testing.assert_allclose(total, rounded, rtol=1e-6)
    assert packed.nbytes <= 3 * (2 if kind == "2bit" else 1) * (elements // 8 + 1)


# --- Optimizers

OPTIMIZERS: list[tuple[ls.optim.Optimizer, Callable[[Any], torch.optim.Optimizer]]] = [
    (ls.optim.SGD(0.1), lambda p: torch.optim.SGD(p, 0.1)),
    (
        ls.optim.SGD(0.1, momentum=0.9, nesterov=True, weight_decay=0.1),
        lambda p: torch.optim.SGD(p, 0.1, momentum=0.9, nesterov=True, weight_decay=0.1),
    ),
    (ls.optim.Adam(0.01), lambda p: torch.optim.Adam(p, 0.01)),
    (ls.optim.AdamW(0.01, betas=(0.8, 0.99)), lambda p: torch.optim.AdamW(p, 0.01, betas=(0.8, 0.99))),
    (ls.optim.RMSprop(0.01), lambda p: torch.optim.RMSprop(p, 0.01)),
    (ls.optim.Adagrad(0.01), lambda p: torch.optim.Adagrad(p, 0.01)),
]


@pytest.mark.parametrize(("ours", "theirs"), OPTIMIZERS)
@pytest.mark.parametrize("shape", [(4, 3), (5,), ()])
def test_optimizers_as_of_pytorch(
    ours: ls.optim.Optimizer, theirs: Callable[[Any], torch.optim.Optimizer], shape: tuple[int, ...]
) -> None:
    random = np.random.default_rng(0)
    first = np.asarray(random.normal(size=shape), np.float32)
    parameter = torch.nn.Parameter(torch.tensor(first))
    optimizer = theirs([parameter])
    store = ls.kv.create()
    store.init(0, first)
    store.set_optimizer(ours, rescale_grad=0.5)
    for _ in range(5):
        gradient = np.asarray(random.normal(size=shape), np.float32)
        parameter.grad = torch.tensor(gradient)
        optimizer.step()
        store.push(0, [gradient, gradient])
    np.testing.assert_allclose(store.pull(0), parameter.detach().numpy(), rtol=1e-5, atol=1e-6)


def test_every_optimizer_updates_a_matrix() -> None:
    names = [name for name in ls.optim.__all__ if name != "Optimizer"]
    for name in names:
        kind = getattr(ls.optim, name)
        store = store_of(w=ones(shape=(4, 3)))
        try:
            optimizer = kind()
        except ls.Error:
            optimizer = kind(lr=0.1)
        store.set_optimizer(optimizer)
        store.push("w", np.linspace(-1, 2, 12, dtype=np.float32).reshape(4, 3))
        assert not np.array_equal(store.pull("w"), ones(shape=(4, 3))), name
    assert len(names) > 10


def test_settings_and_schedules() -> None:
    store = store_of(w=ones(0), v=ones(0))
    store.set_optimizer(ls.optim.SGD(lambda step: 2.0**-step))
    for _ in range(3):
        store.push("w", ones())
    np.testing.assert_array_equal(store.pull("w"), ones(-1.75))
    store.set_optimizer(ls.optim.SGD(0.5))
    store.set(learning_rate=0.25, rescale_grad=4)  # their product differs from before
    store.init("late", ones(0))
    store.push(["w", "late"], [ones()] * 2)
    np.testing.assert_array_equal(store.pull(["w", "late"]), [ones(-2.75), ones(-1)])
    np.testing.assert_array_equal(store.pull("v"), ones(0))
    store.set_optimizer(ls.optim.SGD(0.5))  # on which nothing was set
    store.push("w", ones())
    np.testing.assert_array_equal(store.pull("w"), ones(-3.25))


def test_updaters_and_optimizers_take_over_from_each_other() -> None:
    store = store_of(w=ones(1))
    store.set_optimizer(ls.optim.SGD(1.0))
    store.push("w", ones())
    store.set_updater(lambda key, pushed, stored: np.multiply(stored, 0, out=stored) + np.add(stored, 5, out=stored))
    store.push("w", ones())
    store.set_optimizer(ls.optim.SGD(2.0))
    store.push("w", ones())
    np.testing.assert_array_equal(store.pull("w"), ones(3))


def test_what_is_pulled_and_pushed_is_the_callers() -> None:
    store = store_of(w=ones(1))
    first = store.pull("w")
    first += 1
    pushed = ones(4)
    store.push("w", pushed)
    pushed += 1
    np.testing.assert_array_equal(store.pull("w"), ones(4))
    value = ones(7)
    store.init("v", value)
    value += 1
    np.testing.assert_array_equal(store.pull("v"), ones(7))


@pytest.mark.parametrize("dtype", [np.float64, np.float16, np.int32, np.int64, np.uint8])
def test_dtypes(dtype: Any) -> None:
    store = ls.kv.create()
    store.init(1, np.arange(6, dtype=dtype))
    store.push(1, [np.arange(6, dtype=dtype)] * 3)
    pulled = store.pull(1)
    assert pulled.dtype == dtype
    np.testing.assert_array_equal(pulled, 3 * np.arange(6))


def test_bfloat16_and_its_optimizer() -> None:
    dtype = np.dtype(pytest.importorskip("ml_dtypes").bfloat16)
    store = ls.kv.create()
    store.init("w", np.ones((2, 3), dtype))
    store.push("w", [np.full((2, 3), 3, dtype)] * 2)
    store.set_optimizer(ls.optim.SGD(0.5))
    store.push("w", np.full((2, 3), 2, dtype))
    out = np.zeros((2, 3), dtype)
    store.pull("w", out=out)
    np.testing.assert_array_equal(out.astype(np.float32), ones(5))
    assert store.pull("w").dtype == dtype


def test_tensors_and_other_orders_of_memory() -> None:
    store = store_of(w=ones(0, (3, 2)))
    store.push("w", torch.arange(6.0).reshape(3, 2))
    out = np.asfortranarray(ones(0, (3, 2)))
    store.pull("w", out=out)
    np.testing.assert_array_equal(out, np.arange(6).reshape(3, 2))
    store.set_optimizer(ls.optim.SGD(1.0))
    store.push("w", np.asfortranarray(np.arange(6, dtype=np.float32).reshape(3, 2)))
    store.pull("w", out=out)
    np.testing.assert_array_equal(out, ones(0, (3, 2)))


def test_a_parameter_of_torch_is_its_numbers() -> None:
    parameter = torch.nn.Parameter(torch.arange(6.0).reshape(2, 3))
    store = store_of(w=parameter)
    np.testing.assert_array_equal(store.pull("w"), parameter.detach())
    store.push("w", [parameter, parameter])
    np.testing.assert_array_equal(store.pull("w"), 2 * parameter.detach())
    with pytest.raises(ls.Error, match="push: key 'w' is a Tensor, which NumPy cannot convert to an array: .*meta"):
        store.push("w", torch.empty(2, 3, device="meta"))


# --- Files


@pytest.mark.parametrize("keys", [[3, 12], ["a", "a/b"]])
@pytest.mark.parametrize("dump", [False, True])
def test_states_of_optimizers_in_files(keys: list[Any], dump: bool, tmp_path: Path) -> None:
    def begun() -> ls.kv.KVStore:
        store = ls.kv.create()
        store.init(keys, [ones(1), ones(2, (5,))])
        return store

    random = np.random.default_rng(1)
    gradients = [[random.normal(size=s).astype(np.float32) for s in (SHAPE, (5,))] for _ in range(6)]
    whole = begun()
    whole.set_optimizer(ls.optim.Adam(0.1))
    whole.set(learning_rate=0.05)
    for each in gradients[:3]:
        whole.push(keys, each)
    whole.save_optimizer_states(tmp_path / "states", dump_optimizer=dump)
    values = whole.pull(keys)
    for each in gradients[3:]:
        whole.push(keys, each)

    store = ls.kv.create()
    store.init(keys, values)
    if not dump:
        with pytest.raises(ls.Error, match="there is no optimizer; set_optimizer"):
            store.load_optimizer_states(tmp_path / "states")
        store.set_optimizer(ls.optim.Adam(0.05))
    store.load_optimizer_states(tmp_path / "states")
    for each in gradients[3:]:
        store.push(keys, each)
    for key in keys:
        np.testing.assert_array_equal(store.pull(key), whole.pull(key))


def test_files_that_do_not_fit(tmp_path: Path) -> None:
    store = store_of(w=ones(1))
    path = tmp_path / "states"
    with pytest.raises(ls.Error, match="save_optimizer_states: there is no optimizer"):
        store.save_optimizer_states(path)
    store.set_optimizer(ls.optim.SGD(0.1, momentum=0.9))
    store.push("w", ones())
    with pytest.raises(ls.Error, match=f"{tmp_path}/none/states: No such file"):
        store.save_optimizer_states(tmp_path / "none/states")
    store.save_optimizer_states(path)
    other = store_of(w=ones(1))
    other.set_optimizer(ls.optim.Adam(0.1))
    with pytest.raises(
        ls.Error, match="lacks the state w/adam_m; it is from the optimizer SGD, but the store's optimizer Adam"
    ):
        other.load_optimizer_states(path)
    wider = store_of(w=ones(1, (7,)))
    wider.set_optimizer(ls.optim.SGD(0.1, momentum=0.9))
    with pytest.raises(ls.Error, match=r"key 'w': the state momentum is f32\[2, 3\], expected f32\[7\]"):
        wider.load_optimizer_states(path)
    damaged = bytearray(path.read_bytes())
    damaged[-1] ^= 1
    path.write_bytes(damaged)
    with pytest.raises(ls.Error, match="it is damaged"):
        store.load_optimizer_states(path)
    scheduled = store_of(w=ones(1))
    scheduled.set_optimizer(ls.optim.SGD(lambda step: 0.1))
    with pytest.raises(ls.Error, match="follows a schedule of learning_rate, which a file cannot"):
        scheduled.save_optimizer_states(path, dump_optimizer=True)


# --- Errors


def calls_that_are_wrong() -> list[tuple[Callable[[ls.kv.KVStore], Any], str]]:
    rows = ls.kv.RowSparse([0], ones(shape=(1, 3)), SHAPE)
    read_only = ones()
    read_only.flags.writeable = False
    return [
        (lambda s: s.init(3, ones()), r"init: key 3 was initialised before, as key 3, f32\[2,3\]"),
        (lambda s: s.init([4, 4], [ones()] * 2), "init: key 4 is there twice"),
        (
            lambda s: s.init("a", ones()),
            "init: key 'a': the store has the key 3; keys are all whole numbers or all texts",
        ),
        (lambda s: s.init([5, "b"], [ones()] * 2), "init: the keys are 5, 'b': whole numbers and texts"),
        (lambda s: s.init(True, ones()), "init: the key is True, expected a whole number or a text"),
        (lambda s: s.init(1.5, ones()), "init: the key is 1.5"),
        (lambda s: s.init([4, 5], ones()), "init: there are 2 keys, 4, 5, and a ndarray, expected a list of as many"),
        (lambda s: s.init([4, 5], [ones()]), "2 keys, 4, 5, and 1 values"),
        (lambda s: s.init(4, "text"), "key 4 is a str, expected an array"),
        (
            lambda s: s.init(4, np.ones(2, np.complex64)),
            "key 4 is an array of dtype complex64, expected one of float64",
        ),
        (lambda s: s.push(9, ones()), "push: key 9 was not initialised; there are 3"),
        (lambda s: s.push("x", ones()), "push: key 'x' was not initialised; there are 3"),
        (lambda s: s.push(3, ones(shape=(4, 4))), r"push: key 3: the value is f32\[4,4\], expected f32\[2,3\]"),
        (lambda s: s.push(3, [ones(), ones().astype(np.float64)]), r"key 3: the value is f64\[2,3\], expected f32"),
        (lambda s: s.push(3, []), "push: key 3: there is no value in the list"),
        (lambda s: s.push(3, ones(), priority="high"), "push: priority is 'high', expected a whole number"),
        (lambda s: s.pull(9), "pull: key 9 was not initialised"),
        (lambda s: s.pull(3, out=ones(shape=(3,))), r"pull: key 3: out is f32\[3\], expected f32\[2,3\]"),
        (lambda s: s.pull(3, out=np.ones(SHAPE)), r"pull: key 3: out is f64\[2,3\], expected f32\[2,3\]"),
        (lambda s: s.pull(3, out=[[0]]), "pull: key 3: out is a list, expected a NumPy array"),
        (lambda s: s.pull(3, out=read_only), "pull: key 3: out may not be written"),
        (lambda s: s.pull(3, ignore_sparse="no"), "pull: ignore_sparse is 'no'"),
        (lambda s: s.pushpull(3, rows), "pushpull: the value is a RowSparse; push it, and pull with row_sparse_pull"),
        (lambda s: s.pushpull(3, ones(), out=ones(shape=(3,))), r"pushpull: key 3: out is f32\[3\], expected f32"),
        (lambda s: s.pushpull(3, read_only), "pushpull: key 3: out may not be written"),
        (lambda s: s.row_sparse_pull(3), "row_sparse_pull: row_ids is None"),
        (lambda s: s.row_sparse_pull(3, row_ids=[0, 2]), r"key 3: row_ids have row 2, but there are 2 rows"),
        (lambda s: s.row_sparse_pull(3, row_ids=[0.5]), "row_ids are a list of shape .1,., expected a list of whole"),
        (lambda s: s.row_sparse_pull(3, out=ones(), row_ids=[0]), "out is a ndarray, expected a lockstep.kv.RowSparse"),
        (lambda s: s.row_sparse_pull([3], out=[], row_ids=[0]), "there are 1 keys, and out is"),
        (lambda s: s.row_sparse_pull([3], row_ids=[np.array([0]), np.array([1])]), "there are 2 lists in row_ids"),
        (lambda s: s.set_updater(3), "set_updater: the updater is 3, expected a function"),
        (lambda s: s.set_optimizer("sgd"), "unknown optimizer 'sgd'; is SGD meant\\? lockstep.optim has"),
        (lambda s: s.set_optimizer(ls.optim.SGD), "the optimizer is the class SGD, expected one with its options"),
        (
            lambda s: s.set_optimizer(ls.optim.SGD(0.1), rescale_grad=math.nan),
            "rescale_grad is nan, expected a finite number",
        ),
        (lambda s: s.set(learning_rate=1), "set: there is no optimizer; set_optimizer gives"),
        (lambda s: s.set_gradient_compression({"type": "2bit"}), "a store of the kind 'local' sends nothing"),
        (lambda s: s.is_capable("flying"), "is_capable: the capability is 'flying', expected \"optimizer\""),
    ]


@pytest.mark.parametrize(("call", "message"), calls_that_are_wrong())
def test_wrong_calls_change_nothing(call: Callable[[ls.kv.KVStore], Any], message: str) -> None:
    store = ls.kv.create()
    store.init(3, ones(2))
    with pytest.raises(ls.Error, match=message):
        call(store)
    np.testing.assert_array_equal(store.pull(3), ones(2))
    store.push(3, ones(4))
    np.testing.assert_array_equal(store.pull(3), ones(4))
    assert repr(store).endswith("1 keys>")


def test_a_wrong_value_of_several_changes_none() -> None:
    store = ls.kv.create()
    store.init([3, 4], [ones(2)] * 2)
    with pytest.raises(ls.Error, match="push: key 4"):
        store.push([3, 4], [ones(1), ones(shape=(1,))])
    np.testing.assert_array_equal(store.pull([3, 4]), [ones(2)] * 2)


def test_a_wrong_place_of_several_leaves_all_as_they_are() -> None:
    store = store_of(a=ones(2), b=ones(3))
    dense = ones(7)
    rows, wrong = (ls.kv.RowSparse([0], ones(7, (1, 3)), shape) for shape in (SHAPE, (9, 3)))
    with pytest.raises(ls.Error, match=r"pull: key 'b': out is f32\[9,3\], expected f32\[2,3\]"):
        store.pull(["a", "b"], out=[dense, wrong], ignore_sparse=False)
    np.testing.assert_array_equal(dense, ones(7))
    with pytest.raises(ls.Error, match=r"row_sparse_pull: key 'b': out is f32\[9,3\], expected f32\[2,3\]"):
        store.row_sparse_pull(["a", "b"], out=[rows, wrong], row_ids=[1])
    assert (rows.indices.tolist(), rows.values.tolist()) == ([0], [[7, 7, 7]])


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"learning_rate": 0.5, "nonsense": 1}, "there is no setting nonsense"),
        ({"learning_rate": 0.5, "rescale_grad": "x"}, "rescale_grad is 'x', expected a number"),
        ({"learning_rate": lambda step: "x"}, "set: learning_rate at step 0 is 'x', expected a number"),
        ({"learning_rate": lambda step: 1 / step}, "set: learning_rate has no value at step 0: ZeroDivisionError"),
    ],
)
def test_a_wrong_number_of_several_sets_none(values: dict[str, Any], message: str) -> None:
    store = store_of(w=ones(1))
    store.set_optimizer(ls.optim.SGD(0.25))
    with pytest.raises(ls.Error, match=message):
        store.set(**values)
    store.push("w", ones())
    np.testing.assert_array_equal(store.pull("w"), ones(0.75))


def test_an_optimizer_that_updates_no_such_value() -> None:
    store = ls.kv.create()
    store.init("bias", ones(shape=(3,)))
    with pytest.raises(ls.Error, match="set_optimizer: key 'bias'.*Muon"):
        store.set_optimizer(ls.optim.Muon(0.1))
    store = ls.kv.create()
    store.set_optimizer(ls.optim.Muon(0.1))
    with pytest.raises(ls.Error, match="init: key 'bias'.*Muon"):
        store.init("bias", ones(shape=(3,)))


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ("2bit", "it is '2bit', expected a dict"),
        ({"threshold": 1}, "expected a dict such as"),
        ({"type": "4bit"}, 'type is .4bit., expected "2bit" or "1bit"'),
        ({"type": "2bit", "threshold": 0}, "threshold is 0, expected a number above 0"),
        ({"type": "2bit", "threshold": "x"}, "threshold is 'x', expected a number"),
        ({"type": "1bit", "treshold": 1}, "there is no option 'treshold'"),
    ],
)
def test_wrong_compression(params: Any, message: str) -> None:
    with pytest.raises(ls.Error, match=f"set_gradient_compression: .*{message}"):
        ls.kv.create("device").set_gradient_compression(params)


@pytest.mark.parametrize("kind", ["1bit", "2bit"])
def test_compression_is_of_finite_values(kind: str) -> None:
    store = ls.kv.create("device")
    store.init(1, np.zeros(4, np.float32))
    store.set_gradient_compression({"type": kind})
    for wrong in (np.nan, np.inf, -np.inf):
        with pytest.raises(ls.Error, match="push: key 1: the value is not finite"):
            store.push(1, [np.full(4, 3, np.float32), np.array([0, 0, wrong, 0], np.float32)])
    np.testing.assert_array_equal(store.pull(1), np.zeros(4))
    store.push(1, np.full(4, 3, np.float32))
    assert (store.pull(1) > 0).all()


def test_a_file_of_other_keys_leaves_the_optimizer(tmp_path: Path) -> None:
    path = tmp_path / "states"
    other, store = ls.kv.create("local"), ls.kv.create("local")
    for each, key, optimizer in ((other, "x", ls.optim.Adam(0.1)), (store, "y", ls.optim.SGD(0.1, momentum=0.9))):
        each.init(key, np.zeros(2, np.float32))
        each.set_optimizer(optimizer)
        each.push(key, np.ones(2, np.float32))
    other.save_optimizer_states(path, dump_optimizer=True)
    before = store.pull("y")
    with pytest.raises(ls.Error, match="states: it lacks the key 'y'"):
        store.load_optimizer_states(path)
    store.push("y", np.zeros(2, np.float32))
    np.testing.assert_allclose(store.pull("y") - before, -0.1 * 0.9, rtol=1e-6)  # by the momentum that it has


def test_compression_that_is_set_anew_forgets_what_was_left() -> None:
    store = ls.kv.create("device")
    store.init(0, np.zeros(4, np.float32))
    for _ in range(2):
        store.set_gradient_compression({"type": "2bit", "threshold": 0.5})
        store.push(0, [np.full(4, 0.3, np.float32)])
        np.testing.assert_array_equal(store.pull(0), np.zeros(4))


def test_compression_is_of_f32() -> None:
    store = ls.kv.create("device")
    store.init(1, np.ones(3))
    with pytest.raises(ls.Error, match=r"key 1 is f64\[3\], but gradient compression requires f32"):
        store.set_gradient_compression({"type": "2bit"})


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (([0, 5], ones(shape=(2, 3)), (4, 3)), r"RowSparse: indices have row 5, but there are 4 rows"),
        (([0], ones(shape=(2, 3)), (4, 3)), r"values have the shape \(2, 3\), expected \(1, 3\): 1 rows of \(4, 3\)"),
        (([-1], ones(shape=(1, 3)), (4, 3)), "have row -1"),
        (([0], ones(shape=(1, 3)), 4), r"RowSparse: shape is 4, expected .* such as \(4, 3\)"),
        (([0], ones(shape=(1, 3)), (4, "3")), "RowSparse: an extent of shape is '3', expected a whole number"),
    ],
)
def test_wrong_rows(arguments: Any, message: str) -> None:
    with pytest.raises(ls.Error, match=message):
        ls.kv.RowSparse(*arguments)


def test_kinds_that_there_are_not() -> None:
    with pytest.raises(ls.Error, match="there is no store of the kind 'redis'; there are local, device, dist_sync"):
        ls.kv.create("redis")
    for kind in ("nccl", "horovod", "p3", "local_allreduce_device"):
        with pytest.raises(ls.Error, match=re.escape(f"there is no store of the kind {kind!r} here; use")):
            ls.kv.create(kind)
    with pytest.raises(ls.Error, match="the kind 'local' is for one process, but world has 2; use"):
        ls.kv.create("local", ls.Communicator.in_process(2)[0])
    with pytest.raises(ls.Error, match="create: world is 3, expected a lockstep.Communicator"):
        ls.kv.create("dist_sync", 3)  # type: ignore[arg-type]
