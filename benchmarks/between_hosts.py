"""Measures training steps on several hosts: between_hosts.py [MODEL ...] [--hosts 2] [--rate 1gbit] [--rounds …].

Hosts are network namespaces of this machine (test/hosts/hosts.py), each with one rank of one thread. Their links have
the rate in both directions at once. The contestants of run.py train in alternation, a round of steps each: Lockstep;
Lockstep with factors=False, which reduces every gradient; the same with wire="bf16" and with wire="int8"; Lockstep's
ranks without communication, which is the time of the computation; and PyTorch's DistributedDataParallel over gloo.

Prints the medians, the ratios of neighbouring rounds, the bytes that a host sends in a step, and the time that the
links need for the gradients in f32. For H hosts that is 2 (H - 1) / H times their bytes, through each link in each
direction.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from pathlib import Path
from typing import Any

import worker
from contestant import Contestant, links_ms, prepare, processor, require_pytorch

sys.path.insert(0, str(worker.ROOT / "test/hosts"))
from hosts import Hosts, why_not

CONTESTANTS = ("lockstep", "lockstep-reduced", "lockstep-wire", "lockstep-int8", "lockstep-alone", "eager")
STEPS = {"lenet": 30, "mlp": 2, "gpt": 1, "resnet50": 1}


def compare(model: str, hosts: Hosts, rate: str, rounds: int, steps: int) -> dict[str, Any]:
    number = len(hosts.names)
    contestants = {name: Contestant(name, model, number, 1, hosts) for name in CONTESTANTS}
    for contestant in contestants.values():
        contestant.run(2, keep=False)
    times: dict[str, list[float]] = {name: [] for name in contestants}
    sent: dict[str, list[float]] = {name: [] for name in contestants}
    for _ in range(rounds):
        for name, contestant in contestants.items():
            before = hosts.sent_bytes(0)
            times[name].append(contestant.run(steps))
            sent[name].append((hosts.sent_bytes(0) - before) / steps)
    gradient_bytes = contestants["lockstep"].last[0]["gradient_bytes"]
    result: dict[str, Any] = {
        "links_ms": links_ms(gradient_bytes, number, rate),
        "contestants": {
            name: {
                **contestant.measured(),
                "sent_mib": statistics.median(sent[name]) / 2**20,
                "ratios": sorted(other / mine for other, mine in zip(times[name], times["lockstep"], strict=True)),
            }
            for name, contestant in contestants.items()
        },
    }
    for contestant in contestants.values():
        contestant.stop()
    return result


def show(model: str, result: dict[str, Any]) -> None:
    contestants = result["contestants"]
    least = max(contestants["lockstep-alone"]["ms"], result["links_ms"])
    for name, measured in contestants.items():
        ratios = measured["ratios"]
        print(
            f"{model if name == 'lockstep' else '':10} {name:16} {measured['ms']:9.2f} ms  {measured['sent_mib']:8.2f} MiB sent  "
            f"{statistics.median(ratios):5.2f}x ({ratios[0]:.2f}-{ratios[-1]:.2f})  {measured['processor_seconds']:7.3f} s",
            flush=True,
        )
    ours = contestants["lockstep"]["ms"] / least
    print(
        f"{'':10} {'links in f32':16} {result['links_ms']:9.2f} ms; Lockstep takes {ours:.2f} times the maximum of that and the computation"
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__.splitlines()[0], formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    parser.add_argument("models", nargs="*", metavar="MODEL", help=f"models of {', '.join(STEPS)} (default: all)")
    parser.add_argument("--hosts", type=int, default=2)
    parser.add_argument("--rate", default="1gbit", help="rate of each host's link")
    parser.add_argument("--rounds", type=int, default=7, help="rounds of each contestant")
    parser.add_argument("--steps", type=int, help=f"steps of a round (default: {STEPS})")
    parser.add_argument(
        "--out", type=Path, default=worker.ROOT / "build/bench/between_hosts.json", help="the JSON file to write"
    )
    arguments = parser.parse_args()
    if unknown := set(arguments.models) - STEPS.keys():
        parser.error(f"there is no model {', '.join(sorted(unknown))}; there are {', '.join(STEPS)}")
    if reason := why_not():
        sys.exit(f"this machine has no hosts: {reason}")
    require_pytorch()
    results: dict[str, Any] = {"cpu": processor(), "hosts": arguments.hosts, "rate": arguments.rate}
    print(
        f"{processor()}; {arguments.hosts} hosts at {arguments.rate}; medians of {arguments.rounds} alternating rounds"
    )
    for model in arguments.models or STEPS:
        prepare(model)
        with Hosts(arguments.hosts, arguments.rate) as hosts:
            results[model] = compare(model, hosts, arguments.rate, arguments.rounds, arguments.steps or STEPS[model])
        show(model, results[model])
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    arguments.out.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
