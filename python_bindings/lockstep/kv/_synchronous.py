"""The store of several workers that wait for each other. Collectives sum the pushed values, and each worker changes its
own copy of the values by the same sums, so that all copies are bitwise equal."""

from __future__ import annotations

import weakref
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

import numpy as np

from .. import _lockstep
from .._base import checks
from .._base.errors import Error
from .._checkpoint.checkpoint import on_all_ranks
from .._lockstep import Communicator
from . import _flights
from ._entry import Entry
from ._flights import Flight, Slot
from ._store import KVStore
from ._sum import sum_into
from ._values import Value, aligned_array

if TYPE_CHECKING:
    from .._lockstep import Executable
    from ._compression import Compression

_CHECK_EVERY = 512  # pushes between comparisons of a value by the workers
_LONGEST_NUMBERS = 40  # characters of schedules' values; longer ones are replaced by a checksum


class SynchronousStore(KVStore):
    """A store of the kinds "dist_sync", "dist_device_sync" and "dist".

    A push copies its value into the key's slot. Slots start to travel, as a flight, when there are enough of them or
    when one is needed. A pull waits for all flights up to that of its key, and applies the updater or optimizer to
    their keys. The starts depend only on the calls, which are the same on all workers.
    """

    def __init__(self, kind: str, world: Communicator | None) -> None:
        world = Communicator.from_environment() if world is None else world
        super().__init__(kind, checks.instance("create: world", world, Communicator, "a lockstep.Communicator"))
        self._new: list[tuple[Entry, Value]] = []  # initialised, but not yet exchanged with the other workers
        self._slots: dict[Entry, Slot] = {}
        self._waiting: list[tuple[int, Entry]] = []  # priority and entry; pushed but not started
        self._waiting_bytes = 0
        self._flying: list[Flight] = []  # started, in this order
        self._pushed: set[Entry] = set()  # entries in _waiting or _flying
        self._applied: dict[Entry, int] = {}  # the number of pushes applied to each entry
        self._failure: Error | None = None  # an error of the communication, after which the store is unusable
        weakref.finalize(self, _finish, self._world, self._flying)

    def barrier(self) -> None:
        self._settle_all()
        super().barrier()

    # --- The first values
    # ---------------------------------------------------------------------------------------------------

    def _initialize(self, made: Callable[[], list[tuple[Entry, Value]]]) -> None:
        for entry, value in made():
            # Rank 0's value is used. The other ranks' values give only their types, which are compared by _meet().
            is_kept = self.rank == 0 and isinstance(value, np.ndarray)
            self._new.append((entry, value.copy() if is_kept else value if self.rank == 0 else np.empty(0)))
            self._add([entry])

    def _meet(self) -> None:
        """Makes slots for all new entries, in one piece of memory, and broadcasts rank 0's values. Then makes the
        updates of entries if there is an optimizer, so that all workers make them in the same order."""
        if self._failure is not None:
            raise Error(f"the store has failed: {self._failure}")
        if self._new:
            with self._communicating():
                self._make_slots()
        if not self._is_ready:
            with self._communicating():
                for entry in self._entries.values():
                    self._prepare(entry)
                updates = [entry.update.executable for entry in self._entries.values() if entry.update is not None]
                if updates:
                    # Other kernels, or loops that another processor vectorises differently, may compute other bits.
                    first = updates[0]
                    text = f"{first._program()['built_with']}, {first.threads} threads, #{_checksum(updates)}"
                    self._agree("the first update", "updates", lambda: text)
            self._is_ready = True

    def _make_slots(self) -> None:
        new, self._new = self._new, []
        slots = _flights.make_slots(self._world, [(entry.key, entry.dtype, entry.shape) for entry, _ in new], "init")
        for (entry, value), slot in zip(new, slots, strict=True):
            self._slots[entry], entry.stored = slot, slot.array
            if self.rank == 0:
                sum_into(slot.array, [value])
        for run in _flights.runs_of(slots):
            _lockstep._wait(self._world, _flights.start_broadcast(self._world, run))

    @contextmanager
    def _communicating(self) -> Iterator[None]:
        """An Error within the context makes the store unusable: the state of other workers is then unknown."""
        try:
            yield
        except Error as error:
            self._failure = error
            raise

    def _prepare(self, entry: Entry) -> None:
        """Frees the entry's slot for pushed values if an updater or optimizer reads these."""
        if self._optimizer is not None:
            self._update_of(entry)
        elif self._updater is not None:
            self._value_of(entry)

    def _value_of(self, entry: Entry) -> np.ndarray:
        slot = self._slots[entry].array
        if entry.stored is slot:
            entry.stored = aligned_array(entry.shape, entry.dtype)
            np.copyto(entry.stored, slot)
        return super()._value_of(entry)

    def _place_of(self, entry: Entry) -> np.ndarray:
        self._value_of(entry)
        return self._slots[entry].array.view()

    # --- What is pushed
    # -------------------------------------------------------------------------------------------------------

    def _push(self, groups: Sequence[tuple[Entry, list[Value]]], priority: int) -> None:
        self._meet()
        self._check_free(groups)
        for entry, values in groups:
            if entry in self._pushed:
                self._settle(entry)
            slot = self._slots[entry].array
            sum_into(slot, _in_place(entry, slot, values))
            if entry.grad is not None:
                entry.grad.flags.writeable = False
            self._waiting.append((priority, entry))
            self._waiting_bytes += slot.nbytes
            self._pushed.add(entry)
        if self._waiting_bytes >= _flights.FLIGHT_BYTES:
            self._start()

    def _check_free(self, groups: Sequence[tuple[Entry, list[Value]]]) -> None:
        """Raises an Error if a value is an array of grad() in flight, since it cannot have been written again."""
        taken = {id(entry.grad): entry for entry in self._pushed if entry.grad is not None}
        for entry, values in groups if taken else ():
            for value in values:
                if id(value) in taken:
                    raise Error(
                        f"{self._arguments.of('push', entry.key)}: the value is the array of grad({taken[id(value)].key!r}), "
                        "which was already pushed, and belongs to the store until the key is pulled"
                    )

    def _start(self) -> None:
        """Starts the waiting pushes by descending priority, and then in the order of the pushes."""
        waiting = sorted(self._waiting, key=lambda each: -each[0])
        self._waiting, self._waiting_bytes = [], 0
        with self._communicating():
            for run in _flights.runs_of([self._slots[entry] for _, entry in waiting]):
                scheduled = _scheduled([self._entries[slot.key] for slot in run])
                if self._compression is None:
                    self._flying.append(_flights.start_sum(self._world, run, scheduled))
                else:
                    packed = self._packed(self._compression, run)
                    self._flying.append(_flights.start_gather(self._world, run, packed, scheduled))

    def _packed(self, compression: Compression, run: Sequence[Slot]) -> np.ndarray:
        """Returns the values that this worker pushed to a run of slots, packed."""
        ends = np.cumsum([compression.packed_bytes(slot.array.size) for slot in run])
        packed, begin = np.empty(int(ends[-1]), np.uint8), 0
        for slot, end in zip(run, ends, strict=True):
            compression.pack(self._entries[slot.key], slot.array, packed[begin:end])
            begin = int(end)
        return packed

    def _agree(self, call: str, what: str, body: Callable[[], str]) -> None:
        texts = on_all_ranks(self._world, f"{call}() of a store", body)
        other = next((rank for rank, each in enumerate(texts) if each != texts[0]), None)
        if other is not None:
            raise Error(f"workers have different {what}: rank 0 {texts[0]}, rank {other} {texts[other]}")

    # --- Applying sums
    # --------------------------------------------------------------------------------------------------------

    def _settle(self, entry: Entry) -> None:
        self._meet()
        if entry in self._pushed:
            self._start()
        while entry in self._pushed:
            self._land_first()

    def _settle_all(self) -> None:
        self._meet()
        self._start()
        while self._flying:
            self._land_first()

    def _land_first(self) -> None:
        """Waits for the first flight, and changes the values of its keys. If an updater raises on all workers, its key
        keeps its value, and the remaining keys are left for the next call. If it raises on some workers only, values
        differ, and the store is unusable."""
        flight = self._flying[0]
        with self._communicating():
            _flights.land(self._world, flight, self._compression)
        landed: list[Entry] = []
        failure: Exception | None = None
        while flight.slots and failure is None:
            slot = flight.slots.pop(0)
            entry = self._entries[slot.key]
            self._pushed.discard(entry)
            landed.append(entry)
            try:
                self._apply(entry, slot.array)
            except Exception as error:  # noqa: BLE001 (raised below)
                failure = error
            if entry.grad is not None:
                entry.grad.flags.writeable = True
        if self._updater is not None and self.num_workers > 1:
            with self._communicating():
                self._compare_failures(landed[-1] if failure is not None else None, failure)
        for entry in landed:
            self._compare_replicas(entry)
        if failure is not None:
            raise failure
        self._flying.pop(0)

    def _compare_failures(self, entry: Entry | None, failure: Exception | None) -> None:
        """Compares failures of the updater. Returns if all workers have the same failed key or none. Otherwise raises
        the failure of this worker or, if it has none, an Error that names the failed rank. `entry` is the failed entry
        of this worker."""
        own = "" if entry is None else f"{entry.key!r}\n{type(failure).__name__}: {failure}"
        try:
            told = self._world.gather_bytes(own.encode(errors="backslashreplace"), "kv updaters")
        except Error as error:
            raise error from failure
        keys = [each.decode().partition("\n")[0] for each in told]
        if len(set(keys)) == 1:
            return
        rank = next(rank for rank, key in enumerate(keys) if key)
        raised = told[rank].decode().partition("\n")[2]
        self._failure = Error(f"key {keys[rank]}: the updater raised on rank {rank}, but not on all: {raised}")
        raise failure or self._failure

    def _compare_replicas(self, entry: Entry) -> None:
        """Compares from time to time if all workers have the same bits. If not, raises, and the store is unusable,
        because its values are no replicas any more. The result of an updater is also compared after its first use, as
        its code is unknown."""
        times = self._applied[entry] = self._applied.get(entry, 0) + 1
        is_first = self._updater is not None and times == 1
        is_due = is_first or times % _CHECK_EVERY == 0
        if self.num_workers == 1 or not is_due or entry.stored is None or entry.stored is self._slots[entry].array:
            return
        own = _digest(entry.stored)
        told = self._world.gather_bytes(own, f"kv replicas of {entry.key!r}")
        other = next((rank for rank, digest in enumerate(told) if digest != told[0]), None)
        if other is not None:
            message = f"key {entry.key!r}: after push {times} its value differs between ranks 0 and {other}"
            self._failure = Error(message + (": the updater computes other bits there" if is_first else ""))
            raise self._failure


