"""Arrays of exact numbers (verify/exact.h), and of integers and truth values, which are those of NumPy."""

from __future__ import annotations

import numpy as np

from .. import _lockstep
from .text import Array

EXACT = np.dtype((np.void, _lockstep._EXACT_BYTES))  # the memory of an exact number; zeros are zeros
FLOATS = ("bf16", "f16", "f32", "f64")
_INTEGERS = {
    f"{kind}{bits}": np.dtype(f"{name}{bits}")
    for kind, name in (("s", "int"), ("u", "uint"))
    for bits in (8, 16, 32, 64)
}
DTYPES = dict.fromkeys(FLOATS, EXACT) | _INTEGERS | {"pred": np.dtype(bool)}  # of arrays, by their names in HLO


def _memory(array: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8)


def of_floats(values: np.ndarray, dtype: str) -> np.ndarray:
    result = np.empty(values.shape, EXACT)
    _lockstep._exact_of_floats(np.ascontiguousarray(values, np.float64).reshape(-1), dtype, _memory(result))
    return result


def of_integers(values: np.ndarray) -> np.ndarray:
    result = np.empty(values.shape, EXACT)
    _lockstep._exact_of_integers(np.ascontiguousarray(values, np.int64).reshape(-1), _memory(result))
    return result


def converted(x: np.ndarray, dtype: np.dtype) -> np.ndarray:
    """Numbers or integers as those of a dtype; TypeError if floats were to become integers."""
    if dtype == EXACT:
        return x if x.dtype == EXACT else of_integers(x)
    if x.dtype == EXACT:
        raise TypeError("it has both floats and integers")
    return x.astype(dtype)


def of_integer(value: int) -> np.ndarray:
    return of_integers(np.asarray(value))


def draw(type: Array, low: int, high: int, seed: int) -> np.ndarray:
    """Random numbers, or random integers in [low, high) that the dtype has, that follow from the seed."""
    dtype = DTYPES[type.dtype]
    if dtype == EXACT:
        result = np.empty(type.dims, EXACT)
        _lockstep._exact_random(seed, _memory(result))
        return result
    if dtype == bool:
        low, high = 0, 2
    else:
        least, most = np.iinfo(dtype).min, np.iinfo(dtype).max
        low = min(max(low, least), most - 1)
        high = min(max(high, low + 1), most)
    return np.random.default_rng(seed).integers(low, high, type.dims).astype(dtype)


def _check_floats(*arrays: np.ndarray) -> None:
    if any(each.dtype != EXACT for each in arrays):
        raise TypeError("it has both floats and integers")


def apply(op: str, *operands: np.ndarray) -> np.ndarray:
    """An elementwise op by its name in verify/meaning.h, or a random function of that name. TypeError if an operand has
    no floats."""
    _check_floats(*operands)
    operands = np.broadcast_arrays(*operands)
    result = np.empty(operands[0].shape, EXACT)
    _lockstep._exact_elementwise(op, [_memory(each) for each in operands], _memory(result))
    return result


def order(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """-1 where x < y, 0 where they are equal, 1 where x > y, 2 where one is a NaN, 3 where both are. TypeError
    if an operand has no floats."""
    _check_floats(x, y)
    x, y = np.broadcast_arrays(x, y)
    result = np.empty(x.shape, np.int8)
    _lockstep._exact_compare(_memory(x), _memory(y), result.reshape(-1))
    return result


def equal(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Where elements are the same; a NaN is one."""
    return x == y if EXACT not in (x.dtype, y.dtype) else order(x, y) % 3 == 0


def is_nan(x: np.ndarray) -> np.ndarray:
    return order(x, x) == 3


_UNKNOWN = -(2**63)


def to_integers(x: np.ndarray) -> np.ndarray | None:
    """The integers that all numbers are, as int64; None if some are not."""
    result = np.empty(x.shape, np.int64)
    _lockstep._exact_to_integers(_memory(x), _UNKNOWN, result.reshape(-1))
    return None if (result == _UNKNOWN).any() else result


def multiply(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """a[batch, rows, inner] b[batch, inner, columns], of numbers or of integers; TypeError if they are mixed."""
    if EXACT not in (a.dtype, b.dtype):
        return np.matmul(a, b)
    _check_floats(a, b)
    (batch, rows, inner), columns = a.shape, b.shape[2]
    result = np.empty((batch, rows, columns), EXACT)
    _lockstep._exact_multiply(_memory(a), _memory(b), batch, rows, inner, columns, _memory(result))
    return result
