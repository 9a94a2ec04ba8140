"""Runs mpirun, whose ranks run under rank.py, until it ends or is overdue. It is overdue some time after ranks have
ended or failed, on any host."""

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
    """Runs mpirun. Requires an earlier call of `supervise.prepare_process`.

    Args:
      command: mpirun, with `--tag-output`.
      ends: of a new job. It is told about the ranks.
      may_outlive_local_ranks: ranks of other hosts continue without the ranks of this host.
      names_ranks: prefix each line of output with its rank.

    Returns:
      The job's exit code, and the reasons why mpirun was ended: none if it ended by itself.
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
