"""Several devices of one worker. The oracles are pushes by one device after the other, bit by bit, and the whole batch
on one.
"""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest

import lockstep as ls
from cases import CASES
from test_kv_arrays import on_ranks

MLP = next(case for case in CASES if case.name == "mlp")
ROWS = 12  # of all workers
Array = np.ndarray


def gradient_step(rows: int) -> tuple[ls.Graph, dict[str, Array]]:
    model = ls.load_onnx(MLP.model, dims={"batch": rows})
    step = ls.train_step(model, ls.loss.softmax_cross_entropy("logits", "label"), None)
    return step, {state.name: np.array(model.initial_value(state.name)) for state in model.states}


def batch(step: int, store: ls.kv.KVStore) -> dict[str, Array]:
    """This worker's rows."""
    x, label = MLP.data()
    rows = ROWS // store.num_workers
    begin = step * ROWS + store.rank * rows
    return {"x": x[begin : begin + rows], "label": label[begin : begin + rows]}


def train(store: ls.kv.KVStore, count: int, how: str) -> list[Array]:
    """The weights after three steps."""
    rows = ROWS // store.num_workers // count
    step, weights = gradient_step(rows)
    names = list(weights)
    store.init(names, list(weights.values()))
    store.set_optimizer(ls.optim.SGD(0.1, momentum=0.9), rescale_grad=1 / count / store.num_workers)
    if how == "devices":
        devices = ls.kv.Devices(step, [f"cpu:{i}" for i in range(count)], store, threads=1)
        for i in range(3):
            results = devices(**batch(i, store))
            assert len(results) == count
            store.push(devices.names, devices.gradients)
            store.pull(devices.names, out=devices.weights)
        return [store.pull(name) for name in names]
    exe = ls.compile(step, threads=1)
    for i in range(3):
        exe.state.update(weights)
        pushed: list[list[Array]] = [[] for _ in names]
        for device in range(count):
            part = {name: each[device * rows : (device + 1) * rows] for name, each in batch(i, store).items()}
            results = exe(**part)
            for values, name in zip(pushed, names, strict=True):
                values.append(results[f"grad/{name}"])
        store.push(names, pushed)
        store.pull(names, out=list(weights.values()))
    return [weights[name] for name in names]


@pytest.mark.parametrize(("n", "count"), [(0, 3), (1, 2), (2, 2), (2, 3)])
def test_devices_train_as_one_after_the_other(n: int, count: int) -> None:
    expected = on_ranks(n, lambda store: train(store, count, "in turn"))[0]
    alone = train(ls.kv.create("local"), 1, "in turn")
    for found in on_ranks(n, lambda store: train(store, count, "devices")):
        for ours, theirs, whole in zip(found, expected, alone, strict=True):
            np.testing.assert_array_equal(ours, theirs)
            np.testing.assert_allclose(ours, whole, rtol=1e-4, atol=1e-6)


def store_of(weights: dict[str, Array]) -> ls.kv.KVStore:
    store = ls.kv.create("local")
    store.init(list(weights), list(weights.values()))
    return store


def test_devices_share_the_weights() -> None:
    step, weights = gradient_step(4)
    store = store_of(weights)
    devices = ls.kv.Devices(step, ["cpu:0", "cpu:1"], store)
    assert repr(devices) == f"<lockstep.kv.Devices cpu:0, cpu:1, {len(weights)} keys>"
    assert set(devices.names) == set(weights)
    for name, weight, gradients in zip(devices.names, devices.weights, devices.gradients, strict=True):
        assert weight is store.data(name) and not weight.flags.writeable
        assert gradients[0] is store.grad(name)
        assert len({each.ctypes.data for each in gradients}) == 2
    assert len(devices.executables) == 2


def test_devices_run_at_once() -> None:
    step, weights = gradient_step(4)
    devices = ls.kv.Devices(step, ["cpu:0", "cpu:1"], store_of(weights))
    met = threading.Barrier(2)
    devices._executables = [lambda x, label: {"place": met.wait(30), "x": x, "label": label}] * 2  # type: ignore[list-item]
    results = devices(x=np.arange(8), label=np.arange(8, 16))
    assert {each["place"] for each in results} == {0, 1}
    np.testing.assert_array_equal([each["x"] for each in results], np.arange(8).reshape(2, 4))
    np.testing.assert_array_equal([each["label"] for each in results], np.arange(8, 16).reshape(2, 4))


