"""lockstep.evaluation: loss and metrics of whole data sets equal PyTorch's; padding, ranks, terms, and refusals."""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Iterable
from typing import Any

import numpy as np
import pytest

import lockstep as ls
from cases import BATCH, CASES, MLP_SPLIT, Case
from ranks import errors_of, run_in_threads

MLP, CONVNET = CASES[1], CASES[2]
LOSS = ls.loss.softmax_cross_entropy("logits", "label")
COUNT = 325  # of the batches of 96, the last has 37 rows, none of them on the last of three ranks
needs_torch = pytest.mark.skipif(
    any(importlib.util.find_spec(name) is None for name in ("torch", "onnx")), reason="torch is not installed"
)


def model_of(case: Case, batch: int = BATCH) -> ls.Graph:
    return ls.load_onnx(case.model, dims={"batch": batch})


def evaluated(program: ls.Graph, batches: Iterable[Any], **options: Any) -> dict[str, float]:
    return ls.compile(program, threads=1, **options).evaluate(batches)


# --- Whole data sets


@needs_torch
@pytest.mark.parametrize("case", [MLP, CONVNET], ids=lambda case: case.name)
@pytest.mark.parametrize("size", [96, 102])
@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_the_loss_and_accuracy_of_a_data_set_are_pytorch_s(case: Case, size: int, ranks: int) -> None:
    import torch

    from pytorch_oracle import load_module

    x, labels = (array[:COUNT] for array in case.data())

    def body(world: ls.Communicator) -> tuple[dict[str, float], Any]:
        model = model_of(case)
        exe = ls.compile(ls.train_step(model, LOSS, case.optimizer), world=world, threads=1)
        for image, label in ls.data.batches(x, labels, size=BATCH, world=world):
            exe(**{case.input: image}, label=label)
        metrics = {"accuracy": ls.metrics.Accuracy(), "top3": ls.metrics.Accuracy(k=3)}
        program = ls.evaluation(model.with_dims(batch=size), LOSS, metrics)
        evaluation = ls.compile(program, world=world, threads=1)
        evaluation.state.assign(exe.state)
        found = evaluation.evaluate(ls.data.batches(x, labels, size=size, world=world, last="pad"))
        module = load_module(case)
        ls.to_torch(exe, module)
        return found, module

    for found, module in run_in_threads(ranks, body):
        with torch.no_grad():
            scores = module.eval()(torch.from_numpy(x))
        target = torch.from_numpy(labels)
        right = (scores.topk(3).indices == target[:, None]).numpy()
        assert found == {
            "loss": pytest.approx(torch.nn.functional.cross_entropy(scores, target).item(), rel=1e-5),
            "accuracy": pytest.approx(right[:, 0].mean(), abs=1e-9),
            "top3": pytest.approx(right.any(axis=1).mean(), abs=1e-9),
            "rows": COUNT,
        }
        assert 0.2 < found["accuracy"] < found["top3"] < 1


@needs_torch
@pytest.mark.parametrize("ranks", [1, 3])
def test_what_counts_differs_from_batch_to_batch(ranks: int) -> None:
    """The mean is over the counted labels of the whole data set, by their weights; it is not the mean of the batches'
    means.
    """
    import torch

    from pytorch_oracle import load_module

    x, labels = (array[:COUNT].copy() for array in MLP.data())
    labels[50:180] = -100
    weights = [0.5, 2.0, 1.0, 3.0, 0.25]
    loss = ls.loss.softmax_cross_entropy(
        "logits", "label", ignore_index=-100, class_weights=weights, label_smoothing=0.1
    )
    with torch.no_grad():
        scores = load_module(MLP).eval()(torch.from_numpy(x))
    expected = torch.nn.functional.cross_entropy(
        scores, torch.from_numpy(labels), torch.tensor(weights), ignore_index=-100, label_smoothing=0.1
    )
    right = (scores.argmax(dim=1).numpy() == labels)[labels != -100].mean()

    def body(world: ls.Communicator) -> tuple[dict[str, float], float]:
        exe = ls.compile(ls.evaluation(model_of(MLP), loss), world=world, threads=1)
        batches = list(ls.data.batches(x, labels, size=BATCH, world=world, last="pad"))
        each = [exe(x=image, label=label, rows=rows)["loss"] for image, label, rows in batches]
        return exe.evaluate(batches), float(np.mean(each))

    for found, of_batches in run_in_threads(ranks, body):
        assert found["loss"] == pytest.approx(expected.item(), rel=1e-5)
        assert found["accuracy"] == pytest.approx(right, abs=1e-9)
        assert abs(of_batches - expected.item()) > 1e-3


