"""The parts of the check that measure. Contestants alternate. Reports medians, and ratios of adjacent rounds."""

from __future__ import annotations

import json
import re
import statistics
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from check_report import FAILED, LEFT_OUT, MEASURED, Report, shortened
from machine import HERE, ROOT, Contestant, Machine, OutOfTime, kill_group

GIB = 2**30


@dataclass(frozen=True)
class Race:
    network: str
    precision: str  # of products and convolutions: "f32", "TF32" or "bf16"
    peers: tuple[str, ...]  # modes of torch_peer.py
    jax: bool
    steps: int  # of one round
    rounds: int = 5

    @property
    def name(self) -> str:
        return f"{self.network}, {self.precision}"


# The most important races come first, in case time runs out.
RACES = {
    "gpt-bf16": Race("gpt", "bf16", ("eager", "default"), True, 4),
    "resnet50-bf16": Race("resnet50", "bf16", ("channels-last", "channels-last+default"), False, 4),
    "resnet50": Race("resnet50", "TF32", ("eager", "channels-last", "channels-last+default"), False, 4),
    "gpt": Race("gpt", "TF32", ("eager", "default", "reduce-overhead"), True, 4),
    "lenet": Race("lenet", "f32", ("eager", "default", "reduce-overhead"), True, 50),
    "mlp": Race("mlp", "TF32", ("eager", "default", "max-autotune"), True, 50),
    "resnet50-f32": Race("resnet50", "f32", ("eager", "channels-last"), False, 4),
}


def network_of(race: Race, machine: Machine) -> str:
    return race.network if not machine.tiny or race.network == "lenet" else f"{race.network}-tiny"


def torch_command(machine: Machine, race: Race, how: str) -> list[str | Path]:
    device = "cpu" if machine.tiny else "cuda"
    network = network_of(race, machine)
    return [str(machine.python), HERE / "torch_peer.py", "steps", network, how, device, race.precision]


def jax_command(machine: Machine, race: Race) -> list[str | Path]:
    return [str(machine.python), HERE / "jax_peer.py", network_of(race, machine), race.precision]


class Prewarming:
    """Fills the caches of torch.compile, which takes minutes, in the background while the parts before the measurements
    run.
    """

    def __init__(self, machine: Machine, races: list[Race]) -> None:
        self._machine = machine
        self._todo = [(race, how) for race in races for how in race.peers if how not in ("eager", "channels-last")]
        self._end = threading.Event()
        self._threads = [threading.Thread(target=self._run, daemon=True) for _ in range(2)]
        for thread in self._threads:
            thread.start()

    def _run(self) -> None:
        while not self._end.is_set():
            try:
                race, how = self._todo.pop(0)
            except IndexError:
                return
            log = self._machine.raw / f"prewarm.{race.name.replace(', ', '.')}.{how}.log"
            command = ["nice", "-n", "15", *torch_command(self._machine, race, how)]
            process = self._machine.start(command, self._machine.theirs, log)
            while process.poll() is None and not self._end.wait(0.2):
                pass
            if process.poll() is None:
                kill_group(process)

    def wait(self, seconds: float) -> None:
        """Waits until all caches are filled or the time is up, then kills the processes that still run."""
        for thread in self._threads:
            thread.join(seconds / len(self._threads))
        self._end.set()
        for thread in self._threads:
            thread.join(5)


def spread(values: list[float], unit: str = "", scale: float = 1.0) -> str:
    """The median, the least and the greatest, as text."""
    low, middle, high = (scale * value for value in (min(values), statistics.median(values), max(values)))
    return f"{middle:.3g}{unit} ({low:.3g} to {high:.3g})"


@dataclass
class Turns:
    """The results of races between Lockstep and one other contestant: the median of each round, in seconds per step."""

    ours: list[float]
    theirs: list[float]
    resident: list[float]  # of the other, with the batch on the GPU and one wait per round

    def text(self) -> str:
        fed = [t / o for t, o in zip(self.theirs, self.ours, strict=True)]
        kept = [t / o for t, o in zip(self.resident, self.ours, strict=True)]
        return (
            f"{spread(self.theirs, ' ms', 1e3)}, {spread(fed)} times Lockstep's; with the batch on the GPU "
            f"{spread(self.resident, ' ms', 1e3)}, {spread(kept)} times"
        )


