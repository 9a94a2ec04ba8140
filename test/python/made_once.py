"""Arrays that many tests of a process share."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np


def made_once(make: Callable[[Any], tuple[np.ndarray, ...]]) -> Callable[[Any], tuple[np.ndarray, ...]]:
    """Wraps a method that makes arrays: they are made once for each object, and are read-only."""

    @functools.cache
    def made(self: Any) -> tuple[np.ndarray, ...]:
        arrays = tuple(np.array(array) for array in make(self))  # slices would keep all data in memory
        for array in arrays:
            array.flags.writeable = False
        return arrays

    return functools.wraps(make)(lambda self: made(self))
