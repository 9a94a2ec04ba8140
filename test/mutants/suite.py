"""The tests that depend on a file: finding them, running them outside Bazel, and their verdict on a mutant."""

import dataclasses
import json
import os
import pathlib
import re
import resource
import signal
import subprocess
import sys
import tempfile
import threading
import time
from xml.etree import ElementTree

from checkout import TREE, ask_bazel, label_of

EVERYTHING = "LOCKSTEP_TEST_EVERYTHING"  # in the environment: tests run all of their cases
# Limit of the bytes in use, so that a mutant does not take the machine's memory. Reserved addresses may be more (the
# fake GPUs reserve them).
MOST_MEMORY = 8 << 30
TIMEOUTS = ("short", "moderate", "long", "eternal")  # Bazel's names of the timeouts
TIMEOUT_OF_SIZE = {"small": "short", "medium": "moderate", "large": "long", "enormous": "eternal"}


@dataclasses.dataclass
class Run:
    """One run of a test: 'passed', 'failed' or 'timed out', and the case that failed, if the test reports it."""

    outcome: str
    seconds: float
    failed_case: str = ""
    output: str = ""


class Test:
    """A test target, run as Bazel runs it, but without shards and reports."""

    def __init__(self, label: str, arguments: list[str], environment: dict[str, str], limit: float):
        self.label = label
        self.environment = environment  # in addition to that of every test
        self.limit = limit  # seconds
        self.package, _, self.name = label.removeprefix("//").partition(":")
        self.arguments = [re.sub(r"\$\(\w*location (\S+)\)", self.location, each) for each in arguments]
        self.seconds = 0.0  # without mistakes
        self.reached: set[int] = set()

    def location(self, match: re.Match) -> str:
        package, _, name = match[1].removeprefix("//").partition(":")
        return f"{package or self.package}/{name}"

    def run(self, environment: dict[str, str], limit: float, stop: threading.Event) -> Run:
        """Runs the test until it ends, the time is over or `stop` is set. Ends every process that it leaves."""
        binary = TREE / "bazel-bin" / self.package / self.name
        runfiles = binary.with_name(self.name + ".runfiles")
        with tempfile.TemporaryDirectory(prefix="mutants-") as scratch:
            environment = test_environment(runfiles, scratch) | self.environment | environment
            return run_command([str(binary), *self.arguments], runfiles / "lockstep", environment, limit, stop)


