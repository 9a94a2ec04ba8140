"""The outcomes of cases of torch_options.py and similar tables that do not train as in PyTorch.

A name that ends in an asterisk covers all cases whose name begins with it.
"""

from __future__ import annotations

OWN_GRADIENT = "has custom gradients, of "
NUMBERS = "reads values that have a gradient as numbers ("
DATA_DEPENDENT = "GuardOnDataDependentSymNode: Could not "


def unknown(function: str, *cases: str) -> dict[str, str]:
    """Cases of an ATen function that torch's exporter does not know."""
    return dict.fromkeys(
        cases, f"torch cannot export Whole: DispatchError: No ONNX function found for <OpOverload(op='{function}'"
    )


# Case: a part of the error of torch's exporter.
REFUSED_BY_TORCH: dict[str, str] = {
    **unknown("aten.rrelu_with_noise_functional", "RReLU*", "F.rrelu(training=True)"),
    **unknown("aten.conv_tbc", "F.conv_tbc(*"),
    **unknown("aten._pdist_forward", "F.pdist(*"),
    **unknown(
        "aten._adaptive_avg_pool3d",
        *("AdaptiveAvgPool3d()", "AdaptiveAvgPool3d(output_size=3)", "AdaptiveAvgPool3d(output_size=(*"),
    ),
    **unknown(
        "aten.adaptive_max_pool2d",
        *("AdaptiveMaxPool1d(output_size=3)", "AdaptiveMaxPool1d(return_indices=True, output_size=3)"),
        *("AdaptiveMaxPool2d(output_size=3)", "AdaptiveMaxPool2d(return_indices=True, output_size=3)"),
        "AdaptiveMaxPool2d(output_size=(*",
    ),
    **unknown(
        "aten.adaptive_max_pool3d",
        *("AdaptiveMaxPool3d(output_size=3)", "AdaptiveMaxPool3d(return_indices=True, output_size=3)"),
        "AdaptiveMaxPool3d(output_size=(*",
    ),
    **unknown("aten.fractional_max_pool2d", "FractionalMaxPool2d*"),
    **unknown("aten.fractional_max_pool3d", "FractionalMaxPool3d*"),
    **unknown("aten.linalg_matrix_exp", "orthogonal"),
    **unknown("aten._linalg_solve_ex", "orthogonal by the Cayley map"),
    **unknown("aten.randperm", "torch.randperm"),
    **unknown("aten.poisson", "torch.poisson"),
    **unknown("prims.uniform", "Tensor.uniform_"),
    **unknown("aten.random", "Tensor.random_"),
    # The exporter cannot trace it, because it reads values.
    "F.one_hot()": DATA_DEPENDENT + "extract specialized integer",
    **dict.fromkeys(  # if the variance is a tensor
        (
            *("GaussianNLLLoss()", "GaussianNLLLoss(full=True)", "GaussianNLLLoss(eps=1.0)"),
            *("GaussianNLLLoss(reduction='sum')", "GaussianNLLLoss(reduction='none')*"),
        ),
        DATA_DEPENDENT + "guard on data-dependent expression",
    ),
    "a gradient in forward": "We found a fake tensor in the exported program constant's list",
    "packed sequences of *": "zeros(): argument 'size' failed to unpack the object",
    "TransformerDecoderLayer.forward(memory_mask=#0)": "Cannot view a tensor with shape torch.Size([3, 2, 2, 2])",
    "TransformerDecoder.forward(memory_mask=#0)": "Cannot view a tensor with shape torch.Size([3, 2, 2, 2])",
    "Transformer.forward(memory_mask=#0)": "Cannot view a tensor with shape torch.Size([3, 2, 2, 2])",
}

