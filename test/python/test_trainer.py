"""Trainer: the bits of a hand-written loop; PyTorch's numbers; stores, options and their errors."""

from __future__ import annotations

import importlib.util
import json
import logging
import re
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import lockstep as ls
from cases import BATCH, CASES, MLP_SPLIT, ROOT, STEPS, Case
from ranks import errors_of, run_in_threads

MLP = CASES[1]
LOSS = ls.loss.softmax_cross_entropy("logits", "label")
COUNT = 3 * BATCH + 37  # the last batch is not full, and on three ranks one has no row of it


def samples(count: int = COUNT, case: Case = MLP) -> tuple[np.ndarray, np.ndarray]:
    x, labels = case.data()
    return x[:count], labels[:count]


def trainer(world: ls.Communicator | None = None, **options: Any) -> ls.Trainer:
    model = ls.load_onnx(MLP.model, dims={"batch": BATCH})
    return ls.Trainer(model, LOSS, ls.optim.Adam(0.01), kvstore=world, **{"threads": 1, **options})


def states(exe: ls.Executable) -> dict[str, np.ndarray]:
    return {name: np.array(exe.state[name]) for name in exe.state}


def assert_same(one: dict[str, np.ndarray], other: dict[str, np.ndarray]) -> None:
    assert one.keys() == other.keys() and len(one) > 5
    for name, value in one.items():
        np.testing.assert_array_equal(value, other[name], err_msg=name)


# --- A hand-written loop


@pytest.mark.parametrize("uneven", [True, False])
@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_fit_is_the_loop_of_ones_own_bit_by_bit(ranks: int, uneven: bool) -> None:
    x, labels = samples()
    last = "pad" if uneven else "drop"

    def loop(world: ls.Communicator) -> tuple[list[float], dict[str, np.ndarray]]:
        model = ls.load_onnx(MLP.model, dims={"batch": BATCH})
        exe = ls.compile(ls.train_step(model, LOSS, ls.optim.Adam(0.01), uneven=uneven), world=world, threads=1)
        losses = []
        for epoch in range(2):
            batches = ls.data.batches(x, labels, size=BATCH, world=world, seed=7 + epoch, last=last)
            if uneven:
                losses += [
                    float(result["loss"])
                    for result in exe.joined({"x": x, "label": label, "rows": rows} for x, label, rows in batches)
                ]
            else:
                losses += [float(exe(x=x, label=label)["loss"]) for x, label in batches]
        return losses, states(exe)

    def fit(world: ls.Communicator) -> tuple[list[float], dict[str, np.ndarray]]:
        found = trainer(world, uneven=uneven)
        results = found.fit((x, labels), epochs=2, seed=7)
        steps = 4 if uneven else 3
        assert [each["step"] for each in results] == [steps, 2 * steps] and len(found.losses) == 2 * steps
        counts = [96, 96, 96, 37][:steps]
        for epoch, each in enumerate(results):
            part = found.losses[epoch * steps : (epoch + 1) * steps]
            assert each == {"epoch": epoch + 1, "step": each["step"], "loss": np.average(part, weights=counts)}
        found.executable.check_replicas()
        return found.losses, states(found.executable)

    for one, other in zip(run_in_threads(ranks, loop), run_in_threads(ranks, fit), strict=True):
        assert one[0] == other[0]
        assert_same(one[1], other[1])


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_losses_are_pytorch_s(case: Case) -> None:
    expected = json.loads((ROOT / "test/python/pytorch_losses.json").read_text())[case.name]

    def body(world: ls.Communicator) -> list[float]:
        found = ls.Trainer(case.model, LOSS, case.optimizer, kvstore=world, dims={"batch": BATCH}, threads=1)
        found.fit(case.data(), seed=None)
        return found.losses

    for losses in run_in_threads(2, body):
        assert len(losses) == STEPS
        np.testing.assert_allclose(losses[:10], expected[:10], rtol=1e-4)
        np.testing.assert_allclose(losses, expected, rtol=0.05)


