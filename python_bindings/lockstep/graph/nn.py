"""Layers of values, like those of torch.nn.functional. An argument may have another name than there.

    h = nn.max_pool(lockstep.graph.tanh(nn.conv(image, weight, bias)), 2)

An argument that counts along spatial dimensions is a number for all of them, or a list. A bias, a norm's weight and
statistics are values or arrays of the shape that the layer says.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from .._base import checks, names
from .._base.errors import Error
from ._values import Operand, Value, as_array, constant, insert

__all__ = [
    "attention",
    "avg_pool",
    "batch_norm",
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


def linear(x: Value, weight: Operand, bias: Operand | None = None) -> Value:
    """x [..., inputs] times weight [outputs, inputs] transposed, plus bias [outputs]."""
    product = insert("matmul", [x, weight], transpose_b=True)[0]
    return product if bias is None else product + _parameter("linear: bias", bias, product.shape[-1:], product)


def conv(
    x: Value,
    weight: Operand,
    bias: Operand | None = None,
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
    if bias is None:
        return result
    channels = _parameter("conv: bias", bias, result.shape[1:2], result)
    return result + insert("broadcast", [channels], shape=list(result.shape), dims=[1])[0]


def max_pool(
    x: Value, window: Spatial, stride: Spatial | None = None, padding: Spatial = 0, dilation: Spatial = 1
) -> Value:
    """The largest element of x [N, C, spatial...] in each window. The stride is by default the window."""
    dilations = _each("max_pool: dilation", dilation, _places("max_pool", x))
    return _pool("max_pool", x, window, stride, padding, dilation=dilations)


def avg_pool(x: Value, window: Spatial, stride: Spatial | None = None, padding: Spatial = 0) -> Value:
    """The mean of x [N, C, spatial...] in each window, with the padding. The stride is by default the window."""
    return _pool("avg_pool", x, window, stride, padding, include_padding=True)


def _pool(op: str, x: Value, window: Spatial, stride: Spatial | None, padding: Spatial, **attributes: Any) -> Value:
    places = _places(op, x)
    pad = _each(f"{op}: padding", padding, places)
    return insert(
        op,
        [x],
        window=_each(f"{op}: window", window, places),
        stride=_each(f"{op}: stride", window if stride is None else stride, places),
        padding_low=pad,
        padding_high=pad,
        **attributes,
    )[0]


def layer_norm(x: Value, weight: Operand | None = None, bias: Operand | None = None, epsilon: float = 1e-5) -> Value:
    """x [..., size] with mean 0 and variance 1 over its last dimension, times weight [size], plus bias [size]. 16-bit
    floats are normalised in f32.
    """
    wide = _value("layer_norm: x", x)._wide()
    centred = wide - wide.mean(-1, keepdims=True)
    variance = (centred * centred).mean(-1, keepdims=True)
    scale = insert("rsqrt", [variance + checks.number("layer_norm: epsilon", epsilon)])[0]
    result = (centred * scale).to(x.dtype)
    result = result if weight is None else result * _parameter("layer_norm: weight", weight, x.shape[-1:], x)
    return result if bias is None else result + _parameter("layer_norm: bias", bias, x.shape[-1:], x)


def batch_norm(
    x: Value,
    mean: Operand,
    variance: Operand,
    weight: Operand | None = None,
    bias: Operand | None = None,
    epsilon: float = 1e-5,
) -> Value:
    """(x - mean) / sqrt(variance + epsilon) * weight + bias of x [N, C, ...]; the others are [C].

    A training step normalises by the batch instead if `mean` and `variance` are states: these are the running
    statistics, which it moves. Their initial values are 0 and 1.
    """
    channels = _value("batch_norm: x", x).shape[1:2]
    weight, bias = np.ones(channels) if weight is None else weight, np.zeros(channels) if bias is None else bias
    given = {"weight": weight, "bias": bias, "mean": mean, "variance": variance}
    operands = [_parameter(f"batch_norm: {name}", each, channels, x) for name, each in given.items()]
    return insert("batch_norm_inference", [x, *operands], epsilon=checks.number("batch_norm: epsilon", epsilon))[0]


def gelu(x: Value, approximate: bool | str = False) -> Value:
    """x times the normal distribution's share below x; `approximate`: by tanh, also as PyTorch's "tanh" and "none"."""
    half = 0.5 * _value("gelu: x", x)
    if isinstance(approximate, str):
        approximate = {"tanh": True, "none": False}.get(approximate, approximate)
    if checks.flag("gelu: approximate", approximate):
        return half * (1 + insert("tanh", [math.sqrt(2 / math.pi) * (x + 0.044715 * x * x * x)])[0])
    return half * (1 + insert("erf", [x * math.sqrt(0.5)])[0])


def embedding(indices: Value, weight: Value) -> Value:
    """The rows of weight at the indices."""
    return insert("gather", [weight, indices], dim=0)[0]


def dropout(x: Value, p: float = 0.5) -> Value:
    """x; in a training step, each element is zero with the probability p, and the others are divided by 1 - p."""
    share = checks.number("dropout: p", p)
    if not 0 <= share <= 1:
        raise Error(f"dropout: p is {share}, expected 0 to 1")
    ratio = constant(_value("dropout: x", x).graph, as_array("dropout: p", share), "f32")
    return insert("dropout", [x, ratio])[0]


def attention(
    q: Value, k: Value, v: Value, mask: Value | None = None, causal: bool = False, scale: float | None = None
) -> Value:
    """softmax(scale q k^T + mask) v of q [..., heads, queries, size], k and v. The scale is by default 1/sqrt(size)."""
    if _value("attention: q", q).ndim < 2:
        raise Error(f"attention: q is {q!r}, expected [..., heads, queries, size]")
    factor = 1 / math.sqrt(max(q.shape[-1], 1)) if scale is None else checks.number("attention: scale", scale)
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


def _parameter(what: str, value: Operand, shape: tuple[int, ...], x: Value) -> Value:
    """The value, or the array as a constant in the dtype of x. It must have the shape."""
    given = value if isinstance(value, Value) else constant(x.graph, as_array(what, value), x.dtype)
    if given.shape != shape:
        raise Error(f"{what} is {given!r}, expected the shape {list(shape)}")
    return given


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
