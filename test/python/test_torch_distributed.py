"""lockstep.torch_distributed, with PyTorch's gloo as the oracle."""

from __future__ import annotations

import datetime
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

import torch
from torch import distributed
from torch.distributed import ReduceOp
from torch.distributed.distributed_c10d import (
    AllgatherOptions,
    AllreduceCoalescedOptions,
    AllreduceOptions,
    AllToAllOptions,
    BarrierOptions,
    BroadcastOptions,
    GatherOptions,
    ReduceOptions,
    ReduceScatterOptions,
    ScatterOptions,
)

import lockstep as ls
from lockstep.torch_distributed import Group

RANKS = 3
LIMIT = datetime.timedelta(seconds=60)
FLOATS = [torch.float32, torch.float64, torch.float16, torch.bfloat16]
INTEGERS = [torch.int8, torch.uint8, torch.int32, torch.int64]
Body = Callable[[Any], Any]


def on_ranks(make: Callable[..., Any], body: Body, ranks: int = RANKS, limit: datetime.timedelta = LIMIT) -> list[Any]:
    """Returns what body(group) returns on ranks that are threads, or raises what it raises."""
    store = distributed.HashStore()
    results: list[Any] = [None] * ranks
    errors: list[BaseException | None] = [None] * ranks

    def run(rank: int) -> None:
        try:
            group = make(store, rank, ranks, limit)
            results[rank] = body(group)
        except BaseException as error:  # noqa: BLE001 (raised below)
            errors[rank] = error

    threads = [threading.Thread(target=run, args=(rank,), daemon=True) for rank in range(ranks)]
    for thread in threads:
        thread.start()
    for rank, thread in enumerate(threads):
        thread.join(120)
        assert not thread.is_alive(), f"rank {rank} hangs"
    for error in errors:
        if error is not None:
            raise error
    return results


def gloo(store: distributed.Store, rank: int, ranks: int, limit: datetime.timedelta) -> Any:
    return distributed.ProcessGroupGloo(store, rank, ranks, limit)


def compare(body: Body, ranks: int = RANKS) -> None:
    """Compares the tensors that body returns with those over gloo, bit by bit."""
    ours, theirs = (on_ranks(make, body, ranks) for make in (Group, gloo))
    for rank, (mine, expected) in enumerate(zip(ours, theirs, strict=True)):
        for i, (got, wanted) in enumerate(zip(mine, expected, strict=True)):
            assert got.dtype == wanted.dtype, (rank, i)
            got, wanted = (each.to_dense() if each.is_sparse else each for each in (got, wanted))
            assert torch.equal(got, wanted), f"rank {rank}, tensor {i}: {got} is not {wanted}"


def options(kind: type, **values: Any) -> Any:
    made = kind()
    for name, value in values.items():
        setattr(made, name, value)
    return made


def numbers(rank: int, shape: tuple[int, ...], dtype: torch.dtype, seed: int = 0) -> torch.Tensor:
    """Small integers, so that every order of additions gives the same bits."""
    made = torch.Generator().manual_seed(97 * seed + rank)
    return torch.randint(0 if dtype == torch.uint8 else -4, 5, shape, generator=made).to(dtype)


@pytest.mark.parametrize("asynchronous", [False, True])
@pytest.mark.parametrize("op", [ReduceOp.SUM, ReduceOp.MIN, ReduceOp.MAX, ReduceOp.PRODUCT])
@pytest.mark.parametrize("dtype", [*FLOATS, *INTEGERS], ids=str)
def test_all_reduce(dtype: torch.dtype, op: Any, asynchronous: bool) -> None:
    def body(group: Any) -> list[torch.Tensor]:
        tensors = [numbers(group.rank(), shape, dtype) for shape in ((5,), (3, 4), (), (0,))]
        tensors.append(numbers(group.rank(), (4, 6), dtype).t())  # not contiguous
        works = [
            group.allreduce([each], options(AllreduceOptions, reduceOp=op, asyncOp=asynchronous)) for each in tensors
        ]
        for work in works:
            work.wait()
        return tensors

    compare(body)


