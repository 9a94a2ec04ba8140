#!/usr/bin/env python3
"""Kills ranks of an elastic job at random moments, and checks that it ends with the bits of an undisturbed run.

    elastic_kills.py --times 50                        four ranks on this host
    elastic_kills.py --times 50 --hosts 2 --ranks 2    two on each of two hosts, which are network namespaces

A killed process is started again and joins, so most kills break a world of four ranks, some one that is being made.
Prints the seconds from a kill until a step is completed in the next world. Needs root for several hosts.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "test/hosts"), str(ROOT / "python_bindings")]

from hosts import Hosts

PROGRAM = ROOT / "test/python/elastic_member.py"
PAUSE, LIMIT_SECONDS = 0.02, 60.0
ENVIRONMENT = {"PYTHONPATH": str(ROOT / "python_bindings"), "OMP_NUM_THREADS": "1"}


@dataclasses.dataclass(frozen=True)
class Line:
    """A completed step, as elastic_member.py writes it."""

    time: float
    call: int
    ranks: int
    step: int


def lines_of(folder: Path) -> dict[int, list[Line]]:
    """The steps that each process has completed."""
    lines = {}
    for path in folder.glob("*.steps"):
        words = [text.split() for text in path.read_text().splitlines()]
        lines[int(path.stem)] = [
            Line(float(at), int(call), int(n), int(step)) for at, call, n, step in filter(None, words)
        ]
    return lines


def is_alive(process: int) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def undisturbed(steps: int) -> dict[str, str]:
    """The hashes of the states after that many steps of one rank."""
    with tempfile.TemporaryDirectory() as name:
        command = [sys.executable, PROGRAM, name, str(steps)]
        subprocess.run(command, env={**os.environ, **ENVIRONMENT}, check=True)
        (result,) = Path(name).glob("*.json")
        return json.loads(result.read_text())


def most_lost(folder: Path) -> int:
    """The largest number of completed steps that were computed again after a kill."""
    lines = sorted((line for each in lines_of(folder).values() for line in each), key=lambda line: line.time)
    newest, lost = 0, 0
    for line in lines:
        lost, newest = max(lost, newest + 1 - line.step if line.step < newest else 0), max(newest, line.step)
    return lost


class Disturbed:
    """A running job, whose processes are killed."""

    def __init__(self, folder: Path, job: subprocess.Popen[bytes], seed: int) -> None:
        self._folder, self._job, self._random = folder, job, random.Random(seed)
        self.recoveries: list[float] = []

    def kill(self, times: int) -> None:
        self._await_step({})
        for number in range(times):
            time.sleep(self._random.uniform(0.0, 3.0))
            before = lines_of(self._folder)
            now = time.time()
            stepping = [each for each, lines in before.items() if lines and now - lines[-1].time < 0.5]
            victims = [each for each in stepping or before if is_alive(each)]
            victim = self._random.choice(victims)
            with contextlib.suppress(ProcessLookupError):
                os.kill(victim, signal.SIGKILL)
            at = time.time()
            calls = {process: lines[-1].call for process, lines in lines_of(self._folder).items() if lines}
            self.recoveries.append(self._await_step(calls) - at)
            print(f"kill {number + 1}: process {victim}, next step after {self.recoveries[-1]:.2f} s", flush=True)

    def _await_step(self, calls: dict[int, int]) -> float:
        """Returns the time of the first step in a later call of `train` than these."""
        limit = time.monotonic() + LIMIT_SECONDS
        while time.monotonic() < limit and self._job.poll() is None:
            new = [
                line.time
                for process, lines in lines_of(self._folder).items()
                for line in lines
                if line.call > calls.get(process, -1)
            ]
            if new:
                return min(new)
            time.sleep(0.02)
        raise SystemExit(f"no step is completed within {LIMIT_SECONDS:.0f} s; exit code {self._job.poll()}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--times", type=int, default=50)
    parser.add_argument("--hosts", type=int, default=1)
    parser.add_argument("--ranks", type=int, default=4, help="on each host")
    parser.add_argument("--steps", type=int, help="(default: 60 for each kill)")
    parser.add_argument("--sharded", action="store_true", help="ranks share the optimizer's states")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    steps = arguments.steps or 100 + 60 * arguments.times
    with tempfile.TemporaryDirectory() as name, contextlib.ExitStack() as stack:
        options = ["elastic", "--restart", str(arguments.times)]
        program = ["--", sys.executable, str(PROGRAM), name, str(steps), str(PAUSE)]
        program += ["shard_optimizer"] if arguments.sharded else []
        if arguments.hosts == 1:
            command = [str(ROOT / "tools/lockstep"), *options, "-n", str(arguments.ranks), *program]
            environment = {**os.environ, **ENVIRONMENT}
        else:
            hosts = stack.enter_context(Hosts(arguments.hosts, "1gbit"))
            places = ",".join(f"{host}:{arguments.ranks}" for host in hosts.names)
            command = hosts.on_first(str(ROOT / "tools/lockstep"), *options, "--hosts", places, *program)
            environment = {**hosts.environment(), **ENVIRONMENT}
        job = subprocess.Popen(command, env=environment)
        stack.callback(job.wait, 30)
        stack.callback(job.terminate)
        disturbed = Disturbed(Path(name), job, arguments.seed)
        disturbed.kill(arguments.times)
        code = job.wait(600)
        results = [json.loads(path.read_text()) for path in Path(name).glob("*.json")]
        expected, lost = undisturbed(steps), most_lost(Path(name))
        same = [result == expected for result in results if result is not None]
        times = disturbed.recoveries
        print(
            f"{len(times)} kills, exit code {code}, {sum(same)} of {len(same)} processes have the bits of an undisturbed "
            f"run; at most {lost} steps again; next step after {statistics.median(times):.2f} s, at most {max(times):.2f} s"
        )
        return 0 if code == 0 and same and all(same) and lost <= 2 else 1


if __name__ == "__main__":
    sys.exit(main())
