"""What ranks keep for the gradients of later steps, in checkpoints: programs may have it or not, for any number of ranks.

With `compile(wire="int8")` there is a state f32[ranks, ...] for each gradient, `<state>/residual/<axis>`, in which each
rank has one row (passes/distribute/quantize_wire.h): its rounding errors, which later steps still have to add. Only the
sum of the rows matters.

The states of exchanges (passes/distribute/lower_exchanges.h) are f32[ranks, ...] too, such as `<state>/top_k/error`, if
each rank has its own, and otherwise equal on all ranks. Programs on one rank have none. What an exchange of weights lets
each rank have of its own (passes/distribute/own_weights.h) ends with `/own`.
"""

from __future__ import annotations

from collections.abc import Container
from typing import TYPE_CHECKING

import numpy as np

from .._base.tensor_file import num_bytes

if TYPE_CHECKING:
    from .._base.values import ValueInfo
    from .._lockstep import Executable

_RESIDUAL = "/residual/"
_OWN = "/own"


def is_residual(name: str, states: Container[str]) -> bool:
    """True if `name` is the residual of one of the states."""
    state, found, _ = name.rpartition(_RESIDUAL)
    return bool(found) and state in states


def exchange_of(name: str, exe: Executable) -> str:
    """The beginning of the names of the exchange's states of which `name` is one, such as "w/top_k/"; "" if none is."""
    return next((below for below in exe._exchanged if name.startswith(below) or _is_own(name, below)), "")


def _is_own(name: str, below: str) -> bool:
    """True for states such as w/momentum/own, if `below` is "w/own"."""
    return below.endswith(_OWN) and name.endswith(_OWN) and name.startswith(below.removesuffix(_OWN[1:]))


def is_kept(name: str, states: Container[str], exe: Executable) -> bool:
    """True if `name` is a residual of a state of the program, or a state of one of its exchanges."""
    return is_residual(name, states) or bool(exchange_of(name, exe))


def fits(found: ValueInfo, wanted: ValueInfo) -> bool:
    """True if both have rows of one type and differ at most in the number of ranks."""
    if found.dtype != wanted.dtype:
        return False
    same_rows = bool(wanted.placements) and wanted.dtype == "f32" and found.shape[1:] == wanted.shape[1:]
    return found.shape == wanted.shape or same_rows


def initial(name: str, wanted: ValueInfo, exe: Executable) -> np.ndarray:
    """Returns the bytes that a state has before the first step, for a file that does not have it."""
    below = exchange_of(name, exe)
    value = exe._exchanged[below].get(name.removeprefix(below)) if below else None
    return np.zeros(num_bytes(wanted), np.uint8) if value is None else value.reshape(-1).view(np.uint8)


def for_ranks(value: np.ndarray, found: ValueInfo, ranks: int, name: str, states: Container[str]) -> np.ndarray:
    """Returns the bytes of the rows of a state for another number of ranks. The sum of residuals stays, up to rounding:
    rank 0 gets it. Rows of an exchange of gradients keep their sum, too, of which all ranks get an equal part. The rows
    of what ranks have of their own become their mean."""
    rows = value.view(np.float32).reshape(found.shape)
    result = np.zeros((ranks, *found.shape[1:]), np.float32)
    for row in rows:
        result[0] += row
    if not is_residual(name, states):
        result[:] = result[0] / np.float32(found.shape[0] if name.endswith(_OWN) else ranks)
    return result.reshape(-1).view(np.uint8)
