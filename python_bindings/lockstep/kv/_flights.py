"""Transfers of pushed values: slots of keys in registered memory, and all-reduces over many slots at once."""

from __future__ import annotations

import functools
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from .. import _lockstep
from ._keys import Key
from ._values import dtype_name, type_text

if TYPE_CHECKING:
    from .._lockstep import Communicator
    from ._compression import Compression

_ALIGNMENT = 64  # of a slot, in bytes: runtime/communicator.h
FLIGHT_BYTES = 16 << 20  # of slots; a flight with this many takes no more


@dataclass(eq=False)
class Slot:
    """A part of registered memory for the values pushed to a key, and then for their sum over the workers."""

    key: Key
    memory: np.ndarray  # u8[…], shared by several keys
    begin: int  # bytes
    array: np.ndarray  # of the key's type

    @property
    def end(self) -> int:
        return self.begin + self.array.nbytes

    def is_followed_by(self, other: Slot) -> bool:
        """True if one all-reduce can cover both slots."""
        return (
            other.memory is self.memory and other.begin == _aligned(self.end) and other.array.dtype == self.array.dtype
        )


@dataclass(eq=False)
class Flight:
    """Slots that travel together."""

    slots: list[Slot]
    tickets: list[int] = field(default_factory=list)
    gathered: np.ndarray | None = None  # u8[workers, …], for packed slots


Type = tuple[Key, np.dtype[Any], tuple[int, ...]]


@functools.lru_cache(1024)
def label(call: str, types: tuple[Type, ...]) -> str:
    """The label of a collective over keys. It is equal on all ranks only if the keys and their types are. If there are
    many keys, it names the first two and has a checksum of all."""
    named = ", ".join(f"{key!r} {type_text(dtype, shape)}" for key, dtype, shape in types[:2])
    if len(types) <= 2 and len(named) < 60:
        return f"kv {call} of {named}"
    checksum = zlib.crc32(repr([(key, dtype.name, shape) for key, dtype, shape in types]).encode())
    return f"kv {call} of {len(types)} keys #{checksum:08x}: {named}"


def make_slots(world: Communicator, types: Sequence[Type], call: str) -> list[Slot]:
    """Makes a slot for each key, in one piece of memory. Collective; the label shows differences between ranks."""
    begins, end = [], 0
    for _, dtype, shape in types:
        begins.append(_aligned(end))
        end = begins[-1] + int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
    memory = _lockstep._allocate(world, _aligned(end), label(call, tuple(types)))
    slots = []
    for (key, dtype, shape), begin in zip(types, begins, strict=True):
        count = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
        slots.append(Slot(key, memory, begin, memory[begin : begin + count].view(dtype).reshape(shape)))
    return slots


def runs_of(slots: Sequence[Slot]) -> list[list[Slot]]:
    """Divides slots, in their order, into runs that one all-reduce can cover, up to the size of a flight."""
    runs: list[list[Slot]] = []
    for slot in slots:
        last = runs[-1] if runs else None
        if last and last[-1].is_followed_by(slot) and slot.end - last[0].begin <= FLIGHT_BYTES:
            last.append(slot)
        else:
            runs.append([slot])
    return runs


def start_broadcast(world: Communicator, run: Sequence[Slot]) -> int:
    """Starts to send rank 0's bytes of a run of slots to all ranks."""
    part = _part(run)
    return _lockstep._start_broadcast(world, part, part, "u8", 0, label("init", _types(run)))


def start_sum(world: Communicator, run: list[Slot], numbers: str) -> Flight:
    """Starts to sum a run of slots over the ranks, in place. `numbers`, which may be empty, has the schedules' values
    of the next updates, for the label."""
    part = _part(run)
    name = label(_with("push", numbers), _types(run))
    return Flight(run, [_lockstep._start_all_reduce(world, part, part, dtype_name(run[0].array.dtype), "sum", name)])


def start_gather(world: Communicator, run: list[Slot], packed: np.ndarray, numbers: str) -> Flight:
    """Starts to send the packed run of slots of each rank, u8[…], to all ranks. `numbers` is as for start_sum."""
    gathered = np.empty((world.size, len(packed)), np.uint8)
    name = label(_with("packed push", numbers), _types(run))
    return Flight(run, [_lockstep._start_all_gather(world, packed, gathered, "u8", name)], gathered)


def _with(call: str, numbers: str) -> str:
    return f"{call} at {numbers}" if numbers else call


def wait(world: Communicator, flight: Flight) -> None:
    """Waits until the collectives of a flight are complete."""
    while flight.tickets:
        ticket = flight.tickets.pop(0)
        _lockstep._wait(world, ticket)


def land(world: Communicator, flight: Flight, compression: Compression | None) -> None:
    """Waits until the slots of a flight have their sums."""
    wait(world, flight)
    if flight.gathered is None:
        return
    assert compression is not None
    begin = 0
    for slot in flight.slots:
        end = begin + compression.packed_bytes(slot.array.size)
        compression.unpack(flight.gathered[:, begin:end], slot.array.reshape(-1))
        begin = end
    flight.gathered = None


def _types(run: Sequence[Slot]) -> tuple[Type, ...]:
    return tuple((slot.key, slot.array.dtype, slot.array.shape) for slot in run)


def _part(run: Sequence[Slot]) -> np.ndarray:
    return run[0].memory[run[0].begin : run[-1].end]


def _aligned(offset: int) -> int:
    return (offset + _ALIGNMENT - 1) // _ALIGNMENT * _ALIGNMENT