@pytest.mark.parametrize("case", CASES[1:], ids=lambda case: case.name)  # without and with batch normalisation
@pytest.mark.parametrize("ranks", [1, 3])
def test_batches_that_are_not_full_are_those_of_pytorch(case: Case, ranks: int) -> None:
    if any(importlib.util.find_spec(name) is None for name in ("torch", "onnx")):
        pytest.skip("torch is not installed")
    import torch

    from pytorch_oracle import load_module, make_optimizer

    x, labels = samples(COUNT, case)
    module = load_module(case)
    optimizer = make_optimizer(case, module)
    expected, accuracies = [], []
    for _ in range(2):
        module.train()
        for begin in range(0, COUNT, BATCH):
            rows = slice(begin, begin + BATCH)
            optimizer.zero_grad()
            loss = torch.nn.functional.cross_entropy(module(torch.from_numpy(x[rows])), torch.from_numpy(labels[rows]))
            loss.backward()
            optimizer.step()
            expected.append(loss.item())
        module.eval()
        with torch.no_grad():
            scores = module(torch.from_numpy(x)).numpy()
        accuracies.append(float(np.mean(scores.argmax(axis=1) == labels)))

    def body(world: ls.Communicator) -> tuple[list[float], list[float]]:
        found = ls.Trainer(case.model, LOSS, case.optimizer, kvstore=world, dims={"batch": BATCH}, threads=1)
        results = found.fit((x, labels), validation=(x, labels), epochs=2, seed=None)
        return found.losses, [each["accuracy"] for each in results]

    for losses, found in run_in_threads(ranks, body):
        np.testing.assert_allclose(losses, expected, rtol=1e-3)
        np.testing.assert_allclose(found, accuracies, atol=1.5 / COUNT)


def test_a_step_takes_the_inputs_in_order_or_by_name() -> None:
    x, labels = samples(BATCH)
    one, two, three = trainer(), trainer(), trainer()
    losses = [one.step((x, labels)), one.step([x[:5], labels[:5]])]
    assert losses == [two.step({"x": x, "label": labels}), two.step({"label": labels[:5], "x": x[:5]})]
    weights = np.float32(np.arange(BATCH) < 5)
    np.testing.assert_allclose(three.step((x, labels)), losses[0], rtol=1e-6)
    np.testing.assert_allclose(three.step((x, labels, weights)), losses[1], rtol=1e-5)
    assert one.executable.step == 2 and "rank 0 of 1, step 2" in repr(one)
    assert np.isnan(one.step({})), "no worker has a row"


def test_workers_with_parts_of_their_own_count_each_sample_once() -> None:
    """If the data set is a part, batches are this worker's own. The parts differ in length, and one worker has none."""
    x, labels = samples(41)

    class Part:
        def __init__(self, parts: int, index: int) -> None:
            self.rows = list(ls.data.SplitSampler(len(x), parts, index))
            self.num_parts = parts

        def __len__(self) -> int:
            return len(self.rows)

        def __getitem__(self, index: int) -> tuple[np.ndarray, np.int64]:
            return x[self.rows[index]], labels[self.rows[index]]

    def body(world: ls.Communicator) -> tuple[list[float], Any]:
        found = trainer(world)
        part = Part(2, world.rank) if world.rank < 2 else iter(())
        (results,) = found.fit(part, Part(2, world.rank) if world.rank < 2 else iter(()), seed=None)
        return found.losses, results

    results = run_in_threads(3, body)
    assert len(results[0][0]) == 1  # one step: parts of 20 and 21 samples, with 32 rows per worker and step
    assert all(each == results[0] for each in results)
    alone = trainer()
    order = list(ls.data.SplitSampler(len(x)))
    np.testing.assert_allclose(results[0][0], [alone.step((x[order], labels[order]))], rtol=1e-5)
    assert abs(results[0][1]["accuracy"] - alone.evaluate((x, labels))["accuracy"]) < 1e-9


