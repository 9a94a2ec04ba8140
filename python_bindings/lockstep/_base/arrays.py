"""Conversions of arrays, also of bfloat16, which NumPy does not have, and descriptions of values for messages."""

from typing import Any

import numpy as np

from .errors import Error


def bfloat16(bits: np.ndarray) -> np.ndarray:
    """Returns the u16 array `bits` as bfloat16 of the package ml_dtypes, or unchanged if that is not installed."""
    try:
        import ml_dtypes
    except ImportError:
        return bits
    return bits.view(ml_dtypes.bfloat16)


def bits_of_bfloat16(value: object) -> np.ndarray | None:
    """Returns the bits of a bfloat16 array as u16, or None for anything else."""
    if isinstance(value, np.ndarray) and value.dtype.name == "bfloat16":
        return value.view(np.uint16)
    return None


_DTYPES = {
    "bool": "bool_", "i8": "int8", "i16": "int16", "i32": "int32", "i64": "int64", "u8": "uint8", "u16": "uint16",
    "u32": "uint32", "u64": "uint64", "f16": "float16", "f32": "float32", "f64": "float64",
}  # fmt: skip


def dtype_name(dtype: np.dtype) -> str | None:
    """The name of a NumPy dtype in graphs, whatever its byte order; None if graphs have no such dtype."""
    return next((name for name, each in _DTYPES.items() if np.dtype(each) == dtype.newbyteorder("=")), None)


def widened(value: Any, dtype: str) -> np.ndarray | None:
    """Returns the array in `dtype` if that is a wider dtype of the same kind, without loss; else None.

    Integers widen to integers, and floats to floats.
    """
    if dtype not in _DTYPES:
        return None
    if not isinstance(value, np.ndarray) and not hasattr(value, "__dlpack__"):
        return None  # a list has no dtype of its own
    numbers = value.detach() if _is_tensor(value) else value
    if str(numbers.dtype) == "torch.bfloat16":  # which NumPy does not have
        numbers = numbers.float()
    try:
        array = np.asarray(numbers)
    except (RuntimeError, TypeError, ValueError):
        return None
    if array.dtype.name == "bfloat16":
        return array.astype(_DTYPES[dtype]) if dtype in ("f32", "f64") else None
    wanted = np.dtype(_DTYPES[dtype])
    is_same_kind = wanted.kind == array.dtype.kind or (array.dtype.kind == "u" and wanted.kind == "i")
    return array.astype(wanted) if is_same_kind and np.can_cast(array.dtype, wanted, "safe") else None


def advice(value: Any, dtype: str) -> str:
    """The end of a message that says how to get an array of `dtype`: "; .astype(np.float32) makes that"."""
    if dtype not in _DTYPES:
        return ""
    name = _DTYPES[dtype]
    if _is_tensor(value):
        return f"; .detach().cpu().to(torch.{name.removesuffix('_')}) makes that"
    if isinstance(value, np.ndarray):
        return "" if value.dtype.kind == "O" else f"; .astype(np.{name}) makes that"
    return f"; np.asarray(…, np.{name}) makes that" if isinstance(value, (list, tuple, int, float)) else ""


def _is_tensor(value: Any) -> bool:
    return hasattr(value, "detach") and hasattr(value, "cpu")


def numpy_of(what: str, value: Any) -> np.ndarray:
    """Returns np.asarray(value), without a copy where possible. Tensors that require a gradient are detached first.
    Raises an Error that begins with `what` if NumPy cannot convert the value."""
    try:
        return np.asarray(value.detach() if getattr(value, "requires_grad", False) is True else value)
    except (RuntimeError, TypeError, ValueError) as error:
        raise Error(f"{what} is {description(value)}, which NumPy cannot convert to an array: {error}") from error


def description(value: object) -> str:
    """A description for messages: the type, such as "a list", or "an array of dtype >f4"."""
    if isinstance(value, np.ndarray):
        return f"an array of dtype {value.dtype}"
    return f"a {type(value).__name__}"
