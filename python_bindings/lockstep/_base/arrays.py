"""NumPy has no bfloat16: what stands for it. And what messages call that which is no array of numbers."""

from typing import Any

import numpy as np

from .errors import Error


def bfloat16(bits: np.ndarray) -> np.ndarray:
    """The u16 array `bits` as bfloat16 of the package ml_dtypes; unchanged if that is not installed."""
    try:
        import ml_dtypes
    except ImportError:
        return bits
    return bits.view(ml_dtypes.bfloat16)


def bits_of_bfloat16(value: object) -> np.ndarray | None:
    """The bits of an array of that type as u16; None for anything else."""
    if isinstance(value, np.ndarray) and value.dtype.name == "bfloat16":
        return value.view(np.uint16)
    return None


_DTYPES = {
    "bool": "bool_", "i8": "int8", "i16": "int16", "i32": "int32", "i64": "int64", "u8": "uint8", "u16": "uint16",
    "u32": "uint32", "u64": "uint64", "f16": "float16", "f32": "float32", "f64": "float64",
}  # fmt: skip


def dtype_name(dtype: np.dtype) -> str | None:
    """What a graph calls a dtype of NumPy, in any order of bytes; None if it has none of that kind."""
    return next((name for name, each in _DTYPES.items() if np.dtype(each) == dtype.newbyteorder("=")), None)


def widened(value: Any, dtype: str) -> np.ndarray | None:
    """An array as one of the dtype, where that is a wider one of the same kind, in which all its numbers are the same; else None.

    Integers go to wider integers, and floats to wider floats.
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
    """ "; .astype(np.float32) makes that": how to make the array that is wanted of another one."""
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
    """What NumPy makes of a value, without a copy where it can; of a tensor that torch computes gradients for, its numbers. An Error that
    begins with `what` if that is nothing."""
    try:
        return np.asarray(value.detach() if getattr(value, "requires_grad", False) is True else value)
    except (RuntimeError, TypeError, ValueError) as error:
        raise Error(f"{what} is {description(value)}, of which NumPy makes no array: {error}") from error


def description(value: object) -> str:
    """ "a list", "an array of dtype >f4": which type, or why not this array."""
    if isinstance(value, np.ndarray):
        return f"an array of dtype {value.dtype}"
    return f"a {type(value).__name__}"
