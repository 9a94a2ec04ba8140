"""Explanations as HTML: the page of Graph.save_html, with one step or two side by side, and what a notebook shows."""

from __future__ import annotations

import difflib
import itertools
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence

from .. import _lockstep
from .._reports.html_page import document, table, text
from .._reports.report import milliseconds
from .explain import (
    COMMUNICATION_HEADS,
    LAYER_HEADS,
    PASS_HEADS,
    Communication,
    Explanation,
    PassChange,
    communication_rows,
    layer_cells,
    pass_cells,
    ready_text,
    tensor_text,
)
from .layers import notebook_svg

_MOST_LINES, _MOST_CHARACTERS = 300, 300  # of a difference that is shown, and of each line
_WIDTH, _LEFT, _LANE, _BAR, _TICKS = 1100, 130, 18, 10, 12  # of the timeline, in its units
_FILLS, _WAITS = "#9d9da1", "#f58518"  # the colors of the time in which a bucket fills, and in which it moves

_STYLE = """
tr.differs td { background: #fff3d6; } td { vertical-align: top; } pre { overflow-x: auto; font-size: 12px; margin: 4px 0; }
ins { background: #dcf5dc; text-decoration: none; } del { background: #fbd5d3; text-decoration: none; }
.beside { display: flex; gap: 2em; } .beside > * { flex: 1; min-width: 0; } summary { cursor: pointer; }
"""
_OPEN = "for (const each of document.querySelectorAll('details')) each.open = !this.opened; this.opened = !this.opened"


def page(explanations: list[Explanation]) -> str:
    """Returns the whole page. Two explanations are side by side."""
    first = explanations[0]
    title = " and ".join(dict.fromkeys(f"@{each.program}" for each in explanations))
    body = [
        f"<h1>{text(title)}</h1>",
        f'<p><button onclick="{text(_OPEN)}">open or close all parts</button></p>',
        _beside(explanations, _facts),
        "<p>Rows that differ are marked.</p>" if len(explanations) > 1 else "",
        "<h2>Layers</h2>",
        _layers(explanations),
        _beside(explanations, _drawing),
        "<h2>Communication along the program</h2>",
        _key(),
        _beside(explanations, timeline),
        _communications(explanations),
        "<h2>Passes that changed the program</h2>",
        _passes(explanations),
        _changes(explanations),
    ]
    if len(explanations) > 1:
        body += ["<h2>The program after all passes</h2>", _difference(_final(first), _final(explanations[1]))]
    return document(title, [part for part in body if part], _STYLE)


def fragment(explanation: Explanation) -> str:
    """Returns what a notebook shows: the page without the texts of programs."""
    one = [explanation]
    return (
        f"<div>{_facts(explanation)}<details open=''><summary>layers</summary>{_layers(one)}</details>{_key()}"
        f"{timeline(explanation)}<details><summary>communications</summary>{_communications(one)}</details>"
        f"<details><summary>passes</summary>{_passes(one)}</details></div>"
    )


def _beside(explanations: list[Explanation], part: Callable[[Explanation], str]) -> str:
    return _side_by_side([part(each) for each in explanations])


def _side_by_side(parts: list[str]) -> str:
    if len(parts) == 1:
        return parts[0]
    return f'<div class="beside">{"".join(f"<div>{each}</div>" for each in parts)}</div>'


def _facts(explanation: Explanation) -> str:
    return f"<p>{'<br/>'.join(text(line) for line in explanation.facts())}</p>"


def _drawing(explanation: Explanation) -> str:
    """Returns the drawing of the step with its collectives, or without if there are too many; empty without Graphviz."""
    placed = [change.text_after for change in explanation.passes if change.name == "distribute"]
    drawing = notebook_svg(_lockstep._parse(placed[0])) if placed else None
    drawing = drawing or notebook_svg(explanation.graph)
    if drawing is None:
        return ""
    return f"<details><summary>drawing</summary>{drawing[drawing.index('<svg') :]}</details>"


