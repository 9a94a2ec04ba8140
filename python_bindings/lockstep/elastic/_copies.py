"""This rank's copy of the states after the last step that it completed.

A step updates states in place, so a step that fails half-way leaves states of which some are updated and some are not.
"""

from __future__ import annotations

import json
from typing import Any

import numpy as np

from .._lockstep import Communicator, Executable

_CALL = "job.adopt"


class Copies:
    """The states, the settings and the number of the step; none at first."""

    def __init__(self) -> None:
        self.step = -1
        self._states: dict[str, np.ndarray] = {}
        self._settings: dict[str, float] = {}

    def take(self, exe: Executable) -> None:
        """Copies them from the executable, between two steps."""
        states = {name: exe._read_state(name) for name in exe._own_state_names()}
        self.step, self._states, self._settings = exe.step, states, dict(exe.settings)

    def give(self, exe: Executable, world: Communicator) -> bool:
        """Assigns the newest copy of all ranks to the executables of all ranks. Collective. Returns false if no rank
        has a copy."""
        own = json.dumps({"step": self.step, "settings": self._settings}).encode()
        told: list[dict[str, Any]] = [json.loads(each) for each in world.gather_bytes(own, _CALL)]
        steps = [each["step"] for each in told]
        newest, root = max(steps), steps.index(max(steps))
        if newest < 0:
            return False
        for name in exe._own_state_names():
            value = self._states[name] if world.rank == root else exe._read_state(name)
            exe._assign_state(name, world.broadcast(value, root))
        for name in exe._setting_names():
            if name in told[root]["settings"] and name not in exe._schedules:
                exe._set(name, told[root]["settings"][name])
        exe.step = newest
        return True
