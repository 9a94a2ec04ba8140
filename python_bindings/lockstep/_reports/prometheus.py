"""The state of jobs for Prometheus, in its text format 0.0.4: the output of `lockstep status --metrics`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from .. import _lockstep
from . import record
from .record import Rank
from .report import Report, report_of

STATES = ("begins", "computes", "died", "moves", "outside", "stopped", "waits")
# The metrics, with their types and meanings. Each sample also has the labels of its rank.
_METRICS = {
    "lockstep_rank_state": ("gauge", "1 for the state that the rank is in, 0 for the others."),
    "lockstep_rank_state_seconds": ("gauge", "How long the rank has been in its state."),
    "lockstep_rank_late": ("gauge", "1 if the rank is late: others have waited for a second, or it is gone."),
    "lockstep_rank_failure_info": ("gauge", "The first error of a rank that failed."),
    "lockstep_world_size": ("gauge", "The number of ranks that train together."),
    "lockstep_calls_total": ("counter", "Calls of the program that have ended."),
    "lockstep_collectives_total": ("counter", "Collectives of the communicator that have ended."),
    "lockstep_collective_bytes_total": ("counter", "Bytes of the tensors in the collectives of these calls."),
    "lockstep_pushed_bytes_total": ("counter", "Bytes pushed to parameter servers by these calls."),
    "lockstep_pulled_bytes_total": ("counter", "Bytes pulled from parameter servers by these calls."),
    "lockstep_call_seconds": ("gauge", "Mean time of the last calls, by part; the parts add up to a call."),
    "lockstep_waiting_seconds": ("gauge", "The part waiting, by the rank that arrived last."),
    "lockstep_hidden_seconds": ("gauge", "Mean time in which data moved during kernels of a call."),
    "lockstep_between_calls_seconds": ("gauge", "Mean time from one of these calls to the next."),
}

Labels = dict[str, Any]
Sample = tuple[str, Labels, float]


def metrics(job: str) -> str:
    """Returns the metrics of a job's ranks on this host, or of the ranks of all jobs if `job` is empty.

    Raises:
      Error: there is no such job. The message lists the existing ones.
    """
    return text_of([sample for recorded in _lockstep._ranks_of_jobs(job) for sample in samples_of(recorded)])


def text_of(samples: list[Sample]) -> str:
    """Returns the text of samples. Those of a metric follow each other."""
    lines = []
    for name, (kind, meaning) in _METRICS.items():
        own = [sample for sample in samples if sample[0] == name]
        lines += [f"# HELP {name} {meaning}", f"# TYPE {name} {kind}"] if own else []
        lines += [f"{name}{{{_labels_text(labels)}}} {value!r}" for _, labels, value in own]
    return "".join(line + "\n" for line in lines)


def _labels_text(labels: Labels) -> str:
    return ",".join(f'{name}="{_escaped(str(value))}"' for name, value in labels.items())


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def samples_of(recorded: dict[str, Any]) -> Iterator[Sample]:
    """Yields the samples of a rank, from the extension module's record of it."""
    rank = record.rank_of(recorded)
    labels = {
        "job": recorded["job"],
        "world": f"{recorded['transport']}-{recorded['world']}",
        "rank": rank.rank,
        "host": rank.host,
        "pid": rank.process,
    }
    for state in STATES:
        yield "lockstep_rank_state", {**labels, "state": state}, int(state == recorded["state"])
    yield "lockstep_rank_state_seconds", labels, recorded["seconds"]
    yield "lockstep_rank_late", labels, int(recorded["is_late"])
    if rank.failure:
        yield "lockstep_rank_failure_info", {**labels, "error": rank.failure}, 1
    yield "lockstep_world_size", labels, rank.size
    for communicator in np.unique(rank.transfers["communicator"]).tolist():
        own = rank.transfers[rank.transfers["communicator"] == communicator]
        yield "lockstep_collectives_total", {**labels, "communicator": communicator}, _ended_collectives(own)
    # Programs may have the same name, so each also has its number.
    for number in np.unique(rank.steps["program"]).tolist():
        name = rank.programs[number].name if number in rank.programs else ""
        yield from _samples_of_program(rank, number, {**labels, "program": name, "number": number})


def _ended_collectives(transfers: np.ndarray) -> int:
    """Returns the number since the communicator was made. Sequence numbers count from 0, and phases from posted."""
    ended = transfers["sequence"][transfers["phase"] == record.MOVED]
    return int(ended.max()) + 1 if len(ended) else int(transfers["sequence"].min())


def _ended_calls(rank: Rank, number: int) -> int:
    last = rank.steps[rank.steps["program"] == number][-1]
    return int(last["call"]) - int(last["kind"] not in (record.END, record.FAILED))


def _samples_of_program(rank: Rank, number: int, labels: Labels) -> Iterator[Sample]:
    calls = _ended_calls(rank, number)
    yield "lockstep_calls_total", labels, calls
    if number not in rank.programs:
        return
    steps = rank.programs[number].steps
    for metric, kind in (("collective", "start"), ("pushed", "push"), ("pulled", "wait_pull")):
        size = sum(step.bytes for step in steps if step.kind == kind)
        if size:
            yield f"lockstep_{metric}_bytes_total", labels, calls * size
    report = report_of(rank, number)
    if report is not None:
        yield from _samples_of_report(report, labels)


def _samples_of_report(report: Report, labels: Labels) -> Iterator[Sample]:
    for part in ("compute", "exposed", "waiting", "other"):
        yield "lockstep_call_seconds", {**labels, "part": part}, getattr(report, part)
    for late, seconds in report.waiting_for.items():
        yield "lockstep_waiting_seconds", {**labels, "late_rank": late}, seconds
    yield "lockstep_hidden_seconds", labels, report.hidden
    yield "lockstep_between_calls_seconds", labels, report.between
