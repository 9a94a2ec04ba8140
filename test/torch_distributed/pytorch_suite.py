"""PyTorch's own tests of torch.distributed for gloo, with this backend in gloo's place: what they call "gloo" is Lockstep.
Their code is unchanged. It is `torch.testing._internal.distributed.distributed_test` of the installed torch, or a file of
PyTorch's repository.

    python test/torch_distributed/pytorch_suite.py --ranks 2 --of gloo lockstep   # prints a table
    python test/torch_distributed/pytorch_suite.py --file pytorch/test/distributed/test_c10d_gloo.py

It needs the packages expecttest and hypothesis.
"""

from __future__ import annotations

import argparse
import datetime
import importlib
import json
import os
import re
import subprocess
import sys
import tempfile
import types
import unittest
from pathlib import Path
from typing import Any

_OUTCOMES = ("passed", "skipped", "failed")
_RESULT = "RESULT "  # the beginning of a line that is the result of a test


def put_in_place_of_gloo() -> None:
    """Makes torch.distributed, its tests included, use this backend where it would use gloo."""
    import torch
    from torch.distributed import distributed_c10d
    from torch.testing._internal.distributed import distributed_test

    from lockstep.torch_distributed import Group

    class InPlaceOfGloo(Group):
        """A group with what `torch.distributed` and its tests do to groups of gloo alone."""

        _Options = types.SimpleNamespace

        def __init__(self, store: Any, rank: int, size: int, timeout: Any) -> None:
            limit = timeout
            if isinstance(timeout, types.SimpleNamespace):
                limit = datetime.timedelta(seconds=timeout._timeout)
            super().__init__(store, rank, size, limit)

        @property
        def options(self) -> types.SimpleNamespace:
            return types.SimpleNamespace(_timeout=self._timeout)

        @staticmethod
        def create_device(**_: Any) -> None:
            pass

        def _set_sequence_number_for_group(self) -> None:
            pass

    distributed_c10d.ProcessGroupGloo = torch.distributed.ProcessGroupGloo = InPlaceOfGloo
    # The tests do not look for gloo's own events in PyTorch's profiler.
    distributed_test.PROFILING_SUPPORTED_BACKENDS.clear()
    distributed_test.SEND_RECV_PROFILING_SUPPORTED_BACKENDS.clear()


def suites(file: Path | None) -> list[type[unittest.TestCase]]:
    """Returns the classes of tests. Reads the environment, as PyTorch's modules do when they are imported."""
    import torch
    from torch.testing._internal.common_distributed import MultiProcessTestCase
    from torch.testing._internal.distributed.distributed_test import DistributedTest, TestDistBackend

    if os.environ["INSTEAD_OF_GLOO"] == "lockstep":
        put_in_place_of_gloo()

    def fork(test: Any) -> None:
        test._start_processes(torch.multiprocessing.get_context("fork").Process)

    MultiProcessTestCase._spawn_processes = fork  # spawned ranks would have gloo again
    if file is not None:
        sys.path.insert(0, str(file.parent))
        module = importlib.import_module(file.stem)
        found = [each for each in vars(module).values() if isinstance(each, type)]
        return [each for each in found if issubclass(each, unittest.TestCase) and each.__module__ == file.stem]

    class Suite(TestDistBackend, DistributedTest._DistTestBase):
        def setUp(self) -> None:
            super().setUp()
            self._spawn_processes()

    return [Suite]


class _Results(unittest.TestResult):
    """Prints a line of JSON for each test: its name, its outcome, and why it failed."""

    def _print(self, test: unittest.TestCase, outcome: str, why: str = "") -> None:
        print(_RESULT + json.dumps([f"{type(test).__name__}.{test._testMethodName}", outcome, why]), flush=True)

    def addSuccess(self, test: unittest.TestCase) -> None:
        self._print(test, "passed")

    def addSkip(self, test: unittest.TestCase, reason: str) -> None:
        self._print(test, "skipped", reason)

    def addFailure(self, test: unittest.TestCase, error: object) -> None:
        self._print(test, "failed", self._exc_info_to_string(error, test))

    addError = addFailure


def run_all(file: Path | None, pattern: str) -> None:
    """Runs the tests here, on forked ranks."""
    for suite in suites(file):
        for name in unittest.TestLoader().getTestCaseNames(suite):
            if re.search(pattern, f"{suite.__name__}.{name}"):
                suite(name).run(_Results())


def outcomes(backend: str, arguments: argparse.Namespace) -> dict[str, str]:
    """Runs the tests with a backend. Returns their outcomes by name."""
    found = {}
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "barrier").mkdir()
        environment = os.environ | {
            "INSTEAD_OF_GLOO": backend, "BACKEND": "gloo", "WORLD_SIZE": str(arguments.ranks), "INIT_METHOD": "env://",
            "TEMP_DIR": folder, "DISTRIBUTED_TESTS_DEFAULT_TIMEOUT": str(arguments.seconds),
        }  # fmt: skip
        command = [sys.executable, __file__, "--here", "--tests", arguments.tests]
        command += ["--file", str(arguments.file)] if arguments.file else []
        running = subprocess.Popen(
            command, env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        )
        printed = []
        assert running.stdout is not None
        for line in running.stdout:
            if not line.startswith(_RESULT):
                printed.append(line)
                continue
            name, found[name], why = json.loads(line.removeprefix(_RESULT))
            print(f"{backend:9} {found[name]:8} {name}", flush=True)
            if found[name] == "failed" and arguments.output:
                (arguments.output / f"{name}.{backend}").write_text("".join(printed) + why)
            printed = []
        running.wait()
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=2, help="for tests that do not set it themselves")
    parser.add_argument("--of", nargs="+", default=["gloo", "lockstep"], choices=["gloo", "lockstep"])
    parser.add_argument(
        "--file", type=Path, help="a file of tests of PyTorch's repository; beside it are those it imports"
    )
    parser.add_argument("--tests", default="", help="a regular expression for their names")
    parser.add_argument("--seconds", type=int, default=60, help="for one test")
    parser.add_argument("--output", type=Path, help="a folder for what failing tests print")
    parser.add_argument("--here", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.here:
        return run_all(arguments.file, arguments.tests)
    if arguments.output:
        arguments.output.mkdir(parents=True, exist_ok=True)
    of = {backend: outcomes(backend, arguments) for backend in arguments.of}
    for backend, found in of.items():
        counts = {outcome: list(found.values()).count(outcome) for outcome in _OUTCOMES}
        print(f"{backend}: {', '.join(f'{count} {outcome}' for outcome, count in counts.items())}")
    return None


if __name__ == "__main__":
    main()
