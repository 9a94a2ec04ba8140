"""The counts of bazel/run_tests.py, its output about failures, and the Python tests that `make test` selects."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

BAZEL = Path(__file__).resolve().parents[2] / "bazel"
sys.path.append(str(BAZEL))
import run_tests
from run_tests import Counts

PYTEST = """
<testsuites><testsuite>
  <testcase classname="test_a" name="test_good"/>
  <testcase classname="test_a" name="test_bad[2]"><failure message="assert 1 == 2&#10; + where 1 = f()">long</failure></testcase>
  <testcase classname="test_a" name="test_not_begun"><error message="failed on setup">long</error></testcase>
  <testcase classname="test_a" name="test_left_out"><skipped message="no GPU"/></testcase>
</testsuite></testsuites>
"""
GOOGLETEST = """
<testsuites><testsuite>
  <testcase name="Adds" status="run" result="completed" classname="Sum"/>
  <testcase name="Carries" status="run" result="completed" classname="Sum"><failure message="sum_test.cc:7&#x0A;Expected: 10" type=""/></testcase>
  <testcase name="Wraps" status="run" result="skipped" classname="Sum"><skipped message="no 128 bits"/></testcase>
  <testcase name="DISABLED_Slow" status="notrun" result="suppressed" classname="Sum"/>
</testsuite></testsuites>
"""


def result_of(label: str, status: str, xml: Path | None = None, run: int = 1) -> dict[str, Any]:
    """Bazel's event for a test that has run."""
    output = [] if xml is None else [{"name": "test.xml", "uri": xml.as_uri()}]
    identity = {"label": label, "run": run, "shard": 0, "attempt": 1}
    return {"id": {"testResult": identity}, "testResult": {"status": status, "testActionOutput": output}}


def completed(label: str, success: bool, **others: Any) -> dict[str, Any]:
    return {"id": {"targetCompleted": {"label": label}}, "completed": {"success": True} if success else {}, **others}


def counted(folder: Path, *events: dict[str, Any]) -> Counts:
    file = folder / "events.json"
    file.write_text("".join(json.dumps(each) + "\n" for each in events))
    return run_tests.count_bazel_events(file)


def written(folder: Path, text: str) -> Path:
    file = folder / "test.xml"
    file.write_text(text)
    return file


def test_cases_of_pytest(tmp_path: Path) -> None:
    counts = run_tests.count_cases(written(tmp_path, PYTEST))
    assert str(counts) == "1 passed, 2 failed, 1 skipped"
    assert counts.failures == [
        "test_a.test_bad[2]: assert 1 == 2 + where 1 = f()",
        "test_a.test_not_begun: failed on setup",
    ]


def test_cases_of_googletest(tmp_path: Path) -> None:
    counts = run_tests.count_cases(written(tmp_path, GOOGLETEST))
    assert counts == Counts(1, 1, 2, ["Sum.Carries: sum_test.cc:7 Expected: 10"])


@pytest.mark.parametrize("text", ["", "<testsuites><testsuite>"])
def test_a_file_that_cannot_be_read_is_a_failure(text: str, tmp_path: Path) -> None:
    counts = run_tests.count_cases(written(tmp_path, text))
    assert (counts.passed, counts.failed) == (0, 1)
    assert str(tmp_path) in counts.failures[0]


def test_targets_of_bazel(tmp_path: Path) -> None:
    bad = written(tmp_path, GOOGLETEST)
    good = tmp_path / "good.xml"
    good.write_text('<testsuites><testcase name="Is" classname="Good"/></testsuites>')
    counts = counted(
        tmp_path,
        completed("//a:good", True),
        result_of("//a:good", "PASSED", good),
        completed("//a:bad", True),
        result_of("//a:bad", "FAILED", bad),
        result_of("//a:hangs", "TIMEOUT"),
        result_of("//a:leaks", "FAILED", good),
        result_of("//a:not_reached", "NO_STATUS"),
        completed("//a:broken", False),
    )
    assert (counts.passed, counts.failed, counts.skipped) == (3, 5, 2)
    why = "it crashed, ran out of time, or a sanitizer reported an error after the last case"
    assert counts.failures == [
        "//a:bad (FAILED): Sum.Carries: sum_test.cc:7 Expected: 10",
        f"//a:hangs (TIMEOUT): {why}",
        f"//a:leaks (FAILED): {why}",
        f"//a:not_reached (NO_STATUS): {why}",
        "//a:broken: it did not build",
    ]


