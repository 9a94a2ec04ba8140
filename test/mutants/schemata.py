"""All mutants of a file in one source, each behind a switch: one build serves all of them.

A program runs as mutant n with LOCKSTEP_MUTANT=n in its environment, and unchanged without. If LOCKSTEP_MUTANTS_REACHED
names a file, byte n of it becomes 1 when this process, or one that it started, reaches the place of mutant n.
"""

import bisect
import dataclasses
import pathlib
import re

from source import Kind, Mutant

HEAD = pathlib.Path(__file__).with_name("switch.h").read_text()


@dataclasses.dataclass
class Site:
    """A range of the file, with the mutants that replace exactly this range, and the sites inside."""

    begin: int
    end: int
    mutants: list[tuple[int, Mutant]]
    inner: list["Site"]


def nest(mutants: list[tuple[int, Mutant]]) -> list[Site]:
    """Returns the outermost sites. Ranges that overlap without nesting are a bug of the finder."""
    outermost: list[Site] = []
    open_sites: list[Site] = []
    for number, mutant in sorted(mutants, key=lambda each: (each[1].begin, -each[1].end)):
        while open_sites and open_sites[-1].end <= mutant.begin:
            open_sites.pop()
        if open_sites and (open_sites[-1].begin, open_sites[-1].end) == (mutant.begin, mutant.end):
            open_sites[-1].mutants.append((number, mutant))
            continue
        if open_sites and open_sites[-1].end < mutant.end:
            raise ValueError(f"mutants: {mutant} overlaps {open_sites[-1].mutants[0][1]}")
        site = Site(mutant.begin, mutant.end, [(number, mutant)], [])
        (open_sites[-1].inner if open_sites else outermost).append(site)
        open_sites.append(site)
    return outermost


class Schemata:
    """The text of a file with these mutants, and the mutant that each of its lines belongs to."""

    def __init__(self, source: bytes, mutants: list[tuple[int, Mutant]]):
        self.source = source
        self.parts: list[str] = [HEAD]
        self.line = HEAD.count("\n") + 1
        self.owners: list[tuple[int, int]] = []  # first line, number of the mutant; -1: of none
        self.sites = nest(mutants)
        self.emit_range(0, len(source), self.sites)

    @property
    def text(self) -> str:
        return "".join(self.parts)

    def owner(self, line: int) -> int:
        """Returns the mutant whose own text is on that line, or -1."""
        at = bisect.bisect_right(self.owners, line, key=lambda each: each[0]) - 1
        return self.owners[at][1] if at >= 0 else -1

    def put(self, text: str, owner: int = -1) -> None:
        """Writes text on lines of its own."""
        self.owners.append((self.line, owner))
        self.parts.append(text + "\n")
        self.line += text.count("\n") + 1

    def emit_range(self, begin: int, end: int, sites: list[Site]) -> None:
        for site in sites:
            self.put(self.source[begin : site.begin].decode())
            self.emit(site)
            begin = site.end
        self.put(self.source[begin:end].decode())

    def emit(self, site: Site) -> None:
        is_expression = site.mutants[0][1].kind in (Kind.EXPRESSION, Kind.CONDITION)
        # A condition may be a pointer or an optional, and its replacement a bool.
        cast = "static_cast<bool>" if any(mutant.kind == Kind.CONDITION for _, mutant in site.mutants) else ""
        last = site.mutants[-1][0]  # an error of the whole construct is attributed to one of its mutants
        self.put("(" if is_expression else "{", last)
        for number, mutant in site.mutants:
            if is_expression:
                self.put(f"lockstep_mutants::Is({number}) ? {cast}(\n{mutant.text}\n) :", number)
            else:
                self.put(f"if (lockstep_mutants::Is({number})) {{ {mutant.text} }} else", number)
        if is_expression:
            self.put(f"{cast}(", last)
        self.emit_range(site.begin, site.end, site.inner)
        self.put("))" if is_expression else "}", last)


def wrong_mutants(schemata: Schemata, file: str, messages: str) -> set[int]:
    """Returns the mutants that a compiler's messages are about: those on the lines of the errors, or nearest above."""
    lines = [int(line) for line in re.findall(rf"{re.escape(file)}:(\d+):\d+: (?:fatal )?error:", messages)]
    if not lines:  # an error in a header: takes the lines that led to it
        lines = [int(line) for line in re.findall(rf"{re.escape(file)}:(\d+):\d+:", messages)]
    wrong = set()
    for line in lines:
        while line > 0 and schemata.owner(line) < 0:
            line -= 1
        wrong.add(schemata.owner(line))
    return wrong - {-1}
