"""What ranks still owe of gradients that travel as int8, in files: `compile(wire="int8")` has a state f32[ranks, ...] for each
gradient, `<state>/residual/<axis>`, in which every rank has a row of its own (passes/distribute/quantize_wire.h).

What counts is the sum of the rows, which is added to the sum of the gradients of later steps.
"""

from __future__ import annotations

from collections.abc import Container
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from .._base.values import ValueInfo

_RESIDUAL = "/residual/"


def is_residual(name: str, states: Container[str]) -> bool:
    """Whether this is the residual of one of the states."""
    state, found, _ = name.rpartition(_RESIDUAL)
    return bool(found) and state in states


def fits(found: ValueInfo, wanted: ValueInfo) -> bool:
    """Whether both are residuals of one tensor, perhaps on different numbers of ranks."""
    return found.dtype == wanted.dtype and found.shape[1:] == wanted.shape[1:]


def for_ranks(value: np.ndarray, found: ValueInfo, ranks: int) -> np.ndarray:
    """The bytes of a residual for so many ranks, of those for others: as they are, or all of it for rank 0. The sum of the rows
    is the same, up to rounding."""
    if found.shape[0] == ranks:
        return value
    rows = value.view(np.float32).reshape(found.shape)
    result = np.zeros((ranks, *found.shape[1:]), np.float32)
    for row in rows:
        result[0] += row
    return result.reshape(-1).view(np.uint8)
