#!/usr/bin/env python3
"""Measures verification: puts each mistake of seeded_faults.txt into the compiler, and counts those that are found.

    make seeded-faults                          all mistakes
    make seeded-faults ARGS="--only 8ad987cc"   one mistake, by its key in the report
    make seeded-faults ARGS="--skip tests"      without the C++ tests

It works as mutants.py does: on a copy of the checkout, with one build of all mistakes, each behind a switch. A mistake
has two verdicts. The first is that of the programs of seeded_programs.py, which `lockstep.verify` compares with one
rank, or which are compared with each other or with NumPy; it says whether the error names the pass that the table
names. The second is that of the C++ tests of the compiler. Programs and tests that do not reach the mistake are not
run. An interrupted run continues where it was, until a source changes.
"""

import argparse
import collections
import concurrent.futures
import dataclasses
import json
import os
import pathlib
import re
import signal
import sys
import tempfile
import threading
from collections.abc import Callable

import checkout
import suite
from checkout import TREE, WORK
from report import Journal
from schemata import Schemata, wrong_mutants
from seeded_table import TABLE, Fault, read_faults

PROGRAMS = pathlib.Path(__file__).with_name("seeded_programs.py")
TESTS = [
    "//core:core_test",
    "//passes:passes_test",
    "//test/golden:golden_test",
    "//test/distributed:uneven_test",
    "//test/distributed:distributed_test",
    "//test/random_graph:random_graph_test",
    "//test/op_cases:op_cases_test",
]
EXTENSION = "//python_bindings:_lockstep.so"
LIMIT = 60.0  # seconds for all programs of a mistake
LIMIT_OF_TEST = 900.0  # seconds
# How a program finds a mistake: a comparison in exact arithmetic, of programs or of gradients with derivatives; a
# comparison of recipes or with NumPy; another error of the compiler; a wrong program that gets no error; or an end of
# the process.
WAYS = ("difference", "derivatives", "numbers", "refused", "accepted", "crashed")
MISSED = ("survived", "not reached")
Judge = Callable[[int], tuple[str, str]]  # the verdict on a mistake, by its number


def put_in(faults: list[Fault]) -> dict[str, Schemata]:
    """Writes all faults into the copy. Returns the new text of each file."""
    numbered: dict[str, list] = collections.defaultdict(list)
    for number, fault in enumerate(faults):
        numbered[fault.mutant.file].append((number, fault.mutant))
    made = {file: Schemata((checkout.ROOT / file).read_bytes(), mutants) for file, mutants in numbered.items()}
    for file, schemata in made.items():
        checkout.write_if_different(TREE / file, schemata.text.encode())
    return made


def build(faults: list[Fault], made: dict[str, Schemata], tests: list[str]) -> None:
    """Builds the tests, and the extension module, which it copies into the package. Ends the program if a mistake does
    not compile.
    """
    print(f"mutants: building {len(faults)} mistakes", flush=True)
    done = checkout.bazel("build", "--noshow_progress", "--keep_going", EXTENSION, *tests)
    if done.returncode != 0:
        for file, schemata in made.items():
            for number in wrong_mutants(schemata, file, done.stderr):
                print(f"mutants: does not compile: {faults[number]}")
        errors = [line for line in done.stderr.splitlines() if "error:" in line or "ERROR" in line]
        sys.exit("mutants: the copy does not build:\n" + "\n".join(errors[:40]))
    binary = (TREE / "bazel-bin/python_bindings/_lockstep.so").read_bytes()
    checkout.write_if_different(TREE / "python_bindings/lockstep/_lockstep.so", binary)


def python_environment() -> dict[str, str]:
    paths = [TREE / "python_bindings", TREE / "test/python"]
    return dict(os.environ) | {"PYTHONPATH": ":".join(map(str, paths)), "OMP_NUM_THREADS": "1"}


def run_programs(arguments: list[str], environment: dict[str, str], limit: float, stop: threading.Event) -> suite.Run:
    command = [str(TREE / ".venv/bin/python"), str(TREE / PROGRAMS.relative_to(checkout.ROOT)), *arguments]
    return suite.run_command(command, TREE, python_environment() | environment, limit, stop)