def test_the_last_attempt_counts_and_each_run(tmp_path: Path) -> None:
    bad = written(tmp_path, GOOGLETEST)
    good = tmp_path / "good.xml"
    good.write_text('<testsuites><testcase name="Is" classname="Good"/></testsuites>')
    events = (
        result_of("//a:b", "FAILED", bad),
        result_of("//a:b", "PASSED", good),
        result_of("//a:b", "PASSED", good, run=2),
    )
    assert counted(tmp_path, *events) == Counts(2)


def test_a_runner_that_fails_without_a_case_is_a_failure() -> None:
    assert run_tests.with_failure(Counts(3), "pytest", 0) == Counts(3)
    assert run_tests.with_failure(Counts(3), "pytest", 2) == Counts(3, 1, 0, ["pytest ended with 2"])
    one = Counts(3, 1, 0, ["test_a.test_b: why"])
    assert run_tests.with_failure(one, "pytest", 1) == one


def run(folder: Path, *arguments: str, **environment: str) -> tuple[int, list[str]]:
    """Runs a copy of the program in a separate tree. Returns its exit code and its lines."""
    copy = folder / "bazel/run_tests.py"
    if not copy.exists():
        copy.parent.mkdir(parents=True)
        copy.write_bytes((BAZEL / "run_tests.py").read_bytes())
        (folder / ".venv/bin").mkdir(parents=True)
        python = folder / ".venv/bin/python"
        python.write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
        python.chmod(0o755)
    done = subprocess.run(
        [sys.executable, copy, *arguments],
        cwd=folder,
        env=os.environ | environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    return done.returncode, done.stdout.splitlines()


def test_the_sum_of_runs_says_what_failed(tmp_path: Path) -> None:
    tests = tmp_path / "test/python/test_some.py"
    tests.parent.mkdir(parents=True)
    tests.write_text("def test_good():\n    pass\n\n\ndef test_bad():\n    assert 1 == 2\n")
    assert run(tmp_path, "--suite=reset") == (0, [])
    assert run(tmp_path, "--suite=sum") == (1, ["0 passed, 0 failed, 0 skipped"])
    code, lines = run(tmp_path, "--suite=python", f"{tests}::test_good")
    assert (code, lines[-1]) == (0, "1 passed, 0 failed, 0 skipped")
    code, lines = run(tmp_path, "--suite=python", str(tests))
    assert (code, lines[-1]) == (1, "1 passed, 1 failed, 0 skipped")
    code, lines = run(tmp_path, "--suite=sum")
    assert code == 1
    assert lines == ["run_tests: FAILED test.python.test_some.test_bad: assert 1 == 2", "2 passed, 1 failed, 0 skipped"]
    code, lines = run(tmp_path, "--suite=python", str(tmp_path / "none.py"))
    assert code == 1
    assert lines[-1] == "0 passed, 1 failed, 0 skipped"


def test_a_pytest_that_ends_without_results_is_a_failure(tmp_path: Path) -> None:
    tests = tmp_path / "test/python/test_some.py"
    tests.parent.mkdir(parents=True)
    tests.write_text("def test_good():\n    pass\n")
    assert run(tmp_path, "--suite=python", str(tests))[0] == 0
    tests.write_text("import os\n\nos._exit(0)\n")
    code, lines = run(tmp_path, "--suite=python", str(tests))
    assert code == 1
    assert lines[-3:] == [
        "run_tests: FAILED pytest ended with 0, and wrote no results",
        "run_tests: Python: 0 passed, 1 failed, 0 skipped",
        "0 passed, 1 failed, 0 skipped",
    ]


# Writes its arguments and the given events, and ends as told.
FAKE_BAZEL = """#!/bin/sh
printf '%s\\n' "$@" > arguments
for each; do case $each in --build_event_json_file=*) file=${each#*=};; esac; done
[ ! -f events ] || cp events "$file"
exec sh -c "$END"
"""


def run_with_bazel(folder: Path, end: str, *arguments: str) -> tuple[int, list[str]]:
    bazel = folder / "fake_bazel"
    bazel.write_text(FAKE_BAZEL)
    bazel.chmod(0o755)
    return run(folder, *arguments, BAZEL=str(bazel), BAZEL_FLAGS="--jobs=3", END=end)


def test_the_command_of_bazel(tmp_path: Path) -> None:
    run_with_bazel(tmp_path, "exit 0", "--suite=cpp", "--config=asan", "//a", "//b/...")
    events = f"--build_event_json_file={tmp_path}/build/test/cpp-asan.json"
    expected = ["test", "--jobs=3", "--config=asan", events, "--keep_going", "--", "//a", "//b/..."]
    assert (tmp_path / "arguments").read_text().splitlines() == expected
    run_with_bazel(tmp_path, "exit 0", "--suite=cpp")
    assert (tmp_path / "arguments").read_text().splitlines()[-3:] == ["--keep_going", "--", "//..."]


@pytest.mark.parametrize(
    ("end", "passed", "code", "last"),
    [
        ("exit 0", 1, 0, "1 passed, 0 failed, 0 skipped"),
        ("exit 1", 1, 1, "1 passed, 1 failed, 0 skipped"),
        ("kill -9 $$", 1, 1, "1 passed, 1 failed, 0 skipped"),
        ("exit 4", 0, 1, "0 passed, 0 failed, 0 skipped"),  # no target is a test
        ("exit 0", None, 1, "0 passed, 1 failed, 0 skipped"),  # the events of an earlier run do not count
    ],
)
def test_the_end_of_bazel_counts(end: str, passed: int | None, code: int, last: str, tmp_path: Path) -> None:
    good = written(tmp_path, '<testsuites><testcase name="Is" classname="Good"/></testsuites>')
    stale = tmp_path / "build/test/cpp-opt.json"
    stale.parent.mkdir(parents=True)
    stale.write_text(json.dumps(result_of("//a:good", "PASSED", good)))
    if passed is not None:
        (tmp_path / "events").write_text("".join([json.dumps(result_of("//a:good", "PASSED", good))] * passed))
    result, lines = run_with_bazel(tmp_path, end, "--suite=cpp")
    assert (result, lines[-1]) == (code, last)


def test_both_languages_are_tested(tmp_path: Path) -> None:
    good = written(tmp_path, '<testsuites><testcase name="Is" classname="Good"/></testsuites>')
    (tmp_path / "events").write_text(json.dumps(result_of("//a:good", "PASSED", good)))
    (tmp_path / "test/python").mkdir(parents=True)
    (tmp_path / "test/python/test_some.py").write_text("def test_good():\n    pass\n")
    assert run_with_bazel(tmp_path, "exit 0")[1][-1] == "2 passed, 0 failed, 0 skipped"


CASES = """
import pytest

@pytest.mark.parametrize("n", [1, 2, 3, 4])
def test_four(n): pass

@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("dtype", ["f32", "bf16"])
def test_two(dtype, ranks): pass

@pytest.mark.parametrize("n", [4, 7])
def test_others(n): pass

@pytest.mark.parametrize("n", [0, -1, "a"])
def test_no_ranks(n): pass

@pytest.mark.everything
def test_similar(): pass

def test_alone(): pass
"""


def test_one_number_of_ranks_is_tested_and_with_everything_all_are(tmp_path: Path) -> None:
    shutil.copy(BAZEL.parent / "test/python/conftest.py", tmp_path)
    (tmp_path / "test_cases.py").write_text(CASES)

    def collected(**environment: str) -> list[str]:
        command = [sys.executable, "-m", "pytest", "-q", "--collect-only", "-n", "0", "test_cases.py"]
        others = {name: value for name, value in os.environ.items() if name != "LOCKSTEP_TEST_EVERYTHING"}
        done = subprocess.run(
            command, cwd=tmp_path, env=others | environment, capture_output=True, text=True, check=True
        )
        return [line.partition("::test_")[2] for line in done.stdout.splitlines() if "::" in line]

    some = ["four[3]", "two[f32-2]", "two[bf16-2]", "others[4]", "no_ranks[0]", "no_ranks[-1]", "no_ranks[a]", "alone"]
    assert collected() == some
    assert len(collected(LOCKSTEP_TEST_EVERYTHING="1")) == 4 + 4 + 2 + 3 + 1 + 1
