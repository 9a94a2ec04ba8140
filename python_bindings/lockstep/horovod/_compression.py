"""The compression of gradients in transit."""

from __future__ import annotations

from typing import Any

import torch


class _Compressor:
    """Converts floats to `dtype` for transit. None leaves tensors unchanged."""

    dtype: torch.dtype | None = None

    @classmethod
    def compress(cls, tensor: torch.Tensor) -> tuple[torch.Tensor, Any]:
        """Returns the tensor to send, and the argument `ctx` of `decompress`."""
        if cls.dtype is None or not tensor.is_floating_point():
            return tensor, tensor.dtype
        return tensor.to(cls.dtype), tensor.dtype

    @classmethod
    def decompress(cls, tensor: torch.Tensor, ctx: Any) -> torch.Tensor:
        return tensor.to(ctx)


class NoneCompressor(_Compressor):
    """No compression."""


class FP16Compressor(_Compressor):
    """Floats travel as float16. They are summed in float32 and rounded once."""

    dtype = torch.float16


class BF16Compressor(_Compressor):
    """Floats travel as bfloat16, with the range of float32. They are summed in float32 and rounded once."""

    dtype = torch.bfloat16


class Compression:
    """`Compression.none`, `Compression.fp16`, `Compression.bf16`."""

    none = NoneCompressor
    fp16 = FP16Compressor
    bf16 = BF16Compressor
