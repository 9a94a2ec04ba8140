"""Every option of every module of torch.nn, and the options that functions of torch.nn.functional have beyond their
module's.

A subject has the arguments of its base case, and for each option the other values to try, one at a time. `LEFT_OUT` and
the like list arguments that are not cases, with the reason. Known refusals and differences are in torch_outcomes.py.
"""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F

from torch_cases import Subject, Value, between, constant, given, normal, of, signs, spread

# --- Arguments that are not options, for all subjects

NOWHERE_AN_OPTION = {
    "device": "a step of Lockstep is compiled for its device",
    "dtype": "what an option computes does not depend on it",
    "size_average": "deprecated, and makes a reduction",
    "reduce": "deprecated, and makes a reduction",
    "_stacklevel": "of a warning",
    "_weight": "the initial value of a weight",
    "_freeze": "requires_grad of the weight, which test_torch.py has",
    "process_group": "of ranks of PyTorch",
    "out": "PyTorch differentiates no function with it",
    **dict.fromkeys(("in_channels", "out_channels", "in_features", "out_features", "num_features"), "a size"),
    **dict.fromkeys(("in1_features", "in2_features", "num_channels", "input_size", "hidden_size"), "a size"),
    **dict.fromkeys(("num_embeddings", "embedding_dim", "n_classes", "num_classes", "embed_dim", "d_model"), "a size"),
}

MODULES_LEFT_OUT = {
    **dict.fromkeys(
        ("Module", "Container", "ModuleDict", "ModuleList", "ParameterDict", "ParameterList"), "contains others"
    ),
    **dict.fromkeys(("Sequential", "Identity"), "computes nothing of its own"),
    **dict.fromkeys(("RNNBase", "RNNCellBase"), "what others derive from"),
    "DataParallel": "several devices of one process",
    "NLLLoss2d": "NLLLoss by a deprecated name",
    "SyncBatchNorm": "PyTorch has it on GPUs alone; BatchNorm in one process",
    **{f"Lazy{name}{n}d": f"becomes {name}{n}d" for n in (1, 2, 3) for name in ("BatchNorm", "InstanceNorm", "Conv")},
    **{f"LazyConvTranspose{n}d": f"becomes ConvTranspose{n}d" for n in (1, 2, 3)},
    "LazyLinear": "becomes Linear",
}

# --- Inputs

SIZES = {1: (8,), 2: (6, 8), 3: (4, 6, 4)}


def image(n: int, channels: int = 4, batch: int = 2) -> Value:
    return normal(batch, channels, *SIZES[n])


def pooled(n: int, channels: int = 2) -> Value:
    return spread(1, channels, *SIZES[n])


def classes() -> Value:
    return constant([0, 2, 1, 2, 0])


IMAGES = {1: nn.Conv1d, 2: nn.Conv2d, 3: nn.Conv3d}


def sizes(n: int, first: int, *others: int) -> tuple[int, ...]:
    """n numbers: the given ones, with the last one repeated."""
    return (first, *others, *[(first, *others)[-1]] * n)[:n]


# --- Convolutions, pooling, padding: in one, two and three dimensions


def convolutions(n: int) -> list[Subject]:
    base = {"in_channels": 4, "out_channels": 6, "kernel_size": 3}
    plain = of(
        getattr(nn, f"Conv{n}d"),
        image(n),
        base=base,
        kernel_size=[1, 2, sizes(n, 3, 2, 1)],
        stride=[2, 3, sizes(n, 2, 1)],
        padding=[1, 2, "same", "valid", sizes(n, 1, 0, 2), given("same", kernel_size=2), given("same", dilation=2)],
        dilation=[given(2, padding=2), given(sizes(n, 1, 2), padding=1)],
        groups=[2, given(4, out_channels=8)],
        bias=[False],
        padding_mode=[
            given(mode, padding=padding)
            for mode in ("reflect", "replicate", "circular")
            for padding in (1, sizes(n, 2, 1, 0), "same")
        ],
    )
    sized = tuple(2 * size + 2 for size in SIZES[n])
    transposed = of(
        getattr(nn, f"ConvTranspose{n}d"),
        image(n),
        base=base,
        kernel_size=[1, 2, sizes(n, 3, 2, 1)],
        stride=[2, 3, sizes(n, 2, 1)],
        padding=[1, 2, sizes(n, 1, 0)],
        output_padding=[given(1, stride=2), given(sizes(n, 1, 0), stride=2), given(1, stride=3, padding=1)],
        groups=[2],
        bias=[False],
        dilation=[2, sizes(n, 1, 2), given(2, stride=2), given(3, output_padding=2)],
        left_out={"padding_mode": 'PyTorch has "zeros" alone'},
        forward={"output_size": [given(sized, stride=2), given([2, 4, *sized], stride=2)]},
    )
    return [plain, transposed]


