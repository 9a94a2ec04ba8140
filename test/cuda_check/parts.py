"""The parts of the check that pass or fail. Each is a function of the machine and the report, and adds rows to it."""

from __future__ import annotations

import concurrent.futures
import contextlib
import itertools
import json
import math
import os
import re
import shutil
import signal
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from check_report import FAILED, LEFT_OUT, MEASURED, PASSED, Report, shortened
from machine import ROOT, Done, Machine, OutOfTime, kill_group
from specs import LOSSES

STEPS = 50
# The tolerance of losses, relative to those that PyTorch computes in f64. Small differences grow from step to step by a
# factor that depends on the network, so PyTorch's own error in the same precision sets the limit: the worst of several
# runs with cuDNN, whose order of sums varies, and of one without. In five runs with cuDNN on GPUs, LeNet's error was
# between 0.00095 and 0.0023.
TIMES_OWN = 2.0
FLOORS = {"f32": 1e-5, "bf16": 1e-3}
CONFORMANCE = "cuda_conformance_test"
OP_CASES = "*OpCases*"  # the suite with one case per row of the op cases; the other suites are of whole programs
# The error that the other ranks must report about rank 1, and the seconds they may take. Where a rank stops, the
# timeout is 10 s.
NAMES = {"kill": (r"rank 1 on host [^;]* died", 5.0), "stop": (r"for rank 1 on host", 15.0)}
NAMES["graph"] = NAMES["kill"]
SHARING = {"NCCL_MULTI_RANK_GPU_ENABLE": "1", "NCCL_NVLS_ENABLE": "0"}  # these let NCCL run several ranks on one GPU


def at_once(run: Callable[[str], None], names: Sequence[str], threads: int) -> None:
    with concurrent.futures.ThreadPoolExecutor(threads) as pool:
        list(pool.map(run, names))  # raises the exception of a thread


def doctor(machine: Machine, report: Report) -> None:
    command = [machine.ours_python, "-s", "-m", "lockstep.doctor"]
    done = machine.run("doctor", command, machine.ours, 30)
    missing = done.out.partition("for GPUs")[2]
    report.add("doctor", "exit code", PASSED if done.code == 0 else FAILED, str(done.code))
    for line in done.out.splitlines():
        if re.match(r"(GPU|cuBLASLt|cuDNN|NVRTC|NCCL|CUDA)", line):
            report.add("doctor", line[:14].strip(), MEASURED, re.sub(r"\s+/\S+$", "", line[14:]))
    if machine.backend == "cuda":
        report.add(
            "doctor", "what GPUs need", PASSED if "everything is there" in missing else FAILED, shortened(missing)
        )


class Suite:
    """The results of GoogleTest programs over all shards: cases that passed, failed and were skipped."""

    def __init__(self) -> None:
        self.passed, self.skipped = 0, 0
        self.failed: list[str] = []
        self.wrong: list[str] = []  # programs that ended abnormally
        self.left_out = ""

    def add(self, name: str, done: Done, results: Path) -> None:
        reason = re.search(r"LEFT OUT: (.*)", done.out)
        self.left_out = reason.group(1) if reason else self.left_out
        if not results.exists():
            cases = re.findall(r"\[ RUN      \] (\S+)", done.out)
            self.wrong.append(f"{name} ended with {done.code} in {cases[-1] if cases else 'no case'}")
            self.passed += done.out.count("[       OK ]")
            return
        failures = 0
        for group in json.loads(results.read_text())["testsuites"]:
            for case in group["testsuite"]:
                if case.get("failures"):
                    failures += 1
                    self.failed.append(f"{group['name']}.{case['name']}")
                elif case["result"] == "SKIPPED":
                    self.skipped += 1
                elif case["result"] == "COMPLETED":
                    self.passed += 1
        if done.code != 0 and failures == 0:
            self.wrong.append(f"{name} ended with {done.code}")

    def outcome(self) -> str:
        if self.failed or self.wrong:
            return FAILED
        return PASSED if self.passed else LEFT_OUT

    def text(self) -> str:
        said = f"{self.passed} passed, {len(self.failed)} failed, {self.skipped} skipped"
        details = [*self.wrong, *([f"failed: {', '.join(self.failed)}"] if self.failed else []), self.left_out]
        return shortened("; ".join(filter(None, [said, *details])), 1500)


