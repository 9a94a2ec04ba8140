"""Horovod's asynchronous calls on tensors, and `synchronize`. The calls with gradients are in _differentiable.py."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from .._base import checks
from .._base.errors import Error
from .._torch.memory import DTYPES, bytes_of, tensor_of
from ._calls import AllGather, AllReduce, AllToAll, Broadcast, Call, ReduceScatter
from ._session import Session, session
from ._tensors import ReduceOp, check_process_set, check_tensor, op_of, scaled


class Handle:
    """A call in flight, for `synchronize` and `poll`."""

    def __init__(self, job: Session, calls: Sequence[Call], result: Callable[[], Any]) -> None:
        self._job, self._calls, self._make_result = job, calls, result
        self._result: list[Any] = []

    def wait(self) -> Any:
        for call in self._calls:
            self._job.finish(call)
        if not self._result:
            self._result.append(self._make_result())
        return self._result[0]


def synchronize(handle: Handle) -> Any:
    """Waits for an asynchronous call and returns its result.

    Raises:
      Error: a rank has made another call, has died, or does not arrive.
    """
    return checks.instance(
        "hvd.synchronize: handle", handle, Handle, "what a call such as allreduce_async returns"
    ).wait()


def poll(handle: Handle) -> bool:
    """Completes an asynchronous call, and returns True. `synchronize` then returns at once.

    Ranks of one host have no thread that makes progress in the background, so this call does the work.
    """
    synchronize(handle)
    return True


def _record(name: str, tensor: torch.Tensor, **rest: Any) -> dict[str, Any]:
    return {"name": name, "dtype": DTYPES[tensor.dtype], "shape": list(tensor.shape), **rest}


def _of_rows(what: str, tensor: Any) -> torch.Tensor:
    tensor = check_tensor(what, tensor)
    if tensor.dim() == 0:
        raise Error(f"hvd.{what}: the tensor has no dimension, expected at least one, for the rows")
    return tensor


def _start_all_reduce(
    tensor: torch.Tensor, output: torch.Tensor, name: str, op: ReduceOp, prescale: float, postscale: float
) -> Handle:
    job = session()
    into = output if output.is_contiguous() else torch.empty_like(output, memory_format=torch.contiguous_format)
    given = scaled(tensor.detach(), prescale).contiguous()
    call = AllReduce(_record(name, tensor, kind=op.kind), bytes_of(given), bytes_of(into))

    def result() -> torch.Tensor:
        with torch.no_grad():
            if postscale != 1:
                into.copy_(scaled(into, postscale))
            if into is not output:
                output.copy_(into)
        return output

    return Handle(job, [job.start(call)], result)


def allreduce_async(
    tensor: torch.Tensor,
    average: bool | None = None,
    name: str | None = None,
    op: ReduceOp | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: Any = None,
) -> Handle:
    """Starts the reduction of a tensor over all ranks into a new one. See `allreduce`."""
    check_process_set("allreduce", process_set)
    tensor, reduce = check_tensor("allreduce", tensor), op_of("allreduce", op, average)
    name = session().name("allreduce", name)
    output = torch.empty_like(tensor, memory_format=torch.contiguous_format, requires_grad=False)
    return _start_all_reduce(tensor, output, name, reduce, prescale_factor, postscale_factor)


def allreduce_async_(
    tensor: torch.Tensor,
    average: bool | None = None,
    name: str | None = None,
    op: ReduceOp | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: Any = None,
) -> Handle:
    """Starts the reduction in place. The tensor may not be used until the handle is synchronized."""
    check_process_set("allreduce_", process_set)
    tensor, reduce = check_tensor("allreduce_", tensor), op_of("allreduce_", op, average)
    name = session().name("allreduce", name)
    return _start_all_reduce(tensor, tensor, name, reduce, prescale_factor, postscale_factor)


def _group(what: str, tensors: Any) -> list[torch.Tensor]:
    if not isinstance(tensors, (list, tuple)) or not tensors:
        raise Error(f"hvd.{what}: tensors is {type(tensors).__name__}, expected a list of at least one")
    return list(tensors)


def _grouped(what: str, start: Callable[..., Handle], tensors: Any, name: str | None, *rest: Any) -> Handle:
    """Returns one handle for the calls of several tensors, in order."""
    group = _group(what, tensors)
    base = session().name(what, name)
    handles = [start(tensor, f"{base}.{i}", *rest) for i, tensor in enumerate(group)]
    return Handle(session(), [], lambda: [handle.wait() for handle in handles])


def grouped_allreduce_async(
    tensors: Sequence[torch.Tensor],
    average: bool | None = None,
    name: str | None = None,
    op: ReduceOp | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: Any = None,
) -> Handle:
    """Starts the reduction of several tensors. The result is a list."""

    def start(tensor: torch.Tensor, each: str) -> Handle:
        return allreduce_async(tensor, average, each, op, prescale_factor, postscale_factor, process_set)

    return _grouped("grouped_allreduce", start, tensors, name)


def grouped_allreduce_async_(
    tensors: Sequence[torch.Tensor],
    average: bool | None = None,
    name: str | None = None,
    op: ReduceOp | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: Any = None,
) -> Handle:
    """Starts the reduction of several tensors in place."""

    def start(tensor: torch.Tensor, each: str) -> Handle:
        return allreduce_async_(tensor, average, each, op, prescale_factor, postscale_factor, process_set)

    return _grouped("grouped_allreduce", start, tensors, name)


def allgather_async(tensor: torch.Tensor, name: str | None = None, process_set: Any = None) -> Handle:
    """Starts the concatenation of the rows of all ranks. See `allgather`."""
    check_process_set("allgather", process_set)
    tensor = _of_rows("allgather", tensor).detach().contiguous()
    job, row = session(), list(tensor.shape[1:])
    record = {"name": job.name("allgather", name), "dtype": DTYPES[tensor.dtype], "row": row, "rows": len(tensor)}
    call = AllGather(record, bytes_of(tensor))
    return Handle(job, [job.start(call)], lambda: tensor_of(call.output, tensor.dtype, (sum(call.rows()), *row)))


def grouped_allgather_async(
    tensors: Sequence[torch.Tensor], name: str | None = None, process_set: Any = None
) -> Handle:
    """Starts `allgather` of several tensors. The result is a list."""
    return _grouped("grouped_allgather", allgather_async, tensors, name, process_set)


def _root(what: str, root_rank: Any) -> int:
    root = checks.integer(f"hvd.{what}: root_rank", root_rank)
    if not 0 <= root < session().world.size:
        raise Error(f"hvd.{what}: root_rank is {root}, expected one of the {session().world.size} ranks")
    return root


def _start_broadcast(what: str, tensor: torch.Tensor, output: torch.Tensor, root: int, name: str | None) -> Handle:
    job = session()
    into = output if output.is_contiguous() else torch.empty_like(output, memory_format=torch.contiguous_format)
    given = tensor.detach().contiguous() if root == job.world.rank else into
    call = Broadcast(_record(job.name("broadcast", name), tensor, root=root), bytes_of(given), bytes_of(into))

    def result() -> torch.Tensor:
        if into is not output:
            with torch.no_grad():
                output.copy_(into)
        return output

    return Handle(job, [job.start(call)], result)


def broadcast_async(tensor: torch.Tensor, root_rank: int, name: str | None = None, process_set: Any = None) -> Handle:
    """Starts to send root_rank's tensor to all ranks, as a new tensor. Shapes and dtypes equal those of the root."""
    check_process_set("broadcast", process_set)
    tensor, root = check_tensor("broadcast", tensor), _root("broadcast", root_rank)
    output = torch.empty_like(tensor, memory_format=torch.contiguous_format, requires_grad=False)
    return _start_broadcast("broadcast", tensor, output, root, name)


