"""Records of ranks and their readers: `lockstep status`, the notice of a stall, traces, `lockstep report`,
Executable.report().
"""

from __future__ import annotations

import dataclasses
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest

import lockstep as ls
from lockstep import forecast
from lockstep._compile import machine
from lockstep._reports import job_report, record, report_page
from lockstep._reports import report as _report
from mpi_record import LAYER, PROGRAM, SIZE
from ranks import MPI_ENVIRONMENT, run_in_threads

HERE = Path(__file__).parent
COMMAND = HERE.parents[1] / "tools" / "lockstep"
sys.path.insert(0, str(HERE.parent / "hosts"))

from hosts import Hosts, why_not


def command(*arguments: str | Path, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [COMMAND, *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env={**os.environ, **environment},
    )


class Job:
    """mpi_record.py under mpirun on two ranks. Its output goes to files."""

    def __init__(self, folder: Path, mode: str, calls: int, **environment: str) -> None:
        self.folder = folder
        self.out, self.err = folder / "stdout", folder / "stderr"
        with self.out.open("w") as out, self.err.open("w") as err:
            self.process = subprocess.Popen(
                ["mpirun", "-np", "2", sys.executable, HERE / "mpi_record.py", mode, str(calls)],
                stdout=out,
                stderr=err,
                env={**os.environ, **MPI_ENVIRONMENT, "LOCKSTEP_RECORD": str(folder / "record"), **environment},
            )

    def status(self) -> subprocess.CompletedProcess[str]:
        return command("status", str(self.process.pid), LOCKSTEP_RECORD=str(self.folder / "record"))

    def await_status(self, text: str) -> str:
        end = time.monotonic() + 60
        while time.monotonic() < end:
            done = self.status()
            if done.returncode == 0 and text in done.stdout:
                return done.stdout
            time.sleep(0.1)
        raise AssertionError(f"{done.stdout}{done.stderr}{self.err.read_text()}")

    def end(self) -> int:
        try:
            return self.process.wait(timeout=90)
        finally:
            self.process.kill()


def line_of(status: str, rank: int) -> str:
    return next(line for line in status.splitlines() if line.startswith(f"  rank {rank} "))


def test_a_stopped_rank_is_named_by_status_and_once_by_those_who_wait(tmp_path: Path) -> None:
    job = Job(tmp_path, "stop", 4, LOCKSTEP_STALL="1")
    try:
        status = job.await_status("stopped ")
        status = job.await_status("late: rank 1\n")
        late, waiting = line_of(status, 1), line_of(status, 0)
        assert re.search(rf"stopped +[0-9.]+ s  call 2 of @work, step \d+ .*{LAYER}", late), status
        assert re.search(r"waits +[0-9.]+ s  call 2 of @work, step \d+ all_reduce.wait", waiting), status
        time.sleep(2)  # the limit passes twice, but the notice comes once
        process = int(re.search(r"process (\d+)", late)[1])
    finally:
        os.kill(process, signal.SIGCONT)
    assert job.end() == 0, job.err.read_text()
    notice = job.err.read_text()
    assert notice.count("has waited 1s in") == 1, notice
    assert f"rank 1  process {process} on" in notice
    assert re.search(rf"rank 1 .* stopped .*{LAYER}", notice), notice
    assert "rank 0 of 2 made 4 calls" in job.out.read_text()
    # Ranks that end without an error leave no records.
    assert list((tmp_path / "record").iterdir()) == []
    assert job.status().returncode == 1


def test_of_a_killed_rank_the_last_layer_is_known(tmp_path: Path) -> None:
    job = Job(tmp_path, "kill", 4)
    assert job.end() != 0
    done = job.status()
    assert done.returncode == 0, done.stderr
    assert ", which is dead\n" in done.stdout
    assert re.search(rf"rank 1  .* died +[0-9.]+ s  call 2 of @work, step \d+ .*{LAYER}", done.stdout), done.stdout
    assert re.search(r"rank 0  .* died .* call 2 of @work", done.stdout), done.stdout
    newest = command("status", LOCKSTEP_RECORD=str(tmp_path / "record"))
    assert newest.stdout.splitlines()[0] == done.stdout.splitlines()[0]


def test_a_job_that_is_not_there(tmp_path: Path) -> None:
    done = command("status", "4711", LOCKSTEP_RECORD=str(tmp_path))
    assert done.returncode == 1
    assert done.stderr.startswith(f"lockstep status: {tmp_path} has no record of a job")


CALLS = 10  # of which a busy machine may miss some


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The trace of a job in which rank 1 is stopped for a moment in each call, during its matrix product."""
    folder = tmp_path_factory.mktemp("trace")
    job = Job(folder, "slow", CALLS, LOCKSTEP_TRACE=str(folder / "trace"))
    assert job.end() == 0, job.err.read_text()
    return folder / "trace"


def test_the_trace_has_all_ranks_in_order(trace: Path) -> None:
    (merged,) = trace.glob("*/trace.json")
    events = json.loads(merged.read_text())["traceEvents"]
    named = {event["pid"]: event["args"]["name"] for event in events if event["name"] == "process_name"}
    assert [named[rank].startswith(f"rank {rank} on ") for rank in range(2)] == [True, True]
    slices = [event for event in events if event["ph"] == "X"]
    times = [event["ts"] for event in slices]
    assert times == sorted(times)
    assert times[0] >= 0
    for rank in range(2):
        calls = [event for event in slices if event["pid"] == rank and event["name"] == "@work"]
        assert [event["args"]["call"] for event in calls] == list(range(1, CALLS + 1))
        products = [event for event in slices if event["pid"] == rank and event["args"].get("source") == LAYER]
        assert len(products) == CALLS
        for call, product in zip(calls, products, strict=True):
            assert call["ts"] <= product["ts"]
            assert product["ts"] + product["dur"] <= call["ts"] + call["dur"] + 0.001
        assert sum("last" in event["args"] for event in slices if event["pid"] == rank) >= CALLS


def test_perfetto_can_show_the_trace(trace: Path) -> None:
    """The rules are those of the Trace Event Format and of Perfetto's importer (trace_processor/importers/json): events
    of a track in the order of time, slices in the slices around them, and each end of a flow in a slice, after its
    beginning.
    """
    (merged,) = trace.glob("*/trace.json")
    text = json.loads(merged.read_text())
    assert text["displayTimeUnit"] in ("ms", "ns")
    open_slices: dict[tuple[int, int], list[float]] = {}  # their ends
    named, begun, ended, last = set(), {}, {}, 0.0
    for event in text["traceEvents"]:
        track = (event["pid"], event["tid"])
        assert all(type(number) is int and number >= 0 for number in track), event
        assert type(event["name"]) is str and event["name"], event
        if event["ph"] == "M":
            assert event["name"] in ("process_name", "thread_name") and event["args"]["name"], event
            if event["name"] == "thread_name":
                named.add(track)
            continue
        assert event["ts"] >= last, event
        last = event["ts"]
        ends = open_slices.setdefault(track, [])
        while ends and ends[-1] <= last + 1e-6:
            ends.pop()
        if event["ph"] == "X":
            end = last + event["dur"]
            assert event["dur"] >= 0 and (not ends or end <= ends[-1] + 1e-6), event
            ends.append(end)
            continue
        assert ends and event["cat"] and type(event["id"]) is int, event  # a flow is in a slice
        if event["ph"] == "s":
            begun[event["id"]] = event["pid"]
        else:
            assert (event["ph"], event["bp"]) == ("f", "e") and event["id"] not in ended, event
            ended[event["id"]] = event["pid"]
    assert named == open_slices.keys()
    assert begun.keys() == ended.keys()
    assert all({begun[flow], ended[flow]} == {0, 1} for flow in begun)
    assert [*begun.values()].count(1) >= CALLS - 2  # rank 0 waited for rank 1, perhaps not in the first and last call


def test_the_report_names_the_slow_rank_and_layer(trace: Path) -> None:
    done = command("report", trace)
    assert done.returncode == 0, done.stderr
    worst = done.stdout.partition("slow ranks\n")[2].partition("\n")[0]
    assert re.search(rf"rank 1 is slow in step \d+ .*{LAYER}", worst), done.stdout
    report = job_report.job_report(str(trace))
    assert [each.calls for each in report.reports] == [CALLS, CALLS]
    for each in report.reports:
        parts = each.compute + each.exposed + each.waiting + each.other
        assert parts == pytest.approx(each.total, rel=0.02)
    first, second = report.reports
    assert set(first.waiting_for) == {1}
    assert first.waiting > 0.5 * (second.total - first.compute)
    assert second.waiting < 0.2 * first.waiting


def test_the_page_opens_in_a_browser(trace: Path, tmp_path: Path) -> None:
    page = tmp_path / "report.html"
    assert command("report", trace, "--html", page).returncode == 0
    text = page.read_text()
    assert text.count("<svg") == 1
    assert f"({LAYER})" in text
    assert "rank 1 is slow in step" in text
    browser = shutil.which("chromium")
    if browser is None:
        pytest.skip("apt-get install chromium")
    done = subprocess.run(
        [
            browser,
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            f"--user-data-dir={tmp_path}/profile",
            "--dump-dom",
            page,
        ],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "rank 1 is slow in step" in done.stdout
    assert done.stdout.count("<rect ") > 12


@pytest.mark.skipif(bool(why_not()), reason=f"no hosts here: {why_not()}")
def test_ranks_of_two_hosts_share_a_trace_and_a_clock(tmp_path: Path) -> None:
    exported = [text for name in ("LOCKSTEP_TRACE", "LOCKSTEP_RECORD", "PYTHONPATH") for text in ("-x", name)]
    with Hosts(2) as hosts:
        environment = {
            **hosts.environment(),
            **{f"LOCKSTEP_{name.upper()}": str(tmp_path / name) for name in ("trace", "record")},
            "PYTHONPATH": str(HERE.parents[1] / "python_bindings"),
        }
        done = subprocess.run(
            hosts.command([1, 1], sys.executable, HERE / "mpi_record.py", "run", "4", options=exported),
            env=environment,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
    assert done.returncode == 0, done.stderr
    _, merged, ranks = ls._lockstep._trace(str(tmp_path / "trace"))
    assert [rank["host"] for rank in ranks] == hosts.names
    # Both hosts have the same clock, but the second rank does not know that, so it measured the difference.
    assert ranks[0]["clock_ahead"] == 0
    assert 0 < abs(ranks[1]["clock_ahead"]) < 50e6
    first, second = (record.rank_of(rank) for rank in ranks)
    for own, peer in ((first, second), (second, first)):
        transfers, others = _report.transfers_of(own), _report.transfers_of(peer)
        assert len(transfers["met"]) == len(others["met"]) >= 4
        # No rank met another one before that had arrived, up to the difference of clocks.
        assert (transfers["met"] > others["posted"] - 50e6).all()
    events = json.loads(Path(merged).read_text())["traceEvents"]
    assert {event["pid"] for event in events} == {0, 1}


def test_a_folder_without_a_trace(tmp_path: Path) -> None:
    done = command("report", tmp_path)
    assert done.returncode == 1
    assert done.stderr == (f"lockstep report: {tmp_path} has no trace: start the job with LOCKSTEP_TRACE={tmp_path}\n")


def test_a_report_says_for_whom_a_rank_waited() -> None:
    pause, calls = 0.05, 10

    def body(world: ls.Communicator) -> tuple[_report.Report, float]:
        exe = ls.compile(ls.parse(PROGRAM.replace(str(SIZE), "64")), world=world, threads=1)
        x = np.ones((1, 64, 64), np.float32)
        exe(x=x)
        seconds = []
        for _ in range(calls):
            if world.rank == 1:
                time.sleep(pause)
            begin = time.perf_counter()
            exe(x=x)
            seconds.append(time.perf_counter() - begin)
        return exe.report(calls=calls), float(np.mean(seconds))

    for _ in range(10):
        (first, seconds), (second, _) = run_in_threads(2, body)
        if first.total > 0.95 * seconds and second.waiting < 0.2 * pause:
            break  # else a busy machine delayed a rank
    assert (first.rank, second.rank) == (0, 1)
    assert first.calls == second.calls == calls
    assert first.program == "work"
    assert first.total == pytest.approx(seconds, rel=0.05)
    assert first.compute + first.exposed + first.waiting + first.other == pytest.approx(first.total, rel=0.02)
    assert set(first.waiting_for) == {1}
    assert first.waiting_for[1] > 0.8 * pause
    assert second.waiting < 0.2 * pause
    assert second.between > 0.9 * pause
    assert [step.kind for step, _ in first.steps].count("wait") >= 1
    assert f"rank 1 {_report.milliseconds(first.waiting_for[1])}" in str(first)


def test_a_report_covers_only_calls_of_which_all_is_known() -> None:
    """Of 2048 events of collectives and 16384 of steps the former reach less far back."""

    def body(world: ls.Communicator) -> int:
        exe = ls.compile(ls.parse(PROGRAM.replace(str(SIZE), "2")), world=world, threads=1)
        for _ in range(1500):
            exe(x=np.ones((1, 2, 2), np.float32))
        recorded = record.rank_of(exe._record())
        assert recorded.lost > 0 and list(recorded.steps["kind"]).count(record.END) == 1500
        assert exe.report(calls=3).calls == 3
        return exe.report().calls

    for calls in run_in_threads(2, body):
        assert 2048 // 5 <= calls <= 2048 // 3


def test_a_report_before_the_first_call() -> None:
    exe = ls.compile(ls.parse(PROGRAM.replace(str(SIZE), "4")))
    with pytest.raises(ls.Error, match="no call has ended yet"):
        exe.report()
    exe(x=np.ones((2, 4, 4), np.float32))
    assert exe.report().calls == 1
    with pytest.raises(ls.Error, match="report: calls"):
        exe.report(calls=0)


def test_what_is_not_recorded_is_not_reported() -> None:
    world = ls.Communicator.single()
    exe = ls.compile(ls.parse(PROGRAM.replace(str(SIZE), "4")), world=world)
    x = np.ones((2, 4, 4), np.float32)
    exe(x=x)
    ls._lockstep._set_recording(world, False)
    exe(x=x)
    ls._lockstep._set_recording(world, True)
    exe(x=x)
    calls = _report.calls_of(record.rank_of(exe._record()), exe._record()["program"])
    assert list(calls.events["call"][calls.begins]) == [1, 3]


def recorded(steps: list[tuple[int, int, int, int]], transfers: list[tuple[int, ...]]) -> record.Rank:
    """The record of rank 0 of two, from rows (time, step, call, kind) and (time, sequence, phase, last, and optionally
    communicator), in milliseconds.
    """
    kernel, wait = record.Step("kernel", "k", "onnx:/a", ""), record.Step("wait", "all_reduce.wait", "", "bucket 0")
    own = np.zeros(len(steps), record._STEP)
    for row, (time_, step, call, kind) in zip(own, steps):
        row["time"], row["step"], row["call"], row["kind"] = time_ * 1_000_000, step, call, kind
    moved = np.zeros(len(transfers), record._TRANSFER)
    for row, (time_, sequence, phase, last, *communicator) in zip(moved, transfers):
        row["time"], row["sequence"], row["phase"], row["last"] = time_ * 1_000_000, sequence, phase, last
        row["communicator"] = communicator[0] if communicator else 0
    return record.Rank(0, 2, 1, "h", ("mpi", 0, 0), "", 0, {0: record.Program("p", [kernel, wait, kernel])}, own, moved)


def page_of_call(milliseconds: int, ranks: int = 1) -> ElementTree.Element:
    """The report page of one call with this duration, on this many ranks."""
    half = milliseconds // 2
    steps = [(10, 0, 7, record.CALL), (10, 0, 7, record.STEP), (10 + half, 1, 7, record.STEP)]
    all_ranks = [
        dataclasses.replace(recorded([*steps, (10 + milliseconds, 0, 7, record.END)], []), rank=rank)
        for rank in range(ranks)
    ]
    reports = [_report.report_of(rank, 0) for rank in all_ranks]
    text = report_page.page(job_report.JobReport("f", "t", all_ranks, reports, dict.fromkeys(range(ranks), 0), []))
    return ElementTree.fromstring(text.removeprefix("<!DOCTYPE html>\n").replace('<meta charset="utf-8">', ""))


@pytest.mark.parametrize(
    ("milliseconds", "marks"),
    [
        (20, [f"{i} ms" for i in range(0, 21, 2)]),
        (7, [f"{i} ms" for i in range(8)]),
        (2, [f"{i / 5:.1f} ms" for i in range(11)]),
        (1234, [f"{i} ms" for i in range(0, 1234, 200)]),
    ],
)
def test_the_picture_of_a_call_has_a_time_axis(milliseconds: int, marks: list[str]) -> None:
    (svg,) = page_of_call(milliseconds).iter("svg")
    texts = {text.text or "": text for text in svg.iter("text")}
    assert [text for text in texts if text.endswith(" ms") and "," not in text] == marks
    lines = [float(line.get("x1")) for line in svg.iter("line")]
    assert lines == [float(texts[mark].get("x")) for mark in marks]
    steps = [(float(box.get("x")), float(box.get("width"))) for box in svg.iter("rect")]
    assert lines[0] == steps[0][0] and steps[-1][0] + steps[-1][1] == pytest.approx(1100, abs=0.02)
    if milliseconds == 20:
        assert steps[-1][0] == pytest.approx(lines[5])  # the second step begins after 10 ms
    assert max(lines) <= 1100
    bottom = float(svg.get("viewBox").split()[3])
    assert all(float(text.get("y")) <= bottom for text in svg.iter("text"))


def test_the_page_fits_a_window_of_1400_pixels() -> None:
    """Nothing has a larger fixed width: pictures and bars take the available width, wide tables scroll in their boxes."""
    page = page_of_call(20, ranks=64)
    style = page.find("head/style").text
    (body,) = re.findall(r"^body \{(.*)\}", style, re.MULTILINE)
    assert "padding: 0 2em" in body and int(re.search(r"max-width: (\d+)px", body)[1]) + 4 * 14 + 20 <= 1400
    assert max(map(int, re.findall(r"width: (\d+)px", style))) <= 1300
    assert "svg { width: 100%; height: auto; }" in style and ".wide { overflow-x: auto; }" in style
    (svg,) = page.iter("svg")
    assert svg.get("width") is None and svg.get("viewBox").startswith("0 0 1100 ")
    boxed = [table for box in page.iter("div") if box.get("class") == "wide" for table in box.findall("table")]
    assert len(boxed) == len([*page.iter("table")]) == 2
    assert len([*boxed[1].find("tr")]) == 2 + 64  # one column for the steps, and one for each rank


def test_pushes_and_pulls_are_communication() -> None:
    steps = [
        (10, 0, 7, record.CALL),
        (11, 0, 7, record.STEP),
        (21, 1, 7, record.STEP),
        (23, 2, 7, record.STEP),
        (24, 3, 7, record.STEP),
        (29, 4, 7, record.STEP),
        (32, 0, 7, record.END),
    ]
    rank = recorded(steps, [])
    of_servers = [
        record.Step(kind, name, "", "w", size)
        for kind, name, size in (
            ("push", "push", 2_000_000),
            ("start_pull", "pull.start", 3_000_000),
            ("wait_pull", "pull.wait", 3_000_000),
        )
    ]
    kernel = record.Step("kernel", "k", "", "")
    rank.programs[0] = record.Program("p", [kernel, *of_servers, kernel])
    report = _report.report_of(rank, 0)
    assert report is not None
    per_call = {name: round(1e3 * getattr(report, name), 6) for name in ("total", "compute", "exposed", "waiting")}
    assert per_call == {"total": 22, "compute": 13, "exposed": 8, "waiting": 0}
    assert (report.to_servers, report.from_servers, report.staleness) == (2_000_000, 3_000_000, None)
    assert [step.name for step, _ in report.slowest()] == ["k", "k"]
    assert "servers: 2.000 MB pushed, 3.000 MB pulled a call\n" in str(report)
    late = dataclasses.replace(report, staleness=ls.kv.Staleness({0: 3, 2: 1}))
    assert "  staleness 0.50 on average, at most 2; updates by staleness: 0: 3, 2: 1\n" in str(late)
    with pytest.raises(ls.Error, match="pushes to parameter servers"):
        forecast.forecast(report, machine.Machine(between=machine.Link(0.5, 1.0)), [2])


def test_parts_of_a_call_are_told_apart() -> None:
    steps = [
        (5, 0, 6, record.END),  # of a call without a recorded begin
        (10, 0, 7, record.CALL),
        (11, 0, 7, record.STEP),
        (21, 1, 7, record.STEP),  # waits 4 ms for rank 1, then moves for 2 ms
        (27, 2, 7, record.STEP),
        (30, 0, 7, record.END),
        (40, 0, 8, record.CALL),
        (41, 0, 8, record.STEP),
        (51, 1, 8, record.STEP),  # everything has been sent before
        (51, 2, 8, record.STEP),
        (54, 0, 8, record.END),
        (60, 0, 9, record.CALL),  # not ended
        (61, 0, 9, record.STEP),
    ]
    transfers = [
        (15, 1, record.POSTED, 0), (25, 1, record.MET, 1), (27, 1, record.MOVED, 0),
        (43, 2, record.POSTED, 0), (44, 2, record.MET, 0), (50, 2, record.MOVED, 0),
    ]  # fmt: skip
    rank = recorded(steps, transfers)
    assert _report.report_of(dataclasses.replace(rank, lost=9), 0).calls == 1  # collectives of the first are missing
    report = _report.report_of(rank, 0)
    assert report is not None
    assert report.calls == 2
    per_call = {
        name: round(1e3 * getattr(report, name) * 2, 6)
        for name in ("total", "compute", "exposed", "waiting", "other", "hidden")
    }
    assert per_call == {"total": 34, "compute": 26, "exposed": 2, "waiting": 4, "other": 2, "hidden": 6}
    assert report.waiting_for == {1: pytest.approx(0.002)}
    assert report.between == pytest.approx(0.010)
    assert [round(2e3 * seconds) for _, seconds in report.steps] == [20, 6, 6]
    last = _report.report_of(recorded(steps, transfers), 0, last=1)
    assert last is not None
    assert (last.calls, round(1e3 * last.total)) == (1, 14)


def test_each_communicator_does_one_collective_after_the_other() -> None:
    """Urgent collectives have a communicator of their own, which has its own sequence numbers."""
    steps = [
        (10, 0, 7, record.CALL),
        (11, 0, 7, record.STEP),
        (21, 1, 7, record.STEP),  # waits 4 ms for rank 1, then moves for 2 ms
        (27, 2, 7, record.STEP),
        (30, 0, 7, record.END),
    ]
    transfers = [
        (15, 1, record.POSTED, 0), (25, 1, record.MET, 1), (27, 1, record.MOVED, 0),
        (16, 2, record.POSTED, 0), (26, 2, record.MET, 1), (27, 2, record.MOVED, 0),  # nobody waits for it before 27
        (12, 1, record.POSTED, 0, 1), (13, 1, record.MET, 0, 1), (17, 1, record.MOVED, 0, 1),  # beside the kernel
        (20, 2, record.POSTED, 0, 1), (22, 2, record.MET, -1, 1), (22, 2, record.MOVED, 0, 1),  # no rank came last
        (29, 3, record.POSTED, 0, 1), (29, 3, record.MET, 1, 1), (40, 3, record.MOVED, 0, 1),  # after the call
    ]  # fmt: skip
    report = _report.report_of(recorded(steps, transfers), 0)
    assert report is not None
    assert report.waiting_for == {1: pytest.approx(0.004)}
    assert report.hidden == pytest.approx(0.004)
    assert report.exposed == pytest.approx(0.002)


def test_who_is_slow() -> None:
    def of(rank: int, seconds: list[float], between: float = 0.0) -> _report.Report:
        steps = [(record.Step(kind, kind, "", ""), each) for kind, each in zip(("kernel", "wait", "kernel"), seconds)]
        return _report.Report(rank, "p", 3, sum(seconds), 0, 0, 0, {}, 0, 0, between, steps, usual=[*seconds, between])

    reports = [of(0, [1.0, 2.0, 0.1]), of(1, [3.0, 0.0, 0.11]), of(2, [1.1, 1.9, 0.1], between=0.5)]
    findings = [(finding.rank, finding.number) for finding in job_report.findings_of(reports)]
    assert findings == [(1, 0), (2, 3)]
    assert job_report.findings_of(reports[:1]) == []
    by_little = [of(0, [1e-4, 0.0, 1e-4]), of(1, [1.9e-4, 0.0, 1e-4])]
    assert job_report.findings_of(by_little) == [], "noise is of this size"
    by_more = [of(0, [1e-4, 0.0, 1e-4]), of(1, [2.1e-4, 0.0, 1e-4])]
    assert [(finding.rank, finding.number) for finding in job_report.findings_of(by_more)] == [(1, 0)]


@pytest.mark.parametrize(
    ("calls", "slow_calls", "found"), [(20, 2, set()), (20, 3, {0, 3}), (2, 2, set()), (3, 3, {0})]
)
def test_a_call_or_two_make_no_rank_slow(calls: int, slow_calls: int, found: set[int]) -> None:
    """Calls take 5 ms. A slow one takes 50 ms more in a kernel, and another 50 ms before the next call."""

    def of(rank: int, slow: int) -> _report.Report:
        time_, steps = 0, []
        for call in range(calls):
            late = 50 * (call < slow)
            steps += [(time_, 0, call, record.CALL), (time_ + 1, 0, call, record.STEP)]
            steps += [(time_ + 3 + late, 1, call, record.STEP), (time_ + 4 + late, 2, call, record.STEP)]
            steps += [(time_ + 5 + late, 0, call, record.END)]
            time_ += 6 + 2 * late
        report = _report.report_of(dataclasses.replace(recorded(steps, []), rank=rank), 0)
        assert report is not None and report.calls == calls
        assert report.steps[0][1] == pytest.approx((2 + 50 * slow / calls) * 1e-3)
        return report

    findings = job_report.findings_of([of(0, 0), of(1, slow_calls)])
    assert {(finding.rank, finding.number) for finding in findings} == {(1, number) for number in found}
