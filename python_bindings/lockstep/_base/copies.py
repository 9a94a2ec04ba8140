"""Classes whose values can be neither copied nor pickled, such as those that own sockets or buffers."""

from __future__ import annotations

import copyreg
from typing import Any, NoReturn


def refuse(kind: type, name: str, instead: str) -> None:
    """Makes copy.copy, copy.deepcopy and pickle of values of `kind` raise a TypeError that says what to do instead.

    Subclasses are not included.
    """

    def refused(_: Any) -> NoReturn:
        raise TypeError(f"a {name} can be neither copied nor pickled; {instead}")

    copyreg.pickle(kind, refused)
