#!/usr/bin/env python3
"""Measures what working on this project costs, for the table of .ci/run.

bazel/costs.py watch make build   runs a command, and records the largest memory of one compilation
bazel/costs.py op                 changes a line of an op's block, and runs the cases of this op
bazel/costs.py graph              changes a line of core/graph.h, and runs `make build`

Changed files are restored afterwards. `watch` writes its result to LARGEST.
"""

import os
import pathlib
import re
import subprocess
import sys
import threading
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
LARGEST = ROOT / "build" / "largest_compilation.txt"
BAZEL = os.environ.get("BAZEL", "bazel").split()
FLAGS = os.environ.get("BAZEL_FLAGS", "").split()


def largest_compilation(until: threading.Event) -> tuple[int, str]:
    """Returns the largest memory of a compiler process, in KiB, and the source that it compiled."""
    largest = (0, "nothing was compiled")
    while not until.wait(0.2):
        for folder in pathlib.Path("/proc").glob("[0-9]*"):
            try:
                command = (folder / "cmdline").read_text().split("\0")
                if not command[0].endswith("cc1plus"):
                    continue
                held = re.search(r"VmHWM:\s*(\d+)", (folder / "status").read_text())
            except OSError:
                continue  # the process has ended
            source = next((word for word in command if word.endswith((".cc", ".cpp"))), "")
            if held is not None:
                largest = max(largest, (int(held[1]), source))
    return largest


def watch(command: list[str]) -> int:
    done = threading.Event()
    found = []
    watcher = threading.Thread(target=lambda: found.append(largest_compilation(done)))
    watcher.start()
    status = subprocess.run(command, cwd=ROOT, check=False).returncode
    done.set()
    watcher.join()
    kib, source = found[0]
    LARGEST.parent.mkdir(exist_ok=True)
    LARGEST.write_text(f"{kib // 1024} MiB, {source}\n")
    print(f"costs: the largest compilation: {LARGEST.read_text().strip()}")
    return status


def changed(file: pathlib.Path, before: str, after: str, command: list[str]) -> int:
    """Runs the command while `before` in `file` is replaced by `after`. NOW in `after` becomes the time, so that no
    cache has the compilation."""
    text = file.read_text()
    if text.count(before) != 1:
        sys.exit(f"costs: {file.relative_to(ROOT)} does not have once: {before}")
    try:
        file.write_text(text.replace(before, after.replace("NOW", str(time.time_ns()))))
        print("costs:", " ".join(command), flush=True)
        return subprocess.run(command, cwd=ROOT, check=False).returncode
    finally:
        file.write_text(text)


def main() -> int:
    match sys.argv[1:]:
        case ["watch", *command] if command:
            return watch(command)
        case ["op"]:
            command = [*BAZEL, "test", *FLAGS, "--test_filter=*/adam_*", "//test/op_cases:op_cases_test"]
            return changed(ROOT / "core/ops/adam.cc", "One step of Adam (", "One step (NOW) of Adam (", command)
        case ["graph"]:
            line = "}  // namespace lockstep\n"
            change = "[[gnu::used]] inline long changed_NOW = NOW;\n" + line  # changes the object of each source
            return changed(ROOT / "core/graph.h", line, change, ["make", "build"])
    sys.exit(__doc__)


if __name__ == "__main__":
    sys.exit(main())