@pytest.mark.parametrize("op", [ReduceOp.BAND, ReduceOp.BOR, ReduceOp.BXOR])
def test_all_reduce_of_bits(op: Any) -> None:
    def body(group: Any) -> list[torch.Tensor]:
        tensor = numbers(group.rank(), (7,), torch.int32)
        group.allreduce([tensor], options(AllreduceOptions, reduceOp=op)).wait()
        return [tensor]

    compare(body)


def test_averages_and_factors() -> None:
    """gloo has no premultiplied sum: the values are those of the definition."""

    def body(group: Any) -> None:
        for factor in (0.5, torch.tensor(0.5)):
            premultiplied = distributed._make_nccl_premul_sum(factor)
            tensor = torch.full((3,), 2.0 * group.rank())
            group.allreduce([tensor], options(AllreduceOptions, reduceOp=premultiplied)).wait()
            assert tensor.tolist() == [3.0] * 3
        mean = torch.tensor([float(group.rank())])
        group.allreduce([mean], options(AllreduceOptions, reduceOp=ReduceOp.AVG)).wait()
        assert mean.item() == 1.0
        scattered = torch.empty(1)
        given = torch.arange(3.0) + group.rank()
        group._reduce_scatter_base(scattered, given, options(ReduceScatterOptions, reduceOp=ReduceOp.AVG)).wait()
        assert scattered.item() == 1.0 + group.rank()

    on_ranks(Group, body)


def test_complex_numbers_are_added() -> None:
    def body(group: Any) -> list[torch.Tensor]:
        tensor = torch.complex(torch.full((2, 2), group.rank() + 1.0), torch.full((2, 2), -2.0 * group.rank()))
        group.allreduce([tensor], options(AllreduceOptions)).wait()
        return [tensor]

    # gloo itself takes no complex numbers; torch.distributed gives it their parts.
    assert on_ranks(Group, body)[0][0].tolist() == [[6 - 6j] * 2] * 2


def test_sparse_tensors_are_added() -> None:
    def body(group: Any) -> list[torch.Tensor]:
        rank = group.rank()
        indices = torch.tensor([[each % 4 for each in range(rank + 2)], [rank] * (rank + 2)])
        tensor = torch.sparse_coo_tensor(indices, numbers(rank, (rank + 2, 2), torch.float32), (4, RANKS, 2))
        work = group.allreduce([tensor], options(AllreduceOptions))
        work.wait()
        return [work.result()[0]]

    compare(body)


def test_coalesced_calls() -> None:
    def body(group: Any) -> list[torch.Tensor]:
        rank = group.rank()
        reduced = [numbers(rank, (n,), torch.float32, n) for n in (1, 4, 9)]
        group.allreduce_coalesced(reduced, options(AllreduceCoalescedOptions)).wait()
        lists = [[torch.empty(2), torch.empty(3)] for _ in range(RANKS)]
        group.allgather_coalesced(
            lists, [numbers(rank, (n,), torch.float32) for n in (2, 3)], options(AllgatherOptions)
        ).wait()
        return [*reduced, *(each for row in lists for each in row)]

    compare(body)

    def of_tensors(group: Any) -> None:  # gloo has no such functions
        rank = group.rank()
        gathered = [torch.empty(RANKS * n) for n in (2, 3)]
        group.all_gather_single_coalesced(gathered, [torch.full((n,), float(rank)) for n in (2, 3)]).wait()
        assert [each.tolist() for each in gathered] == [[0.0] * n + [1.0] * n + [2.0] * n for n in (2, 3)]
        scattered = [torch.empty(n) for n in (2, 3)]
        group.reduce_scatter_single_coalesced(scattered, [torch.arange(3.0 * n) + rank for n in (2, 3)]).wait()
        assert [each.tolist() for each in scattered] == [
            [3.0 * (n * rank + i) + sum(range(RANKS)) for i in range(n)] for n in (2, 3)
        ]

    on_ranks(Group, of_tensors)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64, torch.bool, torch.uint8], ids=str)