SCORES = """graph @scores(%x: f32[6,3] split(0), state %scale: f32[]) -> (logits: f32[6,3]) {
  %1 = broadcast %scale {dims=[], shape=[6, 3]} : f32[6,3]
  %2 = mul %x, %1 : f32[6,3]
  return %2
}
"""


def scores_model() -> ls.Graph:
    """A model whose result is its input times a state."""
    return ls.parse(SCORES)


def with_scale(program: ls.Graph, world: ls.Communicator | None = None) -> ls.Executable:
    exe = ls.compile(program, world=world, threads=1)
    exe.state.assign({"scale": np.float32(1), "scale/momentum": None})
    return exe


def test_terms_that_count_differently_and_sums_are_added_up_each_for_itself() -> None:
    random = np.random.default_rng(0)
    x, wanted = random.random((2, 15, 3), np.float32)
    weight = np.float32(random.integers(0, 3, 15))
    loss = (
        2 * ls.loss.l1("logits", "wanted", sample_weight="weight")
        + ls.loss.mean_squared_error("logits", "wanted", reduction="sum")
        + 0.5 * ls.loss.kl_div("logits", "wanted", reduction="batchmean")
    )
    program = ls.evaluation(scores_model(), loss, {"error": ls.loss.mean_squared_error("logits", "wanted")})
    assert [each.name for each in program.inputs] == ["x", "rows", "wanted", "weight"]
    names = ["loss", "loss/0/sum", "loss/0/count", "loss/1/sum", "loss/2/sum", "loss/2/count"]
    assert [each.name for each in program.results] == [
        *names, "error", "error/0/sum", "error/0/count", "rows",
    ]  # fmt: skip
    kl = np.sum(wanted * (np.log(wanted) - x)) / 15
    distances, squares = np.abs(x - wanted).mean(axis=1), (x - wanted) ** 2
    expected = 2 * np.average(distances, weights=weight) + squares.sum() + 0.5 * kl

    def body(world: ls.Communicator) -> dict[str, float]:
        exe = with_scale(program, world)
        batches = ls.data.batches(x, wanted, weight, size=6, world=world, last="pad")
        return exe.evaluate(batches)

    for found in run_in_threads(3, body):
        assert found == {
            "loss": pytest.approx(expected, rel=1e-5), "error": pytest.approx(squares.mean(), rel=1e-5), "rows": 15,
        }  # fmt: skip


def test_equal_scores_and_nan_are_those_of_the_metric() -> None:
    """Of equal scores the first counts as larger, and NaN as larger than any number."""
    rows = [[0, 0, 0], [1, 2, 2], [np.nan, 1, np.nan], [1, np.nan, 2], [np.inf, np.inf, -np.inf]]
    x = np.repeat(np.float32(rows), 3, axis=0)
    labels = np.tile(np.arange(3), len(rows))
    metrics = {f"top{k}": ls.metrics.Accuracy(k) for k in (1, 2)}
    exe = with_scale(ls.evaluation(scores_model(), LOSS, metrics))
    found = exe.evaluate((x[i : i + 6], labels[i : i + 6]) for i in range(0, 15, 6))
    for name, metric in metrics.items():
        metric.add(x, labels)
        assert found[name] == pytest.approx(metric.compute(), abs=1e-9)
    assert found["top1"] == pytest.approx(1 / 3) and found["top2"] == pytest.approx(2 / 3)


# --- Batches


def test_one_sample_is_a_batch() -> None:
    x, labels = (array[:7] for array in CONVNET.data())
    model = model_of(CONVNET)
    whole = evaluated(ls.evaluation(model, LOSS), [(x, labels)])
    program = ls.evaluation(model.with_dims(batch=1), LOSS)
    assert [each.shape for each in program.inputs] == [(1, 3, 8, 8), (1,), (1,)]
    one = evaluated(program, ((x[i : i + 1], labels[i : i + 1]) for i in range(7)))
    assert one == pytest.approx(whole, rel=1e-5) and one["rows"] == 7
    losses = [evaluated(program, [(x[i : i + 1], labels[i : i + 1])])["loss"] for i in range(7)]
    assert np.mean(losses) == pytest.approx(whole["loss"], rel=1e-5) and np.std(losses) > 0.01


def test_ranks_have_as_many_batches_as_they_like() -> None:
    x, labels = (array[:70] for array in MLP.data())
    expected = evaluated(ls.evaluation(model_of(MLP), LOSS), [(x, labels)])

    def body(world: ls.Communicator) -> dict[str, float]:
        exe = ls.compile(ls.evaluation(model_of(MLP), LOSS), world=world, threads=1)
        cuts = [[(0, 32), (32, 35), (35, 60)], [], [(60, 70)]][world.rank]
        found = exe.evaluate({"label": labels[i:j], "x": x[i:j]} for i, j in cuts)
        assert exe.step == 3 and exe.evaluate([]) == {
            "loss": pytest.approx(np.nan, nan_ok=True),
            "accuracy": pytest.approx(np.nan, nan_ok=True),
            "rows": 0,
        }
        return found

    for found in run_in_threads(3, body):
        assert found == pytest.approx(expected, rel=1e-5) and repr(found["rows"]) == "70"


