"""Measures training steps of PyTorch's eager mode on two ranks: eager.py [MODEL ...] [--rounds …] [--hosts 2 --rate …].

Gradients are reduced by DistributedDataParallel over lockstep.torch_distributed or gloo, with and without
gradient_as_bucket_view; by lockstep.horovod.torch; or not at all ("alone"), which is the time of the computation.
Models and optimizer are those of run.py, and batches but that of ResNet-50, which has 4 images a rank. The contestants
train in alternation, a round of steps each, while the others sleep. Prints the medians of all steps and of the ratios of
neighbouring rounds, and the processor seconds of a step.

With --hosts, the ranks are on that many network namespaces of this machine (test/hosts/hosts.py), whose links have the
rate in both directions at once. It also prints the time that the links need for the gradients, and our time divided by
the longer of that and the computation, and by their sum.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import worker
from contestant import Contestant, links_ms, processor, require_pytorch

sys.path.insert(0, str(worker.ROOT / "test/hosts"))
from hosts import Hosts, why_not

CONTESTANTS = (
    "eager-lockstep", "eager-lockstep-views", "eager", "eager-gloo-views", "eager-horovod", "eager-alone",
)  # fmt: skip
STEPS = {"lenet": 30, "mlp": 4, "gpt": 2, "resnet50": 1}
ROWS = {"resnet50": 4}  # of a rank; otherwise the ranks share the network's batch


def compare(
    model: str, names: Sequence[str], ranks: int, hosts: Hosts | None, rounds: int, steps: int
) -> dict[str, dict[str, Any]]:
    """Returns what is measured of each contestant."""
    contestants = {name: Contestant(name, model, ranks, 1, hosts, ROWS.get(model, 0)) for name in names}
    for contestant in contestants.values():
        contestant.run(max(2, steps // 2), keep=False)
    times: dict[str, list[float]] = {name: [] for name in contestants}
    for _ in range(rounds):
        for name, contestant in contestants.items():
            times[name].append(contestant.run(steps))
    ours = times[names[0]]
    result = {
        name: {
            **contestant.measured(),
            "gradient_bytes": contestant.last[0]["gradient_bytes"],
            "ratios": sorted(other / mine for other, mine in zip(times[name], ours, strict=True)),
        }
        for name, contestant in contestants.items()
    }
    for contestant in contestants.values():
        contestant.stop()
    return result


def show(model: str, result: dict[str, dict[str, Any]]) -> None:
    for i, (name, measured) in enumerate(result.items()):
        ratios = measured["ratios"]
        print(
            f"{model if i == 0 else '':10} {name:20} {measured['ms']:9.2f} ms  "
            f"{statistics.median(ratios):5.2f}x ({ratios[0]:.2f}-{ratios[-1]:.2f})  {measured['processor_seconds']:7.3f} s  "
            f"{measured['peak_mib']:6.0f} MiB",
            flush=True,
        )


def show_links(result: dict[str, dict[str, Any]], hosts: int, rate: str) -> None:
    """Compares with the least time that communication and computation need."""
    links = links_ms(next(iter(result.values()))["gradient_bytes"], hosts, rate)
    print(f"{'':10} {'links':20} {links:9.2f} ms")
    if "eager-alone" not in result:
        return
    alone = result["eager-alone"]["ms"]
    for name in [name for name in result if name != "eager-alone"]:
        ms = result[name]["ms"]
        print(
            f"{'':10} {name:20} takes {ms / max(links, alone):.2f} times the longer of links and computation, "
            f"{ms / (links + alone):.2f} times their sum",
            flush=True,
        )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__.splitlines()[0], formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    parser.add_argument("models", nargs="*", metavar="MODEL", help=f"models of {', '.join(STEPS)} (default: all)")
    parser.add_argument("--ranks", type=int, default=2, help="on this machine; with --hosts one on each")
    parser.add_argument("--hosts", type=int, help="namespaces on which the ranks are (default: this machine)")
    parser.add_argument("--rate", default="1gbit", help="rate of each host's link")
    parser.add_argument("--contestants", nargs="+", default=list(CONTESTANTS), metavar="NAME", help="as of worker.py")
    parser.add_argument("--rounds", type=int, default=9, help="rounds of each contestant")
    parser.add_argument("--steps", type=int, help=f"steps of a round (default: {STEPS})")
    parser.add_argument(
        "--out", type=Path, default=worker.ROOT / "build/bench/eager.json", help="the JSON file to write"
    )
    arguments = parser.parse_args()
    if unknown := set(arguments.models) - STEPS.keys():
        parser.error(f"there is no model {', '.join(sorted(unknown))}; there are {', '.join(STEPS)}")
    if arguments.hosts and (reason := why_not()):
        sys.exit(f"this machine has no hosts: {reason}")
    require_pytorch()
    ranks = arguments.hosts or arguments.ranks
    results: dict[str, Any] = {"cpu": processor(), "ranks": ranks, "hosts": arguments.hosts, "rate": arguments.rate}
    where = f"{ranks} hosts at {arguments.rate} with a rank" if arguments.hosts else f"{ranks} ranks"
    print(f"{processor()}; {where} of one thread; medians of {arguments.rounds} alternating rounds")
    for model in arguments.models or STEPS:
        steps = arguments.steps or STEPS[model]
        with Hosts(ranks, arguments.rate) if arguments.hosts else nullcontext() as hosts:
            results[model] = compare(model, arguments.contestants, ranks, hosts, arguments.rounds, steps)
        show(model, results[model])
        if arguments.hosts:
            show_links(results[model], ranks, arguments.rate)
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    arguments.out.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
