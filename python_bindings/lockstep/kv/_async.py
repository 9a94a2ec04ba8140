"""The store of parameter servers: a worker's push changes values at once, and workers do not wait for each other."""

from __future__ import annotations

import functools
import math
import os
from collections.abc import Callable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any, NoReturn

import numpy as np

from .. import _lockstep, optim
from .._base import checks
from .._base.errors import Error
from .._lockstep import Communicator
from .._reports.staleness import Staleness
from ._entry import Entry
from ._keys import Key
from ._store import KVStore, Updater
from ._sum import sum_into
from ._together import agree, on_all_workers
from ._update import graph_of
from ._values import RowSparse, Value, aligned_array, dtype_name

_VALUE = "value/"  # the prefix of an optimizer's states


class AsyncStore(KVStore):
    """A store of the kind "dist_async". Values are on the job's parameter servers, which apply each push at once.

    A worker's next pull includes its own pushes, and those pushes of others that have arrived. Each push is an update:
    n workers make n updates where "dist_sync" makes one.

    Requires a job with servers (`lockstep launch -n N -s S`). All workers make the calls init, set_optimizer, set,
    barrier, and saving and loading of states together. An error of one worker in these is raised on all. Each worker
    makes the other calls independently.
    """

    def __init__(self, kind: str, world: Communicator | None) -> None:
        world = Communicator.from_environment() if world is None else world
        super().__init__(kind, checks.instance("create: world", world, Communicator, "a lockstep.Communicator"))
        servers = _lockstep._servers() if world.transport == "mpi" else None
        if servers is None:
            raise Error(
                f"create: a store of the kind {kind!r} needs parameter servers, but this job has none: start it by "
                '`lockstep launch -n N -s S PROGRAM`; "dist_sync" needs none'
            )
        if servers.workers != world.size:
            raise Error(f"create: world has {world.size} ranks, but the servers have {servers.workers} workers")
        self._servers = servers
        self._max_staleness: int | None = None
        self._bigarray_bound = 1_000_000
        self._pieces: dict[Key, list[tuple[str, list[int]]]] = {}

    # --- Only for this kind
    # -----------------------------------------------------------------------------------------------

    @property
    def max_staleness(self) -> int | None:
        """The number of updates that a worker may be ahead of the slowest one before its pushes and pulls of a key
        wait. It applies to keys that are initialised later. None, the default, is no limit. All workers set the
        same."""
        return self._max_staleness

    @max_staleness.setter
    def max_staleness(self, updates: int | None) -> None:
        self._max_staleness = None if updates is None else checks.integer("max_staleness", updates, 0)

    @property
    def bigarray_bound(self) -> int:
        """The largest array, in elements, that stays on one server, a million by default. It applies to keys that are
        initialised later. Larger arrays are divided evenly among all servers. Smaller ones are placed so that servers
        have about equally many bytes."""
        return self._bigarray_bound

    @bigarray_bound.setter
    def bigarray_bound(self, elements: int) -> None:
        self._bigarray_bound = checks.integer("bigarray_bound", elements, 1)

    def staleness(self) -> Staleness:
        """The staleness of the gradients of all workers until now."""
        return Staleness(self._servers.staleness())

    # --- The calls
    # ----------------------------------------------------------------------------------------------------------

    def barrier(self) -> None:
        """Returns when all workers have called it, and all earlier pushes have been applied."""
        on_all_workers(self._servers, "barrier", lambda: "")

    def set_updater(self, updater: Updater) -> NoReturn:
        """Raises an Error: servers run no Python code of workers. Use set_optimizer."""
        raise Error(
            "set_updater: servers run no Python code of workers, so a store of the kind 'dist_async' takes an optimizer of "
            "lockstep.optim (set_optimizer), which is compiled on the servers"
        )

    def set_gradient_compression(self, compression_params: Any) -> NoReturn:
        """Raises an Error: pushes to servers are not compressed."""
        raise Error("set_gradient_compression: a store of the kind 'dist_async' compresses nothing; 'dist_sync' does")

    def set_optimizer(self, optimizer: optim.Optimizer, rescale_grad: float = 1.0) -> None:
        super().set_optimizer(optimizer, rescale_grad)
        try:
            self._send_optimizer("set_optimizer", list(self._entries.values()))
        except Error:
            self._optimizer = None
            raise

    def set(self, **values: Any) -> None:
        """Sets numbers of the optimizer for all later updates. Collective, with the same numbers on all workers."""
        numbers: dict[str, float] = {}

        def check() -> str:
            numbers.update(self._checked_numbers(values))
            return str(numbers)

        def send() -> None:
            for name, value in numbers.items():
                self._servers.set(_setting(name), value)

        self._tell("set", agree(self._servers, "set", "settings", check), send)
        self._settings.update(numbers)

    def load_optimizer_states(self, path: str | os.PathLike[str]) -> None:
        def load() -> str:
            super(AsyncStore, self).load_optimizer_states(path)
            return ""

        on_all_workers(self._servers, "load_optimizer_states", load)

    # --- Differences between kinds of stores
    # ----------------------------------------------------------------------------------

    def _initialize(self, made: Callable[[], list[tuple[Entry, Value]]]) -> None:
        new: list[tuple[Entry, Value]] = []

        def check() -> str:
            new.extend(made())
            for entry, _ in new:
                if math.prod(entry.shape) > self._bigarray_bound:
                    self._check_can_be_cut("init", entry, self._servers.servers)
            own = [f"max_staleness={self._max_staleness}, bigarray_bound={self._bigarray_bound}"]
            return "\n".join([*own, *(str(entry) for entry, _ in new)])

        def send() -> None:
            staleness = -1 if self._max_staleness is None else self._max_staleness
            for entry, value in new:
                first = _bytes(value.dense() if isinstance(value, RowSparse) else value)
                dtype, shape = dtype_name(entry.dtype), list(entry.shape)
                self._servers.init(_name(entry.key), dtype, shape, first, False, staleness, self._bigarray_bound)

        self._tell("init", agree(self._servers, "init", "keys", check), send)
        if self._optimizer is not None:
            self._send_optimizer("init", [entry for entry, _ in new])
        self._add(entry for entry, _ in new)

    def _push(self, groups: Sequence[tuple[Entry, list[Value]]], priority: int) -> None:
        if self._optimizer is None and groups:
            raise Error(
                f"{self._arguments.of('push', groups[0][0].key)}: servers update at every push, so set an optimizer "
                "before the first push (set_optimizer)"
            )
        pushes = []
        for entry, values in groups:
            total = values[0]
            if len(values) > 1 or isinstance(total, RowSparse):
                total = np.empty(entry.shape, entry.dtype)
                sum_into(total, values)
            pushes.append((_name(entry.key), _bytes(total)))
        self._servers.push(pushes)

    def _settle(self, entry: Entry) -> None:
        """Does nothing: a pull is ordered after the pushes of its worker."""

    def _settle_all(self) -> None:
        self._servers.flush()

    def _value_of(self, entry: Entry) -> np.ndarray:
        if entry.stored is None:
            entry.stored = aligned_array(entry.shape, entry.dtype)
            self._read(entry, entry.stored)
        return entry.stored

    def _read(self, entry: Entry, out: np.ndarray | None) -> np.ndarray:
        direct = np.empty(entry.shape, entry.dtype) if out is None or not out.flags.c_contiguous else out
        self._servers.pull([(_name(entry.key), _bytes(direct))])
        if out is not None and out is not direct:
            np.copyto(out, direct)
        return direct if out is None else out

    def _read_several(self, outs: Sequence[tuple[Entry, Sequence[np.ndarray]]]) -> None:
        pulls, copies = [], []
        for entry, arrays in outs:
            if not arrays:
                continue
            first = next((each for each in arrays if each.flags.c_contiguous), None)
            direct = np.empty(entry.shape, entry.dtype) if first is None else first
            pulls.append((_name(entry.key), _bytes(direct)))
            copies.extend((each, direct) for each in arrays if each is not direct)
        self._servers.pull(pulls)  # all at once
        for each, direct in copies:
            np.copyto(each, direct)

    def _read_rows(self, entry: Entry, rows: np.ndarray) -> np.ndarray:
        values = np.empty((len(rows), *entry.shape[1:]), entry.dtype)
        self._servers.pull_rows(_name(entry.key), rows.tolist(), _bytes(values))
        return values

    def _updates(self) -> dict[Key, Any]:
        """The optimizer's states on the servers, in the form that `_optimizer_states` uses."""
        self._need_optimizer("the optimizer's states")
        return {key: _ServedUpdate(self, key) for key in self._entries}

    # --- Optimizers
    # ---------------------------------------------------------------------------------------------------------

    def _agree(self, call: str, what: str, body: Callable[[], str]) -> None:
        agree(self._servers, call, what, body)

    def _tell(self, call: str, workers: Sequence[int], send: Callable[[], None]) -> None:
        """Lets the first of the workers tell the servers. All workers return after that. Its error is raised on all."""

        def tell() -> str:
            if self.rank == workers[0]:
                send()
            return ""

        if workers[0] not in on_all_workers(self._servers, call, tell):
            raise Error(f"{call}: worker {workers[0]}, which had to tell the servers, has died")

    def _checked_optimizer(self, optimizer: Any, rescale_grad: Any) -> str:
        if isinstance(optimizer, optim.Optimizer) and optimizer._schedules():
            option = next(iter(optimizer._schedules()))
            raise Error(
                f"set_optimizer: {option} follows a function, but servers run no Python code of workers; "
                f"give a number, and store.set({option}=…) later"
            )
        return super()._checked_optimizer(optimizer, rescale_grad)

    def _checked_numbers(self, values: Mapping[str, Any]) -> dict[str, float]:
        """Checks the arguments of `set`, which must be numbers of the optimizer."""
        self._need_optimizer("set")
        assert self._optimizer is not None
        if not self._entries:
            raise Error("set: there are no keys yet, so there is nothing to set")
        numbers = {name: checks.number(f"set: {name}", value) for name, value in values.items()}
        first = next(iter(self._entries.values()))
        settings = graph_of(self._optimizer, self._rescale, first.dtype, first.shape).settings
        for name in numbers:
            if _setting(name) not in settings:
                raise Error(f"set: the optimizer {type(self._optimizer).__name__} has no {name} that can be set")
        return numbers

    def _check_can_be_cut(self, call: str, entry: Entry, servers: int) -> None:
        if servers > 1 and self._optimizer is not None and not _can_be_cut(self._optimizer):
            raise Error(
                f"{self._arguments.of(call, entry.key)} lies on {servers} servers, and "
                f"{type(self._optimizer).__name__} updates an array as a whole: set bigarray_bound to {math.prod(entry.shape)} or more "
                "before init"
            )

    def _texts(self, entry: Entry) -> list[str]:
        """Returns the update of each piece of a key as text, for the servers."""
        assert self._optimizer is not None
        pieces = self._servers.pieces(_name(entry.key))
        self._check_can_be_cut("set_optimizer", entry, len(pieces))
        return [str(graph_of(self._optimizer, self._rescale, entry.dtype, tuple(shape))) for _, shape in pieces]

    def _send_optimizer(self, call: str, entries: Sequence[Entry]) -> None:
        """Sends the updates of entries to the servers."""
        texts: list[list[str]] = []

        def check() -> str:
            texts.extend(self._texts(entry) for entry in entries)
            return str(self._settings)

        def send() -> None:
            for entry, of_pieces in zip(entries, texts, strict=True):
                self._servers.set_update(_name(entry.key), of_pieces)
            for name, value in self._settings.items():
                self._servers.set(_setting(name), value)

        self._tell(call, agree(self._servers, call, "settings", check), send)


