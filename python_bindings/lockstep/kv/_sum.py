"""What devices push, added up."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ._values import RowSparse, Value


def sum_into(total: np.ndarray, values: Sequence[Value]) -> None:
    """Makes an array the sum of values of its type, in their order. It is none of them."""
    first, rest = values[0], list(values[1:])
    if isinstance(first, RowSparse):
        total.fill(0)
        first.add_to(total)
    elif rest and isinstance(rest[0], np.ndarray):
        np.add(first, rest.pop(0), out=total)
    else:
        np.copyto(total, first)
    for value in rest:
        if isinstance(value, RowSparse):
            value.add_to(total)
        else:
            np.add(total, value, out=total)