def take_turns(ours: Contestant, other: Contestant, race: Race, machine: Machine) -> tuple[Turns, dict[str, Any]]:
    rounds, steps = (2, 2) if machine.tiny else (race.rounds, race.steps)
    turns, last = Turns([], [], []), {}
    other.run(max(1, steps // 4))
    ours.run(max(1, steps // 4))
    for _ in range(rounds):
        mine = ours.run(steps)
        last = other.run(steps)
        turns.ours.append(statistics.median(mine["seconds"]))
        turns.theirs.append(statistics.median(last["seconds"]))
        turns.resident.append(last["resident"])
    return turns, last


def start_ours(machine: Machine, race: Race, suffix: str = "") -> tuple[Contestant, dict[str, Any]]:
    command = [
        machine.ours_python,
        "-s",
        HERE / "ours.py",
        "steps",
        network_of(race, machine),
        machine.backend,
        race.precision,
    ]
    ours = Contestant(machine, f"steps.{race.name.replace(', ', '.')}.lockstep{suffix}", command, machine.ours)
    return ours, ours.answer(120)


def memory_text(answer: dict[str, Any]) -> str:
    if "peak_bytes" not in answer:
        return ""
    text = f"; memory at most {answer['peak_bytes'] / GIB:.2f} GiB in use"
    return text + (f", {answer['reserved_bytes'] / GIB:.2f} GiB reserved" if "reserved_bytes" in answer else "")


def race_against(machine: Machine, report: Report, race: Race, ours: Contestant, name: str, command: list) -> None:
    part = f"step of {race.name}"
    try:
        other = Contestant(machine, f"steps.{race.name.replace(', ', '.')}.{name}", command, machine.theirs)
        started = other.answer(120)
        try:
            turns, last = take_turns(ours, other, race, machine)
        finally:
            other.stop()
    except (RuntimeError, OutOfTime) as error:
        return report.add(part, name, LEFT_OUT, shortened(str(error)))
    text = f"{turns.text()}; ready after {started['compile_seconds']:.1f} s{memory_text(last)}"
    report.add(part, name, MEASURED, text)


def run_race(machine: Machine, report: Report, race: Race) -> None:
    part, steps = f"step of {race.name}", 2 if machine.tiny else 2 * race.steps
    ours, cold = start_ours(machine, race)
    try:
        ours.run(max(1, steps // 4))
        alone = ours.run(steps)
        text = f"{spread(alone['seconds'], ' ms', 1e3)}, {1e3 * alone['started']:.3g} ms if steps are started ahead"
        text += f"; ready after {cold['compile_seconds']:.1f} s"
        if cold["gpu_bytes"]:
            text += (
                f"; memory {cold['gpu_bytes'] / GIB:.2f} GiB, what libraries take included, the driver's context not"
            )
        report.add(part, "Lockstep", MEASURED, text)
        detail = machine.raw / f"profile.{race.name.replace(', ', '.')}.json"
        detail.write_text(json.dumps({**cold, **alone}, indent=1))
        # Before the peers, which may use up the time that is left.
        again, warm = start_ours(machine, race, ".again")
        again.stop()
        report.add(part, "Lockstep in a second process", MEASURED, f"ready after {warm['compile_seconds']:.1f} s")
        peers = [(f"torch {how}", torch_command(machine, race, how)) for how in race.peers] if machine.torch else []
        if machine.jax and race.jax:
            peers.append(("jax", jax_command(machine, race)))
        for name, command in peers:
            race_against(machine, report, race, ours, name, command)
    finally:
        ours.stop()


def bandwidth(machine: Machine, report: Report) -> None:
    """Compares each loop with a copy, in bytes that it has to move per second."""
    part = "loops against a copy"
    worker = [machine.ours_python, "-s", HERE / "ours.py"]
    copy = Contestant(machine, "loop.copy", [*worker, "copy", machine.backend], machine.ours)
    try:
        copied = copy.answer(60)["bytes"]
        for name in ("update", "rows", "columns"):
            loop = Contestant(machine, f"loop.{name}", [*worker, "loop", name, machine.backend], machine.ours)
            try:
                moved = loop.answer(60)["bytes"]
                rates, shares = [], []
                for _ in range(3):
                    reference = copied / statistics.median(copy.run(20)["seconds"])
                    rates.append(moved / statistics.median(loop.run(20)["seconds"]) / 1e9)
                    shares.append(rates[-1] * 1e9 / reference)
            finally:
                loop.stop()
            text = f"{spread(rates, ' GB/s')}, {spread(shares)} of a copy's, the run's start and end included"
            report.add(part, name, MEASURED, text)
    finally:
        copy.stop()
    one = Contestant(machine, "loop.one", [*worker, "loop", "one", machine.backend], machine.ours)
    try:
        one.answer(60)
        one.run(100)
        report.add("host", "a run of one element", MEASURED, spread(one.run(1000)["seconds"], " us", 1e6))
    finally:
        one.stop()
    feeding(machine, report)


def feeding(machine: Machine, report: Report) -> None:
    """Compares the rate of copying a batch to the GPU with that of the driver, which copies pinned memory."""
    names = {"call": "a call", "start": "a started call", "pinned": "the driver's copy of pinned memory"}
    for how, name in names.items():
        command = [machine.ours_python, "-s", HERE / "ours.py", "feed", how, machine.backend]
        feed = Contestant(machine, f"feed.{how}", command, machine.ours)
        try:
            bytes_each = feed.answer(60)["bytes"]
            feed.run(10)
            rates = [bytes_each / seconds / 1e9 for seconds in feed.run(30)["seconds"]]
        finally:
            feed.stop()
        report.add(f"a batch of {bytes_each / 1e6:.0f} MB from the host", name, MEASURED, spread(rates, " GB/s"))


def profile(machine: Machine, report: Report) -> None:
    """Profiles the steps of the large networks. The full profiles are in raw/profile.*.log."""
    for precision in ("bf16", "TF32"):
        for network in ("resnet50", "gpt"):
            profile_of(machine, report, f"{network}-tiny" if machine.tiny else network, precision)


def profile_of(machine: Machine, report: Report, network: str, precision: str) -> None:
    name = f"{network}.{precision}"
    file = machine.scratch / f"{name}.ir"
    if machine.run_ours(f"text.{name}", "text", network, precision, file, seconds=60).code != 0:
        return report.add("profile", name, FAILED, f"no text of the step: raw/text.{name}.log")
    command = [ROOT / "bin/lockstep-run", file, f"--backend={machine.backend}", "--repeat=5", "--profile"]
    strategy = ["--strategy=tf32=true"] if precision == "TF32" else []
    command += [*strategy, "--print_steps", "--roofline"]
    done = machine.run(f"profile.{name}", command, machine.ours, machine.left())
    lines = [(float(time), step) for time, step in re.findall(r"^ +([0-9.]+) us +(.*)$", done.out, re.MULTILINE)]
    total = sum(time for time, _ in lines)
    if done.code != 0 or total == 0:
        return report.add("profile", name, FAILED, f"exit code {done.code}, no times: {shortened(done.out[-400:])}")
    top = [f"{time / total:.1%} {shortened(step, 100)}" for time, step in lines[:6]]
    what = f"{name}, {len(lines)} steps one by one"
    return report.add("profile", what, MEASURED, f"{total / 1e3:.2f} ms: {'; '.join(top)}")


def guarded(race: Race) -> Any:
    def part(machine: Machine, report: Report) -> None:
        try:
            run_race(machine, report, race)
        except RuntimeError as error:  # an error of our worker
            report.add(f"step of {race.name}", "Lockstep", FAILED, shortened(str(error), 1000))
        except OutOfTime as late:
            report.add(f"step of {race.name}", "the rest", FAILED, str(late))

    return part
