"""Measures training steps with a key-value store: benchmarks/kvstore.py [MODEL ...] [--mxnet PYTHON] [--rounds …].

Two workers run on this machine, with one thread each. The contestants train in alternation, a round of steps each:

- a store of `lockstep.kv`, "dist_sync" or, with two servers, "dist_async", with gradients in the store's arrays; the
  former also with gradients in other arrays ("copied");
- Lockstep's own step, with collectives, or compiled with strategy="parameter_server" for two servers, synchronous or
  not;
- PyTorch's DistributedDataParallel over gloo;
- MXNet 1.9's stores of the same kinds with two servers, if --mxnet names a Python that has it.

Prints the medians, and the ratios of neighbouring rounds to the two stores.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
from pathlib import Path
from typing import Any

import worker
from contestant import Contestant, prepare, processor, require_pytorch

CONTESTANTS = (
    *("store-sync", "store-async", "store-sync-copied", "lockstep", "lockstep-served", "lockstep-served-async"),
    *("eager", "mxnet-sync", "mxnet-async"),
)
STEPS = {"lenet": 30, "mlp": 3}


def compare(model: str, names: list[str], mxnet: str, rounds: int, steps: int) -> dict[str, Any]:
    contestants = {name: Contestant(name, model, 2, 1, mxnet=mxnet) for name in names}
    for contestant in contestants.values():
        contestant.run(3, keep=False)
    times: dict[str, list[float]] = {name: [] for name in names}
    for _ in range(rounds):
        for name, contestant in contestants.items():
            times[name].append(contestant.run(steps))
    for contestant in contestants.values():
        contestant.stop()
    return {
        name: {
            "ms": 1e3 * statistics.median(contestants[name].seconds),
            "ratios": {
                store: statistics.median(other / mine for other, mine in zip(times[name], times[store], strict=True))
                for store in ("store-sync", "store-async")
            },
        }
        for name in names
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__.splitlines()[0], formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    parser.add_argument("models", nargs="*", metavar="MODEL", help=f"models of {', '.join(STEPS)} (default: all)")
    parser.add_argument("--mxnet", default="", metavar="PYTHON", help="a Python with mxnet==1.9.1 and numpy==1.23.5")
    parser.add_argument("--rounds", type=int, default=7, help="rounds of each contestant")
    parser.add_argument("--steps", type=int, help=f"steps of a round (default: {STEPS})")
    parser.add_argument(
        "--out", type=Path, default=worker.ROOT / "build/bench/kvstore.json", help="the JSON file to write"
    )
    arguments = parser.parse_args()
    if unknown := set(arguments.models) - STEPS.keys():
        parser.error(f"there is no model {', '.join(sorted(unknown))}; there are {', '.join(STEPS)}")
    require_pytorch()
    if arguments.mxnet:
        subprocess.run([arguments.mxnet, "-c", "import mxnet"], check=True)
    names = [name for name in CONTESTANTS if arguments.mxnet or not name.startswith("mxnet")]
    print(f"{processor()}; 2 workers of one thread; medians of {arguments.rounds} alternating rounds")
    results: dict[str, Any] = {"cpu": processor()}
    for model in arguments.models or STEPS:
        prepare(model)
        results[model] = compare(model, names, arguments.mxnet, arguments.rounds, arguments.steps or STEPS[model])
        for name, measured in results[model].items():
            ratios = ", ".join(f"{ratio:5.2f}x {store}" for store, ratio in measured["ratios"].items())
            print(f"{model:8} {name:22} {measured['ms']:9.2f} ms  {ratios}", flush=True)
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    arguments.out.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
