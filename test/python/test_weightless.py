"""Elements of weight 0 count for nothing, whatever their target is: NaN, an infinity, a label out of range."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import lockstep as ls

BATCH, CLASSES = 6, 4
MODEL = """
graph @model(%x: f32[6,5] split(0), state %w: f32[5,4]) -> (z: f32[6,4]) {
  %z = matmul %x, %w : f32[6,4]
  return %z
}
"""
RANDOM = np.random.Generator(np.random.PCG64(7))
X = RANDOM.standard_normal((BATCH, 5)).astype(np.float32)
W = RANDOM.standard_normal((5, CLASSES)).astype(np.float32)
WANTED = RANDOM.random((BATCH, CLASSES)).astype(np.float32)
SIGNS = np.sign(WANTED - 0.5).astype(np.float32)
LABELS = RANDOM.integers(0, CLASSES, BATCH)
PADDED = np.array([1, 0, 2, 1, 0, 1], np.float32)  # weights of samples
MASKED = RANDOM.integers(0, 2, (BATCH, CLASSES)).astype(np.float32)  # weights of elements
SOFT = WANTED / WANTED.sum(axis=1, keepdims=True)

loss = ls.loss
SAMPLES: dict[str, tuple[Any, np.ndarray]] = {
    "mean_squared_error": (loss.mean_squared_error, WANTED),
    "l1": (loss.l1, WANTED),
    "huber": (loss.huber, WANTED),
    "smooth_l1": (loss.smooth_l1, WANTED),
    "binary_cross_entropy_with_logits": (loss.binary_cross_entropy_with_logits, WANTED),
    "kl_div": (loss.kl_div, WANTED),
    "hinge_embedding": (loss.hinge_embedding, SIGNS),
    "softmax_cross_entropy": (loss.softmax_cross_entropy, LABELS),
    "nll": (loss.nll, LABELS),
    "soft targets": (lambda z, t, **options: loss.softmax_cross_entropy(z, t, soft_targets=True, **options), SOFT),
}


def after_a_step(of: Any, target: np.ndarray, weight: np.ndarray) -> tuple[float, np.ndarray]:
    exe = ls.compile(ls.train_step(ls.parse(MODEL), of, ls.optim.SGD(0.1)), threads=1)
    exe.state["w"] = W
    return float(exe(x=X, target=target, weight=weight)["loss"]), exe.state["w"]


def bad_values(target: np.ndarray) -> list[Any]:
    return [-1, 99, -(2**40)] if target.dtype == np.int64 else [np.nan, np.inf, -np.inf]


@pytest.mark.parametrize("name", SAMPLES)
def test_samples(name: str) -> None:
    make, target = SAMPLES[name]
    of = make("z", "target", sample_weight="weight")
    expected, weights = after_a_step(of, target, PADDED)
    assert np.isfinite(expected) and (weights != W).any()
    for bad in bad_values(target):
        changed = target.copy()
        changed[PADDED == 0] = bad
        found, after = after_a_step(of, changed, PADDED)
        assert found == expected and after.tobytes() == weights.tobytes(), bad


@pytest.mark.parametrize("name", SAMPLES)
def test_elements(name: str) -> None:
    make, target = SAMPLES[name]
    has_classes = name in ("softmax_cross_entropy", "nll", "soft targets")  # their losses have no class dimension
    weight = PADDED if has_classes else MASKED
    of = make("z", "target", element_weight="weight")
    expected, weights = after_a_step(of, target, weight)
    assert np.isfinite(expected) and (weights != W).any()
    for bad in bad_values(target):
        changed = target.copy()
        changed[weight == 0] = bad
        found, after = after_a_step(of, changed, weight)
        assert found == expected and after.tobytes() == weights.tobytes(), bad


def test_what_weighs_something_is_looked_at() -> None:
    of = loss.mean_squared_error("z", "target", sample_weight="weight")
    changed = WANTED.copy()
    changed[0] = np.nan
    found, after = after_a_step(of, changed, PADDED)
    assert np.isnan(found) and np.isnan(after).any()
