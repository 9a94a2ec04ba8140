#!/usr/bin/env python3
"""Writes the tables of docs/faults.md from the outcomes of faults.py: fault_tables.py [OUTCOMES [DOCUMENT]]."""

from __future__ import annotations

import collections
import json
import statistics
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

from faults import KINDS, PLACES, Kind
from job import ROOT, Outcome

BEGIN, END = "<!-- written by test/faults/fault_tables.py -->\n", "<!-- end -->\n"


def tables(outcomes: Sequence[Outcome]) -> str:
    """Tables of the faults of ranks and links, then of the faults of workers and servers."""
    by_kind = collections.defaultdict(list)
    for outcome in outcomes:
        by_kind[outcome.kind].append(outcome)
    texts = []
    for has_roles in (False, True):
        kinds = [kind for kind in KINDS if kind.name in by_kind and bool(kind.role) == has_roles]
        if kinds or not has_roles:
            texts.append(f"{_seconds(kinds, by_kind)}\n{_counts(kinds, by_kind, has_roles)}")
    return "\n".join(texts)


def _seconds(kinds: Iterable[Kind], by_kind: dict[str, list[Outcome]]) -> str:
    rows = [
        ["fault", "times", "named in time", "after", "ranks told", "job ended after", "nothing stayed"],
        ["---"] * 7,
    ]
    for kind in kinds:
        outcomes = by_kind[kind.name]
        firsts = [min(outcome.named) for outcome in outcomes if outcome.named]
        told, silent = sum(len(each.named) for each in outcomes), sum(each.silent for each in outcomes)
        named = [str(sum(first <= kind.limit for first in firsts)), _spread(firsts), f"{told} of {told + silent}"]
        rows.append(
            [
                f"{kind.name}: {kind.about}",
                str(len(outcomes)),
                *(["", "no error is needed", ""] if kind.is_survived else named),
                _spread([outcome.ended for outcome in outcomes]),
                str(sum(not any(" stay" in problem for problem in outcome.problems) for outcome in outcomes)),
            ]
        )
    return _text(rows)


def _counts(kinds: Iterable[Kind], by_kind: dict[str, list[Outcome]], has_roles: bool) -> str:
    """A table with, for each cell, the number of outcomes without a problem and the number of all."""
    places = [place for place in PLACES if ("+" in place) == has_roles]
    rows = [["without a problem", *map(_head, places)], ["---"] * (1 + len(places))]
    for kind in kinds:
        row = [kind.name]
        for place in places:
            cell = [outcome for outcome in by_kind[kind.name] if outcome.place == place]
            row.append(f"{sum(not each.problems for each in cell)} of {len(cell)}" if cell else "")
        rows.append(row)
    return _text(rows)


def _head(place: str) -> str:
    """ "2 hosts, 4 ranks" of 2x4, "1 host, 2 workers and 2 servers" of 1x2+2."""
    hosts, ranks = place.split("x")
    workers, _, servers = ranks.partition("+")
    who = f"{workers} workers and {servers} servers" if servers else f"{ranks} ranks"
    return f"{hosts} host{'s' * (hosts != '1')}, {who}"


def _spread(seconds: Sequence[float]) -> str:
    """The median and the largest, as text."""
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
