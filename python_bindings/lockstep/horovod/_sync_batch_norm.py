"""Batch normalisation with the statistics of all ranks' rows."""

from __future__ import annotations

from typing import Any

import torch
from torch.nn.modules.batchnorm import _BatchNorm

from ._ops import allgather_async, allreduce_async
from ._session import session
from ._tensors import Sum


class SyncBatchNorm(_BatchNorm):
    """`torch.nn.BatchNorm1d/2d/3d` over the rows of all ranks, [rows, features, ...]. A step uses the mean and variance
    of the global batch, however it is divided. Gradients of weight and bias are those of the rank's rows, as for any
    layer.
    """

    def _check_input_dim(self, input: torch.Tensor) -> None:
        if input.dim() < 2:
            raise ValueError(f"expected an input of at least 2 dimensions, got {input.dim()}")

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        self._check_input_dim(input)
        is_own = self.training or self.running_mean is None
        if not is_own or session().world.size == 1:
            return super().forward(input)
        normalised, mean, variance, count = _Normalise.apply(input, self.eps)
        if self.training and self.running_mean is not None:
            self._move_running(mean, variance, int(count))
        shape = _per_feature(input)
        if self.weight is not None:
            normalised = normalised * self.weight.view(shape)
        return normalised if self.bias is None else normalised + self.bias.view(shape)

    @torch.no_grad()
    def _move_running(self, mean: torch.Tensor, variance: torch.Tensor, count: int) -> None:
        self.num_batches_tracked.add_(1)
        part = 1 / float(self.num_batches_tracked) if self.momentum is None else self.momentum
        self.running_mean.lerp_(mean.to(self.running_mean.dtype), part)
        unbiased = variance * (count / max(count - 1, 1))
        self.running_var.lerp_(unbiased.to(self.running_var.dtype), part)


def _per_feature(input: torch.Tensor) -> list[int]:
    return [1, -1] + [1] * (input.dim() - 2)


def _others(input: torch.Tensor) -> list[int]:
    return [0, *range(2, input.dim())]


class _Normalise(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, input: torch.Tensor, eps: float) -> Any:
        features, dims, shape = input.shape[1], _others(input), _per_feature(input)
        count = input.numel() // max(features, 1)
        wide = input.double()
        mean = wide.mean(dims) if count else wide.new_zeros(features)
        spread = (wide - mean.view(shape)).square().sum(dims)
        own = torch.cat([wide.new_tensor([count]), mean, spread])
        all_ = allgather_async(own[None]).wait()
        # Chan et al., "Algorithms for computing the sample variance", 1983: combines the means and spreads of the
        # parts.
        counts, means, spreads = all_[:, :1], all_[:, 1 : 1 + features], all_[:, 1 + features :]
        total = counts.sum()
        mean = (counts * means).sum(0) / total
        variance = (spreads.sum(0) + (counts * (means - mean).square()).sum(0)) / total
        scale = (variance + eps).rsqrt()
        normalised = ((wide - mean.view(shape)) * scale.view(shape)).to(input.dtype)
        ctx.save_for_backward(normalised, scale)
        ctx.total = float(total)
        ctx.mark_non_differentiable(mean, variance, total)
        return normalised, mean, variance, total

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor, *_: Any) -> Any:
        normalised, scale = ctx.saved_tensors
        dims, shape = _others(gradient), _per_feature(gradient)
        wide = gradient.double()
        sums = torch.stack([wide.sum(dims), (wide * normalised).sum(dims)])
        along, beside = allreduce_async(sums, op=Sum).wait() / ctx.total
        result = (wide - along.view(shape) - normalised * beside.view(shape)) * scale.view(shape)
        return result.to(gradient.dtype), None
