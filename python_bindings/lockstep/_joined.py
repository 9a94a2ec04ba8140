"""Ranks that run out of batches at different times."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from ._errors import Error

if TYPE_CHECKING:
    import numpy as np

    from ._lockstep import Executable


def joined(executable: Executable, batches: Iterable[Mapping[str, Any]]) -> Iterator[dict[str, np.ndarray]]:
    """See Executable.joined, where it is checked that the step has the input `rows`."""
    remaining = iter(batches)
    while True:
        results = executable(**_inputs(executable, next(remaining, {})))
        if results["rows"] == 0:
            executable.step -= 1  # no rank had anything: that was no step
            return
        yield results


def _inputs(executable: Executable, batch: Any) -> Mapping[str, Any]:
    if isinstance(batch, Mapping):
        return batch
    error = Error(
        f'joined: a batch is a {type(batch).__name__}, expected inputs by name, such as {{"x": x, "label": label}}'
    )
    world = executable._world()
    if world.size > 1 and executable._program()["mesh"] != "{}":
        world.abort(str(error))  # the other ranks wait for this one
    raise error


def check(executable: Executable) -> None:
    if not any(each.name == "rows" for each in executable.graph.inputs):
        raise Error(
            "joined: this executable needs full batches; train_step(..., uneven=True) makes a step that does not"
        )
