"""The records of ranks, as arrays: the extension module's data in separate fields."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

# The layouts of runtime/record/record.h.
_STEP = np.dtype([("time", "<i8"), ("step", "<i4"), ("call", "<u4"), ("program", "<u2"), ("kind", "u1"), ("", "V5")])
_TRANSFER = np.dtype(
    [
        ("time", "<i8"), ("sequence", "<u8"), ("communicator", "<u4"), ("last", "<i4"),
        ("phase", "u1"), ("label", "S96"), ("", "V7"),
    ]
)  # fmt: skip

# Events of the rank's own thread: something begins or has ended.
CALL, STEP, COMPARE, END, FAILED = range(5)
# Phases of a collective.
POSTED, MET, MOVED = range(3)


@dataclasses.dataclass(frozen=True)
class Step:
    """A step of a program, with its names."""

    kind: (
        str  # "kernel", "copy"; of a collective "start", "wait"; of parameter servers "push", "start_pull", "wait_pull"
    )
    name: str
    source: str
    label: str  # of a collective; for a push or pull, the state
    bytes: int = 0  # of a collective's operand or result, whichever is larger, or of the pushed or pulled value
    urgent: bool = False  # the computation waits for this collective, which overtakes the others

    @property
    def is_collective(self) -> bool:
        return self.kind in ("start", "wait")

    @property
    def is_of_servers(self) -> bool:
        return self.kind in ("push", "start_pull", "wait_pull")

    @property
    def is_communication(self) -> bool:
        return self.is_collective or self.is_of_servers

    def __str__(self) -> str:
        label, source = f" {self.label}" if self.label else "", f" ({self.source})" if self.source else ""
        return f"{self.name}{label}{source}"


@dataclasses.dataclass(frozen=True)
class Program:
    """The names of a program and of its steps."""

    name: str
    steps: list[Step]


@dataclasses.dataclass(frozen=True)
class Rank:
    """The record of a rank. Times are nanoseconds of rank 0's clock."""

    rank: int
    size: int
    process: int
    host: str
    world: tuple[str, int, int]  # equal for the ranks of a world: transport, number, and for a single rank its process
    failure: str
    lost: int  # number of events that are overwritten
    programs: dict[int, Program]
    steps: np.ndarray
    transfers: np.ndarray


def rank_of(recorded: dict[str, Any]) -> Rank:
    """Converts the extension module's record of a rank."""
    steps, transfers = (
        np.frombuffer(recorded[name], dtype).copy() for name, dtype in (("steps", _STEP), ("transfers", _TRANSFER))
    )
    for events in (steps, transfers):
        events["time"] -= recorded["clock_ahead"]
    return Rank(
        rank=recorded["rank"],
        size=recorded["size"],
        process=recorded["process"],
        host=recorded["host"],
        world=(recorded["transport"], recorded["world"], recorded["process"] if recorded["size"] == 1 else 0),
        failure=recorded["failure"],
        lost=recorded["lost"],
        programs={
            index: Program(name, [Step(*step) for step in steps])
            for index, (name, steps) in recorded["programs"].items()
        },
        steps=steps,
        transfers=transfers,
    )
