"""Metrics compared with NumPy on all samples at once, for any division into batches, ranks and padding."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

import lockstep as ls
from ranks import run_in_threads
from test_errors import raises

RANDOM = np.random.Generator(np.random.PCG64(1))
SCORES = RANDOM.standard_normal((53, 7)).astype(np.float32)
LABELS = RANDOM.integers(0, 7, 53)
TOP_3 = np.mean([label in np.argsort(-scores, kind="stable")[:3] for scores, label in zip(SCORES, LABELS, strict=True)])
TOP_1 = np.mean(SCORES.argmax(axis=1) == LABELS)


def over(make: Any, world: ls.Communicator | None = None, size: int = 12, **options: Any) -> Any:
    """The metric of all samples, added in padded batches, of which this rank has its share."""
    metric = make(**options)
    for scores, labels, weight in ls.data.batches(SCORES, LABELS, size=size, world=world, last="pad", seed=2):
        metric.add(scores, labels, weight)
    return metric.compute(world)


@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
def test_accuracy_does_not_depend_on_ranks_and_padding(ranks: int) -> None:
    assert run_in_threads(ranks, lambda world: over(ls.metrics.Accuracy, world)) == [pytest.approx(TOP_1)] * ranks
    assert run_in_threads(ranks, lambda world: over(ls.metrics.Accuracy, world, k=3)) == [pytest.approx(TOP_3)] * ranks


def test_accuracy_of_all_at_once_and_after_a_reset() -> None:
    metric = ls.metrics.Accuracy()
    assert math.isnan(metric.compute())
    metric.add(SCORES, (LABELS + 1) % 7)
    metric.reset()
    metric.add(SCORES, LABELS)
    assert metric.compute() == pytest.approx(TOP_1)
    assert over(ls.metrics.Accuracy, k=7) == 1


def test_accuracy_of_positions_and_of_what_is_ignored() -> None:
    scores = np.moveaxis(SCORES[:52].reshape(13, 4, 7), 2, 1)
    labels = LABELS[:52].reshape(13, 4).copy()
    labels[2] = labels[3, 1] = -100
    right = (scores.argmax(axis=1) == labels)[labels != -100]
    metric = ls.metrics.Accuracy(ignore_index=-100)
    metric.add(scores, labels)
    assert metric.compute() == pytest.approx(right.mean())
    weights = RANDOM.random(13)
    metric = ls.metrics.Accuracy(ignore_index=-100)
    metric.add(scores, labels, weights)
    spread = np.broadcast_to(weights[:, None], labels.shape)[labels != -100]
    assert metric.compute() == pytest.approx(np.average(right, weights=spread))


def test_of_equal_scores_the_first_is_larger_as_numpy_has_it() -> None:
    for scores in ([0, 0, 0], [1, 2, 2], [np.nan, 1, np.nan], [1, np.nan, 2], [np.inf, np.inf, -np.inf]):
        array = np.array([scores], np.float32)
        for label in range(3):
            metric = ls.metrics.Accuracy()
            metric.add(array, [label])
            assert metric.compute() == (array.argmax() == label), (scores, label)


@pytest.mark.parametrize("ranks", [1, 3])
def test_confusion_matrix(ranks: int) -> None:
    expected = np.zeros((7, 7))
    np.add.at(expected, (LABELS, SCORES.argmax(axis=1)), 1)
    for found in run_in_threads(ranks, lambda world: over(ls.metrics.ConfusionMatrix, world, classes=7)):
        np.testing.assert_array_equal(found, expected)
    ignoring = ls.metrics.ConfusionMatrix(7, ignore_index=3)
    ignoring.add(SCORES, LABELS)
    expected[3] = 0
    np.testing.assert_array_equal(ignoring.compute(), expected)


@pytest.mark.parametrize("ranks", [1, 2])
def test_mean_and_perplexity(ranks: int) -> None:
    losses, weights = RANDOM.random(11), RANDOM.integers(0, 4, 11)

    def mean(world: ls.Communicator, kind: Any) -> float:
        metric = kind()
        for i in range(world.rank, len(losses), world.size):
            metric.add(losses[i], weights[i])
        return metric.compute(world)

    expected = np.average(losses, weights=weights)
    assert run_in_threads(ranks, lambda world: mean(world, ls.metrics.Mean)) == [pytest.approx(expected)] * ranks
    found = run_in_threads(ranks, lambda world: mean(world, ls.metrics.Perplexity))
    assert found == [pytest.approx(math.exp(expected))] * ranks


def test_perplexity_beyond_what_a_float_holds() -> None:
    metric = ls.metrics.Perplexity()
    assert math.isnan(metric.compute())
    metric.add([1e6, 1e6])
    assert metric.compute() == math.inf


def test_what_weighs_nothing_is_not_looked_at() -> None:
    mean, accuracy = ls.metrics.Mean(), ls.metrics.Accuracy()
    mean.add([1.0, np.nan], [1, 0])
    assert mean.compute() == 1
    accuracy.add([[1.0, 0], [np.nan, np.nan]], [0, 99], [1, 0])
    assert accuracy.compute() == 1
    ignoring = ls.metrics.Accuracy(ignore_index=-100)
    ignoring.add([[1.0, 0], [1.0, 0], [1.0, 0]], [0, 99, -100], [1, 0, 1])
    assert ignoring.compute() == 1
    mean.add(np.nan)
    assert math.isnan(mean.compute())


def test_wrong_metrics() -> None:
    with raises("Accuracy: k is 0, expected at least 1"):
        ls.metrics.Accuracy(k=0)
    accuracy = ls.metrics.Accuracy()
    with raises(
        "Accuracy: scores of shape (53, 7) and labels of shape (52,), expected [batch, classes, ...] and [batch, ...]"
    ):
        accuracy.add(SCORES, LABELS[:52])
    with raises("Accuracy: labels are float64, expected integers"):
        accuracy.add(SCORES, LABELS * 1.0)
    with raises("Accuracy: label 7 is outside [0, 7)"):
        accuracy.add(SCORES, np.full(53, 7))
    with raises("Accuracy: label -1 is outside [0, 7)"):
        accuracy.add(SCORES, np.full(53, -1))
    with raises("Accuracy: weights of shape (3,), expected one number, or (53,)"):
        accuracy.add(SCORES, LABELS, [1, 1, 1])
    with raises("Mean: a weight is negative or no finite number"):
        ls.metrics.Mean().add(1.0, -1.0)
    with raises("Mean: a weight is negative or no finite number"):
        ls.metrics.Mean().add(1.0, math.inf)
    with raises("Mean: values is 1j, expected numbers"):
        ls.metrics.Mean().add(1j)
    for classes in (6, 8):
        with raises(f"ConfusionMatrix: scores of 7 classes, expected {classes}"):
            ls.metrics.ConfusionMatrix(classes).add(SCORES, LABELS)
    assert math.isnan(accuracy.compute())

    def compute(world: ls.Communicator) -> Any:
        return (ls.metrics.Mean() if world.rank else ls.metrics.ConfusionMatrix(3)).compute(world)

    for error in run_in_threads(2, compute):
        assert "ConfusionMatrix(3, 3) is computed here, and Mean(2,) on rank 1" in str(error) or (
            "Mean(2,) is computed here, and ConfusionMatrix(3, 3) on rank 0" in str(error)
        )
    for error in run_in_threads(2, lambda world: (ls.metrics.Mean() if world.rank else accuracy).compute(world)):
        assert isinstance(error, ls.Error)  # they have equally many sums


def test_ranks_with_the_same_samples_count_once() -> None:
    """In a mesh, the ranks along "model" get the same rows."""
    random = np.random.Generator(np.random.PCG64(5))
    scores, labels = random.standard_normal((8, 3)).astype(np.float32), random.integers(0, 3, 8)
    alone = ls.metrics.ConfusionMatrix(3)
    alone.add(scores, labels)

    for mesh in ({"data": 2, "model": 2}, {"model": 2, "data": 2}, {"data": 4}, {"model": 4}):

        def compute(world: ls.Communicator, mesh: dict[str, int] = mesh) -> Any:
            matrix = ls.metrics.ConfusionMatrix(3)
            for x, y in ls.data.batches(scores, labels, size=4, world=world, mesh=mesh):
                matrix.add(x, y)
            return matrix.compute(world, mesh)

        for found in run_in_threads(4, compute):
            np.testing.assert_array_equal(found, alone.compute(), err_msg=str(mesh))
    for error in run_in_threads(2, lambda world: alone.compute(world, {"data": 3})):
        assert "compute: the mesh {'data': 3} has 3 ranks, but the world has 2" in str(error)


@pytest.mark.parametrize(("mesh", "counted"), [({"data": 2, "model": 2}, (0, 2)), ({"model": 2, "data": 2}, (0, 1))])
def test_every_metric_counts_the_first_of_the_ranks_with_the_same_samples(
    mesh: dict[str, int], counted: tuple[int, int]
) -> None:
    """Here their rows differ, so that it would show if they counted."""

    def compute(world: ls.Communicator) -> list[Any]:
        mean, perplexity = ls.metrics.Mean(), ls.metrics.Perplexity()
        accuracy, matrix = ls.metrics.Accuracy(), ls.metrics.ConfusionMatrix(4)
        for metric in (mean, perplexity):
            metric.add(world.rank)
        for metric in (accuracy, matrix):
            metric.add(np.eye(4)[[world.rank]], [0])
        return [metric.compute(world, mesh) for metric in (mean, perplexity, accuracy, matrix)]

    results = run_in_threads(4, compute)
    assert len(results) == 4
    for mean, perplexity, accuracy, matrix in results:
        assert mean == sum(counted) / 2
        assert perplexity == pytest.approx(math.exp(mean))
        assert accuracy == 0.5
        assert matrix[0].tolist() == [rank in counted for rank in range(4)]


def test_a_matrix_stays_what_it_was_when_more_is_added() -> None:
    metric = ls.metrics.ConfusionMatrix(2)
    metric.add([[1, 0]], [0])
    first = metric.compute()
    metric.add([[1, 0]], [0])
    first += 5
    assert metric.compute().tolist() == [[2, 0], [0, 0]]
    assert first[0, 0] == 6


def test_large_losses_and_scores_of_16_bits() -> None:
    perplexity = ls.metrics.Perplexity()
    perplexity.add(705.0)
    assert perplexity.compute() == math.exp(705)
    perplexity.add(1e6)
    assert perplexity.compute() == math.inf
    ml_dtypes = pytest.importorskip("ml_dtypes")
    accuracy = ls.metrics.Accuracy()
    accuracy.add(np.array([[-1, 2], [3, -4]], ml_dtypes.bfloat16), np.array([1, 1]))
    assert accuracy.compute() == 0.5