def test_moves(dtype: torch.dtype) -> None:
    def body(group: Any) -> list[torch.Tensor]:
        rank, results = group.rank(), []
        for root in range(RANKS):
            sent = numbers(rank, (2, 3), torch.int64).to(dtype)
            group.broadcast([sent], options(BroadcastOptions, rootRank=root)).wait()
            here = [[torch.empty((2, 3), dtype=dtype) for _ in range(RANKS)]] if rank == root else []
            group.gather(
                here, [numbers(rank, (2, 3), torch.int64).to(dtype)], options(GatherOptions, rootRank=root)
            ).wait()
            got = torch.empty(4, dtype=dtype)
            parts = [[numbers(each, (4,), torch.int64).to(dtype) for each in range(RANKS)]] if rank == root else []
            group.scatter([got], parts, options(ScatterOptions, rootRank=root)).wait()
            results += [sent, got, *(here[0] if here else [])]
        outputs = [torch.empty((3, 2), dtype=dtype).t() for _ in range(RANKS)]  # not contiguous
        group.allgather([outputs], [numbers(rank, (2, 3), torch.int64).to(dtype)], options(AllgatherOptions)).wait()
        whole = torch.empty((RANKS, 2), dtype=dtype)
        group._allgather_base(whole, numbers(rank, (1, 2), torch.int64).to(dtype), options(AllgatherOptions)).wait()
        turned = torch.empty((RANKS, 2), dtype=dtype)
        group.alltoall_base(
            turned, numbers(rank, (RANKS, 2), torch.int64).to(dtype), [], [], options(AllToAllOptions)
        ).wait()
        return [*results, *outputs, whole, turned]

    compare(body)


def test_reductions_to_one_rank() -> None:
    def body(group: Any) -> list[torch.Tensor]:
        results = []
        for root in range(RANKS):
            tensor = numbers(group.rank(), (5,), torch.float32)
            group.reduce([tensor], options(ReduceOptions, rootRank=root, reduceOp=ReduceOp.MAX)).wait()
            results += [tensor] if group.rank() == root else []
        output = torch.empty(2)
        inputs = [numbers(group.rank(), (2,), torch.float32, each) for each in range(RANKS)]
        group.reduce_scatter([output], [inputs], options(ReduceScatterOptions)).wait()
        return [*results, output]

    compare(body)


def test_unequal_parts() -> None:
    def body(group: Any) -> list[torch.Tensor]:
        rank = group.rank()
        to, of = [1, 0, 2 + rank], [[1, 0, 2 + source][rank] for source in range(RANKS)]
        output = torch.empty(sum(of), 2)
        group.alltoall_base(output, numbers(rank, (sum(to), 2), torch.float32), of, to, options(AllToAllOptions)).wait()
        return [output]

    compare(body)

    def uneven(group: Any) -> None:  # gloo refuses these
        outputs = [torch.empty(each + 1, 2) for each in range(RANKS)]
        group.allgather([outputs], [torch.full((group.rank() + 1, 2), float(group.rank()))]).wait()
        assert [each.unique().tolist() for each in outputs] == [[0.0], [1.0], [2.0]]
        own = torch.empty(group.rank() + 1)
        group.reduce_scatter([own], [[torch.ones(each + 1) for each in range(RANKS)]]).wait()
        assert own.tolist() == [float(RANKS)] * (group.rank() + 1)

    on_ranks(Group, uneven)


def test_messages() -> None:
    def body(group: Any) -> list[torch.Tensor]:
        rank = group.rank()
        right, left = (rank + 1) % RANKS, (rank - 1) % RANKS
        works = [group.send([numbers(rank, (n, 2), torch.float32)], right, n) for n in (1, 2, 3)]
        got = [torch.empty(n, 2) for n in (3, 1, 2)]
        for tensor in got:  # in another order than they were sent
            group.recv([tensor], left, len(tensor)).wait()
        for work in works:
            work.wait()
        return got

    compare(body)


def test_tensors_of_messages_need_not_be_contiguous() -> None:  # gloo refuses them
    def body(group: Any) -> None:
        got = torch.empty(2, 3).t()
        sent = group.send([torch.arange(6.0).reshape(2, 3).t()], 1 - group.rank(), 7)
        group.recv([got], 1 - group.rank(), 7).wait()
        sent.wait()
        assert torch.equal(got, torch.arange(6.0).reshape(2, 3).t())

    on_ranks(Group, body, ranks=2)


