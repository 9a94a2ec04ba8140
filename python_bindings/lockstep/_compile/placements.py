"""Placements of states and inputs on a mesh: the values of `compile(placements=...)`."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

from .._base import checks
from .._base.errors import Error

_SPLIT = re.compile(r"split\((\d+), (\w+)\)")
Choices = list[tuple[str, dict[str, int]]]


@dataclass(frozen=True)
class Placement:
    """The dimension along which a state or input is split, for each axis of a mesh.

    `split` and `replicated` make placements. The operator & combines axes: `split(0, "rows") & split(1, "columns")`.
    """

    splits: tuple[tuple[str, int], ...] = ()  # axis and dimension, sorted by axis

    def __and__(self, other: Placement) -> Placement:
        checks.instance("the right operand of &", other, Placement, "lockstep.split() or lockstep.replicated()")
        twice = {axis for axis, _ in self.splits} & {axis for axis, _ in other.splits}
        if twice:
            raise Error(f"{self} & {other}: a value can be split along axis {min(twice)} only once")
        return Placement(tuple(sorted(self.splits + other.splits)))

    def __str__(self) -> str:
        return " & ".join(f"split({dim}, {axis})" for axis, dim in self.splits) or "replicated"

    @classmethod
    def parse(cls, text: str) -> Placement:
        """Returns the placement of a text that `str` returned."""
        result = cls()
        for part in [] if text == "replicated" else text.split(" & "):
            match = _SPLIT.fullmatch(part)
            if match is None:
                raise Error(f'{text!r} is not a placement, expected text such as "split(0, model)" or "replicated"')
            result &= cls(((match[2], int(match[1])),))
        return result


def split(dim: int, axis: str) -> Placement:
    """Returns the placement in which each rank along an axis has an equal part of a dimension: `split(1, "model")`.

    Args:
      dim: the dimension of the state or input, from 0.
      axis: an axis of the mesh that `compile` gets.
    """
    return Placement(((checks.text("split: axis", axis), checks.integer("split: dim", dim, 0)),))


def replicated() -> Placement:
    """Returns the placement in which each rank has the whole value. It is the default of states."""
    return Placement()


def choices(splits: Any, placements: Mapping[str, Placement] | None) -> Choices:
    """Returns `split` and `placements` of compile as one list. The first entry that matches a name counts."""
    named = list(checks.splits("split", {} if splits is None else splits).items())
    if placements is None:
        return named
    expected = 'names or patterns with placements, such as {"fc*.weight": lockstep.split(1, "model")}'
    if not isinstance(placements, Mapping):
        raise Error(f"placements is {placements!r}, expected {expected}")
    for pattern, placement in placements.items():
        name = checks.text("a name in placements", pattern)
        checks.instance(f"placements: {name!r}", placement, Placement, "lockstep.split() or lockstep.replicated()")
        named.append((name, dict(placement.splits)))
    return named


def chosen(given: Choices, names: Iterable[str]) -> dict[str, dict[str, int]]:
    """Returns the splits of each name: those of the first choice that matches it. Omits names without a match."""
    first = {name: next((dims for each, dims in given if fnmatchcase(name, each)), None) for name in names}
    return {name: dims for name, dims in first.items() if dims is not None}
