"""This rank's copies of the states after the last steps that it completed.

A step updates states in place, so a step that fails half-way leaves states of which some are updated and some are not.

Of a state that ranks split, a rank copies its part, and sends it to a partner, on another host if there are several. Two
steps are kept then: some ranks may have the parts of a step while others do not have them yet. When a rank is lost, the
others first `collect` the parts of the last step of which all parts are left.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from .. import _lockstep
from .._base.errors import Error
from .._checkpoint import residuals
from .._lockstep import Communicator, Executable

_ADOPT, _COLLECT = "job.adopt", "collection of the parts of states"
_SPLIT = re.compile(r"split\((\d+)\)")
_WAIT_SECONDS = 0.5  # between two looks at whether the world has failed
_AXIS = "data"

States = dict[str, np.ndarray]


@dataclass
class Copy:
    """The states after a step. Of states that ranks split, it has parts, by rank; of the others, all elements."""

    step: int
    settings: dict[str, float]
    states: States
    ranks: int = 1
    parts: dict[int, States] = field(default_factory=dict)

    def arrays(self, rank: int) -> States:
        """The arrays that a rank has read from its executable."""
        return self.states | self.parts.get(rank, {})


class Copies:
    """The copies of this rank; none at first."""

    def __init__(self) -> None:
        self._copies: list[Copy] = []  # the newest last
        self._dims: dict[str, int] = {}  # of states that ranks split, along which they do
        self._partners: _Partners | None = None
        self._spare: States = {}  # arrays of a copy that is no longer needed, for the next one
        self._lost = ""  # why no step has all its parts

    @property
    def step(self) -> int:
        """The number of the step of the newest copy; -1 if there is none."""
        return self._copies[-1].step if self._copies else -1

    @property
    def is_in_parts(self) -> bool:
        """True if `collect` is needed before another world can adopt the states."""
        return any(copy.parts for copy in self._copies)

    def begin(self, exe: Executable, world: Communicator) -> None:
        """Prepares for copies of this executable. Collective.

        Raises:
          Error: a state has elements of which no copy can be made.
        """
        self._dims, self._spare = _split_dims(exe), {}
        self._partners = _Partners(world) if self._dims and world.size > 1 else None

    def take(self, exe: Executable) -> None:
        """Copies the states, between two steps. Collective if ranks split states."""
        self._lost = ""
        states = self._read(exe)
        copy, kept = Copy(exe.step, dict(exe.settings), dict(states)), 0
        if self._partners is not None:
            own = {name: copy.states.pop(name) for name in self._dims}
            copy.ranks, copy.parts, kept = self._partners.world.size, self._partners.exchange(own), 1
        old = self._copies[: len(self._copies) - kept]
        self._copies = [*self._copies[len(old) :], copy]
        for name, array in ((name, array) for each in old for name, array in each.arrays(exe._world().rank).items()):
            if array.shape == states[name].shape:
                self._spare[name] = array

    def _read(self, exe: Executable) -> States:
        """Returns the states, in arrays of an old copy if there are any: new memory takes several times as long."""
        spare, self._spare = self._spare, {}
        states = {}
        for name in exe._own_state_names():
            if name in spare:
                exe._read_state_into(name, spare[name].reshape(-1).view(np.uint8))
            states[name] = spare[name] if name in spare else exe._read_state(name)
        return states

    def give(self, exe: Executable, world: Communicator) -> bool:
        """Assigns the newest copy of all ranks to the executables of all ranks. Collective. Returns false if no rank
        has a copy.

        Raises:
          Error: parts of the states were lost.
        """
        settings = self._copies[-1].settings if self._copies else {}
        own = {"step": self.step, "settings": settings, "lost": self._lost}
        told: list[dict[str, Any]] = [json.loads(each) for each in world.gather_bytes(json.dumps(own).encode(), _ADOPT)]
        steps = [each["step"] for each in told]
        newest, root = max(steps), steps.index(max(steps))
        if newest < 0:
            lost = next((each["lost"] for each in told if each["lost"]), "")
            if lost:
                raise PartsLostError(lost)
            return False
        whole = {state.name: state for state in exe._whole_states()}
        for name in exe._own_state_names():
            if world.rank == root:
                value = self._copies[-1].states[name]
            else:
                value = np.empty(whole[name].shape, exe._read_state(name).dtype)
            value = np.ascontiguousarray(world.broadcast(value, root))
            exe._assign_whole(name, value.reshape(-1).view(np.uint8))
        for name in exe._setting_names():
            if name in told[root]["settings"] and name not in exe._schedules:
                exe._set(name, told[root]["settings"][name])
        exe.step = newest
        return True

    def collect(self, world: Communicator) -> None:
        """Makes the newest copy of which all parts are left whole, on all ranks that have it. Collective over ranks with
        copies in parts."""
        own = [(copy.step, copy.ranks, sorted(copy.parts) or [0]) for copy in self._copies]
        told = [json.loads(each) for each in world.gather_bytes(json.dumps(own).encode(), _COLLECT)]
        found = _newest_complete(told)
        if found is None:
            self._copies, self._lost = [], "ranks died together with those that had copies of their parts of the states"
            return
        step, roots = found
        mine = next((copy for copy in self._copies if (copy.step, copy.ranks) == (step, len(roots))), None)
        if len(roots) > 1:
            mine = _joined(mine, roots, self._dims, world)
        self._copies = [mine] if mine is not None else []


class PartsLostError(Error):
    """Ranks had states, and parts of them are lost."""


class _Partners:
    """The exchange of parts with another rank."""

    def __init__(self, world: Communicator) -> None:
        self.world = world
        self._messages = _lockstep._Messages(world)
        most = max(Counter(world.host(rank) for rank in range(world.size)).values())
        self._shift = most if most < world.size else 1

    def exchange(self, own: States) -> dict[int, States]:
        """Returns this rank's part and that of the rank whose partner it is. Collective."""
        rank, size = self.world.rank, self.world.size
        source = (rank - self._shift) % size
        sent, arriving = _packed(own), np.empty(_size_of(own), np.uint8)
        tickets = [
            self._messages.receive(source, 0, arriving),
            self._messages.send((rank + self._shift) % size, 0, sent),
        ]
        for ticket in tickets:
            while self._messages.wait(ticket, _WAIT_SECONDS) is None:
                _lockstep._check_peers(self.world)
        return {rank: own, source: _unpacked(arriving, own)}


