"""`lockstep forecast`: estimates the duration of a training step on more hosts than there are.

A simulation runs the steps of a traced program, event by event, on another machine. A kernel takes its measured
seconds. A collective starts where the program starts it, and uses the route that is fastest there
(runtime/comm/routes/route_choice.h) while later kernels run. All hosts are alike, so one represents all.

    machine = Machine.read("machine.toml")
    for row in forecast(exe.report(), machine, hosts=[1, 2, 4]):
        print(row.hosts, row.seconds, row.efficiency)
"""

from __future__ import annotations

import dataclasses
from collections import defaultdict, deque
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np

from . import _lockstep
from ._base import checks
from ._base.errors import Error
from ._compile.machine import Link, Machine, lines_of
from ._reports import job_report
from ._reports.record import Step
from ._reports.report import Report, milliseconds

__all__ = ["Forecast", "Link", "Machine", "forecast", "picture", "table"]

_HOSTS = [2**i for i in range(11)]


@dataclasses.dataclass(frozen=True)
class Forecast:
    """The time of a step on a number of hosts, in seconds."""

    hosts: int
    ranks: int  # of all hosts
    seconds: float  # compute + exposed + other
    compute: float  # kernels, including their slowdown by concurrent communication
    exposed: float  # waiting for collectives
    other: float  # inputs, results and checks
    sent: int  # bytes that one host sends
    efficiency: float  # seconds of a step on one host / seconds here; 1 is perfect


@dataclasses.dataclass
class _Move:
    """Data of a collective in transit. It takes `share` of the core, and arrives `latency` after `end`."""

    begin: float
    end: float
    share: float
    latency: float


class _Core:
    """A simulated core: the thread that runs kernels, and the transfers that run at the same time, in starting order.

    Urgent transfers have their own connections (runtime/execution/executor_load.cc): they run at once, and delay the
    other transfers by their duration.
    """

    def __init__(self, machine: Machine, hosts: int) -> None:
        self._machine, self._hosts = machine, hosts
        self.now = self.compute = self.exposed = 0.0
        self.sent = 0
        self._free = self._urgent_free = 0.0  # when the last transfer ends, and the last urgent one
        self._moving: deque[_Move] = deque()  # without urgent transfers
        self._under_way: dict[str, deque[_Move]] = defaultdict(deque)  # until waited for

    def run(self, seconds: float) -> None:
        """Runs a kernel that takes `seconds` when it has the core alone."""
        begin = self.now
        while seconds > 0:
            while self._moving and self._moving[0].end <= self.now:
                self._moving.popleft()
            move = self._moving[0] if self._moving else _Move(np.inf, np.inf, 0.0, 0.0)
            rate, until = (1.0, move.begin) if move.begin > self.now else (1.0 - move.share, move.end)
            last = self.now + seconds / rate if rate > 0 else np.inf
            if last <= until:
                self.now, seconds = last, 0.0
            else:
                seconds -= (until - self.now) * rate
                self.now = until
        self.compute += self.now - begin

    def start(self, step: Step) -> None:
        """Starts a collective. Between hosts data moves by itself. Ranks of one host move it when they wait."""
        machine, name = self._machine, step.name.partition(".")[0]
        within = machine.within.latency + step.bytes / machine.within.bandwidth if machine.within else 0.0
        if self._hosts == 1:
            self._under_way[step.label].append(_Move(self.now, self.now, 0.0, within))
            return
        link = machine.between
        messages, sent = _lockstep._travel(name, step.bytes, self._hosts, machine.ranks, link.latency, link.bandwidth)
        processor = sent * machine.processor
        seconds = max(sent / link.bandwidth, processor, within)
        self.sent += sent
        move = _Move(0.0, 0.0, processor / seconds if seconds > 0 else 0.0, messages * link.latency)
        self._under_way[step.label].append(move)
        move.begin = max(self.now, self._urgent_free if step.urgent else self._free)
        move.end = move.begin + seconds
        if not step.urgent:
            self._free = move.end
            self._moving.append(move)
            return
        self._urgent_free = move.end
        for other in self._moving:
            if other.end > self.now:
                other.begin += seconds if other.begin > self.now else 0.0
                other.end += seconds
        self._free = max(self._free + seconds, move.end)

    def wait(self, step: Step) -> None:
        if not self._under_way[step.label]:
            raise Error(f"forecast: {step} was never started")
        move = self._under_way[step.label].popleft()
        then = max(self.now, move.end + move.latency) if self._hosts > 1 else self.now + move.latency
        self.exposed += then - self.now
        self.now = then


def _simulate(report: Report, machine: Machine, hosts: int) -> Forecast:
    core = _Core(machine, hosts)
    for step, seconds in report.steps:
        if step.kind == "start":
            core.start(step)
        elif step.kind == "wait":
            core.wait(step)
        else:
            core.run(seconds)
    total = core.now + report.other
    return Forecast(hosts, hosts * machine.ranks, total, core.compute, core.exposed, report.other, core.sent, 1.0)


