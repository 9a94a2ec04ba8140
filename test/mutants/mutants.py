#!/usr/bin/env python3
"""Measures the tests: puts plausible mistakes into the code, one at a time, and counts how many the tests notice.

    make mutants ARGS=core/ops/rules.cc                      all mistakes in this file
    make mutants ARGS="--sample 15 passes/**/*.cc"           a sample, always the same
    make mutants ARGS="--list core/ops/rules.cc"             lists them without running tests
    make mutants ARGS="--only 8ad987cc core/ops/rules.cc"    one mistake, by its key in a report or a list

It works on a copy of the checkout, build/mutants/tree. All mistakes of the files are compiled into it at once, each
behind a switch, so that there is one build; mistakes that do not compile are left out. A test run without mistakes
records which tests reach which mistake. Each mistake is then tried with these tests, the quickest first, until one
fails or exceeds Bazel's timeout. A mistake that survives needs a test, or a line in equivalent.txt with the reason.
Only the C++ tests run, as `make test` runs them, or with LOCKSTEP_TEST_EVERYTHING=1 as `make test-everything` does. An
interrupted run continues where it was, until a source changes.
"""

import argparse
import concurrent.futures
import hashlib
import importlib
import os
import pathlib
import re
import signal
import subprocess
import sys
import threading

import checkout
import suite
from report import EQUIVALENT, MISSED, Journal, Verdict, read_equivalent, summary, write_report
from schemata import Schemata, wrong_mutants
from source import Mutant

LIBCLANG = checkout.WORK / "libclang"
REQUIREMENTS = pathlib.Path(__file__).with_name("requirements.txt")


def load_finder():
    """Returns the module find. Installs the packages that it needs into build/mutants/libclang, once."""
    wanted = REQUIREMENTS.read_text()
    stamp = LIBCLANG / "installed.txt"
    if not stamp.is_file() or stamp.read_text() != wanted:
        print(f"mutants: installing {wanted.strip()} into {LIBCLANG.relative_to(checkout.ROOT)}", flush=True)
        command = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--upgrade"]
        subprocess.run([*command, "--target", str(LIBCLANG), "-r", str(REQUIREMENTS)], check=True)
        stamp.write_text(wanted)
    sys.path.insert(0, str(LIBCLANG))
    return importlib.import_module("find")


def find_all(compilations: list[checkout.Compilation]) -> list[Mutant]:
    finder = load_finder()
    mutants = []
    for compilation in compilations:
        path = checkout.TREE / compilation.file
        mutants += finder.find_mutants(compilation.file, path, compilation.for_clang())
    return mutants


def put_in(compilation: checkout.Compilation, source: bytes, numbered: dict[int, Mutant]) -> set[int]:
    """Writes the file with these mutants into the copy. Returns the numbers of the mutants that do not compile."""
    live = {number: mutant for number, mutant in numbered.items() if mutant.file == compilation.file}
    dropped: set[int] = set()
    while True:
        schemata = Schemata(source, list(live.items()))
        checkout.write_if_different(checkout.TREE / compilation.file, schemata.text.encode())
        messages = compilation.check()
        if not messages:
            return dropped
        wrong = wrong_mutants(schemata, compilation.file, messages) & live.keys()
        if not wrong:
            sys.exit(f"mutants: {compilation.file} does not compile, and no mutant is to blame:\n{messages[:3000]}")
        dropped |= wrong
        live = {number: mutant for number, mutant in live.items() if number not in wrong}


def sampled(mutants: list[Mutant], size: int, seed: str) -> list[Mutant]:
    """Returns `size` mutants of each file, the same for the same seed as long as they exist."""
    result = []
    for file in dict.fromkeys(mutant.file for mutant in mutants):
        of_file = [mutant for mutant in mutants if mutant.file == file]
        of_file.sort(key=lambda mutant: hashlib.sha1((seed + mutant.key).encode()).digest())
        result += sorted(of_file[:size], key=lambda mutant: mutant.begin)
    return result


def chosen(mutants: list[Mutant], arguments: argparse.Namespace) -> list[Mutant]:
    if arguments.only:
        keys = arguments.only.split(",")
        unknown = set(keys) - {mutant.key for mutant in mutants}
        if unknown:
            sys.exit(f"mutants: there is no mutant {', '.join(sorted(unknown))} in {', '.join(arguments.files)}")
        return [mutant for mutant in mutants if mutant.key in keys]
    return sampled(mutants, arguments.sample, arguments.seed) if arguments.sample else mutants


