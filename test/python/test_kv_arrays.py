"""Arrays `data()` and `grad()` of a store, from which pulls and pushes do not copy. The oracle, bit by bit, is a loop
that copies.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import lockstep as ls
from cases import CASES
from ranks import run_in_threads

MLP = next(case for case in CASES if case.name == "mlp")
RANKS = pytest.mark.parametrize("n", [1, 2, 3])
SHAPE = (2, 3)
BATCH = 8  # of one worker
Array = np.ndarray


def ones(times: float = 1, shape: tuple[int, ...] = SHAPE) -> Array:
    return np.full(shape, times, np.float32)


def on_ranks(n: int, body: Callable[[ls.kv.KVStore], Any], kind: str = "dist_sync") -> list[Any]:
    """The results of body on each of n workers; n = 0 is a store of the kind "local"."""
    if n == 0:
        return [body(ls.kv.create("local"))]
    results = run_in_threads(n, lambda world: body(ls.kv.create(kind, world)))
    for result in results:
        if isinstance(result, Exception):
            raise result
    return results


def gradient_step() -> tuple[ls.Executable, dict[str, Array]]:
    model = ls.load_onnx(MLP.model, dims={"batch": BATCH})
    exe = ls.compile(ls.train_step(model, ls.loss.softmax_cross_entropy("logits", "label"), None), threads=1)
    return exe, {state.name: np.array(model.initial_value(state.name)) for state in model.states}


def batch(step: int, rank: int) -> dict[str, Array]:
    x, label = MLP.data()
    rows = slice((3 * step + rank) * BATCH, (3 * step + rank + 1) * BATCH)
    return {"x": x[rows], "label": label[rows]}


def train(store: ls.kv.KVStore, in_place: bool, optimizer: ls.optim.Optimizer | None) -> list[dict[str, Array]]:
    """The weights after each of four steps. Without an optimizer, an updater changes them."""
    exe, weights = gradient_step()
    names = list(weights)
    store.init(names, list(weights.values()))
    if optimizer is None:
        store.set_updater(lambda key, pushed, stored: np.subtract(stored, 0.1 * pushed, out=stored))
    else:
        store.set_optimizer(optimizer, rescale_grad=1 / store.num_workers)
    if in_place:
        weights = dict(zip(names, store.data(names), strict=True))
        gradients = store.grad(names)
        exe.bind(states=weights, results={f"grad/{name}": g for name, g in zip(names, gradients, strict=True)})
    after = []
    for step in range(4):
        if not in_place:
            exe.state.update(weights)
        results = exe(**batch(step, store.rank))
        store.push(names, gradients if in_place else [results[f"grad/{name}"] for name in names])
        store.pull(names, out=list(weights.values()))
        after.append({name: value.copy() for name, value in weights.items()})
    return after


@pytest.mark.parametrize("n", [0, 1, 2, 3])
@pytest.mark.parametrize("optimizer", [ls.optim.SGD(0.1, momentum=0.9), None], ids=["SGD", "updater"])
def test_training_in_place(n: int, optimizer: ls.optim.Optimizer | None) -> None:
    expected = on_ranks(n, lambda store: train(store, False, optimizer))[0]
    for found in on_ranks(n, lambda store: train(store, True, optimizer)):
        for ours, theirs in zip(found, expected, strict=True):
            for name, value in theirs.items():
                np.testing.assert_array_equal(ours[name], value, err_msg=name)
    assert any(not np.array_equal(expected[0][name], value) for name, value in expected[3].items())


@pytest.mark.parametrize("n", [0, 1, 2])
def test_the_arrays_stay(n: int) -> None:
    """Everything that changes values writes into the same arrays, also for keys that are added later."""

    def body(store: ls.kv.KVStore) -> list[Array]:
        workers = store.num_workers
        store.init("w", ones(1))
        w, g = store.data("w"), store.grad("w")
        assert store.data(["w"])[0] is w
        assert store.grad("w") is g
        assert not np.shares_memory(w, g)
        assert w.ctypes.data % 64 == g.ctypes.data % 64 == 0
        found = [w.copy()]

        def push(value: float, **how: Any) -> None:
            g.fill(value)
            assert np.array_equal(w, found[-1])  # writing a gradient changes no value
            store.push("w", g)
            store.pull("w", **how)
            found.append(w.copy())

        push(3, out=w)  # replaces the value
        store.set_updater(lambda key, pushed, stored: np.copyto(stored, 2 * pushed))
        push(4, out=w)
        store.set_optimizer(ls.optim.SGD(1.0), rescale_grad=1 / workers)
        store.init("v", ones(9, (5,)))
        push(-1, out=w)
        push(-1)  # a pull into other arrays updates these, too
        store.set_optimizer(ls.optim.SGD(2.0), rescale_grad=1 / workers)
        push(-1, out=[w, ones()])
        v = store.data("v")
        store.push("v", ones(2, (5,)))
        store.pull("v", out=v)
        assert np.array_equal(v, ones(5, (5,)))
        assert store.data("w") is w
        assert store.grad("w") is g
        return found

    for found in on_ranks(n, body):
        workers = max(n, 1)
        expected = [1, 3 * workers, 8 * workers, 8 * workers + 1, 8 * workers + 2, 8 * workers + 4]
        np.testing.assert_array_equal(found, [ones(each) for each in expected])


@pytest.mark.parametrize("n", [0, 1, 2])
def test_nothing_is_copied(n: int, monkeypatch: pytest.MonkeyPatch) -> None:
    def body(store: ls.kv.KVStore) -> Array:
        store.init("w", ones(0))
        store.set_optimizer(ls.optim.SGD(1.0))
        w, g = store.data("w"), store.grad("w")
        g.fill(1)
        store.barrier()
        monkeypatch.setattr(np, "copyto", None)
        store.push("w", g)
        store.pull("w", out=w)
        return w

    for w in on_ranks(n, body):
        monkeypatch.undo()
        np.testing.assert_array_equal(w, ones(-max(n, 1)))


@RANKS
def test_a_gradient_is_the_store_s_from_push_to_pull(n: int) -> None:
    def body(store: ls.kv.KVStore) -> list[Any]:
        store.init(["a", "b"], [ones(0), ones(0)])
        a, b = store.grad(["a", "b"])
        a.fill(1)
        store.push("a", a)
        assert not a.flags.writeable
        assert b.flags.writeable
        with pytest.raises(ValueError, match="read-only"):
            a.fill(2)
        messages = []
        for key in ("a", "b"):
            with pytest.raises(ls.Error, match=f"push.*key '{key}'.*grad\\('a'\\), which was already pushed") as e:
                store.push(key, a)
            messages.append(str(e.value))
        store.push("b", ones(5))  # from another array: this uses the gradient's memory too
        assert not b.flags.writeable
        pulled = store.pull(["a", "b"])
        assert a.flags.writeable
        assert b.flags.writeable
        store.push("b", a)  # allowed again: the pull has ended the first push
        return [*pulled, messages]

    for a, b, messages in on_ranks(n, body):
        np.testing.assert_array_equal(a, ones(n))
        np.testing.assert_array_equal(b, ones(5 * n))
        assert ("on rank" in messages[0]) == (n > 1)


def test_a_gradient_stays_the_caller_s_where_nothing_travels() -> None:
    store = ls.kv.create("local")
    store.init("w", ones(0))
    store.set_optimizer(ls.optim.SGD(1.0))
    g = store.grad("w")
    g.fill(1)
    store.push("w", g)
    store.push("w", g)
    g.fill(5)
    np.testing.assert_array_equal(store.pull("w"), ones(-2))


@pytest.mark.parametrize("n", [0, 1, 2])
@pytest.mark.parametrize("at", [0, 1, 2])
def test_with_other_devices(at: int, n: int) -> None:
    """The store's array at any index of a list, and rows beside it."""

    def body(store: ls.kv.KVStore) -> list[Array]:
        store.init("w", ones(0))
        g, w = store.grad("w"), store.data("w")
        g.fill(100)
        values: list[Any] = [ones(1), ones(10)]
        values.insert(at, g)
        store.push("w", values)
        found = [store.pull("w")]
        g.fill(100)
        values = [ls.kv.RowSparse([0], ones(1, (1, 3)), SHAPE)] * 2
        values.insert(at, g)
        store.push("w", values)
        store.pull("w", out=w)
        found.append(w.copy())
        values = [ones(1), ones(10)]
        values.insert(at, w)  # the pushed value is that of before the push
        store.push("w", values)
        return [*found, store.pull("w")]

    for found in on_ranks(n, body):
        rows = max(n, 1) * np.array([[102] * 3, [100] * 3], np.float32)
        np.testing.assert_array_equal(found, [ones(111 * max(n, 1)), rows, max(n, 1) * (rows + 11)])