def broadcast_async_(tensor: torch.Tensor, root_rank: int, name: str | None = None, process_set: Any = None) -> Handle:
    """Starts a broadcast in place. The tensor may not be used until the handle is synchronized."""
    check_process_set("broadcast_", process_set)
    tensor, root = check_tensor("broadcast_", tensor), _root("broadcast_", root_rank)
    return _start_broadcast("broadcast_", tensor, tensor, root, name)


def alltoall_async(
    tensor: torch.Tensor,
    splits: torch.Tensor | Sequence[int] | None = None,
    name: str | None = None,
    process_set: Any = None,
) -> Handle:
    """Starts to send rows to each rank. The result is (rows from all ranks, their numbers by rank). See `alltoall`."""
    check_process_set("alltoall", process_set)
    tensor, job = _of_rows("alltoall", tensor).detach().contiguous(), session()
    counts = _splits(tensor, splits, job.world.size)
    row = list(tensor.shape[1:])
    record = {"name": job.name("alltoall", name), "dtype": DTYPES[tensor.dtype], "row": row, "rows": len(tensor)}
    call = AllToAll(record, bytes_of(tensor), counts)
    like = splits.dtype if isinstance(splits, torch.Tensor) else torch.int32

    def result() -> tuple[torch.Tensor, torch.Tensor]:
        received = torch.tensor(call.received, dtype=like)
        return tensor_of(call.output, tensor.dtype, (sum(call.received), *row)), received

    return Handle(job, [job.start(call)], result)


