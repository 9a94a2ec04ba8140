"""Checks and measures the cuda backend on a machine with a GPU: tools/cuda_check.sh runs it, with the bundle's Python.

Parts run one after the other, in the order of --parts, each with its own time limit. A part that fails or takes too
long becomes a row of the table, and the next part runs. Results are in OUT/gpu_results.md and OUT/results.jsonl after
each row, all output in OUT/raw. The exit code is 0 if something was checked or measured and nothing failed. The table
lists what was left out, and why.
"""

from __future__ import annotations

import argparse
import os
import platform
import shutil
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import measures
import parts
from check_report import FAILED, LEFT_OUT, Report, shortened, today
from machine import ROOT, Machine, OutOfTime

SLOWER = 5  # factor of the limits on a machine without a GPU, where only the check itself is tried
PartFunction = Callable[[Machine, Report], None]


@dataclass(frozen=True)
class Part:
    run: PartFunction
    seconds: float  # the time limit


SECONDS = 300  # of the default parts together

# The default parts come first, in their order. On an H100 with 16 cores, ops, programs and losses together took about
# 100 s, and a race of one network with three peers 60 to 100 s.
PARTS: dict[str, Part] = {
    "doctor": Part(parts.doctor, 20),
    "ops": Part(parts.op_cases, 90),
    "programs": Part(parts.programs, 80),
    "losses": Part(parts.losses, 80),
    "nccl": Part(parts.nccl, 30),
    "nccl-graph": Part(parts.nccl_graph, 30),
    "ranks": Part(parts.failing_ranks, 40),
    "gpt-bf16": Part(measures.guarded(measures.RACES["gpt-bf16"]), 75),
    "resnet50-bf16": Part(measures.guarded(measures.RACES["resnet50-bf16"]), 60),
    "bandwidth": Part(measures.bandwidth, 30),
    "profile": Part(measures.profile, 60),
    "sanitizer": Part(parts.sanitizer, 45),
    **{name: Part(measures.guarded(race), 100) for name, race in measures.RACES.items() if "bf16" not in name},
}
DEFAULT = list(PARTS)[: list(PARTS).index("bandwidth") + 1]


def parts_of(text: str) -> dict[str, Part]:
    """Returns the parts that `text` names, separated by commas, in that order."""
    names = [name for name in text.split(",") if name]
    if unknown := [name for name in names if name not in PARTS]:
        sys.exit(f"cuda_check.sh: there is no part {', '.join(unknown)}; there are {', '.join(PARTS)}")
    return {name: PARTS[name] for name in names}


def run_parts(machine: Machine, report: Report, chosen: Mapping[str, Part], seconds: float) -> None:
    """Runs the parts while time is left. An exception in one does not keep the next from running."""
    end = time.monotonic() + seconds
    for name, part in chosen.items():
        if time.monotonic() > end - 5:
            report.add(name, "all of it", LEFT_OUT, f"the check's {seconds:.0f} s were over")
            continue
        begin = time.monotonic()
        machine.deadline = min(end, begin + part.seconds * (SLOWER if machine.tiny else 1))
        try:
            part.run(machine, report)
        except OutOfTime as late:
            report.add(name, "not done in time", FAILED, str(late))
        except Exception as error:  # noqa: BLE001 (the other parts run after any exception)
            (machine.raw / f"{name}.traceback.log").write_text(traceback.format_exc())
            report.add(name, "broke off", FAILED, shortened(f"{type(error).__name__}: {error}"))
        finally:
            report.took(name, time.monotonic() - begin)


