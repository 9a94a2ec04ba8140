"""The command by which seeded.py looks for mistakes: runs programs in the copy, whose names are given.

Most are verified (seeded_verified.py): the program of one rank is the reference, and gradients are compared with
derivatives. The other mistakes in what makes the program of one rank cannot be found so. For these, steps are
interpreted (seeded_numbers.py).

Prints `RUN <name>` before each program. Ends with `FAILED: <name>: <way>: <message>` at the first that finds a mistake.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

import seeded_numbers
import seeded_verified
from seeded_models import PROGRAMS

DIFFERENCES = ("differs from that of", "is missing", "the int8 wire loses")


def way_of(error: Exception) -> str:
    if isinstance(error, AssertionError):
        return "accepted" if "the error is not" in str(error) else "numbers"
    if "are not its derivatives" in str(error):
        return "derivatives"
    return "difference" if any(each in str(error) for each in DIFFERENCES) else "refused"


def failure_of(name: str) -> str:
    """Runs a program. Returns how it finds a mistake, and the error; "" if it finds none."""
    try:
        PROGRAMS[name]()
    except Exception as error:  # noqa: BLE001 (any error is a finding)
        return f"{name}: {way_of(error)}: {type(error).__name__}: {error}".replace("\n", " ")
    return ""


def measure(path: Path) -> int:
    """Prints the seconds of each program, and the numbers of the mistakes that it reaches. `path` is the file that
    LOCKSTEP_MUTANTS_REACHED names. Programs are processes of their own, as a table is made once in a process.
    """
    before = path.read_bytes()  # reached by imports
    for name in PROGRAMS:
        path.write_bytes(bytes(len(before)))
        started = time.monotonic()
        child = os.fork()
        if child == 0:
            failure = failure_of(name)
            print(failure, file=sys.stderr, flush=True)
            os._exit(1 if failure else 0)
        if os.waitpid(child, 0)[1] != 0:
            print(f"FAILED: {name}")
            return 1
        reached = [i for i, (now, then) in enumerate(zip(path.read_bytes(), before, strict=True)) if now or then]
        print(json.dumps([name, time.monotonic() - started, reached]), flush=True)
    return 0


def main(names: list[str]) -> int:
    seeded_verified.add_all()
    seeded_numbers.add_all()
    if names == ["--measure"]:
        return measure(Path(os.environ["LOCKSTEP_MUTANTS_REACHED"]))
    for name in names:
        print(f"RUN {name}", flush=True)
        failure = failure_of(name)
        if failure:
            print(f"FAILED: {failure}", flush=True)
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
