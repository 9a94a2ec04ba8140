"""`lockstep status --metrics`, read by Prometheus's own parser."""

from __future__ import annotations

import os
import re
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from prometheus_client.parser import text_string_to_metric_families

import lockstep as ls
from lockstep._reports import prometheus
from mpi_record import PROGRAM, SIZE
from ranks import run_in_threads
from test_record import HERE, Job, command

CALLS = 3
Samples = dict[str, dict[frozenset[tuple[str, str]], float]]


def parsed(text: str) -> Samples:
    """The samples by name and labels."""
    found: Samples = {}
    for family in text_string_to_metric_families(text):
        assert family.documentation.endswith(".") and family.type in ("gauge", "counter"), family
        for sample in family.samples:
            assert (family.type == "counter") == sample.name.endswith("_total")
            of_name = found.setdefault(sample.name, {})
            labels = frozenset(sample.labels.items())
            assert labels not in of_name, f"{sample.name} has {sample.labels} twice"
            of_name[labels] = sample.value
    return found


def values(samples: Samples, name: str, key: str = "rank", **labels: str) -> dict[str, float]:
    """The values with these labels, by the label `key`."""
    return {dict(own)[key]: value for own, value in samples[name].items() if labels.items() <= dict(own).items()}


def of_threads(ranks: int) -> list[tuple[dict[str, Any], ls._reports.report.Report]]:
    """The record of each rank after CALLS calls, as `lockstep status` gets it, and its report."""

    def body(world: ls.Communicator) -> tuple[dict[str, Any], ls._reports.report.Report]:
        exe = ls.compile(ls.parse(PROGRAM.replace(str(SIZE), "64")), world=world, threads=1)
        for _ in range(CALLS):
            exe(x=np.ones((2 // ranks, 64, 64), np.float32))
        more = {"job": "7", "state": "waits", "seconds": 1.5, "is_late": False}
        return {**exe._record(), **more}, exe.report()

    return run_in_threads(ranks, body)


def test_each_rank_of_a_job_has_its_samples(tmp_path: Path) -> None:
    job = Job(tmp_path, "stop", 4)
    try:
        status = job.await_status("late: rank 1\n")
        done = command("status", str(job.process.pid), "--metrics", LOCKSTEP_RECORD=str(tmp_path / "record"))
        every = command("status", "--metrics", LOCKSTEP_RECORD=str(tmp_path / "record"))
        processes = re.findall(r"rank \d  process (\d+) on", status)
    finally:
        os.kill(int(processes[1]), signal.SIGCONT)
    assert job.end() == 0, job.err.read_text()
    assert done.returncode == every.returncode == 0, done.stderr + every.stderr
    samples = parsed(done.stdout)
    assert parsed(every.stdout).keys() == samples.keys()
    (name,) = re.findall(r"^job (.*)$", status, re.MULTILINE)
    host = re.search(r"process \d+ on (\S+) ", status)[1]
    labels = {dict(own)["rank"]: dict(own) for own in samples["lockstep_rank_late"]}
    for rank in ("0", "1"):
        own = {"job": name, "world": "mpi-0", "rank": rank, "host": host, "pid": processes[int(rank)]}
        assert labels[rank] == own
    assert values(samples, "lockstep_rank_late") == {"0": 0, "1": 1}
    for rank, state in (("0", "waits"), ("1", "stopped")):
        states = values(samples, "lockstep_rank_state", "state", rank=rank)
        assert states == {each: float(each == state) for each in prometheus.STATES}
    assert min(values(samples, "lockstep_rank_state_seconds").values()) > 0.5
    assert values(samples, "lockstep_world_size") == {"0": 2, "1": 2}
    # Both are in the second call.
    assert values(samples, "lockstep_calls_total", program="work") == {"0": 1, "1": 1}
    assert "lockstep_rank_failure_info" not in samples


def test_a_killed_rank_has_died(tmp_path: Path) -> None:
    job = Job(tmp_path, "kill", 4)
    assert job.end() != 0
    done = command("status", "--metrics", LOCKSTEP_RECORD=str(tmp_path / "record"))
    assert done.returncode == 0, done.stderr
    assert values(parsed(done.stdout), "lockstep_rank_state", state="died") == {"0": 1, "1": 1}


def test_without_jobs_there_are_no_metrics(tmp_path: Path) -> None:
    done = command("status", "--metrics", LOCKSTEP_RECORD=str(tmp_path))
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    done = command("status", "4711", "--metrics", LOCKSTEP_RECORD=str(tmp_path))
    assert done.returncode == 1 and done.stderr.startswith(f"lockstep status: {tmp_path} has no record of a job")


def test_the_parts_of_a_call_are_those_of_the_report() -> None:
    for recorded, report in of_threads(2):
        samples = parsed(prometheus.text_of([*prometheus.samples_of(recorded)]))
        parts = values(samples, "lockstep_call_seconds", "part", program="work")
        assert parts == {part: getattr(report, part) for part in ("compute", "exposed", "waiting", "other")}
        assert sum(parts.values()) == pytest.approx(report.total, rel=0.02)
        late = values(samples, "lockstep_waiting_seconds", "late_rank") if report.waiting_for else {}
        assert late == {str(rank): seconds for rank, seconds in report.waiting_for.items()}
        rank = str(report.rank)
        assert values(samples, "lockstep_hidden_seconds") == {rank: report.hidden}
        assert values(samples, "lockstep_between_calls_seconds") == {rank: report.between}


def test_calls_and_collectives_are_counted() -> None:
    counts = set()
    for recorded, _ in of_threads(2):
        samples = parsed(prometheus.text_of([*prometheus.samples_of(recorded)]))
        rank = str(recorded["rank"])
        assert values(samples, "lockstep_calls_total", program="work") == {rank: CALLS}
        assert values(samples, "lockstep_collective_bytes_total") == {rank: 4 * CALLS}  # a sum, f32[]
        counts.add(sum(values(samples, "lockstep_collectives_total", "communicator").values()))
    # Loading compares the ranks, in the same collectives on all of them.
    assert len(counts) == 1 and counts.pop() >= CALLS


def test_a_counter_goes_on_when_the_record_has_overwritten_the_beginning() -> None:
    world = ls.Communicator.single()
    exe = ls.compile(ls.parse(PROGRAM.replace(str(SIZE), "4")), world=world)
    x = np.ones((2, 4, 4), np.float32)
    for _ in range(10_000):
        exe(x=x)
    recorded = {**exe._record(), "job": "7", "state": "outside", "seconds": 0.0, "is_late": False}
    assert recorded["lost"] > 0
    samples = parsed(prometheus.text_of([*prometheus.samples_of(recorded)]))
    assert values(samples, "lockstep_calls_total", program="work") == {"0": 10_000}


def test_servers_bytes_are_counted() -> None:
    ((recorded, _),) = of_threads(1)
    (number, (name, _)), *_ = recorded["programs"].items()
    steps = [("push", "push", "", "w", 512, False), ("start_pull", "pull.start", "", "w", 256, False)]
    steps.append(("wait_pull", "pull.wait", "", "w", 256, False))
    recorded["programs"] = {number: (name, steps)}
    samples = parsed(prometheus.text_of([*prometheus.samples_of(recorded)]))
    assert values(samples, "lockstep_pushed_bytes_total") == {"0": 512 * CALLS}
    assert values(samples, "lockstep_pulled_bytes_total") == {"0": 256 * CALLS}
    assert "lockstep_collective_bytes_total" not in samples


def test_labels_may_have_any_characters() -> None:
    ((recorded, _),) = of_threads(1)
    wild = 'say "no" to \\n and \\\\, {a="b"},\nü'
    recorded |= {"job": wild, "failure": f"rank 1 died\n{wild}", "host": wild}
    samples = parsed(prometheus.text_of([*prometheus.samples_of(recorded)]))
    ((labels, value),) = samples["lockstep_rank_failure_info"].items()
    found = dict(labels)
    assert (found["job"], found["host"], found["error"]) == (wild, wild, f"rank 1 died\n{wild}") and value == 1


def test_programs_of_one_name_are_told_apart() -> None:
    world = ls.Communicator.single()
    x = np.ones((2, 4, 4), np.float32)
    for calls in (1, 2):
        exe = ls.compile(ls.parse(PROGRAM.replace(str(SIZE), "4")), world=world)
        for _ in range(calls):
            exe(x=x)
    recorded = {**exe._record(), "job": "7", "state": "outside", "seconds": 0.0, "is_late": False}
    samples = parsed(prometheus.text_of([*prometheus.samples_of(recorded)]))
    assert list(values(samples, "lockstep_calls_total", "number", program="work").values()) == [1, 2]


def test_the_states_are_those_of_the_documentation() -> None:
    text = (HERE.parents[1] / "docs" / "watching.md").read_text()
    table = text.partition("| state | the rank |")[2].partition("\n\n")[0]
    assert sorted(re.findall(r"^\| (\w+) \|", table, re.MULTILINE)) == sorted(prometheus.STATES)


def test_all_metrics_are_documented() -> None:
    text = (HERE.parents[1] / "docs" / "watching.md").read_text()
    assert sorted(set(re.findall(r"lockstep_\w+", text))) == sorted(prometheus._METRICS)
