"""Descriptions of the measured networks between hosts, and of the routes that collectives take there."""

from __future__ import annotations

import socket
from typing import Any

from .. import _lockstep


def describe() -> list[tuple[str, str]]:
    """Returns a name and lines about costs and routes for each cluster that this host belongs to."""
    host = f"{socket.gethostname()}*"
    known = [each for each in _lockstep._networks() if any(name.startswith(host) for name in each["cluster"].split())]
    return [(each["cluster"], _lines(each)) for each in known]


def _lines(network: dict[str, Any]) -> str:
    costs = (
        f"latency {1e6 * network['latency']:.0f} µs, {1e6 * network['message']:.1f} µs a message, "
        f"{_rate(network['byte_to_all'])} to all, {_rate(network['byte_to_neighbour'])} to a neighbour"
    )
    return "\n".join([costs, *(f"{name:<16}{_ranges(ranges)}" for name, ranges in network["routes"].items())])


def _ranges(ranges: list[tuple[int, str]]) -> str:
    """ "all below 8 KiB, halving below 1 MiB, then ring"."""
    ends = [size for size, _ in ranges[1:]]
    parts = [f"{route} below {_size(end)}" for (_, route), end in zip(ranges, ends, strict=False)]
    return ", ".join([*parts, f"then {ranges[-1][1]}" if parts else ranges[-1][1]])


def _size(count: int) -> str:
    for unit, name in ((2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB")):
        if count >= unit:
            return f"{count / unit:.3g} {name}"
    return f"{count} bytes"


def _rate(seconds_a_byte: float) -> str:
    return f"{8e-9 / seconds_a_byte:.3g} Gb/s"
