"""NumPy has no bfloat16: what stands for it. And what messages call that which is no array of numbers."""

import numpy as np


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


def description(value: object) -> str:
    """ "a list", "an array of dtype >f4": which type, or why not this array."""
    if isinstance(value, np.ndarray):
        return f"an array of dtype {value.dtype}"
    return f"a {type(value).__name__}"
