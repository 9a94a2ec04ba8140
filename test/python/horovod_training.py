"""Cases of mpi_horovod.py: training, compared with one process that has the whole batch, and with
DistributedDataParallel.
"""

from __future__ import annotations

import copy
import os
import shutil
import socket
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

import lockstep.horovod.torch as hvd
from horovod_support import (
    RANK,
    RANKS,
    SIZE,
    X,
    Y,
    case,
    check_like_whole_batch,
    errs,
    mine,
    network,
    same,
    same_on_all,
    sgd,
    train,
)


@case
def training_is_that_of_the_whole_batch() -> None:
    for tolerance, options in (
        (1e-5, {}),
        (1e-5, {"gradient_predivide_factor": 2.0}),
        (1e-5, {"backward_passes_per_step": 3}),
        (1e-5, {"groups": 2}),
        (1e-5, {"num_groups": 100}),
        (5e-3, {"compression": hvd.Compression.fp16}),
        (3e-2, {"compression": hvd.Compression.bf16}),
    ):
        module = network(seed=RANK)
        hvd.broadcast_parameters(module.state_dict(), 0)
        optimizer = hvd.DistributedOptimizer(sgd(module), module.named_parameters(), **options)
        assert isinstance(optimizer, torch.optim.SGD)
        train(module, optimizer, mine, options.get("backward_passes_per_step", 1))
        check_like_whole_batch(module, tolerance)
    module = network()
    groups = [[module[0].weight, module[3].bias], [module[2].weight]]
    optimizer = hvd.DistributedOptimizer(sgd(module), op=hvd.Sum, groups=groups)  # without named parameters
    for group in optimizer.param_groups:
        group["lr"] /= SIZE
    train(module, optimizer, mine)
    check_like_whole_batch(module, 1e-4)
    os.environ["HOROVOD_FUSION_THRESHOLD"] = "100"
    module = network()
    train(module, hvd.DistributedOptimizer(sgd(module), module.named_parameters()), mine)
    check_like_whole_batch(module)
    del os.environ["HOROVOD_FUSION_THRESHOLD"]


@case
def training_is_that_of_ddp() -> None:
    if SIZE == 1 or hvd.local_size() < SIZE:
        return
    port = hvd.broadcast_object(free_port())
    torch.distributed.init_process_group("gloo", f"tcp://127.0.0.1:{port}", rank=RANK, world_size=SIZE)
    theirs = torch.nn.parallel.DistributedDataParallel(network())
    train(theirs, sgd(theirs), mine)
    ours = network()
    train(ours, hvd.DistributedOptimizer(sgd(ours), ours.named_parameters()), mine)
    for found, expected in zip(ours.parameters(), theirs.module.parameters(), strict=True):
        same(found, expected, 1e-6)
    torch.distributed.destroy_process_group()


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return server.getsockname()[1]


@case
def gradients_lie_in_buckets() -> None:
    module = network()
    optimizer = hvd.DistributedOptimizer(sgd(module), module.named_parameters())
    places = set()
    for set_to_none in (True, False, True):
        optimizer.zero_grad(set_to_none=set_to_none)
        module(mine(X[0])).sum().backward()
        optimizer.synchronize()
        places.add(tuple(parameter.grad.data_ptr() for parameter in module.parameters()))
        expected = network()
        expected(X[0]).sum().div(SIZE).backward()
        for found, other in zip(module.parameters(), expected.parameters(), strict=True):
            same(found.grad, other.grad, 1e-5)
        with optimizer.skip_synchronize():
            optimizer.step()
        module.load_state_dict(network().state_dict())
    assert SIZE == 1 or len(places) == 1


@case
def clipping_between_synchronize_and_step() -> None:
    module, alone = network(), network()
    optimizer, other = hvd.DistributedOptimizer(sgd(module), module.named_parameters()), sgd(alone)
    for x, y in zip(X, Y, strict=True):
        for net, each, share in ((module, optimizer, mine), (alone, other, lambda whole: whole)):
            each.zero_grad()
            (100 * torch.nn.functional.mse_loss(net(share(x)), share(y))).backward()
            if net is module:
                optimizer.synchronize()
            torch.nn.utils.clip_grad_norm_(net.parameters(), 0.5)
            if net is alone:
                other.step()
            else:
                with optimizer.skip_synchronize():
                    optimizer.step()
    for found, expected in zip(module.parameters(), alone.parameters(), strict=True):
        same(found, expected, 1e-5)


