"""Options of functions of torch.nn.functional that no module has, and the modules whose `forward` is such a function."""

from __future__ import annotations

import re

import torch
from torch.nn import functional as F

from torch_cases import Value, between, constant, given, normal, of
from torch_options import LINE, PLANE, SPACE, scaling

# Arguments of a function that its module has as a parameter, a buffer or a mode.
OF_MODULES = {"weight", "bias", "training", "running_mean", "running_var", "linear_weight", "linear_bias", "input"}

# Functions whose options are those of a module, with which they are tried.
SAME_AS_MODULE = {
    **{
        name: re.sub(r"(^|_)([a-z])", lambda match: match[2].upper(), name)
        for name in (
            *("dropout", "dropout1d", "dropout2d", "dropout3d", "alpha_dropout", "feature_alpha_dropout"),
            *("softplus", "softshrink", "softsign", "sigmoid", "tanh", "tanhshrink", "threshold", "mish", "linear"),
            *("hardshrink", "hardsigmoid", "hardswish", "hardtanh", "bilinear", "embedding", "fold", "unfold"),
            *("conv1d", "conv2d", "conv3d", "pixel_shuffle", "pixel_unshuffle", "channel_shuffle"),
            *("group_norm", "layer_norm", "cosine_similarity", "pairwise_distance"),
            *("cosine_embedding_loss", "hinge_embedding_loss", "margin_ranking_loss", "soft_margin_loss"),
            *("triplet_margin_loss", "triplet_margin_with_distance_loss", "smooth_l1_loss"),
        )
    },
    **{f"conv_transpose{n}d": f"ConvTranspose{n}d" for n in (1, 2, 3)},
    **{
        f"{name}_pool{n}d{more}": f"{module}Pool{n}d"
        for n in (1, 2, 3)
        for more in ("", "_with_indices")
        for name, module in {
            "max": "Max",
            "adaptive_max": "AdaptiveMax",
            "fractional_max": "FractionalMax",
            "avg": "Avg",
            "adaptive_avg": "AdaptiveAvg",
            "lp": "LP",
        }.items()
        if (n > 1 or name != "fractional_max") and (more == "" or name.endswith("max"))
    },
    **{f"max_unpool{n}d": f"MaxUnpool{n}d" for n in (1, 2, 3)},
    "celu": "CELU",
    "elu": "ELU",
    "selu": "SELU",
    "gelu": "GELU",
    "glu": "GLU",
    "relu": "ReLU",
    "relu6": "ReLU6",
    "rrelu": "RReLU",
    "prelu": "PReLU",
    "silu": "SiLU",
    "leaky_relu": "LeakyReLU",
    "logsigmoid": "LogSigmoid",
    "local_response_norm": "LocalResponseNorm",
    "rms_norm": "RMSNorm",
    "embedding_bag": "EmbeddingBag",
    "binary_cross_entropy": "BCELoss",
    "binary_cross_entropy_with_logits": "BCEWithLogitsLoss",
    "cross_entropy": "CrossEntropyLoss",
    "ctc_loss": "CTCLoss",
    "gaussian_nll_loss": "GaussianNLLLoss",
    "kl_div": "KLDivLoss",
    "linear_cross_entropy": "LinearCrossEntropyLoss",
    "multi_margin_loss": "MultiMarginLoss",
    "multilabel_margin_loss": "MultiLabelMarginLoss",
    "multilabel_soft_margin_loss": "MultiLabelSoftMarginLoss",
    "nll_loss": "NLLLoss",
    "poisson_nll_loss": "PoissonNLLLoss",
    "multi_head_attention_forward": "MultiheadAttention",
}

