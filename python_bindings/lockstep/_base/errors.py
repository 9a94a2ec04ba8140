"""The exceptions of this package, and text that its messages share."""

from __future__ import annotations

from collections.abc import Collection


class Error(Exception):
    """Something outside the code is wrong: a file, an input, an option, another rank. The message names it."""

    __module__ = "lockstep"


class NoSuchState(Error, KeyError):
    """The error of `exe.state` for an unknown name. It is also a KeyError, as users of a mapping expect."""

    __module__ = "lockstep"
    __str__ = Exception.__str__  # KeyError's would quote the message


class NoSuchSetting(Error, KeyError):
    """The error of `exe.settings` for a name that matches no setting or several. It is also a KeyError."""

    __module__ = "lockstep"
    __str__ = Exception.__str__


def listed(names: Collection[str], most: int = 8) -> str:
    """Returns the names in order, and the number of those beyond `most`: "a, b and 4 more"."""
    shown = sorted(names)[:most]
    return ", ".join(shown) + (f" and {len(names) - most} more" if len(names) > most else "")