def test_data_of_other_lengths_is_an_error() -> None:
    """Otherwise each worker would take its rows from another whole."""
    x, labels = samples(64)

    def body(world: ls.Communicator) -> Any:
        found = trainer(world)
        with pytest.raises(ls.Error, match="the data is all of 64 samples on rank 0 and a part on rank 1"):
            found.fit((x, labels) if world.rank == 0 else iter([]))
        with pytest.raises(ls.Error, match="no image" if world.rank == 1 else "rank 1 on host .*: no image"):
            found.fit(lambda _: (x, labels) if world.rank == 0 else no_image())
        with pytest.raises(ls.Error) as caught:
            found.fit((x[: 64 - world.rank], labels[: 64 - world.rank]))
        found.fit((x, labels))  # an error that all ranks get before a step leaves the world usable
        raise caught.value

    for error in errors_of(2, body):
        assert "the data is all of 64 samples on rank 0 and all of 63 samples on rank 1" in error, error


def no_image() -> Any:
    raise ls.Error("no image")


def test_on_a_mesh_ranks_that_differ_along_other_axes_have_the_same_rows() -> None:
    x, labels = samples()

    def body(world: ls.Communicator) -> tuple[list[dict], np.ndarray]:
        found = trainer(world, mesh={"data": 2, "model": 2}, split=MLP_SPLIT)
        results = found.fit((x, labels), (x, labels), epochs=2)
        return results, found.evaluate((x, labels), {"matrix": ls.metrics.ConfusionMatrix(5)})["matrix"]

    alone = trainer()
    expected = alone.fit((x, labels), (x, labels), epochs=2)
    for results, matrix in run_in_threads(4, body):
        for one, other in zip(results, expected, strict=True):
            np.testing.assert_allclose(list(one.values()), list(other.values()), rtol=1e-2)
        np.testing.assert_array_equal(matrix.sum(axis=1), np.bincount(labels, minlength=5), "each sample once")


@pytest.mark.parametrize("how", ["split", "placements", "plan"])
def test_ranks_that_share_weights_alone_train_and_evaluate_as_one(how: str) -> None:
    x, labels = samples()
    mesh = {"data": 1, "model": 2}
    model = ls.load_onnx(MLP.model, dims={"batch": BATCH})
    plan = ls.plan(ls.train_step(model, LOSS, ls.optim.Adam(0.01), uneven=True), mesh)
    placements = {
        "fc1.weight/adam_v": ls.replicated(),
        "fc2.weight": ls.split(1, "model"),
        "fc1.*": ls.split(0, "model"),
    }
    options = {
        "split": {"mesh": mesh, "split": MLP_SPLIT},
        "placements": {"mesh": mesh, "placements": placements},
        "plan": {"placements": plan},
    }[how]

    def body(world: ls.Communicator) -> list[dict]:
        return trainer(world, **options).fit((x, labels), (x, labels), epochs=2)

    expected = trainer().fit((x, labels), (x, labels), epochs=2)
    for results in run_in_threads(2, body):
        assert not isinstance(results, Exception), results
        for one, other in zip(results, expected, strict=True):
            np.testing.assert_allclose(list(one.values()), list(other.values()), rtol=1e-2)


def test_stages_are_not_evaluated_and_say_so_before_training() -> None:
    x, labels = samples()
    reached: list[int] = []

    def body(world: ls.Communicator) -> None:
        found = trainer(world, mesh={"stage": 2})
        for call in (lambda: found.fit((x, labels), (x, labels)), lambda: found.evaluate((x, labels))):
            with pytest.raises(ls.Error, match="has stages, .*: leave out validation .*SGD.0.0. on the same mesh"):
                call()
        reached.append(found.executable.step)

    assert run_in_threads(2, body) == [None, None]
    assert reached == [0, 0]


# --- Data for training


def test_batches_of_ones_own_and_functions_of_the_epoch() -> None:
    x, labels = samples()
    asked = []

    def train(epoch: int) -> Iterator[tuple[np.ndarray, ...]]:
        asked.append(epoch)
        return iter(ls.data.batches(x, labels, size=BATCH, seed=epoch, last="pad"))

    found, expected = trainer(), trainer()
    found.fit(train, epochs=2)
    found.fit(train)
    expected.fit((x, labels), epochs=3)
    assert asked == [0, 1, 2] and found.losses == expected.losses and found.epoch == 3
    data_set = [(x[i], labels[i]) for i in range(COUNT)]
    again = trainer()
    again.fit(data_set, epochs=3)
    assert again.losses == expected.losses
    with pytest.raises(ls.Error, match="fit: epoch 2 has no batch"):
        trainer().fit(iter([(x[:BATCH], labels[:BATCH])]), epochs=2)
    same = ls.data.batches(x, labels, size=BATCH, seed=0, last="pad")
    named = [dict(zip(("x", "label", "rows"), batch, strict=True)) for batch in same]
    for batches in (same, list(same), [list(batch) for batch in same], named):
        once = trainer()
        once.fit(batches)
        assert once.losses == expected.losses[:4]


