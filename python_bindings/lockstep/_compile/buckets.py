"""The measurements from which buckets are chosen. They are equal on all ranks."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from .. import _lockstep
from .._base import checks
from .._base.errors import Error
from .._lockstep import Communicator
from .._reports.report import Report

_LABEL = "times that buckets are chosen by"
_LONGEST = 1e6  # seconds: no step takes longer
_Times = tuple[int, int, int]  # nanoseconds: ready, needed, update
Measured = tuple[list[tuple[str, int, int, int]], dict[str, list[tuple[int, int]]]]


def _nanoseconds(name: str, seconds: Any) -> int:
    if not 0 <= checks.number(f"compile: buckets: {name}", seconds) <= _LONGEST:
        raise Error(f"compile: buckets: {name} is {seconds!r} s, expected at least 0 and at most {_LONGEST:g}")
    return round(1e9 * seconds)


def times_of(report: Report, ranks: int) -> dict[str, _Times]:
    """Returns the times by gradient. Raises an Error if there are several ranks and the report has no gradients."""
    if not isinstance(report, Report):
        raise Error(f"compile: buckets is {report!r}, expected a report() of an executable of this step")
    if not report.gradients and ranks > 1:
        raise Error(
            f"compile: buckets: the report of @{report.program} has no gradients; expected the report of an executable for "
            f"several ranks: exe.report()"
        )
    return {
        each.name: (
            _nanoseconds(f"ready of {each.name}", each.ready),
            _nanoseconds(f"needed of {each.name}", each.needed),
            _nanoseconds(f"update of {each.name}", each.update),
        )
        for each in report.gradients
    }


def agreed(world: Communicator, program: str, times: dict[str, _Times]) -> dict[str, _Times]:
    """Returns the maximum of each time over all ranks, because a collective begins when the last rank arrives."""
    texts = world.gather_bytes(json.dumps([program, times]).encode(), _LABEL)
    latest = dict(times)
    for rank, text in enumerate(texts):
        other, others_times = json.loads(text)
        if other != program or others_times.keys() != times.keys():
            raise Error(
                f"compile: buckets: rank {world.rank} has a report of @{program} with {len(times)} gradients, and rank "
                f"{rank} one of @{other} with {len(others_times)}{_first_difference(times, others_times)}; all need "
                f"reports of the same step"
            )
        latest = {name: tuple(map(max, own, others_times[name])) for name, own in latest.items()}
    return latest


def _first_difference(own: dict[str, Any], others: dict[str, Any]) -> str:
    only = sorted(own.keys() ^ others.keys())
    return f", of which only one has %{only[0]}" if only else ""


def measured(
    world: Communicator, mesh: Sequence[tuple[str, int]], program: str, times: dict[str, _Times]
) -> Measured | None:
    """Returns the option `measured` of a compilation; None if no bucket moves by itself, because there is one rank or
    all ranks share memory. Collective.

    Args:
      mesh: axes and sizes; all ranks of `world`.
      program: the name of the program that was measured.
      times: the times of its gradients, on this rank.
    """
    if world.size == 1:
        return None
    times = agreed(world, program, times)
    of_axes = _lockstep._measure_costs(world, mesh)
    costs = {name: points for (name, _), points in zip(mesh, of_axes, strict=True) if points}
    return ([(name, *each) for name, each in times.items()], costs) if costs else None
