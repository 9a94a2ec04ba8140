"""The time of calls: kernels, exposed and hidden communication, and waiting, by the rank that was waited for."""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from typing import Any

import numpy as np

from .._base import checks
from .._base.errors import Error
from . import record
from .record import Rank, Step
from .roofline import Roofline, roofline_of_executable
from .staleness import Staleness

_SLOWEST = 8  # steps that a report prints
CHANCE = 2  # calls: so often a step may take long because of something else on its host


@dataclasses.dataclass(frozen=True)
class Gradient:
    """A gradient that ranks reduce, with its times in a call. Seconds."""

    name: str
    bytes: int  # on this rank
    ready: float  # from the first step to the end of the step that computes it
    needed: float  # from the first step to the wait for its sum
    update: float  # of the steps that use the sum


@dataclasses.dataclass(frozen=True)
class Report:
    """Seconds of a call: the mean over some calls of one program on one rank.

    total = compute + exposed + waiting + other, and with a roofline compute = roofline.seconds + roofline.lost. `hidden` is not part of it, and `between` is between two calls. Pushes
    to and pulls from parameter servers count as exposed, including the time in which servers wait for other workers.
    """

    rank: int
    program: str
    calls: int
    total: float
    compute: float  # kernels and copies
    exposed: float  # communication while no kernel ran
    waiting: float  # for ranks that had not arrived yet
    waiting_for: dict[int, float]  # by the rank that arrived last
    hidden: float  # data transfers during kernels, as far as this rank saw them
    other: float  # inputs, results and checks
    between: float  # from one call to the next: the caller's code
    steps: list[tuple[Step, float]]  # in order
    gradients: list[Gradient] = dataclasses.field(
        default_factory=list
    )  # in the order of collectives; only of exe.report()
    to_servers: int = 0  # bytes pushed in a call
    from_servers: int = 0  # bytes pulled in a call
    # Only of exe.report() of an asynchronous program, while servers answer: the staleness of the whole job so far.
    staleness: Staleness | None = None
    # By step, and then between calls: the mean without the CHANCE calls with the longest times.
    usual: list[float] = dataclasses.field(default_factory=list)
    roofline: Roofline | None = None  # only of exe.report(roofline=True): measured in these calls

    @property
    def lost(self) -> dict[str, float]:
        """The seconds from the start of a call to that of the next one, except for the least time of its steps, by what
        they were spent on: "steps" (above their least time), "exposed", "waiting", "other", "between". Empty without a
        roofline."""
        if self.roofline is None:
            return {}
        return {"steps": self.roofline.lost} | {
            name: getattr(self, name) for name in ("exposed", "waiting", "other", "between")
        }

    def slowest(self, count: int = _SLOWEST) -> list[tuple[Step, float]]:
        """The steps that took longest, communication left out."""
        kernels = [step for step in self.steps if not step[0].is_communication]
        return sorted(kernels, key=lambda step: -step[1])[:count]

    def __str__(self) -> str:
        hidden = f"exposed; {milliseconds(self.hidden)} more hidden behind kernels"
        lines = [
            f"@{self.program} on rank {self.rank}: {self.calls} calls, {milliseconds(self.total)} each",
            *self._of_compute(),
            self._line("communication", self.exposed, hidden),
            self._line("waiting", self.waiting, waiting_text(self.waiting_for)),
            self._line("inputs, results", self.other),
            f"  {'between calls':<16}{milliseconds(self.between):>12}",
            *self._of_servers(),
            *self._of_steps(),
        ]
        return "\n".join(line.rstrip() for line in lines)

    def _repr_html_(self) -> str:
        """The display of notebooks."""
        from .report_page import fragment

        return fragment(self)

    def _of_compute(self) -> list[str]:
        if self.roofline is None:
            return [self._line("compute", self.compute)]
        return [
            self._line("least time", self.roofline.seconds, "of the steps, by their operations and bytes"),
            self._line("lost in steps", self.roofline.lost, _most(self.roofline.lost_by_kind)),
        ]

    def _of_steps(self) -> list[str]:
        if self.roofline is not None:
            return str(self.roofline).splitlines()
        steps = (f"  {milliseconds(seconds):>12}  {step}" for step, seconds in self.slowest())
        return ["the slowest steps", *steps]

    def _of_servers(self) -> list[str]:
        if not self.to_servers and not self.from_servers:
            return []
        late = [] if self.staleness is None else [f"  {self.staleness}"]
        return [f"  servers: {_size(self.to_servers)} pushed, {_size(self.from_servers)} pulled a call", *late]

    def _line(self, name: str, seconds: float, more: str = "") -> str:
        share = 100 * seconds / self.total if self.total else 0.0
        return f"  {name:<16}{milliseconds(seconds):>12}{share:7.1f} %  {more}"


