"""The logic of tools/cuda_check.sh: errors, timeouts and missing parts are reported, and the other parts run. Needs no
GPU.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from lockstep._launch.supervise import wait_until

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "test/cuda_check"
sys.path.append(str(FOLDER))
import cuda_check
import measures
import parts
import shared_libraries
from check_report import FAILED, LEFT_OUT, MEASURED, PASSED, Report
from machine import Contestant, Done, Machine, OutOfTime


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path, "cpu", sys.executable)


@pytest.fixture
def report(tmp_path: Path) -> Report:
    return Report(tmp_path, {"date": "today"})


def outcomes(report: Report) -> dict[str, str]:
    return {f"{row.part}: {row.what}": row.outcome for row in report.rows}


def ends(process: int) -> bool:
    """Returns True if the process has ended or ends soon."""

    def has_ended() -> bool:
        try:
            return "State:\tZ" in Path(f"/proc/{process}/status").read_text()
        except OSError:
            return True

    return wait_until(has_ended, 10)


def test_a_part_that_is_late_or_breaks_off_is_reported_and_the_others_run(machine: Machine, report: Report) -> None:
    def late(machine: Machine, report: Report) -> None:
        machine.run("sleeps", ["sleep", "60"], machine.ours, 60)

    def broken(machine: Machine, report: Report) -> None:
        raise ValueError("no such luck")

    def good(machine: Machine, report: Report) -> None:
        report.add("good", "all", PASSED, "fine")

    chosen = {name: cuda_check.Part(run, 0.1) for name, run in {"late": late, "broken": broken, "good": good}.items()}
    begin = time.monotonic()
    cuda_check.run_parts(machine, report, chosen, 60)
    assert time.monotonic() - begin < 30
    assert outcomes(report) == {"late: not done in time": FAILED, "broken: broke off": FAILED, "good: all": PASSED}
    assert "sleeps was still running" in report.rows[0].result and "no such luck" in report.rows[1].result
    assert not report.passed()


def test_the_document_has_the_times_of_the_parts(machine: Machine, report: Report, tmp_path: Path) -> None:
    cuda_check.run_parts(machine, report, {"quick": cuda_check.Part(lambda machine, report: None, 10)}, 60)
    text = (tmp_path / "gpu_results.md").read_text()
    assert text.startswith("# Results of the check on a machine with a GPU\n")
    assert "| date | today |\n| time of the parts | quick 0 s |\n" in text


def test_the_default_parts_have_all_that_decides_and_the_rest_comes_on_request() -> None:
    assert cuda_check.DEFAULT == [
        "doctor", "ops", "programs", "losses", "nccl", "nccl-graph", "ranks", "gpt-bf16", "resnet50-bf16", "bandwidth"
    ]  # fmt: skip
    assert set(cuda_check.PARTS) - set(cuda_check.DEFAULT) == {
        "profile", "sanitizer", "gpt", "resnet50", "lenet", "mlp", "resnet50-f32"
    }  # fmt: skip
    assert cuda_check.SECONDS == 300
    # Each part that decides can use its whole limit before the measurements begin.
    before = cuda_check.DEFAULT[: cuda_check.DEFAULT.index("nccl")]
    assert sum(cuda_check.PARTS[name].seconds for name in before) < cuda_check.SECONDS


def test_precisions_reach_the_contestants(machine: Machine) -> None:
    for name, race in measures.RACES.items():
        assert measures.torch_command(machine, race, "eager")[-1] == race.precision, name
        assert measures.jax_command(machine, race)[-1] == race.precision, name
        assert race.precision in ("f32", "TF32", "bf16")


def test_what_comes_after_the_end_is_left_out(machine: Machine, report: Report) -> None:
    cuda_check.run_parts(machine, report, {"second": cuda_check.Part(parts.doctor, 10)}, 1)
    assert outcomes(report) == {"second: all of it": LEFT_OUT}
    assert not report.passed(), "nothing was checked"


def test_parts_run_in_the_order_in_which_they_are_named() -> None:
    assert list(cuda_check.parts_of("ops,losses,,doctor")) == ["ops", "losses", "doctor"]
    with pytest.raises(SystemExit, match="there is no part speed; there are doctor, ops"):
        cuda_check.parts_of("ops,speed")


def test_what_does_not_end_is_killed_with_its_children(machine: Machine, tmp_path: Path) -> None:
    file = tmp_path / "child"
    with pytest.raises(OutOfTime, match="still running after 1 s"):
        machine.run("family", ["sh", "-c", f"sleep 60 & echo $! > {file}; wait"], machine.ours, 1)
    assert ends(int(file.read_text()))


def test_rows_are_on_disk_at_once(report: Report, tmp_path: Path) -> None:
    report.add("a", "b", PASSED, "a | b\nc")
    assert json.loads((tmp_path / "results.jsonl").read_text()) == {
        "part": "a", "what": "b", "outcome": PASSED, "result": "a | b c"
    }  # fmt: skip
    assert "| a | b | passed | a \\| b c |" in (tmp_path / "gpu_results.md").read_text()


def test_the_run_has_passed_if_something_ran_and_nothing_failed(tmp_path: Path) -> None:
    for outcomes_of, passed in [
        ([], False), ([LEFT_OUT], False), ([MEASURED, LEFT_OUT], True), ([PASSED], True), ([PASSED, FAILED, MEASURED], False)
    ]:  # fmt: skip
        report = Report(tmp_path, {})
        for outcome in outcomes_of:
            report.add("a", "b", outcome, "c")
        assert report.passed() is passed, outcomes_of


@pytest.mark.parametrize(
    ("found", "close"),
    [
        ([[2.0, 1.0], [2.0, 1.0005]], True),
        ([[2.0, 1.0], [2.0, 1.01]], False),
        ([[2.0, float("nan")]], False),
        ([[2.0]], False),
        ([], False),
    ],
)
def test_losses_that_differ_are_found(found: list[list[float]], close: bool) -> None:
    expected = np.array([2.0, 1.0])
    assert parts.compare_losses(expected, found, 1e-3)[0] is close
    own = np.array([[2.0, 1.0], [2.0, 1.0004]])
    assert parts.judge_losses(expected, own, found)[0] is close


def test_how_far_losses_may_be_follows_from_pytorchs_own_distance() -> None:
    exact = np.array([2.0, 1.0])
    own = np.array([[2.0, 1.001], [2.0, 1.002]])
    assert parts.judge_losses(exact, own, [[2.0, 1.0039], [2.0, 0.9961]])[0]
    close, text = parts.judge_losses(exact, own, [[2.0, 1.0041]])
    assert not close
    for said in ("in f64: Lockstep 0.0041 in step 1", "in f32 0.001, without cuDNN and oneDNN 0.002", "bound 0.004"):
        assert said in text
    several = np.array([[2.0, 1.003], *own])
    close, text = parts.judge_losses(exact, several, [[2.0, 1.0059]])
    assert close
    assert "in f32 0.003, without cuDNN and oneDNN 0.002" in text
    same = np.array([exact, exact])
    assert parts.judge_losses(exact, same, [[2.0, 1.000009]])[0], "the floor"
    assert not parts.judge_losses(exact, same, [[2.0, 1.000011]])[0]
    assert not parts.judge_losses(exact, np.array([[2.0, float("nan")]] * 2), [[2.0, 1.0]])[0], (
        "PyTorch's NaN gives no limit"
    )


def test_a_wrong_loss_fails_the_part(machine: Machine, report: Report, monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs the part itself, with replacements for its two programs."""
    expected = np.linspace(2, 1, parts.STEPS)

    def theirs(log: str, script: str, what: str, name: str, file: Path, *rest: str, seconds: float) -> Done:
        np.savez(file, losses=expected, f32=[expected, expected], bf16=[expected, expected * 1.01])
        return Done(0, "", file)

    def ours(
        log: str, what: str, name: str, file: Path, backend: str, ranks: str, precision: str, out: Path, seconds: float
    ) -> Done:
        wrong = {("gpt-small", "2", "f32"): 0.002, ("mlp-adam", "1", "bf16"): 0.05}.get((name, ranks, precision), 0.0)
        if precision == "bf16" and not wrong:
            wrong = 0.002  # nearer than PyTorch's own
        out.write_text(json.dumps([list(expected * (1 + wrong))] * int(ranks)))
        return Done(3 if (name, ranks, precision) == ("lenet", "1", "f32") else 0, "out of luck", file)

    machine.torch = "2"
    monkeypatch.setattr(machine, "run_theirs", theirs)
    monkeypatch.setattr(machine, "run_ours", ours)
    parts.losses(machine, report)
    failed = [row for row in report.rows if row.outcome == FAILED]
    assert [row.what for row in failed] == [
        "lenet, f32, 50 steps, 1 rank", "mlp-adam, bf16, 50 steps, 1 rank", "gpt-small, f32, 50 steps, 2 ranks"
    ]  # fmt: skip
    assert "out of luck" in failed[0].result and "PyTorch in bf16 0, without cuDNN and oneDNN 0.01" in failed[1].result
    assert "0.002" in failed[2].result
    assert len(report.rows) == 4 * len(parts.LOSSES)


