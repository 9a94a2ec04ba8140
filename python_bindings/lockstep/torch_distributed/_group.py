"""A group of torch.distributed whose collectives are the engine's.

The functions have the names and arguments that `torch.distributed` and PyTorch's C++ code call; those of
`torch.distributed` itself describe them. Tensors are in the CPU's memory. A contiguous tensor is used where it lies.
Sums of f16 and bf16 are taken in f32 and rounded once, in the order of ranks.
"""

from __future__ import annotations

import atexit
import datetime
import itertools
import types
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch
from torch import distributed
from torch._C._dynamo import eval_frame
from torch.distributed import ReduceOp
from torch.distributed.distributed_c10d import ProcessGroup

from .. import _lockstep
from .._torch.memory import DTYPES, bytes_of
from ._meeting import LateError, gatherer, meet
from ._works import NO_LIMIT, Call, InFlight, Message, Queue

_KINDS = {
    ReduceOp.SUM: "sum", ReduceOp.AVG: "mean", ReduceOp.PRODUCT: "prod", ReduceOp.MIN: "min", ReduceOp.MAX: "max",
    ReduceOp.PREMUL_SUM: "sum",
}  # fmt: skip
_BITWISE: dict[Any, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    ReduceOp.BAND: torch.bitwise_and,
    ReduceOp.BOR: torch.bitwise_or,
    ReduceOp.BXOR: torch.bitwise_xor,
}
# A collective, which yields its ticket once it has started, and goes on when it is complete.
_Starting = Iterator[int]


def _end_all() -> None:
    for group in list(_groups):
        group.shutdown()


# Threads must not be in a call of PyTorch when the interpreter ends.
_groups: weakref.WeakSet[Group] = weakref.WeakSet()
atexit.register(_end_all)