def forecast(report: Report, machine: Machine, hosts: Iterable[int] = _HOSTS) -> list[Forecast]:
    """Estimates a step on each number of `hosts`. Each host has the batch that one host had when the program ran.

    Args:
      report: of a program that was compiled for several ranks, each with the share that a rank of the machine will
        have. It should have run on one host, where communication does not slow kernels down.
      machine: the links between ranks and hosts.
      hosts: the numbers of hosts.

    Raises:
      Error: the machine lacks a link that is needed, the report has no times of steps, or the program is a pipeline.
    """
    hosts = [checks.integer("forecast: hosts", each, 1) for each in hosts]
    if max(hosts, default=1) > 1 and machine.between is None:
        raise Error(_without_link("between hosts", "one rank on each of two hosts", "between", Link(2e-5, 1.25e9)))
    if machine.ranks > 1 and machine.within is None:
        who = f"of the {machine.ranks} ranks within a host"
        raise Error(_without_link(who, "all ranks on one host", "within", Link(1e-5, 5e9)))
    if any(step.is_of_servers for step, _ in report.steps):
        raise Error(
            f"forecast: @{report.program} pushes to parameter servers, which a machine file does not describe; compile with "
            'strategy="all_reduce"'
        )
    if not any(step.is_collective for step, _ in report.steps):
        raise Error(f"forecast: @{report.program} has no collectives; compile it for several ranks")
    if any(step.name.startswith("transfer.") for step, _ in report.steps):
        raise Error(f"forecast: @{report.program} runs in stages; only hosts that share a batch can be forecast")
    if sum(seconds for step, seconds in report.steps if not step.is_collective) < report.compute / 2:
        raise Error(
            f"forecast: the steps of @{report.program} ran as one, so no step has a time; compile with profile=True"
        )
    alone = _simulate(report, machine, 1)
    rows = [_simulate(report, machine, each) for each in hosts]
    return [dataclasses.replace(row, efficiency=alone.seconds / row.seconds) for row in rows]


def _without_link(who: str, ranks: str, name: str, example: Link) -> str:
    return (
        f"forecast: the machine has no link {who}. `lockstep doctor --measure FILE` under mpirun, with {ranks}, adds it to "
        f"the machine's file; so do these lines, with the numbers of your machine:\n\n{lines_of(name, example)}"
    )


def table(rows: Sequence[Forecast]) -> str:
    """Returns text with a line for each number of hosts."""
    lines = [f"{'hosts':>6}{'ranks':>7}{'step':>14}{'compute':>14}{'exposed':>14}{'sent a host':>15}{'efficiency':>12}"]
    for row in rows:
        times = "".join(f"{milliseconds(each):>14}" for each in (row.seconds, row.compute, row.exposed))
        lines.append(f"{row.hosts:>6}{row.ranks:>7}{times}{row.sent / 1e6:>12.3f} MB{row.efficiency:>12.1%}")
    return "\n".join(lines)


def picture(rows: Sequence[Forecast], path: str, title: str) -> None:
    """Draws the parts of a step's time, and the efficiency, over the number of hosts, as .svg or .png."""
    import matplotlib.figure  # takes half a second to import

    figure = matplotlib.figure.Figure(figsize=(7, 4), layout="constrained")
    axes = figure.subplots()
    names = [str(row.hosts) for row in rows]
    below = np.zeros(len(rows))
    for part in ("compute", "other", "exposed"):
        heights = np.array([1e3 * getattr(row, part) for row in rows])
        axes.bar(names, heights, bottom=below, label=part)
        below += heights
    axes.set(xlabel="hosts", ylabel="step, ms", title=title)
    right = axes.twinx()
    right.plot(names, [100 * row.efficiency for row in rows], "k.-", label="efficiency")
    right.set(ylabel="efficiency, %", ylim=(0, 105))
    figure.legend(loc="outside lower center", ncols=4)
    try:
        figure.savefig(path)
    except (OSError, ValueError) as error:
        raise Error(f"{path} cannot be written: {error}") from None


def mean_of_ranks(report: job_report.JobReport) -> Report:
    """Returns the mean of the reports of a traced job's ranks, which is the input of a forecast."""
    first = report.reports[0]
    seconds = np.mean([[seconds for _, seconds in each.steps] for each in report.reports], axis=0)
    return dataclasses.replace(
        first,
        compute=float(np.mean([each.compute for each in report.reports])),
        other=float(np.mean([each.other for each in report.reports])),
        steps=[(step, float(mean)) for (step, _), mean in zip(first.steps, seconds, strict=True)],
    )


def run(trace: str, machine: str, hosts: Sequence[int], image: str | None, calls: int | None) -> str:
    """Runs the command `lockstep forecast` and returns its output."""
    job = job_report.job_report(trace, calls)
    rows = forecast(mean_of_ranks(job), Machine.read(machine), hosts or _HOSTS)
    program = f"@{job.reports[0].program}"
    lines = [
        f"{program} as on {job.ranks[0].size} ranks of {Path(job.folder)}, on the machine of {machine}",
        table(rows),
    ]
    if image:
        picture(rows, image, program)
        lines.append(f"the same as a picture: {image}")
    return "\n".join(lines)