def warm_first(machine: Machine, chosen: dict[str, Part]) -> dict[str, Part]:
    """Returns the same parts; torch.compile fills its caches in the background before the first measurement."""
    races = [race for name, race in measures.RACES.items() if name in chosen]
    if machine.tiny or not machine.torch or not races:
        return chosen
    warming = measures.Prewarming(machine, races)
    first = next(name for name in chosen if name in ("bandwidth", "profile") or name in measures.RACES)
    wait = {"caches": Part(lambda machine, report: warming.wait(machine.left() - 5), 20)}
    names = list(chosen)
    before, after = names[: names.index(first)], names[names.index(first) :]
    return {name: chosen[name] for name in before} | wait | {name: chosen[name] for name in after}


def first_line(path: str, key: str, sign: str = ":") -> str:
    text = Path(path).read_text(errors="replace") if Path(path).exists() else ""
    return next((line.partition(sign)[2].strip() for line in text.splitlines() if line.startswith(key)), "unknown")


def gpu() -> str:
    program = shutil.which("nvidia-smi")
    if program is None:
        return "unknown, as there is no nvidia-smi"
    query = [program, "--query-gpu=name,memory.total,driver_version", "--format=csv,noheader"]
    done = subprocess.run(query, capture_output=True, text=True, check=False, timeout=30)
    return "; ".join(done.stdout.split("\n")).strip("; ") or shortened(done.stderr)


def facts(machine: Machine) -> dict[str, str]:
    commit = ROOT / "COMMIT"
    system = first_line("/etc/os-release", "PRETTY_NAME", "=").strip('"')
    return {
        "date": today(),
        "commit": commit.read_text().strip() if commit.exists() else "unknown",
        "backend": machine.backend + (", tiny sizes: the check itself was tried" if machine.tiny else ""),
        "GPU, memory, driver": gpu(),
        "processor": f"{first_line('/proc/cpuinfo', 'model name')}, {len(os.sched_getaffinity(0))} cores",
        "system": f"{system}, Linux {platform.release()}, glibc {platform.libc_ver()[1]}",
        "PyTorch": machine.torch or "none",
        "JAX": machine.jax or "none",
    }


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="cuda_check.sh", description=__doc__.splitlines()[0])
    parser.add_argument(
        "--out", type=Path, default=Path("cuda_check"), help="folder for the results (default: %(default)s)"
    )
    parser.add_argument(
        "--parts",
        default=",".join(DEFAULT),
        help="names of the parts to run, in order, separated by commas (default: %(default)s; the others are "
        + ",".join(name for name in PARTS if name not in DEFAULT)
        + ")",
    )
    parser.add_argument(
        "--backend",
        choices=("cuda", "cpu"),
        default="cuda",
        help="backend to check; cpu only tries the check itself, with tiny sizes",
    )
    parser.add_argument("--python", help="Python with torch and jax (default: python3 on the PATH)")
    parser.add_argument(
        "--seconds",
        type=float,
        help=f"time limit for all parts together (default: {SECONDS}; with --backend=cpu five times that)",
    )
    options = parser.parse_args()
    options.seconds = options.seconds or SECONDS * (SLOWER if options.backend == "cpu" else 1)
    return options


def main() -> int:
    begin, options = time.monotonic(), arguments()
    chosen = parts_of(options.parts)
    out = options.out.resolve()
    out.mkdir(parents=True, exist_ok=True)
    (out / "results.jsonl").write_text("")
    machine = Machine(out, options.backend, options.python)
    report = Report(out, facts(machine))
    if machine.backend == "cuda" and machine.count_gpus() == 0:
        report.add(
            "all parts",
            "backend cuda",
            LEFT_OUT,
            "no GPU was found: the part doctor shows what is missing; --backend=cpu tries the check",
        )
        chosen = {name: part for name, part in chosen.items() if name == "doctor"}
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that started processes are killed
    try:
        run_parts(machine, report, warm_first(machine, chosen), options.seconds - (time.monotonic() - begin))
    finally:
        machine.kill_all()
        shutil.rmtree(machine.scratch, ignore_errors=True)
    print("\n" + report.document())
    return 0 if report.passed() else 1


if __name__ == "__main__":
    sys.exit(main())
