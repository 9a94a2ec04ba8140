"""Hosts files, and the placement of workers and servers. A line is `HOST` or `HOST slots=N`, and # begins a comment."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from .._base.errors import Error

_LINE = re.compile(r"([A-Za-z0-9_][A-Za-z0-9_.-]*)(?:\s+slots\s*=\s*([1-9][0-9]*))?")


@dataclass(frozen=True)
class Host:
    name: str
    slots: int = 1  # the number of workers that may run on it


def read(path: str) -> tuple[Host, ...]:
    """Returns the hosts of a file in its order. Slots of a host that occurs several times are added.

    Raises:
      Error: the file cannot be read, has no hosts, or has a bad line. The message has the line's number.
    """
    try:
        text = Path(path).read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise Error(f"the hosts file {path} cannot be read: {getattr(error, 'strerror', None) or error}") from None
    slots: dict[str, int] = {}
    for number, line in enumerate(text.splitlines(), start=1):
        content = line.partition("#")[0].strip()
        if not content:
            continue
        match = _LINE.fullmatch(content)
        if match is None:
            raise Error(f"{path}:{number}: {content!r} is not HOST or HOST slots=N, N at least 1{_hint(content)}")
        slots[match[1]] = slots.get(match[1], 0) + int(match[2] or 1)
    if not slots:
        raise Error(f"the hosts file {path} has no hosts")
    return tuple(Host(name, count) for name, count in slots.items())


def _hint(content: str) -> str:
    if re.match(r"\S+:\d+", content) or re.match(r"\S+@\S", content):
        return "; put the port or user of a host into ~/.ssh/config"
    return ""


def place_workers(hosts: Sequence[Host], workers: int, path: str) -> dict[str, int]:
    """Returns the workers of each host. Hosts are filled in order, so that consecutive ranks share hosts.

    Raises:
      Error: there are fewer slots than workers.
    """
    slots = sum(host.slots for host in hosts)
    if slots < workers:
        raise Error(
            f"-n is {workers}, but the {_count(len(hosts), 'host')} of {path} have {_count(slots, 'slot')}: "
            "a line HOST slots=N gives a host N slots"
        )
    placed: dict[str, int] = {}
    for host in hosts:
        here = min(host.slots, workers - sum(placed.values()))
        if here > 0:
            placed[host.name] = here
    return placed


def place_servers(hosts: Iterable[Host], servers: int) -> dict[str, int]:
    """Returns the servers of each host, assigned round-robin. Servers use no slots, because they mostly sleep."""
    names = [host.name for host in hosts]
    placed = {name: (servers + len(names) - 1 - i) // len(names) for i, name in enumerate(names)}
    return {name: count for name, count in placed.items() if count > 0}


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"
