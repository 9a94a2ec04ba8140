"""The blocking calls. Gradients pass through them as Horovod documents it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from . import _ops
from ._compression import Compression
from ._session import session
from ._tensors import Average, ReduceOp, Sum, check_tensor, op_of


class _AllReduce(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, tensor: torch.Tensor, name: str | None, op: ReduceOp, pre: float, post: float, ps: Any
    ) -> Any:
        ctx.how = (op, pre, post)
        return _ops.allreduce_async(tensor, None, name, op, pre, post, ps).wait()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        op, pre, post = ctx.how
        return allreduce(gradient, op=op, prescale_factor=pre, postscale_factor=post), None, None, None, None, None


class _AllGather(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, name: str | None, ps: Any) -> Any:
        handle = _ops.allgather_async(tensor, name, ps)
        output, rows = handle.wait(), handle._calls[0].rows()
        own = session().world.rank
        ctx.place = (sum(rows[:own]), rows[own])
        return output

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        return allreduce(gradient, op=Average).narrow(0, *ctx.place), None, None


class _Broadcast(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, root: int, name: str | None, ps: Any) -> Any:
        ctx.root = root
        return _ops.broadcast_async(tensor, root, name, ps).wait()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        reduced = allreduce(gradient, op=Average)
        return reduced if session().world.rank == ctx.root else torch.zeros_like(reduced), None, None, None


class _AllToAll(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, splits: Any, name: str | None, ps: Any) -> Any:
        output, ctx.received = _ops.alltoall_async(tensor, splits, name, ps).wait()
        ctx.mark_non_differentiable(ctx.received)
        return output, ctx.received

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor, _: Any) -> Any:
        return alltoall(gradient, ctx.received)[0], None, None, None


class _ReduceScatter(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, tensor: torch.Tensor, name: str | None, op: ReduceOp, ps: Any, pre: float, post: float
    ) -> Any:
        ctx.factor = pre * post * (session().world.size if op is Sum else 1)
        return _ops.reducescatter_async(tensor, name, op, ps, pre, post).wait()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        return allgather(gradient * ctx.factor), None, None, None, None, None


def allreduce(
    tensor: torch.Tensor,
    average: bool | None = None,
    name: str | None = None,
    compression: Any = Compression.none,
    op: ReduceOp | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: Any = None,
) -> torch.Tensor:
    """Reduces the tensors of all ranks. The result is bitwise equal on all ranks.

    Args:
      tensor: of the same shape and dtype on all ranks, in the CPU's memory. It is not changed.
      average: the old form of op: True is Average, False is Sum.
      name: of the call in messages; the same on all ranks.
      compression: of the data in transit.
      op: Average, Sum, Min, Max or Product. None is Average. An average of whole numbers is truncated.
      prescale_factor, postscale_factor: factors of the input and of the result.

    Raises:
      Error: an argument is invalid, or ranks make different calls, which the message shows.
    """
    reduce = op_of("allreduce", op, average)
    given, context = compression.compress(check_tensor("allreduce", tensor))
    reduced = _AllReduce.apply(given, name, reduce, prescale_factor, postscale_factor, process_set)
    return compression.decompress(reduced, context)


def allreduce_(
    tensor: torch.Tensor,
    average: bool | None = None,
    name: str | None = None,
    op: ReduceOp | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: Any = None,
) -> torch.Tensor:
    """`allreduce` in place. Gradients do not pass."""
    return _ops.allreduce_async_(tensor, average, name, op, prescale_factor, postscale_factor, process_set).wait()


def grouped_allreduce(
    tensors: Sequence[torch.Tensor],
    average: bool | None = None,
    name: str | None = None,
    compression: Any = Compression.none,
    op: ReduceOp | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: Any = None,
) -> list[torch.Tensor]:
    """`allreduce` of several tensors, one after the other."""
    base = session().name("grouped_allreduce", name)
    return [
        allreduce(tensor, average, f"{base}.{i}", compression, op, prescale_factor, postscale_factor, process_set)
        for i, tensor in enumerate(_ops._group("grouped_allreduce", tensors))
    ]


def grouped_allreduce_(
    tensors: Sequence[torch.Tensor],
    average: bool | None = None,
    name: str | None = None,
    op: ReduceOp | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: Any = None,
) -> list[torch.Tensor]:
    """`allreduce_` of several tensors."""
    return _ops.grouped_allreduce_async_(
        tensors, average, name, op, prescale_factor, postscale_factor, process_set
    ).wait()


def allgather(tensor: torch.Tensor, name: str | None = None, process_set: Any = None) -> torch.Tensor:
    """Returns the rows of all ranks, by rank. Ranks may have different numbers of rows of equal shape."""
    return _AllGather.apply(tensor, name, process_set)


def grouped_allgather(
    tensors: Sequence[torch.Tensor], name: str | None = None, process_set: Any = None
) -> list[torch.Tensor]:
    """`allgather` of several tensors."""
    base = session().name("grouped_allgather", name)
    group = _ops._group("grouped_allgather", tensors)
    return [allgather(tensor, f"{base}.{i}", process_set) for i, tensor in enumerate(group)]


def broadcast(tensor: torch.Tensor, root_rank: int, name: str | None = None, process_set: Any = None) -> torch.Tensor:
    """Returns rank root_rank's tensor on all ranks. All pass a tensor of that shape and dtype."""
    return _Broadcast.apply(tensor, root_rank, name, process_set)


def broadcast_(tensor: torch.Tensor, root_rank: int, name: str | None = None, process_set: Any = None) -> torch.Tensor:
    """`broadcast` in place. Gradients do not pass."""
    return _ops.broadcast_async_(tensor, root_rank, name, process_set).wait()


def alltoall(
    tensor: torch.Tensor,
    splits: torch.Tensor | Sequence[int] | None = None,
    name: str | None = None,
    process_set: Any = None,
) -> Any:
    """Sends rows to each rank, and returns the received rows by rank; with `splits`, also the numbers of rows received.

    Args:
      tensor: rows for rank 0, then for rank 1, …
      splits: the number of rows for each rank; equal numbers if None.
    """
    output, received = _AllToAll.apply(tensor, splits, name, process_set)
    return output if splits is None else (output, received)


def reducescatter(
    tensor: torch.Tensor,
    name: str | None = None,
    compression: Any = Compression.none,
    op: ReduceOp | None = None,
    process_set: Any = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> torch.Tensor:
    """Reduces the tensors of all ranks, and returns this rank's rows. The first ranks may have one row more."""
    reduce = op_of("reducescatter", op)
    given, context = compression.compress(check_tensor("reducescatter", tensor))
    reduced = _ReduceScatter.apply(given, name, reduce, process_set, prescale_factor, postscale_factor)
    return compression.decompress(reduced, context)


def grouped_reducescatter(
    tensors: Sequence[torch.Tensor],
    name: str | None = None,
    compression: Any = Compression.none,
    op: ReduceOp | None = None,
    process_set: Any = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> list[torch.Tensor]:
    """`reducescatter` of several tensors."""
    base = session().name("grouped_reducescatter", name)
    return [
        reducescatter(tensor, f"{base}.{i}", compression, op, process_set, prescale_factor, postscale_factor)
        for i, tensor in enumerate(_ops._group("grouped_reducescatter", tensors))
    ]