class Group(ProcessGroup):
    """One rank's part of a group. Made by `create`, which `torch.distributed` calls."""

    def __init__(
        self, store: distributed.Store, rank: int, size: int, timeout: datetime.timedelta, name: str = "0"
    ) -> None:
        """Meets the other ranks of the group. Collective over them; see `_meeting.meet`."""
        super().__init__(rank, size)
        self._store, self._name = store, name
        self._timeout = self._limit = timeout  # of calls without one of their own; of the call that runs
        self._world = meet(store, rank, size, timeout, name)
        self._messages = _lockstep._Messages(self._world)
        self._queue = Queue(f"group {name}")
        self._monitored = itertools.count()
        self._description = ""
        _groups.add(self)

    @staticmethod
    def create(options: Any, backend_options: Any) -> Group:
        """Returns the group that `torch.distributed` describes (`_DistributedBackendOptions`)."""
        return Group(options.store, options.group_rank, options.group_size, options.timeout, options.group_id)

    def getBackendName(self) -> str:
        return "lockstep"

    @property
    def _device_types(self) -> list[torch.device]:
        return [torch.device("cpu")]

    # The name and the description by which `torch.distributed` finds a group. It sets them after `create`.
    def setGroupName(self, name: str) -> None:
        self._name = name

    def getGroupName(self) -> str:
        return self._name

    def setGroupDesc(self, description: str) -> None:
        self._description = description

    def getGroupDesc(self) -> str:
        return self._description

    def get_group_store(self) -> distributed.Store:
        return self._store

    def set_timeout(self, timeout: datetime.timedelta) -> None:
        """Sets the timeout of calls that are made from now on without one of their own."""
        self._timeout = timeout

    _set_default_timeout = set_timeout

    # What PyTorch asks a group's backend for a device.
    supports_coalescing = supports_shrinking = supports_splitting = supports_time_estimate = False

    def supports_tensor_alloc(self, device: torch.device) -> bool:
        return False

    def _get_backend(self, device: torch.device) -> Group:
        if torch.device(device).type != "cpu":
            raise RuntimeError(f"group {self._name} has no backend for {device}, but for the CPU's memory")
        return self

    def shutdown(self) -> None:
        """Ends this rank's part. Called by `destroy_process_group`, and at the end of the program. A call in flight may
        take two seconds more; then it fails, on all ranks."""
        if not self._queue.end(limit=2):
            self.abort()

    def abort(self) -> None:
        """Makes the calls in flight fail, on all ranks."""
        self._world.abort("it left its group of torch.distributed with a call in flight")
        self._queue.end(limit=10)

    # --- Collectives -------------------------------------------------------------------------------------------------

    def allreduce(self, tensors: Any, opts: Any = ReduceOp.SUM, timeout: Any = None, op: Any = None) -> InFlight:
        [tensor] = _list(tensors)
        reduction = _reduction(opts if op is None else op)
        reduce = self._all_reduce_sparse if tensor.is_sparse else self._all_reduce
        return self._call(opts, [tensor], lambda: reduce(tensor, reduction), timeout)

    def allreduce_coalesced(self, tensors: Any, opts: Any = ReduceOp.SUM) -> InFlight:
        def run() -> None:
            self._together(self._all_reducing(each, _reduction(opts)) for each in tensors)

        return self._call(opts, list(tensors), run)

    def broadcast(self, tensors: Any, opts: Any = 0, timeout: Any = None, root: int | None = None) -> InFlight:
        [tensor] = _list(tensors)
        at = self._root("broadcast", opts, root)
        return self._call(opts, [tensor], lambda: self._broadcast(tensor, at), timeout)

    def reduce(
        self, tensors: Any, opts: Any = 0, op: Any = ReduceOp.SUM, timeout: Any = None, root: int | None = None
    ) -> InFlight:
        [tensor] = _list(tensors)
        reduction = _reduction(opts if hasattr(opts, "reduceOp") else op)
        at = self._root("reduce", opts, root)

        def run() -> None:
            result = tensor if at == self.rank() else tensor.clone()
            self._all_reduce(result, reduction)

        return self._call(opts, [tensor], run, timeout)

    def allgather(self, output_tensors: Any, input_tensors: Any, opts: Any = None, timeout: Any = None) -> InFlight:
        [outputs], [given] = _lists(output_tensors), _list(input_tensors)
        self._check_parts("all_gather", outputs, given)
        return self._call(opts, list(outputs), lambda: self._all_gather(outputs, given), timeout)

    def allgather_coalesced(self, output_lists: Any, input_list: Any, opts: Any = None) -> InFlight:
        parts = [([outputs[i] for outputs in output_lists], given) for i, given in enumerate(input_list)]
        for outputs, given in parts:
            self._check_parts("all_gather", outputs, given)

        def run() -> None:
            for outputs, given in parts:
                self._all_gather(outputs, given)

        return self._call(opts, [each for outputs in output_lists for each in outputs], run)

    def all_gather_single(self, output: torch.Tensor, input: torch.Tensor, opts: Any = None) -> InFlight:
        return self.all_gather_single_coalesced([output], [input], opts)

    def all_gather_single_coalesced(self, outputs: Any, inputs: Any, opts: Any = None) -> InFlight:
        def run() -> None:
            self._together(self._all_gathering(output, each) for output, each in zip(outputs, inputs, strict=True))

        return self._call(opts, list(outputs), run)

    def gather(
        self, output_tensors: Any, input_tensors: Any, opts: Any = 0, timeout: Any = None, root: int | None = None
    ) -> InFlight:
        [given] = _list(input_tensors)
        outputs = _lists(output_tensors)[0] if output_tensors else []
        at = self._root("gather", opts, root)
        self._check_root("gather", at, outputs, given)
        return self._call(opts, list(outputs), lambda: self._gather(outputs, given, at), timeout)

    def scatter(
        self, output_tensors: Any, input_tensors: Any, opts: Any = 0, timeout: Any = None, root: int | None = None
    ) -> InFlight:
        [output] = _list(output_tensors)
        inputs = _lists(input_tensors)[0] if input_tensors else []
        at = self._root("scatter", opts, root)
        self._check_root("scatter", at, inputs, output)
        return self._call(opts, [output], lambda: self._scatter(output, inputs, at), timeout)

    def reduce_scatter(
        self, output_tensors: Any, input_tensors: Any, opts: Any = ReduceOp.SUM, timeout: Any = None
    ) -> InFlight:
        [output], [inputs] = _list(output_tensors), _lists(input_tensors)
        self._check_parts("reduce_scatter", inputs, output)
        return self._call(opts, [output], lambda: self._reduce_scatter(output, inputs, _reduction(opts)), timeout)

    def reduce_scatter_single(self, output: torch.Tensor, input: torch.Tensor, opts: Any = ReduceOp.SUM) -> InFlight:
        return self.reduce_scatter_single_coalesced([output], [input], opts)

    def reduce_scatter_single_coalesced(self, outputs: Any, inputs: Any, opts: Any = ReduceOp.SUM) -> InFlight:
        def run() -> None:
            reduction = _reduction(opts)
            self._together(
                self._reduce_scattering(output, each, reduction) for output, each in zip(outputs, inputs, strict=True)
            )

        return self._call(opts, list(outputs), run)

    def all_to_all_single(
        self,
        output: torch.Tensor,
        input: torch.Tensor,
        output_split_sizes: Sequence[int],
        input_split_sizes: Sequence[int],
        opts: Any = None,
        timeout: Any = None,
    ) -> InFlight:
        def run() -> None:
            if not output_split_sizes and not input_split_sizes:
                self._all_to_all_equally(output, input)
            else:
                parts = [
                    list(torch.split(each, list(sizes) or [len(each) // self.size()] * self.size()))
                    for each, sizes in ((output, output_split_sizes), (input, input_split_sizes))
                ]
                self._all_to_all(parts[0], parts[1])

        self._check_splits("output", output, output_split_sizes)
        self._check_splits("input", input, input_split_sizes)
        return self._call(opts, [output], run, timeout)

    def alltoall(self, outputs: Any, inputs: Any, opts: Any = None, timeout: Any = None) -> InFlight:
        self._check_count("all_to_all", inputs)
        self._check_parts("all_to_all", outputs, inputs[self.rank()])
        return self._call(opts, list(outputs), lambda: self._all_to_all(outputs, inputs), timeout)

    def barrier(self, opts: Any = None, timeout: Any = None) -> InFlight:
        return self._call(opts, [], self._world.barrier, timeout)

    def monitored_barrier(self, timeout: datetime.timedelta | None = None, wait_all_ranks: bool = False) -> None:
        """Returns when all ranks have called it. Ranks that do not within `timeout` are named by the error of the
        others, whose group remains usable."""
        limit = self._timeout if timeout is None else timeout
        store = distributed.PrefixStore(f"monitored/{next(self._monitored)}", self._store)
        try:
            gatherer(store, self.rank(), self.size(), limit, self._name)(b"here")
        except LateError as error:
            late = ", ".join(map(str, error.ranks if wait_all_ranks else error.ranks[:1]))
            milliseconds = round(1e3 * limit.total_seconds())
            raise distributed.DistBackendError(  # gloo's words
                f"Rank{'s' if ',' in late else ''} {late} failed to pass monitoredBarrier in {milliseconds} ms"
            ) from error

    # --- Messages ----------------------------------------------------------------------------------------------------

    def send(self, tensors: Any, dstRank: int, tag: int) -> InFlight:
        [tensor] = _list(tensors)
        ticket = self._messages.send(dstRank, tag, bytes_of(tensor.detach().contiguous()))
        return self._message(ticket, tensor, f"a message with tag {tag} to rank {dstRank}")

    def recv(self, tensors: Any, srcRank: int, tag: int) -> InFlight:
        [tensor] = _list(tensors)
        into = _room(tensor)
        ticket = self._messages.receive(srcRank, tag, bytes_of(into))
        source = "any rank" if srcRank < 0 else f"rank {srcRank}"
        return self._message(ticket, tensor, f"a message with tag {tag} from {source}", into)

    def recv_anysource(self, tensors: Any, tag: int) -> InFlight:
        return self.recv(tensors, -1, tag)

    def _message(self, ticket: int, tensor: torch.Tensor, what: str, into: torch.Tensor | None = None) -> Message:
        messages, world = self._messages, self._world

        def poll(limit: float) -> int | None:
            other = messages.wait(ticket, limit)
            if other is None and limit > 0:
                _lockstep._check_peers(world)
            if other is not None and into is not None:
                _keep(tensor, into)
            return other

        return Message(poll, self._timeout.total_seconds(), what, self._where(self._timeout), tensor)

    # The names of these functions before PyTorch 2.13.
    _allgather_base = all_gather_single
    allgather_into_tensor_coalesced = all_gather_single_coalesced
    _reduce_scatter_base = reduce_scatter_single
    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced
    alltoall_base = all_to_all_single

    def _start_coalescing(self, device: torch.device) -> None:
        """Does nothing: each call is on its way."""

    def _end_coalescing(self, device: torch.device) -> InFlight:
        """Returns a call that is complete when those before it are."""
        return self._call(None, [], lambda: None)

    # --- The calls' bodies, which run in the group's order -----------------------------------------------------------

    def _where(self, timeout: datetime.timedelta) -> str:
        return f"group {self._name}, timeout {timeout.total_seconds():g} s"

    def _call(self, opts: Any, result: list[torch.Tensor], run: Callable[[], None], timeout: Any = None) -> InFlight:
        for tensor in result:
            if tensor.device.type != "cpu":
                raise ValueError(f"group {self._name}: a tensor is on {tensor.device}, expected the CPU's memory")
        own = getattr(opts, "timeout", None) if timeout is None else timeout
        limit = (
            self._timeout if own is None or own <= NO_LIMIT else own
        )  # options without a timeout have a negative one

        def run_within() -> None:
            if limit != self._limit:
                _lockstep._set_timeout(self._world, limit.total_seconds())
                self._limit = limit
            run()

        call = Call(self._queue, run_within, result, self._where(limit))
        if getattr(opts, "asyncOp", True):
            self._queue.add(call)
        else:
            self._queue.run(call)
        return call

    def _root(self, op: str, opts: Any, root: int | None) -> int:
        """Returns the root of a call, given as PyTorch gives it: in its options, in their place or by name."""
        at = int(getattr(opts, "rootRank", opts) if root is None else root)
        if not 0 <= at < self.size():
            raise ValueError(f"{op}: root {at} is not a rank of the group, which are 0 to {self.size() - 1}")
        return at

    def _check_count(self, op: str, parts: Sequence[torch.Tensor]) -> None:
        if len(parts) != self.size():
            raise ValueError(f"{op}: the call has {len(parts)} tensors for {self.size()} ranks")

    def _check_parts(self, op: str, parts: Sequence[torch.Tensor], own: torch.Tensor) -> None:
        """Checks a call's tensors for each rank, of which this rank's corresponds to `own`."""
        self._check_count(op, parts)
        part = parts[self.rank()]
        if part.numel() != own.numel() or part.dtype != own.dtype:
            raise ValueError(
                f"{op}: of the tensors for each rank, that of rank {self.rank()} has {part.numel()} x {part.dtype}, expected "
                f"{own.numel()} x {own.dtype}, as the other tensor has"
            )

    def _check_root(self, op: str, root: int, parts: Sequence[torch.Tensor], own: torch.Tensor) -> None:
        if root == self.rank():
            self._check_parts(op, parts, own)
        if root != self.rank() and parts:
            raise ValueError(f"{op}: rank {self.rank()} has a list of tensors, but only root {root} needs one")

    def _check_splits(self, which: str, tensor: torch.Tensor, sizes: Sequence[int]) -> None:
        if not sizes and (tensor.dim() == 0 or len(tensor) % self.size() != 0):
            raise ValueError(f"all_to_all: the rows of the {which} are not divisible by {self.size()} ranks")
        if sizes and (len(sizes) != self.size() or sum(sizes) != len(tensor)):
            raise ValueError(
                f"all_to_all: the split sizes of the {which} are {list(sizes)}, expected {self.size()} numbers with the sum {len(tensor)}"
            )

    def _label(self, op: str, tensor: torch.Tensor) -> str:
        return f"torch group {self._name}: {op} of {tensor.numel()} x {str(tensor.dtype)[6:]}"

    def _together(self, calls: Iterable[_Starting]) -> None:
        """Starts several collectives, and then finishes them in order."""
        for call, ticket in [(call, next(call)) for call in calls]:
            _lockstep._wait(self._world, ticket)
            next(call, None)

    def _all_reduce(self, tensor: torch.Tensor, op: ReduceOp) -> None:
        self._together([self._all_reducing(tensor, op)])

    def _all_reducing(self, tensor: torch.Tensor, op: ReduceOp) -> _Starting:
        if op.op in _BITWISE:
            return self._all_reducing_bits(tensor, _BITWISE[op.op])
        return self._all_reducing_numbers(tensor, op)

    def _all_reducing_numbers(self, tensor: torch.Tensor, op: ReduceOp) -> _Starting:
        numbers = torch.view_as_real(tensor) if tensor.is_complex() else tensor
        into = numbers.detach().contiguous()
        if op.op == ReduceOp.PREMUL_SUM:
            into = into.mul_(op.factor) if into.data_ptr() == numbers.data_ptr() else into * op.factor
        own = bytes_of(into)
        label = self._label("all_reduce", tensor)
        yield _lockstep._start_all_reduce(self._world, own, own, _dtype("all_reduce", into), _kind(op), label)
        _keep(numbers, into)

    def _all_reducing_bits(
        self, tensor: torch.Tensor, reduce: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
    ) -> _Starting:
        all = torch.empty((self.size(), *tensor.shape), dtype=tensor.dtype)
        yield from self._all_gathering(all, tensor)
        result = all[0]
        for each in all[1:]:
            result = reduce(result, each)
        tensor.detach().copy_(result)

    def _all_reduce_sparse(self, tensor: torch.Tensor, op: ReduceOp) -> None:
        """Adds sparse tensors, whose numbers of elements may differ."""
        if op.op != ReduceOp.SUM:
            raise ValueError(f"all_reduce of a sparse tensor is a sum, got {op.op}")
        own = tensor.detach().coalesce()
        counts = torch.empty(self.size(), dtype=torch.int64)
        self._together([self._all_gathering(counts, torch.tensor([own._nnz()]))])
        gathered = []
        for part in (own.indices().t(), own.values()):
            parts = [torch.empty((count, *part.shape[1:]), dtype=part.dtype) for count in counts.tolist()]
            self._all_gather(parts, part.contiguous())
            gathered.append(torch.cat(parts))
        total = torch.sparse_coo_tensor(gathered[0].t(), gathered[1], tensor.shape).coalesce()
        with torch.no_grad():  # detach() of a sparse tensor shares no sizes
            tensor.copy_(total)

    def _broadcast(self, tensor: torch.Tensor, root: int) -> None:
        into = tensor.detach().contiguous()
        own = bytes_of(into)
        label = self._label("broadcast", tensor)
        _lockstep._wait(self._world, _lockstep._start_broadcast(self._world, own, own, "u8", root, label))
        _keep(tensor, into)

    def _all_gathering(self, output: torch.Tensor, given: torch.Tensor) -> _Starting:
        into = _room(output)
        own = bytes_of(given.detach().contiguous())
        label = self._label("all_gather", given)
        yield _lockstep._start_all_gather(self._world, own, bytes_of(into), "u8", label)
        _keep(output, into)

    def _all_gather(self, outputs: Sequence[torch.Tensor], given: torch.Tensor) -> None:
        """Gathers tensors, whose sizes may differ between ranks."""
        most = max(each.numel() for each in outputs)
        all = torch.empty((self.size(), most), dtype=given.dtype)
        self._together([self._all_gathering(all, _padded(given, most))])
        for output, row in zip(outputs, all, strict=True):
            output.detach().copy_(row[: output.numel()].view(output.shape))

    def _gather(self, outputs: Sequence[torch.Tensor], given: torch.Tensor, root: int) -> None:
        all = torch.empty((self.size(), given.numel()), dtype=given.dtype)
        own, label = bytes_of(given.detach().contiguous()), self._label("gather", given)
        _lockstep._wait(self._world, _lockstep._start_gather(self._world, own, bytes_of(all), "u8", root, label))
        for output, row in zip(outputs, all, strict=False):  # no outputs but at the root
            output.detach().copy_(row.view(output.shape))

    def _scatter(self, output: torch.Tensor, inputs: Sequence[torch.Tensor], root: int) -> None:
        into = _room(output)
        all = torch.empty((self.size(), output.numel()), dtype=output.dtype)
        for row, given in zip(all, inputs, strict=False):  # no inputs but at the root
            row.copy_(given.detach().reshape(-1))
        label = self._label("scatter", output)
        _lockstep._wait(
            self._world, _lockstep._start_scatter(self._world, bytes_of(all), bytes_of(into), "u8", root, label)
        )
        _keep(output, into)

    def _reduce_scattering(self, output: torch.Tensor, given: torch.Tensor, op: ReduceOp) -> _Starting:
        if op.op in _BITWISE:
            own = given.detach().clone()
            yield from self._all_reducing(own, op)
            output.detach().copy_(own.view(self.size(), -1)[self.rank()].view(output.shape))
            return
        numbers, into = (torch.view_as_real(each) if each.is_complex() else each for each in (given, output))
        numbers = numbers.detach().contiguous()
        if op.op == ReduceOp.PREMUL_SUM:
            numbers = numbers * op.factor
        written = _room(into)
        yield _lockstep._start_reduce_scatter(
            self._world,
            bytes_of(numbers),
            bytes_of(written),
            _dtype("reduce_scatter", numbers),
            _kind(op),
            self._label("reduce_scatter", given),
        )
        _keep(into, written)

    def _reduce_scatter(self, output: torch.Tensor, inputs: Sequence[torch.Tensor], op: ReduceOp) -> None:
        """Reduces tensors, of which each rank gets one; their sizes may differ."""
        most = max(each.numel() for each in inputs)
        all = torch.stack([_padded(each, most) for each in inputs])
        row = torch.empty(most, dtype=output.dtype)
        self._together([self._reduce_scattering(row, all, op)])
        output.detach().copy_(row[: output.numel()].view(output.shape))

    def _all_to_all_equally(self, output: torch.Tensor, given: torch.Tensor) -> None:
        into = _room(output)
        own, label = bytes_of(given.detach().contiguous()), self._label("all_to_all", given)
        _lockstep._wait(self._world, _lockstep._start_all_to_all(self._world, own, bytes_of(into), "u8", label))
        _keep(output, into)

    def _all_to_all(self, outputs: Sequence[torch.Tensor], inputs: Sequence[torch.Tensor]) -> None:
        """Exchanges tensors, whose sizes may differ. Each rank knows what it gets."""
        most = torch.tensor([max(each.numel() for each in [*outputs, *inputs])])
        self._all_reduce(most, distributed.ReduceOp(ReduceOp.MAX))
        dtype = outputs[0].dtype
        sent = torch.stack([_padded(each, int(most)) for each in inputs])
        got = torch.empty(sent.shape, dtype=dtype)
        self._all_to_all_equally(got, sent)
        for output, row in zip(outputs, got, strict=True):
            output.detach().copy_(row[: output.numel()].view(output.shape))


def _leave_untraced(of: type) -> None:
    """Makes torch.compile run the functions of a class as they are. The C++ code of DistributedDataParallel calls them
    within a compiled call. Before PyTorch 2.7 there is no such mark."""
    if not hasattr(eval_frame, "set_code_exec_strategy"):
        return
    skip = eval_frame._FrameAction.SKIP
    for each in vars(of).values():
        if isinstance(each, types.FunctionType):
            eval_frame.set_code_exec_strategy(each.__code__, eval_frame._FrameExecStrategy(skip, skip))


for _class in (Group, InFlight, Call, Message):
    _leave_untraced(_class)


def _list(tensors: Any) -> list[torch.Tensor]:
    found = [tensors] if isinstance(tensors, torch.Tensor) else list(tensors)
    if len(found) != 1:
        raise ValueError(f"the call has {len(found)} tensors, expected one")
    return found


def _lists(lists: Any) -> list[list[torch.Tensor]]:
    found = [list(lists)] if isinstance(lists[0], torch.Tensor) else [list(each) for each in lists]
    if len(found) != 1:
        raise ValueError(f"the call has {len(found)} lists of tensors, expected one")
    return found


def _reduction(given: Any) -> ReduceOp:
    op = getattr(given, "reduceOp", given)
    return op if hasattr(op, "op") else ReduceOp(op)  # a plain ReduceOp.SUM is an instance of ReduceOp, without op


def _kind(op: ReduceOp) -> str:
    if op.op not in _KINDS:
        raise ValueError(f"the reduction {op.op} is not supported")
    return _KINDS[op.op]


def _dtype(op: str, tensor: torch.Tensor) -> str:
    if tensor.dtype not in DTYPES:
        raise ValueError(f"{op}: the tensor has dtype {tensor.dtype}, expected one of {[*map(str, DTYPES)]}")
    return DTYPES[tensor.dtype]


def _room(tensor: torch.Tensor) -> torch.Tensor:
    """Returns a contiguous tensor for the elements of `tensor`: the tensor itself if it is one."""
    own = tensor.detach()
    return own if own.is_contiguous() else torch.empty_like(own, memory_format=torch.contiguous_format)


def _keep(tensor: torch.Tensor, room: torch.Tensor) -> None:
    """Copies what was written to the room for a tensor."""
    if room.data_ptr() != tensor.data_ptr():
        tensor.detach().copy_(room)


def _padded(tensor: torch.Tensor, count: int) -> torch.Tensor:
    """Returns the elements of a tensor, and zeros up to `count`."""
    flat = tensor.detach().reshape(-1)
    if flat.numel() == count:
        return flat
    padded = torch.zeros(count, dtype=tensor.dtype)
    padded[: flat.numel()] = flat
    return padded
