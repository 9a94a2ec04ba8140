"""Residuals in checkpoints: the rounding errors of gradients that travel as int8, which later steps still have to add.

With `compile(wire="int8")` there is a state f32[ranks, ...] for each gradient, `<state>/residual/<axis>`, in which each
rank has one row (passes/distribute/quantize_wire.h). Only the sum of the rows matters. It is added to the sums of
gradients of later steps.
"""

from __future__ import annotations

from collections.abc import Container
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from .._base.values import ValueInfo

_RESIDUAL = "/residual/"


def is_residual(name: str, states: Container[str]) -> bool:
    """True if `name` is the residual of one of the states."""
    state, found, _ = name.rpartition(_RESIDUAL)
    return bool(found) and state in states


def fits(found: ValueInfo, wanted: ValueInfo) -> bool:
    """True if both are residuals of one tensor, perhaps on different numbers of ranks."""
    return found.dtype == wanted.dtype and found.shape[1:] == wanted.shape[1:]


def for_ranks(value: np.ndarray, found: ValueInfo, ranks: int) -> np.ndarray:
    """Returns the bytes of a residual for this number of ranks. If the file has another number of ranks, rank 0 gets
    the sum of all rows, which is the same up to rounding."""
    if found.shape[0] == ranks:
        return value
    rows = value.view(np.float32).reshape(found.shape)
    result = np.zeros((ranks, *found.shape[1:]), np.float32)
    for row in rows:
        result[0] += row
    return result.reshape(-1).view(np.uint8)
