"""Shares of a batch by the measured speeds of the ranks: `Executable.balance`."""

from __future__ import annotations

import dataclasses
import heapq
import json
import math
import statistics
from collections.abc import Sequence
from typing import TYPE_CHECKING

from .._base import checks
from .._base.errors import Error
from .._base.log import log
from .._reports import record
from .._reports.report import CHANCE, milliseconds, report_of

if TYPE_CHECKING:
    from .._lockstep import Executable

CALLS = 20  # of which a speed is the mean
_FEWEST = CHANCE + 3  # calls
SLOWER = 0.2  # a rank is slow if its kernels take longer by this part,
_SLOWER_BY = 1e-4  # and by so many seconds


@dataclasses.dataclass
class Measured:
    """What an executable of `train_step(..., uneven="measured")` keeps between two measurements."""

    unit: int  # shares are multiples of it
    # By rank: the layers of its fastest measurement with the present shares; empty before the first.
    fastest: list[dict[str, float]] = dataclasses.field(default_factory=list)


def begin(executable: Executable, unit: int) -> None:
    """Lets the speeds of ranks be measured. Shares are multiples of `unit` rows."""
    executable._measured = Measured(unit)


def balance(executable: Executable, threshold: float) -> bool:
    """Implements Executable.balance."""
    threshold = checks.number("balance: threshold", threshold)
    if not threshold >= 0 or math.isinf(threshold):
        raise Error(f"balance: threshold is {threshold!r}, expected at least 0")
    measured = executable._measured
    if measured is None:
        raise Error('balance: the shares of this step are fixed; train_step(..., uneven="measured") makes one')
    world, shares = executable._world(), executable.shares
    own = layers_of(executable)
    told = [json.loads(each) for each in world.gather_bytes(json.dumps(own).encode(), "balance() of an executable")]
    if not all(told):
        return False
    chosen = shares_for([sum(each.values()) for each in told], shares, measured.unit, threshold)
    said = _slow_ranks(told, measured.fastest, is_even=len(set(shares)) == 1)
    if world.rank == 0:
        for rank, text in said.items():
            log.warning("rank %d on %s %s", rank, world.host(rank), text)
    if chosen != shares:
        executable._share(chosen)
        executable._measured = Measured(measured.unit)
        if world.rank == 0:
            log.info("ranks now have %s rows of a batch, and had %s", chosen, shares)
        return True
    _keep_fastest(measured, told, said)
    return False


def layers_of(executable: Executable) -> dict[str, float]:
    """The seconds of a call that this rank's kernels take, by kernel and layer, without the calls that took longest.
    Empty if too few calls have ended."""
    recorded = executable._record()
    report = None if recorded is None else report_of(record.rank_of(recorded), recorded["program"], CALLS)
    layers: dict[str, float] = {}
    if report is None or report.calls < _FEWEST:
        return layers
    for (step, _), seconds in zip(report.steps, report.usual, strict=False):
        if not step.is_communication:
            layers[str(step)] = layers.get(str(step), 0.0) + seconds
    return layers


def shares_for(seconds: Sequence[float], shares: Sequence[int], unit: int, threshold: float) -> list[int]:
    """Returns the shares, multiples of `unit`, with which the slowest rank is fastest; the present ones if that is not
    faster by more than `threshold`.

    Args:
      seconds: that each rank needs for its share.
      shares: the present ones, in rows.
    """
    per_unit = [each / rows * unit for each, rows in zip(seconds, shares, strict=True)]
    units = [1] * len(shares)
    # Each unit goes to the rank that then ends first. The order of ranks decides between equal times.
    ends = [(2 * each, rank) for rank, each in enumerate(per_unit)]
    heapq.heapify(ends)
    for _ in range(sum(shares) // unit - len(units)):
        end, rank = ends[0]
        units[rank] += 1
        heapq.heapreplace(ends, (end + per_unit[rank], rank))
    slowest = max(each * count for each, count in zip(per_unit, units, strict=True))
    return [unit * count for count in units] if max(seconds) > (1 + threshold) * slowest else list(shares)


def _slow_ranks(told: Sequence[dict[str, float]], fastest: Sequence[dict[str, float]], is_even: bool) -> dict[int, str]:
    """Describes the ranks that have become slow with their present shares. At the first measurement, a rank with an
    equal share is compared with the others."""
    texts = {}
    for rank, layers in enumerate(told):
        if fastest:
            before, of_whom = fastest[rank], "before"
        elif is_even and len(told) > 1:
            before, of_whom = _median([each for other, each in enumerate(told) if other != rank]), "on the others"
        else:
            continue
        was, now = sum(before.values()), sum(layers.values())
        if now <= (1 + SLOWER) * was or now - was <= _SLOWER_BY:
            continue
        layer = max(layers, key=lambda name: layers[name] - before.get(name, 0.0))
        texts[rank] = (
            f"is slow: its kernels take {milliseconds(now)} of a call, {milliseconds(was)} {of_whom}; most in {layer}, "
            f"{milliseconds(layers[layer])}, {milliseconds(before.get(layer, 0.0))} {of_whom}"
        )
    return texts


def _median(told: Sequence[dict[str, float]]) -> dict[str, float]:
    return {name: statistics.median(each.get(name, 0.0) for each in told) for name in told[0]}


def _keep_fastest(measured: Measured, told: list[dict[str, float]], said: dict[int, str]) -> None:
    """Keeps the fastest measurement of each rank. A rank that was called slow is not called so again."""
    if not measured.fastest:
        measured.fastest = told
    for rank, layers in enumerate(told):
        if rank in said or sum(layers.values()) < sum(measured.fastest[rank].values()):
            measured.fastest[rank] = layers
