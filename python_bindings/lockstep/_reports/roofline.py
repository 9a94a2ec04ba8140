"""Executable.roofline: the least time that the steps of a call take on the machine that it is compiled for, and what is
lost beside it.
"""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from typing import TYPE_CHECKING, Any

from .._base import checks

if TYPE_CHECKING:
    from .._lockstep import Executable


@dataclasses.dataclass(frozen=True)
class RooflineStep:
    """A kernel or a copy. Its least time is the larger one of `by_operations` and `by_bytes`."""

    step: str  # as in Executable.profile
    kind: str  # "onednn.matmul"
    layer: str  # of the model: "blocks.3"
    operations: float  # additions, multiplications and others
    arithmetic: str  # the operations: "f32", "f64", "tf32" or "16 bits", as in Roofline.operations_per_second
    bytes: int  # read and written: each operand and result once
    by_operations: float  # seconds
    by_bytes: float  # seconds
    measured: float  # seconds of a call, as in Executable.profile or, in a report, in its calls; 0 if there were none
    lost: float  # seconds: measured - seconds, negative if it is faster than its least time; 0 if there were no calls

    @property
    def seconds(self) -> float:
        return max(self.by_operations, self.by_bytes)

    @property
    def operations_per_second(self) -> float:
        """The achieved rate; 0 if there were no calls."""
        return self.operations / self.measured if self.measured else 0.0

    @property
    def bytes_per_second(self) -> float:
        """The achieved rate; 0 if there were no calls."""
        return self.bytes / self.measured if self.measured else 0.0


@dataclasses.dataclass(frozen=True)
class Roofline:
    """The least time of a call on one rank, and what its steps lost, without communication. It prints as tables."""

    machine: str  # with the origin of its numbers
    bytes_per_second: float  # the ceiling: of a copy, read and written
    operations_per_second: dict[str, float]  # the ceilings, by the arithmetic of a step
    seconds: float  # of all steps, one after the other
    operations: float
    bytes: float  # read and written by the steps, each operand and result once
    least_bytes: float  # the same, if loops were joined as far as the other kernels allow
    steps: list[RooflineStep]  # in order
    text: str = dataclasses.field(repr=False)

    @property
    def kinds(self) -> dict[str, float]:
        """The least seconds by kind of step, such as "cublaslt.matmul"; the largest first."""
        return self._sums("kind", "seconds")

    @property
    def layers(self) -> dict[str, float]:
        """The least seconds by layer of the model; the largest first."""
        return self._sums("layer", "seconds")

    @property
    def lost_by_kind(self) -> dict[str, float]:
        """What was lost, in seconds, by kind of step; the largest first."""
        return self._sums("kind", "lost")

    @property
    def lost_by_layer(self) -> dict[str, float]:
        """What was lost, in seconds, by layer of the model; the largest first."""
        return self._sums("layer", "lost")

    @property
    def measured(self) -> float:
        """The measured seconds of all steps."""
        return sum(step.measured for step in self.steps)

    @property
    def lost(self) -> float:
        """The measured seconds of all steps less the least ones; 0 if there were no calls."""
        return sum(step.lost for step in self.steps)

    def _sums(self, name: str, seconds: str) -> dict[str, float]:
        sums: dict[str, float] = defaultdict(float)
        for step in self.steps:
            sums[getattr(step, name)] += getattr(step, seconds)
        return dict(sorted(sums.items(), key=lambda item: -item[1]))

    def __str__(self) -> str:
        return self.text


def roofline_of_executable(executable: Executable, depth: Any, measured: list[float] | None = None) -> Roofline:
    """Implements Executable.roofline(). `measured` has the seconds of all steps in a call, communication included;
    without it, they are the means since loading."""
    fields = executable._roofline(checks.integer("roofline: depth", depth, 1), measured)
    return Roofline(**fields | {"steps": [RooflineStep(*step) for step in fields["steps"]]})
