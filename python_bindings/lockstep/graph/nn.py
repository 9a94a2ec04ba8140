"""Layers of values, with the names and arguments of torch.nn.functional where ops of the graph have others.

    h = nn.max_pool(lockstep.graph.tanh(nn.conv(image, weight, bias)), 2)

An argument that counts along spatial dimensions is a number for all of them, or a list.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from .._base import checks, names
from .._base.errors import Error
from ._values import Value, as_array, constant, insert

__all__ = [
    "attention",
    "avg_pool",
    "conv",
    "cross_entropy",
    "dropout",
    "embedding",
    "gelu",
    "layer_norm",
    "linear",
    "max_pool",
]

Spatial = int | Sequence[int]


def linear(x: Value, weight: Value, bias: Value | None = None) -> Value:
    """x [..., inputs] times weight [outputs, inputs] transposed, plus bias [outputs]."""
    product = insert("matmul", [x, weight], transpose_b=True)[0]
    return product if bias is None else product + bias


def conv(
    x: Value,
    weight: Value,
    bias: Value | None = None,
    stride: Spatial = 1,
    padding: Spatial = 0,
    dilation: Spatial = 1,
    groups: int = 1,
) -> Value:
    """The convolution of x [N, C, spatial...] with weight [O, C / groups, spatial...], plus bias [O]."""
    places, groups = _places("conv", x), checks.integer("conv: groups", groups)
    pad = _each("conv: padding", padding, places)
    result = insert(
        "convolution",
        [x, weight],
        stride=_each("conv: stride", stride, places),
        padding_low=pad,
        padding_high=pad,
        dilation=_each("conv: dilation", dilation, places),
        groups=groups,
    )[0]
    return result if bias is None else result + insert("broadcast", [bias], shape=list(result.shape), dims=[1])[0]


def max_pool(
    x: Value, window: Spatial, stride: Spatial | None = None, padding: Spatial = 0, dilation: Spatial = 1
) -> Value:
    """The largest element of x [N, C, spatial...] in each window. The stride is by default the window."""
    places = _places("max_pool", x)
    pad = _each("max_pool: padding", padding, places)
    return insert(
        "max_pool",
        [x],
        window=_each("max_pool: window", window, places),
        stride=_each("max_pool: stride", window if stride is None else stride, places),
        padding_low=pad,
        padding_high=pad,
        dilation=_each("max_pool: dilation", dilation, places),
    )[0]


def avg_pool(x: Value, window: Spatial, stride: Spatial | None = None, padding: Spatial = 0) -> Value:
    """The mean of x [N, C, spatial...] in each window, with the padding. The stride is by default the window."""
    places = _places("avg_pool", x)
    pad = _each("avg_pool: padding", padding, places)
    return insert(
        "avg_pool",
        [x],
        window=_each("avg_pool: window", window, places),
        stride=_each("avg_pool: stride", window if stride is None else stride, places),
        padding_low=pad,
        padding_high=pad,
        include_padding=True,
    )[0]


def layer_norm(x: Value, weight: Value | None = None, bias: Value | None = None, epsilon: float = 1e-5) -> Value:
    """x with mean 0 and variance 1 over its last dimension, times weight, plus bias."""
    centred = _value("layer_norm: x", x) - x.mean(-1, keepdims=True)
    variance = (centred * centred).mean(-1, keepdims=True)
    result = centred * insert("rsqrt", [variance + checks.number("layer_norm: epsilon", epsilon)])[0]
    result = result if weight is None else result * weight
    return result if bias is None else result + bias


def gelu(x: Value, approximate: bool = False) -> Value:
    """x times the normal distribution's share below x; `approximate`: by tanh."""
    half = 0.5 * _value("gelu: x", x)
    if checks.flag("gelu: approximate", approximate):
        return half * (1 + insert("tanh", [math.sqrt(2 / math.pi) * (x + 0.044715 * x * x * x)])[0])
    return half * (1 + insert("erf", [x * math.sqrt(0.5)])[0])


def embedding(indices: Value, weight: Value) -> Value:
    """The rows of weight at the indices."""
    return insert("gather", [weight, indices], dim=0)[0]


def dropout(x: Value, p: float = 0.5) -> Value:
    """x; in a training step, each element is zero with the probability p, and the others are divided by 1 - p."""
    ratio = constant(_value("dropout: x", x).graph, as_array("dropout: p", checks.number("dropout: p", p)), "f32")
    return insert("dropout", [x, ratio])[0]


def attention(
    q: Value, k: Value, v: Value, mask: Value | None = None, causal: bool = False, scale: float | None = None
) -> Value:
    """softmax(scale q k^T + mask) v of q [..., heads, queries, size], k and v. The scale is by default 1/sqrt(size)."""
    factor = (
        1 / math.sqrt(_value("attention: q", q).shape[-1])
        if scale is None
        else checks.number("attention: scale", scale)
    )
    operands = [q, k, v] if mask is None else [q, k, v, mask]
    return insert("attention", operands, scale=factor, causal=checks.flag("attention: causal", causal))[0]


def cross_entropy(logits: Value, labels: Value) -> Value:
    """The mean over all labels of -log_softmax(logits)[label]. logits are [N, C, ...], and labels [N, ...]."""
    return insert(
        "softmax_cross_entropy",
        [logits, labels],
        scale=1 / max(math.prod(_value("cross_entropy: labels", labels).shape), 1),
    )[0]


def _value(what: str, value: Value) -> Value:
    return checks.instance(what, value, Value, "a lockstep.graph.Value")


def _places(name: str, x: Value) -> int:
    """The number of spatial dimensions of x."""
    if _value(f"{name}: x", x).ndim < 3:
        raise Error(f"{name}: x is {x!r}, expected [N, C, spatial...]")
    return x.ndim - 2


def _each(what: str, value: Spatial, places: int) -> list[int]:
    if isinstance(value, Sequence) and not isinstance(value, (str, bytes)):
        return [checks.integer(what, each) for each in value]
    return [checks.integer(what, value)] * places


names.guard(globals())