def run_suite(machine: Machine, program: str, logs: str, shards: int = 1, arguments: tuple[str, ...] = ()) -> Suite:
    """Runs a GoogleTest program within the part's time limit, its cases divided among processes. Their logs' names
    start with `logs`.
    """
    suite = Suite()

    def run(shard: int) -> tuple[str, Done | OutOfTime, Path]:
        name = f"{logs}.{shard}"
        results = machine.scratch / f"{name}.json"
        results.unlink(missing_ok=True)
        env = {**machine.ours, "GTEST_TOTAL_SHARDS": str(shards), "GTEST_SHARD_INDEX": str(shard)}
        env["GTEST_OUTPUT"] = f"json:{results}"
        try:
            return name, machine.run(name, [ROOT / "bin" / program, *arguments], env, machine.left()), results
        except OutOfTime as late:
            return name, late, results

    with concurrent.futures.ThreadPoolExecutor(shards) as pool:
        for name, done, results in pool.map(run, range(shards)):
            if isinstance(done, OutOfTime):
                log = (machine.raw / f"{name}.log").read_text(errors="replace")
                suite.passed += log.count("[       OK ]")
                suite.wrong.append(str(done))
            else:
                suite.add(name, done, results)
    return suite


def alone(machine: Machine, program: str, cases: list[str], arguments: tuple[str, ...]) -> str:
    """Reports which of the failed cases also fail in a process of their own. The others failed because of state left by
    an earlier case.
    """
    still = []
    for number, case in enumerate(cases):
        if machine.left() < 10:
            return f"{len(still)} of the first {number} also fail alone: {', '.join(still)}"
        try:
            command = [ROOT / "bin" / program, *arguments, f"--gtest_filter={case}"]
            if machine.run(f"{program}.alone.{number}", command, machine.ours, 20).code != 0:
                still.append(case)
        except OutOfTime:
            still.append(f"{case} (hangs)")
    return f"{len(still)} of {len(cases)} also fail alone: {', '.join(still)}"


def _report_suite(machine: Machine, report: Report, part: str, program: str, suite: Suite, *arguments: str) -> None:
    report.add(part, program, suite.outcome(), suite.text())
    if suite.failed:
        report.add(
            part, f"{program}, again", FAILED, shortened(alone(machine, program, suite.failed[:12], arguments), 1500)
        )


def conformance(machine: Machine, report: Report, part: str, logs: str, cases: str) -> None:
    """Runs the cases that GoogleTest's filter `cases` selects, divided among one process per processor, at most 16."""
    arguments = (f"--backend={machine.backend}", f"--gtest_filter={cases}")
    shards = 1 if machine.tiny else max(1, min(16, os.cpu_count() or 1))
    suite = run_suite(machine, CONFORMANCE, logs, shards, arguments)
    _report_suite(machine, report, part, CONFORMANCE, suite, arguments[0])


def op_cases(machine: Machine, report: Report) -> None:
    conformance(machine, report, "op cases against the interpreter", "ops", OP_CASES)


def programs(machine: Machine, report: Report) -> None:
    """Checks training steps on one rank and on several, which share the GPU and communicate through the host; random
    graphs; and exactness.
    """
    conformance(machine, report, "programs against the interpreter", "programs", f"-{OP_CASES}")


def nccl(machine: Machine, report: Report) -> None:
    part, program = "NCCL's communicator", "nccl_gpu_test"
    machine.ours |= SHARING
    try:
        # A case creates communicators, which takes a second with two ranks.
        suite = run_suite(machine, program, program, shards=4)
    finally:
        for name in SHARING:
            machine.ours.pop(name, None)
    if suite.skipped and not suite.left_out:
        log = (machine.raw / f"{program}.0.log").read_text(errors="replace")
        reasons = re.findall(r"Skipped\n(.*)", log)
        suite.left_out = reasons[-1] if reasons else ""
    _report_suite(machine, report, part, program, suite)


def farthest(expected: np.ndarray, found: np.ndarray) -> tuple[float, int]:
    """The largest relative difference in any of these runs, and its step; a NaN counts as infinite."""
    difference = np.max(np.abs(found - expected) / np.abs(expected), axis=0)
    difference = np.where(np.isnan(difference), np.inf, difference)
    worst = int(np.argmax(difference))
    return float(difference[worst]), worst


def lacks_losses(expected: np.ndarray, found: list[list[float]]) -> str:
    if found and all(len(losses) == len(expected) for losses in found):
        return ""
    return f"{[len(losses) for losses in found]} losses, expected {len(expected)} of each rank"


def compare_losses(expected: np.ndarray, found: list[list[float]], tolerance: float) -> tuple[bool, str]:
    """Returns True if the losses of all ranks are within `tolerance` of the expected ones, and a text with the
    distance.
    """
    if lacks := lacks_losses(expected, found):
        return False, lacks
    difference, step = farthest(expected, np.array(found))
    text = f"largest relative difference {difference:.2g} in step {step}, tolerance {tolerance:g}; "
    return difference <= tolerance, text + f"losses {expected[0]:.4f} to {expected[-1]:.4f}"


