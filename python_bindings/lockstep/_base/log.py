"""What the package logs, by the logger `lockstep`."""

from __future__ import annotations

import logging

log = logging.getLogger("lockstep")
_warned: set[str] = set()


def warn_once(message: str) -> None:
    """A warning, unless this process has given the same before."""
    if message not in _warned:
        _warned.add(message)
        log.warning(message)