class _ServedUpdate:
    """The optimizer's states of a key on the servers. Only rank 0 assigns them."""

    def __init__(self, store: AsyncStore, key: Key) -> None:
        self._store, self._key = store, key
        self.executable = SimpleNamespace(step=0)  # for schedules, which this kind does not have

    def states(self) -> dict[str, np.ndarray]:
        servers, name = self._store._servers, _name(self._key)
        return {state.removeprefix(_VALUE): servers.read_state(name, state) for state in servers.states(name)}

    def assign_states(self, values: Mapping[str, np.ndarray]) -> None:
        servers, name = self._store._servers, _name(self._key)
        if self._store.rank != 0:
            return
        for state in servers.states(name):
            servers.write_state(name, state, values[state.removeprefix(_VALUE)])


@functools.lru_cache(16)
def _can_be_cut(optimizer: optim.Optimizer) -> bool:
    """True if the optimizer updates halves of an array as the whole, as elementwise formulas do. Tries it."""
    value = np.linspace(-1.0, 2.0, 16, dtype=np.float32).reshape(4, 4)
    gradient = np.cos(7 * value)

    def next_of(rows: slice) -> np.ndarray:
        graph = graph_of(optimizer, 1.0, value.dtype, value[rows].shape)
        return _lockstep._interpret(graph, [{"value": value[rows], "gradient": gradient[rows]}])[0]["value"]

    halves = np.concatenate([next_of(slice(0, 2)), next_of(slice(2, 4))])
    return bool(np.array_equal(next_of(slice(0, 4)), halves))


def _setting(name: str) -> str:
    """The name of an optimizer's number in its update."""
    return name if name == "rescale_grad" else f"optimizer/{name}"


def _name(key: Key) -> str:
    """The name of a key on the servers. 3 and "3" differ, and names that begin with "@" belong to compiled programs."""
    if isinstance(key, str) and (key.startswith(("@", "'")) or key.removeprefix("-").isdecimal()):
        return f"'{key}'"
    return str(key)


def _bytes(array: np.ndarray) -> np.ndarray:
    return array.reshape(-1).view(np.uint8)
