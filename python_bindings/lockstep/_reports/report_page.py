"""Reports as HTML: of a job, a page with the time of each rank, the slow ranks and steps, and one call on all ranks; of
one rank, what a notebook shows."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from . import record
from .html_page import document, table, text
from .report import Report, calls_of, milliseconds, transfers_of, waiting_text

if TYPE_CHECKING:
    from .job_report import JobReport

# The parts of a call, with their colors and descriptions.
_PARTS = {
    "compute": ("#4c78a8", "kernels and copies"),
    "exposed": ("#f58518", "communication while no kernel ran"),
    "waiting": ("#e45756", "waiting for ranks that had not come yet"),
    "other": ("#9d9da1", "inputs, results and checks"),
}
_STEPS = 40  # the number of slowest steps in the table
_MOST_BOXES = 4000  # in the drawing of a call
_WIDTH, _LANE, _GAP, _LEFT = 1100, 22, 12, 70  # of the drawing, in its units
_TICKS = 10  # the largest number on its time axis

_STYLE = """
td.drawn { width: 100%; } .bar { display: flex; min-width: 120px; height: 14px; } .bar span { height: 100%; }
.key { display: inline-block; width: 12px; height: 12px; margin: 0 4px 0 16px; } .slow { background: #fbd5d3; }
"""


def page(report: JobReport) -> str:
    """Returns the whole page, which needs nothing but a browser."""
    first = report.reports[0]
    title = f"@{first.program} on {len(report.reports)} ranks"
    body = [
        f"<h1>{text(title)}</h1><p>{text(report.folder)}</p>",
        "<h2>A call, by rank</h2>",
        _key(),
        _ranks(report),
        "<h2>Slow ranks</h2>",
        _findings(report),
        "<h2>One call</h2>",
        "<p>The call whose time is in the middle of all, on the clock of rank 0: steps above, collectives below.</p>",
        _call(report),
        "<h2>Steps</h2>",
        _steps(report),
    ]
    return document(title, body, _STYLE)


def fragment(report: Report) -> str:
    """Returns the report of one rank for a notebook: the parts of a call, and its slowest steps."""
    parts = "".join(
        f'<tr><td style="text-align:left"><span style="color:{color}">■</span> {what}</td>'
        f"<td>{milliseconds(getattr(report, part))}</td></tr>"
        for part, (color, what) in _PARTS.items()
    )
    steps = "".join(
        f'<tr><td style="text-align:left">{text(step)}</td><td>{milliseconds(seconds)}</td></tr>'
        for step, seconds in report.slowest()
    )
    least = "" if report.roofline is None else f"<pre>{text(report.roofline)}</pre>"
    return (
        f"<p>@{text(report.program)} on rank {report.rank}: {report.calls} calls, {milliseconds(report.total)} each</p>"
        f'<div style="display:flex;height:14px;max-width:800px">{_bar(report, report.total or 1.0)}</div>'
        f"<table>{parts}</table><p>The slowest steps</p><table>{steps}</table>{least}"
    )


def _key() -> str:
    entries = (f'<span class="key" style="background:{color}"></span>{what}' for color, what in _PARTS.values())
    return f"<p>{''.join(entries)}</p>"


def _ranks(report: JobReport) -> str:
    longest = max(each.total for each in report.reports) or 1.0
    rows = [
        '<tr><th>rank</th><th class="name">host</th><th>calls</th><th>a call</th><th></th>'
        + "".join(f"<th>{part}</th>" for part in _PARTS)
        + '<th>hidden</th><th>between calls</th><th class="name">waited</th></tr>'
    ]
    hosts = {rank.rank: rank.host for rank in report.ranks}
    for each in report.reports:
        numbers = "".join(f"<td>{milliseconds(getattr(each, part))}</td>" for part in _PARTS)
        rows.append(
            f'<tr><td>{each.rank}</td><td class="name">{text(hosts[each.rank])}</td><td>{each.calls}</td>'
            f'<td>{milliseconds(each.total)}</td><td class="drawn"><div class="bar">{_bar(each, longest)}</div></td>{numbers}'
            f"<td>{milliseconds(each.hidden)}</td><td>{milliseconds(each.between)}</td>"
            f'<td class="name">{text(waiting_text(each.waiting_for))}</td></tr>'
        )
    return table(rows)


def _bar(of: Report, longest: float) -> str:
    """Returns the parts of a call side by side. `longest` is the number of seconds of the whole width."""
    return "".join(
        f'<span style="width:{100 * getattr(of, part) / longest:.2f}%;background:{color}"></span>'
        for part, (color, _) in _PARTS.items()
    )


def _findings(report: JobReport) -> str:
    if not report.findings:
        return "<p>No rank is slower than the others in any step.</p>"
    return f"<ul>{''.join(f'<li>{text(finding)}</li>' for finding in report.findings)}</ul>"


def _steps(report: JobReport) -> str:
    reports = report.reports
    seconds = np.array([[seconds for _, seconds in each.steps] for each in reports])
    slow = {(finding.rank, finding.number) for finding in report.findings}
    rows = [
        '<tr><th>step</th><th class="name">what</th>'
        + "".join(f"<th>rank {each.rank}</th>" for each in reports)
        + "</tr>"
    ]
    for number in np.argsort(-seconds.mean(axis=0), kind="stable")[:_STEPS]:
        cells = "".join(
            f"<td{_marked((each.rank, int(number)) in slow)}>{milliseconds(seconds[row, number])}</td>"
            for row, each in enumerate(reports)
        )
        rows.append(f'<tr><td>{number}</td><td class="name">{text(reports[0].steps[number][0])}</td>{cells}</tr>')
    return table(rows)


def _marked(is_slow: bool) -> str:
    return ' class="slow"' if is_slow else ""


def _call(report: JobReport) -> str:
    """Returns the drawing of one call on all ranks."""
    rank = report.ranks[[each.rank for each in report.ranks].index(report.reports[0].rank)]
    calls = calls_of(rank, report.program[rank.rank])
    times = calls.events["time"]
    totals = times[calls.ends] - times[calls.begins]
    middle = calls.begins[np.argsort(totals, kind="stable")[len(totals) // 2]]
    number = int(calls.events["call"][middle])
    lanes = [lane for each in report.reports for lane in _lanes(report, each, number)]
    boxes = [box for _, lane in lanes for box in lane]
    if not boxes:
        return "<p>Its events are lost.</p>"
    begin, end = min(box[0] for box in boxes), max(box[1] for box in boxes)
    scale = (_WIDTH - _LEFT) / max(end - begin, 1)
    least = np.sort([box[1] - box[0] for box in boxes])[::-1][:_MOST_BOXES][-1]  # shorter boxes are not drawn
    parts, y = [], 0
    for name, lane in lanes:
        y += _GAP if name else 2
        parts.append(f'<text x="0" y="{y + 15}">{text(name)}</text>')
        for start, stop, color, what in lane:
            if stop - start < least:
                continue
            parts.append(
                f'<rect x="{_LEFT + (start - begin) * scale:.2f}" y="{y}" width="{max((stop - start) * scale, 0.3):.2f}" '
                f'height="{_LANE}" fill="{color}"><title>{text(what)}\n{milliseconds((stop - start) * 1e-9)}</title></rect>'
            )
        y += _LANE
    height = y + 40
    return (
        f'<svg viewBox="0 0 {_WIDTH} {height}">{_axis(end - begin, scale, y)}{"".join(parts)}'
        f'<text x="{_LEFT}" y="{height - 5}">call {number}, {milliseconds((end - begin) * 1e-9)}</text></svg>'
    )


def _axis(length: int, scale: float, bottom: int) -> str:
    """Returns the time axis since the first rank began the call: lines from the top to `bottom`, with milliseconds
    below. `length` is in nanoseconds."""
    least = max(length, 1) * 1e-6 / _TICKS
    power = 10.0 ** math.floor(math.log10(least))
    apart = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= least)
    decimals = max(-math.floor(math.log10(apart)), 0)
    ticks = []
    for i in range(int(length * 1e-6 / apart + 1e-9) + 1):
        x = f"{_LEFT + i * apart * 1e6 * scale:.2f}"
        anchor = "end" if i * apart * 1e6 * scale > _WIDTH - _LEFT - 40 else "middle"
        ticks.append(
            f'<line x1="{x}" y1="0" x2="{x}" y2="{bottom + 4}" stroke="#ddd"/>'
            f'<text x="{x}" y="{bottom + 16}" text-anchor="{anchor}">{i * apart:.{decimals}f} ms</text>'
        )
    return "".join(ticks)


def _lanes(report: JobReport, of: Report, number: int) -> list[tuple[str, list[tuple[int, int, str, str]]]]:
    """Returns the steps and the collectives of one rank in one call, as boxes with begin, end, color and text."""
    rank = next(rank for rank in report.ranks if rank.rank == of.rank)
    calls = calls_of(rank, report.program[of.rank])
    events, times = calls.events, calls.events["time"]
    chosen = [i for i, begin in enumerate(calls.begins) if events["call"][begin] == number]
    steps: list[tuple[int, int, str, str]] = []
    collectives: list[tuple[int, int, str, str]] = []
    for call in chosen:
        begin, end = int(calls.begins[call]), int(calls.ends[call])
        for i in range(begin, end):
            what = "inputs, results"
            if events["kind"][i] == record.COMPARE:
                what = "comparing ranks"
            elif events["kind"][i] == record.STEP:
                index = int(events["step"][i])
                what = f"step {index} {of.steps[index][0]}" if 0 <= index < len(of.steps) else "all steps at once"
            part = "other" if calls.is_other[i] else "compute" if calls.is_compute[i] else "waiting"
            steps.append((int(times[i]), int(times[i + 1]), _PARTS[part][0], what))
        transfers = transfers_of(rank)
        inside = (transfers["met"] >= times[begin]) & (transfers["moved"] <= times[end])
        for i in np.flatnonzero(inside):
            what = f"{transfers['label'][i].decode(errors='replace')}, rank {transfers['last'][i]} came last"
            collectives.append(
                (int(transfers["met"][i]), int(transfers["moved"][i]), _PARTS["exposed"][0], f"moving {what}")
            )
    return [(f"rank {of.rank}", steps), ("", collectives)]