def judge_losses(
    exact: np.ndarray, own: np.ndarray, found: list[list[float]], precision: str = "f32"
) -> tuple[bool, str]:
    """Returns True if the losses of all ranks are about as close to those in f64 as PyTorch's own in this precision, and
    a text with the distance.
    """
    if lacks := lacks_losses(exact, found):
        return False, lacks
    distance, step = farthest(exact, np.array(found))
    of_torch = [farthest(exact, run[None])[0] for run in own]
    floor = FLOORS[precision]
    bound = TIMES_OWN * max(of_torch) + floor
    text = f"largest relative distance from PyTorch in f64: Lockstep {distance:.2g} in step {step}; "
    text += f"PyTorch in {precision} {max(of_torch[:-1]):.2g}, without cuDNN and oneDNN {of_torch[-1]:.2g}; "
    text += f"bound {bound:.2g}, "
    text += f"which is {TIMES_OWN:g} times the larger and {floor:g}; losses {exact[0]:.4f} to {exact[-1]:.4f}"
    return distance <= bound < math.inf, text


def losses_of(machine: Machine, report: Report, name: str) -> None:
    part = "losses against PyTorch"
    device = "cuda" if machine.backend == "cuda" else "cpu"
    file, left = machine.scratch / f"{name}.npz", machine.left
    arguments = ("losses", name, file, str(STEPS), device)
    theirs = machine.run_theirs(f"losses.torch.{name}", "torch_peer.py", *arguments, seconds=left())
    if theirs.code != 0:
        return report.add(part, name, FAILED, f"PyTorch's run failed: {shortened(theirs.out[-600:])}")
    for precision, ranks in itertools.product(FLOORS, (1, 2)):
        what = f"{name}, {precision}, {STEPS} steps, {ranks} rank{'s' if ranks > 1 else ''}"
        out = machine.scratch / f"{name}.{precision}.{ranks}.json"
        arguments = ("losses", name, file, machine.backend, str(ranks), precision, out)
        done = machine.run_ours(f"losses.{name}.{precision}.{ranks}", *arguments, seconds=left())
        if done.code != 0:
            report.add(part, what, FAILED, f"exit code {done.code}: {shortened(done.out[-600:])}")
            continue
        of_torch = np.load(file)
        close, text = judge_losses(of_torch["losses"], of_torch[precision], json.loads(out.read_text()), precision)
        report.add(part, what, PASSED if close else FAILED, text)


def losses(machine: Machine, report: Report) -> None:
    part = "losses against PyTorch"
    if machine.torch is None:
        return report.add(
            part, ", ".join(LOSSES), LEFT_OUT, "the machine's Python has no torch; --python names another"
        )

    def run(name: str) -> None:
        try:
            losses_of(machine, report, name)
        except OutOfTime as late:
            report.add(part, name, FAILED, str(late))

    at_once(run, LOSSES, 1 if machine.tiny else len(LOSSES))


def judge_survivors(answers: dict[int, dict[str, float | str]], ranks: int, mode: str) -> tuple[bool, str]:
    """Returns True if all ranks except rank 1 blamed rank 1 in time."""
    blame, bound = NAMES[mode]
    survivors = [rank for rank in range(ranks) if rank != 1]
    silent = [rank for rank in survivors if rank not in answers]
    if silent:
        return False, f"of ranks {silent} nothing was heard"
    slowest = max(float(answers[rank]["seconds"]) for rank in survivors)
    said = [str(answers[rank]["message"]) for rank in survivors]
    blames = [found for found in (re.search(blame, message) for message in said) if found]
    shown = blames[0].string[blames[0].start() :] if blames else said[0]
    text = f"named by {len(blames)} of {len(survivors)}, the last after {slowest:.1f} s (bound {bound:g} s): {shown}"
    return len(blames) == len(survivors) and slowest <= bound, shortened(text)


