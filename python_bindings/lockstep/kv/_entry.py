"""The entry of a key in a store."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ._keys import Key
from ._update import Update
from ._values import type_text


@dataclass(eq=False)
class Entry:
    """The value of a key, with everything else that a store keeps for it."""

    key: Key
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    is_sparse: bool  # it was initialised with rows
    stored: np.ndarray | None = None  # the value; for a store with servers, a copy after a call of data()
    update: Update | None = None  # updates `stored`, if the store has an optimizer
    data: np.ndarray | None = None  # a read-only view of `stored`, returned by data()
    grad: np.ndarray | None = None  # the array returned by grad()
    residuals: dict[int, np.ndarray] = field(default_factory=dict)  # rounding errors of compression, by device

    def __str__(self) -> str:
        rows = "rows of " if self.is_sparse else ""
        return f"key {self.key!r}, {rows}{type_text(self.dtype, self.shape)}"