# --- Tables, in which each explanation has its columns ----------------------------------------------------------------


def _compared(
    heads: list[str], sides: Sequence[Mapping[str, list[str]]], more: Callable[[str], str] | None = None
) -> str:
    """Returns a table with a row for each name. `sides` are the cells of each explanation, and `more(name)` is HTML for
    a last column. Marks the rows whose cells differ."""
    width = len(heads) - 1
    last = "" if more is None else "<th></th>"
    rows = []
    if len(sides) > 1:
        names = "".join(f'<th colspan="{width}">{name}</th>' for name in ("first", "second"))
        rows.append(f"<tr><th></th>{names}{last}</tr>")
    columns = "".join(f"<th>{text(head)}</th>" for head in heads[1:]) * len(sides)
    rows.append(f'<tr><th class="name">{text(heads[0])}</th>{columns}{last}</tr>')
    for name in dict.fromkeys(itertools.chain(*sides)):
        found = [side.get(name) for side in sides]
        mark = ' class="differs"' if any(each != found[0] for each in found) else ""
        cells = "".join(f"<td>{text(cell)}</td>" for each in found for cell in each or [""] * width)
        cells += "" if more is None else f'<td class="name">{more(name)}</td>'
        rows.append(f'<tr{mark}><td class="name">{text(name)}</td>{cells}</tr>')
    return table(rows)


def _layers(explanations: list[Explanation]) -> str:
    sides = [{layer.name: layer for layer in each.layers} for each in explanations]

    def tensors(name: str) -> str:
        lists = [
            [tensor_text(each, *moved) for moved in side[name].communicated] if name in side else []
            for each, side in zip(explanations, sides, strict=True)
        ]
        return _lists(lists, "tensors")

    cells = [{name: layer_cells(layer)[1:] for name, layer in side.items()} for side in sides]
    return _compared(LAYER_HEADS, cells, tensors)


def _lists(lists: list[list[str]], what: str) -> str:
    """Returns a part that can be opened, with a list for each explanation."""
    if not any(lists):
        return ""
    parts = "<hr/>".join("<br/>".join(text(line) for line in each) for each in lists)
    counts = " and ".join(str(len(each)) for each in lists)
    return f"<details><summary>{counts} {what}</summary>{parts}</details>"


def _numbered(names: list[str]) -> Iterator[str]:
    """Returns the names; the second of equal names, and later ones, with a number."""
    seen: Counter[str] = Counter()
    for name in names:
        seen[name] += 1
        yield name if seen[name] == 1 else f"{name} ({seen[name]})"


def _communications(explanations: list[Explanation]) -> str:
    if not any(each.communications for each in explanations):
        return "<p>This rank communicates nothing.</p>"
    sides, moved = [], []
    for each in explanations:
        rows = communication_rows(each)[1:]
        names = list(_numbered([row[0] for row in rows]))
        sides.append({name: row[1:] for name, row in zip(names, rows, strict=True)})
        moved.append(dict(zip(names, each.communications, strict=True)))

    def tensors(name: str) -> str:
        return _lists([_tensors_of(side[name]) if name in side else [] for side in moved], "tensors")

    return _compared(COMMUNICATION_HEADS, sides, tensors)


def _tensors_of(communication: Communication) -> list[str]:
    return [
        f"{tensor.name}  {tensor.bytes:,} bytes, of {tensor.layer}, {ready_text(tensor)}"
        for tensor in communication.tensors
    ]


def _named_passes(explanation: Explanation) -> dict[str, PassChange]:
    names = _numbered([change.name for change in explanation.passes])
    return dict(zip(names, explanation.passes, strict=True))


def _passes(explanations: list[Explanation]) -> str:
    sides = [_named_passes(each) for each in explanations]
    return _compared(PASS_HEADS, [{name: pass_cells(change)[1:] for name, change in side.items()} for side in sides])