def _joined(mine: Copy | None, roots: list[int], dims: dict[str, int], world: Communicator) -> Copy | None:
    """Returns the whole copy. Collective. None on ranks that had no part of it, which lack the other states, too."""
    pattern = next(iter(mine.parts.values())) if mine is not None else {}
    size = max(int(each) for each in world.gather_bytes(str(_size_of(pattern)).encode(), _COLLECT))
    parts = []
    for part, root in enumerate(roots):
        is_mine = mine is not None and world.rank == root
        packed = _packed(mine.parts[part]) if mine is not None and is_mine else np.empty(size, np.uint8)
        parts.append(world.broadcast(packed, root))
    if mine is None:
        return None
    unpacked = [_unpacked(each, pattern) for each in parts]
    split = {name: np.concatenate([each[name] for each in unpacked], axis=dim) for name, dim in dims.items()}
    return Copy(mine.step, mine.settings, mine.states | split)


def _newest_complete(told: list[list[tuple[int, int, list[int]]]]) -> tuple[int, list[int]] | None:
    """Returns the newest step of which ranks have all parts, and for each part the first rank that has it.

    Args:
      told: of each rank, its copies: the step, the number of ranks that split the states, and the parts.
    """
    for step, ranks in sorted({(copy[0], copy[1]) for each in told for copy in each}, reverse=True):
        roots: dict[int, int] = {}
        for rank, copies in enumerate(told):
            for copy in copies:
                if (copy[0], copy[1]) == (step, ranks):
                    roots = {part: rank for part in copy[2]} | roots
        if len(roots) == ranks:
            return step, [roots[part] for part in range(ranks)]
    return None


def _split_dims(exe: Executable) -> dict[str, int]:
    """Returns the dimension along which ranks split each state that they split."""
    if exe._exchanged:
        raise Error("adopt: the step has exchanges, of whose states ranks make no copies")
    dims = {}
    names = {state.name for state in exe._whole_states()}
    for state in exe._whole_states():
        if residuals.is_residual(state.name, names):
            raise Error(
                f"adopt: state {state.name} belongs to gradients that travel as int8, of which ranks make no copies"
            )
        for axis, placement in state.placements.items():
            split = _SPLIT.fullmatch(placement)
            if axis == _AXIS and split is not None:
                dims[state.name] = int(split[1])
            elif placement != "replicated":
                raise Error(f"adopt: state {state.name} is {placement} along {axis}, of which ranks make no copies")
    return dims


def _size_of(states: States) -> int:
    return sum(each.nbytes for each in states.values())


def _packed(states: States) -> np.ndarray:
    return np.concatenate([np.ascontiguousarray(each).reshape(-1).view(np.uint8) for each in states.values()])


def _unpacked(packed: np.ndarray, pattern: States) -> States:
    """Returns arrays with the names and types of the pattern."""
    states, begin = {}, 0
    for name, array in pattern.items():
        states[name] = packed[begin : begin + array.nbytes].view(array.dtype).reshape(array.shape)
        begin += array.nbytes
    return states