def test_messages_from_any_rank_name_their_source() -> None:
    def body(group: Any) -> None:
        if group.rank() > 0:
            return group.send([torch.tensor([group.rank()])], 0, 4).wait()
        sources = []
        for _ in range(RANKS - 1):
            tensor = torch.zeros(1, dtype=torch.int64)
            work = group.recv_anysource([tensor], 4)
            work.wait()
            assert work._source_rank() == tensor.item()
            sources.append(tensor.item())
        assert sorted(sources) == [1, 2]
        return None

    on_ranks(Group, body)


def test_a_message_of_another_size_is_an_error() -> None:
    def body(group: Any) -> None:
        if group.rank() == 1:
            return group.send([torch.zeros(3)], 0, 2).wait()
        with pytest.raises(
            distributed.DistBackendError, match="rank 1 on host .* sent 12 bytes with tag 2, and 8 were"
        ):
            group.recv([torch.zeros(2)], 1, 2).wait()
        return None

    on_ranks(Group, body, ranks=2)


def test_a_message_that_does_not_come_is_named() -> None:
    def body(group: Any) -> None:
        if group.rank() == 0:
            with pytest.raises(
                distributed.DistBackendError, match="message with tag 9 from rank 1 was not complete within 1 s"
            ):
                group.recv([torch.zeros(2)], 1, 9).wait()
        group.barrier().wait()

    on_ranks(Group, body, ranks=2, limit=datetime.timedelta(seconds=1))


def test_callbacks_may_wait_for_calls_that_they_make() -> None:
    """As PowerSGD's hook does."""

    def body(group: Any) -> None:
        def again(future: torch.futures.Future[Any]) -> torch.Tensor:
            tensor = future.value()[0]
            return group.allreduce([tensor]).get_future().wait()[0]

        for _ in range(4):
            assert group.allreduce([torch.ones(2)]).get_future().then(again).wait().tolist() == [float(RANKS**2)] * 2
        group.shutdown()

    on_ranks(Group, body)


def test_work_says_what_it_is() -> None:
    def body(group: Any) -> None:
        work = group.allreduce([torch.ones(2)])
        end = time.monotonic() + 60
        while not work.is_completed() and time.monotonic() < end:
            time.sleep(0.01)
        assert work.is_completed() and work.is_success() and work.exception() is None
        assert work.wait() is True
        assert work.result()[0].tolist() == [RANKS] * 2
        assert work.get_future().value()[0] is not None
        with pytest.raises(ValueError, match="float8_e5m2"):
            group.allreduce([torch.zeros(2).to(torch.float8_e5m2)]).wait()

    on_ranks(Group, body)


def test_calls_run_in_the_order_in_which_they_were_made() -> None:
    def body(group: Any) -> None:
        tensor = torch.ones(3)
        works = [group.allreduce([tensor]) for _ in range(3)]
        works.append(group.broadcast([tensor], options(BroadcastOptions, rootRank=1)))
        factor = distributed._make_nccl_premul_sum(0.5)
        works.append(group.allreduce([tensor], options(AllreduceOptions, reduceOp=factor)))
        for work in reversed(works):
            work.wait()
        assert tensor.tolist() == [0.5 * RANKS**4] * 3

    on_ranks(Group, body)


def test_tensors_that_are_not_contiguous_get_their_results() -> None:
    """gloo writes them as if they were contiguous: the values are those of the definition."""

    def body(group: Any) -> None:
        rank = group.rank()
        sent, got, turned, halves = (torch.full((2, RANKS), float(rank)).t() for _ in range(4))
        group.broadcast([sent], options(BroadcastOptions, rootRank=1)).wait()
        assert torch.equal(sent, torch.ones(RANKS, 2))
        parts = [numbers(each, (RANKS, 2), torch.float32) for each in range(RANKS)]
        group.scatter([got], [parts] if rank == 2 else [], options(ScatterOptions, rootRank=2)).wait()
        assert torch.equal(got, parts[rank])
        group.alltoall_base(turned, parts[rank], [], [], options(AllToAllOptions)).wait()
        assert torch.equal(turned, torch.stack([part[rank] for part in parts]))
        factor = distributed._make_nccl_premul_sum(0.5)
        group.allreduce([halves], options(AllreduceOptions, reduceOp=factor)).wait()
        assert torch.equal(halves, torch.full((RANKS, 2), 0.5 * sum(range(RANKS))))

    on_ranks(Group, body)