def test_an_evaluation_counts_each_row_once() -> None:
    x, labels = samples()
    found = trainer()
    found.fit((x, labels))
    model = ls.compile(ls.load_onnx(MLP.model, dims={"batch": COUNT}), threads=1)
    model.state.update({name: found.executable.state[name] for name in model.state})
    scores = model(x=x)["logits"]
    accuracy = np.mean(scores.argmax(axis=1) == labels)
    shifted = scores - scores.max(axis=1, keepdims=True)
    losses = np.log(np.exp(shifted).sum(axis=1)) - shifted[np.arange(COUNT), labels]
    expected = {"loss": losses.mean(), "accuracy": accuracy}
    assert found.evaluate((x, labels)) == pytest.approx(expected, rel=1e-5)
    short = ((x[i : i + 50], labels[i : i + 50]) for i in range(0, COUNT, 50))
    assert found.evaluate(short) == pytest.approx(expected, rel=1e-5)
    top3 = found.evaluate((x, labels), {"top3": ls.metrics.Accuracy(k=3), "matrix": ls.metrics.ConfusionMatrix(5)})
    assert top3["top3"] == pytest.approx(np.mean((scores > np.take_along_axis(scores, labels[:, None], 1)).sum(1) < 3))
    assert top3["matrix"].sum() == COUNT and np.trace(top3["matrix"]) == round(accuracy * COUNT)


def test_a_function_gives_a_metric_numbers() -> None:
    x, _ = samples()
    target = np.random.default_rng(0).standard_normal((COUNT, 5)).astype(np.float32)
    model = ls.load_onnx(MLP.model, dims={"batch": BATCH})
    loss = ls.loss.mean_squared_error("logits", "target")
    found = ls.Trainer(model, loss, "adam", {"learning_rate": 0.01}, threads=1)

    def error(results: dict[str, np.ndarray], batch: dict[str, np.ndarray]) -> np.ndarray:
        return np.mean((results["logits"] - batch["target"]) ** 2, axis=1)

    metrics = {"mse": (ls.metrics.Mean(), error)}
    results = found.fit((x, target), (x, target), epochs=3, metrics=metrics)
    assert results[2]["mse"] < results[1]["mse"] < results[0]["loss"]
    with pytest.raises(ls.Error, match="metric mse is .*, expected one of lockstep.metrics, or a tuple"):
        found.evaluate((x, target), {"mse": error})


@pytest.mark.parametrize(("answer", "epochs"), [(np.float32(1) < 2, 1), (np.float32(1) > 2, 3), (1, 3), (None, 3)])
def test_a_callback_may_compare_numbers_of_numpy(answer: Any, epochs: int) -> None:
    x, labels = samples()
    assert len(trainer().fit((x, labels), epochs=3, callbacks=[lambda *_: answer])) == epochs


def test_callbacks_get_the_results_and_end_training_on_all() -> None:
    x, labels = samples()

    def body(world: ls.Communicator) -> tuple[int, list[dict]]:
        found, seen = trainer(world), []

        def log(the: ls.Trainer, results: dict) -> int:
            assert the is found and the.epoch == results["epoch"]
            seen.append(results)
            return len(seen)  # not True

        def stop(_: ls.Trainer, results: dict) -> bool:
            return world.rank == 1 and results["epoch"] == 2  # on one rank only

        assert found.fit((x, labels), epochs=5, callbacks=[stop, log]) == seen == found.history
        return found.epoch, seen

    assert [epoch for epoch, _ in run_in_threads(2, body)] == [2, 2]


