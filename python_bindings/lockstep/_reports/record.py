"""What ranks have recorded, as arrays: what the extension module gives of it, taken apart."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

# As runtime/record/record.h has them.
_STEP = np.dtype([("time", "<i8"), ("step", "<i4"), ("call", "<u4"), ("program", "<u2"), ("kind", "u1"), ("", "V5")])
_TRANSFER = np.dtype(
    [
        ("time", "<i8"), ("sequence", "<u8"), ("communicator", "<u4"), ("last", "<i4"),
        ("phase", "u1"), ("label", "S96"), ("", "V7"),
    ]
)  # fmt: skip

# Of an event of the rank's own thread: what it begins, or has done.
CALL, STEP, COMPARE, END, FAILED = range(5)
# Of a collective.
POSTED, MET, MOVED = range(3)


@dataclasses.dataclass(frozen=True)
class Step:
    """A step of a program, by its names."""

    kind: (
        str  # "kernel", "copy"; of a collective "start", "wait"; of parameter servers "push", "start_pull", "wait_pull"
    )
    name: str
    source: str
    label: str  # of a collective; of a push or pull the state
    bytes: int = 0  # of a collective's operand or result, whichever is larger; of what is pushed or pulled
    urgent: bool = False  # of a collective that the computation waits for: it need not queue behind the others

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
    """All that is known of a rank. Times are nanoseconds of rank 0's clock."""

    rank: int
    size: int
    process: int
    host: str
    world: tuple[str, int, int]  # equal for the ranks of a world: transport, number, and, of one rank, the process
    failure: str
    lost: int  # events that are missing
    programs: dict[int, Program]
    steps: np.ndarray
    transfers: np.ndarray


def rank_of(recorded: dict[str, Any]) -> Rank:
    """Of what the extension module gives."""
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
