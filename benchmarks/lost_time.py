"""Compares training steps with their roofline: what a call takes, at least needs, and loses, by kind of step and layer.

    .venv/bin/python benchmarks/lost_time.py [MODEL ...]            # prints the reports
    .venv/bin/python benchmarks/lost_time.py --write                # and writes the tables of docs/performance.md

The models are those of run.py, by default ResNet-50 and GPT, on one rank with two threads. Run it on a quiet machine:
the ceilings are measured, too.
"""

from __future__ import annotations

import argparse
import datetime
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path

import worker
from contestant import prepare, processor, require_pytorch

from lockstep._reports.report import Report
from lockstep._reports.roofline import RooflineStep

DOCUMENT = worker.ROOT / "docs/performance.md"
BEGIN, END = "<!-- written by benchmarks/lost_time.py -->\n", "<!-- end -->\n"
NAMES = {"resnet50": "ResNet-50, 16 × 224 × 224", "gpt": "GPT, 8 × 128 tokens"}
ROWS = 8  # of a table, without the sums of all others
PARTS = {
    "steps": "lost in steps",
    "exposed": "exposed communication",
    "waiting": "waiting for ranks",
    "other": "inputs, results",
    "between": "between calls",
}


def measure(model: str, threads: int, calls: int, depth: int) -> Report:
    """Returns the report of the last `calls` calls on one rank."""
    prepare(model)
    trained = worker.Lockstep(model, threads, "", worker.precision_of(model), 0)
    for _ in range(calls + 1):  # the first one allocates
        trained.step()
    return trained.exe.report(calls=calls, roofline=True, depth=depth)


def parts(reports: dict[str, Report]) -> list[str]:
    """A table of the parts of a call, with a column for each model. The parts add up to the whole."""
    rows = [["", *(NAMES.get(model, model) for model in reports)], ["---"] * (1 + len(reports))]
    wholes = [report.total + report.between for report in reports.values()]
    rows.append(["from call to call", *(f"{1e3 * whole:.1f} ms" for whole in wholes)])
    least = [report.roofline.seconds for report in reports.values()]
    rows.append(["least time of the steps", *map(_share, least, wholes)])
    for part, name in PARTS.items():
        rows.append([name, *map(_share, (report.lost[part] for report in reports.values()), wholes)])
    return _text(rows)


def _share(seconds: float, whole: float) -> str:
    return f"{1e3 * seconds:.1f} ms, {100 * seconds / whole:.1f} %"


def sums(steps: Iterable[RooflineStep], name: str) -> list[str]:
    """A table of what was lost, by `name`: "kind" or "layer"."""
    by_name: dict[str, list[RooflineStep]] = defaultdict(list)
    for step in steps:
        by_name[getattr(step, name)].append(step)
    ordered = sorted(by_name.items(), key=lambda item: -sum(step.lost for step in item[1]))
    rows = [[name, "steps", "lost, ms", "measured, ms", "least, ms", "10⁹ operations/s", "GB/s"], ["---"] * 7]
    rows += [_row(f"`{each}`", group) for each, group in ordered[:ROWS]]
    if others := [step for _, group in ordered[ROWS:] for step in group]:
        rows.append(_row(f"{len(ordered) - ROWS} others", others))
    return _text([*rows, _row("all", [step for _, group in ordered for step in group])])


def _row(name: str, steps: list[RooflineStep]) -> list[str]:
    measured = sum(step.measured for step in steps) or float("inf")
    seconds = [sum(step.lost for step in steps), measured, sum(step.seconds for step in steps)]
    rates = [sum(step.operations for step in steps) / measured, sum(step.bytes for step in steps) / measured]
    return [
        name,
        str(len(steps)),
        *(f"{1e3 * each:.1f}" for each in seconds),
        *(f"{1e-9 * rate:.1f}" for rate in rates),
    ]


def _text(rows: Iterable[list[str]]) -> list[str]:
    return [f"| {' | '.join(row)} |" for row in rows]


def section(reports: dict[str, Report]) -> str:
    """The part of docs/performance.md between BEGIN and END."""
    lines = [f"Of {datetime.date.today()}, on {processor()}:", "", *parts(reports)]
    for model, report in reports.items():
        lines += ["", *_text_before(NAMES.get(model, model), report)]
        for name in ("kind", "layer"):
            lines += ["", *sums(report.roofline.steps, name)]
    return "\n".join(lines) + "\n"


def _text_before(name: str, report: Report) -> list[str]:
    roofline = report.roofline
    rate, memory = 1e-9 * roofline.operations_per_second["f32"], 1e-9 * roofline.bytes_per_second
    fast = [step.lost for step in roofline.steps if step.lost < 0]
    return [
        f"{name}, {report.calls} calls. The ceilings are {memory:.1f} GB/s, and {rate:.0f} × 10⁹ operations/s in f32",
        f"({roofline.machine}). {len(fast)} of {len(roofline.steps)} steps were faster than their",
        f"least times, by {1e3 * abs(sum(fast)):.1f} ms in all.",
    ]


def write(document: Path, reports: dict[str, Report]) -> None:
    before, _, rest = document.read_text().partition(BEGIN)
    document.write_text(before + BEGIN + section(reports) + END + rest.partition(END)[2])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("models", nargs="*", metavar="MODEL", default=list(NAMES))
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--calls", type=int, default=10, help="calls of which the times are means")
    parser.add_argument("--depth", type=int, default=2, help="parts of the names of layers")
    parser.add_argument("--write", action="store_true", help=f"write the tables of {DOCUMENT.name}")
    arguments = parser.parse_args()
    require_pytorch()
    reports = {}
    for model in arguments.models or NAMES:
        reports[model] = measure(model, arguments.threads, arguments.calls, arguments.depth)
        print(reports[model], flush=True)
    if arguments.write:
        write(DOCUMENT, reports)


if __name__ == "__main__":
    main()
