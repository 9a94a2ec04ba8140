"""What the examples here share: a training step of an exported model in Lockstep, compared with the framework's own."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

import lockstep as ls

BATCH, STEPS, RATE = 8, 5, 0.1


def data(shape: tuple[int, ...], classes: int) -> tuple[np.ndarray, np.ndarray]:
    """A batch of inputs f32[BATCH, *shape], and labels i64[BATCH]."""
    random = np.random.default_rng(0)
    return random.normal(size=(BATCH, *shape)).astype(np.float32), random.integers(classes, size=BATCH)


def losses(model: Any, inputs: dict[str, np.ndarray], labels: np.ndarray) -> list[float]:
    """The losses of STEPS steps of stochastic gradient descent, of an ONNX model that gives logits."""
    graph = ls.load_onnx(model, dims={f"{name}:0": BATCH for name in inputs})
    [logits] = [info.name for info in graph.results]
    loss = ls.loss.softmax_cross_entropy(logits, "label")
    # Converters write epsilons as initializers like any other: what has one element is none of these models' parameters.
    frozen = [info.name for info in graph.states if math.prod(info.shape) == 1]
    step = ls.compile(ls.train_step(graph, loss=loss, optimizer=ls.optim.SGD(RATE), frozen=frozen))
    return [float(step(label=labels, **inputs)["loss"]) for _ in range(STEPS)]


def compare(name: str, own: Callable[[], list[float]], found: list[float]) -> None:
    """Prints both, and fails unless they agree."""
    expected = own()
    print(f"{name}: {' '.join(f'{loss:.6f}' for loss in expected)}")
    print(f"{'lockstep':{len(name)}}: {' '.join(f'{loss:.6f}' for loss in found)}")
    np.testing.assert_allclose(found, expected, rtol=1e-4)
    assert expected[-1] < expected[0]
