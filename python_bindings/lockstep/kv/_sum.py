"""The sum of the values that devices push."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ._values import RowSparse, Value


def sum_into(total: np.ndarray, values: Sequence[Value]) -> None:
    """Writes the sum of `values`, in their order, to `total`, which may be the first value but no other."""
    first, rest = values[0], list(values[1:])
    if isinstance(first, RowSparse):
        total.fill(0)
        first.add_to(total)
    elif rest and isinstance(rest[0], np.ndarray):
        np.add(first, rest.pop(0), out=total)
    elif first is not total:
        np.copyto(total, first)
    for value in rest:
        if isinstance(value, RowSparse):
            value.add_to(total)
        else:
            np.add(total, value, out=total)
