"""Refuses parts and parameters of a module that no trace shows and that torch's exporter would omit."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

from .._base.errors import Error

if TYPE_CHECKING:
    import torch


def check_parts(module: torch.nn.Module, ignores_own_gradients: bool) -> None:
    """Checks the parts of `module` and, unless `ignores_own_gradients`, the gradients of its parameters.

    Raises:
      Error: names the part or the parameter, and the reason.
    """
    import torch

    for path, part in module.named_modules():
        what = _left_out(part)
        if what is not None:
            name = f"its part {path}" if path else "the module"
            raise Error(
                f"from_torch: {name}, {torch.typename(part).rpartition('.')[2]} of {type(module).__name__}, {what}"
            )
    if ignores_own_gradients:
        return
    for name, parameter in module.named_parameters():
        if parameter._backward_hooks or getattr(parameter, "_post_accumulate_grad_hooks", None):
            raise Error(
                f"from_torch: {name} of {type(module).__name__} has a gradient hook, which ONNX cannot express; remove it, and "
                "change the gradients of train_step(optimizer=None), which are results"
            )
    _check_memory(module)


def _left_out(part: torch.nn.Module) -> str | None:
    """The reason why torch's exporter omits something of a part or cannot write it; None if it can."""
    from torch import nn

    if isinstance(part, nn.CTCLoss):
        return "cannot be exported by torch; export the module without it, and use ls.loss.ctc"
    if isinstance(part, nn.AdaptiveLogSoftmaxWithLoss):
        return (
            "depends on the values of its data, which torch cannot export; a Linear with ls.loss.softmax_cross_entropy computes the "
            "scores of all classes instead"
        )
    if isinstance(part, nn.LSTM) and part.proj_size > 0:
        return (
            f"projects its state with proj_size = {part.proj_size}, which ONNX's LSTM cannot; write its steps with torch.nn.Linear, or "
            "leave out proj_size"
        )
    is_norm = isinstance(part, nn.modules.batchnorm._BatchNorm)
    if is_norm and part.training and part.track_running_stats and part.momentum is None:
        return "averages over all batches with momentum = None, which torch cannot export; give a momentum, such as 0.1"
    if isinstance(part, nn.RNN) and part.training and part.dropout > 0 and part.num_layers > 1:
        return (
            f"drops between its layers with dropout = {part.dropout}, which torch's exporter leaves out; make an RNN of each layer, with "
            "a Dropout between them"
        )
    if isinstance(part, nn.modules.instancenorm._InstanceNorm) and part.training and part.track_running_stats:
        return (
            "tracks running statistics, which torch's exporter leaves out; leave out track_running_stats, or put it in evaluation mode, "
            "which uses them"
        )
    return None


def _check_memory(module: torch.nn.Module) -> None:
    """Refuses parameters that share elements, because they would be trained separately."""
    by_storage: dict[int, list[tuple[str, torch.nn.Parameter]]] = {}
    for name, each in module.named_parameters():
        if each.requires_grad and each.numel() > 0:
            by_storage.setdefault(each.untyped_storage().data_ptr(), []).append((name, each))
    for sharing in by_storage.values():
        for (name, one), (other_name, other) in itertools.combinations(sharing, 2):
            if _overlap(one, other):
                raise Error(
                    f"from_torch: {name} and {other_name} of {type(module).__name__} have elements in common, and would be trained "
                    "separately; make one parameter, and take parts of it in forward"
                )


def _overlap(one: torch.Tensor, other: torch.Tensor) -> bool:
    import torch

    taken = torch.zeros(one.untyped_storage().nbytes() // one.element_size() + 1, dtype=torch.bool)
    taken.as_strided(one.shape, one.stride(), one.storage_offset()).fill_(True)
    return bool(taken.as_strided(other.shape, other.stride(), other.storage_offset()).any())


def unwrapped(module: torch.nn.Module) -> torch.nn.Module:
    """The module inside of what torch.compile, DataParallel or DistributedDataParallel makes of one."""
    import torch

    while True:
        if type(module).__name__ == "OptimizedModule":
            module = module._orig_mod
        elif isinstance(module, (torch.nn.DataParallel, torch.nn.parallel.DistributedDataParallel)):
            module = module.module
        else:
            return module
