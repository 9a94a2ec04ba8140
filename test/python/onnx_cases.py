"""ONNX's own backend tests (`onnx.backend.test`), and a list of those that do not pass, each with the reason.

    python test/python/onnx_cases.py      # runs all of them and brings onnx_not_passing.toml up to date

A failing test that is not in the file is added with its error message as the reason; existing reasons stay. A test
whose reason begins with "on some processors" stays too: it may pass or fail.
"""

from __future__ import annotations

import re
import sys
import tomllib
import unittest
import warnings
from pathlib import Path

import onnx.backend.test

import lockstep.onnx_backend

NOT_PASSING = Path(__file__).with_name("onnx_not_passing.toml")


def all_cases() -> dict[str, type[unittest.TestCase]]:
    """The classes of ONNX's test suite over our backend, without tests for devices that we do not support."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # some cases test overflows
        suite = onnx.backend.test.BackendTest(lockstep.onnx_backend, __name__)
    classes = suite.test_cases
    for case in classes.values():
        for name in names_of(case):
            if name.endswith("_cuda"):
                delattr(case, name)
    return classes


def names_of(case: type[unittest.TestCase]) -> list[str]:
    return [name for name in dir(case) if name.startswith("test_")]


def not_passing() -> dict[str, str]:
    """The names of the tests that do not pass, and the reasons."""
    if not NOT_PASSING.exists():
        return {}
    groups = tomllib.loads(NOT_PASSING.read_text(encoding="utf-8"))
    return {name: reason for reason, names in groups.items() for name in names}


def may_pass(reason: str) -> bool:
    """True if a test with this reason passes on other processors."""
    return reason.startswith("on some processors")


def reason_of(message: str) -> str:
    """The text of an error, without the parts that differ from case to case."""
    text = message.strip().splitlines()[-1] if message.strip() else "no message"
    text = re.sub(r"^(\w+\.)*\w*(Error|Exception): ", "", text)
    text = re.sub(r"^<model>: |, at onnx:.*$", "", text)
    return re.sub(r" \(opset \d+\)", "", text).replace('"', "'")[:160]


def write(reasons: dict[str, str]) -> None:
    groups: dict[str, list[str]] = {}
    for name, reason in reasons.items():
        groups.setdefault(reason, []).append(name)
    lines = [
        "# The tests of onnx.backend.test that do not pass, by reason. onnx_cases.py updates the list; reasons are written by hand.\n"
    ]
    for reason in sorted(groups):
        names = "".join(f'  "{name}",\n' for name in sorted(groups[reason]))
        lines.append(f'"{reason}" = [\n{names}]\n')
    NOT_PASSING.write_text("\n".join(lines), encoding="utf-8")


def main() -> int:
    known, reasons, passed = not_passing(), {}, 0
    for case in all_cases().values():
        for name in names_of(case):
            result = unittest.TestResult()
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                case(name).run(result)
            problems = result.errors + result.failures
            if problems or may_pass(known.get(name, "")):
                reasons[name] = known.get(name) or reason_of(problems[0][1])
            elif result.skipped:
                reasons[name] = "skipped by the suite: " + result.skipped[0][1]
            else:
                passed += 1
    for name in sorted(known.keys() - reasons.keys()):
        print(f"passes now: {name}")
    for name in sorted(reasons.keys() - known.keys()):
        print(f"does not pass: {name}: {reasons[name]}")
    write(reasons)
    print(f"{passed} of {passed + len(reasons)} pass")
    return 0


if __name__ == "__main__":
    sys.exit(main())
