"""Gives each rank a share of the machine's cores: the speed of a rank does not depend on their number.

So a loss of speed with more ranks is communication.

    with Cores(ranks=8, share=0.25) as cores:
        Contestant(..., prefix=cores.prefix)

Linux control groups enforce the shares, a hundred times a second. Needs root.
"""

from __future__ import annotations

import os
import subprocess
import tempfile
import time
from pathlib import Path
from types import TracebackType
from typing import Self

_PERIOD = 10_000  # microseconds

# Joins the group of the rank that mpirun sets, and becomes the program.
_JOIN = 'echo $$ > "$0/${OMPI_COMM_WORLD_RANK:-0}/cgroup.procs" && exec "$@"'


class Cores:
    def __init__(self, ranks: int, share: float) -> None:
        """
        Args:
          share: the share of a core for each rank, with all processes that it starts.
        """
        first = Path("/sys/fs/cgroup/cpu")  # version 1; in version 2 one tree has all controllers
        self._is_first = first.is_dir()
        self._tree = first if self._is_first else first.parent
        # `ip netns exec` hides /sys.
        self._mounted = Path(tempfile.mkdtemp(prefix="lockstep-cores-"))
        self._folder = self._mounted / f"lockstep-{os.getpid()}"
        self._ranks, self._quota = ranks, int(_PERIOD * share)
        self.prefix = ["sh", "-c", _JOIN, str(self._folder)]

    def __enter__(self) -> Self:
        subprocess.run(["mount", "--bind", self._tree, self._mounted], check=True)
        self._folder.mkdir()
        if not self._is_first:
            (self._mounted / "cgroup.subtree_control").write_text("+cpu")
            (self._folder / "cgroup.subtree_control").write_text("+cpu")
        for rank in range(self._ranks):
            group = self._folder / str(rank)
            group.mkdir()
            if self._is_first:
                (group / "cpu.cfs_period_us").write_text(str(_PERIOD))
                (group / "cpu.cfs_quota_us").write_text(str(self._quota))
            else:
                (group / "cpu.max").write_text(f"{self._quota} {_PERIOD}")
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        for group in [self._folder / str(rank) for rank in range(self._ranks)]:
            end = time.monotonic() + 20  # stopped processes leave it one by one
            while (group / "cgroup.procs").read_text() and time.monotonic() < end:
                time.sleep(0.05)
            group.rmdir()
        self._folder.rmdir()
        subprocess.run(["umount", self._mounted], check=True)
        self._mounted.rmdir()