@case
def closures_schedules_and_states() -> None:
    module = network()
    optimizer = hvd.DistributedOptimizer(sgd(module), module.named_parameters())
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1, 1.0)
    calls = []
    optimizer.register_step_post_hook(lambda *_: calls.append(1))
    for i, (x, y) in enumerate(zip(X, Y, strict=True)):

        def closure(x: torch.Tensor = x, y: torch.Tensor = y) -> torch.Tensor:
            optimizer.zero_grad()
            loss = torch.nn.functional.mse_loss(module(mine(x)), mine(y))
            loss.backward()
            return loss

        assert optimizer.step(closure) > 0
        schedule.step()
        if i == 2:  # as when loading a checkpoint
            optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    assert len(calls) == 5
    check_like_whole_batch(module)
    module(mine(X[0])).sum().backward()
    optimizer.load_state_dict(optimizer.state_dict())
    optimizer.zero_grad()  # this must not lose a gradient: the states were loaded after the backward pass


class Grows(torch.nn.Module):
    """Three layers. The second is frozen at first, and the third is added to the optimizer later."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(2)
        self.one, self.two, self.three = torch.nn.Linear(6, 5), torch.nn.Linear(5, 4), torch.nn.Linear(4, 3)
        self.two.requires_grad_(False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.three(torch.tanh(self.two(torch.tanh(self.one(x)))))


@case
def parameters_that_come_later_are_reduced() -> None:
    def trained(wrap: bool, share: Callable[[torch.Tensor], torch.Tensor]) -> torch.nn.Module:
        module = Grows()
        optimizer = torch.optim.SGD([*module.one.parameters(), *module.two.parameters()], 0.1, momentum=0.9)
        optimizer = hvd.DistributedOptimizer(optimizer) if wrap else optimizer
        train(module, optimizer, share)
        module.two.requires_grad_(True)
        train(module, optimizer, share)
        optimizer.add_param_group({"params": module.three.parameters(), "lr": 0.05})
        train(module, optimizer, share)
        return module

    ours, alone = trained(True, mine), trained(False, lambda whole: whole)
    for (name, found), expected in zip(ours.named_parameters(), alone.parameters(), strict=True):
        assert found.grad is not None, name
        same(found, expected, 1e-4)
    same_on_all(ours.parameters())


@case
def parameters_that_come_later_have_their_names() -> None:
    module = network()
    module[2].requires_grad_(False)
    module[3].requires_grad_(False)
    optimizer = hvd.DistributedOptimizer(sgd(module), module.named_parameters())
    train(module, optimizer, mine)
    if SIZE == 1:
        return
    module[2 if RANK == 0 else 3].requires_grad_(True)
    errs("rank 0 has parameter 2.weight torch.float32 [8, 16], rank 1 has parameter 3.weight", optimizer.synchronize)
    module[2].requires_grad_(True)
    module[3].requires_grad_(False)
    train(module, optimizer, mine)
    same_on_all(module.parameters())
    module(mine(X[0])).sum().backward()
    errs("the gradient of '2.", lambda: module(mine(X[0])).sum().backward())
    optimizer.synchronize()


@case
def a_scheduler_made_before_goes_on() -> None:
    def trained(wrap: bool, share: Callable[[torch.Tensor], torch.Tensor]) -> torch.nn.Module:
        module = network()
        optimizer = sgd(module)
        schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.3)
        if wrap:
            assert hvd.DistributedOptimizer(optimizer, module.named_parameters()) is optimizer
            hvd.broadcast_optimizer_state(optimizer, 0)
        for _ in range(3):
            train(module, optimizer, share)
            with warnings.catch_warnings():
                warnings.simplefilter("error")
                schedule.step()
        return module

    ours, alone = trained(True, mine), trained(False, lambda whole: whole)
    for found, expected in zip(ours.parameters(), alone.parameters(), strict=True):
        same(found, expected, 1e-5)
    same_on_all(ours.parameters())
    errs("is already distributed", lambda: hvd.DistributedOptimizer(hvd.DistributedOptimizer(sgd(network()))))


@case
def replicas_that_differ_are_told() -> None:
    module = network(seed=RANK)  # and without broadcast_parameters
    optimizer = hvd.DistributedOptimizer(sgd(module), module.named_parameters())
    if SIZE > 1:
        errs("0.weight of rank 1 differs from that of rank 0 in step 1", lambda: train(module, optimizer, mine))
    else:
        train(module, optimizer, mine)
    module = network()
    optimizer = hvd.DistributedOptimizer(sgd(module), module.named_parameters())

    def steps(count: int) -> None:
        for _ in range(count):
            optimizer.zero_grad()
            module(mine(X[0])).square().mean().backward()
            optimizer.step()

    steps(2)
    if SIZE > 1:
        with torch.no_grad():
            module[2].bias[RANK] += 1  # another element on each rank
        steps(510)
        errs("2.bias of rank 1 differs from that of rank 0 in step 513", lambda: steps(1))


class Branches(torch.nn.Module):
    """Two layers whose use and order differ between ranks."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.one, self.two, self.both = torch.nn.Linear(6, 3), torch.nn.Linear(6, 3), torch.nn.Linear(3, 3)

    def forward(self, x: torch.Tensor, rank: int) -> torch.Tensor:
        if rank == 0:
            return self.both(self.one(x))
        return self.both(self.two(x) + self.one(self.both(self.two(x)) @ torch.ones(3, 6)))


