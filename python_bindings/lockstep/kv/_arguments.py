"""Checks of the arguments of a store's calls: known keys, and values and arrays of their types. An Error names the
call, the key and the rank."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from .._base.errors import Error
from . import _keys
from ._entry import Entry
from ._keys import Key
from ._values import RowSparse, Value, type_text, value_of

if TYPE_CHECKING:
    from .._lockstep import Communicator


class Arguments:
    """Checks the arguments of a store's calls against its entries."""

    def __init__(self, entries: Mapping[Key, Entry], world: Communicator) -> None:
        self._entries, self._world = entries, world

    def of(self, call: str, key: Key) -> str:
        """The beginning of a message: the call, the rank if there are several, and the key."""
        rank = f" on rank {self._world.rank} of {self._world.size}" if self._world.size > 1 else ""
        return f"{call}{rank}: key {key!r}"

    def known(self, call: str, key: Key) -> Entry:
        entry = self._entries.get(key)
        if entry is None:
            raise Error(f"{self.of(call, key)} was not initialised; there are {_keys.shown(self._entries)}")
        return entry

    def check_kind(self, call: str, key: Key, others: Sequence[Entry]) -> None:
        """Checks that a new key does not exist yet, and is of the same kind as the others."""
        known = next(iter(self._entries), None)
        if known is not None and type(known) is not type(key):
            raise Error(
                f"{self.of(call, key)}: the store has the key {known!r}; keys are all whole numbers or all texts"
            )
        if key in self._entries:
            raise Error(f"{self.of(call, key)} was initialised before, as {self._entries[key]}")
        if any(each.key == key for each in others):
            raise Error(f"{self.of(call, key)} is there twice")

    def paired(self, call: str, keys: Sequence[Key], values: Any) -> Sequence[Any]:
        """Checks that `values` is a list with one value for each key, and returns it."""
        if not isinstance(values, (list, tuple)) or len(values) != len(keys):
            found = f"{len(values)} values" if isinstance(values, (list, tuple)) else f"a {type(values).__name__}"
            raise Error(
                f"{call}: there are {len(keys)} keys, {_keys.shown(keys)}, and {found}, expected a list of as many"
            )
        return values

    def grouped(self, call: str, key: Any, value: Any) -> list[tuple[Entry, list[Value]]]:
        """Returns the entries, each once, with the values that devices push to them."""
        keys, listed = _keys.several(call, key)
        values = self.paired(call, keys, value) if listed else [value]
        groups: dict[Key, tuple[Entry, list[Value]]] = {}
        for each, given in zip(keys, values, strict=True):
            entry, pushed = groups.setdefault(each, (self.known(call, each), []))
            pushed.extend(self._devices(call, entry, given))
        return list(groups.values())

    def _devices(self, call: str, entry: Entry, given: Any) -> list[Value]:
        devices = list(given) if isinstance(given, (list, tuple)) else [given]
        if not devices:
            raise Error(f"{self.of(call, entry.key)}: there is no value in the list")
        checked = [value_of(self.of(call, entry.key), each) for each in devices]
        for each in checked:
            if each.dtype != entry.dtype or each.shape != entry.shape:
                found = type_text(each.dtype, each.shape)
                raise Error(
                    f"{self.of(call, entry.key)}: the value is {found}, expected {type_text(entry.dtype, entry.shape)}"
                )
        return checked

    def outs(self, call: str, entries: Sequence[Entry], out: Any, listed: bool) -> list[tuple[Entry, list[np.ndarray]]]:
        """Returns entries with the arrays to which their values are written, without the places that `rows` returns."""
        result = []
        for entry, given in zip(entries, self._places(call, entries, out, listed), strict=True):
            arrays = [each for each in given if not isinstance(each, RowSparse)]
            for each in arrays:
                self._check_out(call, entry, each)
            # The array of data() is a read-only view of the value. The store writes to the value itself.
            result.append((entry, [entry.stored if each is entry.data else each for each in arrays]))
        return result

    def rows(self, call: str, entries: Sequence[Entry], out: Any, listed: bool) -> list[tuple[Entry, RowSparse]]:
        """Returns each RowSparse in `out` with its entry."""
        result = []
        for entry, given in zip(entries, self._places(call, entries, out, listed), strict=True):
            result += [(entry, each) for each in given if isinstance(each, RowSparse)]
        for entry, each in result:
            self.check_rows(call, entry, each)
        return result

    def _places(self, call: str, entries: Sequence[Entry], out: Any, listed: bool) -> list[list[Any]]:
        """Returns the parts of `out` for each entry."""
        outs = self.paired(call, [entry.key for entry in entries], out) if listed else [out]
        return [list(given) if isinstance(given, (list, tuple)) else [given] for given in outs]

    def _check_out(self, call: str, entry: Entry, out: Any) -> None:
        if not isinstance(out, np.ndarray):
            raise Error(f"{self.of(call, entry.key)}: out is a {type(out).__name__}, expected a NumPy array")
        self._check_type(call, entry, out)
        if not out.flags.writeable and out is not entry.data and out is not entry.grad:
            raise Error(f"{self.of(call, entry.key)}: out may not be written")

    def check_rows(self, call: str, entry: Entry, out: Any) -> None:
        if not isinstance(out, RowSparse):
            raise Error(f"{self.of(call, entry.key)}: out is a {type(out).__name__}, expected a lockstep.kv.RowSparse")
        self._check_type(call, entry, out)

    def _check_type(self, call: str, entry: Entry, out: Value) -> None:
        if out.dtype != entry.dtype or out.shape != entry.shape:
            found, expected = type_text(out.dtype, out.shape), type_text(entry.dtype, entry.shape)
            raise Error(f"{self.of(call, entry.key)}: out is {found}, expected {expected}")

    def check_finite(self, call: str, entry: Entry, values: Sequence[Value]) -> None:
        """Checks that values are finite, because infinity and NaN cannot be rounded to few levels."""
        for value in values:
            if not np.isfinite(value.values if isinstance(value, RowSparse) else value).all():
                raise Error(f"{self.of(call, entry.key)}: the value is not finite, which compression cannot represent")

    def check_compressible(self, call: str, entry: Entry) -> None:
        if entry.dtype != np.float32:
            found = type_text(entry.dtype, entry.shape)
            raise Error(f"{self.of(call, entry.key)} is {found}, but gradient compression requires f32")

    def check_no_rows(self, call: str, value: Any) -> None:
        if isinstance(value, RowSparse) or (
            isinstance(value, (list, tuple)) and any(_has_rows(each) for each in value)
        ):
            raise Error(f"{call}: the value is a RowSparse; push it, and pull with row_sparse_pull")


