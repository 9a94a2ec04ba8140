"""The store of one process. Pushes change values at once."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from .._lockstep import Communicator
from ._entry import Entry
from ._store import KVStore
from ._sum import sum_into
from ._values import Value, aligned_array


class LocalStore(KVStore):
    """A store of the kinds "local" and "device", which are the same here: devices are arrays in the host's memory."""

    def __init__(self, kind: str, world: Communicator | None) -> None:
        super().__init__(kind, Communicator.single())

    def _initialize(self, made: Callable[[], list[tuple[Entry, Value]]]) -> None:
        for entry, value in made():
            entry.stored = aligned_array(entry.shape, entry.dtype)
            sum_into(entry.stored, [value])
            self._add([entry])

    def _push(self, groups: Sequence[tuple[Entry, list[Value]]], priority: int) -> None:
        for entry, pushed in groups:
            values = [value.copy() if value is entry.data else value for value in pushed]  # the push changes entry.data
            if self._compression is not None:
                values = [self._compression.rounded(entry, device, value) for device, value in enumerate(values)]
            self._apply(entry, self._total(entry, values))

    def _total(self, entry: Entry, values: list[Value]) -> np.ndarray:
        """Returns the sum of the devices' values, in the memory of the entry's value if the sum replaces it."""
        first = values[0]
        if len(values) == 1 and isinstance(first, np.ndarray):
            return first
        replaces = self._updater is None and self._optimizer is None
        total = entry.stored if replaces and entry.stored is not None else np.empty(entry.shape, entry.dtype)
        sum_into(total, values)
        return total

    def _settle(self, entry: Entry) -> None:
        pass  # pushes change values at once
