"""Measures pipelines on several ranks: benchmarks/pipeline.py [MODEL ...] [--ranks 2] [--micro-batches 8].

Lockstep's pipeline is compared with one rank of one thread that has the same micro-batches; with ranks that split the
batch, in Lockstep and by PyTorch's DistributedDataParallel; and with torch.distributed.pipelining over gloo, by the
schedules 1F1B and GPipe. All ranks run on this machine. The contestants train in alternation, a round of steps each,
while the others sleep. Prints the median time of a step, the ratios of neighbouring rounds to Lockstep's pipeline, and
for the rank that needs most its peak resident memory, its states (weights and momenta), and the memory that Lockstep
plans for a step.
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

STEPS = {"lstm": 2, "gpt": 2}  # per round
NAMES = {
    "pipeline-stages": "Lockstep, stages",
    "pipeline-alone": "Lockstep, one rank",
    "lockstep": "Lockstep, data parallel",
    "pipeline-1f1b": "PyTorch, 1F1B",
    "pipeline-gpipe": "PyTorch, GPipe",
    "eager": "PyTorch DDP",
}
LEAST = 2**20


def make(name: str, model: str, ranks: int, micro_batches: int) -> Contestant:
    if name == "pipeline-alone":
        return Contestant(f"{name}-{micro_batches}", model, 1, 1)
    return Contestant(f"{name}-{micro_batches}" if name.startswith("pipeline") else name, model, ranks, 1)


def most(contestant: Contestant, what: str) -> float | None:
    """Returns the maximum over ranks, in MiB."""
    found = [report[f"{what}_bytes"] for report in contestant.last if f"{what}_bytes" in report]
    return max(found) / LEAST if found else None


def compare(model: str, ranks: int, micro_batches: int, rounds: int, steps: int) -> dict[str, Any]:
    contestants = {name: make(name, model, ranks, micro_batches) for name in NAMES}
    for contestant in contestants.values():
        contestant.run(1, keep=False)
    times: dict[str, list[float]] = {name: [] for name in contestants}
    for _ in range(rounds):
        for name, contestant in contestants.items():
            times[name].append(contestant.run(steps))
    ours = times["pipeline-stages"]
    first = [[report.get("first_loss") for report in contestant.last] for contestant in contestants.values()]
    losses = [loss for each in first for loss in each if loss is not None]
    if max(losses) - min(losses) > 1e-4 * max(losses):
        raise SystemExit(f"{model}: the contestants do not train the same: their first losses are {losses}")
    result = {
        name: {
            **contestant.measured(),
            "ratios": sorted(other / mine for other, mine in zip(times[name], ours, strict=True)),
            **{f"most_{what}_mib": most(contestant, what) for what in ("peak", "state", "value")},
        }
        for name, contestant in contestants.items()
    }
    for contestant in contestants.values():
        contestant.stop()
    return result


def show(model: str, result: dict[str, Any]) -> None:
    print(
        f"\n{model}\n\n| | step, ms | of the pipeline's | compiled in, s | peak, MiB | states | values |\n|---|---|---|---|---|---|---|"
    )
    for name, measured in result.items():
        ratios = measured["ratios"]
        sizes = [measured[f"most_{what}_mib"] for what in ("peak", "state", "value")]
        shown = " | ".join("" if size is None else f"{size:.0f}" for size in sizes)
        print(
            f"| {NAMES[name]} | {measured['ms']:.0f} | {statistics.median(ratios):.2f} ({ratios[0]:.2f}-{ratios[-1]:.2f}) | "
            f"{measured['compile_seconds']:.1f} | {shown} |",
            flush=True,
        )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__.splitlines()[0], formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    parser.add_argument("models", nargs="*", metavar="MODEL", help=f"models of {', '.join(STEPS)} (default: all)")
    parser.add_argument("--ranks", type=int, default=2, choices=(2, 4), help="ranks of one thread each")
    parser.add_argument(
        "--micro-batches", type=int, default=8, help="micro-batches per step of the pipelines and of the single rank"
    )
    parser.add_argument("--rounds", type=int, default=5, help="rounds of each contestant")
    parser.add_argument("--steps", type=int, help=f"steps of a round (default: {STEPS})")
    parser.add_argument(
        "--out", type=Path, default=worker.ROOT / "build/bench/pipeline.json", help="the JSON file to write"
    )
    arguments = parser.parse_args()
    if unknown := set(arguments.models) - STEPS.keys():
        parser.error(f"there is no model {', '.join(sorted(unknown))}; there are {', '.join(STEPS)}")
    require_pytorch()
    os.environ["OMPI_MCA_rmaps_base_oversubscribe"] = "1"
    ranks, micro_batches = arguments.ranks, arguments.micro_batches
    results: dict[str, Any] = {"cpu": processor(), "ranks": ranks, "micro_batches": micro_batches}
    print(
        f"{processor()}, {len(os.sched_getaffinity(0))} cores; {ranks} ranks of one thread, {micro_batches} micro-batches; "
        f"medians of {arguments.rounds} alternating rounds; memory of the rank that needs most"
    )
    for model in arguments.models or STEPS:
        prepare(model)
        results[model] = compare(model, ranks, micro_batches, arguments.rounds, arguments.steps or STEPS[model])
        show(model, results[model])
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    arguments.out.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