@RANKS
def test_in_and_out_in_one(n: int) -> None:
    def body(store: ls.kv.KVStore) -> list[Array]:
        store.init("w", ones(0))
        g = store.grad("w")
        g.fill(2)
        assert not store.pull("w").any()  # a gradient that was not pushed has no effect
        store.pushpull("w", g)
        found = [g.copy()]
        store.set_optimizer(ls.optim.SGD(1.0))
        store.pushpull("w", g, out=[g, store.data("w")])
        return [*found, g.copy(), store.data("w").copy()]

    for found in on_ranks(n, body):
        np.testing.assert_array_equal(found, [ones(2 * n), ones(2 * n - 2 * n * n), ones(2 * n - 2 * n * n)])


@RANKS
def test_compressed(n: int) -> None:
    def body(store: ls.kv.KVStore, in_place: bool) -> list[Array]:
        store.init("w", ones(0))
        store.set_gradient_compression({"type": "2bit", "threshold": 0.5})
        gradient = store.grad("w") if in_place else np.empty(SHAPE, np.float32)
        pulled = []
        for step in range(3):
            gradient[...] = np.random.default_rng([step, store.rank]).normal(size=SHAPE)
            store.push("w", gradient)
            pulled.append(store.pull("w"))
        return pulled

    expected = on_ranks(n, lambda store: body(store, False))
    np.testing.assert_array_equal(on_ranks(n, lambda store: body(store, True)), expected)


