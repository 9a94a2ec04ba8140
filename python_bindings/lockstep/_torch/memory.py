"""Tensors of torch in the CPU's memory as bytes that the engine reads and writes in place."""

from __future__ import annotations

import numpy as np
import torch

# The dtypes in which the engine computes, by their names in it.
DTYPES = {
    torch.float64: "f64", torch.float32: "f32", torch.float16: "f16", torch.bfloat16: "bf16", torch.int8: "i8", torch.int16: "i16",
    torch.int32: "i32", torch.int64: "i64", torch.uint8: "u8", torch.bool: "bool",
}  # fmt: skip


def bytes_of(tensor: torch.Tensor) -> np.ndarray:
    """Returns the memory of a contiguous tensor as u8[…], without a copy."""
    return tensor.detach().reshape(-1).view(torch.uint8).numpy()


def tensor_of(array: np.ndarray, dtype: torch.dtype, shape: tuple[int, ...] | torch.Size) -> torch.Tensor:
    """Returns bytes as a tensor, which keeps them alive."""
    return torch.from_numpy(array.reshape(-1)).view(dtype).reshape(shape)