def milliseconds(seconds: float) -> str:
    return f"{1e3 * seconds:.3f} ms"


def _most(lost: dict[str, float]) -> str:
    """The kinds of steps that lost most."""
    return ", ".join(f"{kind} {milliseconds(seconds)}" for kind, seconds in list(lost.items())[:3])


def _size(count: int) -> str:
    return f"{count / 1e6:.3f} MB" if count >= 1e5 else f"{count} bytes"


def waiting_text(waiting_for: dict[int, float]) -> str:
    """The ranks for which a rank waited, the longest wait first."""
    ranks = sorted(waiting_for.items(), key=lambda item: -item[1])
    text = ", ".join(f"rank {rank} {milliseconds(seconds)}" for rank, seconds in ranks if seconds > 0)
    return f"for {text}" if text else ""


@dataclasses.dataclass(frozen=True)
class Calls:
    """The complete calls of one program that one rank recorded, with the kinds of their events."""

    events: np.ndarray
    begins: np.ndarray  # indices of each call's first event
    ends: np.ndarray  # indices of each call's end event
    seconds: np.ndarray  # duration by event
    is_compute: np.ndarray
    is_communication: np.ndarray
    is_other: np.ndarray


def calls_of(rank: Rank, program: int, last: int | None = None) -> Calls:
    """Returns the calls of a program, or only the last ones if `last` is given."""
    events = rank.steps[rank.steps["program"] == program]
    kind, number = events["kind"], events["call"]
    seconds = np.append(np.diff(events["time"]), 0) * 1e-9
    begins = np.flatnonzero(kind == record.CALL)
    # Events other than steps and comparisons end a call.
    borders = np.append(np.flatnonzero((kind != record.STEP) & (kind != record.COMPARE)), len(events))
    ends = borders[np.searchsorted(borders, begins, side="right")]
    complete = ends < len(events)
    begins, ends = begins[complete], ends[complete]
    complete = (kind[ends] == record.END) & (number[ends] == number[begins])
    begins, ends = begins[complete], ends[complete]
    steps = rank.programs[program].steps if program in rank.programs else []
    # The last entry is for -1, all steps at once, and for steps without a name.
    communicates = np.array([step.is_communication for step in steps] + [False])
    if rank.lost and len(rank.transfers) and communicates.any():
        # The last collectives may reach less far back than the last steps. Earlier calls would seem not to wait.
        known = events["time"][begins] >= rank.transfers["time"][0]
        begins, ends = begins[known], ends[known]
    if last is not None:
        begins, ends = begins[-last:], ends[-last:]
    inside = np.zeros(len(events) + 1, np.int64)
    np.add.at(inside, begins, 1)
    np.add.at(inside, ends, -1)
    in_calls = np.cumsum(inside)[:-1] > 0
    index = np.where((events["step"] >= 0) & (events["step"] < len(steps)), events["step"], -1)
    is_step = in_calls & (kind == record.STEP)
    is_communication = is_step & communicates[index]
    return Calls(
        events=events,
        begins=begins,
        ends=ends,
        seconds=seconds,
        is_compute=is_step & ~is_communication,
        is_communication=is_communication | (in_calls & (kind == record.COMPARE)),
        is_other=in_calls & (kind == record.CALL),
    )