def test_survivors_have_to_blame_the_right_rank_in_time() -> None:
    died = "rank 1 on host a (process 7) died while rank 0 on host a waited in all_reduce"
    right = {rank: {"seconds": 1.0, "message": died} for rank in (0, 2)}
    assert parts.judge_survivors(right, 3, "kill")[0]
    assert not parts.judge_survivors({0: right[0]}, 3, "kill")[0], "rank 2 is silent"
    assert not parts.judge_survivors({**right, 2: {"seconds": 9.0, "message": died}}, 3, "kill")[0], "too late"
    other = "rank 3 on host a (process 8) died while rank 1 on host a waited"
    assert not parts.judge_survivors({**right, 2: {"seconds": 1.0, "message": other}}, 3, "kill")[0]
    late = "rank 0 on host a waited 3s in all_reduce for rank 1 on host a: alive"
    assert parts.judge_survivors({rank: {"seconds": 3.0, "message": late} for rank in (0, 2)}, 3, "stop")[0]


def test_steps_as_a_graph_are_judged_by_the_same_steps_one_by_one() -> None:
    right = {rank: [[3.0, 2.0, 1.5, 1.2, 1.1]] * 2 for rank in (0, 1)}
    assert parts.judge_graph(right, "")[0] == PASSED
    wrong = {**right, 1: [right[1][0], [3.0, 2.0, 1.5, 1.5, 1.5]]}
    assert parts.judge_graph(wrong, "")[0] == FAILED, "the results differ from the graph's first launch on"
    assert parts.judge_graph({0: right[0]}, "broken off")[0] == FAILED
    assert parts.judge_graph({**right, 1: [[], []]}, "")[0] == FAILED
    refused = "lockstep: collectives go through the host, which is slower than NCCL: NCCL 2.27.3 refuses"
    outcome, text = parts.judge_graph(right, refused)
    assert outcome == LEFT_OUT and "refuses" in text
    assert parts.judge_graph(right, "lockstep: the program runs step by step, as it cannot be captured")[0] == FAILED


