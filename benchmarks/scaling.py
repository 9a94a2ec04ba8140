"""Measures scaling with hosts: benchmarks/scaling.py [MODEL ...] [--hosts 1 2 4 8] [--rate 1gbit] [--mxnet PYTHON].

Also run by `make scaling`. Hosts are network namespaces of this machine (test/hosts/hosts.py), each with one rank that
has a share of the cores (cores.py). The share is that of the largest number of hosts in every case, so that differences
are due to communication. Each rank has a batch of its own, of fixed size. The contestants train in alternation, a round
of steps each: Lockstep, PyTorch's DistributedDataParallel over gloo and, if --mxnet names a Python that has MXNet 1.9,
its KVStore "dist_sync" with a server for each worker. A further line is Lockstep's forecast, from a trace of two ranks
on one host and the measured network of two hosts (docs/forecast.md). Writes docs/scaling.md and a picture for each
model.
"""

from __future__ import annotations

import argparse
import dataclasses
import datetime
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import worker
from contestant import Contestant, prepare, processor, require_pytorch
from cores import Cores

sys.path.insert(0, str(worker.ROOT / "test/hosts"))
from hosts import Hosts, why_not

from lockstep._reports import job_report
from lockstep.forecast import Machine, forecast, mean_of_ranks

ROWS = {"lenet": 64, "resnet50": 2}  # per rank
STEPS = {"lenet": 15, "resnet50": 2}  # per round, after one that is not counted, as caches are cold
NAMES = {"lockstep": "Lockstep", "eager": "PyTorch DDP, gloo", "mxnet-sync": "MXNet dist_sync"}
COMMAND = worker.ROOT / "python_bindings/lockstep/_command.py"


def times(model: str, ranks: int, arguments: argparse.Namespace) -> dict[str, float]:
    """Returns the seconds of a step, by contestant."""
    with Hosts(ranks, arguments.rate) as hosts, Cores(ranks, arguments.share) as cores:
        contestants = {
            name: Contestant(name, model, ranks, 1, hosts, ROWS[model], arguments.mxnet, cores.prefix)
            for name in arguments.contestants
        }
        for contestant in contestants.values():
            contestant.run(1, keep=False)
        for _ in range(arguments.rounds):
            for contestant in contestants.values():
                contestant.run(1, keep=False)
                contestant.run(STEPS[model])
        for contestant in contestants.values():
            contestant.stop()
    return {name: statistics.median(contestant.seconds) for name, contestant in contestants.items()}


def forecasts(model: str, arguments: argparse.Namespace) -> dict[int, float]:
    """Returns the forecast seconds of a step of Lockstep, by number of hosts."""
    with tempfile.TemporaryDirectory() as folder, Cores(2, arguments.share) as cores:
        os.environ["LOCKSTEP_TRACE"] = folder
        contestant = Contestant("lockstep-reduced", model, 2, 1, rows=ROWS[model], prefix=cores.prefix)
        del os.environ["LOCKSTEP_TRACE"]
        contestant.run(1, keep=False)
        for _ in range(arguments.rounds):
            contestant.run(STEPS[model])
        contestant.stop()
        report = mean_of_ranks(job_report.job_report(folder, calls=arguments.rounds * STEPS[model]))
    with Hosts(2, arguments.rate) as hosts, Cores(2, arguments.share) as cores, tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "machine.toml"
        Machine().write(path)
        done = hosts.mpirun(
            [1, 1], *cores.prefix, sys.executable, COMMAND, "doctor", "--measure", path, capture_output=True, text=True
        )
        if done.returncode != 0:
            sys.exit(done.stderr)
        machine = Machine.read(path)
        # A byte takes the same time of a core for any share, so it takes a larger part of a smaller share.
        machine = dataclasses.replace(machine, processor=machine.processor / arguments.share)
        rows = forecast(report, machine, arguments.hosts)
    return {row.hosts: row.seconds for row in rows}