def average_pools(n: int) -> list[Subject]:
    divisor = {"divisor_override": [3, given(5, padding=1), given(3, ceil_mode=True, stride=2)]} if n > 1 else {}
    return [
        of(
            getattr(nn, f"AvgPool{n}d"),
            image(n),
            base={"kernel_size": 3},
            kernel_size=[2, sizes(n, 2, 3)],
            stride=[1, 2, sizes(n, 2, 1)],
            padding=[1, sizes(n, 1, 0)],
            ceil_mode=[
                True,
                given(True, stride=2),
                given(True, kernel_size=2, stride=3),
                given(True, stride=2, padding=1),
            ],
            count_include_pad=[False, given(False, padding=1), given(False, padding=1, ceil_mode=True, stride=2)],
            **divisor,
        ),
        of(
            getattr(nn, f"AdaptiveAvgPool{n}d"),
            image(n),
            base={"output_size": 2},
            output_size=[1, 3, sizes(n, 4, 5), *([(None, *sizes(n - 1, 2))] if n > 1 else [])],
        ),
        of(
            getattr(nn, f"LPPool{n}d"),
            between(0.2, 2.0, 2, 3, *SIZES[n]),
            base={"norm_type": 2.0, "kernel_size": 3},
            norm_type=[1.0, 3.0, 1.5, given(2.0, image(n))],
            kernel_size=[2, *([sizes(n, 2, 3)] if n > 1 else [])],
            stride=[1, 2, *([sizes(n, 2, 1)] if n > 1 else [])],
            ceil_mode=[True, given(True, stride=2)],
        ),
    ]