def results(path: Path, *cases: dict[str, object]) -> Path:
    path.write_text(json.dumps({"testsuites": [{"name": "S", "testsuite": list(cases)}]}))
    return path


def test_cases_of_googletest_are_counted(tmp_path: Path) -> None:
    suite = parts.Suite()
    good, skipped = {"name": "good", "result": "COMPLETED"}, {"name": "no", "result": "SKIPPED"}
    bad = {"name": "bad", "result": "COMPLETED", "failures": [{}]}
    suite.add("p.0", Done(1, "", tmp_path), results(tmp_path / "0.json", good, skipped, bad))
    assert (suite.passed, suite.skipped, suite.failed, suite.wrong) == (1, 1, ["S.bad"], [])
    suite.add(
        "p.1",
        Done(-11, "[ RUN      ] S.first\n[       OK ] S.first\n[ RUN      ] S.crash\n", tmp_path),
        tmp_path / "no",
    )
    assert suite.passed == 2 and suite.wrong == ["p.1 ended with -11 in S.crash"]
    assert suite.outcome() == FAILED


def test_a_suite_without_a_case_has_not_passed(tmp_path: Path) -> None:
    suite = parts.Suite()
    suite.add("p.0", Done(0, "LEFT OUT: no GPU\n", tmp_path), results(tmp_path / "0.json"))
    assert suite.outcome() == LEFT_OUT and "no GPU" in suite.text()


