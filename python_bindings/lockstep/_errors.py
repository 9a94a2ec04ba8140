"""The exception of this package."""

from __future__ import annotations


class Error(Exception):
    """Something outside the code is wrong: a file, an input, an option, another rank. The message names it."""

    __module__ = "lockstep"


class NoSuchState(Error, KeyError):
    """The error of `exe.state` for a name that no state has: a KeyError too, as a mapping's users expect."""

    __module__ = "lockstep"
    __str__ = Exception.__str__  # KeyError's would quote the message


class NoSuchSetting(Error, KeyError):
    """The error of `exe.settings` for a name that no setting has, or several; a KeyError too."""

    __module__ = "lockstep"
    __str__ = Exception.__str__
