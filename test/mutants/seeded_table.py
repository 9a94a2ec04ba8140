"""The table of mistakes in seeded_faults.txt, which describes its own form."""

import dataclasses
import pathlib
import re
from collections.abc import Callable

from source import Kind, Mutant, make_mutant

TABLE = pathlib.Path(__file__).with_name("seeded_faults.txt")


@dataclasses.dataclass(frozen=True)
class Fault:
    mutant: Mutant
    blamed: str  # the pass that a comparison in exact arithmetic should name; "" if that is no pass of compile
    what: str

    def __str__(self) -> str:
        return f"{self.mutant.key} {self.mutant.file}:{self.mutant.line} {self.what}"


def read_faults(text: str, read: Callable[[str], bytes]) -> list[Fault]:
    """Returns the faults of a table. `read` returns the source of a file. Raises a ValueError for a block that has
    another form, or whose code does not occur exactly once.
    """
    faults = []
    for block in text.split("\n\n"):
        lines = [line for line in block.replace("\n  ", " ").splitlines() if line and not line.startswith("#")]
        if not lines:
            continue
        if len(lines) != 4 or ": " not in lines[0] or not lines[1].startswith("- ") or not lines[2].startswith("+ "):
            raise ValueError(f"mutants: {TABLE.name}: expected 'file: pass', -, +, reason; found\n{block}")
        file, _, blamed = lines[0].partition(": ")
        source = read(file)
        begin, end = place_of(source.decode(), lines[1][2:], block)
        kind = Kind.STATEMENT if source[end - 1 : end] == b";" else Kind.EXPRESSION
        mutant = make_mutant(file, "", source, begin, end, kind, lines[2][2:])
        faults.append(Fault(mutant, "" if blamed == "-" else blamed, lines[3]))
    return faults


def place_of(source: str, code: str, block: str) -> tuple[int, int]:
    """Returns the range, in bytes, of what «» surround in the code, which occurs once in the source."""
    parts = re.split("[«»]", code)
    if len(parts) != 3 or not parts[1]:
        raise ValueError(f"mutants: {TABLE.name}: expected « and » around what is replaced; found\n{block}")
    before, site, after = (r"\s+".join(map(re.escape, part.split())) for part in parts)
    found = list(re.finditer(rf"{before}\s*({site})\s*{after}", source))
    if len(found) != 1:
        raise ValueError(f"mutants: {TABLE.name}: this code occurs {len(found)} times, expected 1:\n{block}")
    begin, end = found[0].span(1)
    return len(source[:begin].encode()), len(source[:end].encode())