def max_pools(n: int) -> list[Subject]:
    unpool = getattr(nn, f"MaxUnpool{n}d")
    halves = tuple(size // 2 for size in SIZES[n])
    places = constant(_places(n))
    longer = [size + 1 for size in SIZES[n]]
    subjects = [
        of(
            getattr(nn, f"MaxPool{n}d"),
            pooled(n),
            base={"kernel_size": 3},
            kernel_size=[2, sizes(n, 2, 3)],
            stride=[1, 2, sizes(n, 2, 1)],
            padding=[1, sizes(n, 1, 0), given(1, stride=1)],
            dilation=[given(2, kernel_size=2), given(sizes(n, 2, 1), kernel_size=2, stride=1)],
            return_indices=[True, given(True, padding=1), given(True, stride=1, kernel_size=2)],
            ceil_mode=[
                True,
                given(True, stride=2),
                given(True, kernel_size=2, stride=3),
                given(True, return_indices=True),
            ],
        ),
        of(
            getattr(nn, f"AdaptiveMaxPool{n}d"),
            pooled(n),
            base={"output_size": 2},
            output_size=[1, 3, sizes(n, 4, 3)],
            return_indices=[True, given(True, output_size=1), given(True, output_size=3)],
        ),
        of(
            unpool,
            normal(2, 2, *halves),
            places,
            base={"kernel_size": 2},
            kernel_size=[given(3, stride=2), sizes(n, 2, 2)],
            stride=[given(2, kernel_size=2), given(3, kernel_size=2)],
            padding=[given(1, kernel_size=4, stride=2)],
            forward={"output_size": [longer, [2, 2, *longer]]},
        ),
    ]
    if n > 1:
        samples = constant(torch.rand(2, 2, n, generator=torch.Generator().manual_seed(1)))
        subjects.append(
            of(
                getattr(nn, f"FractionalMaxPool{n}d"),
                spread(2, 2, *SIZES[n]),
                base={"kernel_size": 2, "output_size": 2},
                draws=True,
                kernel_size=[sizes(n, 2, 1)],
                output_size=[1, sizes(n, 2, 1)],
                output_ratio=[given(0.5, output_size=None), given(sizes_of_ratio(n), output_size=None)],
                return_indices=[True],
                _random_samples=[samples],
            )
        )
    return subjects


def sizes_of_ratio(n: int) -> tuple[float, ...]:
    return (0.6, 0.5, 0.7)[:n]


def _places(n: int) -> torch.Tensor:
    pool = (None, F.max_pool1d, F.max_pool2d, F.max_pool3d)[n]
    values = torch.rand(2, 2, *SIZES[n], generator=torch.Generator().manual_seed(2))
    return pool(values, 2, return_indices=True)[1]


def paddings(n: int) -> list[Subject]:
    one_sided = [(1, 0), (1, 0, 2, 1), (1, 0, 2, 1, 0, 2)][n - 1]
    cropping = [(-1, 2), (-1, 2, 1, -2), (-1, 2, 1, -2, -1, 0)][n - 1]
    subjects = [
        of(
            getattr(nn, f"{kind}Pad{n}d"),
            image(n),
            base={"padding": 1},
            padding=[2, one_sided, *([] if kind in ("Reflection", "Replication") else [cropping])],
        )
        for kind in ("Zero", "Circular", "Reflection", "Replication")
    ]
    base = {"padding": 1, "value": 0.5}
    constants = of(
        getattr(nn, f"ConstantPad{n}d"), image(n), base=base, padding=[2, one_sided, cropping], value=[0, -2.0]
    )
    return [*subjects, constants]


# --- Normalisation


def batch_norms(n: int) -> list[Subject]:
    instance = {1: normal(3, 4, 8), 2: image(2), 3: image(3)}[n]
    options = {
        "eps": [0.1, 1e-3],
        "momentum": [0.5, 0.0, 1.0],
        "affine": [False],
        "track_running_stats": [False, given(False, momentum=None)],
        "bias": [False],
    }
    # With a momentum of None the statistics are the mean over all batches.
    batch = {**options, "momentum": [*options["momentum"], None]}
    own = {
        "eps": [0.1, given(1e-3, affine=True)],
        "momentum": [given(0.5, track_running_stats=True), given(1.0, track_running_stats=True)],
        "affine": [True],
        "track_running_stats": [True, given(True, affine=True)],
        "bias": [given(False, affine=True)],
    }
    return [
        of(
            getattr(nn, f"BatchNorm{n}d"),
            normal(5, 4) if n == 1 else image(n),
            base={"num_features": 4},
            **batch,
        ),
        of(getattr(nn, f"InstanceNorm{n}d"), instance, base={"num_features": 4}, **own),
    ]


NORMALISATIONS = [
    *(subject for n in (1, 2, 3) for subject in batch_norms(n)),
    of(
        nn.GroupNorm,
        image(2),
        base={"num_groups": 2, "num_channels": 4},
        num_groups=[1, 4],
        eps=[0.1],
        affine=[False],
        bias=[False],
    ),
    of(
        nn.LayerNorm,
        normal(2, 3, 4),
        base={"normalized_shape": 4},
        normalized_shape=[(4,), (3, 4), [2, 3, 4]],
        eps=[0.1],
        elementwise_affine=[False],
        bias=[False, given(False, elementwise_affine=False)],
    ),
    of(
        nn.RMSNorm,
        normal(2, 3, 4),
        base={"normalized_shape": 4},
        normalized_shape=[(3, 4)],
        eps=[0.1, 1e-3],
        elementwise_affine=[False],
    ),
    *(
        of(
            function,
            image(2, 6),
            base={"size": 3},
            size=[5] if function is nn.CrossMapLRN2d else [1, 4, 5],
            alpha=[0.5],
            beta=[0.25, 2.0],
            k=[2.0, 0.5],
        )
        for function in (nn.LocalResponseNorm, nn.CrossMapLRN2d)
    ),
]

# --- Element by element

X = normal(3, 5)
WIDE = Value(lambda: 3 * torch.randn(3, 5), True)
ACTIVATIONS = [
    of(nn.ELU, WIDE, alpha=[0.5, 2.0], inplace=[True]),
    of(nn.CELU, WIDE, alpha=[0.5, 2.0], inplace=[True]),
    of(nn.SELU, WIDE, inplace=[True]),
    of(nn.GELU, WIDE, approximate=["tanh"]),
    of(nn.GLU, normal(4, 6, 2), dim=[0, 1, -2]),
    of(nn.Hardshrink, WIDE, lambd=[1.5, 0.0]),
    of(nn.Hardsigmoid, WIDE, inplace=[True]),
    of(nn.Hardswish, WIDE, inplace=[True]),
    of(
        nn.Hardtanh,
        between(-2.5, 2.5, 6, 8),
        min_val=[-2.0, 0.5],
        max_val=[2.0, -0.5],
        inplace=[True],
        left_out={"min_value": "deprecated", "max_value": "deprecated"},
    ),
    of(nn.LeakyReLU, WIDE, negative_slope=[0.5, 0.0, -0.5], inplace=[True]),
    of(nn.LogSigmoid, WIDE),
    of(nn.Mish, WIDE, inplace=[True]),
    of(
        nn.PReLU,
        image(2),
        num_parameters=[4],
        init=[0.5],
    ),
    of(nn.ReLU, WIDE, inplace=[True]),
    of(nn.ReLU6, WIDE, inplace=[True]),
    of(nn.RReLU, WIDE, draws=True, lower=[0.0, 0.3], upper=[0.9], inplace=[True]),
    of(nn.SiLU, WIDE, inplace=[True]),
    of(nn.Sigmoid, WIDE),
    of(nn.Softplus, WIDE, beta=[0.5, 3.0], threshold=[1.0, given(2.0, beta=3.0)]),
    of(nn.Softshrink, WIDE, lambd=[1.5, 0.0]),
    of(nn.Softsign, WIDE),
    of(nn.Tanh, WIDE),
    of(nn.Tanhshrink, WIDE),
    of(nn.Threshold, WIDE, base={"threshold": 0.1, "value": -1.0}, threshold=[1.0], value=[0.5], inplace=[True]),
    of(
        nn.Softmax,
        normal(2, 3, 4, 5),
        base={"dim": 1},
        dim=[0, -1, 2, None, given(None, normal(2, 3, 4)), given(None, X)],
    ),
    of(nn.LogSoftmax, normal(2, 3, 4, 5), base={"dim": 1}, dim=[0, -1, 2, None, given(None, normal(2, 3, 4))]),
    of(nn.Softmin, normal(2, 3, 4, 5), base={"dim": 1}, dim=[0, -1, 2, None, given(None, normal(2, 3, 4))]),
    of(nn.Softmax2d, image(2)),
    *(
        of(getattr(nn, name), between(0.5, 2.0, 4, 3, *size), draws=True, p=[0.2, 0.0, 1.0], inplace=[True])
        for name, size in {
            "Dropout": (4,),
            "Dropout1d": (4,),
            "Dropout2d": (4, 4),
            "Dropout3d": (2, 2, 2),
            "AlphaDropout": (4,),
            "FeatureAlphaDropout": (4, 4),
        }.items()
    ),
]

# --- Linear layers, tables, and changes of shape

WEIGHTS = between(0.2, 1.0, 2, 4)
IDS = constant([[1, 2, 0, 2], [4, 2, 1, 3]])
FLAT_IDS = constant([1, 2, 0, 2, 4, 2, 1, 3])
LAYERS = [
    of(nn.Linear, normal(5, 4), base={"in_features": 4, "out_features": 3}, bias=[False]),
    of(
        nn.Bilinear,
        normal(5, 4),
        normal(5, 3),
        base={"in1_features": 4, "in2_features": 3, "out_features": 2},
        bias=[False],
    ),
    of(
        nn.Embedding,
        IDS,
        base={"num_embeddings": 5, "embedding_dim": 3},
        padding_idx=[2, -1],
        max_norm=[0.5, given(1.0, padding_idx=2)],
        norm_type=[1.0, given(1.0, max_norm=0.5)],
        scale_grad_by_freq=[True],
        sparse=[True],
    ),
    of(
        nn.EmbeddingBag,
        IDS,
        base={"num_embeddings": 5, "embedding_dim": 3},
        max_norm=[0.5],
        norm_type=[1.0, given(1.0, max_norm=0.5)],
        scale_grad_by_freq=[True, given(True, mode="sum")],
        mode=["sum", "max"],
        sparse=[given(True, mode="sum")],
        include_last_offset=[
            given(True, FLAT_IDS, constant([0, 3, 5, 8])),
            given(True, FLAT_IDS, constant([0, 3, 3, 8])),
        ],
        padding_idx=[2, given(2, mode="sum"), given(-1, mode="max")],
        forward={
            "offsets": [
                given(constant([0, 3, 5]), FLAT_IDS),
                given(constant([0, 3, 3]), FLAT_IDS),
                given(constant([0, 3, 5]), FLAT_IDS, mode="sum"),
                given(constant([0, 3, 5]), FLAT_IDS, mode="max"),
            ],
            "per_sample_weights": [
                given(WEIGHTS, mode="sum"),
                given(between(0.2, 1.0, 8), FLAT_IDS, mode="sum", forward={"offsets": constant([0, 3, 5])}),
            ],
        },
    ),
    of(nn.CosineSimilarity, normal(4, 3, 2), normal(4, 3, 2), dim=[0, -1], eps=[10.0]),
    of(nn.PairwiseDistance, normal(4, 3), normal(4, 3), p=[1.0, 3.0, 0.5, float("inf")], eps=[0.5], keepdim=[True]),
    of(nn.Flatten, normal(2, 3, 4, 5), start_dim=[0, 2, -2], end_dim=[2, -2]),
    of(
        nn.Unflatten,
        normal(2, 6, 4),
        base={"dim": 1, "unflattened_size": (2, 3)},
        dim=[-2, given(2, unflattened_size=(2, 2))],
        unflattened_size=[(3, 2), (-1, 2), torch.Size([3, 1, 2])],
    ),
    of(nn.PixelShuffle, normal(2, 36, 2, 3), base={"upscale_factor": 2}, upscale_factor=[3, 1]),
    of(nn.PixelUnshuffle, normal(2, 3, 6, 12), base={"downscale_factor": 2}, downscale_factor=[3, 1]),
    of(nn.ChannelShuffle, normal(2, 12, 2, 3), base={"groups": 2}, groups=[3, 4]),
    of(
        nn.Fold,
        normal(2, 12, 30),
        base={"output_size": (6, 7), "kernel_size": 2},
        output_size=[given((7, 6)), given(6, normal(2, 12, 25))],
        kernel_size=[given((3, 2), normal(2, 12, 24)), given((2, 3), normal(2, 12, 25))],
        dilation=[given(2, normal(2, 12, 20)), given((1, 2), normal(2, 12, 25))],
        padding=[given(1, normal(2, 12, 56)), given((1, 0), normal(2, 12, 42))],
        stride=[given(2, normal(2, 12, 9)), given((1, 2), normal(2, 12, 15))],
    ),
    of(
        nn.Unfold,
        normal(2, 3, 6, 7),
        base={"kernel_size": 2},
        kernel_size=[(3, 2), 3],
        dilation=[2, (1, 2)],
        padding=[1, (1, 0)],
        stride=[2, (1, 2)],
    ),
]

# --- Sizes of images

LINE, PLANE, SPACE = normal(1, 2, 5), normal(1, 2, 4, 5), normal(1, 2, 3, 4, 5)
OF_MODE = {
    "nearest": PLANE,
    "nearest-exact": PLANE,
    "linear": LINE,
    "bilinear": PLANE,
    "bicubic": PLANE,
    "trilinear": SPACE,
    "area": PLANE,
}
ALIGNED = {"linear": LINE, "bilinear": PLANE, "bicubic": PLANE, "trilinear": SPACE}


def scaling(**fixed: object) -> dict[str, list[object]]:
    """The options of an Upsample: all modes, by size and by factor, enlarging and reducing, with corners aligned or
    not.
    """
    sized = lambda mode: {"size": None, "scale_factor": None, "mode": mode, **fixed}
    factors = (2.0, 1.7, 0.6, 2.4)
    return {
        "size": [
            given(size, inputs, **{**sized(mode), "size": size}) for mode, inputs in OF_MODE.items() for size in (7, 3)
        ],
        "scale_factor": [
            given(factor, inputs, **{**sized(mode), "scale_factor": factor})
            for mode, inputs in OF_MODE.items()
            for factor in factors
        ]
        + [given((1.5, 2.0), PLANE, **sized(mode)) for mode in ("nearest", "bilinear", "bicubic", "area")],
        "mode": [given(mode, inputs, **{**sized(mode), "size": 6}) for mode, inputs in OF_MODE.items()],
        "align_corners": [
            given(aligned, inputs, **{**sized(mode), **size})
            for aligned in (True, False)
            for mode, inputs in ALIGNED.items()
            for size in ({"size": 7}, {"size": 1}, {"scale_factor": 1.7}, {"scale_factor": 0.6})
        ],
        "recompute_scale_factor": [
            given(recomputed, inputs, **{**sized(mode), "scale_factor": factor})
            for recomputed in (True, False)
            for mode, inputs in OF_MODE.items()
            for factor in (1.7, 0.6)
        ]
        + [given(True, PLANE, **{**sized("bilinear"), "scale_factor": 1.7, "align_corners": True})],
    }


SIZED = [
    of(nn.Upsample, PLANE, base={"size": (8, 10)}, **scaling()),
    of(
        nn.UpsamplingBilinear2d,
        PLANE,
        base={"size": 7},
        size=[(3, 9)],
        scale_factor=[given(factor, size=None) for factor in (2, 1.7, (0.6, 2.0))],
    ),
    of(
        nn.UpsamplingNearest2d,
        PLANE,
        base={"size": 7},
        size=[(3, 9)],
        scale_factor=[given(factor, size=None) for factor in (2, 1.7, (0.6, 2.0))],
    ),
]

# --- Losses

REDUCTIONS = ["sum", "none"]
OF_CLASSES = {"weight": [constant([0.5, 2.0, 1.5])], "reduction": REDUCTIONS, "ignore_index": [2, 0]}
WEIGHTED_SUM = [given(constant([0.5, 2.0, 1.5]), reduction="sum"), given(constant([0.5, 2.0, 1.5]), reduction="none")]
PROBABILITIES, TARGETS = between(0.3, 0.7, 4, 3), between(0.3, 0.7, 4, 3)
OF_ALL = Value(lambda: torch.softmax(torch.randn(5, 3), 1), True)  # probabilities of all classes
PLACES = constant([[0, 2, 1, 2], [1, 1, 0, 2]])
ROWS = constant([[0.5, 1.0, 2.0]])
LOG_PROBABILITIES = Value(lambda: torch.log_softmax(torch.randn(6, 2, 4), 2), True)
LABELS = {"targets": constant([[1, 2, 3], [2, 2, 1]]), "inputs": constant([6, 5]), "lengths": constant([3, 2])}
TRIPLET = (normal(4, 3), normal(4, 3), normal(4, 3))


def distance(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return (a - b).abs().sum(1)


LOSSES = [
    of(nn.L1Loss, normal(4, 3), normal(4, 3), reduction=REDUCTIONS),
    of(nn.MSELoss, normal(4, 3), normal(4, 3), reduction=REDUCTIONS),
    of(nn.SmoothL1Loss, normal(4, 3), normal(4, 3), reduction=REDUCTIONS, beta=[0.5, 2.0, 0.0]),
    of(nn.HuberLoss, normal(4, 3), normal(4, 3), reduction=REDUCTIONS, delta=[0.5, 2.0]),
    of(nn.BCELoss, PROBABILITIES, TARGETS, weight=[ROWS], reduction=REDUCTIONS),
    of(nn.BCEWithLogitsLoss, normal(4, 3), TARGETS, weight=[ROWS], reduction=REDUCTIONS, pos_weight=[ROWS]),
    of(
        nn.CrossEntropyLoss,
        normal(5, 3),
        classes(),
        **{
            **OF_CLASSES,
            "weight": [*OF_CLASSES["weight"], *WEIGHTED_SUM, given(constant([0.5, 2.0, 1.5]), normal(5, 3), OF_ALL)],
            "reduction": [*REDUCTIONS, given("mean", normal(5, 3), OF_ALL), given("none", normal(2, 3, 4), PLACES)],
        },
        label_smoothing=[
            0.25,
            given(0.25, weight=constant([0.5, 2.0, 1.5])),
            given(0.25, weight=constant([0.5, 2.0, 1.5]), ignore_index=2),
            given(0.25, reduction="sum"),
            given(0.25, reduction="none", ignore_index=0),
            given(0.1, normal(5, 3), between(0, 1, 5, 3)),
        ],
    ),
    of(
        nn.NLLLoss,
        normal(5, 3),
        classes(),
        **{**OF_CLASSES, "weight": [*OF_CLASSES["weight"], *WEIGHTED_SUM]},
    ),
    of(
        nn.KLDivLoss,
        normal(4, 3),
        TARGETS,
        reduction=[*REDUCTIONS, "batchmean"],
        log_target=[True, given(True, reduction="sum")],
    ),
    of(
        nn.PoissonNLLLoss,
        between(0.5, 2.0, 4, 3),
        between(0.2, 3.0, 4, 3),
        log_input=[False],
        full=[True, given(True, log_input=False)],
        eps=[0.5, given(0.5, log_input=False)],
        reduction=REDUCTIONS,
    ),
    of(
        nn.GaussianNLLLoss,
        normal(4, 3),
        normal(4, 3),
        between(0.2, 2.0, 4, 3),
        full=[True],
        eps=[1.0],
        reduction=[
            *REDUCTIONS,
            given("mean", normal(4, 3), normal(4, 3), 0.7),
            given("none", normal(4, 3), normal(4, 3), between(0.2, 2.0, 4, 1)),
        ],
    ),
    of(nn.CosineEmbeddingLoss, normal(4, 3), normal(4, 3), signs(4), margin=[0.5, -0.5], reduction=REDUCTIONS),
    of(nn.HingeEmbeddingLoss, normal(4, 3), signs(4, 3), margin=[0.5, 2.0], reduction=REDUCTIONS),
    of(nn.MarginRankingLoss, normal(4), normal(4), signs(4), margin=[0.5, 2.0], reduction=REDUCTIONS),
    of(nn.SoftMarginLoss, normal(4, 3), signs(4, 3), reduction=REDUCTIONS),
    of(
        nn.MultiLabelMarginLoss,
        normal(2, 4),
        constant([[2, 0, -1, 1], [3, -1, 0, 1]]),
        reduction=REDUCTIONS,
    ),
    of(nn.MultiLabelSoftMarginLoss, normal(4, 3), TARGETS, weight=[ROWS], reduction=REDUCTIONS),
    of(
        nn.MultiMarginLoss,
        normal(5, 3),
        classes(),
        p=[2],
        margin=[0.5, 2.0],
        weight=[constant([0.5, 2.0, 1.5])],
        reduction=REDUCTIONS,
    ),
    of(
        nn.TripletMarginLoss,
        *TRIPLET,
        margin=[3.0],
        p=[1.0, 3.0],
        eps=[0.5],
        swap=[True, given(True, margin=3.0)],
        reduction=REDUCTIONS,
    ),
    of(
        nn.TripletMarginWithDistanceLoss,
        *TRIPLET,
        distance_function=[distance, nn.CosineSimilarity()],
        margin=[3.0],
        swap=[True, given(True, margin=3.0)],
        reduction=REDUCTIONS,
    ),
    of(
        nn.CTCLoss,
        LOG_PROBABILITIES,
        LABELS["targets"],
        LABELS["inputs"],
        LABELS["lengths"],
        blank=[given(1, LOG_PROBABILITIES, constant([[0, 2, 3], [2, 2, 0]]), LABELS["inputs"], LABELS["lengths"])],
        reduction=REDUCTIONS,
        zero_infinity=[
            given(True, LOG_PROBABILITIES, LABELS["targets"], constant([6, 1]), LABELS["lengths"]),
        ],
    ),
    of(
        nn.LinearCrossEntropyLoss,
        normal(5, 4),
        classes(),
        base={"in_features": 4, "num_classes": 3},
        bias=[True],
        reduction=REDUCTIONS,
        weight=[constant([0.5, 2.0, 1.5])],
        ignore_index=[2],
        label_smoothing=[0.25],
        options=[nn.modules.linear_cross_entropy_options.LinearCrossEntropyOptions()],
        left_out={"out_features": "sizes"},
    ),
    of(
        nn.AdaptiveLogSoftmaxWithLoss,
        normal(6, 8),
        constant([0, 1, 3, 4, 6, 7]),
        base={"in_features": 8, "n_classes": 9, "cutoffs": [2, 5]},
        cutoffs=[[4], [1, 3, 6]],
        div_value=[2.0, 1.0],
        head_bias=[True],
    ),
]

# --- Recurrent layers and attention

STEPS = normal(4, 3, 5)
STATE = normal(1, 3, 6)


def recurrent(function: type[nn.Module], **more: object) -> Subject:
    lstm = function is nn.LSTM
    hidden = lambda *shape: (normal(*shape), normal(*shape)) if lstm else normal(*shape)
    return of(
        function,
        STEPS,
        base={"input_size": 5, "hidden_size": 6},
        num_layers=[2, 3],
        bias=[False, given(False, num_layers=2)],
        batch_first=[True, given(True, bidirectional=True, forward={"hx": hidden(2, 4, 6)})],
        dropout=[0.0, given(0.5, num_layers=1)],  # its dropout is in DRAWN
        bidirectional=[True, given(True, num_layers=2), given(True, bias=False)],
        forward={
            "hx": [
                hidden(1, 3, 6),
                given(hidden(4, 3, 6), num_layers=2, bidirectional=True),
                given(hidden(1, 6), normal(4, 5)),
            ]
        },
        **more,
    )


def bools(*rows: list[int]) -> Value:
    return constant(torch.tensor(rows, dtype=torch.bool))


Q, K, V = normal(3, 2, 4), normal(5, 2, 4), normal(5, 2, 4)
BATCH_FIRST = (normal(2, 3, 4), normal(2, 5, 4), normal(2, 5, 4))
SQUARE = (normal(3, 2, 4), normal(3, 2, 4), normal(3, 2, 4))
KEY_MASK = bools([0, 1, 0, 0, 1], [0, 0, 0, 1, 0])
FLOAT_KEY_MASK = constant([[0.0, -1.0, 0.0, 0.5, -2.0], [0.0, 0.3, 0.0, -1.0, 0.0]])
MASK = bools([0, 1, 0, 0, 1], [0, 0, 0, 1, 0], [1, 0, 1, 0, 0])
FLOAT_MASK = normal(3, 5)
CAUSAL = constant(torch.full((3, 3), float("-inf")).triu(1))
BOOL_CAUSAL = constant(torch.ones(3, 3, dtype=torch.bool).triu(1))
PAD_3 = bools([0, 0, 1], [0, 0, 0])

ATTENTION = of(
    nn.MultiheadAttention,
    Q,
    K,
    V,
    base={"embed_dim": 4, "num_heads": 2},
    num_heads=[1, 4],
    bias=[False],
    add_bias_kv=[True, given(True, forward={"key_padding_mask": KEY_MASK}), given(True, forward={"attn_mask": MASK})],
    add_zero_attn=[True, given(True, forward={"key_padding_mask": KEY_MASK}), given(True, add_bias_kv=True)],
    kdim=[given(6, Q, normal(5, 2, 6), V), given(6, Q, normal(5, 2, 6), V, bias=False)],
    vdim=[given(3, Q, K, normal(5, 2, 3))],
    batch_first=[given(True, *BATCH_FIRST)],
    dropout=[0.0],  # its dropout is in DRAWN
    forward={
        "key_padding_mask": [KEY_MASK, FLOAT_KEY_MASK, given(KEY_MASK, forward={"need_weights": False})],
        "need_weights": [False],
        "attn_mask": [
            MASK,
            FLOAT_MASK,
            normal(4, 3, 5),
            given(MASK, forward={"need_weights": False}),
            given(FLOAT_MASK, forward={"key_padding_mask": FLOAT_KEY_MASK}),
        ],
        "average_attn_weights": [False],
        "is_causal": [
            given(True, *SQUARE, forward={"attn_mask": CAUSAL, "need_weights": False}),
            given(True, *SQUARE, forward={"attn_mask": BOOL_CAUSAL}),
        ],
    },
)

LAYER = {"d_model": 4, "nhead": 2, "dim_feedforward": 6, "dropout": 0.0}
LAYER_OPTIONS = {
    "nhead": [1, 4],
    "dim_feedforward": [3],
    "activation": ["gelu", F.gelu, torch.tanh],
    "layer_norm_eps": [0.1],
    "batch_first": [True],
    "norm_first": [True],
    "bias": [False],
    "dropout": [0.0],  # its dropout is in DRAWN
}
SOURCE, GOAL = normal(3, 2, 4), normal(3, 2, 4)
NORM = {"norm": [nn.LayerNorm(4)]}
DECODING = {
    "tgt_mask": [given(CAUSAL, forward={"tgt_is_causal": False}), given(BOOL_CAUSAL, forward={"tgt_is_causal": False})],
    "memory_mask": [normal(3, 3), CAUSAL, BOOL_CAUSAL],
    "tgt_key_padding_mask": [PAD_3],
    "memory_key_padding_mask": [PAD_3],
    "tgt_is_causal": [given(True, forward={"tgt_mask": CAUSAL}), given(True, forward={"tgt_mask": BOOL_CAUSAL})],
    "memory_is_causal": [given(True, forward={"memory_mask": CAUSAL})],
}


class Mixed(nn.Module):
    """A replacement for an encoder or decoder: the weighted sum of its inputs."""

    def forward(self, first: torch.Tensor, *others: torch.Tensor, **options: object) -> torch.Tensor:
        return 2 * first + sum(others)


def encoder_layer(**options: object) -> nn.Module:
    torch.manual_seed(0)
    return nn.TransformerEncoderLayer(**{**LAYER, **options})


def decoder_layer(**options: object) -> nn.Module:
    torch.manual_seed(0)
    return nn.TransformerDecoderLayer(**{**LAYER, **options})


SEQUENCES = [
    recurrent(nn.RNN, nonlinearity=["relu"]),
    recurrent(nn.GRU),
    recurrent(nn.LSTM, proj_size=[2, given(2, num_layers=2, bidirectional=True)]),
    *(
        of(
            function,
            normal(3, 5),
            base={"input_size": 5, "hidden_size": 6},
            bias=[False],
            forward={"hx": [(normal(3, 6), normal(3, 6)) if function is nn.LSTMCell else normal(3, 6)]},
            **({"nonlinearity": ["relu"]} if function is nn.RNNCell else {}),
        )
        for function in (nn.RNNCell, nn.GRUCell, nn.LSTMCell)
    ),
    ATTENTION,
    of(
        nn.TransformerEncoderLayer,
        SOURCE,
        base=LAYER,
        **LAYER_OPTIONS,
        forward={
            "src_mask": [CAUSAL, BOOL_CAUSAL],
            "src_key_padding_mask": [PAD_3],
            "is_causal": [given(True, forward={"src_mask": CAUSAL})],
        },
    ),
    of(nn.TransformerDecoderLayer, GOAL, SOURCE, base=LAYER, **LAYER_OPTIONS, forward=DECODING),
    of(
        nn.TransformerEncoder,
        SOURCE,
        base={"encoder_layer": encoder_layer(), "num_layers": 2},
        encoder_layer=[encoder_layer(batch_first=True), encoder_layer(norm_first=True)],
        num_layers=[1, 3],
        **NORM,
        enable_nested_tensor=[False, given(False, encoder_layer=encoder_layer(batch_first=True))],
        mask_check=[False],
        forward={
            "mask": [given(CAUSAL, forward={"is_causal": False}), given(BOOL_CAUSAL, forward={"is_causal": False})],
            "src_key_padding_mask": [
                PAD_3,
                given(PAD_3, normal(2, 3, 4), encoder_layer=encoder_layer(batch_first=True)),
                given(
                    PAD_3, normal(2, 3, 4), encoder_layer=encoder_layer(batch_first=True), enable_nested_tensor=False
                ),
            ],
            "is_causal": [given(True, forward={"mask": CAUSAL})],
        },
    ),
    of(
        nn.TransformerDecoder,
        GOAL,
        SOURCE,
        base={"decoder_layer": decoder_layer(), "num_layers": 2},
        decoder_layer=[decoder_layer(batch_first=True), decoder_layer(norm_first=True)],
        num_layers=[1],
        **NORM,
        forward=DECODING,
    ),
    of(
        nn.Transformer,
        SOURCE,
        GOAL,
        base={**LAYER, "num_encoder_layers": 1, "num_decoder_layers": 1},
        num_encoder_layers=[2],
        num_decoder_layers=[2],
        **LAYER_OPTIONS,
        custom_encoder=[Mixed()],
        custom_decoder=[Mixed()],
        forward={
            **DECODING,
            "src_mask": [given(CAUSAL, forward={"src_is_causal": False})],
            "src_key_padding_mask": [PAD_3],
            "src_is_causal": [given(True, forward={"src_mask": CAUSAL})],
        },
    ),
]

MODULES = [
    *(subject for n in (1, 2, 3) for subject in convolutions(n)),
    *(subject for n in (1, 2, 3) for subject in average_pools(n)),
    *(subject for n in (1, 2, 3) for subject in max_pools(n)),
    *(subject for n in (1, 2, 3) for subject in paddings(n)),
    *NORMALISATIONS,
    *ACTIVATIONS,
    *LAYERS,
    *SIZED,
    *LOSSES,
    *SEQUENCES,
]
