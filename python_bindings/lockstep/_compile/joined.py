"""Training with ranks that run out of batches at different times."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from .._base.errors import Error

if TYPE_CHECKING:
    import numpy as np

    from .._lockstep import Executable


def joined(
    executable: Executable, batches: Iterable[Mapping[str, Any]], balance_every: int | None = None
) -> Iterator[dict[str, np.ndarray]]:
    """Implements Executable.joined, which has checked that the step has the input `rows`. If shares are measured, calls
    `balance` at the end, and after every `balance_every` steps if batches follow the shares."""
    remaining, end, steps = iter(batches), object(), 0
    while True:
        steps += 1
        if balance_every is not None and steps % balance_every == 0:
            executable.balance()
        batch = next(remaining, end)
        results = executable(**({} if batch is end else _inputs(executable, batch)))
        if results["rows"] != 0:
            yield results
            continue
        executable.step -= 1  # no rank had rows, so this was not a step
        if not _is_any(executable, batch is not end):
            break
    if executable._measured is not None:
        executable.balance()


def _is_any(executable: Executable, own: bool) -> bool:
    """True if `own` is true on any of the ranks that call the program together."""
    if not _waits_for_others(executable):
        return own
    told = executable._world().gather_bytes(b"1" if own else b"", "joined() of an executable")
    return any(told)


def _waits_for_others(executable: Executable) -> bool:
    return executable._world().size > 1 and executable._program()["mesh"] != "{}"


def _inputs(executable: Executable, batch: Any) -> Mapping[str, Any]:
    if isinstance(batch, Mapping):
        return batch
    error = Error(
        f'joined: a batch is a {type(batch).__name__}, expected inputs by name, such as {{"x": x, "label": label}}'
    )
    if _waits_for_others(executable):
        executable._world().abort(str(error))
    raise error


def check(executable: Executable) -> None:
    if not executable._is_uneven:
        raise Error(
            "joined: this executable requires full batches; train_step(..., uneven=True) makes a step that does not"
        )
