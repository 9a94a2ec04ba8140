"""The log of the package: the logger `lockstep`."""

from __future__ import annotations

import logging

log = logging.getLogger("lockstep")
_warned: set[str] = set()


def warn_once(message: str) -> None:
    """Logs a warning, unless this process has logged the same one before."""
    if message not in _warned:
        _warned.add(message)
        log.warning(message)
