"""The keys of a store: one key or a list of them, either all whole numbers or all texts."""

from __future__ import annotations

import operator
from collections.abc import Collection
from typing import Any

from .._base import checks
from .._base.errors import Error

Key = int | str


def one(call: str, key: Any) -> Key:
    """Returns the key. If it is invalid, raises an Error that names the call."""
    if isinstance(key, str):
        return checks.text(f"{call}: the key", key)
    try:
        if isinstance(key, bool):
            raise TypeError
        return operator.index(key)
    except TypeError:
        raise Error(f"{call}: the key is {key!r}, expected a whole number or a text, or a list of them") from None


def several(call: str, key: Any) -> tuple[list[Key], bool]:
    """Returns the keys, and true if they were given as a list."""
    if not isinstance(key, (list, tuple)):
        return [one(call, key)], False
    keys = [one(call, each) for each in key]
    if len({type(each) for each in keys}) > 1:
        raise Error(f"{call}: the keys are {shown(keys)}: whole numbers and texts, expected all of one kind")
    return keys, True


def shown(keys: Collection[Key]) -> str:
    """The keys for a message; only the first ones of many."""
    texts = [repr(key) for key in list(keys)[:8]]
    return ", ".join(texts) + (f" and {len(keys) - 8} more" if len(keys) > 8 else "") if texts else "none"