def failing_rank(machine: Machine, mode: str, ranks: int = 4) -> tuple[bool, str]:
    folder = machine.scratch / f"rank-{mode}"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    log = machine.raw / f"rank.{mode}.log"
    command = [ROOT / "bin/mpirun", "--oversubscribe", "--enable-recovery", "-np", str(ranks)]
    words = ["graph"] if mode == "graph" else ["rank", mode]
    command += [machine.ours_python, "-s", Path(__file__).with_name("ours.py"), *words, folder, machine.backend]
    job = machine.start(command, machine.ours | (SHARING if mode == "graph" else {}), log)
    end = time.monotonic() + min(60, machine.left())
    survivors = [folder / f"{rank}.json" for rank in range(ranks) if rank != 1]
    while time.monotonic() < end and not all(file.exists() for file in survivors) and job.poll() is None:
        time.sleep(0.1)
    time.sleep(0.5)  # until a file that is being written is complete
    # The ranks of mpirun have sessions of their own, so a stopped rank would stay.
    with contextlib.suppress(OSError, ValueError):
        os.kill(int((folder / "victim").read_text()), signal.SIGKILL)
    kill_group(job)
    if machine.left() <= 0 and not all(file.exists() for file in survivors):
        raise OutOfTime(f"rank.{mode} was still running when the time was over; see raw/{log.name}")
    answers = {int(file.stem): json.loads(file.read_text()) for file in folder.glob("*.json")}
    if not (folder / "victim").exists():
        return False, f"rank 1 never came so far: {shortened(log.read_text(errors='replace')[-600:])}"
    return judge_survivors(answers, ranks, mode)


def failing_ranks(machine: Machine, report: Report) -> None:
    for mode, signal_name in (("kill", "SIGKILL"), ("stop", "SIGSTOP")):
        passed, text = failing_rank(machine, mode)
        report.add("ranks that fail", f"{signal_name} of rank 1 of 4, under mpirun", PASSED if passed else FAILED, text)


def judge_graph(losses: dict[int, list[list[float]]], log: str) -> tuple[str, str]:
    """Judges whether two ranks' steps as a CUDA graph with NCCL's collectives gives the losses of single steps."""
    if by_host := re.search(r"collectives go through the host.*", log):
        return LEFT_OUT, shortened(by_host[0])
    if apart := re.search(r"the program runs step by step.*", log):
        return FAILED, shortened(apart[0])
    if sorted(losses) != [0, 1] or any(len(each) != 5 for pair in losses.values() for each in pair):
        return FAILED, f"ranks {sorted(losses)} ran five steps each way: {shortened(log[-600:])}"
    passed, texts = True, []
    for rank, (one_by_one, graph) in sorted(losses.items()):
        close, text = compare_losses(np.array(one_by_one), [graph], 1e-5)
        passed = passed and close
        texts.append(f"rank {rank}: {text}")
    return PASSED if passed else FAILED, "; ".join(texts)


def nccl_graph(machine: Machine, report: Report) -> None:
    """Runs two ranks that share the GPU, with NCCL in a CUDA graph. Then one is killed, and the other must not wait for
    ever.
    """
    part = "NCCL in a CUDA graph"
    if machine.backend != "cuda":
        return report.add(part, "two ranks", LEFT_OUT, "it is for GPUs")
    ended, text = failing_rank(machine, "graph", 2)
    folder = machine.scratch / "rank-graph"
    losses = {int(file.stem): json.loads(file.read_text()) for file in folder.glob("*.losses")}
    outcome, said = judge_graph(losses, (machine.raw / "rank.graph.log").read_text(errors="replace"))
    report.add(part, "two ranks that share the GPU, 5 steps", outcome, said)
    if outcome == LEFT_OUT:  # then the part that ended was not a graph
        return None
    return report.add(part, "SIGKILL of rank 1, rank 0 in a graph", PASSED if ended else FAILED, text)


def sanitizer(machine: Machine, report: Report) -> None:
    part = "compute-sanitizer"
    path = f"{machine.theirs.get('PATH', '')}:/usr/local/cuda/bin"
    program = shutil.which("compute-sanitizer", path=path)
    if machine.backend != "cuda" or program is None:
        reason = "it is for GPUs" if machine.backend != "cuda" else "it is not on the PATH, nor in /usr/local/cuda/bin"
        return report.add(part, "a training step", LEFT_OUT, reason)
    step = [ROOT / "bin/lockstep-run", ROOT / "tools/testdata/mlp_step.ir", "--backend=cuda", "--compare"]

    def run(tool: str) -> None:
        command = [program, f"--tool={tool}", "--error-exitcode=9", *step]
        try:
            done = machine.run(f"sanitizer.{tool}", command, machine.ours, machine.left())
        except OutOfTime as late:
            return report.add(part, tool, FAILED, str(late))
        summary = re.findall(r"(?:ERROR|RACECHECK) SUMMARY: (.*)", done.out)
        if not summary:
            return report.add(part, tool, LEFT_OUT, f"it did not run: {shortened(done.out[-400:])}")
        clean = done.code == 0 and re.match(r"0 (errors|hazards)", summary[-1])
        return report.add(part, tool, PASSED if clean else FAILED, f"{summary[-1]}, exit code {done.code}")

    at_once(run, ("memcheck", "racecheck", "initcheck", "synccheck"), 4)