@dataclasses.dataclass
class Program:
    name: str
    seconds: float  # without mistakes
    reached: set[int]


def measured_programs(count: int, state: str) -> list[Program]:
    """Returns the programs, the quickest first. Ends this one if any fails without a mistake."""
    remembered = WORK / "seeded_programs.json"
    memory = json.loads(remembered.read_text()) if remembered.is_file() else {}
    if memory.get("state") != state:
        with tempfile.NamedTemporaryFile(prefix="mutants-") as file:
            file.write(bytes(count))
            file.flush()
            environment = {"LOCKSTEP_MUTANTS_REACHED": file.name}
            run = run_programs(["--measure"], environment, LIMIT_OF_TEST, threading.Event())
        if run.outcome != "passed":
            sys.exit(f"mutants: a program {run.outcome} without any mistake:\n{run.output[-3000:]}")
        lines = [json.loads(line) for line in run.output.splitlines() if line.startswith("[")]
        memory = {"state": state, "programs": lines}
        remembered.write_text(json.dumps(memory))
    programs = [Program(name, seconds, set(reached)) for name, seconds, reached in memory["programs"]]
    print(f"mutants: {len(programs)} programs, {sum(each.seconds for each in programs):.0f} s", flush=True)
    return sorted(programs, key=lambda each: each.seconds)


def measured_tests(labels: list[str], count: int, state: str) -> list[suite.Test]:
    tests = [suite.Test(label, ["--gtest_fail_fast"], {}, LIMIT_OF_TEST) for label in labels]
    return suite.measure(tests, count, WORK / "seeded_tests.json", state)


def judged_by_programs(programs: list[Program], fault: Fault, number: int, stop: threading.Event) -> tuple[str, str]:
    """Returns the way in which the programs find the mistake, and the seconds, the program and the message. What a
    comparison in exact arithmetic should find is not compared with NumPy before. Neither are gradients with finite
    differences before they are compared with derivatives, in training steps.
    """
    first = ("mlp/", "loss/", "convnet/", "ops/", "placed/", "each/") if fault.blamed else ("mlp/", "loss/", "convnet/")
    reaching = [program.name for program in programs if number in program.reached]
    reaching.sort(key=lambda name: 0 if name.startswith(first) else 1 if name.startswith("numbers/") else 2)
    if not reaching:
        return "not reached", ""
    run = run_programs(reaching, {"LOCKSTEP_MUTANT": str(number)}, LIMIT, stop)
    begun = re.findall(r"^RUN (.+)", run.output, re.MULTILINE)
    if not begun:
        sys.exit(f"mutants: no program starts with mistake {number}: {run.output[-3000:]}")
    last = begun[-1]
    if run.outcome == "passed":
        return "survived", f"{run.seconds:.1f} s, {len(reaching)} programs"
    if run.outcome == "timed out":
        return "survived", f"{run.seconds:.1f} s, {len(begun)} of {len(reaching)} programs"
    if not run.failed_case:
        return "crashed", f"{run.seconds:.1f} s, {last}: {run.output[-200:].strip()}"
    program, way, message = run.failed_case.split(": ", 2)
    return way, f"{run.seconds:.1f} s, {program}: {message}"


def names_right_pass(fault: Fault, verdict: tuple[str, str]) -> bool:
    return bool(fault.blamed) and f"pass {fault.blamed}: " in verdict[1]


def line_of(fault: Fault, verdicts: dict[str, tuple[str, str]]) -> str:
    line = str(fault)
    if "programs" in verdicts:
        note = " (another pass)" if fault.blamed and verdicts["programs"][0] in ("difference", "refused") else ""
        note = "" if names_right_pass(fault, verdicts["programs"]) else note
        line += f"\n    programs: {verdicts['programs'][0]}{note} {verdicts['programs'][1]}"
    if "tests" in verdicts:
        line += f"\n    tests: {verdicts['tests'][0]} {verdicts['tests'][1]}"
    return line