def _in_place(entry: Entry, slot: np.ndarray, values: list[Value]) -> list[Value]:
    """Returns the values with the array of grad() replaced by the slot if it is first, otherwise by a copy."""
    if entry.grad is None:
        return values
    first: list[Value] = [slot if values[0] is entry.grad else values[0]]
    return first + [value.copy() if value is entry.grad else value for value in values[1:]]


def _checksum(updates: Sequence[Executable]) -> str:
    """A checksum of the programs of updates."""
    return f"{zlib.crc32(''.join(str(each.graph) for each in updates).encode()):08x}"


def _scheduled(entries: Sequence[Entry]) -> str:
    """The values of schedules in the entries' next updates, "learning_rate=0.1". They must be equal on all workers."""
    numbers: dict[str, None] = {}  # an ordered set
    for entry in entries:
        executable = None if entry.update is None else entry.update.executable
        for name, schedule in () if executable is None else executable._schedules.items():
            numbers[f"{name.rpartition('/')[2]}={_number_of(schedule, executable.step)}"] = None
    text = ", ".join(numbers)
    return text if len(text) <= _LONGEST_NUMBERS else f"#{zlib.crc32(text.encode()):08x}"


def _number_of(schedule: Callable[[int], float], step: int) -> str:
    """The value as text with the digits of f32, because libraries of other hosts may round f64 differently."""
    try:
        return f"{float(schedule(step)):.9g}"
    except Exception as error:  # noqa: BLE001 (the update will raise it)
        return type(error).__name__


def _digest(array: np.ndarray) -> bytes:
    """A hash of the bits of an array."""
    return _lockstep._hash(array.reshape(-1).view(np.uint8)).to_bytes(8, "little")


def _finish(world: Communicator, flying: list[Flight]) -> None:
    """Waits for the collectives of a deleted store, which the other workers started too. A communicator fails if it is
    destroyed with collectives in flight."""
    with suppress(Error):
        for flight in flying:
            _flights.wait(world, flight)
