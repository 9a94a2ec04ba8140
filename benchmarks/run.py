"""Compares training steps of Lockstep and PyTorch: `make bench`, or benchmarks/run.py [MODEL ...] [--rounds …].

The models are LeNet at batch 64, an MLP (1024-4096-4096-1000, ReLU) at batch 128, a GPT (6 layers, width 512, 8 heads,
vocabulary 8192, 128 tokens) at batch 8 and ResNet-50 (224 x 224) at batch 16, in f32, with SGD with momentum. The
global batch is the same on one rank with two threads, against PyTorch, and on two ranks of one thread, against
DistributedDataParallel over gloo. PyTorch runs eager and compiled, and convolutions also with channels last. gpt-bf16,
gpt-f16 and resnet50-bf16 are trained with that precision, against PyTorch's autocast and against Lockstep's f32.

On two ranks, "lockstep-alone" are the same ranks without communication. Its time divided by Lockstep's is the share of
a step that is not communication.

All contestants are started first; then they run in alternation, a round of steps each, while the others sleep. Prints
the medians of all steps and of the ratios of neighbouring rounds, which do not depend on drifts of the machine's speed;
the processor seconds of a step, which depend little on other load; the peak memory of the process, and the part of it
for Lockstep's values; and the time from the model to the first step.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
from pathlib import Path
from typing import Any

import worker
from contestant import Contestant, prepare, processor, require_pytorch

PEERS = {
    "lenet": ("eager", "compiled"),
    "mlp": ("eager", "compiled"),
    "gpt": ("eager", "compiled"),
    "resnet50": ("eager", "eager-channels-last", "compiled-channels-last"),
    "gpt-bf16": ("lockstep-f32", "eager", "compiled"),
    "gpt-f16": ("lockstep-f32", "eager"),
    "resnet50-bf16": ("lockstep-f32", "eager-channels-last", "compiled-channels-last"),
}
STEPS = {"lenet": 30, "mlp": 4, "gpt": 2, "resnet50": 1, "gpt-bf16": 2, "gpt-f16": 2, "resnet50-bf16": 1}
CONFIGURATIONS = [("1 rank, 2 threads", 1, 2), ("2 ranks, 1 thread", 2, 1)]


def compare(model: str, ranks: int, threads: int, rounds: int, steps: int) -> dict[str, Any]:
    ours = Contestant("lockstep", model, ranks, threads)
    peers = (*PEERS[model], "lockstep-alone") if ranks > 1 else PEERS[model]
    theirs = {name: Contestant(name, model, ranks, threads) for name in peers}
    for contestant in (ours, *theirs.values()):
        contestant.run(max(2, steps // 2), keep=False)
    before = ours.last[0]["counters"]
    ratios: dict[str, list[float]] = {name: [] for name in theirs}
    for _ in range(rounds):
        mine = ours.run(steps)
        for name, contestant in theirs.items():
            ratios[name].append(contestant.run(steps) / mine)
    counters = {name: value - before[name] for name, value in ours.last[0]["counters"].items()}
    result = {
        **ours.measured(),
        "communication_share": counters["communication"] / counters["total"],
        "outside_kernels_share": 1 - (counters["kernels"] + counters["communication"]) / counters["total"],
        "peers": {
            name: {
                **contestant.measured(),
                "speedup": statistics.median(ratios[name]),
                "speedup_range": [min(ratios[name]), max(ratios[name])],
            }
            for name, contestant in theirs.items()
        },
    }
    for contestant in (ours, *theirs.values()):
        contestant.stop()
    return result


def show(model: str, configuration: str, result: dict[str, Any]) -> None:
    def line(first: str, second: str, name: str, measured: dict[str, float], speedup: str, rest: str = "") -> None:
        values = f"{measured['value_mib']:9.0f}" if "value_mib" in measured else " " * 9
        print(
            f"{first:13} {second:17} {name:22} {measured['ms']:9.2f} ms {speedup:22} {measured['processor_seconds']:8.3f} s "
            f"{measured['peak_mib']:9.0f} {values} {measured['compile_seconds']:9.2f} s{rest}",
            flush=True,
        )

    shares = (
        f"   communication {result['communication_share']:.1%}, not in kernels {result['outside_kernels_share']:.1%}"
    )
    line(model, configuration, "Lockstep", result, "", shares)
    for name, peer in result["peers"].items():
        low, high = peer["speedup_range"]
        line("", "", name, peer, f"{peer['speedup']:7.2f}x {low:5.2f}-{high:5.2f}x")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__.splitlines()[0], formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    parser.add_argument("models", nargs="*", metavar="MODEL", help=f"models of {', '.join(PEERS)} (default: all)")
    parser.add_argument("--rounds", type=int, default=9, help="rounds of each contestant")
    parser.add_argument("--steps", type=int, help=f"steps of a round (default: {STEPS})")
    parser.add_argument(
        "--out", type=Path, default=worker.ROOT / "build/bench/training.json", help="the JSON file to write"
    )
    arguments = parser.parse_args()
    if unknown := set(arguments.models) - PEERS.keys():
        parser.error(f"there is no model {', '.join(sorted(unknown))}; there are {', '.join(PEERS)}")
    require_pytorch()

    results: dict[str, Any] = {"cpu": processor(), "cores": os.cpu_count()}
    print(f"{processor()}, {os.cpu_count()} cores; medians of {arguments.rounds} alternating rounds\n")
    print(
        f"{'model':13} {'ranks':17} {'':22} {'a step':>12} {'speedup':>8} {'range':>13} {'processors':>10} {'peak, MiB':>9} "
        f"{'of values':>9} {'first step':>11}"
    )
    for model in arguments.models or PEERS:
        prepare(model)
        for configuration, ranks, threads in CONFIGURATIONS:
            result = compare(model, ranks, threads, arguments.rounds, arguments.steps or STEPS[model])
            results[f"{model}, {configuration}"] = result
            show(model, configuration, result)
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    arguments.out.write_text(json.dumps(results, indent=1) + "\n")
    print(f"\nwrote {arguments.out}")


if __name__ == "__main__":
    main()