def _splits(tensor: torch.Tensor, splits: Any, ranks: int) -> list[int]:
    rows = len(tensor)
    if splits is None:
        if rows % ranks != 0:
            raise Error(
                f"hvd.alltoall: {rows} rows are not divisible by {ranks} ranks; give the numbers of rows as splits"
            )
        return [rows // ranks] * ranks
    counts = splits.tolist() if isinstance(splits, torch.Tensor) else list(splits)
    counts = [checks.integer("hvd.alltoall: splits", count, 0) for count in counts]
    if len(counts) != ranks or sum(counts) != rows:
        raise Error(f"hvd.alltoall: splits is {counts}, expected {ranks} numbers of rows with the sum {rows}")
    return counts


def reducescatter_async(
    tensor: torch.Tensor,
    name: str | None = None,
    op: ReduceOp | None = None,
    process_set: Any = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> Handle:
    """Starts a reduction of which each rank gets its rows. See `reducescatter`."""
    check_process_set("reducescatter", process_set)
    tensor, reduce, job = _of_rows("reducescatter", tensor), op_of("reducescatter", op), session()
    given = scaled(tensor.detach(), prescale_factor).contiguous()
    record = _record(job.name("reducescatter", name), given, kind=reduce.kind)
    call = ReduceScatter(record, bytes_of(given))

    def result() -> torch.Tensor:
        output = tensor_of(call.output, given.dtype, (len(call.output), *given.shape[1:]))
        return scaled(output, postscale_factor)

    return Handle(job, [job.start(call)], result)


def grouped_reducescatter_async(
    tensors: Sequence[torch.Tensor],
    name: str | None = None,
    op: ReduceOp | None = None,
    process_set: Any = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> Handle:
    """Starts `reducescatter` of several tensors. The result is a list."""
    return _grouped(
        "grouped_reducescatter", reducescatter_async, tensors, name, op, process_set, prescale_factor, postscale_factor
    )


def sparse_allreduce_async(*_: Any, **__: Any) -> Handle:
    """Not supported: raises an Error."""
    raise Error(
        "hvd.sparse_allreduce_async: Lockstep only reduces dense tensors; make it dense, or allgather its indices and values"
    )


def barrier(process_set: Any = None) -> None:
    """Returns when all ranks have called it."""
    check_process_set("barrier", process_set)
    job = session()
    job.finish(job.start(Call({"op": "barrier"})))


def join(device: int = -1) -> int:
    """Declares that this rank has no more data. Returns when all ranks have done so, with the rank that was last.

    Until then this rank takes part in the calls of the others: with zeros in sums and averages, which divide by the
    number of all ranks, and without rows in allgather and alltoall. A broadcast from a rank that has joined is an
    Error, and so are Min, Max and Product.
    """
    return session().join()
