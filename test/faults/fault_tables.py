#!/usr/bin/env python3
"""Writes the tables of docs/faults.md from what faults.py has found: fault_tables.py [OUTCOMES [DOCUMENT]]."""

from __future__ import annotations

import collections
import json
import statistics
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

from faults import KINDS, PLACES, ROOT, Kind, Outcome

BEGIN, END = "<!-- written by test/faults/fault_tables.py -->\n", "<!-- end -->\n"


def tables(outcomes: Sequence[Outcome]) -> str:
    by_kind = collections.defaultdict(list)
    for outcome in outcomes:
        by_kind[outcome.kind].append(outcome)
    kinds = [kind for kind in KINDS if kind.name in by_kind]
    return f"{_seconds(kinds, by_kind)}\n{_counts(kinds, by_kind)}"


def _seconds(kinds: Iterable[Kind], by_kind: dict[str, list[Outcome]]) -> str:
    rows = [
        ["fault", "times", "named in time", "after", "ranks told", "job ended after", "nothing stayed"],
        ["---"] * 7,
    ]
    for kind in kinds:
        outcomes = by_kind[kind.name]
        firsts = [min(outcome.named) for outcome in outcomes if outcome.named]
        told, silent = sum(len(each.named) for each in outcomes), sum(each.silent for each in outcomes)
        rows.append(
            [
                f"{kind.name}: {kind.about}",
                str(len(outcomes)),
                str(sum(first <= kind.limit for first in firsts)),
                _spread(firsts),
                f"{told} of {told + silent}",
                _spread([outcome.ended for outcome in outcomes]),
                str(sum(not any(" stay" in problem for problem in outcome.problems) for outcome in outcomes)),
            ]
        )
    return _text(rows)


def _counts(kinds: Iterable[Kind], by_kind: dict[str, list[Outcome]]) -> str:
    """Of each cell how many of how many went without a problem."""
    heads = [f"{place.partition('x')[0]} host{'s' * (place[0] != '1')}, {sum(PLACES[place])} ranks" for place in PLACES]
    rows = [["without a problem", *heads], ["---"] * (1 + len(heads))]
    for kind in kinds:
        row = [kind.name]
        for place in PLACES:
            cell = [outcome for outcome in by_kind[kind.name] if outcome.place == place]
            row.append(f"{sum(not each.problems for each in cell)} of {len(cell)}" if cell else "")
        rows.append(row)
    return _text(rows)


def _spread(seconds: Sequence[float]) -> str:
    """The median and the worst."""
    return f"{statistics.median(seconds):.1f} s, at most {max(seconds):.1f} s" if seconds else "never"


def _text(rows: Iterable[Sequence[str]]) -> str:
    return "".join(f"| {' | '.join(row)} |\n" for row in rows)


def main(
    outcomes: str | Path = ROOT / "build" / "faults.jsonl", document: str | Path = ROOT / "docs" / "faults.md"
) -> None:
    found = [Outcome(**json.loads(line)) for line in Path(outcomes).read_text().splitlines()]
    before, _, rest = Path(document).read_text().partition(BEGIN)
    Path(document).write_text(before + BEGIN + tables(found) + END + rest.partition(END)[2])


if __name__ == "__main__":
    main(*sys.argv[1:])
