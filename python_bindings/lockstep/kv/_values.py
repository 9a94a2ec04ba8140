"""Values that are pushed and pulled: NumPy arrays, and rows of an array whose other rows are zero."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable
from typing import Any

import numpy as np

from .._base import arrays, checks
from .._base.errors import Error

_DTYPES = {
    "float64": "f64", "float32": "f32", "float16": "f16", "bfloat16": "bf16",
    "int8": "i8", "int16": "i16", "int32": "i32", "int64": "i64",
    "uint8": "u8", "uint16": "u16", "uint32": "u32", "uint64": "u64", "bool": "bool",
}  # fmt: skip


class RowSparse:
    """Some rows of an array whose other rows are zero, such as a gradient of an embedding or a pulled part.

    Args:
      indices: the numbers of the rows, [n] whole numbers. They need not be sorted. The values of a repeated row are
        added.
      values: [n, …]: the rows.
      shape: of the whole array: its number of rows, and the shape of a row.

    Example:
      >>> lockstep.kv.RowSparse([0, 2], np.ones((2, 3), np.float32), (4, 3)).dense()
      array([[1., 1., 1.],
             [0., 0., 0.],
             [1., 1., 1.],
             [0., 0., 0.]], dtype=float32)

    Raises:
      Error: the values are not rows of that shape, there are not as many as indices, or an index is out of range.
    """

    __slots__ = ("indices", "shape", "values")

    def __init__(self, indices: Any, values: Any, shape: tuple[int, ...]) -> None:
        self.shape = _shape(shape)
        self.values = array_of("RowSparse: values", values)
        self.indices = row_ids("RowSparse: indices", indices, self.shape)
        if self.values.shape != (len(self.indices), *self.shape[1:]):
            raise Error(
                f"RowSparse: values have the shape {self.values.shape}, expected {(len(self.indices), *self.shape[1:])}: "
                f"{len(self.indices)} rows of {self.shape}"
            )

    @property
    def dtype(self) -> np.dtype[Any]:
        """The dtype of the values."""
        return self.values.dtype

    def dense(self) -> np.ndarray:
        """The whole array."""
        whole = np.zeros(self.shape, self.dtype)
        self.add_to(whole)
        return whole

    def add_to(self, whole: np.ndarray) -> None:
        """Adds the rows to an array of this shape. Repeated rows are added in their order."""
        if not len(self.indices):
            return
        order = np.argsort(self.indices, kind="stable")
        rows, begins = np.unique(self.indices[order], return_index=True)
        if len(rows) == len(self.indices):
            whole[rows] += self.values[order]
        else:
            whole[rows] += np.add.reduceat(self.values[order], begins, axis=0, dtype=self.dtype)

    def __repr__(self) -> str:
        return f"<lockstep.kv.RowSparse {len(self.indices)} rows of {self.dtype}{list(self.shape)}>"


Value = np.ndarray | RowSparse


def _shape(shape: Any) -> tuple[int, ...]:
    if isinstance(shape, str) or not isinstance(shape, Iterable):
        raise Error(
            f"RowSparse: shape is {shape!r}, expected the number of rows and the shape of a row, such as (4, 3)"
        )
    return tuple(checks.integer("RowSparse: an extent of shape", extent, 0) for extent in shape)


def row_ids(what: str, rows: Any, shape: tuple[int, ...]) -> np.ndarray:
    """Returns numbers of rows of an array of that shape, as i64[n]."""
    ids = np.asarray(rows)
    if ids.ndim != 1 or (ids.size and ids.dtype.kind not in "iu"):
        raise Error(f"{what} are {arrays.description(rows)} of shape {ids.shape}, expected a list of whole numbers")
    ids = ids.astype(np.int64, copy=False)
    outside = ids[(ids < 0) | (ids >= (shape[0] if shape else 0))]
    if len(outside):
        raise Error(f"{what} have row {outside[0]}, but there are {shape[0] if shape else 0} rows in the shape {shape}")
    return ids


def array_of(what: str, value: Any) -> np.ndarray:
    """Returns a row-major NumPy array of a supported dtype; the value itself if it is one."""
    if not hasattr(value, "__array__"):
        raise Error(f"{what} is {arrays.description(value)}, expected an array")
    array = arrays.numpy_of(what, value)
    if _name_of(array.dtype) is None or not array.dtype.isnative:
        raise Error(f"{what} is {arrays.description(array)}, expected one of {', '.join(_DTYPES)}")
    return array if array.flags.c_contiguous else np.ascontiguousarray(array)


def value_of(what: str, value: Any) -> Value:
    """Returns an array or rows."""
    return value if isinstance(value, RowSparse) else array_of(what, value)


def aligned_array(shape: tuple[int, ...], dtype: np.dtype[Any]) -> np.ndarray:
    """Returns an uninitialized array at a multiple of 64 bytes, the best alignment for kernels."""
    size = math.prod(shape) * dtype.itemsize
    memory = np.empty(size + 64, np.uint8)
    begin = -memory.ctypes.data % 64
    return memory[begin : begin + size].view(dtype).reshape(shape)


@functools.lru_cache(64)
def _name_of(dtype: np.dtype[Any]) -> str | None:
    return _DTYPES.get(dtype.name)  # NumPy composes `name` at each access


def dtype_name(dtype: np.dtype[Any]) -> str:
    """The engine's name of a dtype, such as "f32"."""
    name = _name_of(dtype)
    assert name is not None
    return name


def type_text(dtype: np.dtype[Any], shape: tuple[int, ...]) -> str:
    """The type for messages, such as "f32[2,3]"."""
    return f"{_name_of(dtype) or dtype}[{','.join(map(str, shape))}]"
