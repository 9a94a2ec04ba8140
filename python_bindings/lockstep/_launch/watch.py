"""Runs mpirun, whose ranks run under rank.py, to its end, or to the end of the time that it has once ranks have ended or failed, wherever
they are."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence

from . import supervise
from .ends import Ends
from .output import Copies


def watch(
    command: Sequence[str],
    environment: Mapping[str, str],
    ends: Ends,
    may_outlive_local_ranks: bool = False,
    names_ranks: bool = True,
) -> tuple[int, list[str]]:
    """Once `supervise.prepare_process` was called.

    Args:
      command: mpirun, with `--tag-output`.
      ends: of a new job, which hears of its ranks.
      may_outlive_local_ranks: ranks of other hosts go on without those of this one.
      names_ranks: before each line of their output.

    Returns:
      The job's exit code, and why mpirun was ended: empty if it has ended by itself.
    """
    overdue: list[str] = []

    def is_overdue() -> bool:
        if reason := ends.overdue():
            overdue.append(reason)
        return bool(overdue)

    with Copies(ends, sys.stdout.buffer, sys.stderr.buffer, names_ranks) as copies:
        code = supervise.run(
            command, environment, overdue.append, copies.stdout, copies.stderr, is_overdue, may_outlive_local_ranks
        )
    return ends.exit_code(code, was_overdue=bool(overdue)), overdue