def _has_rows(value: Any) -> bool:
    devices = value if isinstance(value, (list, tuple)) else [value]
    return any(isinstance(each, RowSparse) for each in devices)


def flat(out: Any, entries: Sequence[Entry], listed: bool) -> list[tuple[Entry, Any]]:
    """Returns each place to which rows are pulled, with its entry."""
    if out is None:
        return [(entry, None) for entry in entries]
    outs = out if listed else [out]
    if not isinstance(outs, (list, tuple)) or len(outs) != len(entries):
        raise Error(f"row_sparse_pull: there are {len(entries)} keys, and out is {out!r}, expected a list of as many")
    return [
        (entry, each)
        for entry, given in zip(entries, outs, strict=True)
        for each in (given if isinstance(given, (list, tuple)) else [given])
    ]


def ids_of(ids: Any, out: Any, entries: Sequence[Entry], listed: bool) -> list[Any]:
    """Returns the requested rows for each place to which rows are pulled."""
    places = len(flat(out, entries, listed))
    if not isinstance(ids, (list, tuple)) or len(ids) == 0 or np.ndim(ids[0]) == 0:
        return [ids] * places
    if len(ids) == 1:
        return list(ids) * places
    if len(ids) != places:
        raise Error(f"row_sparse_pull: there are {len(ids)} lists in row_ids, expected one list, or {places}")
    return list(ids)
