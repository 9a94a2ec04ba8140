"""What the workers of the measurements have in common: a process that takes its turns when the check says so.

A worker reads lines from standard input, a number of steps each, and answers each with a line of JSON on what was standard output
when it started; all that libraries print goes to standard error. At the end of the input it ends. The first answer comes by
itself, when the worker is ready.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from typing import Any, Protocol


class Contestant(Protocol):
    def ready(self) -> dict[str, Any]:
        """What it says of its start: seconds to compile, bytes of the GPU."""

    def run(self, steps: int) -> dict[str, Any]:
        """Runs steps; "seconds" has the time of each."""


def serve(start: Callable[[], Contestant]) -> None:
    """Starts a contestant, and answers until the input ends; an error is an answer too."""
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    try:
        contestant = start()
        print(json.dumps(contestant.ready()), file=answers)
        for line in sys.stdin:
            print(json.dumps(contestant.run(int(line))), file=answers)
    except Exception as error:
        print(json.dumps({"error": f"{type(error).__name__}: {error}"}), file=answers)
        raise