def test_the_learning_rate_is_read_and_set() -> None:
    x, labels = samples(BATCH)
    found = ls.Trainer(MLP.model, LOSS, "sgd", {"learning_rate": 0.1}, dims={"batch": BATCH}, threads=1)
    assert found.learning_rate == 0.1
    found.set_learning_rate(0.0)
    before = states(found.executable)
    found.step((x, labels))
    assert_same(before, states(found.executable))
    found.set_learning_rate(lambda step: 0.5 / (step + 1))
    found.step((x, labels))
    assert found.learning_rate == 0.25
    with pytest.raises(ls.Error, match="learning_rate is -1"):
        found.set_learning_rate(-1)


def test_averaged_weights_are_evaluated() -> None:
    x, labels = samples()
    found = trainer(average=lambda step: float(step == 0))  # always the weights after the first step
    found.fit((x, labels), epochs=4)
    first = trainer()
    first.step(next(iter(ls.data.batches(x, labels, size=BATCH, seed=0))))
    assert found.evaluate((x, labels)) == first.evaluate((x, labels))


# --- Files


def test_a_run_that_is_continued_ends_with_the_same_bits(tmp_path: Path) -> None:
    x, labels = samples()
    path = tmp_path / "trainer.states"

    def whole(world: ls.Communicator) -> tuple[list[float], dict[str, np.ndarray]]:
        found = trainer(world)
        found.fit((x, labels), epochs=2)
        found.set_learning_rate(0.02)
        found.fit((x, labels))
        assert [each["epoch"] for each in found.history] == [1, 2, 3], "the history covers all calls of fit"
        return found.losses, states(found.executable)

    def begin(world: ls.Communicator) -> list[float]:
        found = trainer(world)
        found.fit((x, labels), epochs=2)
        found.set_learning_rate(0.02)
        found.save_states(path)
        return found.losses

    def end(world: ls.Communicator) -> tuple[list[float], dict[str, np.ndarray]]:
        found = trainer(world)
        found.fit((x, labels))
        found.load_states(path)
        assert found.epoch == 2 and found.executable.step == 8 and found.losses == found.history == []
        (results,) = found.fit((x, labels))
        assert results["epoch"] == 3
        return found.losses, states(found.executable)

    expected, before, after = (run_in_threads(2, body) for body in (whole, begin, end))
    for (losses, values), first, (last, found) in zip(expected, before, after, strict=True):
        assert losses == first + last
        assert_same(values, found)


# --- Optimizers and stores by MXNet's names


@pytest.mark.parametrize(
    ("name", "params", "expected"),
    [
        ("sgd", {"learning_rate": 0.1, "momentum": 0.9, "wd": 1e-4}, ls.optim.SGD(0.1, 0.9, weight_decay=1e-4)),
        ("sgd", None, ls.optim.SGD(0.01)),
        ("SGD", {"lr": 0.2, "rescale_grad": 1.0, "clip_gradient": None, "lr_scheduler": None}, None),
        ("nag", {"learning_rate": 0.1}, ls.optim.SGD(0.1, 0.9, nesterov=True)),
        ("nag", {"learning_rate": 0.1, "momentum": 0.5}, ls.optim.SGD(0.1, 0.5, nesterov=True)),
        ("adam", {"beta1": 0.8, "epsilon": 1e-6}, ls.optim.Adam(beta1=0.8, epsilon=1e-6)),
        ("adamw", {"wd": 0.1}, ls.optim.AdamW(weight_decay=0.1)),
        ("rmsprop", {"gamma1": 0.9, "centered": True}, ls.optim.RMSprop(alpha=0.9, centered=True)),
        ("adadelta", {"rho": 0.8}, ls.optim.Adadelta(rho=0.8)),
        ("adagrad", {"eps": 1e-7}, ls.optim.Adagrad(epsilon=1e-7)),
        ("lamb", {}, ls.optim.LAMB()),
    ],
)
def test_an_optimizer_by_name(name: str, params: dict | None, expected: ls.optim.Optimizer | None) -> None:
    found = ls._trainer.options.optimizer_of(name, params)
    assert found == (expected or found) and isinstance(found, ls.optim.Optimizer)


