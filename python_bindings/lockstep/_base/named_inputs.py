"""The batches that programs are called with: inputs by name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from .errors import Error


def by_name(caller: str, names: Sequence[str], batch: Any) -> dict[str, Any]:
    """Returns the arrays of a batch by name. A tuple may have one array more, the weights of the rows, unless the
    program has an input `rows` of its own.

    Raises:
        Error: an array is missing, or there is an unknown name or one array too many.
    """
    shown = ", ".join(names)
    if isinstance(batch, Mapping):
        unknown = [name for name in batch if name not in (*names, "rows")]
        missing = [name for name in names if name not in batch]
        if unknown or (missing and batch):
            wrong = f"has no {missing[0]}" if missing else f"has {unknown[0]!r}"
            raise Error(f"{caller}: a batch {wrong}; the program's inputs are {shown}")
        return dict(batch)
    if not isinstance(batch, (tuple, list)):
        raise Error(f"{caller}: a batch is a {type(batch).__name__}, expected arrays by name, or a tuple of {shown}")
    known = names if "rows" in names else [*names, "rows"]
    if not len(names) <= len(batch) <= len(known):
        raise Error(f"{caller}: a batch has {len(batch)} arrays, expected {shown}, and rows where it is padded")
    return dict(zip(known, batch, strict=False))