# Case: a part of Lockstep's error.
REFUSED_BY_LOCKSTEP: dict[str, str] = {
    # Parts that torch's exporter would leave out, or cannot write.
    "CTCLoss(*": "export the module without it, and use ls.loss.ctc",
    "AdaptiveLogSoftmaxWithLoss(*": "depends on the values of its data",
    **{f"BatchNorm{rank}d(momentum=None)": "averages over all batches with momentum = None" for rank in (1, 2, 3)},
    "LSTM(proj_size=2*": "projects its state with proj_size = 2",
    "LinearCrossEntropyLoss(options=*": OWN_GRADIENT + "GeneratedBackwardFor_torch_nn__linear_cross_entropy",
    **{f"AvgPool{rank}d(divisor_override=*": "with divisor_override = " for rank in (2, 3)},
    **{f"InstanceNorm{rank}d(momentum=*": "tracks running statistics" for rank in (1, 2, 3)},
    **{f"InstanceNorm{rank}d(track_running_stats=*": "tracks running statistics" for rank in (1, 2, 3)},
    "RNN(dropout=0.5)": "drops between its layers",
    "Embedding(max_norm=*": "with max_norm",
    "Embedding(norm_type=1.0, max_norm=0.5)": "with max_norm",
    "Embedding(scale_grad_by_freq=True)": "with scale_grad_by_freq",
    "EmbeddingBag(max_norm=0.5)": "with max_norm",
    "EmbeddingBag(norm_type=1.0, max_norm=0.5)": "with max_norm",
    "EmbeddingBag(scale_grad_by_freq=True*": "with scale_grad_by_freq",
    "F.l1_loss(weight=*": "has l1_loss with weight (",
    "MultiLabelMarginLoss(*": "has multilabel_margin_loss",
    "F.interpolate(antialias=True, mode='bilinear', size=3, align_corners=True)": "antialias=True and align_corners=True",
    "F.interpolate(antialias=True, mode='bicubic', size=3, align_corners=True)": "antialias=True and align_corners=True",
    "CrossMapLRN2d(*": OWN_GRADIENT + "CrossMapLRN2d",
    "a backward hook of a module": OWN_GRADIENT + "BackwardHookFunction",
    "a backward pre-hook of a module": OWN_GRADIENT + "BackwardHookFunction",
    "an autograd.Function": OWN_GRADIENT + "Reversed",
    "a reentrant checkpoint": OWN_GRADIENT + "CheckpointFunction",
    "tensor() of a value": NUMBERS,
    "spectral_norm": "changes its buffer parts.0.first.parametrizations.weight.0._v in forward",
    "the older spectral_norm": "changes its buffer parts.0.first.weight_u in forward",
    "a buffer that averages": "changes its buffer parts.0.mean in forward",
    "a parameter that forward overwrites": "changes its parameter parts.0.second.weight in forward",
    "a parameter whose .data forward clamps": "changes its parameter parts.0.second.weight in forward",
    ".data that is assigned": "assigns to .data of a tensor in forward (torch_specials.py:",
    **dict.fromkeys(
        (
            *("a change in place through .data", "a change in place through detach()"),
            *("a change in place in no_grad()", "a change in place of a view in no_grad()"),
        ),
        "changes a value in place without gradient, through detach(), .data or in no_grad() (torch_specials.py:",
    ),
    "inference_mode()": OWN_GRADIENT + "inference_mode",
    "a hook of a tensor in forward": OWN_GRADIENT + "a hook of a tensor",
    "item() of a value": NUMBERS,
    "tolist() of a value": NUMBERS,
    "a hook of a parameter*": "has a gradient hook",
    "rows of an embedding masked by a hook": "has a gradient hook",
    "two parameters of one storage": "have elements in common",
    "two parameters whose views overlap": "have elements in common",
    "a parameter and its transpose of one storage": "have elements in common",
    "a buffer that counts": "changes its buffer parts.0.count in forward",
    "F.batch_norm(training=True)": "changes its buffer parts.0.input1 in forward",
    # Parts that the importer does not know, or that the exporter writes wrongly.
}

REFUSED = {**REFUSED_BY_TORCH, **REFUSED_BY_LOCKSTEP}

# Case: the difference, silent or with an error that is not Lockstep's. A test checks that it still exists.
DIFFERS: dict[str, str] = {
    # Modes, hooks and memory of which the program knows nothing.
    "an attribute that counts calls": "is a constant (from_torch warns)",
}