def test_calls_that_differ_name_both_sides() -> None:
    def body(group: Any) -> None:
        with pytest.raises(distributed.DistBackendError, match=r"all_reduce of 2 x float32.*all_reduce of 3 x float32"):
            group.allreduce([torch.ones(2 + group.rank())]).wait()

    on_ranks(Group, body, ranks=2)


def test_wrong_arguments_are_errors_and_harm_nothing() -> None:
    def body(group: Any) -> None:
        one, rows = torch.ones(1), torch.ones(4, 2)
        lists = [[torch.ones(1) for _ in range(3)]]
        pair = [torch.ones(1), torch.ones(2)][:: 1 if group.rank() == 1 else -1]  # rank 0: 2, 1; rank 1: 1, 2
        at_root = (
            "the call has 3 tensors for 2 ranks"
            if group.rank() == 1
            else "rank 0 has a list of tensors, but only root 1"
        )
        for call, words in (
            (lambda: group.broadcast(one, root=2), "broadcast: root 2 is not a rank of the group, which are 0 to 1"),
            (lambda: group.reduce([one], options(ReduceOptions, rootRank=-1)), "reduce: root -1 is not a rank"),
            (lambda: group.gather(lists, [one], 1), f"gather: {at_root}"),
            (lambda: group.scatter([one], lists, 1), f"scatter: {at_root}"),
            (
                lambda: group.allgather([pair], [one]),
                f"all_gather: .* rank {group.rank()} has 2 x torch.float32, expected 1",
            ),
            (lambda: group.allgather([[one] * 2], [one.double()]), "all_gather: .*float32, expected 1 x torch.float64"),
            (lambda: group.allgather([[one] * 3], [one]), "all_gather: the call has 3 tensors for 2 ranks"),
            (lambda: group.allgather_coalesced([pair], [one]), "all_gather: the call has 1 tensors for 2 ranks"),
            (lambda: group.reduce_scatter([one], [pair]), "reduce_scatter: .* has 2 x torch.float32, expected 1"),
            (
                lambda: group.scatter([one], [pair], options(ScatterOptions, rootRank=group.rank())),
                "scatter: .* expected 1",
            ),
            (lambda: group.alltoall([one, one], pair), "all_to_all: .*, expected"),
            (lambda: group.alltoall([one, one], []), "all_to_all: the call has 0 tensors for 2 ranks"),
            (lambda: group.all_to_all_single(rows, rows, [1, 2], [2, 2]), r"output are \[1, 2\], .* with the sum 4"),
            (lambda: group.all_to_all_single(rows, rows, [2, 2], [4]), r"input are \[4\], expected 2 numbers"),
            (lambda: group.all_to_all_single(rows, rows[:3], [], []), "rows of the input are not divisible by 2"),
            (lambda: group.allreduce([one, one]), "the call has 2 tensors, expected one"),
            (lambda: group.allreduce([one.to("meta")]), "a tensor is on meta, expected the CPU's memory"),
        ):
            with pytest.raises(ValueError, match=words):
                call().wait()
        group.allreduce([one]).wait()
        assert one.item() == 2

    on_ranks(Group, body, ranks=2)


def test_a_rank_that_does_not_come_is_named() -> None:
    with pytest.raises(ls.Error, match=r"group 0: of 2 ranks, rank 1 did not come within 1 s"):
        Group(distributed.HashStore(), 0, 2, datetime.timedelta(seconds=1))


TIMEOUTS: dict[str, Callable[[Any, datetime.timedelta], Any]] = {
    "options": lambda group, limit: group.allreduce([torch.ones(2)], options(AllreduceOptions, timeout=limit)),
    "an argument": lambda group, limit: group.allreduce(torch.ones(2), timeout=limit),
    "a barrier's": lambda group, limit: group.barrier(options(BarrierOptions, timeout=limit)),
    "the group's": lambda group, limit: (group.set_timeout(limit), group.broadcast(torch.ones(2), root=1))[1],
}


