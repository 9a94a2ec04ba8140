"""The common part of all stores: the calls, the checks of their arguments, and the entries of keys."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from .. import optim
from .._base import checks
from .._base.errors import Error
from .._compile.options import default_threads
from . import _keys, _optimizer_states
from ._arguments import Arguments, flat, ids_of
from ._compression import Compression
from ._entry import Entry
from ._keys import Key
from ._update import Update, graph_of
from ._values import RowSparse, Value, aligned_array, row_ids, value_of

if TYPE_CHECKING:
    from .._lockstep import Communicator

Updater = Callable[[Key, np.ndarray, np.ndarray], None]


class KVStore:
    """Values by key, which workers push to and pull from. Made by `lockstep.kv.create`.

    Keys are whole numbers or texts, all of one kind. Each call takes one key, or a list of keys with a list of values.
    A value is a NumPy array, or an object with `__array__`; row-major order avoids a copy. Or it is a `RowSparse`, some
    rows of an array. A list of arrays instead of a value has the arrays of several devices, which are summed.

    Only one thread may use a store at a time. With the dist kinds, all workers make the same calls in the same order.
    An invalid call raises a `lockstep.Error` that names the key, the expected value and, with several workers, the
    rank.
    """

    def __init__(self, kind: str, world: Communicator) -> None:
        self._kind, self._world = kind, world
        self._entries: dict[Key, Entry] = {}
        self._arguments = Arguments(self._entries, world)
        self._updater: Updater | None = None
        self._optimizer: optim.Optimizer | None = None
        self._settings: dict[str, Any] = {}  # given to set()
        self._rescale = 1.0
        self._compression: Compression | None = None
        self._is_ready = True  # all entries are prepared for the updater or optimizer

    # --- Workers
    # ----------------------------------------------------------------------------------------------------------

    @property
    def type(self) -> str:
        """The kind that was passed to `create`."""
        return self._kind

    @property
    def rank(self) -> int:
        """This worker's number, from 0."""
        return self._world.rank

    @property
    def num_workers(self) -> int:
        """The number of workers that push to the store."""
        return self._world.size

    def barrier(self) -> None:
        """Returns when all workers have called it."""
        self._world.barrier()

    @staticmethod
    def is_capable(capability: str) -> bool:
        """Returns true for "optimizer", the one capability that all stores have.

        Raises:
          Error: the capability is not "optimizer".
        """
        if not isinstance(capability, str) or capability.lower() != "optimizer":
            raise Error(f'is_capable: the capability is {capability!r}, expected "optimizer"')
        return True

    # --- Values
    # -----------------------------------------------------------------------------------------------------------

    def init(self, key: Any, value: Any) -> None:
        """Gives keys their first values, once for each key.

        With several workers, rank 0's value is used, and the values of all workers need the same type.

        Args:
          key: one key, or a list.
          value: an array or a `RowSparse`, or a list of one for each key.

        Example:
          >>> store.init(3, np.ones((2, 3), np.float32))
          >>> store.init(["weight", "bias"], [weight, bias])
        """
        self._initialize(lambda: self._new_entries(key, value))

    def push(self, key: Any, value: Any, priority: int = 0) -> None:
        """Sums the values that all devices and workers push to a key, and passes the sum to the updater or optimizer.
        Without one the sum becomes the value.

        The arrays may be changed when the call returns. With the synchronous dist kinds, nothing needs to have been
        sent by then: the next `pull` of the key waits for the pushes of all workers.

        Args:
          key: one key, or a list. A list is faster than a call for each key, because its values travel together.
          value: an array or a `RowSparse` of the key's type, or a list with one for each device. For several keys, a
            list of these.
          priority: keys of higher priority travel first.
        """
        groups = self._arguments.grouped("push", key, value)
        for entry, values in groups if self._compression is not None else ():
            self._arguments.check_compressible("push", entry)
            self._arguments.check_finite("push", entry, values)
        self._push(groups, checks.integer("push: priority", priority))

    def pull(self, key: Any, out: Any = None, priority: int = 0, ignore_sparse: bool = True) -> Any:
        """Returns the values of keys, including everything that was pushed to them.

        Args:
          key: one key, or a list.
          out: arrays of the keys' types to which values are written: one, or a list with one for each device. For
            several keys, a list of these. None returns new arrays, which is slower for large ones.
          priority: accepted as in MXNet, and ignored.
          ignore_sparse: skip a `RowSparse` in `out`, which `row_sparse_pull` is for. False writes all rows to it.

        Returns:
          None if `out` is given; otherwise an array, or a list of arrays.
        """
        checks.integer("pull: priority", priority)
        ignore_sparse = checks.flag("pull: ignore_sparse", ignore_sparse)
        keys, listed = _keys.several("pull", key)
        entries = [self._arguments.known("pull", each) for each in keys]
        if out is None:
            values = [self._read(entry, None) for entry in entries]
            return values if listed else values[0]
        outs, rows_of = (
            self._arguments.outs("pull", entries, out, listed),
            self._arguments.rows("pull", entries, out, listed),
        )
        self._read_several(outs)
        for entry, rows in [] if ignore_sparse else rows_of:
            rows.indices, rows.values = np.arange(entry.shape[0]), self._read(entry, None)
        return None

    def pushpull(self, key: Any, value: Any, out: Any = None, priority: int = 0) -> None:
        """Calls push() and then pull(). Without `out` the pushed arrays are overwritten by the pulled values. If `out`
        is invalid, nothing is pushed."""
        self._arguments.check_no_rows("pushpull", value)
        keys, listed = _keys.several("pushpull", key)
        entries = [self._arguments.known("pushpull", each) for each in keys]
        written = value if out is None else out
        self._arguments.outs("pushpull", entries, written, listed)
        self._arguments.rows("pushpull", entries, written, listed)
        self.push(key, value, priority)
        self.pull(key, written, priority)

    def broadcast(self, key: Any, value: Any, out: Any, priority: int = 0) -> None:
        """Calls init(), once for each key, and then pull(), which writes rank 0's value to `out`.

        If `out` is invalid, no key gets a value."""
        checks.integer("broadcast: priority", priority)

        def checked() -> list[tuple[Entry, Value]]:
            made = self._new_entries(key, value)
            entries, listed = [entry for entry, _ in made], _keys.several("broadcast", key)[1]
            self._arguments.outs("broadcast", entries, out, listed)
            self._arguments.rows("broadcast", entries, out, listed)
            return made

        self._initialize(checked)
        self.pull(key, out, priority)

    def row_sparse_pull(self, key: Any, out: Any = None, priority: int = 0, row_ids: Any = None) -> Any:
        """Returns some rows of the values of keys.

        Args:
          key: one key, or a list.
          out: `RowSparse` of the keys' types, whose rows are replaced by the requested rows, sorted and without
            repetition; or a list of several. None returns new ones.
          priority: as for `pull`.
          row_ids: the requested rows: an array of whole numbers in any order, for all keys, or a list with one array
            for each.

        Returns:
          None if `out` is given; otherwise a `RowSparse`, or a list of them.
        """
        checks.integer("row_sparse_pull: priority", priority)
        keys, listed = _keys.several("row_sparse_pull", key)
        entries = [self._arguments.known("row_sparse_pull", each) for each in keys]
        if row_ids is None:
            raise Error(f"row_sparse_pull: row_ids is None, expected the numbers of rows for the {len(keys)} keys")
        ids, pulled = ids_of(row_ids, out, entries, listed), []
        outs = flat(out, entries, listed)
        wanted = [self._wanted_rows(entry, target, rows) for (entry, target), rows in zip(outs, ids, strict=True)]
        for (entry, target), rows in zip(outs, wanted, strict=True):
            pulled.append(self._pull_rows(entry, target, rows))
        if out is not None:
            return None
        return pulled if listed else pulled[0]

    # --- Arrays of the store, for programs without copies
    # -------------------------------------------------------------------

    def data(self, key: Any) -> Any:
        """Returns the store's own arrays of values: read-only, and the same arrays at each call. They change only in
        calls of the store. They are up to date after a `pull` with them as `out`, which copies nothing. The step that
        computes gradients may read them directly (`Executable.bind`).

        With the synchronous dist kinds all workers call this. With "dist_async" the values are on the servers, and the
        array is a copy, which only such a `pull` updates.

        Args:
          key: one key, or a list.

        Returns:
          An array, or a list of arrays.

        Example:
          >>> weights, gradients = store.data(names), store.grad(names)
          >>> exe.bind(
          ...     states=dict(zip(names, weights)),
          ...     results={f"grad/{name}": gradient for name, gradient in zip(names, gradients)},
          ... )
          >>> for batch in batches:
          ...     exe(**batch)
          ...     store.push(names, gradients)
          ...     store.pull(names, out=weights)
        """
        keys, listed = _keys.several("data", key)
        arrays = [self._data_of(self._arguments.known("data", each)) for each in keys]
        return arrays if listed else arrays[0]

    def grad(self, key: Any) -> Any:
        """Returns arrays of the keys' types, the same ones at each call, which `push` does not copy. With the
        synchronous dist kinds, they are the memory in which the workers' pushes are summed.

        With these kinds, the array belongs to the store from a push of the key until the `pull`, or another call that
        waits for the push. It is then read-only, and afterwards its contents are arbitrary. The other kinds have read
        the array when `push` returns. Other arrays can be pushed too.

        With the synchronous dist kinds all workers call this.

        Args:
          key: one key, or a list.

        Returns:
          An array, or a list of arrays.
        """
        keys, listed = _keys.several("grad", key)
        arrays = [self._grad_of(self._arguments.known("grad", each)) for each in keys]
        return arrays if listed else arrays[0]

    # --- Updaters and optimizers
    # --------------------------------------------------------------------------------------------

    def set_updater(self, updater: Updater) -> None:
        """Sets the function that changes a value by a pushed one: `updater(key, pushed, stored)` changes the array
        `stored` in place, and does not change `pushed`. Each of several workers calls it, and must compute the same
        bits.

        Example:
          >>> def update(key, pushed, stored):
          ...     stored += 2 * pushed
          >>> store.set_updater(update)
        """
        if not callable(updater):
            raise Error(f"set_updater: the updater is {updater!r}, expected a function of key, pushed and stored")
        self._settle_all()
        self._end_updates()
        self._updater, self._optimizer = updater, None
        self._is_ready = False

    def set_optimizer(self, optimizer: optim.Optimizer, rescale_grad: float = 1.0) -> None:
        """Lets an optimizer update values by pushed gradients. The states of a previous optimizer are discarded.

        Args:
          optimizer: of `lockstep.optim`. Its update is compiled for the type of each key.
          rescale_grad: the factor of gradients, after the sum over devices and workers: 1 / (workers x batch) for the
            mean of summed losses.

        Example:
          >>> store.set_optimizer(lockstep.optim.SGD(0.1, momentum=0.9), rescale_grad=1 / 256)
        """
        self._agree("set_optimizer", "optimizers", lambda: self._checked_optimizer(optimizer, rescale_grad))
        self._settle_all()
        self._end_updates()
        self._updater, self._optimizer = None, optimizer
        self._rescale, self._settings = float(rescale_grad), {}
        self._is_ready = False

    def set(self, **values: Any) -> None:
        """Sets numbers of the optimizer from the next push on: `store.set(learning_rate=0.01)`, or `rescale_grad`. All
        workers set the same. A value is a number, or a function of the step, as in `Executable.set`.
        """
        if self._optimizer is None:
            raise Error("set: there is no optimizer; set_optimizer gives the store one")
        self._settle_all()
        self._agree("set", "settings", lambda: str({name: _first_of(name, each) for name, each in values.items()}))
        updates = self._updates()
        for update in updates.values():
            update.executable.set(**values)
        if not updates:
            raise Error("set: there are no keys yet, so there is nothing to set")
        self._settings.update(values)

    def set_gradient_compression(self, compression_params: Any) -> None:
        """Rounds pushed values to few levels before they travel. The rounding error is added to the next push.

        With the kind "device" the values of each device are rounded, and with the dist kinds those of each worker.
        Values must be f32.

        Args:
          compression_params: {"type": "2bit", "threshold": 0.5} rounds to threshold, 0 or -threshold, in 2 bits.
            {"type": "1bit", "threshold": 0.0} rounds to 1 above the threshold and otherwise to -1, in 1 bit. The
            default threshold is 0.5.
        """
        compression = Compression.of(compression_params)
        if self._kind == "local":
            raise Error(
                "set_gradient_compression: a store of the kind 'local' sends nothing; the kinds 'device' and 'dist_sync' compress"
            )
        self._settle_all()
        for entry in self._entries.values():
            self._arguments.check_compressible("set_gradient_compression", entry)
        self._agree("set_gradient_compression", "gradient compression", lambda: str(compression))
        for entry in self._entries.values():
            entry.residuals.clear()
        self._compression = compression

    def save_optimizer_states(self, path: str | os.PathLike[str], dump_optimizer: bool = False) -> None:
        """Writes the optimizer's states of all keys, without the keys' values, to a file. Collective; rank 0 writes.

        The file appears complete or not at all. It has the safetensors format.

        Args:
          path: of the file.
          dump_optimizer: also write the optimizer's options.

        Raises:
          Error: on all workers, if there is no optimizer or the file cannot be written.
        """
        self._need_optimizer("save_optimizer_states")
        self._settle_all()
        _optimizer_states.save(self, checks.path(path), checks.flag("dump_optimizer", dump_optimizer))

    def load_optimizer_states(self, path: str | os.PathLike[str]) -> None:
        """Loads the optimizer's states from a file of save_optimizer_states(). Collective; each worker reads the file.

        If the file has the optimizer's options, the store gets that optimizer first.

        Raises:
          Error: the file is damaged, differs between workers, or belongs to other keys or another optimizer. The
            message names it.
        """
        self._settle_all()
        _optimizer_states.load(self, checks.path(path))

    def __repr__(self) -> str:
        return f"<lockstep.kv.KVStore {self._kind}, rank {self.rank} of {self.num_workers}, {len(self._entries)} keys>"

    # --- Differences between kinds of stores
    # ----------------------------------------------------------------------------------

    def _initialize(self, made: Callable[[], list[tuple[Entry, Value]]]) -> None:
        """Gives new entries their first values, and registers them by `_add`. The caller may change the values later.
        made() returns the checked entries."""
        raise NotImplementedError

    def _push(self, groups: Sequence[tuple[Entry, list[Value]]], priority: int) -> None:
        """Takes the values that devices pushed to entries. The values have the entries' types."""
        raise NotImplementedError

    def _agree(self, call: str, what: str, body: Callable[[], str]) -> None:
        """Compares the results of body() between workers. Collective. An Error shows two results that differ. An Error
        of body() on one worker is raised on all."""
        body()

    def _settle(self, entry: Entry) -> None:
        """Waits until all pushes to the entry have been applied to its value."""
        raise NotImplementedError

    def _settle_all(self) -> None:
        """Does the same for all entries."""
        for entry in self._entries.values():
            self._settle(entry)

    # --- Entries
    # ---------------------------------------------------------------------------------------------------------------

    def _new_entries(self, key: Any, value: Any) -> list[tuple[Entry, Value]]:
        """Returns new entries and their first values from the arguments of `init`, which it checks."""
        keys, listed = _keys.several("init", key)
        values = self._arguments.paired("init", keys, value) if listed else [value]
        made: list[tuple[Entry, Value]] = []
        for each, first in zip(keys, values, strict=True):
            if isinstance(first, (list, tuple)) and len(first) > 0:
                first = first[0]  # the value of the first device
            checked = value_of(self._arguments.of("init", each), first)
            self._arguments.check_kind("init", each, [entry for entry, _ in made])
            entry = Entry(each, checked.dtype, checked.shape, isinstance(checked, RowSparse))
            if self._optimizer is not None:
                self._check_updates("init", self._optimizer, entry)
            made.append((entry, checked))
        return made

    def _add(self, entries: Iterable[Entry]) -> None:
        self._entries.update({entry.key: entry for entry in entries})
        self._is_ready = False

    def _value_of(self, entry: Entry) -> np.ndarray:
        """Returns the value of an entry, settled or not, in memory that the entry keeps as long as the store exists."""
        assert entry.stored is not None
        return entry.stored

    def _place_of(self, entry: Entry) -> np.ndarray:
        """Returns memory of an entry's type for values to push. The caller may use it until the push."""
        return aligned_array(entry.shape, entry.dtype)

    # --- Values of entries
    # ----------------------------------------------------------------------------------------------------

    def _read(self, entry: Entry, out: np.ndarray | None) -> np.ndarray:
        """Returns the value of an entry, in `out` or a new array."""
        self._settle(entry)
        assert entry.stored is not None
        if out is None:
            return entry.stored.copy()
        if out is not entry.stored:
            np.copyto(out, entry.stored)
        return out

    def _read_several(self, outs: Sequence[tuple[Entry, Sequence[np.ndarray]]]) -> None:
        """Reads the values of entries, each into several arrays."""
        for entry, arrays in outs:
            self._read_all(entry, arrays)

    def _read_all(self, entry: Entry, outs: Sequence[np.ndarray]) -> None:
        """Reads the value of an entry into several arrays."""
        if not outs:
            return
        direct = next((out for out in outs if out.flags.c_contiguous), None)
        value = self._read(entry, direct)
        for out in outs:
            if out is not value:
                np.copyto(out, value)

    def _read_rows(self, entry: Entry, rows: np.ndarray) -> np.ndarray:
        """Returns copies of some rows of the value of an entry."""
        self._settle(entry)
        assert entry.stored is not None
        return entry.stored[rows]

    def _data_of(self, entry: Entry) -> np.ndarray:
        self._settle(entry)
        value = self._value_of(entry)
        if entry.data is None:
            entry.data = value.view()
            entry.data.flags.writeable = False
        return entry.data

    def _grad_of(self, entry: Entry) -> np.ndarray:
        self._settle(entry)
        if entry.grad is None:
            entry.grad = self._place_of(entry)
        return entry.grad

    def _apply(self, entry: Entry, pushed: np.ndarray) -> None:
        """Changes the value of an entry by the sum of all pushed values."""
        if self._updater is not None:
            assert entry.stored is not None
            self._updater(entry.key, pushed, entry.stored)
        elif self._optimizer is not None:
            self._update_of(entry)(pushed)
        elif entry.stored is not pushed:
            assert entry.stored is not None
            np.copyto(entry.stored, pushed)

    def _update_of(self, entry: Entry) -> Update:
        """Returns the update of an entry, which is compiled at its first use."""
        if entry.update is None:
            assert self._optimizer is not None
            value = self._value_of(entry)
            entry.update = Update(self._optimizer, self._rescale, value, default_threads(self._world))
            entry.update.executable.set(**self._settings)
        return entry.update

    def _updates(self) -> dict[Key, Update]:
        """Returns the updates of all keys, in the order of their initialisation."""
        self._need_optimizer("the optimizer's states")
        return {key: self._update_of(entry) for key, entry in self._entries.items()}

    def _end_updates(self) -> None:
        """Discards the states of the optimizer."""
        for entry in self._entries.values():
            entry.update = None

    def _checked_optimizer(self, optimizer: Any, rescale_grad: Any) -> str:
        """Checks the arguments of set_optimizer. Returns the text that workers compare."""
        if isinstance(optimizer, type) or not isinstance(optimizer, optim.Optimizer):
            optim._groups(optimizer, None)  # raises the error
        rescale = checks.number("set_optimizer: rescale_grad", rescale_grad)
        if not math.isfinite(rescale):
            raise Error(f"set_optimizer: rescale_grad is {rescale_grad!r}, expected a finite number")
        for entry in self._entries.values():
            self._check_updates("set_optimizer", optimizer, entry)
        return f"{type(optimizer).__name__}{optimizer._choice()[1:]}, rescale_grad={rescale}"

    def _check_updates(self, call: str, optimizer: optim.Optimizer, entry: Entry) -> None:
        try:
            graph_of(optimizer, 1.0, entry.dtype, entry.shape)
        except Error as error:
            raise Error(f"{self._arguments.of(call, entry.key)}: {error}") from None

    def _need_optimizer(self, call: str) -> None:
        if self._optimizer is None:
            raise Error(f"{call}: there is no optimizer; set_optimizer gives the store one")

    def _wanted_rows(self, entry: Entry, out: RowSparse | None, ids: Any) -> np.ndarray:
        """Returns the rows of an entry to pull, sorted and without repetition. Checks that `out` can hold them."""
        rows = np.unique(row_ids(f"{self._arguments.of('row_sparse_pull', entry.key)}: row_ids", ids, entry.shape))
        if out is not None:
            self._arguments.check_rows("row_sparse_pull", entry, out)
        return rows

    def _pull_rows(self, entry: Entry, out: RowSparse | None, rows: np.ndarray) -> RowSparse:
        values = self._read_rows(entry, rows)
        if out is None:
            return RowSparse(rows, values, entry.shape)
        out.indices, out.values = rows, values
        return out


def _first_of(name: str, value: Any) -> Any:
    """Returns a number, or the value of a schedule at its first step."""
    if not callable(value):
        return value
    try:
        first = value(0)
    except Exception as error:
        raise Error(f"set: {name} has no value at step 0: {type(error).__name__}: {error}") from error
    return checks.number(f"set: {name} at step 0", first)
