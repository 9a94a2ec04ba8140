"""Training steps of Lockstep and of PyTorch, side by side: `make bench`, or benchmarks/run.py [MODEL ...] [--rounds …].

LeNet at batch 64, an MLP (1024-4096-4096-1000, ReLU) at batch 128, a GPT (6 layers, width 512, 8 heads, vocabulary 8192, 128
tokens) at batch 8 and ResNet-50 (224 x 224) at batch 16, f32, SGD with momentum, at the same global batch: on one rank with two
threads against PyTorch, and on two ranks of one thread against DistributedDataParallel over gloo. PyTorch runs eager and compiled,
convolutions also with channels last. gpt-bf16, gpt-f16 and resnet50-bf16 are trained with that precision, against PyTorch's autocast, and
against Lockstep's f32. All contestants are started first; then they run in turn, a round of steps each, while the
others sleep. Reported are the medians of all steps and of the ratios of neighbouring rounds, which a drift of the machine's speed
does not move; the processors' seconds for a step, which other work on the machine moves little; what the process takes at most, and of
that what Lockstep's values do; and the time from the model to the first step.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import platform
import socket
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
}
PEERS = {
    "lenet": ("eager", "compiled"),
    "mlp": ("eager", "compiled"),
    "gpt": ("eager", "compiled"),
    "resnet50": ("eager", "eager-channels-last", "compiled-channels-last"),
    "gpt-bf16": ("lockstep-f32", "eager", "compiled"),
    "gpt-f16": ("lockstep-f32", "eager"),
    "resnet50-bf16": ("lockstep-f32", "eager-channels-last", "compiled-channels-last"),
}
STEPS = {"lenet": 30, "mlp": 4, "gpt": 2, "resnet50": 1, "gpt-bf16": 2, "gpt-f16": 2, "resnet50-bf16": 1}
CONFIGURATIONS = [("1 rank, 2 threads", 1, 2), ("2 ranks, 1 thread", 2, 1)]


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return server.getsockname()[1]


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
        environment = {
            **os.environ,
            **ENVIRONMENT,
            "OMP_NUM_THREADS": str(threads),
            "MASTER_PORT": str(free_port()),  # of PyTorch's ranks; several contestants live at once
        }
        self._process = subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL)
        # Opened in the order in which each worker does; stop() closes them.
        self._commands = [open(directory / f"command.{rank}", "w", buffering=1) for rank in range(ranks)]  # noqa: SIM115
        self._reports = [open(directory / f"report.{rank}") for rank in range(ranks)]  # noqa: SIM115
        self.seconds: list[float] = []
        self.processor_seconds: list[float] = []  # of a step, all ranks; by round
        self.last: list[dict[str, Any]] = []

    def run(self, steps: int, keep: bool = True) -> float:
        """Runs a round and returns its median, of rank 0: all ranks take the same time, since they wait for each other."""
        for commands in self._commands:
            print(steps, file=commands)
        self.last = [json.loads(reports.readline()) for reports in self._reports]
        seconds = self.last[0]["seconds"]
        if keep:
            self.seconds += seconds
            self.processor_seconds.append(sum(report["processor_seconds"] for report in self.last))
        return statistics.median(seconds)

    def measured(self) -> dict[str, float]:
        """Times of steps, and what all ranks take together."""
        mib = {
            name: sum(report[f"{name}_bytes"] for report in self.last) / 2**20
            for name in ("peak", "value")
            if f"{name}_bytes" in self.last[0]
        }
        return {
            "ms": 1e3 * statistics.median(self.seconds),
            "processor_seconds": statistics.median(self.processor_seconds),
            **{f"{name}_mib": value for name, value in mib.items()},
            "compile_seconds": self.last[0]["compile_seconds"],
        }

    def stop(self) -> None:
        for commands in self._commands:
            print("stop", file=commands)
        self._process.wait(60)
        for pipe in [*self._commands, *self._reports]:
            pipe.close()
        self._directory.cleanup()


def compare(model: str, ranks: int, threads: int, rounds: int, steps: int) -> dict[str, Any]:
    ours = Contestant("lockstep", model, ranks, threads)
    theirs = {name: Contestant(name, model, ranks, threads) for name in PEERS[model]}
    for contestant in (ours, *theirs.values()):
        contestant.run(max(2, steps // 2), keep=False)
    before = ours.last[0]["counters"]
    ratios: dict[str, list[float]] = {name: [] for name in theirs}
    for _ in range(rounds):
        mine = ours.run(steps)
        for name, contestant in theirs.items():
            ratios[name].append(contestant.run(steps) / mine)
    counters = {name: value - before[name] for name, value in ours.last[0]["counters"].items()}
    result = {
        **ours.measured(),
        "communication_share": counters["communication"] / counters["total"],
        "outside_kernels_share": 1 - (counters["kernels"] + counters["communication"]) / counters["total"],
        "peers": {
            name: {
                **contestant.measured(),
                "speedup": statistics.median(ratios[name]),
                "speedup_range": [min(ratios[name]), max(ratios[name])],
            }
            for name, contestant in theirs.items()
        },
    }
    for contestant in (ours, *theirs.values()):
        contestant.stop()
    return result


def prepare(model: str) -> None:
    """Exports the model and its batch, in a process of its own, as the workers of Lockstep do not need torch."""
    model = worker.network_of(model)
    path = worker.model_path(model)
    if path.exists():
        return
    code = (
        f"import networks, numpy, pathlib; path = pathlib.Path({str(path)!r}); networks.export({model!r}, path);"
        f"[numpy.save(path.with_suffix('.' + name + '.npy'), value) for name, value in zip(('x', 'label'), networks.batch({model!r}))]"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=Path(__file__).parent, stdout=subprocess.DEVNULL)


def show(model: str, configuration: str, result: dict[str, Any]) -> None:
    def line(first: str, second: str, name: str, measured: dict[str, float], speedup: str, rest: str = "") -> None:
        values = f"{measured['value_mib']:9.0f}" if "value_mib" in measured else " " * 9
        print(
            f"{first:13} {second:17} {name:22} {measured['ms']:9.2f} ms {speedup:22} {measured['processor_seconds']:8.3f} s "
            f"{measured['peak_mib']:9.0f} {values} {measured['compile_seconds']:9.2f} s{rest}",
            flush=True,
        )

    shares = (
        f"   communication {result['communication_share']:.1%}, not in kernels {result['outside_kernels_share']:.1%}"
    )
    line(model, configuration, "Lockstep", result, "", shares)
    for name, peer in result["peers"].items():
        low, high = peer["speedup_range"]
        line("", "", name, peer, f"{peer['speedup']:7.2f}x {low:5.2f}-{high:5.2f}x")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__.splitlines()[0], formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    parser.add_argument("models", nargs="*", metavar="MODEL", help=f"of {', '.join(PEERS)}; all if there are none")
    parser.add_argument("--rounds", type=int, default=9, help="rounds of each contestant")
    parser.add_argument("--steps", type=int, help=f"steps of a round (default: {STEPS})")
    parser.add_argument(
        "--out", type=Path, default=worker.ROOT / "build/bench/training.json", help="where the numbers go as JSON"
    )
    arguments = parser.parse_args()
    if unknown := set(arguments.models) - PEERS.keys():
        parser.error(f"there is no model {', '.join(sorted(unknown))}; there are {', '.join(PEERS)}")
    if missing := [name for name in ("torch", "onnxscript") if importlib.util.find_spec(name) is None]:
        sys.exit(
            f"benchmarks/run.py compares with PyTorch, and {' and '.join(missing)} is not installed: "
            ".venv/bin/pip install torch==2.13.0 onnxscript==0.7.2"
        )

    cpu = next(
        (line.split(":")[1].strip() for line in Path("/proc/cpuinfo").read_text().splitlines() if "model name" in line),
        platform.processor(),
    )
    results: dict[str, Any] = {"cpu": cpu, "cores": os.cpu_count()}
    print(f"{cpu}, {os.cpu_count()} cores; medians of {arguments.rounds} alternating rounds\n")
    print(
        f"{'model':13} {'ranks':17} {'':22} {'a step':>12} {'speedup':>8} {'range':>13} {'processors':>10} {'peak, MiB':>9} "
        f"{'of values':>9} {'first step':>11}"
    )
    for model in arguments.models or PEERS:
        prepare(model)
        for configuration, ranks, threads in CONFIGURATIONS:
            result = compare(model, ranks, threads, arguments.rounds, arguments.steps or STEPS[model])
            results[f"{model}, {configuration}"] = result
            show(model, configuration, result)
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    arguments.out.write_text(json.dumps(results, indent=1) + "\n")
    print(f"\nwrote {arguments.out}")


if __name__ == "__main__":
    main()