@case
def parameters_that_some_ranks_do_not_use() -> None:
    os.environ["HOROVOD_FUSION_THRESHOLD"] = "0"
    module, alone = Branches(), Branches()
    optimizer = hvd.DistributedOptimizer(sgd(module), module.named_parameters())
    other = sgd(alone)
    for x in X:
        optimizer.zero_grad()
        module(mine(x), RANK).square().sum().mul(1e-3).backward()
        optimizer.step()
        other.zero_grad()
        for rank in RANKS:
            alone(x[12 * rank : 12 * rank + 12], rank).square().sum().mul(1e-3 / SIZE).backward()
        if alone.two.weight.grad is None:
            alone.two.weight.grad, alone.two.bias.grad = torch.zeros(3, 6), torch.zeros(3)
        other.step()
    for found, expected in zip(module.parameters(), alone.parameters(), strict=True):
        same(found, expected, 1e-5)
    same_on_all(module.parameters())
    del os.environ["HOROVOD_FUSION_THRESHOLD"]


@case
def sparse_gradients() -> None:
    def embedding() -> torch.nn.Embedding:
        torch.manual_seed(0)
        return torch.nn.Embedding(10, 4, sparse=True)

    if SIZE > 1:
        module = embedding()
        optimizer = hvd.DistributedOptimizer(torch.optim.SGD(module.parameters(), 0.1), module.named_parameters())
        errs("the gradient of 'weight' is sparse", lambda: module(torch.tensor([RANK])).sum().backward())
    module = embedding()
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(module.parameters(), 0.1), sparse_as_dense=True)
    module(torch.tensor([RANK, 9])).sum().backward()
    optimizer.step()
    expected = embedding().weight.detach().clone()
    expected[:SIZE] -= 0.1 / SIZE
    expected[9] -= 0.1
    same(module.weight.detach(), expected, 1e-6)


@case
def ranks_that_have_no_more_data() -> None:
    module = network()
    optimizer = hvd.DistributedOptimizer(sgd(module), module.named_parameters(), op=hvd.Sum)
    alone = network()
    other = sgd(alone)
    for step in range(SIZE):  # rank r has r + 1 batches
        there = [rank for rank in RANKS if step <= rank]
        other.zero_grad()
        for rank in there:
            alone(X[step, 12 * rank : 12 * rank + 12]).square().mean().backward()
        other.step()
        if step <= RANK:
            optimizer.zero_grad()
            module(mine(X[step])).square().mean().backward()
            optimizer.step()
            counted = hvd.allreduce(torch.ones(1), op=hvd.Sum)
            assert counted.item() == len(there)
            assert hvd.allreduce(torch.ones(1)).item() == torch.tensor(len(there) / SIZE).item()
            same(hvd.allgather(torch.tensor([[RANK]])), torch.tensor([[rank] for rank in there]))
            same(hvd.broadcast(torch.tensor(RANK), SIZE - 1), torch.tensor(SIZE - 1))
            hvd.alltoall(torch.arange(SIZE))
            total = hvd.reducescatter(torch.ones(SIZE + 1), op=hvd.Sum)
            assert total.shape == (1 + (RANK == 0),) and bool((total == len(there)).all())
            hvd.barrier()
    assert hvd.join() == SIZE - 1
    for found, expected in zip(module.parameters(), alone.parameters(), strict=True):
        if RANK == SIZE - 1:
            same(found, expected, 1e-5)
    hvd.broadcast_parameters(module.state_dict(), SIZE - 1)
    same_on_all(module.parameters())  # and further calls work
    optimizer.zero_grad()
    module(mine(X[0])).sum().backward()
    if SIZE > 1:
        errs("there was a backward pass", hvd.join)
    optimizer.step()