def test_a_scheduler_is_a_learning_rate() -> None:
    found = ls._trainer.options.optimizer_of("sgd", {"lr_scheduler": ls.schedule.cosine(0.1, 10)})
    assert callable(found.learning_rate) and found.learning_rate(0) == 0.1


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("sgdd", {}), "there is no optimizer 'sgdd'; is sgd meant\\? There are: .*adam.*nag.*sgd"),
        (("sgd", {"beta1": 0.9}), "the optimizer sgd has no option 'beta1'\\. It has: .*momentum"),
        (("sgd", {"wd": 0.1, "weight_decay": 0.1}), "optimizer_params has weight_decay twice"),
        (("sgd", {"lr_scheduler": len, "learning_rate": 0.1}), "optimizer_params has learning_rate twice"),
        (("sgd", {"rescale_grad": 0.5}), "rescale_grad: the loss is a mean over the global batch"),
        (("sgd", {"clip_gradient": 1.0}), "clip_gradient: Trainer.*clip"),
        (("sgd", {"learning_rate": -1}), "learning_rate is -1"),
        (("sgd", [0.1]), r"optimizer_params is \[0.1\], expected options by name"),
        ((ls.optim.SGD(0.1), {"momentum": 0.9}), "has its own options, but optimizer_params is also given"),
        ((ls.optim.SGD, None), "the optimizer is the class SGD, expected one with its options"),
    ],
)
def test_optimizers_that_there_are_not(arguments: tuple, words: str) -> None:
    with pytest.raises(ls.Error, match=words):
        ls.Trainer(MLP.model, LOSS, *arguments, dims={"batch": BATCH})


@pytest.mark.parametrize("kvstore", [None, "local", "device", SimpleNamespace(type="local"), "dist_sync", "dist"])
def test_stores_of_one_process_are_one_worker(kvstore: Any) -> None:
    """Without mpirun, a distributed store has one worker, too."""
    x, labels = samples(BATCH)
    found = trainer(kvstore)
    assert found.world.size == 1
    assert found.step((x, labels)) == trainer().step((x, labels))


def test_a_synchronous_store_says_who_the_workers_are() -> None:
    x, labels = samples()

    def body(world: ls.Communicator) -> list[float]:
        store = ls.kv.create("dist_sync", world)
        found = trainer(store)
        assert found.world is world and len(found.executable.collectives) > 0
        found.fit((x, labels))
        return found.losses

    expected = trainer()
    expected.fit((x, labels))
    for losses in run_in_threads(2, body):
        np.testing.assert_allclose(losses, expected.losses, rtol=1e-5)


@pytest.mark.parametrize(
    ("kvstore", "words"),
    [
        ("dist_async", 'a store of the kind dist_async is not supported: .*use "dist_sync"'),
        (SimpleNamespace(type="dist_async"), "dist_async is not supported"),
        ("nccl", "there is no store of the kind 'nccl'; there are local, device, dist_sync"),
        (3, "kvstore is 3, expected a store, its kind"),
    ],
)
def test_stores_that_do_not_do(kvstore: Any, words: str) -> None:
    with pytest.raises(ls.Error, match=words):
        trainer(kvstore)


def test_a_store_that_compresses_is_refused() -> None:
    store = ls.kv.create("device")
    store.set_gradient_compression({"type": "2bit", "threshold": 0.5})
    with pytest.raises(ls.Error, match='the store compresses pushes.*wire="bf16"'):
        trainer(store)


# --- Errors


