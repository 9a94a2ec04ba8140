"""Cases of mpi_horovod.py: calls on tensors and objects, compared with NumPy's or torch's functions of all ranks'
tensors.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable

import torch

import lockstep.horovod.torch as hvd
from horovod_support import DTYPES, RANK, RANKS, SIZE, X, case, errs, network, of, same, same_on_all, sgd
from lockstep import Error


@case
def who_this_is() -> None:
    assert hvd.is_initialized()
    hosts = hvd.allgather_object(os.uname().nodename)
    locals_ = [hosts[:rank].count(host) for rank, host in enumerate(hosts)]
    assert (hvd.local_rank(), hvd.local_size()) == (locals_[RANK], hosts.count(hosts[RANK]))
    assert hvd.cross_rank() == locals_[:RANK].count(locals_[RANK]) and hvd.cross_size() == locals_.count(locals_[RANK])
    assert hvd.is_homogeneous() == (len({hosts.count(host) for host in hosts}) == 1)
    assert hvd.mpi_built() and hvd.mpi_enabled() and not hvd.nccl_built() and not hvd.gloo_enabled()
    assert hvd.HorovodInternalError is Error
    hvd.init()  # a second call has no effect
    assert hvd.global_process_set.size() == SIZE and hvd.global_process_set.rank() == RANK


@case
def reductions() -> None:
    for dtype in DTYPES:
        everyones = torch.stack([of(rank, 3, 4, dtype=dtype).double() for rank in RANKS])
        for op, expected in (
            (hvd.Sum, everyones.sum(0)),
            (hvd.Min, everyones.amin(0)),
            (hvd.Max, everyones.amax(0)),
            (hvd.Product, everyones.prod(0) if dtype != torch.uint8 else everyones.prod(0) % 256),
            (hvd.Average, everyones.mean(0) if dtype.is_floating_point else everyones.mean(0).floor()),
        ):
            found = hvd.allreduce(of(RANK, 3, 4, dtype=dtype), op=op, name=f"{dtype} {op}")
            same(found, expected.to(dtype), {torch.float16: 1e-3, torch.bfloat16: 1e-2}.get(dtype, 1e-6))
    sizes = hvd.allgather_object(hvd.local_size())  # numbers of ranks on the ranks' hosts
    for dtype in (torch.float16, torch.bfloat16):  # summed in f32, and rounded once
        if dtype == torch.bfloat16 and 1 < max(sizes) < SIZE:
            continue  # hosts with several ranks send their sums rounded to bf16
        even = 2 / torch.finfo(dtype).eps  # from here on the distance between two numbers is 2
        found = hvd.allreduce(torch.tensor([even if RANK == 0 else 1.0], dtype=dtype), op=hvd.Sum)
        assert torch.equal(found, torch.tensor([even + SIZE - 1]).to(dtype))
    mean = sum(of(rank, 6) for rank in RANKS) / SIZE
    same(hvd.allreduce(of(RANK, 6)), mean, 1e-6)
    same(hvd.allreduce(of(RANK, 6), average=False), mean * SIZE, 1e-6)
    same(hvd.allreduce(of(RANK, 6), prescale_factor=0.5, postscale_factor=4.0), mean * 2, 1e-6)
    same(hvd.allreduce(of(RANK, 6), compression=hvd.Compression.fp16), mean, 1e-2)
    same(hvd.allreduce(of(RANK, 6), compression=hvd.Compression.bf16), mean, 2e-2)
    same(hvd.allreduce(torch.tensor(float(RANK))), torch.tensor(sum(RANKS) / SIZE), 1e-6)
    assert hvd.allreduce(torch.empty(0, 3)).shape == (0, 3)


@case
def reductions_in_place() -> None:
    total = sum(of(rank, 4, 6) for rank in RANKS)
    tensor = of(RANK, 4, 6)
    assert hvd.allreduce_(tensor, op=hvd.Sum) is tensor
    same(tensor, total)
    spread = of(RANK, 6, 4).t()  # not contiguous
    before = spread.clone()
    handle = hvd.allreduce_async_(spread, op=hvd.Sum, prescale_factor=2.0)
    assert hvd.poll(handle) and hvd.synchronize(handle) is spread
    same(spread, 2 * sum(of(rank, 6, 4).t() for rank in RANKS))
    assert before.shape == spread.shape and not spread.is_contiguous()
    group = [of(RANK, 3), of(RANK, 2, 2)]
    expected = [sum(of(rank, 3) for rank in RANKS), sum(of(rank, 2, 2) for rank in RANKS)]
    for found in (
        hvd.grouped_allreduce(group, op=hvd.Sum),
        hvd.synchronize(hvd.grouped_allreduce_async(group, op=hvd.Sum)),
        hvd.grouped_allreduce_([tensor.clone() for tensor in group], op=hvd.Sum),
        hvd.synchronize(hvd.grouped_allreduce_async_([tensor.clone() for tensor in group], op=hvd.Sum)),
    ):
        assert len(found) == 2
        for each, sum_ in zip(found, expected, strict=True):
            same(each, sum_)


@case
def many_in_flight_in_any_order() -> None:
    handles = [hvd.allreduce_async(of(RANK + i, 50), op=hvd.Sum) for i in range(100)]
    gathered = hvd.allgather_async(of(RANK, RANK + 1, 2))
    for i in (99, 0, *range(50, 99), *range(1, 50)):
        same(hvd.synchronize(handles[i]), sum(of(rank + i, 50) for rank in RANKS))
    same(hvd.synchronize(gathered), torch.cat([of(rank, rank + 1, 2) for rank in RANKS]))


@case
def gathers_and_broadcasts() -> None:
    for dtype in (*DTYPES, torch.bool):
        same(hvd.allgather(of(RANK, 2, 3, dtype=dtype)), torch.cat([of(rank, 2, 3, dtype=dtype) for rank in RANKS]))
        uneven = [of(rank, 2 * (rank % 2), 3, dtype=dtype) for rank in RANKS]  # rank 0 has no rows
        same(hvd.allgather(uneven[RANK]), torch.cat(uneven))
        for root in RANKS:
            same(hvd.broadcast(of(RANK, 5, dtype=dtype), root), of(root, 5, dtype=dtype))
    one, two = hvd.grouped_allgather([of(RANK, 1), of(RANK, 1, 2)])
    same(one, torch.cat([of(rank, 1) for rank in RANKS]))
    same(two, torch.cat([of(rank, 1, 2) for rank in RANKS]))
    assert len(hvd.synchronize(hvd.grouped_allgather_async([of(RANK, 1), of(RANK, 1, 2)]))) == 2
    tensor = of(RANK, 4, 3).t()
    assert hvd.broadcast_(tensor, SIZE - 1) is tensor
    same(tensor, of(SIZE - 1, 4, 3).t())
    same(hvd.synchronize(hvd.broadcast_async(of(RANK, 4), 0)), of(0, 4))
    same(hvd.synchronize(hvd.broadcast_async_(of(RANK, 4), 0)), of(0, 4))
    hvd.barrier()


@case
def exchanges() -> None:
    same(
        hvd.alltoall(of(RANK, SIZE * 2, 3)),
        torch.cat([of(rank, SIZE * 2, 3)[2 * RANK : 2 * RANK + 2] for rank in RANKS]),
    )
    counts = [(RANK + to) % 3 for to in RANKS]  # numbers of rows for each rank
    found, received = hvd.alltoall(of(RANK, sum(counts), 2), torch.tensor(counts))
    assert received.tolist() == [(rank + RANK) % 3 for rank in RANKS]
    expected = []
    for rank in RANKS:
        rows = [(rank + to) % 3 for to in RANKS]
        expected.append(of(rank, sum(rows), 2)[sum(rows[:RANK]) : sum(rows[: RANK + 1])])
    same(found, torch.cat(expected))
    same(hvd.synchronize(hvd.alltoall_async(of(RANK, SIZE)))[0], torch.stack([of(rank, SIZE)[RANK] for rank in RANKS]))
    for rows in (SIZE * 2, SIZE * 2 + 1):  # the second does not divide
        total = sum(of(rank, rows, 3) for rank in RANKS)
        own = total.tensor_split(SIZE)[RANK]
        same(hvd.reducescatter(of(RANK, rows, 3), op=hvd.Sum), own)
        same(hvd.reducescatter(of(RANK, rows, 3)), own / SIZE, 1e-6)
        same(hvd.synchronize(hvd.reducescatter_async(of(RANK, rows, 3), op=hvd.Sum, postscale_factor=2.0)), 2 * own)
        same(hvd.grouped_reducescatter([of(RANK, rows, 3)], op=hvd.Sum)[0], own)
        same(hvd.synchronize(hvd.grouped_reducescatter_async([of(RANK, rows, 3)], op=hvd.Sum))[0], own)


@case
def gradients_pass_through() -> None:
    def gradient(function: Callable[[torch.Tensor], torch.Tensor], rows: int) -> torch.Tensor:
        x = of(RANK, rows, 2).requires_grad_()
        y = function(x)
        y.backward(of(RANK, *y.shape))
        return x.grad

    mean = sum(of(rank, 3, 2) for rank in RANKS) / SIZE
    same(gradient(hvd.allreduce, 3), mean, 1e-6)
    same(gradient(lambda x: hvd.allreduce(x, op=hvd.Sum), 3), mean * SIZE, 1e-6)
    rows = [rank + 1 for rank in RANKS]
    whole = sum(of(rank, sum(rows), 2) for rank in RANKS) / SIZE
    same(gradient(hvd.allgather, RANK + 1), whole.split(rows)[RANK], 1e-6)
    same(gradient(lambda x: hvd.broadcast(x, 0), 3), mean if RANK == 0 else torch.zeros(3, 2), 1e-6)
    same(
        gradient(hvd.alltoall, SIZE * 2),
        torch.cat([of(rank, SIZE * 2, 2)[2 * RANK : 2 * RANK + 2] for rank in RANKS]),
    )
    # Each pair of ranks exchanges another number of rows.
    shares = {rank: [rank + other + 1 for other in RANKS] for rank in RANKS}
    back = [of(rank, sum(shares[rank]), 2).split(shares[rank])[RANK] for rank in RANKS]
    same(gradient(lambda x: hvd.alltoall(x, shares[RANK])[0], sum(shares[RANK])), torch.cat(back))
    gathered = torch.cat([of(rank, 2, 2) for rank in RANKS])
    same(gradient(hvd.reducescatter, SIZE * 2), gathered)
    same(gradient(lambda x: hvd.reducescatter(x, op=hvd.Sum), SIZE * 2), gathered * SIZE)


@case
def objects_and_states() -> None:
    assert hvd.broadcast_object({"from": RANK, "text": "x" * RANK}, SIZE - 1)["from"] == SIZE - 1
    assert hvd.allgather_object(("rank", RANK, "y" * RANK)) == [("rank", rank, "y" * rank) for rank in RANKS]
    module = network(seed=RANK)
    hvd.broadcast_parameters(module.state_dict(), root_rank=0)
    hvd.broadcast_parameters(network(seed=RANK).named_parameters(), root_rank=0)
    for mine, expected in zip(module.parameters(), network(seed=0).parameters(), strict=True):
        same(mine, expected)
    optimizer = torch.optim.AdamW(module.parameters(), lr=0.1 * (RANK + 1))
    if RANK == SIZE - 1:
        module(torch.ones(2, 6)).sum().backward()
        optimizer.step()
    hvd.broadcast_optimizer_state(optimizer, root_rank=SIZE - 1)
    assert optimizer.param_groups[0]["lr"] == 0.1 * SIZE
    state = optimizer.state[next(module.parameters())]
    assert state["step"].item() == 1 and state["exp_avg"].abs().sum() > 0
    same_on_all(each for values in optimizer.state.values() for each in values.values())


@case
def what_is_wrong() -> None:
    tensor = torch.ones(4)
    errs("no process sets", lambda: hvd.allreduce(tensor, process_set=3))
    errs("no process sets", lambda: hvd.add_process_set([0]))
    errs("no process sets", lambda: hvd.remove_process_set(None))
    errs("no process sets", lambda: hvd.ProcessSet([0]))
    errs("no process sets", lambda: hvd.init(process_sets=[1]))
    errs("no Adasum", lambda: hvd.allreduce(tensor, op=hvd.Adasum))
    errs("op and average are both given", lambda: hvd.allreduce(tensor, average=True, op=hvd.Sum))
    errs("op is 1", lambda: hvd.allreduce(tensor, op=1))
    errs("got a list", lambda: hvd.allreduce([1.0]))
    errs("is on meta", lambda: hvd.allreduce(torch.ones(2, device="meta")))
    errs("dtype torch.complex64", lambda: hvd.allreduce(torch.ones(2, dtype=torch.complex64)))
    errs("is sparse", lambda: hvd.allreduce(tensor.to_sparse()))
    errs("has no dimension", lambda: hvd.allgather(torch.tensor(1.0)))
    errs(f"root_rank is {SIZE}", lambda: hvd.broadcast(tensor, SIZE))
    errs("expected a list of at least one", lambda: hvd.grouped_allreduce([]))
    errs("numbers of rows", lambda: hvd.alltoall(tensor, [5] * SIZE))
    errs("sparse_allreduce", lambda: hvd.sparse_allreduce_async(tensor, "x", hvd.Sum))
    errs("expected a dict or named parameters", lambda: hvd.broadcast_parameters(3, 0))
    errs("what a call such as allreduce_async returns", lambda: hvd.synchronize(7))
    errs("name is 3", lambda: hvd.allreduce(tensor, name=3))
    module = network()
    pairs = [*module.named_parameters()]
    optimizer = sgd(module)
    errs("one of torch.optim", lambda: hvd.DistributedOptimizer(module))
    errs("0.weight twice", lambda: hvd.DistributedOptimizer(optimizer, [*pairs, pairs[0]]))
    errs("1 of the optimizer's parameters", lambda: hvd.DistributedOptimizer(optimizer, pairs[1:]))
    errs("expected pairs", lambda: hvd.DistributedOptimizer(optimizer, module.parameters()))
    errs("expected hvd.Average or hvd.Sum", lambda: hvd.DistributedOptimizer(optimizer, pairs, op=hvd.Max))
    errs("needs op=hvd.Average", lambda: hvd.DistributedOptimizer(optimizer, op=hvd.Sum, gradient_predivide_factor=2.0))
    errs("backward_passes_per_step is 0", lambda: hvd.DistributedOptimizer(optimizer, backward_passes_per_step=0))
    if SIZE == 1:
        return
    errs("groups has a tensor twice", lambda: hvd.DistributedOptimizer(optimizer, pairs, groups=[[tensor]]))
    errs(
        "rank 0 has parameter", lambda: hvd.DistributedOptimizer(optimizer, [(f"{name}{RANK}", p) for name, p in pairs])
    )
    distributed = hvd.DistributedOptimizer(sgd(module), pairs)
    module(X[0]).sum().backward()
    errs("more than backward_passes_per_step = 1 times", lambda: module(X[0]).sum().backward())
    errs("would lose its gradients", distributed.zero_grad)
    errs("since the last step", lambda: distributed.set_backward_passes_per_step(2))
    distributed.synchronize()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        distributed.step()
    assert "reduces the gradients again" in str(caught[0].message)
    distributed.set_backward_passes_per_step(2)
    distributed.zero_grad()
    module(X[0]).sum().backward()
    module(X[0]).sum().backward()
    distributed.step()