# Options of those functions that the module lacks.
BEYOND_MODULE = {
    "multi_head_attention_forward": {
        "embed_dim_to_check": "a size",
        "in_proj_weight": "a parameter of the module",
        "in_proj_bias": "a parameter of the module",
        "bias_k": "add_bias_kv of the module",
        "bias_v": "add_bias_kv of the module",
        "dropout_p": "dropout of the module",
        "out_proj_weight": "a parameter of the module",
        "out_proj_bias": "a parameter of the module",
        "use_separate_proj_weight": "kdim of the module",
        "q_proj_weight": "kdim of the module",
        "k_proj_weight": "kdim of the module",
        "v_proj_weight": "vdim of the module",
        "static_k": "F.multi_head_attention_forward in FUNCTIONS of test_torch_options.py's specials",
        "static_v": "as static_k",
    },
}

FUNCTIONS_LEFT_OUT = {
    **dict.fromkeys(("assert_int_or_pair", "boolean_dispatch", "handle_torch_function"), "machinery"),
    **dict.fromkeys(("has_torch_function", "has_torch_function_unary", "has_torch_function_variadic"), "machinery"),
    "grouped_mm": "16 bits alone",
    "scaled_mm": "8 bits alone",
    "scaled_grouped_mm": "8 bits alone",
    "native_channel_shuffle": "channel_shuffle of CPUs, without a gradient",
    "rrelu_": "rrelu in place, which draws: RReLU(inplace=True)",
    "upsample": "interpolate by a deprecated name",
    "upsample_bilinear": "UpsamplingBilinear2d",
    "upsample_nearest": "UpsamplingNearest2d",
}


def clipped(*shape: int) -> Value:
    return between(-0.85, 0.85, *shape)


def in_place(function: object, **options: list[object]) -> object:
    """A subject whose result is the input, which the call changes in place."""
    return of(function, Value(lambda: 3 * torch.randn(3, 5), True), **options)


GRID, THETA = clipped(2, 5, 6, 2), Value(lambda: torch.eye(2, 3) + 0.2 * torch.randn(2, 2, 3), True)
DEEP_GRID, DEEP_THETA = clipped(1, 3, 2, 4, 3), Value(lambda: torch.eye(3, 4) + 0.2 * torch.randn(1, 3, 4), True)
WIDE_GRID = between(-1.6, 1.6, 2, 5, 6, 2)
DEEP = normal(1, 2, 3, 4, 5)
Q, K, V = normal(2, 4, 3, 6), normal(2, 4, 5, 6), normal(2, 4, 5, 6)
SQUARE = (normal(2, 4, 5, 6), K, V)
GROUPED = (Q, normal(2, 2, 5, 6), normal(2, 2, 5, 6))
KEEP = constant([[True, True, False, True, False], [False, True, True, True, True], [True, False, True, True, True]])
PADS = [
    given(pads, inputs, mode=mode)
    for mode in ("reflect", "replicate", "circular")
    for pads, inputs in (((1, 2), LINE), ((1, 0, 2, 1), PLANE), ((1, 0, 2, 1, 1, 1), SPACE), ((2, 0), normal(3, 5)))
]

