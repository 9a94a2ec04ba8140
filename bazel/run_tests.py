#!/usr/bin/env python3
"""Runs test suites and ends with one line: 'N passed, N failed, N skipped'.

Counts test cases, not targets: Bazel's targets report them in the XML files that GoogleTest writes, pytest in its JUnit
file. Exits with 1 if something failed or did not build, or if no test ran.

    bazel/run_tests.py                                   every C++ test, then every Python test
    bazel/run_tests.py --suite=cpp --config=tsan //runtime/...
    bazel/run_tests.py --suite=sum                       the sum of all runs since --suite=reset, and their failures
"""

import argparse
import dataclasses
import json
import os
import pathlib
import subprocess
import sys
import urllib.parse
from xml.etree import ElementTree

ROOT = pathlib.Path(__file__).resolve().parent.parent
RESULTS = ROOT / "build" / "test"  # build events, JUnit files, and the counts that --suite=sum adds up
LEDGER = RESULTS / "counts.jsonl"


@dataclasses.dataclass
class Counts:
    passed: int = 0
    failed: int = 0
    skipped: int = 0
    failures: list[str] = dataclasses.field(default_factory=list)  # name and reason of each failed case

    def __add__(self, other: "Counts") -> "Counts":
        failures = [*self.failures, *other.failures]
        return Counts(self.passed + other.passed, self.failed + other.failed, self.skipped + other.skipped, failures)

    def __str__(self) -> str:
        return f"{self.passed} passed, {self.failed} failed, {self.skipped} skipped"


def failure(what: str) -> Counts:
    return Counts(failed=1, failures=[what])


def described(case: ElementTree.Element) -> str:
    """Returns the name of a failed case, and the beginning of its message."""
    message = "".join(each.get("message") or each.text or "" for each in case if each.tag in ("failure", "error"))
    return f"{case.get('classname')}.{case.get('name')}: {' '.join(message.split())[:300]}"


def count_cases(xml_file: pathlib.Path) -> Counts:
    """Returns the counts of a JUnit file. A file that cannot be read counts as one failed case."""
    try:
        root = ElementTree.parse(xml_file).getroot()
    except (OSError, ElementTree.ParseError) as error:
        return failure(f"{xml_file}: {error}")
    counts = Counts()
    for case in root.iter("testcase"):
        if case.get("status") == "notrun":  # a DISABLED_ case of GoogleTest
            counts.skipped += 1
        elif case.find("failure") is not None or case.find("error") is not None:
            counts += failure(described(case))
        elif case.find("skipped") is not None or case.get("result") == "skipped":
            counts.skipped += 1
        else:
            counts.passed += 1
    return counts


def count_bazel_events(events_file: pathlib.Path) -> Counts:
    """Returns the counts of one `bazel test`, from the events it wrote. A target that was not reached counts as a
    failure."""
    shards: dict[tuple, Counts] = {}  # the last attempt of each target, run and shard
    not_built = []
    for line in events_file.read_text().splitlines():
        event = json.loads(line)
        result = event.get("testResult")
        if result is not None:
            identity = event["id"]["testResult"]
            counts = Counts()
            for output in result.get("testActionOutput", []):
                if output["name"] == "test.xml":
                    counts = count_cases(pathlib.Path(urllib.parse.unquote(urllib.parse.urlparse(output["uri"]).path)))
            if result.get("status") != "PASSED" and counts.failed == 0:
                counts += failure("it crashed, ran out of time, or a sanitizer reported an error after the last case")
            counts.failures = [f"{identity['label']} ({result.get('status')}): {each}" for each in counts.failures]
            shards[identity["label"], identity.get("run"), identity.get("shard")] = counts
        identity = event.get("id", {}).get("targetCompleted")
        if identity is not None and not event.get("completed", {}).get("success"):
            not_built.append(identity["label"])
    tested = {label for label, _, _ in shards}
    not_tested = [failure(f"{label}: it did not build") for label in sorted(set(not_built) - tested)]
    return sum([*shards.values(), *not_tested], Counts())


