"""A folder of the checkpoints of one training run."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path

from .._base import checks
from .._base.atomic import make_folder
from .._base.errors import Error
from .._lockstep import Executable
from .checkpoint import Metadata, load, on_all_ranks, save, saved

_NAME = re.compile(r"step-(\d{12,19})\.safetensors")


class Checkpoints:
    """The last checkpoints of a run, in a folder: `step-<number>.safetensors`, in the format of `Executable.save`.

    Files with other names are left alone. A file appears complete or not at all, and older files are removed after
    that. So a run that is killed at any time leaves its last checkpoint. Only one run may use a folder at a time.

    Args:
      folder: made by the first save if it is missing. All ranks pass the same folder. Rank 0 writes; all ranks read.
      keep: the number of checkpoints to keep.

    Example:
      >>> checkpoints = ls.Checkpoints("checkpoints")
      >>> checkpoints.restore(exe)  # if there is one
      >>> while exe.step < 10000:
      ...     exe(**batch(exe.step))
      ...     if exe.step % 1000 == 0:
      ...         checkpoints.save(exe)
    """

    def __init__(self, folder: str | os.PathLike[str], keep: int = 3) -> None:
        self.folder = Path(checks.path(folder))
        self.keep = checks.integer("Checkpoints: keep", keep, 1)

    def save(
        self,
        exe: Executable,
        *,
        step: int | None = None,
        metadata: Mapping[str, str | int | float] | None = None,
        background: bool = False,
    ) -> None:
        """Calls `exe.save` with a file of this folder, and then removes all but the last `keep` files. Collective.

        If `step` is None, it is `exe.step`. An existing checkpoint of this step is replaced.

        Raises:
          Error: from `exe.save`; or there is a checkpoint of a later step. That belongs to another run, or to one that
            this run does not continue, and restore() would load it.
        """
        _check_executable("Checkpoints.save", exe)
        number = exe.step if step is None else step
        on_all_ranks(
            exe._world(), "save() of Checkpoints", lambda: str(checks.integer("Checkpoints.save: step", number, 0))
        )
        file = self._file(number)
        save(exe, file, number, metadata, background, before=lambda: self._prepare(number), after=self._remove_old)

    def steps(self) -> list[int]:
        """The steps that have a checkpoint, in order."""
        try:
            names = os.listdir(self.folder)
        except FileNotFoundError:
            return []
        except OSError as error:
            raise Error(f"{self.folder}: {error.strerror}") from error
        found = (int(match[1]) for match in map(_NAME.fullmatch, names) if match)
        return sorted(step for step in found if self._file(step).name in names)

    def latest(self) -> Path | None:
        """The file of the last step; None if there is none."""
        steps = self.steps()
        return self._file(steps[-1]) if steps else None

    def restore(self, exe: Executable, *, expected: Mapping[str, str | int | float] | None = None) -> Metadata | None:
        """Calls `exe.load` with the file of the last step, which rank 0 chooses. Collective.

        Args:
          expected: values that the file's metadata must have, such as `{"batch": 128, "samples": len(images)}`. If they
            include everything that decides which samples a step gets, a run cannot continue with other samples.

        Returns:
          The metadata given to save(), and `step`, which becomes `exe.step`. None if there is no checkpoint; then
          nothing changes.

        Raises:
          Error: from `exe.load`; or, before anything is changed, the file's metadata lacks a name in `expected` or has
            another value. If the file is damaged, remove it to restore the previous one.
        """
        _check_executable("Checkpoints.restore", exe)
        saved(exe)
        world = exe._world()
        caller = "restore() of Checkpoints"
        chosen = on_all_ranks(world, caller, lambda: str(self.latest() or "") if world.rank == 0 else "")[0]
        return load(exe, chosen, expected) if chosen else None

    def __repr__(self) -> str:
        return f"<lockstep.Checkpoints in {self.folder}>"

    def _file(self, step: int) -> Path:
        return self.folder / f"step-{step:012d}.safetensors"

    def _prepare(self, step: int) -> None:
        make_folder(str(self.folder))
        later = [each for each in self.steps() if each > step]
        if later:
            raise Error(
                f"there is {self._file(later[-1]).name}, of a later step: call restore() first, or use another folder"
            )

    def _remove_old(self) -> None:
        for step in self.steps()[: -self.keep]:
            self._file(step).unlink(missing_ok=True)


def _check_executable(what: str, exe: Executable) -> None:
    checks.instance(f"{what}: the executable", exe, Executable, "what compile() returns")
