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
    """The last checkpoints of a training run, in a folder: `step-<number>.safetensors`, as `Executable.save` writes them.

    Files of other names are left alone. A file appears complete or not at all, and an older one is removed after that, so a run
    that is killed at any moment leaves its last checkpoint. One run at a time uses a folder.

    Args:
      folder: made by the first save if it is missing. All ranks give the same; rank 0 writes, all read.
      keep: so many checkpoints stay.

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
        """`exe.save` to a file of this folder, and then removes the oldest but for `keep`. All ranks call it.

        `step` is `exe.step` if it is None. A step of which there is a checkpoint is written anew.

        Raises:
          Error: of `exe.save`; or if there is a checkpoint of a later step. That is of another run, or of one that this one does
            not continue, and restore() would take it.
        """
        _check_executable("Checkpoints.save", exe)
        number = exe.step if step is None else step
        on_all_ranks(
            exe._world(), "save() of Checkpoints", lambda: str(checks.integer("Checkpoints.save: step", number, 0))
        )
        file = self._file(number)
        save(exe, file, number, metadata, background, before=lambda: self._prepare(number), after=self._remove_old)

    def steps(self) -> list[int]:
        """The steps of which there is a checkpoint, in order."""
        try:
            names = os.listdir(self.folder)
        except FileNotFoundError:
            return []
        except OSError as error:
            raise Error(f"{self.folder}: {error.strerror}") from error
        found = (int(match[1]) for match in map(_NAME.fullmatch, names) if match)
        return sorted(step for step in found if self._file(step).name in names)

    def latest(self) -> Path | None:
        """The file of the last step, None if there is none."""
        steps = self.steps()
        return self._file(steps[-1]) if steps else None

    def restore(self, exe: Executable, *, expected: Mapping[str, str | int | float] | None = None) -> Metadata | None:
        """`exe.load` of the last step's file, which rank 0 chooses. All ranks call it.

        Args:
          expected: what the file's metadata has to say, such as `{"batch": 128, "samples": len(images)}`: what decides which samples
            a step gets, so that a run does not go on with others.

        Returns:
          The metadata that save() got, and `step`, which `exe.step` is now; None if there is no checkpoint: then nothing changes.

        Raises:
          Error: of `exe.load`; or, before anything is changed, if the file's metadata lacks a name of `expected`, or has another
            value. Where a file was damaged since it was written, remove it to restore the one before.
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
                f"there is {self._file(later[-1]).name}, of a later step: restore() it first, or use another folder"
            )

    def _remove_old(self) -> None:
        for step in self.steps()[: -self.keep]:
            self._file(step).unlink(missing_ok=True)


def _check_executable(what: str, exe: Executable) -> None:
    checks.instance(f"{what}: the executable", exe, Executable, "what compile() returns")