class TestContestants:
    def start(self, machine: Machine, code: str) -> Contestant:
        return Contestant(machine, "one", [sys.executable, "-c", code], {**machine.ours, "PYTHONHOME": ""})

    def test_they_take_turns(self, machine: Machine) -> None:
        code = f"""
import sys; sys.path.append({str(FOLDER)!r})
import contestant
class C:
    def ready(self): print("noise"); return {{"compile_seconds": 1}}
    def run(self, steps): print("noise"); return {{"seconds": [0.5] * steps, "resident": 0.25}}
contestant.serve(C)
"""
        ours, theirs = self.start(machine, code), self.start(machine, code)
        assert ours.answer(30) == theirs.answer(30) == {"compile_seconds": 1}
        turns, last = measures.take_turns(ours, theirs, measures.RACES["lenet"], machine)
        assert turns.ours == turns.theirs == [0.5, 0.5] and turns.resident == [0.25, 0.25]
        assert last["seconds"] == [0.5, 0.5]
        assert "1 (1 to 1) times Lockstep's" in turns.text() and "0.5 (0.5 to 0.5) times" in turns.text()
        ours.stop()
        theirs.stop()

    def test_one_that_fails_says_why(self, machine: Machine) -> None:
        code = f"import sys; sys.path.append({str(FOLDER)!r}); import contestant; contestant.serve(lambda: 1 / 0)"
        with pytest.raises(RuntimeError, match="ZeroDivisionError"):
            self.start(machine, code).answer(30)

    def test_one_that_dies_or_hangs_is_noticed(self, machine: Machine) -> None:
        with pytest.raises(RuntimeError, match="it ended"):
            self.start(machine, "import os; os._exit(3)").answer(30)
        with pytest.raises(OutOfTime):
            self.start(machine, "import time; time.sleep(60)").answer(0.5)


def test_a_peer_that_cannot_run_is_left_out(machine: Machine, report: Report) -> None:
    race = measures.RACES["lenet"]
    measures.race_against(machine, report, race, None, "torch eager", [sys.executable, "-c", "1 / 0"])
    assert outcomes(report) == {"step of lenet, f32: torch eager": LEFT_OUT}


def test_the_rate_of_feeding_is_that_of_calls_and_of_the_driver(machine: Machine, report: Report) -> None:
    machine.ours_python = sys.executable
    machine.ours = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    measures.feeding(machine, report)
    part = "a batch of 4 MB from the host"
    assert outcomes(report) == {
        f"{part}: {name}": MEASURED for name in ("a call", "a started call", "the driver's copy of pinned memory")
    }
    assert all(row.result.endswith(")") and " GB/s (" in row.result for row in report.rows)


def test_a_stand_in_has_the_functions_and_ends_the_process(tmp_path: Path) -> None:
    """Libraries that are linked but never called are packed as stubs, so the libraries that they need are not needed."""

    def compile(code: str, *options: str) -> None:
        (tmp_path / "x.c").write_text(code)
        subprocess.run(["gcc", str(tmp_path / "x.c"), *options], check=True)

    library, user = tmp_path / "libreal.so.1", tmp_path / "user"
    real = ["-shared", "-fPIC", "-Wl,-soname,libreal.so.1", "-o", str(library)]
    (tmp_path / "v").write_text("REAL_1 { f; g; };")
    compile("int f(void) { return 0; } int g(void) { return 0; }", *real, f"-Wl,--version-script={tmp_path}/v")
    compile("int f(void); int main(int n, char** v) { return n > 1 ? f() : 7; }", "-o", str(user), str(library))
    folder = tmp_path / "small"
    shared_libraries.stand_in(library, [user], folder / "libreal.so.1")
    assert shared_libraries._symbols("--defined-only", folder / "libreal.so.1").get("f") == "REAL_1"
    environment = {"LD_LIBRARY_PATH": str(folder)}
    assert subprocess.run([user], env=environment, check=False).returncode == 7
    assert subprocess.run([user, "call"], env=environment, check=False).returncode == -signal.SIGABRT


def test_without_a_bundle_the_script_says_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "tools").mkdir()
    script = tmp_path / "tools/cuda_check.sh"
    script.write_bytes((ROOT / "tools/cuda_check.sh").read_bytes())
    done = subprocess.run(["bash", str(script)], capture_output=True, text=True, check=False)
    assert done.returncode == 1 and "make cuda-bundle" in done.stderr


def test_a_check_that_is_ended_ends_what_it_started(tmp_path: Path) -> None:
    file = tmp_path / "child"
    code = f"""
import sys; sys.path.append({str(FOLDER)!r}); sys.argv[1:] = ["--backend=cpu", "--out={tmp_path}"]
import cuda_check
command = ["sh", "-c", "echo $$ > {file}.part; mv {file}.part {file}; exec sleep 60"]
cuda_check.PARTS.clear()
cuda_check.PARTS["doctor"] = cuda_check.Part(lambda m, r: m.run("sleeps", command, m.ours, 60), 60)
sys.argv.append("--parts=doctor")
sys.exit(cuda_check.main())
"""
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.DEVNULL) as check:
        end = time.monotonic() + 60
        while not file.exists() and time.monotonic() < end:
            time.sleep(0.05)
        check.terminate()
        assert check.wait(30) == 143
    assert ends(int(file.read_text()))