def build(tests: list) -> None:
    print(f"mutants: building {len(tests)} tests", flush=True)
    options = ["--noshow_progress", "--keep_going", "--output_filter=^//nothing"]  # the switches cause many warnings
    # A mutant that misuses the standard library ends the program, instead of perhaps going unnoticed.
    options.append("--copt=-D_GLIBCXX_ASSERTIONS")
    done = checkout.bazel("build", *options, *[test.label for test in tests], capture=False)
    if done.returncode != 0:
        sys.exit("mutants: the copy does not build")


def run_all(tests: list, numbered: dict[int, Mutant], journal: Journal, jobs: int) -> list[Verdict]:
    stop = threading.Event()
    verdicts = []
    with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
        tasks = {pool.submit(suite.judge, tests, number, stop): mutant for number, mutant in numbered.items()}
        try:
            for task in concurrent.futures.as_completed(tasks):
                verdict = Verdict(tasks[task], *task.result())
                journal.add(verdict.mutant.key, verdict.outcome, verdict.by)
                verdicts.append(verdict)
                print(f"[{len(verdicts)}/{len(tasks)}] {verdict}", flush=True)
        finally:  # no started process stays
            stop.set()
            pool.shutdown(cancel_futures=True)
    return verdicts


def known(mutants: list[Mutant], journal: Journal, again: bool) -> dict[str, Verdict]:
    """Returns the verdicts that need no run: equivalent mutants, and those in the journal."""
    equivalent = read_equivalent(EQUIVALENT.read_text())
    verdicts = {}
    for mutant in mutants:
        reason = equivalent.get((mutant.file, mutant.function, mutant.before, mutant.after))
        if reason is not None:
            verdicts[mutant.key] = Verdict(mutant, "equivalent", reason)
        elif mutant.key in journal.outcomes and not again:
            verdicts[mutant.key] = Verdict(mutant, *journal.outcomes[mutant.key])
    return verdicts


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="+", help="C++ sources (.cc) of the checkout")
    parser.add_argument("--sample", type=int, help="number of mutants to try of each file (default: all)")
    parser.add_argument("--seed", default="0", help="seed of the choice of --sample")
    parser.add_argument("--only", help="names of the only mutants to try, separated by commas")
    parser.add_argument("--list", action="store_true", help="list the mutants and run nothing")
    parser.add_argument("--fresh", action="store_true", help="forget earlier runs")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="number of mutants to try at a time")
    parser.add_argument("--skip", default="(?!)", help="regular expression on the labels of tests that are not run")
    arguments = parser.parse_args()
    arguments.files = sorted(set(arguments.files))
    for file in arguments.files:
        if not file.endswith(".cc") or not (checkout.ROOT / file).is_file():
            parser.error(f"{file}: expected the path of a .cc file from the root of the checkout")
    return arguments


def main() -> int:
    arguments = parse_arguments()
    for end in (signal.SIGINT, signal.SIGTERM):
        signal.signal(end, lambda *_: sys.exit("mutants: interrupted; the same command continues from here"))
    state = checkout.copy_checkout() + os.environ.get(suite.EVERYTHING, "")
    output_base = checkout.ask_bazel("info", "output_base").strip()
    compilations = [checkout.Compilation(file, output_base) for file in arguments.files]
    sources = {each.file: (checkout.ROOT / each.file).read_bytes() for each in compilations}
    mutants = find_all(compilations)
    wanted = chosen(mutants, arguments)
    if arguments.list:
        print("\n".join(map(str, wanted)))
        return 0

    journal = Journal(checkout.WORK / "journal.jsonl", state, arguments.fresh)
    verdicts = known(wanted, journal, again=bool(arguments.only))
    # All mutants are built, even those that are not run, so that one build serves every choice.
    numbers = dict(enumerate(mutants))
    for compilation in compilations:
        for number in put_in(compilation, sources[compilation.file], numbers):
            mutant = numbers.pop(number)
            verdicts[mutant.key] = Verdict(mutant, "not compiled")
    to_run = {number: mutant for number, mutant in numbers.items() if mutant in wanted and mutant.key not in verdicts}
    if to_run:
        tests = [test for test in suite.tests_of(arguments.files) if not re.search(arguments.skip, test.label)]
        build(tests)
        tests = suite.measure(tests, len(mutants), checkout.WORK / "measured.json", state + " ".join(arguments.files))
        for verdict in run_all(tests, to_run, journal, arguments.jobs):
            verdicts[verdict.mutant.key] = verdict
    of_wanted = [verdicts[mutant.key] for mutant in wanted]
    write_report(checkout.WORK, of_wanted, sources)
    for verdict in of_wanted:
        if verdict.outcome in MISSED:
            print(verdict)
    print(summary(of_wanted))
    print("mutants: build/mutants/report.txt has a line for each, build/mutants/missed.diff those that no test noticed")
    return 0


if __name__ == "__main__":
    sys.exit(main())
