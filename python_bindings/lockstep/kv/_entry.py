"""What a store knows of a key."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ._keys import Key
from ._update import Update
from ._values import type_text


@dataclass(eq=False)
class Entry:
    """What a store knows of a key."""

    key: Key
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    is_sparse: bool  # it was initialised with rows
    stored: np.ndarray | None = None  # its value; of a store with servers a copy, once data() was asked for
    update: Update | None = None  # what changes `stored`, of a store with an optimizer
    data: np.ndarray | None = None  # `stored`, read-only, as data() gave it
    grad: np.ndarray | None = None  # what grad() gave
    residuals: dict[int, np.ndarray] = field(default_factory=dict)  # what compression owes, by device

    def __str__(self) -> str:
        rows = "rows of " if self.is_sparse else ""
        return f"key {self.key!r}, {rows}{type_text(self.dtype, self.shape)}"
