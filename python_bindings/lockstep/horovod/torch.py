"""Horovod's calls for PyTorch's eager mode, on Lockstep's communicator.

    import torch
    import lockstep.horovod.torch as hvd  # was: import horovod.torch as hvd

    hvd.init()
    optimizer = torch.optim.SGD(model.parameters(), 0.01 * hvd.size())
    optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)

Start it by `mpirun -np 2 python program.py`. All ranks make the same calls in the same order. Unlike in Horovod, a
violation is an Error that shows the calls of both ranks. docs/horovod.md lists the other differences.
"""

from __future__ import annotations

from typing import Any

from .._base.errors import Error
from .._base.names import suggest
from . import _elastic as elastic
from ._compression import Compression
from ._differentiable import (
    allgather,
    allreduce,
    allreduce_,
    alltoall,
    broadcast,
    broadcast_,
    grouped_allgather,
    grouped_allreduce,
    grouped_allreduce_,
    grouped_reducescatter,
    reducescatter,
)
from ._objects import allgather_object, broadcast_object, broadcast_optimizer_state, broadcast_parameters
from ._ops import (
    Handle,
    allgather_async,
    allreduce_async,
    allreduce_async_,
    alltoall_async,
    barrier,
    broadcast_async,
    broadcast_async_,
    grouped_allgather_async,
    grouped_allreduce_async,
    grouped_allreduce_async_,
    grouped_reducescatter_async,
    join,
    poll,
    reducescatter_async,
    sparse_allreduce_async,
    synchronize,
)
from ._optimizer import DistributedOptimizer
from ._session import (
    FACTS,
    cross_rank,
    cross_size,
    init,
    is_homogeneous,
    is_initialized,
    local_rank,
    local_size,
    rank,
    shutdown,
    size,
)
from ._sync_batch_norm import SyncBatchNorm
from ._tensors import Adasum, Average, Max, Min, ProcessSet, Product, ReduceOp, Sum, global_process_set, no_process_sets

HorovodInternalError = Error  # raised by calls when another rank has failed

__all__ = [
    "Adasum", "Average", "Compression", "DistributedOptimizer", "Handle", "HorovodInternalError", "Max", "Min", "ProcessSet",
    "Product", "ReduceOp", "Sum", "SyncBatchNorm", "add_process_set", "allgather", "allgather_async", "allgather_object",
    "allreduce", "allreduce_", "allreduce_async", "allreduce_async_", "alltoall", "alltoall_async", "barrier", "broadcast",
    "broadcast_", "broadcast_async", "broadcast_async_", "broadcast_object", "broadcast_optimizer_state",
    "broadcast_parameters", "cross_rank", "cross_size", "elastic", "global_process_set", "grouped_allgather",
    "grouped_allgather_async", "grouped_allreduce", "grouped_allreduce_", "grouped_allreduce_async",
    "grouped_allreduce_async_", "grouped_reducescatter", "grouped_reducescatter_async", "init", "is_homogeneous",
    "is_initialized", "join", "local_rank", "local_size", "poll", "rank", "reducescatter", "reducescatter_async",
    "remove_process_set", "shutdown", "size", "sparse_allreduce_async", "synchronize",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    """`mpi_built()`, `nccl_built()`, …: functions that say what this is built with."""
    if name in FACTS:
        return lambda: FACTS[name]
    raise AttributeError(f"lockstep.horovod.torch has no {name!r}{suggest(name, __all__)}")


def add_process_set(*_: Any) -> ProcessSet:
    """Not supported: raises an Error."""
    raise no_process_sets("add_process_set")


def remove_process_set(*_: Any) -> None:
    """Not supported: raises an Error."""
    raise no_process_sets("remove_process_set")