@pytest.mark.parametrize("nothing", [{}, slice(0, 0)], ids=["no inputs", "no rows"])
def test_what_follows_a_batch_without_rows_counts(nothing: Any) -> None:
    x, labels = (array[:70] for array in MLP.data())
    exe = ls.compile(ls.evaluation(model_of(MLP), LOSS), threads=1)
    empty = nothing if isinstance(nothing, dict) else (x[nothing], labels[nothing])
    found = exe.evaluate([(x[:30], labels[:30]), empty, (x[30:], labels[30:])])
    assert found == pytest.approx(exe.evaluate([(x, labels)]), rel=1e-5) and found["rows"] == 70


def test_ranks_that_share_weights_evaluate_as_one() -> None:
    x, labels = (array[:COUNT] for array in MLP.data())
    expected = evaluated(ls.evaluation(model_of(MLP), LOSS), ls.data.batches(x, labels, size=BATCH, last="pad"))
    mesh = {"data": 2, "model": 2}

    def body(world: ls.Communicator) -> dict[str, float]:
        exe = ls.compile(ls.evaluation(model_of(MLP), LOSS), world=world, mesh=mesh, split=MLP_SPLIT, threads=1)
        return exe.evaluate(ls.data.batches(x, labels, size=BATCH, world=world, mesh=mesh, last="pad"))

    for found in run_in_threads(4, body):
        assert found == pytest.approx(expected, rel=1e-5) and found["rows"] == COUNT


def test_weights_and_averages_are_assigned_by_a_line() -> None:
    x, labels = (array[:BATCH] for array in MLP.data())
    model = model_of(MLP)
    step = ls.train_step(model, LOSS, ls.optim.Adam(0.01), average=ls.average.exponential(0.5))
    exe, evaluation = ls.compile(step, threads=1), ls.compile(ls.evaluation(model, LOSS), threads=1)
    assert list(evaluation.state) == [each.name for each in model.states]
    for _ in range(3):
        exe(x=x, label=labels)
    found = []
    for weights in (exe.state, exe.state.averaged()):
        evaluation.state.assign(weights)
        for name in evaluation.state:
            np.testing.assert_array_equal(evaluation.state[name], weights[name])
        found.append(evaluation.evaluate([(x, labels)])["loss"])
    assert found[0] < found[1] < np.log(5) * 1.5 and found[1] - found[0] > 0.01


def test_results_of_the_model_are_kept_beside() -> None:
    x, labels = (array[:BATCH] for array in MLP.data())
    model = model_of(MLP)
    exe = ls.compile(ls.evaluation(model, LOSS, keep_results=True), threads=1)
    results = exe(x=x, label=labels)
    np.testing.assert_array_equal(results["logits"], ls.compile(model, threads=1)(x=x)["logits"])
    assert results["accuracy"] == pytest.approx(np.mean(results["logits"].argmax(axis=1) == labels))
    assert results["rows"] == BATCH and results["loss"] == pytest.approx(results["loss/0/sum"] / BATCH)
    assert exe.evaluate([(x, labels)]).keys() == {"loss", "accuracy", "rows"}


def test_full_batches_of_models_that_compute_their_loss_or_whose_rows_see_each_other() -> None:
    text = """graph @own(%x: f32[4] split(0), state %w: f32[]) -> (loss: f32[]) {
  %1 = reduce_sum %x {dims=[0]} : f32[]
  %2 = add %1, %w : f32[]
  return %2
}
"""
    program = ls.evaluation(ls.parse(text), 2 * ls.loss.result("loss"), uneven=False)
    assert [each.name for each in program.inputs] == ["x"]
    x = np.arange(8, dtype=np.float32)

    def body(world: ls.Communicator) -> dict[str, float]:
        exe = ls.compile(program, world=world, threads=1)
        return exe.evaluate((rows,) for (rows,) in ls.data.batches(x, size=4, world=world))

    assert run_in_threads(2, body) == [{"loss": pytest.approx(28)}] * 2  # 2 * the mean of 6 and 22
    with pytest.raises(ls.Error, match="with uneven=False, takes only full batches; .*last=.drop.. makes these"):
        ls.compile(program, threads=1).evaluate(ls.data.batches(x, size=4, last="pad"))
    with pytest.raises(
        ls.Error, match="reduce_sum %1 mixes the rows of a batch, .*; uneven=False takes only full batches"
    ):
        ls.evaluation(ls.parse(text), ls.loss.result("loss"))
    mixing = SCORES.replace("%2 = mul %x, %1", "%3 = reverse %x {dims=[0]} : f32[6,3]\n  %2 = mul %3, %1")
    with pytest.raises(ls.Error, match="mixes the rows of a batch"):
        ls.evaluation(ls.parse(mixing), LOSS)
    exe = with_scale(ls.evaluation(ls.parse(mixing), LOSS, uneven=False))
    one_hot = 9 * np.eye(3, dtype=np.float32)[[0, 1, 2, 0, 1, 1]]
    assert exe.evaluate([(one_hot, np.array([1, 1, 0, 2, 1, 0]))])["accuracy"] == 1


