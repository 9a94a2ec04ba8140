"""PyTorch functions at the points where a derivative is chosen: kinks, ties, the origin, the border of the domain.

`CASES` has every function of torch, torch.nn.functional and Tensor that is not smooth, or whose derivative divides by
something that may be 0, and formulas that users write in their place. Most were found by going through torch's database
of operators, `torch.testing._internal.common_methods_invocations.op_db`. Functions that torch's exporter refuses are
not here: copysign, cummax, cummin, cumprod, cdist, digamma, erfinv, fmax, fmin, hypot, kthvalue, lgamma, median, mode,
pdist, rrelu, sort(stable=True) and others.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

F = torch.nn.functional
INF = math.inf


@dataclass(frozen=True)
class Case:
    """A function, and the operands that it is differentiated with respect to, as lists of numbers."""

    name: str
    function: Callable[..., Any]
    operands: tuple[Any, ...]

    def tensors(self) -> list[torch.Tensor]:
        return [torch.tensor(operand, dtype=torch.float32) for operand in self.operands]


CASES: list[Case] = []


def add(name: str, function: Callable[..., Any], *operands: Any) -> None:
    CASES.append(Case(name, function, operands))


# Points around 0 and at the bounds of the functions below.
ZERO = [-2.0, -(2**-9), 0.0, -0.0, 2**-9, 2.0]
UNIT = [-2.0, -1.0, -0.5, 0.0, 0.5, 1.0, 2.0]
THREE = [-4.0, -3.0, -2.999, -0.5, 0.0, 0.5, 2.999, 3.0, 4.0]
SIX = [-1.0, 0.0, 3.0, 6.0, 7.0]
HALVES = [-1.5, -1.0, -0.5, 0.0, 0.5, 1.0, 1.5, 2.5]
# Pairs, some of them equal.
LEFT, RIGHT = [1.0, 2.0, 3.0, 0.0, -0.0, INF, -INF], [2.0, 2.0, 1.0, -0.0, 0.0, INF, -INF]
# Rows with one largest and smallest element, with two, with three, with only equal ones, with infinities.
TIES = [[1.0, 3.0, 2.0, 0.0], [3.0, 1.0, 3.0, 1.0], [2.0, 0.0, 2.0, 2.0], [5.0, 5.0, 5.0, 5.0], [INF, 1.0, INF, -INF]]
FINITE_TIES = TIES[:4]
# Rows without a zero, with one, with two, and with only zeros.
ZEROS = [[2.0, 3.0, -4.0], [2.0, 0.0, 3.0], [0.0, 2.0, 0.0], [0.0, 0.0, 0.0]]
# Rows away from the origin, on an axis, at the origin.
VECTORS = [[3.0, -4.0, 1.0], [0.0, 2.0, 0.0], [0.0, 0.0, 0.0], [-2.0, 2.0, 2.0]]
# Rows in which some or all elements are excluded.
MASKED = [[1.0, 2.0, 3.0], [1.0, -INF, 2.0], [-INF, -INF, 0.5], [-INF, -INF, -INF]]


# Activations

add("relu", torch.relu, ZERO)
add("relu6", F.relu6, SIX)
add("hardtanh", F.hardtanh, UNIT)
add("hardtanh(-2, 0.5)", lambda x: F.hardtanh(x, -2.0, 0.5), UNIT)
add("clamp(-1, 1)", lambda x: torch.clamp(x, -1.0, 1.0), UNIT)
add("clamp(0, 6)", lambda x: x.clamp(0, 6), SIX)
add("clamp(1, 1)", lambda x: x.clamp(1.0, 1.0), UNIT)
add("clamp(1, -1)", lambda x: x.clamp(1.0, -1.0), UNIT)
add("clamp(min=0)", lambda x: x.clamp(min=0), ZERO)
add("clamp(max=1)", lambda x: x.clamp(max=1), UNIT)
add("clip", lambda x: torch.clip(x, -1.0, 1.0), UNIT)
add("clamp_min", lambda x: torch.clamp_min(x, 0.0), ZERO)
add("clamp_max", lambda x: torch.clamp_max(x, 0.0), ZERO)
add("clamp of tensors", torch.clamp, UNIT, [-1.0, -1.0, -1.0, 0.0, 0.0, 1.0, 1.0], [1.0, 1.0, -0.5, 0.0, 0.5, 1.0, 2.0])
add("clamp of crossed tensors", torch.clamp, UNIT, [1.0] * 7, [-1.0] * 7)
add("clamp(min=tensor)", lambda x, low: torch.clamp(x, min=low), LEFT, RIGHT)
add("clamp(max=tensor)", lambda x, high: torch.clamp(x, max=high), LEFT, RIGHT)
add("clamp_min of tensors", torch.clamp_min, LEFT, RIGHT)
add("clamp_max of tensors", torch.clamp_max, LEFT, RIGHT)
add("clamp of a scalar tensor", lambda x, low: torch.clamp(x, min=low), UNIT, 0.5)
add("leaky_relu", F.leaky_relu, ZERO)
add("leaky_relu(0)", lambda x: F.leaky_relu(x, 0.0), ZERO)
add("prelu", F.prelu, ZERO, [0.25])
add("prelu of channels", F.prelu, [[-1.0, 0.0, 0.0], [0.0, -2.0, 1.0]], [0.25, 0.0, 2.0])
add("elu", F.elu, ZERO)
add("elu(0.5)", lambda x: F.elu(x, 0.5), ZERO)
add("celu", F.celu, ZERO)
add("celu(0.5)", lambda x: F.celu(x, 0.5), ZERO)
add("selu", F.selu, ZERO)
add("gelu", F.gelu, [*ZERO, -INF, 100.0])
add("gelu(tanh)", lambda x: F.gelu(x, approximate="tanh"), [*ZERO, 20.0])
add("silu", F.silu, [*ZERO, -200.0, 200.0])
add("mish", F.mish, [*ZERO, -200.0, 200.0])
add("glu", F.glu, [[-1.0, 0.0, 0.0, -200.0], [1.0, 0.0, 200.0, 0.0]])
add("hardsigmoid", F.hardsigmoid, THREE)
add("hardswish", F.hardswish, THREE)
add("hardshrink", F.hardshrink, UNIT)
add("hardshrink(0)", lambda x: F.hardshrink(x, 0.0), ZERO)
add("softshrink", F.softshrink, UNIT)
add("softshrink(0)", lambda x: F.softshrink(x, 0.0), ZERO)
add("tanhshrink", F.tanhshrink, ZERO)
add("threshold", lambda x: F.threshold(x, 1.0, 20.0), UNIT)
add("threshold(0, 0)", lambda x: F.threshold(x, 0.0, 0.0), ZERO)
add("softplus", F.softplus, [*ZERO, -200.0, 19.999, 20.0, 20.001, 200.0])
add("softplus(2, 1)", lambda x: F.softplus(x, 2.0, 1.0), UNIT)
add("softsign", F.softsign, ZERO)
add("logsigmoid", F.logsigmoid, [*ZERO, -200.0, 200.0])
add("sigmoid", torch.sigmoid, [*ZERO, -INF, -200.0, 200.0, INF])
add("tanh", torch.tanh, [*ZERO, -INF, -200.0, 200.0, INF])

# Signs and parts

add("abs", torch.abs, ZERO)
add("sign", lambda x: x + torch.sign(x), ZERO)
add("sgn", lambda x: x + torch.sgn(x), ZERO)
add("angle", lambda x: x + torch.angle(x), ZERO)
add("floor", lambda x: x + torch.floor(x), HALVES)
add("ceil", lambda x: x + torch.ceil(x), HALVES)
add("round", lambda x: x + torch.round(x), HALVES)
add("round(decimals=1)", lambda x: x + torch.round(x, decimals=1), HALVES)
add("trunc", lambda x: x + torch.trunc(x), HALVES)
add("fix", lambda x: x + torch.fix(x), HALVES)
add("frac", torch.frac, HALVES)
add("fmod", torch.fmod, [4.0, -4.0, 5.0, 0.0, -0.0, 4.5], [2.0, 2.0, -2.0, 2.0, -2.0, 1.5])
add("fmod(2)", lambda x: torch.fmod(x, 2.0), [4.0, -4.0, 5.0, 0.0, -0.0])
add("fmod by 0", torch.fmod, [1.0, 0.0, -2.0], [0.0, 0.0, -0.0])
add("remainder", torch.remainder, [4.0, -4.0, 5.0, 0.0, -0.0, 4.5], [2.0, 2.0, -2.0, 2.0, -2.0, 1.5])
add("remainder(2)", lambda x: torch.remainder(x, 2.0), [4.0, -4.0, 5.0, 0.0, -0.0])
add("x % y", lambda x, y: x % y, [4.0, -4.0, 5.0, 0.0], [2.0, 2.0, -2.0, 2.0])
add("remainder by 0", torch.remainder, [1.0, 0.0, -2.0], [0.0, 0.0, -0.0])
add("div(floor)", lambda x, y: x * y + torch.div(x, y, rounding_mode="floor"), [4.0, -4.0, 5.0], [2.0, 2.0, -2.0])
add("div(trunc)", lambda x, y: x * y + torch.div(x, y, rounding_mode="trunc"), [4.0, -4.0, 5.0], [2.0, 2.0, -2.0])
add("nan_to_num", torch.nan_to_num, [0.0, math.nan, INF, -INF, 1.0])
add("x * sign(x)", lambda x: x * torch.sign(x), ZERO)

# The larger and the smaller of two

add("maximum", torch.maximum, LEFT, RIGHT)
add("minimum", torch.minimum, LEFT, RIGHT)
add("max of two", torch.max, LEFT, RIGHT)
add("min of two", torch.min, LEFT, RIGHT)
add("maximum of itself", lambda x: torch.maximum(x, x), ZERO)
add("maximum with a constant", lambda x: torch.maximum(x, torch.tensor(0.0)), ZERO)
add("minimum with a constant", lambda x: torch.minimum(x, torch.tensor(1.0)), UNIT)
add("maximum with zeros_like", lambda x: torch.maximum(x, torch.zeros_like(x)), ZERO)
add("maximum with constants", lambda x: torch.maximum(x, torch.tensor(UNIT)), UNIT)
add("maximum with 0 * x", lambda x: torch.maximum(x, 0 * x), ZERO)
add("maximum, broadcast", torch.maximum, [[1.0, 2.0], [2.0, 2.0]], [2.0, 2.0])
add("maximum with a scalar operand", torch.maximum, UNIT, 0.5)
add("where(x > 0, x, 0)", lambda x: torch.where(x > 0, x, 0.0), ZERO)
add("where(x >= 0, x, -x)", lambda x: torch.where(x >= 0, x, -x), ZERO)
add("where(x > y, x, y)", lambda x, y: torch.where(x > y, x, y), LEFT, RIGHT)
add("x * (x > 0)", lambda x: x * (x > 0), ZERO)
add("relu squared", lambda x: torch.relu(x) ** 2, ZERO)
add("relu of a difference", lambda x, y: torch.relu(x - y), LEFT[:5], RIGHT[:5])
add("masked_fill", lambda x: x.masked_fill(x <= 0, 0.0), ZERO)

# The largest and the smallest of many

for _name, _function in {
    "max over all": torch.max,
    "min over all": torch.min,
    "max(dim).values": lambda x: torch.max(x, dim=1).values,
    "min(dim).values": lambda x: torch.min(x, dim=1).values,
    "max(dim=0).values": lambda x: torch.max(x, dim=0).values,
    "min(dim=0).values": lambda x: torch.min(x, dim=0).values,
    "max(keepdim).values": lambda x: torch.max(x, 1, keepdim=True).values,
    "max(dim)[0] + indices": lambda x: torch.max(x, dim=1)[0] + torch.max(x, dim=1)[1],
    "amax": lambda x: torch.amax(x, 1),
    "amin": lambda x: torch.amin(x, 1),
    "amax(keepdim)": lambda x: torch.amax(x, 1, keepdim=True),
    "amax of two dims": lambda x: torch.amax(x, (0, 1)),
    "aminmax(dim)": lambda x: torch.aminmax(x, dim=1),
    "topk": lambda x: torch.topk(x, 2, dim=1)[0],
    "topk(1)": lambda x: torch.topk(x, 1, dim=1)[0],
    "topk(largest=False)": lambda x: torch.topk(x, 2, dim=1, largest=False)[0],
    "sort": lambda x: torch.sort(x, dim=1)[0],
    "sort(descending)": lambda x: torch.sort(x, dim=1, descending=True)[0],
    "msort": lambda x: torch.msort(x),
    "quantile": lambda x: torch.quantile(x, 0.5, dim=1),
    "quantile(0)": lambda x: torch.quantile(x, 0.0, dim=1),
    "gather at argmax": lambda x: torch.gather(x, 1, x.argmax(1, keepdim=True)),
    "gather at argmin": lambda x: torch.gather(x, 1, x.argmin(1, keepdim=True)),
    "x == amax": lambda x: (x * (x == x.amax(1, keepdim=True))).sum(1),
    "max of maximum": lambda x: torch.max(torch.maximum(x, x.flip(1)), dim=1)[0],
    "x - max": lambda x: x - x.max(dim=1, keepdim=True)[0],
    "renormalised by amax": lambda x: x / x.abs().amax(1, keepdim=True),
}.items():
    add(_name, _function, FINITE_TIES if "amax" in _name and "renorm" in _name or "x - max" in _name else TIES)
add("max of a scalar", torch.max, 2.0)
add("max of one", lambda x: x.max(dim=0)[0], [2.0])

# Windows

IMAGE = [[[[1.0, 2.0, 2.0, 0.0], [2.0, 1.0, 2.0, 0.0], [3.0, 3.0, 0.0, 0.0], [3.0, 3.0, -1.0, 0.0]]]]
LINE = [[[1.0, 1.0, 2.0, 2.0, 0.0, 0.0, -1.0, -1.0]]]
VOLUME = [[[[[1.0, 1.0], [0.0, 1.0]], [[1.0, 1.0], [1.0, 0.0]]]]]
add("max_pool1d", lambda x: F.max_pool1d(x, 2), LINE)
add("max_pool1d(3, stride=1)", lambda x: F.max_pool1d(x, 3, 1), LINE)
add("max_pool1d(ceil_mode)", lambda x: F.max_pool1d(x, 3, ceil_mode=True), LINE)
add("max_pool2d", lambda x: F.max_pool2d(x, 2), IMAGE)
add("max_pool2d(3, stride=1)", lambda x: F.max_pool2d(x, 3, 1), IMAGE)
add("max_pool2d(padding)", lambda x: F.max_pool2d(x, 3, 2, padding=1), IMAGE)
add("max_pool2d(dilation)", lambda x: F.max_pool2d(x, 2, 1, dilation=2), IMAGE)
add("max_pool2d with indices", lambda x: F.max_pool2d(x, 2, return_indices=True)[0], IMAGE)
add("max_pool2d of relu", lambda x: F.max_pool2d(torch.relu(x), 2), IMAGE)
add("relu of max_pool2d", lambda x: torch.relu(F.max_pool2d(x, 2)), IMAGE)
add("max_pool2d of -inf", lambda x: F.max_pool2d(x, 2), [[[[-INF, -INF], [-INF, -INF]]]])
add("max_pool3d", lambda x: F.max_pool3d(x, 2), VOLUME)
add("adaptive_max_pool1d", lambda x: F.adaptive_max_pool1d(x, 2), LINE)
add("adaptive_max_pool2d", lambda x: F.adaptive_max_pool2d(x, 2), IMAGE)
add("adaptive_max_pool2d(1)", lambda x: F.adaptive_max_pool2d(x, 1), IMAGE)
add("adaptive_max_pool3d", lambda x: F.adaptive_max_pool3d(x, 1), VOLUME)
add("lp_pool1d", lambda x: F.lp_pool1d(x, 2, 2), LINE)
add("lp_pool2d", lambda x: F.lp_pool2d(x, 2, 2), IMAGE)
add("lp_pool2d(1)", lambda x: F.lp_pool2d(x, 1, 2), IMAGE)
add("max_pool2d then unpool", lambda x: F.max_unpool2d(*F.max_pool2d(x, 2, return_indices=True), 2), IMAGE)

# Losses

add("l1_loss", F.l1_loss, UNIT, [-2.0, 0.0, -0.5, 1.0, 0.5, 1.0, 3.0])
add("l1_loss(sum)", lambda x, y: F.l1_loss(x, y, reduction="sum"), UNIT, [-2.0, 0.0, -0.5, 1.0, 0.5, 1.0, 3.0])
add("mse_loss", F.mse_loss, UNIT, UNIT)
add("smooth_l1_loss", F.smooth_l1_loss, UNIT, [-1.0, -1.0, 0.5, -1.0, 1.5, 0.5, 2.0])
add(
    "smooth_l1_loss(beta=0)",
    lambda x, y: F.smooth_l1_loss(x, y, beta=0.0),
    UNIT,
    [-1.0, -1.0, 0.5, -1.0, 1.5, 1.0, 2.0],
)
add("smooth_l1_loss(beta=0.5)", lambda x, y: F.smooth_l1_loss(x, y, beta=0.5, reduction="none"), UNIT, [0.0] * 7)
add("huber_loss", F.huber_loss, UNIT, [-1.0, -1.0, 0.5, -1.0, 1.5, 0.5, 2.0])
add("huber_loss(delta=0.5)", lambda x, y: F.huber_loss(x, y, delta=0.5, reduction="none"), UNIT, [0.0] * 7)
add(
    "hinge_embedding_loss",
    lambda x: F.hinge_embedding_loss(x, torch.tensor([1.0, -1.0, 1.0, -1.0, 1.0, -1.0, -1.0])),
    UNIT,
)
add(
    "margin_ranking_loss",
    lambda x, y: F.margin_ranking_loss(x, y, torch.tensor([1.0, -1.0, 1.0, -1.0]), margin=0.5),
    [1.0, 1.0, 2.0, 0.0],
    [1.0, 1.5, 1.5, -0.5],
)
add(
    "margin_ranking_loss(0)",
    lambda x, y: F.margin_ranking_loss(x, y, torch.tensor([1.0, -1.0, 1.0])),
    [1.0, 1.0, 2.0],
    [1.0, 1.0, 1.5],
)
add(
    "multi_margin_loss",
    lambda x: F.multi_margin_loss(x, torch.tensor([0, 1, 2])),
    [[1.0, 0.0, 2.0], [0.5, 0.5, 1.5], [0.0, 1.0, 1.0]],
)
add(
    "multilabel_soft_margin_loss",
    lambda x: F.multilabel_soft_margin_loss(x, torch.tensor([[0.0, 1.0, 1.0]])),
    [[0.0, 200.0, -200.0]],
)
add("soft_margin_loss", lambda x: F.soft_margin_loss(x, torch.tensor([1.0, -1.0, 1.0])), [0.0, -50.0, -50.0])
add(
    "cosine_embedding_loss",
    lambda x, y: F.cosine_embedding_loss(x, y, torch.tensor([1.0, -1.0, -1.0, 1.0])),
    VECTORS,
    [[1.0, 0.0, 0.0], [1.0, 0.0, 1.0], [0.0, 1.0, 0.0], [0.0, 0.0, 0.0]],
)
add(
    "triplet_margin_loss",
    F.triplet_margin_loss,
    [[0.0, 0.0], [1.0, 1.0], [0.0, 0.0]],
    [[0.0, 0.0], [1.0, 2.0], [1.0, 0.0]],
    [[1.0, 0.0], [1.0, 1.0], [0.0, 2.0]],
)
add(
    "triplet_margin_loss(swap)",
    lambda a, p, n: F.triplet_margin_loss(a, p, n, swap=True, margin=0.5),
    [[0.0, 0.0], [0.0, 1.0]],
    [[0.0, 0.0], [0.0, 2.0]],
    [[1.0, 0.0], [0.0, 3.0]],
)
add(
    "triplet_margin_with_distance_loss",
    F.triplet_margin_with_distance_loss,
    [[0.0, 0.0], [1.0, 1.0]],
    [[0.0, 0.0], [1.0, 2.0]],
    [[1.0, 0.0], [1.0, 1.0]],
)
PROBABILITIES = [0.0, 1.0, 0.0, 1.0, 0.5, 1e-30]
TARGETS = [0.0, 1.0, 1.0, 0.0, 0.5, 0.5]
add("binary_cross_entropy", F.binary_cross_entropy, PROBABILITIES, TARGETS)
add("binary_cross_entropy(none)", lambda x, y: F.binary_cross_entropy(x, y, reduction="none"), PROBABILITIES, TARGETS)
add(
    "binary_cross_entropy(weight)",
    lambda x: F.binary_cross_entropy(x, torch.tensor(TARGETS), torch.tensor([1.0, 2.0, 0.0, 1.0, 2.0, 1.0])),
    PROBABILITIES,
)
add(
    "binary_cross_entropy_with_logits",
    F.binary_cross_entropy_with_logits,
    [0.0, 0.0, -0.0, 200.0, -200.0, 200.0],
    [0.0, 1.0, 0.5, 1.0, 0.0, 0.0],
)
add(
    "binary_cross_entropy_with_logits(pos_weight)",
    lambda x: F.binary_cross_entropy_with_logits(
        x, torch.tensor([0.0, 1.0, 1.0]), pos_weight=torch.tensor([2.0, 2.0, 2.0])
    ),
    [0.0, 0.0, -200.0],
)
add("kl_div", F.kl_div, [-1.0, -2.0, -3.0], [0.0, 1.0, 0.5])
add("kl_div(log_target)", lambda x, y: F.kl_div(x, y, log_target=True), [-1.0, -2.0, -3.0], [0.0, -INF, -0.5])
add("poisson_nll_loss", F.poisson_nll_loss, [0.0, 1.0, -1.0], [0.0, 1.0, 2.0])
add(
    "poisson_nll_loss(full)",
    lambda x: F.poisson_nll_loss(x, torch.tensor([0.0, 1.0, 2.0]), full=True),
    [0.0, 1.0, -1.0],
)
add("poisson_nll_loss(log_input=False)", lambda x, y: F.poisson_nll_loss(x, y, log_input=False), [0.0, 1.0], [0.0, 2.0])
add("cross_entropy of -inf", lambda x: F.cross_entropy(x, torch.tensor([0, 0])), [[1.0, -INF, 2.0], [1.0, 1.0, 1.0]])
add(
    "cross_entropy, all ignored",
    lambda x: F.cross_entropy(x, torch.tensor([-100, -100])),
    [[1.0, 0.0, 2.0], [1.0, 1.0, 1.0]],
)
add("nll_loss", lambda x: F.nll_loss(x, torch.tensor([0, 1])), [[0.0, -INF], [-1.0, 0.0]])

# Norms

for _name, _function in {
    "norm": lambda x: torch.norm(x, dim=1),
    "norm(1)": lambda x: torch.norm(x, 1, dim=1),
    "norm(3)": lambda x: torch.norm(x, 3, dim=1),
    "norm(0)": lambda x: x.sum(1) + torch.norm(x, 0, dim=1),
    "norm(0.5)": lambda x: torch.norm(x, 0.5, dim=1),
    "norm(inf)": lambda x: torch.norm(x, INF, dim=1),
    "norm(-inf)": lambda x: torch.norm(x, -INF, dim=1),
    "norm(keepdim)": lambda x: x.norm(dim=1, keepdim=True),
    "norm(dim=0)": lambda x: x.norm(dim=0),
    "norm over all": torch.norm,
    "norm(fro)": lambda x: torch.norm(x, "fro", dim=(0, 1)),
    "linalg.norm": torch.linalg.norm,
    "linalg.norm(dim)": lambda x: torch.linalg.norm(x, dim=1),
    "linalg.norm(1, dim)": lambda x: torch.linalg.norm(x, 1, dim=1),
    "linalg.vector_norm": torch.linalg.vector_norm,
    "linalg.vector_norm(1)": lambda x: torch.linalg.vector_norm(x, 1, dim=1),
    "linalg.vector_norm(2)": lambda x: torch.linalg.vector_norm(x, 2, dim=1),
    "linalg.vector_norm(3)": lambda x: torch.linalg.vector_norm(x, 3, dim=1),
    "linalg.vector_norm(2.5)": lambda x: torch.linalg.vector_norm(x, 2.5, dim=1),
    "linalg.vector_norm(0)": lambda x: x.sum(1) + torch.linalg.vector_norm(x, 0, dim=1),
    "linalg.vector_norm(-1)": lambda x: torch.linalg.vector_norm(x, -1, dim=1),
    "linalg.vector_norm(inf)": lambda x: torch.linalg.vector_norm(x, INF, dim=1),
    "linalg.vector_norm(-inf)": lambda x: torch.linalg.vector_norm(x, -INF, dim=1),
    "linalg.matrix_norm": torch.linalg.matrix_norm,
    "linalg.matrix_norm(1)": lambda x: torch.linalg.matrix_norm(x, 1),
    "linalg.matrix_norm(inf)": lambda x: torch.linalg.matrix_norm(x, INF),
    "normalize": F.normalize,
    "normalize(1)": lambda x: F.normalize(x, p=1.0),
    "normalize(inf)": lambda x: F.normalize(x, p=INF),
    "normalize(dim=0)": lambda x: F.normalize(x, dim=0),
    "normalize(eps=0.5)": lambda x: F.normalize(x, eps=0.5),
    "renorm": lambda x: torch.renorm(x, 2, 0, 1.0),
    "x / norm": lambda x: x / x.norm(dim=1, keepdim=True),
    "x / (norm + eps)": lambda x: x / (x.norm(dim=1, keepdim=True) + 1e-6),
    "x / norm.clamp": lambda x: x / x.norm(dim=1, keepdim=True).clamp(min=1e-6),
    "sqrt(sum(x ** 2))": lambda x: torch.sqrt((x**2).sum(1)),
    "sqrt(sum(x * x))": lambda x: torch.sqrt((x * x).sum(1)),
    "sum(x ** 2) ** 0.5": lambda x: x.pow(2).sum(1) ** 0.5,
    "sqrt(sum(square) + eps)": lambda x: torch.sqrt(x.square().sum(1) + 1e-12),
    "x * rsqrt(sum(square))": lambda x: x * torch.rsqrt(x.square().sum(1, keepdim=True)),
    "x * rsqrt(mean(square) + eps)": lambda x: x * torch.rsqrt(x.pow(2).mean(1, keepdim=True) + 1e-6),
    "sum(abs)": lambda x: x.abs().sum(1),
    "x / sum(abs)": lambda x: x / x.abs().sum(1, keepdim=True),
    "x / sum(abs).clamp": lambda x: x / x.abs().sum(1, keepdim=True).clamp(min=1e-12),
    "std": lambda x: torch.std(x, dim=1),
    "std over all": torch.std,
    "std(correction=0)": lambda x: torch.std(x, dim=1, correction=0),
    "var": lambda x: torch.var(x, dim=1),
    "std_mean": lambda x: torch.std_mean(x, dim=1),
    "var_mean": lambda x: torch.var_mean(x, dim=1),
    "(x - mean) / std": lambda x: (x - x.mean(1, keepdim=True)) / x.std(1, keepdim=True),
    "(x - mean) / (std + eps)": lambda x: (x - x.mean(1, keepdim=True)) / (x.std(1, keepdim=True) + 1e-5),
    "layer_norm": lambda x: F.layer_norm(x, (3,)),
    "rms_norm": lambda x: F.rms_norm(x, (3,)),
    "rms_norm(eps=1e-6)": lambda x: F.rms_norm(x, (3,), eps=1e-6),
    "local_response_norm": lambda x: F.local_response_norm(x[:, :, None], 2),
    "softmax": lambda x: torch.softmax(x, 1),
    "dot of itself": lambda x: (x * x).sum(1).sqrt().sum(),
}.items():
    add(_name, _function, VECTORS)
add("norm of a vector", torch.norm, [0.0, 0.0])
add("norm of a scalar", torch.norm, 0.0)
add("std of equal elements", torch.std, [2.0, 2.0, 2.0])
add("std of one element", torch.std, [2.0])
add("var of one element", torch.var, [2.0])
add("var(correction=0) of one element", lambda x: torch.var(x, correction=0), [2.0])
add(
    "cosine_similarity",
    F.cosine_similarity,
    VECTORS,
    [[1.0, 0.0, 0.0], [0.0, 2.0, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 0.0]],
)
add("cosine_similarity(eps=4)", lambda x, y: F.cosine_similarity(x, y, eps=4.0), VECTORS, [[1.0, 0.0, 5.0]] * 4)
add("cosine_similarity of rows and one row", lambda x, y: F.cosine_similarity(x, y, dim=-1), VECTORS, [1.0, 2.0, 2.0])
add("cosine_similarity of large elements", F.cosine_similarity, [[1e30, 1.0]], [[2.0, 1.0]])
add("cosine_similarity of zeros", F.cosine_similarity, [[0.0, 0.0]], [[0.0, 0.0]])
EQUAL = [[3.0, -4.0, 1.0], [0.0, 0.0, 0.0], [0.0, 0.0, 0.0], [-2.0, 2.0, 1.0]]
add("pairwise_distance", F.pairwise_distance, VECTORS, EQUAL)
add("pairwise_distance(1)", lambda x, y: F.pairwise_distance(x, y, p=1.0), VECTORS, EQUAL)
add("pairwise_distance(eps=0)", lambda x, y: F.pairwise_distance(x, y, eps=0.0), VECTORS, EQUAL)
add("pairwise_distance(inf)", lambda x, y: F.pairwise_distance(x, y, p=INF), VECTORS, EQUAL)
add("dist", torch.dist, VECTORS, VECTORS)
add("dist(1)", lambda x, y: torch.dist(x, y, 1), VECTORS, EQUAL)
add("norm of a difference", lambda x, y: (x - y).norm(dim=1), VECTORS, EQUAL)
add("sqrt(x * x + y * y)", lambda x, y: torch.sqrt(x * x + y * y), [0.0, 3.0, 0.0], [0.0, 4.0, 1.0])
add("atan2", torch.atan2, [0.0, 0.0, 1.0, 0.0, -0.0, 1.0, -0.0], [0.0, 1.0, 0.0, -1.0, -1.0, 1.0, 0.0])
add("atan of a quotient", lambda x, y: torch.atan(x / y), [0.0, 1.0, 1.0], [0.0, 0.0, 1.0])

# Borders of domains

ROOTS = [0.0, 1e-30, 1.0, 4.0]
add("sqrt", torch.sqrt, [*ROOTS, -1.0, -0.0])
add("rsqrt", torch.rsqrt, [*ROOTS, -1.0])
add("x * rsqrt(x * x)", lambda x: x * torch.rsqrt(x * x), ZERO)
add("x * rsqrt(x * x + 0)", lambda x: x * torch.rsqrt(x**2 + 0), ZERO)
add("x / sqrt(x * x)", lambda x: x / torch.sqrt(x * x), ZERO)
add("sqrt(x ** 2)", lambda x: torch.sqrt(x**2), ZERO)
add("where(x > 0, sqrt(x), 0)", lambda x: torch.where(x > 0, torch.sqrt(x), 0.0), [0.0, -1.0, 4.0])
add("where(x > 0, sqrt(where), 0)", lambda x: torch.where(x > 0, torch.sqrt(torch.where(x > 0, x, 1.0)), 0.0), ZERO)
add("where(x > 0, log(x), 0)", lambda x: torch.where(x > 0, torch.log(x), torch.zeros_like(x)), [0.0, -1.0, 4.0])
add("where(x != 0, 1 / x, 0)", lambda x: torch.where(x != 0, 1 / x, 0.0), ZERO)
add("where(x != 0, sin(x) / x, 1)", lambda x: torch.where(x != 0, torch.sin(x) / x, 1.0), ZERO)
add("sqrt(relu)", lambda x: torch.sqrt(torch.relu(x)), ZERO)
add("sqrt(clamp)", lambda x: torch.sqrt(x.clamp(min=0)), [0.0, -1.0, 4.0])
add("sqrt(clamp(eps))", lambda x: torch.sqrt(x.clamp(min=1e-6)), [0.0, 1e-6, -1.0, 4.0])
add("sqrt(abs)", lambda x: torch.sqrt(x.abs()), ZERO)
add("cbrt", lambda x: torch.sign(x) * x.abs() ** (1 / 3), ZERO)
add("reciprocal", torch.reciprocal, ZERO)
add("1 / x", lambda x: 1 / x, ZERO)
add("x / y", torch.div, [0.0, 1.0, -1.0, 0.0, INF], [0.0, 0.0, 0.0, 1.0, INF])
add("x / x", lambda x: x / x, ZERO)
add("addcdiv", torch.addcdiv, [1.0, 1.0], [0.0, 1.0], [0.0, 0.0])
add("log", torch.log, [*ROOTS, -1.0, INF])
add("log2", torch.log2, [*ROOTS, -1.0])
add("log10", torch.log10, [*ROOTS, -1.0])
add("log1p", torch.log1p, [-1.0, -2.0, 0.0, -0.0, 1e-6])
add("expm1", torch.expm1, [0.0, -0.0, 1e-6, -INF])
add("exp", torch.exp, [0.0, -INF, INF, 200.0])
add("exp2", torch.exp2, [0.0, -INF, INF, 200.0])
add("asin", torch.asin, UNIT)
add("acos", torch.acos, UNIT)
add("atan", torch.atan, [*ZERO, INF])
add("acosh", torch.acosh, [0.0, 1.0, 2.0])
add("asinh", torch.asinh, ZERO)
add("atanh", torch.atanh, UNIT)
add("tan", torch.tan, ZERO)
add("sinh", torch.sinh, ZERO)
add("cosh", torch.cosh, ZERO)
add("erf", torch.erf, [*ZERO, INF])
add("erfc", torch.erfc, ZERO)
add("sinc", torch.sinc, [*UNIT, -0.0, 0.25])
add("logit", torch.logit, [0.0, 0.5, 1.0])
add("logit(eps)", lambda x: torch.logit(x, eps=0.25), [0.0, 0.25, 0.5, 0.75, 1.0])
add("special.expit", torch.special.expit, ZERO)
add("special.entr", torch.special.entr, [0.0, -0.0, 1.0, 0.5, -1.0])
add("special.xlog1py", torch.special.xlog1py, [0.0, 0.0, 1.0, 1.0], [-1.0, 0.0, -1.0, 1.0])
add("special.log_ndtr", torch.special.log_ndtr, ZERO)
add("special.ndtr", torch.special.ndtr, ZERO)
XLOG_X, XLOG_Y = [0.0, 0.0, 0.0, 1.0, 1.0, 2.0], [0.0, 1.0, -1.0, 0.0, 1.0, 3.0]
add("xlogy", torch.xlogy, XLOG_X, XLOG_Y)
add("xlogy(2, x)", lambda x: torch.xlogy(2.0, x), [0.0, 1.0, 2.0])
add("xlogy(x, 2)", lambda x: torch.xlogy(x, 2.0), [0.0, 1.0, 2.0])
add("xlogy(x, x)", lambda x: torch.xlogy(x, x), [0.0, 1.0, 2.0])
add("x * log(x)", lambda x: x * torch.log(x), [0.0, 1.0, 2.0])
add("x * log(x + eps)", lambda x: x * torch.log(x + 1e-9), [0.0, 1.0, 2.0])
add("entropy", lambda x: -(torch.softmax(x, 1) * torch.log_softmax(x, 1)).sum(1), [[0.0, 200.0], [0.0, -INF]])

# Powers and products

BASES = [-2.0, -1.0, -0.0, 0.0, 0.5, 1.0, 2.0]
for _power in (0, 1, 2, 3, 4, -1, -2, 0.0, 0.5, 1.0, 1.5, 2.0, 2.5, 3.0, 1 / 3, -0.5, -1.0):
    add(f"x ** {_power!r:.6}", lambda x, power=_power: x**power, BASES)
add("square", torch.square, BASES)
add(
    "pow of tensors",
    torch.pow,
    [0.0, 0.0, 0.0, 0.0, -2.0, -2.0, -2.0, 1.0, 2.0],
    [0.0, 1.0, 2.0, 0.5, 2.0, 3.0, 0.0, 0.0, -1.0],
)
add("pow of tensors, 0 ** -1", torch.pow, [0.0, -0.0], [-1.0, -1.0])
add("pow of tensors, negative ** fraction", torch.pow, [-2.0, -1.0], [0.5, 1.5])
add("pow by a constant tensor", lambda x: x ** torch.tensor([0.0, 1.0, 2.0, 0.0, 0.5, 1.0, -1.0]), BASES)
add("2 ** x", lambda x: 2.0**x, ZERO)
add("0 ** x", lambda x: 0.0**x, [0.0, 1.0, 2.0, -1.0])
add("1 ** x", lambda x: 1.0**x, ZERO)
add("(-2) ** x", lambda x: (-2.0) ** x, [0.0, 1.0, 2.0])
add("x ** x", lambda x: x**x, [0.0, 1.0, 2.0])
add("float_power", lambda x: torch.float_power(x, 2.0), BASES)
add("prod over all", torch.prod, [2.0, 3.0, 0.0])
add("prod of two zeros", torch.prod, [2.0, 0.0, 0.0])
add("prod(dim)", lambda x: torch.prod(x, 1), ZEROS)
add("prod(keepdim)", lambda x: torch.prod(x, 0, keepdim=True), ZEROS)
add("det", torch.linalg.det, [[0.0, 0.0], [0.0, 1.0]])
add("addcmul", torch.addcmul, [0.0, 1.0], [0.0, INF], [1.0, 0.0])
add("lerp", torch.lerp, [0.0, 1.0], [1.0, 1.0], [0.5, 0.0])
add("mul by 0", lambda x: x * 0, [0.0, 1.0, INF])
add("ldexp", torch.ldexp, [0.0, 1.0], [0.0, 1.0])

# Logarithms of sums

add("logaddexp", torch.logaddexp, [0.0, 1.0, -INF, -INF, INF, INF], [0.0, 1.0, 0.0, -INF, 0.0, INF])
add("logaddexp2", torch.logaddexp2, [0.0, 1.0, -INF, 2.0], [0.0, 1.0, 0.0, -1.0])
add("logsumexp", lambda x: torch.logsumexp(x, 1), MASKED)
add("logsumexp(keepdim)", lambda x: torch.logsumexp(x, 1, keepdim=True), MASKED)
add("logsumexp over all", lambda x: torch.logsumexp(x, (0, 1)), MASKED)
add("logsumexp of inf", lambda x: torch.logsumexp(x, 1), [[INF, 1.0], [INF, INF], [INF, -INF]])
add("logcumsumexp", lambda x: torch.logcumsumexp(x, 1), MASKED)
add("log(sum(exp))", lambda x: torch.log(torch.exp(x).sum(1)), MASKED)
add("softmax of -inf", lambda x: torch.softmax(x, 1), MASKED)
add("softmax of inf", lambda x: torch.softmax(x, 1), [[INF, 1.0, 0.0]])
add("softmin of inf", lambda x: F.softmin(x, 1), [[INF, 1.0, 0.0]])
add("log_softmax of -inf", lambda x: torch.log_softmax(x, 1), MASKED)
add("log(softmax) of -inf", lambda x: torch.log(torch.softmax(x, 1)), MASKED)
add(
    "softmax of masked_fill", lambda x: torch.softmax(x.masked_fill(x > 2, -INF), 1), [[1.0, 2.0, 3.0], [3.0, 3.0, 3.0]]
)
add(
    "scaled_dot_product_attention",
    lambda q, k, v: F.scaled_dot_product_attention(q, k, v, torch.tensor([[True, False], [False, False]])),
    [[[[0.0, 1.0], [1.0, 0.0]]]],
    [[[[0.0, 1.0], [1.0, 0.0]]]],
    [[[[0.0, 1.0], [1.0, 0.0]]]],
)
add(
    "scaled_dot_product_attention(causal)",
    lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True),
    [[[[0.0, 1.0], [1.0, 0.0]]]],
    [[[[0.0, 1.0], [1.0, 0.0]]]],
    [[[[0.0, 1.0], [1.0, 0.0]]]],
)

# Sums of some, scatters, and other functions of the database

HOLES = [[1.0, math.nan, 2.0], [math.nan, math.nan, math.nan]]
add("nansum", lambda x: torch.nansum(x, 1), HOLES)
add("nanmean", lambda x: torch.nanmean(x, 1), HOLES)
add(
    "scatter_reduce(amax)",
    lambda x, s: x.scatter_reduce(0, torch.tensor([0, 0, 1, 2, 2]), s, "amax"),
    [1.0, 2.0, 3.0],
    [1.0, 1.0, 3.0, 3.0, 2.0],
)
add(
    "scatter_reduce(amin)",
    lambda x, s: x.scatter_reduce(0, torch.tensor([0, 0, 1, 2, 2]), s, "amin"),
    [1.0, 2.0, 3.0],
    [1.0, 1.0, 3.0, 3.0, 2.0],
)
add(
    "scatter_reduce(prod)",
    lambda x, s: x.scatter_reduce(0, torch.tensor([0, 0, 1, 2, 2]), s, "prod"),
    [1.0, 0.0, 3.0],
    [0.0, 1.0, 3.0, 0.0, 0.0],
)
add(
    "embedding_bag(max)",
    lambda w: F.embedding_bag(torch.tensor([[0, 1], [1, 1]]), w, mode="max"),
    [[1.0, 2.0], [1.0, 3.0]],
)
add("grid_sample at a pixel", F.grid_sample, IMAGE, [[[[0.25, 0.25], [-0.75, 0.75], [1.0, -1.0], [-1.25, 1.25]]]])
add("interpolate(nearest)", lambda x: F.interpolate(x, scale_factor=1.5), IMAGE)
add("diff", torch.diff, [1.0, 1.0, 2.0])
add("total variation", lambda x: torch.diff(x).abs().sum(), [1.0, 1.0, 2.0, 1.0])
add("batch_norm", lambda x: F.batch_norm(x, None, None, training=True), VECTORS)
add("instance_norm", lambda x: F.instance_norm(x), LINE)
add("group_norm", lambda x: F.group_norm(x, 1), VECTORS)
add("straight through", lambda x: torch.clamp(x, -1, 1) + torch.round(x), UNIT)
add("hinge", lambda x: torch.clamp(1 - x, min=0).mean(), UNIT)
add("squared hinge", lambda x: torch.relu(1 - x).square().mean(), UNIT)
add("focal", lambda x: ((1 - torch.sigmoid(x)) ** 2 * F.logsigmoid(x)).mean(), [0.0, 200.0, -200.0])
add("focal of probabilities", lambda x: ((1 - x) ** 0.5 * torch.log(x)).mean(), [0.5, 1.0])
add("pinball", lambda x, y: torch.maximum(0.9 * (y - x), -0.1 * (y - x)).mean(), UNIT, [0.0] * 7)
add("charbonnier", lambda x, y: torch.sqrt((x - y) ** 2 + 1e-6).mean(), UNIT, UNIT)
add(
    "iou", lambda x, y: (torch.minimum(x, y).clamp(min=0) / torch.maximum(x, y)).sum(), [1.0, 2.0, 0.5], [1.0, 2.0, 1.0]
)
add("log_cosh", lambda x: (x + F.softplus(-2 * x) - math.log(2)).mean(), ZERO)

# Differences from PyTorch: the first number that differs, and how many do. The list may only become shorter. `python
# test/python/test_torch_kinks.py` prints it, and docs/frameworks.md has the reasons.
DIFFERS: dict[str, str] = {
    "fmod by 0": "gradient of operand 1[0] nan, PyTorch -inf; 2 in all",
    "topk": "gradient[8] 2, PyTorch 0; 7 in all",
    "topk(1)": "gradient[8] 1.5, PyTorch 0; 4 in all",
    "topk(largest=False)": "gradient[8] 2.25, PyTorch 0; 6 in all",
    "adaptive_max_pool2d(1)": "gradient[8] 0.25, PyTorch 1; 4 in all",
    "adaptive_max_pool3d": "gradient[0] 0.167, PyTorch 1; 6 in all",
    "multi_margin_loss": "gradient[0] -0.222, PyTorch -0.111; 4 in all",
    "binary_cross_entropy": "gradient of operand 0[0] 0.167, PyTorch 0; 9 in all",
    "binary_cross_entropy(none)": "gradient of operand 0[0] 1, PyTorch 0; 9 in all",
    "binary_cross_entropy(weight)": "gradient[0] 0.167, PyTorch 0; 4 in all",
    "kl_div": "gradient of operand 1[0] 0.333, PyTorch nan; 1 in all",
    "norm(0.5)": "gradient[3] nan, PyTorch 0; 5 in all",
    "linalg.vector_norm(-1)": "gradient[3] nan, PyTorch 0; 5 in all",
    "x / norm": "gradient[6] inf, PyTorch nan; 3 in all",
    "atan2": "value[4] 3.14, PyTorch -3.14; 1 in all",
    "special.entr": "gradient[0] nan, PyTorch inf; 2 in all",
    "special.xlog1py": "gradient of operand 0[0] nan, PyTorch 0; 1 in all",
    "xlogy": "gradient of operand 1[0] 0, PyTorch nan; 1 in all",
    "xlogy(x, x)": "gradient[0] 0, PyTorch nan; 1 in all",
    "x ** 0.5": "gradient[2] inf, PyTorch -inf; 1 in all",
    "x ** -0.5": "value[2] inf, PyTorch -inf; 1 in all",
    "det": "gradient[0] 1, PyTorch 0; 1 in all",
    "logaddexp": "gradient of operand 0[3] 0.875, PyTorch nan; 4 in all",
    "logcumsumexp": "value[9] nan, PyTorch -inf; 4 in all",
    "scaled_dot_product_attention": "value[2] 0.5, PyTorch 0; 10 in all",
    "nanmean": "gradient[3] 0, PyTorch nan; 3 in all",
    "embedding_bag(max)": "gradient[0] 0.5, PyTorch 1; 2 in all",
}