def summary(faults: list[Fault], verdicts: list[dict[str, tuple[str, str]]]) -> str:
    """Returns the counts of mistakes in passes of compile, and of those in what makes the program of one rank."""
    lines = []
    for title, wanted in (("of the program of all ranks", True), ("of both programs, or of what is assumed", False)):
        chosen = [(f, v) for f, v in zip(faults, verdicts, strict=True) if bool(f.blamed) == wanted]
        ways = collections.Counter(v["programs"][0] for _, v in chosen if "programs" in v)
        counts = ", ".join(f"{ways[way]} {way}" for way in (*WAYS, *MISSED) if ways[way])
        right = sum(names_right_pass(f, v["programs"]) for f, v in chosen if "programs" in v)
        tests = sum(v["tests"][0] not in MISSED for _, v in chosen if "tests" in v)
        tried = sum("tests" in v for _, v in chosen)
        lines.append(f"mutants: {len(chosen)} mistakes {title}: {counts}; the right pass: {right}")
        lines.append(f"mutants: the C++ tests find {tests} of {tried} of these")
    return "\n".join(lines)


def judge_all(
    faults: list[Fault],
    judges: dict[str, Judge],
    journals: dict[str, Journal],
    only: list[str] | None,
    stop: threading.Event,
) -> None:
    """Adds the verdicts that are missing, or those of the keys in `only`, to the journals: as many at once as there are
    cores.
    """
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        tasks = {}
        for name, judge in judges.items():
            for number, fault in enumerate(faults):
                key = fault.mutant.key
                if (key not in journals[name].outcomes) if only is None else (key in only):
                    tasks[pool.submit(judge, number)] = name, number, fault
        try:
            for task in concurrent.futures.as_completed(tasks):
                name, number, fault = tasks[task]
                verdict = task.result()
                journals[name].add(fault.mutant.key, *verdict)
                print(f"[{number + 1}/{len(faults)}] {name}: {fault}: {' '.join(verdict)}", flush=True)
        finally:
            stop.set()
            pool.shutdown(cancel_futures=True)


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", help="keys of the only mistakes to try, separated by commas; tries them again")
    parser.add_argument("--skip", choices=("programs", "tests"), help="leave out one of the two verdicts")
    parser.add_argument("--tests", default="", help="regular expression on the labels of the tests that run")
    parser.add_argument("--fresh", action="store_true", help="forget earlier runs")
    return parser.parse_args()


def main() -> int:
    arguments = parse_arguments()
    for end in (signal.SIGINT, signal.SIGTERM):
        signal.signal(end, lambda *_: sys.exit("mutants: interrupted; the same command continues from here"))
    state = checkout.copy_checkout()
    faults = read_faults(TABLE.read_text(), lambda file: (checkout.ROOT / file).read_bytes())
    tests = [] if arguments.skip == "tests" else [label for label in TESTS if re.search(arguments.tests, label)]
    build(faults, put_in(faults), tests)
    stop = threading.Event()
    numbers = json.dumps([fault.mutant.key for fault in faults])  # measurements say which numbers are reached
    judges: dict[str, Judge] = {}
    if arguments.skip != "programs":
        texts = "".join(path.read_text() for path in sorted(PROGRAMS.parent.glob("seeded_*.[pi][yr]")))
        programs = measured_programs(len(faults), state + numbers + texts)
        judges["programs"] = lambda number: judged_by_programs(programs, faults[number], number, stop)
    if arguments.skip != "tests":
        measured = measured_tests(tests, len(faults), state + numbers)
        judges["tests"] = lambda number: suite.judge(measured, number, stop)
    journals = {name: Journal(WORK / f"seeded_{name}.jsonl", state, arguments.fresh) for name in ("programs", "tests")}
    judge_all(faults, judges, journals, arguments.only.split(",") if arguments.only else None, stop)
    keys = [fault.mutant.key for fault in faults]
    verdicts = [{name: of.outcomes[key] for name, of in journals.items() if key in of.outcomes} for key in keys]
    lines = [line_of(fault, verdict) for fault, verdict in zip(faults, verdicts, strict=True)]
    (WORK / "seeded.txt").write_text("\n".join([*lines, summary(faults, verdicts)]) + "\n")
    print(summary(faults, verdicts))
    print("mutants: build/mutants/seeded.txt has the verdicts on each")
    return 0


if __name__ == "__main__":
    sys.exit(main())
