"""The tensors that calls accept, and the names of reductions."""

from __future__ import annotations

from typing import Any

import torch

from .._base.errors import Error
from .._torch.memory import DTYPES
from ._session import session


class ReduceOp:
    """The operation of a reduction: `Average`, `Sum`, `Min`, `Max` or `Product`."""

    def __init__(self, name: str, kind: str | None) -> None:
        self.name, self.kind = name, kind

    def __repr__(self) -> str:
        return f"hvd.{self.name}"


Average = ReduceOp("Average", "mean")
Sum = ReduceOp("Sum", "sum")
Min = ReduceOp("Min", "min")
Max = ReduceOp("Max", "max")
Product = ReduceOp("Product", "prod")
Adasum = ReduceOp("Adasum", None)


class ProcessSet:
    """Not supported: the constructor raises an Error. `global_process_set` is all ranks."""

    def __init__(self, *_: Any) -> None:
        raise no_process_sets("ProcessSet")

    @staticmethod
    def size() -> int:
        return session().world.size

    @staticmethod
    def rank() -> int:
        return session().world.rank

    @staticmethod
    def included() -> bool:
        return True


global_process_set = object.__new__(ProcessSet)


def no_process_sets(what: str) -> Error:
    return Error(
        f"hvd.{what}: Lockstep has no process sets; every call is for all ranks (hvd.global_process_set, or leave it out)"
    )


def check_process_set(what: str, value: Any) -> None:
    if value is not None and value is not global_process_set:
        raise no_process_sets(f"{what}: process_set")


def op_of(what: str, op: Any, average: bool | None = None) -> ReduceOp:
    if average is not None:
        if op is not None:
            raise Error(f"hvd.{what}: op and average are both given; average is the old form of op")
        op = Average if average else Sum
    if op is None:
        return Average
    if not isinstance(op, ReduceOp):
        raise Error(f"hvd.{what}: op is {op!r}, expected one such as hvd.Average")
    if op.kind is None:
        raise Error(f"hvd.{what}: Lockstep has no Adasum; use hvd.Average, Sum, Min, Max or Product")
    return op


def check_tensor(what: str, tensor: Any) -> torch.Tensor:
    """Returns a tensor in the CPU's memory with a supported dtype."""
    if not isinstance(tensor, torch.Tensor):
        raise Error(f"hvd.{what}: expected a torch.Tensor, got a {type(tensor).__name__}")
    if tensor.is_sparse or tensor.layout != torch.strided:
        raise Error(f"hvd.{what}: the tensor is sparse; sparse_as_dense of DistributedOptimizer makes gradients dense")
    if tensor.device.type != "cpu":
        raise Error(
            f"hvd.{what}: the tensor is on {tensor.device}, expected a tensor on the CPU; ranks on GPUs use compile()"
        )
    if tensor.dtype not in DTYPES:
        raise Error(f"hvd.{what}: the tensor has dtype {tensor.dtype}, expected one of {[*map(str, DTYPES)]}")
    return tensor


def scaled(tensor: torch.Tensor, factor: float) -> torch.Tensor:
    """Returns a tensor of the same dtype, multiplied by `factor`; the tensor itself for 1."""
    return tensor if factor == 1 else (tensor * factor).to(tensor.dtype)
