"""The numbers of a training run for TensorBoard."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from numbers import Real
from typing import Any

from .._base import checks
from .._base.errors import Error
from .._lockstep import Executable

_SECONDS = 10.0  # from one report of the time of steps to the next
_RATE = "optimizer/learning_rate"


def checked_scalars(given: Any) -> Any:
    """Returns the path of a folder, an object with `add_scalar`, or None.

    Raises:
      Error: it is something else.
    """
    if isinstance(given, (str, os.PathLike)):
        return checks.path(given)
    if given is not None and not callable(getattr(given, "add_scalar", None)):
        raise Error(
            f"fit: scalars: a {type(given).__name__} is no folder, and has no method add_scalar(name, value, step)"
        )
    return given


def numbers(results: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the losses and metrics of an epoch."""
    return {key: value for key, value in results.items() if isinstance(value, Real) and key not in ("epoch", "step")}


class Scalars:
    """Gives the numbers of steps and epochs to an object with `add_scalar(name, value, step)`. Belongs to rank 0."""

    def __init__(self, to: Any, executable: Executable) -> None:
        """`to` is a value of `checked_scalars`. In a folder, a new file is written.

        Raises:
          Error: a file is wanted, and tensorboardX is not installed, or there can be no such file.
        """
        self._own = _file_in(to) if isinstance(to, str) else None
        self._to = to if self._own is None else self._own
        self._exe = executable
        self._settings: dict[str, float] = {}  # as written last
        self.begin()

    def begin(self) -> None:
        """Begins to measure the time of steps."""
        self._since, self._steps, self._rows = time.perf_counter(), 0, 0.0

    def add_step(self, loss: float, rows: float) -> None:
        """Writes the step that the executable has just run. `rows` are those of all workers."""
        self._add("train/loss", loss)
        for name, value in self._exe.settings.items():
            if name == _RATE or self._settings.get(name) != value:
                self._add(f"train/{name.removeprefix('optimizer/')}", value)
                self._settings[name] = value
        self._steps += 1
        self._rows += rows
        if time.perf_counter() - self._since >= _SECONDS:
            self.add_times()

    def add_times(self) -> None:
        """Writes the mean time of the steps since the last call, and begins again."""
        if not self._steps:
            return
        self._add("time/samples_per_second", self._rows / (time.perf_counter() - self._since))
        try:
            report = self._exe.report(calls=self._steps)
        except Error:  # the world does not record
            return self.begin()
        for part in ("total", "compute", "exposed", "waiting", "other", "hidden", "between"):
            self._add(f"time/{part}", getattr(report, part))
        return self.begin()

    def add_epoch(self, results: Mapping[str, Any]) -> None:
        """Writes the losses and metrics of an epoch."""
        for key, value in numbers(results).items():
            self._add(f"epoch/{key}", value)

    def close(self) -> None:
        """Completes the file, if it is not the user's object that writes."""
        if self._own is not None:
            self._own.close()

    def _add(self, name: str, value: float) -> None:
        self._to.add_scalar(name, value, self._exe.step)


def _file_in(folder: str) -> Any:
    try:
        from tensorboardX import SummaryWriter
    except ImportError:
        raise Error(
            f"fit: scalars={folder!r} needs the Python package tensorboardX: pip install tensorboardX"
        ) from None
    try:
        # The names of its files differ only by the second of their beginning.
        return SummaryWriter(folder, flush_secs=round(_SECONDS), filename_suffix=f".{time.time_ns()}")
    except OSError as error:
        raise Error(f"fit: scalars={folder!r}: there can be no file: {error.strerror}") from None