def run_command(
    command: list[str], folder: pathlib.Path, environment: dict[str, str], limit: float, stop: threading.Event
) -> Run:
    """Runs a command until it ends, the time is over or `stop` is set. Ends every process that it leaves."""
    with tempfile.TemporaryFile() as output:
        started = time.monotonic()
        process = subprocess.Popen(
            command,
            cwd=folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        resource.prlimit(process.pid, resource.RLIMIT_CORE, (0, 0))
        try:
            outcome = outcome_of(process, started + limit, stop)
        finally:
            end_session(process)
        seconds = time.monotonic() - started
        output.seek(0)
        text = output.read().decode(errors="replace")
    case = re.search(r"^\[  FAILED  \] ([\w/.]+)", text, re.MULTILINE) or re.search(
        r"^FAILED:? (.+)", text, re.MULTILINE
    )
    return Run(outcome, seconds, case[1] if case and outcome != "passed" else "", text)


def outcome_of(process: subprocess.Popen, until: float, stop: threading.Event) -> str:
    while process.poll() is None:
        if time.monotonic() > until or stop.wait(0.01):
            return "timed out"
        if memory_of(process.pid) > MOST_MEMORY:
            return "failed"
    return "passed" if process.returncode == 0 else "failed"


def memory_of(pid: int) -> int:
    """Returns the bytes of memory that a process uses, 0 if it has ended."""
    try:
        pages = pathlib.Path(f"/proc/{pid}/statm").read_text().split()[1]
    except OSError:
        return 0
    return int(pages) * resource.getpagesize()


def limits() -> dict[str, float]:
    """Returns the seconds of Bazel's timeouts by name; a test that takes longer fails in the suite too."""
    line = "test:everything .*" if EVERYTHING in os.environ else "build "
    setting = re.search(rf"^{line}--test_timeout=(\S+)$", (TREE / ".bazelrc").read_text(), re.MULTILINE)
    assert setting, f".bazelrc has no line '{line}--test_timeout=…'"
    return dict(zip(TIMEOUTS, map(float, setting[1].split(",")), strict=True))


def test_environment(runfiles: pathlib.Path, scratch: str) -> dict[str, str]:
    """Returns the environment that Bazel gives to a test, with the additions of .bazelrc."""
    settings = re.findall(r"^build .*--test_env=.*$", (TREE / ".bazelrc").read_text(), re.MULTILINE)
    added = dict(re.findall(r"--test_env=(\w+)=(\S+)", "\n".join(settings)))
    names = ("PATH", "HOME", "USER", "LANG", EVERYTHING)
    kept = {name: os.environ[name] for name in names if name in os.environ}
    return {
        **kept,
        **added,
        "TEST_SRCDIR": str(runfiles),
        "RUNFILES_DIR": str(runfiles),
        "TEST_WORKSPACE": "lockstep",
        "TEST_TMPDIR": scratch,
        "TMPDIR": scratch,
        "GTEST_FAIL_FAST": "1",
        "GTEST_COLOR": "no",
    }


def end_session(process: subprocess.Popen) -> None:
    """Ends the processes left in the session that `process` leads, first with a signal that mpirun handles, because it
    cleans up after itself.
    """
    for sent, wait in ((signal.SIGTERM, 2.0), (signal.SIGKILL, 1.0)):
        until = time.monotonic() + wait
        left = members(process.pid)
        for pid in left:
            try:
                os.kill(pid, sent)
            except ProcessLookupError:
                pass
        while left and time.monotonic() < until:
            time.sleep(0.05)
            process.poll()
            left = members(process.pid)
    process.wait()


def members(session: int) -> list[int]:
    """Returns the living processes of a session."""
    found = []
    for path in pathlib.Path("/proc").iterdir():
        if not path.name.isdigit():
            continue
        try:
            fields = (path / "stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue  # it has ended
        if int(fields[3]) == session and fields[0] != "Z":
            found.append(int(path.name))
    return found


def tests_of(files: list[str]) -> list[Test]:
    """Returns the test targets that are built from any of the files."""
    labels = " + ".join(label_of(file) for file in files)
    answer = ask_bazel("query", f"tests(rdeps(//..., {labels}))", "--output=xml")
    tests = []
    seconds = limits()
    for rule in ElementTree.fromstring(answer).iter("rule"):
        arguments = [each.get("value", "") for each in rule.findall("./list[@name='args']/string")]
        text = {each.get("name"): each.get("value", "") for each in rule.findall("./string")}
        timeout = text.get("timeout") or TIMEOUT_OF_SIZE[text.get("size", "medium")]
        pairs = [[each.get("value", "") for each in pair] for pair in rule.findall("./dict[@name='env']/pair")]
        shards = rule.find("./int[@name='shard_count']")  # they run one after the other here
        times = max(1, int(shards.get("value", "1"))) if shards is not None else 1
        tests.append(Test(rule.get("name", ""), arguments, dict(pairs), seconds[timeout] * times))
    return sorted(tests, key=lambda test: test.label)


def measure(tests: list[Test], number_of_mutants: int, remembered: pathlib.Path, state: str) -> list[Test]:
    """Records each test's time without mistakes, and the mutants that it reaches: by running it, or from `remembered`.

    Returns the tests in the order in which to run them, the quickest first. Ends the program if one fails, because it
    would notice every mutant.
    """
    memory = json.loads(remembered.read_text()) if remembered.is_file() else {}
    if memory.get("state") != state:
        memory = {"state": state}
    for test in tests:
        if test.label not in memory:
            memory[test.label] = measure_one(test, number_of_mutants)
            remembered.write_text(json.dumps(memory))
        test.seconds, reached = memory[test.label]
        test.reached = set(reached)
        print(f"mutants: {test.label}: {test.seconds:.1f} s, reaches {len(reached)}", flush=True)
    return sorted(tests, key=lambda test: test.seconds)


def measure_one(test: Test, number_of_mutants: int) -> tuple[float, list[int]]:
    with tempfile.NamedTemporaryFile(prefix="mutants-") as file:
        file.write(bytes(max(1, number_of_mutants)))
        file.flush()
        run = test.run({"LOCKSTEP_MUTANTS_REACHED": file.name}, test.limit, threading.Event())
        if run.outcome != "passed":
            sys.exit(f"mutants: {test.label} {run.outcome} without any mistake:\n{run.output[-3000:]}")
        file.seek(0)
        return run.seconds, [number for number, byte in enumerate(file.read()) if byte]


def judge(tests: list[Test], number: int, stop: threading.Event) -> tuple[str, str]:
    """Returns the outcome of a mutant, and the test (and its case) that noticed it."""
    reaching = [test for test in tests if number in test.reached]
    for test in reaching:
        run = test.run({"LOCKSTEP_MUTANT": str(number)}, test.limit, stop)
        if stop.is_set():
            return "not tried", ""
        if run.outcome != "passed":
            outcome = "noticed" if run.outcome == "failed" else "timed out"
            return outcome, f"{test.label} {run.failed_case}".strip()
    return ("survived" if reaching else "not reached"), ""
