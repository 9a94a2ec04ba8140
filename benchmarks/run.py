"""Training steps of Lockstep and of PyTorch, side by side: `make bench`, or benchmarks/run.py [--model …] [--rounds …].

LeNet at batch 64 and an MLP (1024-4096-4096-1000, ReLU) at batch 128, f32, SGD with momentum, at the same global batch:
on one rank with two threads against PyTorch eager, and on two ranks of one thread against DistributedDataParallel over gloo.
Both contestants are started first; then they run in turn, a round of steps each, while the other one sleeps. Reported are the
medians of all steps and of the ratios of neighbouring rounds, which a drift of the machine's speed does not move.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import worker

ENVIRONMENT = {
    "OMPI_ALLOW_RUN_AS_ROOT": "1",
    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    "OMPI_MCA_hwloc_base_binding_policy": "none",
    "OMPI_MCA_btl_vader_single_copy_mechanism": "none",
    "MASTER_PORT": "29531",
}
CONFIGURATIONS = [("1 rank, 2 threads", 1, 2), ("2 ranks, 1 thread", 2, 1)]


class Contestant:
    """The processes of one contestant, which run steps on command."""

    def __init__(self, name: str, model: str, ranks: int, threads: int) -> None:
        self._directory = tempfile.TemporaryDirectory()
        directory = Path(self._directory.name)
        for rank in range(ranks):
            os.mkfifo(directory / f"command.{rank}")
            os.mkfifo(directory / f"report.{rank}")
        command = [
            sys.executable,
            str(Path(__file__).with_name("worker.py")),
            name,
            model,
            str(directory),
            str(threads),
        ]
        if ranks > 1:
            command = ["mpirun", "-np", str(ranks), *command]
        environment = {**os.environ, **ENVIRONMENT, "OMP_NUM_THREADS": str(threads)}
        self._process = subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL)
        # Opened in the order in which each worker does; stop() closes them.
        self._commands = [open(directory / f"command.{rank}", "w", buffering=1) for rank in range(ranks)]  # noqa: SIM115
        self._reports = [open(directory / f"report.{rank}") for rank in range(ranks)]  # noqa: SIM115
        self.seconds: list[float] = []
        self.last: list[dict[str, Any]] = []

    def run(self, steps: int, keep: bool = True) -> float:
        """Runs a round and returns its median, of rank 0: all ranks take the same time, since they wait for each other."""
        for commands in self._commands:
            print(steps, file=commands)
        self.last = [json.loads(reports.readline()) for reports in self._reports]
        seconds = self.last[0]["seconds"]
        if keep:
            self.seconds += seconds
        return statistics.median(seconds)

    def peak_bytes(self) -> int:
        return sum(report["peak_bytes"] for report in self.last)

    def stop(self) -> None:
        for commands in self._commands:
            print("stop", file=commands)
        self._process.wait(60)
        for pipe in [*self._commands, *self._reports]:
            pipe.close()
        self._directory.cleanup()


def compare(model: str, ranks: int, threads: int, rounds: int, steps: int) -> dict[str, Any]:
    ours, theirs = (Contestant(name, model, ranks, threads) for name in ("lockstep", "pytorch"))
    for contestant in (ours, theirs):
        contestant.run(max(3, steps // 2), keep=False)
    before = ours.last[0]["counters"]
    ratios = []
    for _ in range(rounds):
        mine = ours.run(steps)
        ratios.append(theirs.run(steps) / mine)
    counters = {name: value - before[name] for name, value in ours.last[0]["counters"].items()}
    result = {
        "lockstep_ms": 1e3 * statistics.median(ours.seconds),
        "pytorch_ms": 1e3 * statistics.median(theirs.seconds),
        "speedup": statistics.median(ratios),
        "speedup_range": [min(ratios), max(ratios)],
        "lockstep_peak_mib": ours.peak_bytes() / 2**20,
        "pytorch_peak_mib": theirs.peak_bytes() / 2**20,
        "communication_share": counters["communication"] / counters["total"],
        "outside_kernels_share": 1 - (counters["kernels"] + counters["communication"]) / counters["total"],
        "compile_seconds": ours.last[0]["compile_seconds"],
    }
    ours.stop()
    theirs.stop()
    return result


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__.splitlines()[0], formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    parser.add_argument("--model", choices=["lenet", "mlp", "all"], default="all")
    parser.add_argument("--rounds", type=int, default=9, help="rounds of each contestant")
    parser.add_argument("--steps", type=int, help="steps of a round (default: 30 for lenet, 4 for mlp)")
    parser.add_argument(
        "--out", type=Path, default=worker.ROOT / "build/bench/training.json", help="where the numbers go as JSON"
    )
    arguments = parser.parse_args()
    if importlib.util.find_spec("torch") is None:
        sys.exit("benchmarks/run.py compares with PyTorch, which is not installed: .venv/bin/pip install torch==2.13.0")
    if not worker.model_path("mlp").exists():
        worker.write_mlp(worker.model_path("mlp"))

    cpu = next(
        (line.split(":")[1].strip() for line in Path("/proc/cpuinfo").read_text().splitlines() if "model name" in line),
        platform.processor(),
    )
    results: dict[str, Any] = {"cpu": cpu, "cores": os.cpu_count()}
    print(f"{cpu}, {os.cpu_count()} cores; medians of {arguments.rounds} alternating rounds\n")
    print(
        f"{'model':6} {'ranks':18} {'Lockstep':>10} {'PyTorch':>10} {'speedup':>8} {'range':>12} {'peak memory, MiB':>18} {'communication':>14} {'not in kernels':>15} {'compile':>8}"
    )
    for model in ("lenet", "mlp") if arguments.model == "all" else (arguments.model,):
        for name, ranks, threads in CONFIGURATIONS:
            r = compare(model, ranks, threads, arguments.rounds, arguments.steps or {"lenet": 30, "mlp": 4}[model])
            results[f"{model}, {name}"] = r
            low, high = r["speedup_range"]
            print(
                f"{model:6} {name:18} {r['lockstep_ms']:7.2f} ms {r['pytorch_ms']:7.2f} ms {r['speedup']:7.2f}x {low:5.2f}-{high:5.2f}x "
                f"{r['lockstep_peak_mib']:9.0f} / {r['pytorch_peak_mib']:5.0f} {r['communication_share']:13.1%} {r['outside_kernels_share']:15.1%} {r['compile_seconds']:6.2f} s",
                flush=True,
            )
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    arguments.out.write_text(json.dumps(results, indent=1) + "\n")
    print(f"\nwrote {arguments.out}")


if __name__ == "__main__":
    main()
