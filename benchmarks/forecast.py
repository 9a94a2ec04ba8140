"""Compares forecasts with measurements: forecast.py [MODEL ...] [--hosts 2 4] [--rates 100mbit 1gbit 10gbit].

For each number of hosts, the model first trains on this machine with as many ranks, one thread each, and is traced.
Then, for each rate, it trains on hosts with one rank each, which are network namespaces of this machine
(test/hosts/hosts.py) with links of this rate: the link is measured as by `lockstep doctor --measure`, the step is
forecast from the trace, and its time is measured. Every gradient is reduced, as on one host (factors=False). The row of
one host is measured with ranks that do not communicate. If there are more hosts than cores, they share these: the
seconds of a core per byte are scaled accordingly.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import statistics
import sys
import tempfile
from pathlib import Path

import worker
from contestant import Contestant, prepare, processor

sys.path.insert(0, str(worker.ROOT / "test/hosts"))
from hosts import Hosts, why_not

from lockstep._reports import job_report
from lockstep.forecast import Machine, forecast, mean_of_ranks

STEPS = {"lenet": 50, "mlp": 5, "resnet50": 2}
RATES = ("100mbit", "1gbit", "10gbit")
COMMAND = worker.ROOT / "python_bindings/lockstep/_command.py"


def trained(model: str, ranks: int, rounds: int, hosts: Hosts | None = None, way: str = "lockstep-reduced") -> float:
    """Returns the seconds of a step."""
    contestant = Contestant(way, model, ranks, 1, hosts)
    contestant.run(2, keep=False)
    for _ in range(rounds):
        contestant.run(STEPS[model])
    contestant.stop()
    return statistics.median(contestant.seconds)


def traced(model: str, ranks: int, rounds: int) -> job_report.JobReport:
    with tempfile.TemporaryDirectory() as folder:
        os.environ["LOCKSTEP_TRACE"] = folder
        trained(model, ranks, rounds)
        del os.environ["LOCKSTEP_TRACE"]
        return job_report.job_report(folder, calls=rounds * STEPS[model])


def measured(hosts: Hosts) -> Machine:
    ranks = [1] * len(hosts.names)
    with tempfile.NamedTemporaryFile(suffix=".toml") as file:
        Machine().write(file.name)
        done = hosts.mpirun(
            ranks, sys.executable, COMMAND, "doctor", "--measure", file.name, capture_output=True, text=True
        )
        if done.returncode != 0:
            sys.exit(done.stderr)
        machine = Machine.read(file.name)
    return dataclasses.replace(machine, processor=machine.processor * max(1, len(ranks) / len(os.sched_getaffinity(0))))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__.splitlines()[0], formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    parser.add_argument("models", nargs="*", metavar="MODEL", help=f"models of {', '.join(STEPS)} (default: all)")
    parser.add_argument("--hosts", type=int, nargs="+", default=[2, 4])
    parser.add_argument("--rates", nargs="+", default=RATES, help="rates of each host's link")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument(
        "--out", type=Path, default=worker.ROOT / "build/bench/forecast.json", help="the JSON file to write"
    )
    arguments = parser.parse_args()
    if unknown := set(arguments.models) - STEPS.keys():
        parser.error(f"there is no model {', '.join(sorted(unknown))}; there are {', '.join(STEPS)}")
    if reason := why_not():
        sys.exit(f"this machine has no hosts: {reason}")
    print(f"{processor()}; medians of {arguments.rounds} rounds")
    print(f"{'':10}{'hosts':>6}{'rate':>9}{'step':>13}{'forecast':>13}{'error':>8}")
    rows = []

    def row(model: str, hosts: int, rate: str, step: float, expected: float) -> None:
        error = expected / step - 1
        rows.append({"model": model, "hosts": hosts, "rate": rate, "step": step, "forecast": expected})
        print(
            f"{model:10}{hosts:>6}{rate:>9}{1e3 * step:>10.3f} ms{1e3 * expected:>10.3f} ms{error:>+8.1%}", flush=True
        )

    for model in arguments.models or STEPS:
        prepare(model)
        for count in arguments.hosts:
            report = mean_of_ranks(traced(model, count, arguments.rounds))
            if count == min(arguments.hosts):
                (alone,) = forecast(report, Machine(), [1])
                step = trained(model, count, arguments.rounds, way="lockstep-alone")
                row(model, 1, "", step, alone.seconds)
            for rate in arguments.rates:
                with Hosts(count, rate) as hosts:
                    (expected,) = forecast(report, measured(hosts), [count])
                    row(model, count, rate, trained(model, count, arguments.rounds, hosts), expected.seconds)
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    arguments.out.write_text(json.dumps({"cpu": processor(), "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
