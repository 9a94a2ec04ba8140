"""Code shared by the cases of mpi_horovod.py: this rank, tensors of which every rank knows those of the others, a
network and its batches.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

import lockstep.horovod.torch as hvd
from lockstep import Error

hvd.init()
RANK, SIZE = hvd.rank(), hvd.size()
RANKS = range(SIZE)
CASES: list[Callable[[], None]] = []  # functions that raise on a failure
DTYPES = (torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int32, torch.int64, torch.uint8)
ROWS = 12 * SIZE
torch.manual_seed(5)
X, Y = torch.randn(5, ROWS, 6), torch.randn(5, ROWS, 3)


def case(function: Callable[[], None]) -> Callable[[], None]:
    CASES.append(function)
    return function


def of(rank: int, *shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """The tensor of a rank, of small whole numbers, whose sums are exact."""
    count = torch.Size(shape).numel()
    return ((torch.arange(count) * 5 + rank * 3) % 7 + 1).reshape(shape).to(dtype)


def same(found: torch.Tensor, expected: torch.Tensor, tolerance: float = 0) -> None:
    torch.testing.assert_close(found, expected, rtol=tolerance, atol=tolerance)


def same_on_all(tensors: Any) -> None:
    """Asserts that the tensors are bitwise equal on all ranks."""
    for tensor in tensors:
        everyones = hvd.allgather(tensor.detach().reshape(1, -1))
        assert all(torch.equal(each, everyones[0]) for each in everyones)


def errs(text: str, call: Callable[[], Any]) -> None:
    try:
        call()
    except Error as error:
        assert text in str(error), f"{text!r} is not in {str(error)!r}"
        return
    raise AssertionError(f"no Error was raised, expected one with {text!r}")


def network(seed: int = 0) -> torch.nn.Sequential:
    torch.manual_seed(seed)
    return torch.nn.Sequential(torch.nn.Linear(6, 16), torch.nn.Tanh(), torch.nn.Linear(16, 8), torch.nn.Linear(8, 3))


def mine(whole: torch.Tensor) -> torch.Tensor:
    return whole[12 * RANK : 12 * RANK + 12]


def train(module: Any, optimizer: Any, share: Callable[[torch.Tensor], torch.Tensor], passes: int = 1) -> None:
    """Five steps with mean squared error. Each has `passes` backward passes, each over a part of the batch."""
    for x, y in zip(X, Y, strict=True):
        optimizer.zero_grad()
        for part in range(passes):
            loss = torch.nn.functional.mse_loss(module(share(x)[part::passes]), share(y)[part::passes])
            (loss / passes).backward()
        optimizer.step()


def sgd(module: torch.nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(module.parameters(), 0.1, momentum=0.9)


def of_whole_batch() -> torch.nn.Module:
    module = network()
    train(module, sgd(module), lambda whole: whole)
    return module


def check_like_whole_batch(module: torch.nn.Module, tolerance: float = 1e-5) -> None:
    for found, expected in zip(module.parameters(), of_whole_batch().parameters(), strict=True):
        torch.testing.assert_close(found, expected, rtol=tolerance, atol=tolerance)
    same_on_all(module.parameters())
