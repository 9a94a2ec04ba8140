"""The format of checkpoints: a file of tensors (_base/tensor_file.py) with whole states, and metadata.

lockstep.program     {name, backend, mesh, built_with, fits}: of the writer. `fits` is a digest of the states'
                     names and types, which load compares. It does not depend on the number of ranks
lockstep.settings    {name: value}
lockstep.schedules   {setting: the schedule as text}: for human readers; a program cannot be made of it
lockstep.metadata    {name: value}: of the caller; `step` is the number of the training step
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import BinaryIO

import numpy as np

from .._base import tensor_file
from .._base.errors import Error
from .._base.values import ValueInfo

Metadata = dict[str, str | int | float]


def fits(states: Iterable[ValueInfo]) -> str:
    """Returns a digest of the names and types of states, in any order."""
    return hashlib.sha256(json.dumps(sorted([s.name, s.dtype, list(s.shape)] for s in states)).encode()).hexdigest()


def write(
    file: BinaryIO,
    states: Sequence[ValueInfo],
    values: Iterable[np.ndarray],
    about: Mapping[str, Mapping[str, object]],
) -> None:
    """Writes a checkpoint of `states`, which are in file order. `values` yields the bytes of each.

    `about` has the program, the settings, the schedules and the metadata, under these names.
    """
    if any(state.name == "__metadata__" for state in states):
        raise Error("a state cannot be called __metadata__ in a safetensors file")
    texts = {
        "lockstep.program": json.dumps(dict(about["program"], fits=fits(states))),
        "lockstep.settings": json.dumps(about["settings"]),
        "lockstep.schedules": json.dumps(about["schedules"]),
        "lockstep.metadata": json.dumps(about["metadata"]),
    }
    tensor_file.write(file, "checkpoint", states, values, texts)


class CheckpointFile(tensor_file.TensorFile):
    """A checkpoint that is open for reading."""

    _kind, _item = "checkpoint", "state"

    @property
    def states(self) -> dict[str, ValueInfo]:
        return self.tensors

    def _understand(self, about: Mapping[str, str]) -> None:
        self.program: dict[str, str] = json.loads(about["lockstep.program"])
        self.settings: dict[str, float] = json.loads(about["lockstep.settings"])
        if not all(type(value) is float for value in self.settings.values()):
            raise ValueError("the settings are not numbers")
        self.metadata: Metadata = json.loads(about["lockstep.metadata"])
        if not all(isinstance(value, (str, int, float)) for value in self.metadata.values()):
            raise ValueError("the metadata are not texts and numbers")
        if not isinstance(self.metadata["step"], int):
            raise TypeError("the step is not a whole number")
