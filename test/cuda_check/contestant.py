"""The part that all workers of the measurements share: a process that runs steps when the check asks for them.

A worker reads lines from standard input, each with a number of steps, and answers each with a line of JSON on the
standard output that it was started with. Everything that libraries print goes to standard error. The worker sends a
first answer unasked, when it is ready, and ends when its input ends.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from typing import Any, Protocol


class Contestant(Protocol):
    def ready(self) -> dict[str, Any]:
        """Returns measurements of the start: seconds to compile, bytes of GPU memory."""

    def run(self, steps: int) -> dict[str, Any]:
        """Runs steps; "seconds" has the time of each."""


def serve(start: Callable[[], Contestant]) -> None:
    """Starts a contestant and answers until the input ends. An error is an answer too."""
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
