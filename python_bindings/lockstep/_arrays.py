"""NumPy has no bfloat16: what stands for it. And what messages call that which is no array of numbers."""

from typing import Any

import numpy as np

from ._errors import Error


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