def transfers_of(rank: Rank) -> dict[str, np.ndarray]:
    """Returns the complete collectives: when each was posted, met and moved, and the rank that arrived last."""
    order = np.lexsort((rank.transfers["phase"], rank.transfers["sequence"], rank.transfers["communicator"]))
    events = rank.transfers[order]
    first, second, third = (events[i : len(events) - 2 + i] for i in range(3))
    whole = (first["phase"] == record.POSTED) & (second["phase"] == record.MET) & (third["phase"] == record.MOVED)
    for name in ("sequence", "communicator"):
        whole &= (first[name] == second[name]) & (first[name] == third[name])
    return {
        "posted": first["time"][whole],
        "met": second["time"][whole],
        "moved": third["time"][whole],
        "last": second["last"][whole],
        "communicator": first["communicator"][whole],
        "label": first["label"][whole],
    }


class _Within:
    """Computes the parts of intervals that are within a set of ordered intervals without overlap."""

    def __init__(self, begins: np.ndarray, ends: np.ndarray) -> None:
        self._edges = np.stack([begins, ends], axis=1).reshape(-1)
        self._sums = np.cumsum(np.append(0, np.diff(self._edges)) * (np.arange(len(self._edges)) % 2))

    def __call__(self, begins: np.ndarray, ends: np.ndarray) -> np.ndarray:
        """Returns the part of each interval from `begins` to `ends`, in seconds."""
        if len(self._edges) == 0:
            return np.zeros(len(begins))
        upto = [np.interp(times, self._edges, self._sums) for times in (begins, np.maximum(begins, ends))]
        return (upto[1] - upto[0]) * 1e-9


def report_of(rank: Rank, program: int, last: int | None = None) -> Report | None:
    """Returns the report of the last calls of a program, or of all; None if no call is complete."""
    calls = calls_of(rank, program, last)
    count = len(calls.begins)
    if count == 0:
        return None
    time = calls.events["time"]
    begin, end = time[calls.begins[0]], time[calls.ends[-1]]
    communicates = np.flatnonzero(calls.is_communication)
    within = _Within(time[communicates], time[communicates + 1])
    waiting_for, hidden = _transfers_in(rank, begin, end, within)
    communication = calls.seconds[calls.is_communication].sum()
    waiting = min(sum(waiting_for.values()), communication)
    between = (time[calls.begins[1:]] - time[calls.ends[:-1]]) * 1e-9
    named = rank.programs[program]
    indices = np.where(calls.is_compute | calls.is_communication, calls.events["step"], -1)
    of_step = np.zeros((count, len(named.steps)))
    known = (indices >= 0) & (indices < len(named.steps)) & (calls.events["kind"] == record.STEP)
    call = np.searchsorted(calls.begins, np.flatnonzero(known), side="right") - 1
    np.add.at(of_step, (call, indices[known]), calls.seconds[known])
    return Report(
        rank=rank.rank,
        program=named.name,
        calls=count,
        total=float((time[calls.ends] - time[calls.begins]).sum()) * 1e-9 / count,
        compute=float(calls.seconds[calls.is_compute].sum()) / count,
        exposed=float(communication - waiting) / count,
        waiting=float(waiting) / count,
        waiting_for={other: seconds / count for other, seconds in waiting_for.items()},
        hidden=hidden / count,
        other=float(calls.seconds[calls.is_other].sum()) / count,
        between=float(between.sum()) / max(count - 1, 1),
        steps=list(zip(named.steps, of_step.mean(axis=0).tolist(), strict=True)),
        to_servers=sum(step.bytes for step in named.steps if step.kind == "push"),
        from_servers=sum(step.bytes for step in named.steps if step.kind == "wait_pull"),
        usual=[*_usual(of_step), *_usual(between.reshape(-1, 1))],
    )


