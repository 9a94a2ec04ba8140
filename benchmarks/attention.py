"""Compares attention and its gradients with PyTorch's scaled_dot_product_attention, on the CPU.

    attention.py [THREADS ...]                                      # default: 1 2; needs torch

Prints a line for each shape: the minimum milliseconds of both, run in alternation, for the forward computation and with
the gradients of q, k and v.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "python_bindings"))
import lockstep as ls

SHAPES = [(8, 8, 128, 64), (1, 8, 1024, 64)]
SECONDS = 1.0


def text(shape: tuple[int, ...], causal: bool, gradients: bool) -> str:
    """Returns the graph of attention, and of its gradients for a given dy."""
    b, h, t, d = shape
    x, rows = f"f32[{b},{h},{t},{d}]", f"f32[{b},{h},{t}]"
    options = f"{{causal={str(causal).lower()}, scale={d**-0.5}}}"
    forward = f"  %y, %log = attention %q, %k, %v {options} : {x}, {rows}\n"
    if not gradients:
        return f"graph @f(%q: {x}, %k: {x}, %v: {x}) -> (y: {x}) {{\n{forward}  return %y\n}}"
    return (
        f"graph @f(%q: {x}, %k: {x}, %v: {x}, %dy: {x}) -> (y: {x}, dq: {x}, dk: {x}, dv: {x}) {{\n{forward}"
        f"  %weighted = mul %y, %dy : {x}\n  %delta = reduce_sum %weighted {{dims=[3]}} : {rows}\n"
        f"  %dq, %dk, %dv = attention_grad %q, %k, %v, %log, %dy, %delta {options} : {x}, {x}, {x}\n"
        "  return %y, %dq, %dk, %dv\n}"
    )


def least(*contestants: Callable[[], object]) -> list[float]:
    """Returns the minimum milliseconds of each. The contestants alternate, so that other load affects all."""
    best = [float("inf")] * len(contestants)
    for contestant in contestants:
        contestant()
    end = time.perf_counter() + SECONDS * len(contestants)
    while time.perf_counter() < end:
        for i, contestant in enumerate(contestants):
            contestant()  # lets the threads of the other one go to sleep
            for _ in range(3):
                start = time.perf_counter()
                contestant()
                best[i] = min(best[i], time.perf_counter() - start)
    return [1e3 * seconds for seconds in best]


def compare(shape: tuple[int, ...], causal: bool, threads: int) -> None:
    torch.set_num_threads(threads)
    random = np.random.default_rng(0)
    given = {name: random.standard_normal(shape, np.float32) for name in ["q", "k", "v", "dy"]}
    q, k, v, dy = (torch.from_numpy(value) for value in given.values())
    leaves = [each.clone().requires_grad_() for each in (q, k, v)]

    def theirs() -> torch.Tensor:
        with torch.no_grad():
            return F.scaled_dot_product_attention(q, k, v, is_causal=causal)

    def theirs_and_gradients() -> list[torch.Tensor]:
        y = F.scaled_dot_product_attention(*leaves, is_causal=causal)
        return [y, *torch.autograd.grad(y, leaves, dy)]

    inputs = {name: given[name] for name in ["q", "k", "v"]}
    forward = ls.compile(ls.parse(text(shape, causal, False)), threads=threads)
    both = ls.compile(ls.parse(text(shape, causal, True)), threads=threads)
    for ours, expected in zip(both(**given).values(), theirs_and_gradients(), strict=True):
        torch.testing.assert_close(torch.from_numpy(np.asarray(ours)), expected, rtol=1e-3, atol=1e-4)
    times = least(lambda: forward(**inputs), theirs) + least(lambda: both(**given), theirs_and_gradients)
    print(
        f"{shape} {'causal' if causal else 'full':6} {threads} threads: forward {times[0]:7.3f} ms, PyTorch {times[1]:7.3f}; "
        f"with gradients {times[2]:7.3f} ms, PyTorch {times[3]:7.3f}",
        flush=True,
    )


if __name__ == "__main__":
    for count in [int(argument) for argument in sys.argv[1:]] or [1, 2]:
        for each in SHAPES:
            for is_causal in [True, False]:
                compare(each, is_causal, count)
