"""The exit code and the last lines of .ci/run, on commands that do nothing, of bazel/costs.py and of `make fuzz`."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT / "bazel"))
import costs

STEPS = ["setup", "lint", "build", "train", "test", "wheel-check", "test-tsan", "fuzz ARGS=--seconds 30", "test-asan"]

# Notes its target. The tests have the given counts.
FAKE_MAKE = """#!/bin/sh
echo "$*" >> made
[ "$1" != test ] || cat counts >> build/test/counts.jsonl
[ "$1" != "$FAILING" ]
"""
FAKE_COSTS = """#!/bin/sh
echo "costs $1" >> made
[ "$1" != watch ] || { shift; exec "$@"; }
[ "$1" != "$FAILING" ]
"""


def program(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)


def run_ci(
    tree: Path, failing: str = "", passed: int = 3, failures: tuple[str, ...] = ()
) -> tuple[int, list[str], list[str]]:
    """Runs .ci/run in a tree of its own, where one step fails. Returns its exit code, its lines, and what it made."""
    for name in (".ci/run", "bazel/run_tests.py"):
        (tree / name).parent.mkdir(parents=True)
        shutil.copy(ROOT / name, tree / name)
    program(tree / "bin/make", FAKE_MAKE)
    program(tree / "bazel/costs.py", FAKE_COSTS)
    program(tree / "bazel/setup.sh", "#!/bin/sh\n")
    program(tree / ".venv/bin/python", "#!/bin/sh\n")
    counts = {"passed": passed, "failed": len(failures), "skipped": 1, "failures": failures}
    (tree / "counts").write_text(json.dumps(counts) + "\n")
    environment = os.environ | {"PATH": f"{tree}/bin:{os.environ['PATH']}", "FAILING": failing}
    done = subprocess.run([tree / ".ci/run"], env=environment, capture_output=True, text=True, timeout=120, check=False)
    return done.returncode, done.stdout.splitlines(), (tree / "made").read_text().splitlines()


def test_all_steps_run(tmp_path: Path) -> None:
    code, lines, made = run_ci(tmp_path)
    assert (code, lines[-1]) == (0, "3 passed, 0 failed, 1 skipped")
    assert [each for each in made if not each.startswith("costs")] == STEPS
    assert [each for each in made if each.startswith("costs")] == ["costs watch", "costs op", "costs graph"]
    table = [line for line in lines if re.fullmatch(r"ci: .{48} +\d+ s", line)]
    assert [line[4:52].strip() for line in table] == [
        "set-up",
        "PyTorch, its ONNX exporter, MkDocs",
        "sshd and rsync",
        "format and lint",
        "make build",
        "make train, after make build",
        "make test, after make build",
        "an op's block, until its op cases have run",
        "core/graph.h, until all is built",
        "the wheel, made and tried",
        "thread sanitizer",
        "fuzzing",
        "address and undefined-behaviour sanitizers",
        "all",
    ]


@pytest.mark.parametrize(
    ("failing", "name"),
    [
        ("lint", "format and lint"),
        ("build", "make build"),
        ("graph", "core/graph.h, until all is built"),
        ("test-asan", "address and undefined-behaviour sanitizers"),
    ],
)
def test_a_step_that_fails_is_a_failure_and_the_others_run(failing: str, name: str, tmp_path: Path) -> None:
    code, lines, made = run_ci(tmp_path, failing)
    assert (code, lines[-1]) == (1, "3 passed, 1 failed, 1 skipped")
    assert f"ci: failed: {name}: " in lines
    assert [each for each in made if not each.startswith("costs")] == STEPS


def test_nothing_runs_without_the_set_up(tmp_path: Path) -> None:
    code, lines, made = run_ci(tmp_path, "setup")
    assert (code, lines[-1], made) == (1, "0 passed, 1 failed, 0 skipped", ["setup"])


def test_failed_tests_are_named(tmp_path: Path) -> None:
    code, lines, _ = run_ci(tmp_path, "test", failures=("test_a.test_b: why", "test_c.test_d: why"))
    assert (code, lines[-1]) == (1, "3 passed, 2 failed, 1 skipped")
    assert "ci: failed: make test, after make build: test_a.test_b: why;test_c.test_d: why" in lines


def test_a_failure_counts_if_its_step_passes_and_so_does_a_run_without_tests(tmp_path: Path) -> None:
    assert run_ci(tmp_path / "failure", failures=("test_a.test_b: why",))[0] == 1
    assert run_ci(tmp_path / "nothing", passed=0)[0] == 1


def test_a_file_that_is_changed_to_measure_is_restored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(costs, "ROOT", tmp_path)
    file = tmp_path / "a.cc"
    file.write_text("int a;\nint b;\n")
    check = ["bash", "-c", "cp a.cc seen; exit 3"]
    assert costs.changed(file, "int b;", "int NOW;", check) == 3
    assert re.fullmatch(r"int a;\nint \d{19};\n", (tmp_path / "seen").read_text())
    assert file.read_text() == "int a;\nint b;\n"
    with pytest.raises(OSError, match="no_such_program"):
        costs.changed(file, "int b;", "int NOW;", ["no_such_program"])
    assert file.read_text() == "int a;\nint b;\n"
    for absent_or_twice in ("int c;", "int"):
        with pytest.raises(SystemExit, match=f"costs: a.cc does not have once: {absent_or_twice}"):
            costs.changed(file, absent_or_twice, "", ["true"])


def test_a_watched_command_keeps_its_exit_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(costs, "LARGEST", tmp_path / "build/largest")
    # Other compilers may run on this machine, too.
    python = Path(sys.executable).resolve()  # not a script that starts Python under a name of its own
    compiler = f"exec -a /usr/lib/cc1plus {python} -c 'import time; held = b\"1\" * 10**8; time.sleep(1)' watched.cc"
    assert costs.watch(["bash", "-c", f"({compiler}); exit 5"]) == 5
    recorded = re.fullmatch(r"(\d+) MiB, \S+\n", costs.LARGEST.read_text())
    assert recorded is not None and int(recorded[1]) > 100


FAKE_FUZZER = """#!/bin/sh
echo '#2 INITED cov: 17 ft: 20' >&2
[ "$CODE" = 0 ] || echo "SUMMARY: libFuzzer: timeout" >&2
[ "$RUN" = 0 ] || echo "stat::number_of_executed_units: $RUN" >&2
exit "$CODE"
"""


@pytest.mark.parametrize(
    ("code", "run", "said"),
    [
        (0, 1234, "1234 inputs run, 17 edges covered, none failed"),
        (77, 1234, "libFuzzer: timeout, in "),
        (0, 0, "no summary, in "),  # it ended without a word
    ],
)
def test_a_target_that_fails_ends_fuzzing_with_an_error(code: int, run: int, said: str, tmp_path: Path) -> None:
    (tmp_path / "test/fuzz").mkdir(parents=True)
    shutil.copy(ROOT / "test/fuzz/fuzz.py", tmp_path / "test/fuzz")
    for target in ("onnx", "text"):
        program(tmp_path / f"bazel-bin/test/fuzz/{target}_fuzzer", FAKE_FUZZER)
    done = subprocess.run(
        [sys.executable, tmp_path / "test/fuzz/fuzz.py"],
        env=os.environ | {"BAZEL": "true", "CODE": str(code), "RUN": str(run)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    passes = code == 0 and run > 0
    assert done.returncode == (0 if passes else 1)
    for target in ("onnx", "text"):
        assert f"fuzz: {target}: {said}\n" in (done.stdout if passes else done.stderr)
