"""Collective calls of the workers of parameter servers, which exchange texts through the servers."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from .._base.errors import Error

if TYPE_CHECKING:
    from .._lockstep import _ServerClient

_FAILED, _DONE = "!", " "  # the first character of a worker's text


def on_all_workers(servers: _ServerClient, call: str, body: Callable[[], str]) -> dict[int, str]:
    """Returns the results of body() by worker, for the workers that are alive. Collective. Earlier pushes of the
    workers are applied before body() runs. An exception on one worker is raised on all, on the others as an Error that
    names the worker.

    Raises:
      Error: also on all workers if one of them makes another call.
    """
    failure: Exception | None = None
    try:
        servers.flush()  # may raise the Error of a push
        said = _DONE + body()
    except Exception as error:  # noqa: BLE001 (raised below)
        said, failure = _FAILED + _described(error), error
    try:
        heard = servers.exchange(f"{call}\n{said}".encode(errors="backslashreplace").decode())
    except Error as error:
        raise (failure or error) from None
    if failure is not None:
        raise failure
    told = {worker: text.partition("\n")[::2] for worker, text in heard.items()}
    for worker, (other, text) in told.items():
        if text.startswith(_FAILED):
            raise Error(f"{other} on worker {worker}: {text[1:]}")
        if other != call:
            raise Error(f"workers make different calls: worker {servers.rank} {call}, worker {worker} {other}")
    return {worker: text[1:] for worker, (_, text) in told.items()}


def agree(servers: _ServerClient, call: str, what: str, body: Callable[[], str]) -> list[int]:
    """Returns the workers that are alive if body() returns the same on all; else an Error shows the first difference.

    Args:
      what: must be equal, such as "optimizers"; for the message.
    """
    told = on_all_workers(servers, call, body)
    first = min(told)
    for worker, text in told.items():
        if text != told[first]:
            mine, theirs = _first_difference(told[first], text)
            raise Error(f"{call}: workers have different {what}: worker {first} {mine}, worker {worker} {theirs}")
    return list(told)


def _first_difference(one: str, other: str) -> tuple[str, str]:
    ones, others = one.split("\n"), other.split("\n")
    ones += ["nothing more"] * (len(others) - len(ones))
    others += ["nothing more"] * (len(ones) - len(others))
    return next((a, b) for a, b in zip(ones, others, strict=True) if a != b)


def _described(error: Exception) -> str:
    return str(error) if isinstance(error, Error) else f"{type(error).__name__}: {error}"
