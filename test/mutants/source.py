"""Plausible single mistakes in a C++ source: the values that the other modules pass around.

A mutant replaces one range of a file, in bytes from its start: an EXPRESSION by another one; a CONDITION, which is
tested for true or false, by another one; a STATEMENT, with its semicolon, by another one or by nothing.
"""

import dataclasses
import enum
import hashlib
import re


class Kind(enum.Enum):
    EXPRESSION = "expression"
    CONDITION = "condition"
    STATEMENT = "statement"


@dataclasses.dataclass(frozen=True)
class Mutant:
    """One mistake. `before` and `after` are the lines that it changes, joined, with single spaces."""

    file: str
    function: str
    line: int
    begin: int
    end: int
    kind: Kind
    text: str  # the replacement
    before: str
    after: str
    ordinal: int = 0  # index among the function's mutants with the same lines

    @property
    def key(self) -> str:
        """A name that does not change when other lines of the file change."""
        parts = [self.file, self.function, self.before, self.after, str(self.ordinal)]
        return hashlib.sha1("\n".join(parts).encode()).hexdigest()[:8]

    def __str__(self) -> str:
        return f"{self.key} {self.file}:{self.line} {self.function}: {self.before}  =>  {self.after or '(nothing)'}"


def squeeze(text: str) -> str:
    """Returns the text on one line, with single spaces."""
    return re.sub(r"\s+", " ", text).strip()


def apply(source: bytes, mutant: Mutant) -> bytes:
    """Returns the file with this mistake in it."""
    return source[: mutant.begin] + mutant.text.encode() + source[mutant.end :]


def make_mutant(file: str, function: str, source: bytes, begin: int, end: int, kind: Kind, text: str) -> Mutant:
    """Returns a mutant with the lines that it changes."""
    first = source.rfind(b"\n", 0, begin) + 1
    last = source.find(b"\n", end)
    last = len(source) if last < 0 else last
    bare = Mutant(file, function, source.count(b"\n", 0, begin) + 1, begin, end, kind, text, "", "")
    changed = apply(source, bare)
    return dataclasses.replace(
        bare,
        before=squeeze(source[first:last].decode()),
        after=squeeze(changed[first : len(changed) - (len(source) - last)].decode()),
    )


def numbered(mutants: list[Mutant]) -> list[Mutant]:
    """Returns the mutants in the order of the file, without those that change nothing, each with a unique key."""
    seen: dict[tuple, int] = {}
    result = []
    for mutant in sorted(set(mutants), key=lambda each: (each.begin, -each.end, each.kind.value, each.text)):
        if mutant.before == mutant.after:
            continue
        lines = (mutant.function, mutant.before, mutant.after)
        result.append(dataclasses.replace(mutant, ordinal=seen.get(lines, 0)))
        seen[lines] = seen.get(lines, 0) + 1
    return result