@case
def batch_normalisation_of_the_global_batch() -> None:
    def layers(kind: type) -> torch.nn.Sequential:
        torch.manual_seed(0)
        return torch.nn.Sequential(
            torch.nn.Conv2d(2, 4, 3), kind(4), torch.nn.ReLU(), torch.nn.Conv2d(4, 3, 2), kind(3)
        )

    rows = [rank + 2 for rank in RANKS]
    torch.manual_seed(3)
    whole = torch.randn(sum(rows), 2, 6, 6) * 3 + 1
    ours, plain = layers(hvd.SyncBatchNorm), layers(torch.nn.BatchNorm2d)
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(ours.parameters(), 0.1), ours.named_parameters(), op=hvd.Sum)
    other = torch.optim.SGD(plain.parameters(), 0.1)
    for _ in range(3):
        optimizer.zero_grad()
        found = ours(whole.split(rows)[RANK])
        found.square().add(found.relu()).sum().mul(1e-3).backward()
        optimizer.step()
        other.zero_grad()
        expected = plain(whole)
        expected.square().add(expected.relu()).sum().mul(1e-3).backward()
        other.step()
        same(found, expected.split(rows)[RANK], 1e-4)
    for mine_, theirs in zip(ours.state_dict().values(), plain.state_dict().values(), strict=True):
        same(mine_, theirs, 1e-4)
    ours.eval(), plain.eval()
    same(ours(whole), plain(whole), 1e-4)


@case
def elastic_states() -> None:
    module = network(seed=RANK)
    optimizer = hvd.DistributedOptimizer(sgd(module), module.named_parameters())
    sampler = hvd.elastic.ElasticSampler(range(10), shuffle=True)
    state = hvd.elastic.TorchState(model=module, optimizer=optimizer, sampler=sampler, epoch=RANK)
    seen = []

    @hvd.elastic.run
    def body(state: Any, extra: int) -> int:
        same_on_all(module.parameters())
        assert state.epoch == 0
        train(module, optimizer, mine)
        state.epoch = 5
        sampler.record_batch(0, 2)
        state.commit()
        before = copy.deepcopy(module.state_dict())
        train(module, optimizer, mine)
        state.epoch = 7
        state.restore()
        for name, tensor in module.state_dict().items():
            same(tensor, before[name])
        assert state.epoch == 5 and sampler.processed_num == 2 * SIZE
        seen.extend(sampler)
        return extra

    assert body(state, 3) == 3
    check_like_whole_batch(module)
    shares = hvd.allgather_object(seen)
    assert len({len(share) for share in shares}) == 1 == len({len(seen), len(sampler)})
    assert len({index for share in shares for index in share}) == 10 - 2 * SIZE
    errs("expected one of hvd.elastic", lambda: body(None, 3))


@case
def a_job_of_another_size_goes_on_from_its_file() -> None:
    folder = hvd.broadcast_object(tempfile.mkdtemp() if RANK == 0 else None, 0)
    path = Path(folder) / "state.pt"

    def attempt(number: int) -> tuple[int, list[int]]:
        """Returns the epoch at which an attempt begins, and the epochs at which the callback was called."""
        os.environ["LOCKSTEP_ATTEMPT"] = str(number)
        state, resets = hvd.elastic.ObjectState(epoch=0), []
        state.register_reset_callbacks([lambda: resets.append(state.epoch)])

        @hvd.elastic.run
        def body(state: Any) -> int:
            begin = state.epoch
            state.epoch += 3
            state.commit()
            return begin

        return body(state), resets

    os.environ["LOCKSTEP_ELASTIC_STATE"] = str(path)
    try:
        assert attempt(0) == (0, [])
        assert attempt(1) == (3, [])
        if RANK == 0:
            torch.save(torch.load(path, weights_only=False) | {"size": SIZE + 1}, path)
        assert attempt(2) == (6, [6])
        assert attempt(0) == (0, []), "the file is from an earlier job"
    finally:
        del os.environ["LOCKSTEP_ELASTIC_STATE"], os.environ["LOCKSTEP_ATTEMPT"]
    hvd.barrier()
    if RANK == 0:
        shutil.rmtree(folder)
