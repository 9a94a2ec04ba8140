"""Collectives over users' numbers: the methods of Communicator that take an array, a number or a tensor."""

from __future__ import annotations

from typing import Any

import numpy as np

from .. import _lockstep
from .._base import arrays, checks
from .._base.errors import Error
from .._lockstep import Communicator

_KINDS = ("sum", "mean", "min", "max", "prod")


class _Operand:
    """The operand of a collective on one rank: its elements, the name of their dtype, and a label for messages."""

    def __init__(self, op: str, value: Any) -> None:
        bits = arrays.bits_of_bfloat16(value)
        array = arrays.numpy_of(f"{op}: the array", value) if bits is None else bits
        self.dtype = "bf16" if bits is not None else arrays.dtype_name(array.dtype)
        if self.dtype is None:
            raise Error(f"{op}: the array is {arrays.description(array)}, expected booleans, integers or real floats")
        self.elements = np.ascontiguousarray(array, array.dtype.newbyteorder("=")).reshape(array.shape)
        self.label = f"of an array {list(array.shape)}"

    def result(self, leading: tuple[int, ...] = ()) -> np.ndarray:
        """Returns a new array of the same dtype, to which the communicator writes."""
        return np.empty((*leading, *self.elements.shape), self.elements.dtype)

    def shown(self, result: np.ndarray) -> np.ndarray:
        return arrays.bfloat16(result) if self.dtype == "bf16" else result


def all_reduce(world: Communicator, array: Any, kind: Any) -> np.ndarray:
    own, kind = _Operand("all_reduce", array), checks.choice("all_reduce: kind", kind, _KINDS)
    result = own.result()
    _lockstep._wait(world, _lockstep._start_all_reduce(world, own.elements, result, own.dtype, kind, own.label))
    return own.shown(result)


def broadcast(world: Communicator, array: Any, root: Any) -> np.ndarray:
    own, root = _Operand("broadcast", array), checks.integer("broadcast: root", root)
    if not 0 <= root < world.size:
        raise Error(f"broadcast: root is {root}, expected one of {world.size} ranks, from 0")
    result = own.result()
    _lockstep._wait(world, _lockstep._start_broadcast(world, own.elements, result, own.dtype, root, own.label))
    return own.shown(result)


def all_gather(world: Communicator, array: Any) -> np.ndarray:
    own = _Operand("all_gather", array)
    result = own.result((world.size,))
    _lockstep._wait(world, _lockstep._start_all_gather(world, own.elements, result, own.dtype, own.label))
    return own.shown(result)
