"""Trainer: the validation loss of each epoch, and the states of the best one."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import lockstep as ls
from cases import BATCH, CASES
from ranks import errors_of, run_in_threads

MLP, CONVNET = CASES[1], CASES[2]
LOSS = ls.loss.softmax_cross_entropy("logits", "label")
COUNT = 3 * BATCH + 37  # the last batch is not full, and on three ranks one has no row of it


def samples(count: int = COUNT) -> tuple[np.ndarray, np.ndarray]:
    x, labels = MLP.data()
    return x[:count], labels[:count]


def trainer(world: ls.Communicator | None = None, **options: Any) -> ls.Trainer:
    model = ls.load_onnx(MLP.model, dims={"batch": BATCH})
    return ls.Trainer(model, LOSS, ls.optim.Adam(0.01), kvstore=world, **{"threads": 1, **options})


@pytest.mark.skipif(
    any(importlib.util.find_spec(name) is None for name in ("torch", "onnx")), reason="torch is not installed"
)
@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_the_validation_loss_of_each_epoch_is_pytorch_s(ranks: int, capfd: pytest.CaptureFixture[str]) -> None:
    import torch

    from pytorch_oracle import load_module, make_optimizer

    x, labels = (array[:COUNT] for array in CONVNET.data())
    module = load_module(CONVNET)
    optimizer = make_optimizer(CONVNET, module)
    expected = []
    for _ in range(2):
        module.train()
        for begin in range(0, COUNT, BATCH):
            rows = slice(begin, begin + BATCH)
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(
                module(torch.from_numpy(x[rows])), torch.from_numpy(labels[rows])
            ).backward()
            optimizer.step()
        with torch.no_grad():
            scores = module.eval()(torch.from_numpy(x))
        loss = torch.nn.functional.cross_entropy(scores, torch.from_numpy(labels)).item()
        expected.append((loss, (scores.argmax(dim=1).numpy() == labels).mean()))

    def body(world: ls.Communicator) -> list[dict]:
        found = ls.Trainer(CONVNET.model, LOSS, CONVNET.optimizer, kvstore=world, dims={"batch": BATCH}, threads=1)
        return found.fit((x, labels), validation=(x, labels), epochs=2, seed=None)

    for results in run_in_threads(ranks, body):
        for each, (loss, accuracy) in zip(results, expected, strict=True):
            assert list(each) == ["epoch", "step", "loss", "validation_loss", "accuracy"]
            assert each["validation_loss"] == pytest.approx(loss, rel=1e-3)
            assert each["accuracy"] == pytest.approx(accuracy, abs=1.5 / COUNT)
    lines = [line for line in capfd.readouterr().err.splitlines() if "validation_loss" in line]
    assert [line.partition(":")[0] for line in lines] == ["epoch 1", "epoch 2"], "only rank 0 logs it"
    assert f"validation_loss {results[0]['validation_loss']:.4f}, accuracy {results[0]['accuracy']:.4f}" in lines[0]


def test_any_loss_is_evaluated() -> None:
    x, _ = samples()
    target = np.random.default_rng(0).standard_normal((COUNT, 5)).astype(np.float32)
    model = ls.load_onnx(MLP.model, dims={"batch": BATCH})
    found = ls.Trainer(model, ls.loss.mean_squared_error("logits", "target"), "adam", threads=1)
    (results,) = found.fit((x, target), (x, target))
    metric = (ls.metrics.Mean(), lambda results, batch: np.mean((results["logits"] - batch["target"]) ** 2, axis=1))
    after = found.evaluate((x, target), {"mse": metric})
    assert results["validation_loss"] == after["loss"] == pytest.approx(after["mse"], rel=1e-5)
    assert found.evaluate((x, target)) == {"loss": after["loss"]}


def test_a_worker_may_have_a_batch_without_rows() -> None:
    """Even one in the middle on all workers: the batches after it are used in training and evaluation."""
    x, labels = samples(90)
    batches = [[(x[:30], labels[:30]), {}, (x[30:48], labels[30:48])], [{}, (x[:0], labels[:0]), (x[48:], labels[48:])]]
    metrics = {"top3": ls.metrics.Accuracy(k=3)}

    def body(world: ls.Communicator) -> tuple[dict, int, int]:
        found = trainer(world)
        return found.evaluate(batches[world.rank], metrics), len(found.fit(batches[world.rank])), found.executable.step

    expected = trainer().evaluate((x, labels), metrics)
    assert run_in_threads(2, body) == [(pytest.approx(expected, rel=1e-5), 1, 2)] * 2


def test_models_whose_rows_see_each_other_are_evaluated_on_full_batches() -> None:
    text = f"""graph @m(%x: f32[{BATCH},12] split(0), state %w: f32[12,5]) -> (logits: f32[{BATCH},5]) {{
  %1 = reverse %x {{dims=[0]}} : f32[{BATCH},12]
  %2 = matmul %1, %w : f32[{BATCH},5]
  return %2
}}
"""
    x, labels = samples()
    found = ls.Trainer(ls.parse(text), LOSS, "sgd", uneven=False, threads=1)
    assert found.evaluate((x, labels))["loss"] == pytest.approx(np.log(5), rel=1e-6)
    accuracy = found.evaluate((x, labels))["accuracy"]  # with equal scores, the first class is predicted
    assert accuracy == pytest.approx(np.mean(labels[: 3 * BATCH] == 0))
    with pytest.raises(ls.Error, match="a batch of an evaluation does not have 96 rows, but this model mixes rows"):
        found.evaluate([(x[:5], labels[:5])])


def test_the_best_epoch_is_kept(tmp_path: Path) -> None:
    """The rate is large after the second epoch, so that later epochs are worse."""
    x, labels = samples()
    paths = {by: tmp_path / f"{by}.states" for by in ("validation_loss", "accuracy", "worst")}

    def body(world: ls.Communicator) -> list[dict]:
        all_results = []
        for by, path in paths.items():
            found = trainer(world)
            found.set_learning_rate(lambda step: 0.01 if step < 8 else 3.0)
            best_by = (lambda results: results["validation_loss"]) if by == "worst" else by
            results = found.fit((x, labels), (x, labels), epochs=4, best=path, best_by=best_by)
            all_results.append(results)
            after = found.evaluate((x, labels))
            found.load_states(path)
            name = "validation_loss" if by == "worst" else by
            values = [each[name] for each in results]
            kept = {"validation_loss": min, "accuracy": max, "worst": max}[by](values)
            assert found.epoch == 1 + values.index(kept)
            evaluated = found.evaluate((x, labels))
            assert evaluated["loss" if name == "validation_loss" else name] == pytest.approx(kept, rel=1e-6)
            assert (evaluated != after) == (found.epoch < 4)
        return all_results

    results = run_in_threads(2, body)
    assert not isinstance(results[0], Exception), results
    losses = [each["validation_loss"] for each in results[0][0]]
    assert results[0] == results[1] and losses.index(min(losses)) == 1


def test_a_run_that_is_continued_knows_the_best_before(tmp_path: Path) -> None:
    x, labels = samples()
    best, states = tmp_path / "best.states", tmp_path / "last.states"
    first = trainer()
    (good,) = first.fit((x, labels), (x, labels), best=best)
    first.save_states(states)
    again = trainer()
    again.load_states(states)
    again.set_learning_rate(5.0)
    (bad,) = again.fit((x, labels), (x, labels), best=best)
    assert bad["validation_loss"] > good["validation_loss"]
    again.load_states(best)
    assert again.epoch == 1 and again.evaluate((x, labels))["loss"] == good["validation_loss"]
    # With another measure, there is no best epoch yet. NaN is never the best.
    again.fit((x, labels), (x, labels), best=states, best_by="accuracy")
    again.load_states(states)
    assert again.epoch == 2
    again.fit((x, labels), (x, labels), best=tmp_path / "none.states", best_by=lambda results: float("nan"))
    assert not (tmp_path / "none.states").exists()


def epoch_kept(path: Path) -> int:
    """The epoch of the states in a file."""
    found = trainer()
    found.load_states(path)
    return found.epoch


def test_an_epoch_is_best_by_the_same_measure_and_better_than_all_before(tmp_path: Path) -> None:
    data, best, states = samples(BATCH), tmp_path / "best.states", tmp_path / "last.states"
    found = trainer()

    def fit(*values: float, trainer: ls.Trainer = found) -> list[dict]:
        """Trains an epoch for each of the values, which are their measures."""
        goodness = iter(values)
        return trainer.fit(data, data, len(values), best=best, best_by=lambda results: next(goodness))

    assert [each["epoch"] for each in fit(1.0, 1.0)] == [1, 2]
    assert epoch_kept(best) == 1, "of equal epochs the first is kept"
    assert [each["epoch"] for each in fit(0.5)] == [3], "the results are those of this call"
    assert epoch_kept(best) == 1
    found.fit(data, data, best=best)
    assert epoch_kept(best) == 4, "there was no best epoch by the validation loss"
    fit(-100.0)
    assert epoch_kept(best) == 5, "there is no best epoch by this function any more"
    again = trainer()
    again.load_states(best)
    fit(-200.0, trainer=again)
    assert epoch_kept(best) == 5, "the loaded states include their measure"
    trainer().save_states(states)
    found.load_states(states)
    fit(-300.0)
    assert epoch_kept(best) == 1, "states without a best epoch reset it"


def test_functions_of_other_names_are_other_measures(tmp_path: Path) -> None:
    """In one run, and in one that continues from its states."""
    data, best, states = samples(BATCH), tmp_path / "best.states", tmp_path / "last.states"

    def high(results: dict) -> float:
        return 100.0 + results["epoch"]

    def low(results: dict) -> float:
        return -100.0

    class Lowest:
        def __call__(self, results: dict) -> float:
            return -200.0

    found, kept = trainer(), []
    for by in (high, low, low, Lowest(), high):
        found.save_states(states)
        again = trainer()
        again.load_states(states)
        for each in (again, found):
            each.fit(data, data, best=best, best_by=by)
            kept.append(epoch_kept(best))
    assert kept == [1, 1, 2, 2, 2, 2, 4, 4, 5, 5]


def test_rank_0_decides_which_epoch_is_best(tmp_path: Path) -> None:
    x, labels = samples(BATCH)
    path = tmp_path / "best.states"

    def body(world: ls.Communicator) -> int:
        sign = -1.0 if world.rank else 1.0
        found = trainer(world)
        found.fit((x, labels), (x, labels), 2, best=path, best_by=lambda results: sign * results["epoch"])
        return found.epoch

    assert run_in_threads(2, body) == [2, 2]
    assert epoch_kept(path) == 2


def test_the_best_perplexity_is_the_lowest(tmp_path: Path) -> None:
    data, numbers = samples(BATCH), iter([2.0, 0.5, 3.0])
    metrics = {"words": (ls.metrics.Perplexity(), lambda results, batch: np.full(BATCH, next(numbers)))}
    results = trainer().fit(data, data, 3, metrics=metrics, best=tmp_path / "best.states", best_by="words")
    assert [each["words"] for each in results] == pytest.approx(np.exp([2.0, 0.5, 3.0])), (
        "each epoch has its own metric"
    )
    assert epoch_kept(tmp_path / "best.states") == 2


def test_what_is_wrong_with_best_is_said_before_training(tmp_path: Path) -> None:
    x, labels = samples()
    path, mean = tmp_path / "best.states", {"mean": (ls.metrics.Mean(), lambda results, batch: batch["rows"])}
    by_name = 'expected "validation_loss", the name of an accuracy or a perplexity among metrics, or a function'
    for options, words in (
        ({"best": path}, "fit: best requires an evaluation after each epoch; pass validation too"),
        ({"validation": (x, labels), "best": path, "best_by": "loss"}, f"best_by is 'loss', {by_name}"),
        (
            {"validation": (x, labels), "best": path, "metrics": mean, "best_by": "mean"},
            f"best_by is 'mean', {by_name}",
        ),
        ({"validation": (x, labels), "metrics": {"loss": ls.metrics.Accuracy()}}, "a metric is named 'loss'"),
        ({"validation": (x, labels), "metrics": {"step": ls.metrics.Accuracy()}}, "a metric is named 'step'"),
        ({"validation": (x, labels), "metrics": {"rows": ls.metrics.Accuracy()}}, "a metric is named 'rows'"),
    ):
        found = trainer()
        with pytest.raises(ls.Error, match=words):
            found.fit((x, labels), **options)
        assert found.executable.step == 0

    def body(world: ls.Communicator) -> None:
        trainer(world).fit((x, labels), (x, labels), best=path, best_by=lambda results: "a" if world.rank else 1.0)

    for error in errors_of(2, body):
        assert "fit: what best_by gives is 'a', expected a number" in error
