"""What workers push on its way between them: slots of keys in registered memory, and all-reduces over many slots at once."""

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
FLIGHT_BYTES = 16 << 20  # of slots, from which on no more are added to a flight


@dataclass(eq=False)
class Slot:
    """Where what is pushed to a key lies, and its sum over the workers after that: a part of registered memory."""

    key: Key
    memory: np.ndarray  # u8[…], of several keys
    begin: int  # bytes
    array: np.ndarray  # of the key's type

    @property
    def end(self) -> int:
        return self.begin + self.array.nbytes

    def is_followed_by(self, other: Slot) -> bool:
        """Whether one all-reduce can be over both."""
        return (
            other.memory is self.memory and other.begin == _aligned(self.end) and other.array.dtype == self.array.dtype
        )


@dataclass(eq=False)
class Flight:
    """Slots that travel together."""

    slots: list[Slot]
    tickets: list[int] = field(default_factory=list)
    gathered: np.ndarray | None = None  # u8[workers, …], of slots that travel packed


Type = tuple[Key, np.dtype[Any], tuple[int, ...]]


@functools.lru_cache(1024)
def label(call: str, types: tuple[Type, ...]) -> str:
    """What a collective over keys says of itself: the same on all ranks only if these and their types are. Of many the first two are
    named, and a checksum stands for all."""
    named = ", ".join(f"{key!r} {type_text(dtype, shape)}" for key, dtype, shape in types[:2])
    if len(types) <= 2 and len(named) < 60:
        return f"kv {call} of {named}"
    checksum = zlib.crc32(repr([(key, dtype.name, shape) for key, dtype, shape in types]).encode())
    return f"kv {call} of {len(types)} keys #{checksum:08x}: {named}"


def make_slots(world: Communicator, types: Sequence[Type], call: str) -> list[Slot]:
    """A slot for each key, all in one piece of memory. All ranks call it; the label of the call names what they differ in."""
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
    """Slots in their order, those together that one all-reduce can be over, as far as a flight has room."""
    runs: list[list[Slot]] = []
    for slot in slots:
        last = runs[-1] if runs else None
        if last and last[-1].is_followed_by(slot) and slot.end - last[0].begin <= FLIGHT_BYTES:
            last.append(slot)
        else:
            runs.append([slot])
    return runs


def start_broadcast(world: Communicator, run: Sequence[Slot]) -> int:
    """Starts to give rank 0's bytes of a run of slots to all ranks."""
    part = _part(run)
    return _lockstep._start_broadcast(world, part, part, "u8", 0, label("init", _types(run)))


def start_sum(world: Communicator, run: list[Slot], numbers: str) -> Flight:
    """Starts to add up a run of slots over the ranks, in place. `numbers`, which may be empty, are of the updates that follow."""
    part = _part(run)
    name = label(_with("push", numbers), _types(run))
    return Flight(run, [_lockstep._start_all_reduce(world, part, part, dtype_name(run[0].array.dtype), "sum", name)])


def start_gather(world: Communicator, run: list[Slot], packed: np.ndarray, numbers: str) -> Flight:
    """Starts to give what each rank packed of a run of slots, u8[…], to all ranks. `numbers` as of start_sum."""
    gathered = np.empty((world.size, len(packed)), np.uint8)
    name = label(_with("packed push", numbers), _types(run))
    return Flight(run, [_lockstep._start_all_gather(world, packed, gathered, "u8", name)], gathered)


def _with(call: str, numbers: str) -> str:
    return f"{call} at {numbers}" if numbers else call


def wait(world: Communicator, flight: Flight) -> None:
    """Returns when what travels is there."""
    while flight.tickets:
        ticket = flight.tickets.pop(0)
        _lockstep._wait(world, ticket)


def land(world: Communicator, flight: Flight, compression: Compression | None) -> None:
    """Returns when the slots of a flight have their sums."""
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
