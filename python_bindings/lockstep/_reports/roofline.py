"""Executable.roofline: the least time that the steps of a call take on the machine that it is compiled for."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from .._base import checks

if TYPE_CHECKING:
    from .._lockstep import Executable


@dataclasses.dataclass(frozen=True)
class RooflineStep:
    """A kernel or a copy. Its least time is the larger one of `by_operations` and `by_bytes`."""

    step: str  # as in Executable.profile
    by_operations: float  # seconds
    by_bytes: float  # seconds
    measured: float  # seconds of a call, as in Executable.profile; 0 if there were none

    @property
    def seconds(self) -> float:
        return max(self.by_operations, self.by_bytes)


@dataclasses.dataclass(frozen=True)
class Roofline:
    """The least time of a call on one rank, without communication. It prints as tables."""

    machine: str  # with the origin of its numbers
    seconds: float  # of all steps, one after the other
    operations: float
    bytes: float  # read and written by the steps, each operand and result once
    least_bytes: float  # the same, if loops were joined as far as the other kernels allow
    kinds: dict[str, float]  # seconds by kind of step, such as "cublaslt.matmul"; the largest first
    layers: dict[str, float]  # seconds by layer of the model; the largest first
    steps: list[RooflineStep]  # in order
    text: str = dataclasses.field(repr=False)

    def __str__(self) -> str:
        return self.text


def roofline_of_executable(executable: Executable, depth: Any) -> Roofline:
    """Implements Executable.roofline()."""
    fields = executable._roofline(checks.integer("roofline: depth", depth, 1))
    return Roofline(**fields | {"steps": [RooflineStep(*step) for step in fields["steps"]]})