@pytest.mark.parametrize(
    ("batch", "words"),
    [
        ((np.zeros((BATCH, 12), np.float32),), "a batch has 1 arrays, expected x, label, and rows where it is padded"),
        ({"x": 0, "labels": 0}, "a batch has no label; the program's inputs are x, label"),
        ({"x": 0, "label": 0, "lable": 0}, "a batch has 'lable'"),
        (np.zeros((BATCH, 12), np.float32), "a batch is a ndarray, expected arrays by name, or a tuple of x, label"),
    ],
)
def test_batches_that_are_wrong_are_told_to_all(batch: Any, words: str) -> None:
    x, labels = samples(BATCH)
    with pytest.raises(ls.Error, match=words):
        trainer().step(batch)

    def step(world: ls.Communicator) -> None:
        mine = (x[: BATCH // 2], labels[: BATCH // 2])
        trainer(world).step(batch if world.rank == 1 else mine)

    def fit(world: ls.Communicator) -> None:
        mine = (x[: BATCH // 2], labels[: BATCH // 2])
        trainer(world).fit(iter([mine, batch if world.rank == 1 else mine]))

    for body in (step, fit):
        assert all(re.search(words, error) for error in errors_of(2, body))


def test_what_reading_meets_on_one_worker_all_hear_of() -> None:
    x, labels = samples(BATCH)

    class Damaged:
        def __len__(self) -> int:
            return BATCH

        def __getitem__(self, index: int) -> tuple[np.ndarray, np.int64]:
            if index == 90:  # one of rank 1's rows
                raise ls.Error("sample 90 is damaged")
            return x[index], labels[index]

    for body in (
        lambda world: trainer(world).fit(Damaged(), seed=None),
        lambda world: trainer(world).evaluate(Damaged()),
    ):
        assert all("sample 90 is damaged" in error for error in errors_of(2, body))

    def callback(world: ls.Communicator) -> None:
        def fails(*_: Any) -> None:
            if world.rank == 1:
                raise ls.Error("no place left")

        trainer(world).fit((x, labels), callbacks=[fails])

    assert all("no place left" in error for error in errors_of(2, callback))


def test_arguments_that_are_wrong(caplog: pytest.LogCaptureFixture) -> None:
    x, labels = samples()
    model = ls.load_onnx(MLP.model, dims={"batch": BATCH})
    with pytest.raises(TypeError, match="'momentum' is an option of neither train_step nor compile"):
        ls.Trainer(model, LOSS, momentum=0.9)
    for call, words in (
        (lambda: ls.Trainer(model, LOSS, dims={"batch": 3}), "dims is only for a file; the model is a graph"),
        (lambda: ls.Trainer(MLP.model, LOSS), "'batch'"),
        (lambda: ls.Trainer(model, "cross_entropy"), "loss is 'cross_entropy', expected one of lockstep.loss"),
        (lambda: ls.Trainer("/nowhere.onnx", LOSS), "/nowhere.onnx: there is no such file"),
        (lambda: ls.Trainer(model, LOSS, uneven="no"), "uneven is 'no', expected True or False"),
        (
            lambda: trainer(strategy="parameter_server"),
            "needs a job with several workers, and kvstore=None is one process; give kvstore=.dist_sync",
        ),
        (lambda: trainer("device", strategy="parameter_server"), "kvstore='device' is one process"),
        (lambda: trainer("dist_sync", strategy="parameter_server"), "this job has none: start it by `lockstep launch"),
        (
            lambda: trainer("dist_sync", strategy="parameter_server", uneven=True),
            "uneven=True does not go with strategy=.parameter_server.*only full batches are used for training",
        ),
        (lambda: trainer().fit((x, labels), epochs=-1), "fit: epochs is -1"),
        (lambda: trainer().fit((x, labels), seed=-1), "fit: seed is -1"),
        (lambda: trainer().fit((x, labels), progress="no"), "fit: progress is 'no', expected True or False"),
        (
            lambda: trainer().fit((x, labels), scalars=7),
            "fit: scalars: a int is no folder, and has no method add_scalar",
        ),
        (lambda: trainer().fit(3), "the data is 3, expected a tuple of arrays, a data set, or batches"),
        (lambda: trainer().fit((x, labels[1:])), "different lengths"),
        (lambda: trainer().evaluate(iter([(x, labels)])), "a batch has x .325, 12.*, expected 1 to 96 rows of each"),
        (lambda: trainer().evaluate((x, labels), {"a": 3}), "metric a is 3, expected one of lockstep.metrics"),
        (lambda: trainer().load_states("/nowhere.states"), "/nowhere.states"),
    ):
        with pytest.raises(ls.Error, match=words):
            call()
    with caplog.at_level(logging.WARNING, "lockstep"):
        assert trainer().fit((x, labels), epochs=0) == []
    assert caplog.records == []