def test_devices_share_the_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    step, weights = gradient_step(4)
    monkeypatch.setattr("lockstep.kv._devices.default_threads", lambda world: 6)
    for count, options, threads in ((2, {}, 3), (4, {}, 1), (2, {"threads": 2}, 2)):
        devices = ls.kv.Devices(step, [f"cpu:{i}" for i in range(count)], store_of(weights), **options)
        assert [each.threads for each in devices.executables] == [threads] * count


def test_what_is_not_shared_over_the_batch_all_devices_get_whole() -> None:
    step = ls.parse(
        "graph @scaled(%x: f32[2,3] split(0), %scale: f32[4], state %w: f32[2,3]) -> (grad/w: f32[2,3], same: f32[4]) {\n"
        "  %a = mul %x, %w : f32[2,3]\n  %b = neg %scale : f32[4]\n  return %a, %b\n}\n"
    )
    devices = ls.kv.Devices(step, ["cpu:0", "cpu:1"], store_of({"w": np.ones((2, 3), np.float32)}), threads=1)
    x, scale = np.arange(12, dtype=np.float32).reshape(4, 3), np.arange(4, dtype=np.float32)
    results = devices(x=x, scale=scale)
    np.testing.assert_array_equal([each["same"] for each in results], [-scale, -scale])
    np.testing.assert_array_equal(np.concatenate(devices.gradients[0]), x)


def test_errors() -> None:
    step, weights = gradient_step(4)
    store = store_of(weights)
    for wrong, words in (
        (["cpu:0", "cuda:1"], "cuda:1: a process has one GPU, that of its rank on its host. Start a rank for each"),
        (["cpu:0", "tpu:0"], "there is no device 'tpu:0', expected one such as \"cpu:0\""),
        (["cpu:0", "cpu:0"], "devices has one twice: cpu:0, cpu:0"),
        ("cpu:0", "devices is 'cpu:0', expected a list"),
        ([], r"devices is \[\], expected a list"),
    ):
        with pytest.raises(ls.Error, match=words):
            ls.kv.Devices(step, wrong, store)
    with pytest.raises(ls.Error, match="data: key 'fc1.weight' was not initialised; there are none"):
        ls.kv.Devices(step, ["cpu:0"], ls.kv.create("local"))
    model = ls.load_onnx(MLP.model, dims={"batch": 4})
    updating = ls.train_step(model, ls.loss.softmax_cross_entropy("logits", "label"), ls.optim.SGD(0.1))
    with pytest.raises(ls.Error, match="the step has no gradients among its results"):
        ls.kv.Devices(updating, ["cpu:0"], store)
    devices = ls.kv.Devices(step, ["cpu:0", "cpu:1"], store)
    x, label = (each[:8] for each in MLP.data())
    with pytest.raises(ls.Error, match="input x has 7 rows, expected 8, 4 for each of 2 devices"):
        devices(x=x[:7], label=label)
    with pytest.raises(ls.Error, match="input label has 9 rows, expected 8, 4 for each of 2 devices"):
        devices(x=x, label=np.append(label, 0))
    wrong = label.copy()
    wrong[5] = 99
    with pytest.raises(ls.Error, match="cpu:1: .*label 99 at position"):
        devices(x=x, label=wrong)
    assert len(devices(x=x, label=label)) == 2
    with pytest.raises(ls.Error, match="input label is missing"):
        devices(x=x)


@pytest.mark.parametrize("name", ["devices", "ctx", "context"])
def test_a_trainer_says_what_does_the_same(name: str) -> None:
    options: dict[str, Any] = {name: ["cpu:0", "cpu:1"]}
    with pytest.raises(
        ls.Error, match=f"Trainer: {name}: a worker of a compiled step is one device. Start a rank for each"
    ):
        ls.Trainer(MLP.model, ls.loss.softmax_cross_entropy("logits", "label"), dims={"batch": 4}, **options)