@pytest.mark.parametrize("n", [0, 2])
def test_states_in_files_go_with_the_arrays(n: int, tmp_path: Any) -> None:
    def body(store: ls.kv.KVStore) -> list[Array]:
        store.init(3, ones(1))
        w, g = store.data(3), store.grad(3)
        store.set_optimizer(ls.optim.SGD(0.5, momentum=0.5))
        g.fill(1 / store.num_workers)
        store.push(3, g)
        store.save_optimizer_states(tmp_path / "states", dump_optimizer=True)
        store.load_optimizer_states(tmp_path / "states")
        g.fill(0)
        store.push(3, g)
        store.pull(3, out=w)
        return [w.copy()]

    for found in on_ranks(n, body):
        np.testing.assert_array_equal(found, [ones(0.25)])


def test_bfloat16_and_nothing() -> None:
    bfloat16 = pytest.importorskip("ml_dtypes").bfloat16

    def body(store: ls.kv.KVStore) -> list[Array]:
        store.init(["b", "none"], [ones(1).astype(bfloat16), ones(1, (0, 4))])
        store.set_optimizer(ls.optim.SGD(1.0))
        w, g = store.data(["b", "none"]), store.grad(["b", "none"])
        g[0].fill(2)
        store.push(["b", "none"], g)
        store.pull(["b", "none"], out=w)
        return [w[0].astype(np.float32)]

    for found in on_ranks(2, body):
        np.testing.assert_array_equal(found, [ones(-3)])


def test_unknown_keys() -> None:
    store = ls.kv.create()
    for call in (store.data, store.grad):
        with pytest.raises(ls.Error, match=f"{call.__name__}: key 'w' was not initialised; there are none"):
            call("w")
