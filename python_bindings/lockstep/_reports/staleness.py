"""How late gradients come to parameter servers."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping


@dataclasses.dataclass(frozen=True)
class Staleness:
    """How late gradients were: the updates by other workers between the pull that a gradient was made from and its push.

    An array that is cut over several servers counts once on each.
    """

    updates: Mapping[int, int]
    """How many updates had each staleness."""

    @property
    def max(self) -> int:
        """The largest; 0 if there were no updates."""
        return max(self.updates, default=0)

    @property
    def mean(self) -> float:
        """Of all updates; 0 if there were none."""
        total = sum(self.updates.values())
        return sum(late * times for late, times in self.updates.items()) / total if total else 0.0

    def __str__(self) -> str:
        listed = ", ".join(f"{late}: {times}" for late, times in sorted(self.updates.items()))
        return f"staleness {self.mean:.2f} on average, at most {self.max}; updates by staleness: {listed or 'none'}"
