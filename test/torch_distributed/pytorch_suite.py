"""PyTorch's own tests of torch.distributed for gloo (`torch.testing._internal.distributed.distributed_test`), with this
backend in gloo's place. Their code is that of the installed torch, unchanged: what it calls "gloo" is Lockstep.

    python test/torch_distributed/pytorch_suite.py --ranks 2 --of gloo lockstep   # prints a table

It needs the packages expecttest and hypothesis.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import types
import unittest
from pathlib import Path

_OUTCOMES = ("passed", "skipped", "failed")


def suite_class() -> type[unittest.TestCase]:
    """Returns the tests' class. Reads the environment, as PyTorch's module does when it is imported."""
    import torch
    from torch.distributed import distributed_c10d
    from torch.testing._internal.distributed import distributed_test
    from torch.testing._internal.distributed.distributed_test import DistributedTest, TestDistBackend

    if os.environ["INSTEAD_OF_GLOO"] == "lockstep":
        from lockstep.torch_distributed import Group

        class InPlaceOfGloo(Group):
            """A group with what `torch.distributed` does to groups of gloo alone."""

            options = types.SimpleNamespace()

            def _set_sequence_number_for_group(self) -> None:
                pass

        distributed_c10d.ProcessGroupGloo = InPlaceOfGloo
        # The tests do not look for gloo's own events in PyTorch's profiler.
        distributed_test.PROFILING_SUPPORTED_BACKENDS.clear()
        distributed_test.SEND_RECV_PROFILING_SUPPORTED_BACKENDS.clear()

    class Suite(TestDistBackend, DistributedTest._DistTestBase):
        def setUp(self) -> None:
            super().setUp()
            self._start_processes(torch.multiprocessing.get_context("fork").Process)

    return Suite


class _Results(unittest.TestResult):
    """Prints a line of JSON for each test: its name, its outcome, and why it failed."""

    def _print(self, test: unittest.TestCase, outcome: str, why: str = "") -> None:
        print(json.dumps([test._testMethodName, outcome, why]), flush=True)

    def addSuccess(self, test: unittest.TestCase) -> None:
        self._print(test, "passed")

    def addSkip(self, test: unittest.TestCase, reason: str) -> None:
        self._print(test, "skipped", reason)

    def addFailure(self, test: unittest.TestCase, error: object) -> None:
        self._print(test, "failed", self._exc_info_to_string(error, test))

    addError = addFailure


def run_all(pattern: str) -> None:
    """Runs the tests here, on forked ranks."""
    suite = suite_class()
    for name in unittest.TestLoader().getTestCaseNames(suite):
        if re.search(pattern, name):
            suite(name).run(_Results())


def outcomes(backend: str, ranks: int, seconds: int, pattern: str, output: Path | None) -> dict[str, str]:
    """Runs the tests with a backend. Returns their outcomes by name."""
    found = {}
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "barrier").mkdir()
        environment = os.environ | {
            "INSTEAD_OF_GLOO": backend, "BACKEND": "gloo", "WORLD_SIZE": str(ranks), "INIT_METHOD": "env://", "TEMP_DIR": folder,
            "DISTRIBUTED_TESTS_DEFAULT_TIMEOUT": str(seconds),
        }  # fmt: skip
        command = [sys.executable, __file__, "--here", "--tests", pattern]
        running = subprocess.Popen(
            command, env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        )
        printed = []
        assert running.stdout is not None
        for line in running.stdout:
            if not line.startswith('["test_'):
                printed.append(line)
                continue
            name, found[name], why = json.loads(line)
            print(f"{backend:9} {found[name]:8} {name}", flush=True)
            if found[name] == "failed" and output:
                (output / f"{name}.{backend}").write_text("".join(printed) + why)
            printed = []
        running.wait()
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--of", nargs="+", default=["gloo", "lockstep"], choices=["gloo", "lockstep"])
    parser.add_argument("--tests", default="", help="a regular expression for their names")
    parser.add_argument("--seconds", type=int, default=60, help="for one test")
    parser.add_argument("--output", type=Path, help="a folder for what failing tests print")
    parser.add_argument("--here", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.here:
        return run_all(arguments.tests)
    if arguments.output:
        arguments.output.mkdir(parents=True, exist_ok=True)
    of = {
        backend: outcomes(backend, arguments.ranks, arguments.seconds, arguments.tests, arguments.output)
        for backend in arguments.of
    }
    for backend, found in of.items():
        counts = {outcome: list(found.values()).count(outcome) for outcome in _OUTCOMES}
        print(f"{backend}: {', '.join(f'{count} {outcome}' for outcome, count in counts.items())}")
    return None


if __name__ == "__main__":
    main()
