"""compile(buckets=report): buckets chosen from measured times are the same on all ranks and do not change any bit."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import lockstep as ls
from cases import CASES, run_share, sharded_step
from lockstep._compile import buckets as _buckets
from lockstep._reports import report as _report
from lockstep._reports.record import Step
from ranks import run_in_threads
from test_errors import raises
from test_shard_optimizer import MLP, weights

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent / "hosts"))

from hosts import Hosts, why_not

CALLS = 3
# Gradients in the order in which they are computed.
GRADIENTS = [f"grad/fc{layer}.{kind}" for layer in (3, 2, 1) for kind in ("bias", "weight")]
COSTS = [(64, 2_000), (4096, 3_000)]  # bytes, nanoseconds


def report(ready: dict[str, float], needed: float = 1e-3, program: str = "mlp", update: float = 0.0) -> _report.Report:
    """A report of a step with only these facts, in seconds."""
    gradients = [_report.Gradient(name, 64, seconds, needed, update) for name, seconds in ready.items()]
    return _report.Report(0, program, 1, 1.0, 1.0, 0.0, 0.0, {}, 0.0, 0.0, 0.0, [], gradients)


def late(names: list[str], seconds: float = 1e-3) -> dict[str, float]:
    """Times at which gradients are ready: `seconds` for these names, 0 for the others."""
    return {name: seconds if name in names else 0.0 for name in ["loss", *GRADIENTS]}


@pytest.fixture
def between_hosts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes ranks that are threads appear to be on several hosts."""
    monkeypatch.setattr(_buckets._lockstep, "_measure_costs", lambda world, mesh: [COSTS for _ in mesh])


def buckets(exe: ls.Executable) -> list[list[str]]:
    """The names of the reduced tensors, by bucket."""
    lines = [line for line in exe.collectives if line.startswith(("all_reduce", "reduce_scatter"))]
    return [line[line.index("(") + 1 : line.index(")")].replace("%", "").split(", ") for line in lines]


def on_ranks(ranks: int, body: Callable[[ls.Communicator], Any]) -> list[Any]:
    results = run_in_threads(ranks, body)
    for each in results:
        assert not isinstance(each, Exception), each
    assert len(results) == ranks
    return results


def compiled(world: ls.Communicator, **options: Any) -> ls.Executable:
    return ls.compile(sharded_step(MLP, ls.optim.Adam(1e-2)), world=world, threads=1, **options)


def test_times_of_gradients_are_those_of_steps() -> None:
    steps = [(Step("kernel", str(i), "", ""), seconds) for i, seconds in enumerate([1.0, 2.0, 4.0, 8.0, 16.0, 32.0])]
    told = dataclasses.replace(report({}), steps=steps)
    assert _report.gradients_of(told, [("a", 4, 1, 3, [4, 5]), ("b", 8, -1, 4, [])]) == [
        _report.Gradient("a", 4, ready=3.0, needed=7.0, update=48.0),
        _report.Gradient("b", 8, ready=0.0, needed=15.0, update=0.0),
    ]


def test_a_report_knows_when_gradients_are_ready() -> None:
    def body(world: ls.Communicator) -> _report.Report:
        exe = compiled(world)
        for number in range(CALLS):
            run_share(exe, MLP, world, number)
        return exe.report()

    for each in on_ranks(2, body):
        assert [gradient.name for gradient in each.gradients] == ["loss", *GRADIENTS]
        assert [gradient.bytes for gradient in each.gradients] == [4, 20, 160, 32, 512, 64, 768]
        ready = [gradient.ready for gradient in each.gradients]
        assert ready == sorted(ready)
        assert ready[0] > 0
        for gradient in each.gradients:
            assert gradient.needed >= ready[-1]
            assert gradient.needed + gradient.update <= each.total
            assert (gradient.update > 0) == (gradient.name != "loss") or gradient.name == "loss"


def test_each_time_of_a_report_is_passed_on() -> None:
    told = report({"a": 1.0, "b": 0.5}, needed=2.0, update=0.25)
    assert _buckets.times_of(told, 2) == {
        "a": (1_000_000_000, 2_000_000_000, 250_000_000),
        "b": (500_000_000, 2_000_000_000, 250_000_000),
    }


@pytest.mark.usefixtures("between_hosts")
def test_what_is_late_travels_alone() -> None:
    def body(world: ls.Communicator) -> list[list[str]]:
        return buckets(compiled(world, buckets=report(late(GRADIENTS[-1:]))))

    for each in on_ranks(2, body):
        assert each == [["loss", *GRADIENTS[:-1]], GRADIENTS[-1:]]


