"""Compares a training step of an exported model in Lockstep with the same step in the model's own framework."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

import lockstep as ls

BATCH, STEPS, RATE = 8, 5, 0.1


def data(shape: tuple[int, ...], classes: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns a batch of inputs f32[BATCH, *shape], and labels i64[BATCH]."""
    random = np.random.default_rng(0)
    return random.normal(size=(BATCH, *shape)).astype(np.float32), random.integers(classes, size=BATCH)


def losses(model: Any, inputs: dict[str, np.ndarray], labels: np.ndarray) -> list[float]:
    """Returns the losses of STEPS steps of stochastic gradient descent with an ONNX model that computes logits."""
    graph = ls.load_onnx(model, dims={f"{name}:0": BATCH for name in inputs})
    [logits] = [info.name for info in graph.results]
    loss = ls.loss.softmax_cross_entropy(logits, "label")
    # Converters write epsilons as ordinary initializers. No parameter of these models has one element, so these are
    # frozen.
    frozen = [info.name for info in graph.states if math.prod(info.shape) == 1]
    step = ls.compile(ls.train_step(graph, loss=loss, optimizer=ls.optim.SGD(RATE), frozen=frozen))
    return [float(step(label=labels, **inputs)["loss"]) for _ in range(STEPS)]


def compare(name: str, own: Callable[[], list[float]], found: list[float]) -> None:
    """Prints both lists of losses, and fails unless they agree."""
    expected = own()
    print(f"{name}: {' '.join(f'{loss:.6f}' for loss in expected)}")
    print(f"{'lockstep':{len(name)}}: {' '.join(f'{loss:.6f}' for loss in found)}")
    np.testing.assert_allclose(found, expected, rtol=1e-4)
    assert expected[-1] < expected[0]