@pytest.mark.parametrize("how", TIMEOUTS)
def test_a_call_has_its_own_timeout(how: str) -> None:
    failed = threading.Event()

    def body(group: Any) -> None:
        group.barrier().wait()
        if group.rank() == 1:
            assert failed.wait(60)
            return
        began = time.monotonic()
        with pytest.raises(distributed.DistBackendError, match="waited 1s in .*for rank 1 .*, timeout 1 s"):
            TIMEOUTS[how](group, datetime.timedelta(seconds=1)).wait()
        assert time.monotonic() - began < 20
        failed.set()

    on_ranks(Group, body, ranks=2)


def test_a_call_may_have_a_longer_timeout_than_its_group() -> None:
    """As with gloo. The call after it has the group's timeout again."""
    failed = threading.Event()

    def body(group: Any) -> None:
        if group.rank() == 1:
            time.sleep(4)  # one second is the timeout, and one more passes in the search for who is late
        longer = options(AllreduceOptions, timeout=LIMIT)
        tensor = torch.ones(2)
        group.allreduce([tensor], longer).wait()
        assert tensor.tolist() == [2.0] * 2
        if group.rank() == 1:
            assert failed.wait(60)
            return
        with pytest.raises(distributed.DistBackendError, match="waited 1s in .*for rank 1 .*, timeout 1 s"):
            group.allreduce([tensor]).wait()
        failed.set()

    on_ranks(Group, body, ranks=2, limit=datetime.timedelta(seconds=1))


def test_a_wait_with_a_limit_harms_nothing() -> None:
    """As of gloo's collectives. gloo's messages are lost after it."""
    waited = threading.Event()

    def body(group: Any) -> list[torch.Tensor]:
        if group.rank() == 1:
            assert waited.wait(60)
            group.send([torch.ones(2)], 0, 3).wait()
        got, tensor = torch.zeros(2), torch.ones(2)
        works = [group.recv([got], 1, 3)] if group.rank() == 0 else []
        works.append(group.allreduce([tensor]))
        for work in works if group.rank() == 0 else []:
            with pytest.raises(RuntimeError, match=r"not complete within 0\.5 s"):
                work.wait(datetime.timedelta(seconds=0.5))
        waited.set()
        for work in works:
            work.wait()
        assert got.tolist() == [1.0 - group.rank()] * 2 and tensor.tolist() == [2.0] * 2

    on_ranks(Group, body, ranks=2)


def test_a_group_is_its_own_backend() -> None:
    """FSDP2's set_allocate_memory_from_process_group_for_comm asks it."""

    def body(group: Any) -> None:
        backend = group._get_backend(torch.device("cpu"))
        assert backend is group and not backend.supports_tensor_alloc(torch.device("cpu"))
        with pytest.raises(RuntimeError, match="group 0 has no backend for cuda:0"):
            group._get_backend(torch.device("cuda:0"))

    on_ranks(Group, body, ranks=1)


def test_a_monitored_barrier_names_who_is_late_and_harms_nothing() -> None:
    def body(group: Any) -> None:
        if group.rank() != 1:
            with pytest.raises(distributed.DistBackendError, match="Rank 1 failed to pass monitoredBarrier in 500 ms"):
                group.monitored_barrier(datetime.timedelta(seconds=0.5))
        group.barrier(options(BarrierOptions)).wait()

    on_ranks(Group, body)


