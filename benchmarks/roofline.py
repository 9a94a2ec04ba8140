#!/usr/bin/env python3
"""The least times of the GPU check's large steps, as docs/gpu.md lists them: for a GPU that need not be present.

    .venv/bin/python benchmarks/roofline.py                              the least time of each step on an H200
    .venv/bin/python benchmarks/roofline.py --profile=gpt=profile.txt    and its share of measured times, by kind

A profile is the output of `lockstep-run --profile` for the step in TF32, as the check writes it to raw/profile.*.log.
Needs `make build`, and the onnx package.
"""

from __future__ import annotations

import argparse
import re
import statistics
import subprocess
import sys
import tempfile
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "python_bindings"), str(ROOT / "test" / "cuda_check")]

import write_graphs
from specs import SPECS, Spec

import lockstep as ls

FEW = 10  # microseconds: most of the measured time of a shorter step is its launch


def dry(spec: Spec, precision: str | None, isa: str, *flags: str) -> str:
    """Returns what lockstep-run prints for a training step: in TF32, if there is no other precision."""
    loss, optimizer = ls.loss.softmax_cross_entropy("logits", "label"), ls.optim.SGD(0.1, momentum=0.9)
    options = {"precision": precision} if precision else {}
    step = ls.train_step(write_graphs.graph_of(spec), loss, optimizer, **options)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "step.ir"
        file.write_text(str(step))
        command = [ROOT / "bazel-bin/tools/lockstep-run", file, "--backend=cuda", f"--isa={isa}", "--dry", *flags]
        command += [] if precision else ["--strategy=tf32=true"]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def roofline(spec: Spec, precision: str | None, isa: str) -> str:
    return dry(spec, precision, isa, "--roofline")


def steps_of(text: str, line: str) -> dict[tuple[str, str], list[float]]:
    """Returns the sorted microseconds of steps, by kind and source. Numbers of values differ between versions."""
    found = defaultdict(list)
    for microseconds, step in re.findall(line, text, re.MULTILINE):
        found[re.split(r"[ +]", step)[0], step.partition(", at ")[2]].append(float(microseconds))
    return {key: sorted(times) for key, times in found.items()}


def shares(least: str, profile: str) -> list[str]:
    """Returns a row for each kind of step: measured and least milliseconds, and the median share with its range."""
    measured = steps_of(profile, r"^ +([0-9.]+) us +(.*)$")
    floors = steps_of(least.partition("least us")[2], r"^ +([0-9.]+) +[0-9.]+ +[0-9.]+  (.*)$")
    kinds = defaultdict(list)
    for key, times in measured.items():
        if len(times) == len(floors.get(key, [])):
            kinds[key[0]] += zip(times, floors[key], strict=True)
    rows = []
    for kind, pairs in sorted(kinds.items(), key=lambda item: -sum(time for time, _ in item[1])):
        total, floor = (sum(pair[i] for pair in pairs) / 1e3 for i in (0, 1))
        parts = [each / time for time, each in pairs if each > FEW]
        share = f"{statistics.median(parts):.2f} ({min(parts):.2f} to {max(parts):.2f})" if parts else ""
        rows.append(f"{kind:<30} {len(pairs):5d} steps {total:8.2f} ms {floor:8.2f} ms  {share}")
    matched = sum(map(len, kinds.values()))
    return [*rows, f"{matched} of {sum(map(len, measured.values()))} measured steps"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--isa", default="h200")
    parser.add_argument("--profile", action="append", default=[], help="NETWORK=FILE; network: gpt, resnet50")
    arguments = parser.parse_args()
    profiles = dict(each.split("=", 1) for each in arguments.profile)
    for network in ("resnet50", "gpt"):
        for precision in ("bf16", None):
            text = roofline(SPECS[network], precision, arguments.isa)
            print(f"{network}, {precision or 'TF32'}")
            print("\n".join(line for line in text.splitlines() if line.endswith(" all") or line.startswith("bytes: ")))
            if precision is None and network in profiles:
                print("\n".join(shares(text, Path(profiles[network]).read_text())))


if __name__ == "__main__":
    main()
