"""Measures training steps of PyTorch's eager mode on two ranks: benchmarks/eager.py [MODEL ...] [--rounds …].

Gradients are reduced by DistributedDataParallel over lockstep.torch_distributed or gloo, with and without
gradient_as_bucket_view; by lockstep.horovod.torch; or not at all ("alone"), which is the time of the computation. Models, batches and optimizer
are those of run.py. The contestants train in alternation, a round of steps each, while the others sleep. Prints the
medians of all steps and of the ratios of neighbouring rounds, and the processor seconds of a step.
"""

from __future__ import annotations

import argparse
import json
import statistics
from pathlib import Path
from typing import Any

import worker
from contestant import Contestant, processor, require_pytorch

CONTESTANTS = (
    "eager-lockstep", "eager-lockstep-views", "eager", "eager-gloo-views", "eager-horovod", "eager-alone",
)  # fmt: skip
STEPS = {"lenet": 30, "mlp": 4, "gpt": 2, "resnet50": 1}


def compare(model: str, ranks: int, rounds: int, steps: int) -> dict[str, Any]:
    contestants = {name: Contestant(name, model, ranks, 1) for name in CONTESTANTS}
    for contestant in contestants.values():
        contestant.run(max(2, steps // 2), keep=False)
    times: dict[str, list[float]] = {name: [] for name in contestants}
    for _ in range(rounds):
        for name, contestant in contestants.items():
            times[name].append(contestant.run(steps))
    ours = times[CONTESTANTS[0]]
    result = {
        name: {
            **contestant.measured(),
            "ratios": sorted(other / mine for other, mine in zip(times[name], ours, strict=True)),
        }
        for name, contestant in contestants.items()
    }
    for contestant in contestants.values():
        contestant.stop()
    return result


def show(model: str, result: dict[str, Any]) -> None:
    for name, measured in result.items():
        ratios = measured["ratios"]
        print(
            f"{model if name == CONTESTANTS[0] else '':10} {name:20} {measured['ms']:9.2f} ms  "
            f"{statistics.median(ratios):5.2f}x ({ratios[0]:.2f}-{ratios[-1]:.2f})  {measured['processor_seconds']:7.3f} s  "
            f"{measured['peak_mib']:6.0f} MiB",
            flush=True,
        )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__.splitlines()[0], formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    parser.add_argument("models", nargs="*", metavar="MODEL", help=f"models of {', '.join(STEPS)} (default: all)")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=9, help="rounds of each contestant")
    parser.add_argument("--steps", type=int, help=f"steps of a round (default: {STEPS})")
    parser.add_argument(
        "--out", type=Path, default=worker.ROOT / "build/bench/eager.json", help="the JSON file to write"
    )
    arguments = parser.parse_args()
    if unknown := set(arguments.models) - STEPS.keys():
        parser.error(f"there is no model {', '.join(sorted(unknown))}; there are {', '.join(STEPS)}")
    require_pytorch()
    results: dict[str, Any] = {"cpu": processor(), "ranks": arguments.ranks}
    print(f"{processor()}; {arguments.ranks} ranks of one thread; medians of {arguments.rounds} alternating rounds")
    for model in arguments.models or STEPS:
        results[model] = compare(model, arguments.ranks, arguments.rounds, arguments.steps or STEPS[model])
        show(model, results[model])
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    arguments.out.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
