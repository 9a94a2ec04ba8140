"""Graph.diff: the difference of two graphs' texts, which ignores the numbers of values."""

from __future__ import annotations

import difflib
import re
from typing import TYPE_CHECKING

from .._base import checks

if TYPE_CHECKING:
    from .._lockstep import Graph

_NUMBERED = re.compile(r"%(\d+)(?![\w./])")  # an unnamed value


def diff(graph: Graph, other: Graph) -> str:
    """Returns a unified diff from the text of `graph` to the text of `other`."""
    checks.instance("diff: the other graph", other, type(graph), "a lockstep.Graph")
    before, after = str(graph).splitlines(), _renumbered(str(other).splitlines(), str(graph).splitlines())
    lines = difflib.unified_diff(before, after, graph.name, other.name, lineterm="")
    return "".join(f"{line}\n" for line in lines)


def _renumbered(lines: list[str], model: list[str]) -> list[str]:
    """Returns the lines with the values' numbers in `model`, for lines that are equal except for numbers."""
    keys, model_keys = ([_NUMBERED.sub("%", line) for line in each] for each in (lines, model))
    numbers: dict[str, str] = {}
    for match in difflib.SequenceMatcher(None, keys, model_keys, autojunk=False).get_matching_blocks():
        for i in range(match.size):
            found = zip(_NUMBERED.findall(lines[match.a + i]), _NUMBERED.findall(model[match.b + i]), strict=True)
            for number, wanted in found:
                if wanted not in numbers.values():
                    numbers.setdefault(number, wanted)
    taken = {number for line in model for number in _NUMBERED.findall(line)}

    def renamed(found: re.Match[str]) -> str:
        number = numbers.get(found[1], found[1])
        # A value that is not in `model` must not look like another value of `model` that has its number.
        return f"%{number}" if found[1] in numbers or number not in taken else f"%{number}'"

    return [_NUMBERED.sub(renamed, line) for line in lines]
