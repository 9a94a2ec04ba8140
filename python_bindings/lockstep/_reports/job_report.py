"""The time of a job by rank and step, from a trace of all its ranks: the output of `lockstep report`."""

from __future__ import annotations

import dataclasses
from collections import Counter, defaultdict
from pathlib import Path

import numpy as np

from .. import _lockstep
from .._base import checks
from .._base.errors import Error
from . import record, report_page
from .record import Rank, Step
from .report import Report, milliseconds, report_of, waiting_text

_FINDINGS = 8
# A rank is slow in a step if it repeatedly takes longer than the other ranks by these shares of the step and of the
# call, and by this many seconds.
_MORE_THAN_OTHERS, _OF_THE_CALL, _SECONDS = 0.2, 0.02, 1e-4


@dataclasses.dataclass(frozen=True)
class Finding:
    """A rank that takes longer than the others, in a step or between calls. Seconds of a call, as in `Report.usual`."""

    rank: int
    step: Step | None  # None: between calls
    number: int  # of the step
    seconds: float
    others: float  # the median of the other ranks

    def __str__(self) -> str:
        where = "between calls" if self.step is None else f"in step {self.number} {self.step}"
        return (
            f"rank {self.rank} is slow {where}: {milliseconds(self.seconds)} a call, the others "
            f"{milliseconds(self.others)}"
        )


@dataclasses.dataclass(frozen=True)
class JobReport:
    """The report of the program in which a world's ranks spent most time."""

    folder: str
    trace: str  # the merged file
    ranks: list[Rank]
    reports: list[Report]  # by rank
    program: dict[int, int]  # the program's number, by rank
    findings: list[Finding]

    def __str__(self) -> str:
        first = self.reports[0]
        lines = [f"{self.folder}: @{first.program} on {len(self.reports)} of {self.ranks[0].size} ranks"]
        names = ("total", "compute", "exposed", "waiting", "other", "between", "hidden")
        lines.append("  " + "rank".ljust(6) + "calls".rjust(7) + "".join(name.rjust(13) for name in names))
        for report in self.reports:
            cells = "".join(milliseconds(getattr(report, name)).rjust(13) for name in names)
            lines.append(f"  {report.rank:<6}{report.calls:>7}{cells}  {waiting_text(report.waiting_for)}".rstrip())
        lines.append("slow ranks" if self.findings else "no rank is slower than the others in any step")
        lines += [f"  {finding}" for finding in self.findings]
        lines.append("the slowest steps")
        for step, seconds in _mean_steps(self.reports)[:_FINDINGS]:
            lines.append(f"  {milliseconds(seconds):>12}  {step}")
        lines += [f"rank {rank.rank} failed: {rank.failure}" for rank in self.ranks if rank.failure]
        lines += [f"rank {rank.rank}: {rank.lost} events are lost" for rank in self.ranks if rank.lost]
        return "\n".join(lines)


def _mean_steps(reports: list[Report]) -> list[tuple[Step, float]]:
    """Returns the steps other than communication with their seconds, the slowest first."""
    seconds = np.mean([[seconds for _, seconds in report.steps] for report in reports], axis=0)
    steps = [(step, float(mean)) for (step, _), mean in zip(reports[0].steps, seconds) if not step.is_communication]
    return sorted(steps, key=lambda item: -item[1])


def findings_of(reports: list[Report]) -> list[Finding]:
    """Returns the ranks that are slower than the others, with their steps; the worst first."""
    if len(reports) < 2:
        return []
    table = np.array([report.usual for report in reports])
    least = max(_OF_THE_CALL * float(np.median([report.total for report in reports])), _SECONDS)
    findings = []
    for row, report in enumerate(reports):
        others = np.median(np.delete(table, row, axis=0), axis=0)
        for number, (own, theirs) in enumerate(zip(table[row], others)):
            step = report.steps[number][0] if number < len(report.steps) else None
            if step is not None and step.is_communication:
                continue
            if own - theirs > least and own > (1 + _MORE_THAN_OTHERS) * theirs:
                findings.append(Finding(report.rank, step, number, float(own), float(theirs)))
    return sorted(findings, key=lambda finding: finding.others - finding.seconds)[:_FINDINGS]


def _main_world(ranks: list[Rank]) -> list[Rank]:
    """Returns the ranks of the world that recorded most steps."""
    worlds: dict[tuple[str, int, int], list[Rank]] = defaultdict(list)
    for rank in ranks:
        worlds[rank.world].append(rank)
    return max(worlds.values(), key=lambda world: sum(len(rank.steps) for rank in world))


def _main_program(rank: Rank) -> int | None:
    """Returns the program in which a rank spent most time."""
    seconds: Counter[int] = Counter()
    for program in rank.programs:
        report = report_of(rank, program)
        if report is not None:
            seconds[program] = report.total * report.calls
    return max(seconds, key=lambda program: seconds[program]) if seconds else None


def job_report(folder: str, calls: int | None = None) -> JobReport:
    """Reads a trace, and merges its files into one. The report covers the last `calls` calls, or all."""
    last = None if calls is None else checks.integer("calls", calls, 1)
    found, merged, recorded = _lockstep._trace(checks.path(folder))
    ranks = _main_world([record.rank_of(each) for each in recorded])
    program = _main_program(ranks[0])
    if program is None:
        raise Error(f"{found}: no rank has finished a call")
    # A program that ranks run together has the same name and steps on all of them, but perhaps another number.
    names = ranks[0].programs[program]
    programs: dict[int, int] = {}
    reports = []
    for rank in ranks:
        for index in [program, *rank.programs]:
            if rank.programs.get(index) != names or rank.rank in programs:
                continue
            report = report_of(rank, index, last)
            if report is not None:
                programs[rank.rank] = index
                reports.append(report)
    return JobReport(found, merged, ranks, reports, programs, findings_of(reports))


def write(folder: str, html: str | None, calls: int | None = None) -> str:
    """Runs `lockstep report`: writes the page, and returns the text."""
    report = job_report(folder, calls)
    page = Path(html) if html else Path(report.folder) / "report.html"
    try:
        page.write_text(report_page.page(report), encoding="utf-8")
    except OSError as error:
        raise Error(f"{page} cannot be written: {error.strerror}") from None
    return f"{report}\nthe same as a page: {page}\nfor Perfetto (https://ui.perfetto.dev): {report.trace}"
