"""A short form of test/faults: each kind of fault once, on one host or two. Also checks the judgement of messages with
a table.
"""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path

import pytest

sys.path[:0] = [str(Path(__file__).resolve().parents[1] / folder) for folder in ("hosts", "faults")]

import server_jobs
from fault_tables import BEGIN, END, main, tables
from faults import KINDS, PLACES, RATE, Kind, Outcome, blamed, disturb
from hosts import Hosts, why_not

ON_TWO_HOSTS = ("kill", "cut")  # the other kinds on one host
ALIKE = {"down": "cut", "slow": "stop", "program": "state"}  # similar kinds, which only `make faults` runs
OF_ROLES = ("worker-kill-tolerant",)  # test_servers.py has one case of each other kind


@pytest.mark.skipif(bool(why_not()), reason=f"no hosts here: {why_not()}")
@pytest.mark.parametrize(
    "kind",
    [kind for kind in KINDS if (kind.name in OF_ROLES if kind.role else kind.name not in ALIKE)],
    ids=lambda kind: kind.name,
)
def test_the_culprit_is_named_and_nothing_stays(kind: Kind) -> None:
    place = "1x2+2" if kind.role else "2x2" if kind.name in ON_TWO_HOSTS else "1x2"
    # Long limits, because other things run on this machine: only who is named counts here. docs/faults.md has the
    # times.
    patient = dataclasses.replace(kind, limit=200, timeout=max(kind.timeout, 10))
    with Hosts(len(PLACES[place]), RATE) as hosts:
        outcome = disturb(patient, hosts, place, seed=7)
    assert not outcome.problems, outcome
    assert outcome.named or outcome.by_mpirun or kind.goes_on
    assert outcome.ended > 0


@pytest.mark.skipif(bool(why_not()), reason=f"no hosts here: {why_not()}")
def test_the_culprit_is_named_without_mpi_too() -> None:
    kind = next(kind for kind in KINDS if kind.name == "kill")
    with Hosts(2, RATE) as hosts:
        outcome = disturb(dataclasses.replace(kind, limit=200), hosts, "2x2", seed=7, without_mpi=True)
    assert not outcome.problems, outcome
    assert outcome.named or outcome.by_mpirun


TOLD = [
    ("rank 1 on host h1 (process 7) died while rank 0 on host h0 waited in barrier `b`", {1}),
    ("%l, at loss: rank 3 on host h1 gave up: rank 1 on host h9: no", {3}),
    ("rank 1 on host h1: its connection is lost: reset, while rank 0 on host h0 waits in all_reduce", {1}),
    ("rank 1 on host h1: its connection is closed, while rank 0 on host h0 waits in all_reduce", {1}),
    ("rank 0 on host h0 waited 3s in all_reduce f32[2] for rank 2 on host h1: stopped by a signal", {2}),
    ("rank 0 on host h0 waited 3s in x for rank 2 on host h1: alive; rank 3 on host h1: alive", {2, 3}),
    ("rank 0 on host h0 and rank 2 on host h1 disagree in collective number 3, x: they run", {0, 2}),
    ("rank 0 on host h0: /disk/a: No space left on device", {0}),
    ("label 99 at position [1] is outside [0, 5)", set()),
]


@pytest.mark.parametrize(("message", "ranks"), TOLD, ids=range(len(TOLD)))
def test_who_is_blamed_by_a_message(message: str, ranks: set[int]) -> None:
    assert blamed(message) == ranks


@pytest.mark.parametrize(
    ("message", "culprit"),
    [
        ("server 1 (rank 3 of the job, process 7 on host h) died: its connection is closed", ("server", 1)),
        (
            "server 0 (rank 2 of the job, process 7 on host h) says: worker 1 (process 8 on host g) died: x",
            ("worker", 1),
        ),
        ("waited 3s: a barrier waits for worker 1 (process 8 on host g), which is stopped by a signal", ("worker", 1)),
        ("key 'a' was not initialised", None),
    ],
)
def test_who_is_blamed_by_a_message_of_a_store(message: str, culprit: tuple[str, int] | None) -> None:
    assert server_jobs.blamed(message) == culprit


def test_the_tables_count_what_was_found(tmp_path: Path) -> None:
    kind = KINDS[0].name
    outcomes = [
        Outcome(kind, "1x2", 0, 1, 0.5, named=[0.2, 0.3], ended=2.0),
        Outcome(kind, "1x2", 1, 0, 0.5, named=[0.4], silent=1, ended=3.0),
        Outcome(kind, "2x4", 2, 0, 0.5, problems=["processes stay: [7]"], named=[9.0], ended=4.0),
    ]
    text = tables(outcomes)
    row, cells = (line for line in text.splitlines() if line.startswith(f"| {kind}"))
    assert "| 3 | 2 | 0.4 s, at most 9.0 s | 4 of 5 | 3.0 s, at most 4.0 s | 2 |" in row
    assert cells == f"| {kind} | 2 of 2 |  |  | 0 of 1 |  |"
    document = tmp_path / "faults.md"
    document.write_text(f"before\n{BEGIN}old\n{END}after\n")
    (tmp_path / "outcomes").write_text("")
    main(tmp_path / "outcomes", document)
    assert document.read_text() == f"before\n{BEGIN}{tables([])}{END}after\n"
