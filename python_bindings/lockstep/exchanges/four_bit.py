"""Gradients travel as integers of 4 bits."""

from __future__ import annotations

import numpy as np

from .. import graph
from .._base.errors import Error
from .._exchange.define import Definition
from .._exchange.ranks import Ranks
from ..graph import Value

SMOOTHED = 32  # elements of a Hadamard transform


def hadamard(size: int) -> np.ndarray:
    """The orthonormal Hadamard matrix, its own inverse; `size` is a power of two."""
    signs = [[(-1) ** (row & column).bit_count() for column in range(size)] for row in range(size)]
    return (np.array(signs) / np.sqrt(size)).astype(np.float32)


def quantize(x: Value) -> tuple[Value, Value, Value]:
    """x[..., group] as codes from -7 to 7, two in a byte, u8[..., group / 2], a scale for each group, what is lost."""
    scale = graph.max(graph.abs(x).max(dims=-1), 1e-30) / 7
    scales = scale.reshape(*scale.shape, 1)
    codes = graph.round(x / scales)
    return (codes[..., 0::2] * 16 + codes[..., 1::2] + 136).to("u8"), scale, x - codes * scales


def dequantize(packed: Value, scale: Value) -> Value:
    nibbles = graph.shift_right(packed.to("i32").reshape(*packed.shape, 1), np.array([4, 0], np.int32)) & 15
    return (nibbles - 8).to("f32").reshape(*scale.shape, -1) * scale.reshape(*scale.shape, 1)


@Definition
def four_bit(g: Value, ranks: Ranks, group: int = 128) -> Value:
    """The gradients are smoothed by Hadamard transforms and rounded to 4 bits, in groups with a scale. Each rank adds up
    its share of them, and the sums travel in 4 bits too (Jia et al.: "SDP4Bit: Toward 4-bit Communication Quantization
    in Sharded Data Parallelism for LLM Training", NeurIPS 2024). What rounding loses is added to the next gradient.

    Args:
      group: elements that share a scale, a multiple of 32.
    """
    if group < SMOOTHED or group % SMOOTHED:
        raise Error(f"group is {group}, expected a multiple of {SMOOTHED}")
    error = ranks.state("error", g)
    count = int(np.prod(g.shape))
    blocks = graph.pad((g + error.value).flatten(), low=[0], high=[-count % (ranks.count * group)])
    smooth = (blocks.reshape(-1, SMOOTHED) @ hadamard(SMOOTHED)).reshape(ranks.count, -1, group)
    *sent, lost = quantize(smooth)
    share = dequantize(*(ranks.transpose(each) for each in sent)).sum(dims=0)
    *of_share, lost_of_share = quantize(share)
    summed = dequantize(*(ranks.gather(each) for each in of_share))

    def rough(x: Value) -> Value:
        return (x.reshape(-1, SMOOTHED) @ hadamard(SMOOTHED)).flatten()[:count].reshape(g.shape)

    is_own = graph.iota(g.graph, shape=[ranks.count, 1, 1], dtype="i64", dim=0) == ranks.index()
    error.next = rough(lost + graph.select(is_own, lost_of_share[None], 0.0))
    return rough(summed)