def _usual(seconds: np.ndarray) -> list[float]:
    """Returns the mean of each column without its CHANCE largest rows."""
    shortest = np.sort(seconds, axis=0)[:-CHANCE]
    return shortest.mean(axis=0).tolist() if len(shortest) else [0.0] * seconds.shape[1]


def _transfers_in(rank: Rank, begin: int, end: int, within: _Within) -> tuple[dict[int, float], float]:
    """Examines the collectives from `begin` to `end`. Returns the seconds that the own thread's collective steps
    waited, by the rank that arrived last, and the seconds in which data moved while that thread did something else."""
    waiting_for: dict[int, float] = defaultdict(float)
    hidden = 0.0
    transfers = transfers_of(rank)
    for communicator in np.unique(transfers["communicator"]):
        chosen = (
            (transfers["communicator"] == communicator) & (transfers["posted"] >= begin) & (transfers["moved"] <= end)
        )
        posted, met, moved, last = (transfers[name][chosen] for name in ("posted", "met", "moved", "last"))
        if len(posted) == 0:
            continue
        # Collectives run one after the other, so the wait for one begins after the previous one has moved.
        since = np.maximum(posted, np.append(posted[0], moved[:-1]))
        waits = within(since, met)
        for other in np.unique(last):
            if other not in (rank.rank, -1):  # otherwise the other ranks waited for this one
                waiting_for[int(other)] += float(waits[last == other].sum())
        hidden += float((moved - met).sum() * 1e-9 - within(met, moved).sum())
    return dict(waiting_for), max(hidden, 0.0)


def gradients_of(report: Report, tensors: list[tuple[str, int, int, int, list[int]]]) -> list[Gradient]:
    """Returns the gradients. `tensors` has the steps that compute, wait for and use each, as numbers; -1 for none."""
    seconds = np.array([each for _, each in report.steps])
    ends = np.append(np.cumsum(seconds), 0.0)  # the last is for -1
    return [
        Gradient(
            name,
            size,
            ready=float(ends[computed_by]),
            needed=float(ends[waited_by] - seconds[waited_by]),
            update=float(sum(seconds[used_by])),
        )
        for name, size, computed_by, waited_by, used_by in tensors
    ]


def report_of_executable(executable: Any, calls: int | None, roofline: Any = False, depth: Any = 2) -> Report:
    """Implements Executable.report()."""
    last = None if calls is None else checks.integer("report: calls", calls, 1)
    against = checks.flag("report: roofline", roofline)
    checks.integer("report: depth", depth, 1)
    recorded = executable._record()
    report = None if recorded is None else report_of(record.rank_of(recorded), recorded["program"], last)
    if report is None:
        raise Error("report: no call has ended yet, or the last one is too long ago")
    gradients = gradients_of(report, executable._reduced_tensors())
    return dataclasses.replace(
        report,
        gradients=gradients,
        staleness=_staleness_of(executable),
        roofline=roofline_of_executable(executable, depth, seconds_of_steps(report)) if against else None,
    )


def seconds_of_steps(report: Report) -> list[float]:
    """Returns the seconds of each step in a call. Raises an Error if some of the time of kernels is not of a step that
    is known, as on a GPU that runs all steps at once."""
    kernels = sum(seconds for step, seconds in report.steps if not step.is_communication)
    if kernels < (1 - 1e-6) * report.compute:
        raise Error(
            "report: roofline=True needs the time of each step, which is known on a GPU only with compile(profile=True)"
        )
    return [seconds for _, seconds in report.steps]


def _staleness_of(executable: Any) -> Staleness | None:
    if not executable._is_asynchronous:
        return None
    try:
        return executable.staleness()
    except Error:  # the servers or the program have failed, but the record is still there
        return None