def with_failure(counts: Counts, runner: str, status: int) -> Counts:
    """Returns the counts, plus one failure if the runner's exit status is a failure and no case has failed."""
    return counts + failure(f"{runner} ended with {status}") if status != 0 and counts.failed == 0 else counts


def print_failures(counts: Counts) -> None:
    for each in counts.failures:
        print("run_tests: FAILED", each, flush=True)


def run_cpp(config: str | None, targets: list[str]) -> Counts:
    """Returns the counts of `bazel test`."""
    events = RESULTS / f"cpp-{config or 'opt'}.json"
    events.unlink(missing_ok=True)
    command = [
        *os.environ.get("BAZEL", "bazel").split(),
        "test",
        *os.environ.get("BAZEL_FLAGS", "").split(),
        *([f"--config={config}"] if config else []),
        f"--build_event_json_file={events}",
        "--keep_going",
        "--",
        *targets,
    ]
    print("run_tests:", " ".join(command), flush=True)
    status = subprocess.run(command, cwd=ROOT, check=False).returncode
    if not events.exists():
        return failure(f"bazel ended with {status}, and wrote no events")
    counts = count_bazel_events(events)
    # Status 4: everything was built, and there is no test among the targets.
    return with_failure(counts, "bazel", 0 if status == 4 else status)


def python_workers() -> int:
    """Returns the number of processes that run the Python tests. Their ranks mostly wait for each other and for
    timeouts."""
    return 2 * (os.cpu_count() or 1)


def run_python(arguments: list[str]) -> Counts:
    """Returns the counts of pytest over test/python. With arguments, pytest runs in one process."""
    junit = RESULTS / "python.xml"
    junit.unlink(missing_ok=True)
    # The tests of a file stay in one process, as they share fixtures, until an idle process takes some over.
    chosen = arguments or [f"--numprocesses={python_workers()}", "--dist=worksteal", "test/python"]
    command = [str(ROOT / ".venv/bin/python"), "-m", "pytest", f"--junitxml={junit}", "--durations=40", *chosen]
    print("run_tests:", " ".join(command), flush=True)
    # As in .bazelrc for C++ tests: idle threads sleep at once.
    environment = {"OMP_WAIT_POLICY": "PASSIVE", **os.environ}
    status = subprocess.run(command, cwd=ROOT, env=environment, check=False).returncode
    if not junit.exists():
        return failure(f"pytest ended with {status}, and wrote no results")
    return with_failure(count_cases(junit), "pytest", status)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--suite", choices=["all", "cpp", "python", "reset", "sum"], default="all")
    parser.add_argument("--config", help="a configuration of .bazelrc: asan, tsan, everything")
    parser.add_argument("targets", nargs="*", help="Bazel targets (//...), or pytest's arguments with --suite=python")
    arguments = parser.parse_args()
    RESULTS.mkdir(parents=True, exist_ok=True)

    if arguments.suite == "reset":
        LEDGER.unlink(missing_ok=True)
        return 0
    if arguments.suite == "sum":
        lines = LEDGER.read_text().splitlines() if LEDGER.exists() else []
        total = sum((Counts(**json.loads(line)) for line in lines), Counts())
        print_failures(total)
        print(total)
        return int(total.failed > 0 or total.passed == 0)

    total = Counts()
    if arguments.suite in ("all", "cpp"):
        counts = run_cpp(arguments.config, arguments.targets or ["//..."])
        print_failures(counts)
        print("run_tests: C++:", counts, flush=True)
        total += counts
    if arguments.suite in ("all", "python"):
        counts = run_python(arguments.targets if arguments.suite == "python" else [])
        print_failures(counts)
        print("run_tests: Python:", counts, flush=True)
        total += counts
    with LEDGER.open("a") as file:
        file.write(json.dumps(dataclasses.asdict(total)) + "\n")
    nothing_ran = total.passed + total.failed == 0
    if nothing_ran:
        print("run_tests: no test ran")
    print(total)
    return int(total.failed > 0 or nothing_ran)


if __name__ == "__main__":
    sys.exit(main())