PROGRAM = """
import os, sys, time
import torch
import torch.distributed as dist
from torch.distributed import _functional_collectives as functional

backend, folder, *works = sys.argv[1:]
if backend == "lockstep":
    import lockstep.torch_distributed
dist.init_process_group(backend)
rank = dist.get_rank()
x = torch.randn(3, 8, generator=torch.Generator().manual_seed(rank))


def train(model, steps=4):
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for _ in range(steps):
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()
    return [each.full_tensor() if hasattr(each, "full_tensor") else each for each in model.parameters()]


def ddp():
    return train(torch.nn.parallel.DistributedDataParallel(model))


def power_sgd():
    from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook

    wrapped = torch.nn.parallel.DistributedDataParallel(model)
    state = powerSGD_hook.PowerSGDState(None, matrix_approximation_rank=1, start_powerSGD_iter=2)
    wrapped.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
    return train(wrapped)


def uneven():
    wrapped = torch.nn.parallel.DistributedDataParallel(model)
    with wrapped.join():
        return train(wrapped, steps=3 + rank)


def uneven_means_of_those_present():
    wrapped = torch.nn.parallel.DistributedDataParallel(model)
    with wrapped.join(divide_by_initial_world_size=False):
        return train(wrapped, steps=3 + rank)


def compiled():
    return train(torch.compile(torch.nn.parallel.DistributedDataParallel(model), backend="eager"))


def saved_in_the_background():
    from torch.distributed import checkpoint

    name, state = f"{folder}/checkpoint.{backend}", {"weight": model[0].weight.detach().clone()}
    checkpoint.async_save(state, checkpoint_id=name, process_group=dist.new_group()).result()
    state["weight"].zero_()
    checkpoint.load(state, checkpoint_id=name)
    assert torch.equal(state["weight"], model[0].weight)
    return list(state.values())


def fsdp():
    from torch.distributed.fsdp import fully_shard

    for layer in model:
        fully_shard(layer, mesh=dist.device_mesh.init_device_mesh("cpu", (2,)))
    return train(fully_shard(model, mesh=dist.device_mesh.init_device_mesh("cpu", (2,))))


def groups():
    pair = dist.new_group([0, 1])
    alone = dist.new_group([1])
    tensor = torch.full((2,), float(rank + 1))
    dist.all_reduce(tensor, group=pair)
    if rank == 1:
        dist.all_reduce(tensor, group=alone)
    swapped = torch.empty(2)
    for each in dist.batch_isend_irecv([
        dist.P2POp(dist.isend, tensor + rank, 1 - rank), dist.P2POp(dist.irecv, swapped, 1 - rank)
    ]):
        each.wait()
    reduced = functional.all_reduce(tensor, "sum", pair) + 0  # waits
    dist.destroy_process_group(pair)
    objects = [None, None]
    dist.all_gather_object(objects, {"rank": rank})
    assert objects == [{"rank": 0}, {"rank": 1}]
    return [tensor, swapped, reduced]


def killed():
    wrapped = torch.nn.parallel.DistributedDataParallel(model)
    train(wrapped, 1)
    open(f"{folder}/{rank}", "w").close()
    train(wrapped, 10**6)


results = {}
for work in works:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 4))
    results[work] = [each.detach() for each in globals()[work]()]
torch.save(results, f"{folder}/{backend}.{rank}")
dist.destroy_process_group()
"""


def start(backend: str, folder: Path, *works: str) -> list[subprocess.Popen[str]]:
    """Starts two ranks, as torchrun does."""
    store = distributed.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    port = store.port
    del store
    return [
        subprocess.Popen(
            [sys.executable, "-c", PROGRAM, backend, folder, *works],
            env={
                **os.environ, "RANK": str(rank), "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port),
                "OMP_NUM_THREADS": "1",
            },
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]  # fmt: skip


def test_programs_give_the_bits_of_gloo(tmp_path: Path) -> None:
    works = (
        "ddp",
        "power_sgd",
        "uneven",
        "uneven_means_of_those_present",
        "compiled",
        "fsdp",
        "groups",
        "saved_in_the_background",
    )
    results = {}
    for backend in ("lockstep", "gloo"):
        for process in start(backend, tmp_path, *works):
            _, errors = process.communicate(timeout=200)
            assert process.returncode == 0, errors
        results[backend] = [torch.load(tmp_path / f"{backend}.{rank}") for rank in range(2)]
    for ours, theirs in zip(results["lockstep"], results["gloo"], strict=True):
        for work in works:
            pairs = zip(ours[work], theirs[work], strict=True)
            assert ours[work] and all(torch.equal(mine, other) for mine, other in pairs), work


def test_a_killed_rank_is_named_within_seconds(tmp_path: Path) -> None:
    first, second = start("lockstep", tmp_path, "killed")
    end = time.monotonic() + 100
    while not ((tmp_path / "0").exists() and (tmp_path / "1").exists()):
        assert time.monotonic() < end
        time.sleep(0.05)
    second.send_signal(signal.SIGKILL)
    began = time.monotonic()
    _, errors = first.communicate(timeout=60)
    second.communicate(timeout=60)
    assert first.returncode != 0
    assert re.search(r"DistBackendError: rank 1 on host \S+ \(process \d+\) died", errors), errors
    assert time.monotonic() - began < 15, errors  # 5 s, and the ends of two processes on a busy machine
