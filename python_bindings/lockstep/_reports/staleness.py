"""The staleness of gradients at parameter servers."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping


@dataclasses.dataclass(frozen=True)
class Staleness:
    """The staleness of gradients: the number of updates by other workers between the pull from which a
    gradient was computed and its push.

    An array that is divided among several servers counts once on each.
    """

    updates: Mapping[int, int]
    """The number of updates by staleness."""

    @property
    def max(self) -> int:
        """The largest staleness; 0 if there were no updates."""
        return max(self.updates, default=0)

    @property
    def mean(self) -> float:
        """The mean over all updates; 0 if there were none."""
        total = sum(self.updates.values())
        return sum(late * times for late, times in self.updates.items()) / total if total else 0.0

    def __str__(self) -> str:
        listed = ", ".join(f"{late}: {times}" for late, times in sorted(self.updates.items()))
        return f"staleness {self.mean:.2f} on average, at most {self.max}; updates by staleness: {listed or 'none'}"