# --- Refusals


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((LOSS, {"loss": ls.metrics.Accuracy()}), "a metric is named 'loss', which is the name of another result"),
        ((LOSS, {"rows": ls.metrics.Accuracy()}), "a metric is named 'rows', which is the name of another result"),
        ((LOSS, {"matrix": ls.metrics.ConfusionMatrix(3)}), "metric matrix is .*, expected lockstep.metrics.Accuracy.. or one"),
        ((LOSS, [ls.metrics.Accuracy()]), "metrics is .*, expected metrics by name"),
        ((ls.loss.result("logits"), {"a": ls.metrics.Accuracy()}), "metric a: the loss result has no target"),
        ((ls.loss.result("logits"), {}, False), "loss result: result logits is f32.6,3., expected a float scalar"),
        ((ls.loss.l1("logits", "wanted"), {"a": ls.metrics.Accuracy()}), "metric a: loss accuracy: target %wanted is f32"),
        ((ls.loss.l1("scores", "wanted"),), "the model has no result 'scores'; it has: logits"),
        ((LOSS, {"a": ls.loss.l1("scores", "wanted")}), "metric a: loss: the model has no result 'scores'"),
        (("l1",), "loss is 'l1', expected one of lockstep.loss"),
    ],
)  # fmt: skip
def test_losses_and_metrics_that_do_not_fit(arguments: tuple, words: str) -> None:
    loss, metrics, uneven = (*arguments, *(None, True)[len(arguments) - 1 :])
    with pytest.raises(ls.Error, match=words):
        ls.evaluation(scores_model(), loss, metrics, uneven=uneven)


def test_accuracies_are_of_the_first_of_several_losses() -> None:
    """The first loss's labels are all predicted correctly, and none of the second's."""
    x, labels = 9 * np.eye(3, dtype=np.float32)[[0, 1, 2, 0, 1, 2]], np.array([0, 1, 2, 0, 1, 2])
    second = ls.loss.softmax_cross_entropy("logits", "other")
    for metrics in (None, {"accuracy": ls.metrics.Accuracy()}):
        exe = with_scale(ls.evaluation(scores_model(), LOSS + second, metrics))
        assert exe.evaluate([(x, labels, (labels + 1) % 3)])["accuracy"] == 1
    first_l1 = ls.evaluation(scores_model(), ls.loss.l1("logits", "wanted") + second)
    assert "accuracy" not in [each.name for each in first_l1.results]


def test_other_losses_have_no_metric_of_their_own() -> None:
    for loss in (ls.loss.l1("logits", "w"), ls.loss.softmax_cross_entropy(target="w", soft_targets=True)):
        assert [each.name for each in ls.evaluation(scores_model(), loss).results][0::3] == ["loss", "rows"]
    assert "accuracy" in [each.name for each in ls.evaluation(scores_model(), ls.loss.nll("logits")).results]


def test_what_is_wrong_with_a_batch_all_ranks_hear_of() -> None:
    x, labels = (array[: BATCH // 2] for array in MLP.data())
    program = ls.evaluation(model_of(MLP), LOSS)
    wrong = {
        "a batch has 1 arrays, expected x, label, and rows where it is padded": (x,),
        "a batch has 4 arrays, expected x, label, and rows where it is padded": (x, labels, np.float32(labels), x),
        "a batch has no label; the program's inputs are x, label": {"x": x},
        "a batch is a ndarray": x,
    }
    for words, batch in wrong.items():

        def body(world: ls.Communicator, batch: Any = batch) -> None:
            exe = ls.compile(program, world=world, threads=1)
            exe.evaluate([(x, labels), batch if world.rank == 1 else (x, labels)])

        assert all(re.search(words, error) for error in errors_of(2, body))
    for other in (model_of(MLP), ls.train_step(model_of(MLP), LOSS, ls.optim.SGD(0.1), uneven=True)):
        with pytest.raises(ls.Error, match="is not an evaluation; lockstep.evaluation.model, loss. makes one"):
            ls.compile(other, threads=1).evaluate([])