def _changes(explanations: list[Explanation]) -> str:
    """Returns a part for each pass, with the lines that it changed."""
    sides = [_named_passes(each) for each in explanations]
    parts = []
    for name in dict.fromkeys(itertools.chain(*sides)):
        changes = [side.get(name) for side in sides]
        texts = ["" if each is None else _difference(each.text_before, each.text_after) for each in changes]
        parts.append(f"<details><summary>{text(name)}: changed lines</summary>{_side_by_side(texts)}</details>")
    return "".join(parts)


def _final(explanation: Explanation) -> str:
    return explanation.passes[-1].text_after if explanation.passes else str(explanation.graph)


def _difference(before: str, after: str) -> str:
    """Returns the changed lines of two texts, each with one line around it. Long lines and differences are cut."""
    lines = list(difflib.unified_diff(before.splitlines(), after.splitlines(), n=1, lineterm=""))[2:]
    shown = [_line(each) for each in lines[:_MOST_LINES]]
    if len(lines) > _MOST_LINES:
        shown.append(f"… and {len(lines) - _MOST_LINES:,} more lines: PassChange.diff() returns all")
    return f"<pre>{chr(10).join(shown)}</pre>" if shown else "<p>no difference</p>"


def _line(line: str) -> str:
    cut = text(line if len(line) <= _MOST_CHARACTERS else f"{line[:_MOST_CHARACTERS]}…")
    tag = {"+": "ins", "-": "del"}.get(line[:1])
    return f"<{tag}>{cut}</{tag}>" if tag else cut


# --- The timeline -----------------------------------------------------------------------------------------------------


def _key() -> str:
    return (
        f'<p>Along the steps of a call: <span style="color:{_FILLS}">■</span> from the first tensor that is ready to the '
        f'start of the communication, <span style="color:{_WAITS}">■</span> from its start until it is needed. Dots are '
        "tensors that become ready.</p>"
    )


def timeline(explanation: Explanation) -> str:
    """Returns a drawing with a lane for each communication: when its tensors are ready, and when it is needed."""
    if not explanation.communications:
        return ""
    scale = (_WIDTH - _LEFT) / max(len(explanation.steps), 1)

    def x(step: int) -> float:
        return _LEFT + step * scale

    bottom = _LANE * len(explanation.communications)
    apart = max(-(-len(explanation.steps) // _TICKS), 1)
    parts = [
        f'<line x1="{x(step):.2f}" y1="0" x2="{x(step):.2f}" y2="{bottom}" stroke="#ddd"/>'
        f'<text x="{x(step):.2f}" y="{bottom + 14}" text-anchor="middle">{step}</text>'
        for step in range(0, len(explanation.steps), apart)
    ]
    for lane, each in enumerate(explanation.communications):
        parts.append(_lane(each, lane * _LANE, x))
    return f'<svg viewBox="0 0 {_WIDTH} {bottom + 20}">{"".join(parts)}</svg>'


def _lane(communication: Communication, y: int, x: Callable[[int], float]) -> str:
    started, needed = communication.started, communication.needed
    ready = [tensor.ready + 1 for tensor in communication.tensors if tensor.ready is not None]  # after that step
    first, middle = min(ready, default=started), y + _LANE / 2
    dots = "".join(f'<circle cx="{x(each):.2f}" cy="{middle}" r="2.5"/>' for each in dict.fromkeys(ready))
    what = (
        f"{communication.what}, {communication.label}\n{communication.bytes:,} bytes\n"
        f"started at step {started} ({milliseconds(communication.started_at)}), "
        f"needed at step {needed} ({milliseconds(communication.needed_at)})"
    )
    return (
        f'<g><title>{text(what)}</title><text x="0" y="{y + 13}">{text(communication.bucket[:22])}</text>'
        f'<rect x="{x(first):.2f}" y="{middle - 1}" width="{x(started) - x(first):.2f}" height="2" fill="{_FILLS}"/>'
        f'<rect x="{x(started):.2f}" y="{y + (_LANE - _BAR) / 2}" width="{max(x(needed) - x(started), 1):.2f}" '
        f'height="{_BAR}" fill="{_WAITS}"/>{dots}</g>'
    )