@pytest.mark.usefixtures("between_hosts")
def test_ranks_that_measured_differently_have_the_same_buckets() -> None:
    """With its own report each rank would choose other buckets, and none could load. The latest times of all ranks
    count.
    """
    of_ranks = [report(late(GRADIENTS[-1:])), report(late(GRADIENTS[-2:])), report(late(GRADIENTS[-3:]))]

    def alike(number: int) -> Callable[[ls.Communicator], list[list[str]]]:
        return lambda world: buckets(compiled(world, buckets=of_ranks[number]))

    plans = [on_ranks(3, alike(number))[0] for number in range(3)]
    assert len({json.dumps(plan) for plan in plans}) == 3
    together = on_ranks(3, lambda world: buckets(compiled(world, buckets=of_ranks[world.rank])))
    assert together == [plans[2]] * 3


@pytest.mark.usefixtures("between_hosts")
@pytest.mark.parametrize(
    ("case", "ranks"), list(zip(CASES, (2, 3, 2), strict=True)), ids=lambda each: getattr(each, "name", each)
)
def test_no_bit_depends_on_buckets(case: Any, ranks: int) -> None:
    step = sharded_step(case, case.optimizer)

    def train(world: ls.Communicator, **options: Any) -> tuple[list[list[str]], list[float], dict[str, np.ndarray]]:
        exe = ls.compile(step, world=world, threads=1, **options)
        losses = [run_share(exe, case, world, number) for number in range(CALLS)]
        exe.check_replicas()
        return buckets(exe), losses, weights(exe)

    def chosen(world: ls.Communicator) -> Any:
        exe = ls.compile(step, world=world, threads=1)
        run_share(exe, case, world, 0)
        told = exe.report()
        # As if each gradient were ready long after the one before it.
        last = len(told.gradients) * 1e-3
        apart = [dataclasses.replace(each, ready=i * 1e-3, needed=last) for i, each in enumerate(told.gradients, 1)]
        return train(world, buckets=dataclasses.replace(told, gradients=apart))

    expected = on_ranks(ranks, train)
    for others in (on_ranks(ranks, chosen), on_ranks(ranks, lambda world: train(world, bucket_bytes=1))):
        for (plain, losses, values), (other, other_losses, other_values) in zip(expected, others, strict=True):
            assert other != plain
            assert len(other) > 1
            assert other_losses == losses
            for name, value in values.items():
                np.testing.assert_array_equal(other_values[name], value, err_msg=name)


@pytest.mark.usefixtures("between_hosts")
@pytest.mark.parametrize("options", [{"shard_optimizer": True}, {"wire": "bf16"}], ids=str)
def test_slices_and_halves_are_known_too(options: dict[str, Any]) -> None:
    def body(world: ls.Communicator) -> tuple[list[list[str]], list[list[str]]]:
        first = compiled(world, **options)
        run_share(first, MLP, world, 0)
        told = first.report()
        last = max(told.gradients, key=lambda each: each.ready).name
        gradients = [dataclasses.replace(each, ready=float(each.name == last), needed=1.0) for each in told.gradients]
        second = compiled(world, buckets=dataclasses.replace(told, gradients=gradients), **options)
        assert run_share(second, MLP, world, 0) == pytest.approx(
            run_share(compiled(world, **options), MLP, world, 0), abs=0
        )
        return buckets(first), buckets(second)

    for first, second in on_ranks(2, body):
        assert len(second) == len(first) + 1
        assert any(len(bucket) == 1 and "fc1.weight" in bucket[0] for bucket in second), second


@pytest.mark.usefixtures("between_hosts")
@pytest.mark.parametrize(("wire", "measured_with"), [("bf16", None), (None, "bf16"), ("int8", None), ("int8", "bf16")])
def test_the_step_may_have_been_measured_with_another_wire(wire: str | None, measured_with: str | None) -> None:
    def body(world: ls.Communicator) -> tuple[int, int]:
        first = compiled(world, wire=measured_with)
        run_share(first, MLP, world, 0)
        told = first.report()
        last = len(told.gradients) * 1e-3
        apart = [dataclasses.replace(each, ready=i * 1e-3, needed=last) for i, each in enumerate(told.gradients, 1)]
        second = compiled(world, buckets=dataclasses.replace(told, gradients=apart), wire=wire)
        return len(compiled(world, wire=wire).collectives), len(second.collectives)

    for plain, chosen in on_ranks(2, body):
        assert chosen > plain


@pytest.mark.usefixtures("between_hosts")
def test_gradients_that_travel_as_int8_have_no_times() -> None:
    def body(world: ls.Communicator) -> None:
        first = compiled(world, wire="int8")
        run_share(first, MLP, world, 0)
        compiled(world, wire="int8", buckets=first.report())

    for message in errors_of(2, body):
        assert "the report has no times for any gradient of this program that travels as int8" in message
        assert "measure with another wire" in message