FUNCTIONS = [
    of(
        F.affine_grid,
        THETA,
        base={"size": [2, 3, 4, 5]},
        size=[given([1, 2, 3, 4, 5], DEEP_THETA)],
        align_corners=[True, False, given(True, DEEP_THETA, size=[1, 2, 3, 4, 5])],
    ),
    of(
        F.grid_sample,
        normal(2, 3, 4, 5),
        GRID,
        mode=["nearest", "bicubic", given("bilinear", DEEP, DEEP_GRID), given("nearest", DEEP, DEEP_GRID)],
        padding_mode=[
            given(padding, normal(2, 3, 4, 5), WIDE_GRID, mode=mode)
            for padding in ("zeros", "border", "reflection")
            for mode in ("bilinear", "nearest", "bicubic")
        ],
        align_corners=[True, False, given(True, mode="bicubic"), given(True, padding_mode="reflection")],
    ),
    of(F.conv_tbc, normal(6, 2, 4), normal(3, 4, 5), normal(5), pad=[1, 2]),
    of(
        F.batch_norm,
        normal(5, 4),
        constant([0.1, 0.2, 0.3, 0.4]),
        constant([1.1, 1.2, 0.3, 0.4]),
        weight=[between(0.5, 1.5, 4)],
        bias=[normal(4)],
        training=[True, False],
        momentum=[0.5],
        eps=[0.5],
    ),
    of(
        F.instance_norm,
        normal(2, 4, 5),
        constant([0.1, 0.2, 0.3, 0.4]),
        constant([1.1, 1.2, 0.3, 0.4]),
        base={"use_input_stats": False},
        weight=[between(0.5, 1.5, 4)],
        bias=[normal(4)],
        use_input_stats=[given(True, normal(2, 4, 5))],
        momentum=[0.5],
        eps=[0.5],
    ),
    of(F.normalize, normal(3, 4, 2), p=[1.0, 3.0, float("inf")], dim=[0, -1, (1, 2)], eps=[10.0]),
    of(F.one_hot, constant([[0, 2], [1, 1]]), num_classes=[5]),
    of(
        F.pad,
        PLANE,
        base={"pad": (1, 2)},
        pad=[(1, 0, 2, 1), (-1, 2, 0, -1), *PADS],
        mode=[given("constant", value=2.0)],
        value=[0.5],
    ),
    of(F.pdist, normal(4, 3), p=[1.0, 3.0, float("inf")]),
    of(F.softmax, normal(2, 3, 4), base={"dim": 1}, dim=[0, None], dtype=[torch.float64, torch.float16]),
    of(F.log_softmax, normal(2, 3, 4), base={"dim": 1}, dim=[0, None], dtype=[torch.float64, torch.float16]),
    of(F.softmin, normal(2, 3, 4), base={"dim": 1}, dim=[0, None], dtype=[torch.float64, torch.float16]),
    of(
        F.l1_loss,
        normal(4, 3),
        normal(4, 3),
        reduction=["sum", "none"],
        weight=[constant(torch.tensor([[0.5, 1.0, 2.0]]).repeat(4, 1))],
    ),
    of(
        F.mse_loss,
        normal(4, 3),
        normal(4, 3),
        reduction=["sum", "none"],
        weight=[constant(torch.tensor([[0.5, 1.0, 2.0]]).repeat(4, 1)), between(0.5, 2.0, 4, 3)],
    ),
    of(
        F.huber_loss,
        normal(4, 3),
        normal(4, 3),
        reduction=["sum", "none"],
        delta=[0.5],
        weight=[constant(torch.tensor([[0.5, 1.0, 2.0]]).repeat(4, 1))],
    ),
    of(
        F.scaled_dot_product_attention,
        Q,
        K,
        V,
        attn_mask=[KEEP, normal(3, 5), normal(2, 1, 3, 5), given(KEEP, scale=0.3)],
        dropout_p=[0.0],
        is_causal=[True, given(True, *SQUARE)],
        scale=[0.3, 2.0],
        enable_gqa=[given(True, *GROUPED), given(True, *GROUPED, is_causal=True)],
    ),
    of(
        F.interpolate,
        PLANE,
        base={"size": (8, 10)},
        **scaling(),
        antialias=[
            given(True, PLANE, **{"mode": mode, "size": None, **size})
            for mode in ("bilinear", "bicubic")
            for size in ({"size": 7}, {"size": 3}, {"scale_factor": 0.6}, {"size": 3, "align_corners": True})
        ],
    ),
    in_place(F.relu_),
    in_place(F.selu_),
    in_place(F.elu_, alpha=[0.5]),
    in_place(F.celu_, alpha=[0.5]),
    in_place(F.leaky_relu_, negative_slope=[0.5]),
    of(F.hardtanh_, Value(lambda: 3 * torch.randn(3, 5), True), min_val=[-2.0], max_val=[2.0]),
    of(
        F.threshold_,
        Value(lambda: 3 * torch.randn(3, 5), True),
        base={"threshold": 0.1, "value": -1.0},
        threshold=[1.0],
        value=[0.5],
    ),
    of(
        F.gumbel_softmax,
        normal(3, 4),
        draws=True,
        tau=[0.5, 2.0],
        hard=[True],
        dim=[0],
        left_out={"eps": "deprecated, without effect"},
    ),
]