def draw(model: str, results: dict[str, Any], path: Path) -> None:
    import matplotlib.figure

    figure = matplotlib.figure.Figure(figsize=(7, 4), layout="constrained")
    axes = figure.subplots()
    hosts = results["hosts"]
    first = results[model]["steps"]["lockstep"][0]
    axes.plot(
        hosts, [n * ROWS[model] / first for n in hosts], ":", color="gray", label="Lockstep on one host, times hosts"
    )
    for name, seconds in results[model]["steps"].items():
        axes.plot(hosts, [n * ROWS[model] / s for n, s in zip(hosts, seconds, strict=True)], "o-", label=NAMES[name])
    expected = [n * ROWS[model] / s for n, s in zip(hosts, results[model]["forecast"], strict=True)]
    axes.plot(hosts, expected, "--", color="black", label="Lockstep, forecast")
    axes.set(xlabel="hosts", ylabel="samples a second", title=model, xticks=hosts)
    axes.legend()
    figure.savefig(path, metadata={"Date": None})


def document(results: dict[str, Any], models: Sequence[str]) -> str:
    lines = [
        "# Scaling with hosts, measured",
        "",
        (
            f"Written by `make scaling` on {results['date']}: {results['cpu']}, hosts at {results['rate']}, each with one rank that has "
            f"{results['share']:g} of a core; medians of {results['rounds']} alternating rounds. The batch of a rank stays the same, so n hosts compute at most "
            "n times the samples. The forecast is from a step that ran on one host ([forecast.md](forecast.md))."
        ),
    ]
    for model in models:
        lines += [
            "",
            f"## {model}, {ROWS[model]} samples a rank",
            "",
            f"![samples a second, by hosts](scaling-{model}.svg)",
            "",
            "| hosts | "
            + " | ".join(f"{NAMES[name]}, ms | of one host's" for name in results[model]["steps"])
            + " | forecast, ms |",
            "|---|" + "---|---|" * len(results[model]["steps"]) + "---|",
        ]
        for i, hosts in enumerate(results["hosts"]):
            cells = [
                f"{1e3 * seconds[i]:.1f} | {seconds[0] / seconds[i]:.0%}"
                for seconds in results[model]["steps"].values()
            ]
            lines.append(f"| {hosts} | " + " | ".join(cells) + f" | {1e3 * results[model]['forecast'][i]:.1f} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__.splitlines()[0], formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    parser.add_argument("models", nargs="*", metavar="MODEL", help=f"models of {', '.join(STEPS)} (default: all)")
    parser.add_argument("--hosts", type=int, nargs="+", default=[1, 2, 4, 8])
    parser.add_argument("--rate", default="1gbit", help="rate of each host's link")
    parser.add_argument("--rounds", type=int, default=5, help="rounds of each contestant")
    parser.add_argument("--mxnet", default="", metavar="PYTHON", help="a Python with mxnet==1.9.1 and numpy==1.23.5")
    parser.add_argument("--out", type=Path, default=worker.ROOT / "docs", help="the folder of scaling.md and pictures")
    arguments = parser.parse_args()
    if unknown := set(arguments.models) - STEPS.keys():
        parser.error(f"there is no model {', '.join(sorted(unknown))}; there are {', '.join(STEPS)}")
    if reason := why_not():
        sys.exit(f"this machine has no hosts: {reason}")
    require_pytorch()
    if arguments.mxnet:
        subprocess.run([arguments.mxnet, "-c", "import mxnet"], check=True)
    arguments.share = min(1.0, len(os.sched_getaffinity(0)) / max(arguments.hosts))
    arguments.contestants = [name for name in NAMES if arguments.mxnet or not name.startswith("mxnet")]
    models = arguments.models or list(STEPS)
    results: dict[str, Any] = {
        "date": datetime.date.today().isoformat(),
        "cpu": processor(),
        **{name: getattr(arguments, name) for name in ("hosts", "rate", "share", "rounds")},
    }
    for model in models:
        prepare(model)
        expected = forecasts(model, arguments)
        measured = []
        for ranks in arguments.hosts:
            measured.append(times(model, ranks, arguments))
            print(model, ranks, {name: round(1e3 * s, 1) for name, s in measured[-1].items()}, flush=True)
        results[model] = {
            "steps": {name: [each[name] for each in measured] for name in arguments.contestants},
            "forecast": [expected[ranks] for ranks in arguments.hosts],
        }
        draw(model, results, arguments.out / f"scaling-{model}.svg")
    text = document(results, models)
    (arguments.out / "scaling.md").write_text(text)
    out = worker.ROOT / "build/bench/scaling.json"
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps(results, indent=1) + "\n")
    print(text)


if __name__ == "__main__":
    main()