def test_nothing_is_chosen_where_ranks_share_memory() -> None:
    def body(world: ls.Communicator) -> None:
        told = report(late(GRADIENTS[-1:]))
        assert compiled(world, buckets=told).collectives == compiled(world).collectives

    on_ranks(2, body)


def test_one_rank_reduces_nothing() -> None:
    """A program that chooses buckets also runs without mpirun: the report of one rank has no gradients."""
    world = ls.Communicator.single()
    exe = compiled(world)
    run_share(exe, MLP, world, 0)
    assert exe.report().gradients == []
    for told in (exe.report(), report(late([]))):
        assert compiled(world, buckets=told).collectives == []


@pytest.mark.usefixtures("between_hosts")
def test_a_report_without_gradients() -> None:
    for message in errors_of(2, lambda world: compiled(world, buckets=report({}))):
        assert "compile: buckets: the report of @mlp has no gradients" in message


def errors_of(ranks: int, body: Callable[[ls.Communicator], Any]) -> list[str]:
    results = run_in_threads(ranks, body)
    assert all(isinstance(each, ls.Error) for each in results), results
    return [str(each) for each in results]


@pytest.mark.usefixtures("between_hosts")
def test_a_report_of_another_program() -> None:
    told = report({"grad/other": 1.0}, program="other")
    for message in errors_of(2, lambda world: compiled(world, buckets=told)):
        assert "the report has no times for any gradient of this program, such as" in message


@pytest.mark.parametrize(
    ("other", "parts"),
    [
        (report({"grad/other": 1.0}, program="other"), ["@other with 1", "only one has %grad/fc1.bias"]),
        (report(late([]), program="other"), ["@other with 7"]),
        (report(late([]) | {"grad/other": 1.0}), ["@mlp with 8", "only one has %grad/other"]),
    ],
)
def test_reports_of_different_programs(other: _report.Report, parts: list[str]) -> None:
    programs = [report(late([])), other]
    for message in errors_of(2, lambda world: compiled(world, buckets=programs[world.rank])):
        assert all(part in message for part in ["@mlp with 7", *parts, "reports of the same step"]), message


def test_only_one_rank_has_a_report() -> None:
    for message in errors_of(2, lambda world: compiled(world, buckets=report(late([])) if world.rank == 0 else None)):
        assert "times that buckets are chosen by" in message


@pytest.mark.parametrize(
    ("given", "parts"),
    [
        ("measured", ["is 'measured', expected", "report()"]),
        (report({"grad/fc1.bias": -1.0}), ["ready of grad/fc1.bias is -1.0"]),
        (report({"grad/fc1.bias": float("nan")}), ["ready of grad/fc1.bias is nan"]),
        (report({"grad/fc1.bias": 1e9}), ["ready of grad/fc1.bias is 1000000000.0 s, expected", "at most 1e+06"]),
    ],
)
def test_what_is_no_report(given: Any, parts: list[str]) -> None:
    with raises("compile: buckets", *parts):
        compiled(ls.Communicator.single(), buckets=given)


def test_a_program_that_is_not_optimized_has_no_buckets() -> None:
    with raises("compile: optimize=False does not go with buckets"):
        compiled(ls.Communicator.single(), buckets=report(late([])), optimize=False)


def test_gpus_have_no_times() -> None:
    with raises('compile: buckets does not go with backend="cuda"'):
        ls.compile(sharded_step(MLP, ls.optim.Adam(1e-2)), backend="cuda", buckets=report(late([])))


@pytest.mark.skipif(bool(why_not()), reason=f"no hosts here: {why_not()}")
def test_ranks_of_two_hosts_measure_and_agree() -> None:
    """At 8 Mb/s, sending fc1.weight, nearly all of a LeNet's bytes, takes longer than the computation behind it, even
    on a busy machine.
    """
    with Hosts(2, rate="8mbit") as hosts:
        done = subprocess.run(
            hosts.command([1, 1], sys.executable, HERE / "mpi_buckets.py", "5", options=["-x", "PYTHONPATH"]),
            env={**hosts.environment(), "PYTHONPATH": str(HERE.parents[1] / "python_bindings")},
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
    assert done.returncode == 0, done.stderr
    ranks = json.loads(done.stdout)
    assert [each["rank"] for each in ranks] == [0, 1]
    for each in ranks:
        assert each["collectives"] == ranks[0]["collectives"]
        assert each["losses"][0] == each["losses"][1] == ranks[0]["losses"][0]
    plain, chosen = ranks[0]["collectives"]
    assert len(chosen) > len(plain) == 2
    assert "grad/conv1.weight" in chosen[-1]
    assert "grad/fc1.weight" not in chosen[-1]
