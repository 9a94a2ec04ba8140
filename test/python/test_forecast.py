"""Forecasts: simulations compared with calculations by hand; machines, measured and in files; `lockstep forecast`."""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from lockstep import _lockstep
from lockstep._compile import machine as _machine
from lockstep._reports import job_report, record
from lockstep._reports import report as _report
from lockstep.forecast import Link, Machine, forecast, mean_of_ranks, picture, table
from ranks import mpirun
from test_errors import raises
from test_record import command

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent / "hosts"))

from hosts import Hosts, why_not

Step = record.Step


def kernel(seconds: float) -> tuple[Step, float]:
    return Step("kernel", "onednn.matmul", "", "", 0), seconds


def collective(name: str, label: str, size: int) -> tuple[tuple[Step, float], tuple[Step, float]]:
    """The start and the wait of a collective. Their measured times must not matter on another machine."""
    start, wait = (Step(kind, f"{name}.{kind}", "", label, size) for kind in ("start", "wait"))
    return (start, 7.0), (wait, 7.0)


def urgent(label: str, size: int) -> tuple[tuple[Step, float], tuple[Step, float]]:
    start, wait = collective("all_reduce", label, size)
    return (dataclasses.replace(start[0], urgent=True), start[1]), (dataclasses.replace(wait[0], urgent=True), wait[1])


def report(*steps: tuple[Step, float], other: float = 0.0) -> _report.Report:
    compute = sum(seconds for step, seconds in steps if not step.is_collective)
    return _report.Report(0, "step", 1, 0.0, compute, 0.0, 0.0, {}, 0.0, other, 0.0, list(steps))


START, WAIT = collective("all_reduce", "bucket 0", 3)
# Three bytes take 3 s to send, and half a second to arrive.
SLOW = Machine(between=Link(latency=0.5, bandwidth=1.0))


def test_what_is_not_hidden_is_waited_for() -> None:
    step = report(kernel(1), START, kernel(2), WAIT, kernel(1), other=0.25)
    one, two = forecast(step, SLOW, [1, 2])
    assert (one.seconds, one.exposed, one.sent, one.efficiency) == (4.25, 0, 0, 1)
    # Started at 1, arrived at 4.5; the kernel in between ends at 3.
    assert (two.seconds, two.compute, two.exposed, two.other, two.sent) == (5.75, 4, 1.5, 0.25, 3)
    assert two.efficiency == pytest.approx(4.25 / 5.75)
    (hidden,) = forecast(report(kernel(1), START, kernel(9), WAIT), SLOW, [2])
    assert (hidden.seconds, hidden.exposed) == (10, 0)


def test_what_is_urgent_does_not_queue() -> None:
    first, (start, wait) = collective("all_reduce", "bucket 0", 3), urgent("statistics", 1)
    (row,) = forecast(report(kernel(1), first[0], start, wait, kernel(2), first[1]), SLOW, [2])
    # The statistics are sent from 1 to 2 and arrive at 2.5; the bucket, which loses one second to them, arrives at 5.5.
    assert (row.seconds, row.exposed) == (5.5, 2.5)


def test_what_is_urgent_queues_behind_what_is_urgent() -> None:
    first, second = urgent("statistics 0", 3), urgent("statistics 1", 1)
    (row,) = forecast(report(kernel(1), first[0], second[0], second[1], first[1]), SLOW, [2])
    # Sent from 1 to 4 and from 4 to 5, and arrived half a second later.
    assert (row.seconds, row.exposed) == (5.5, 4.5)


def test_what_comes_behind_something_urgent_shares_the_wire_with_it() -> None:
    statistics, bucket = urgent("statistics", 1), collective("all_reduce", "bucket 0", 3)
    (row,) = forecast(report(kernel(1), statistics[0], kernel(0.5), bucket[0], statistics[1], bucket[1]), SLOW, [2])
    # The statistics are sent from 1 to 2, the bucket from 2 to 5.
    assert (row.seconds, row.compute) == (5.5, 1.5)


def test_what_is_on_its_way_takes_from_kernels_until_it_is_there() -> None:
    machine = Machine(between=Link(0.5, 1.0), processor=0.25)
    statistics, bucket = urgent("statistics", 3), collective("all_reduce", "bucket 0", 3)
    step = report(kernel(1), bucket[0], kernel(0.75), statistics[0], kernel(3), statistics[1], bucket[1])
    (row,) = forecast(step, machine, [2])
    # The bucket is sent from 1 on. The statistics begin at 2, so the bucket is sent at 7. Kernels of 3.75 s take 5 s
    # meanwhile.
    assert (row.compute, row.seconds) == (6, 7.5)


def test_what_is_urgent_delays_nothing_that_has_moved() -> None:
    first, second, statistics = (
        collective("all_reduce", "bucket 0", 3),
        collective("all_reduce", "bucket 1", 1),
        urgent("statistics", 3),
    )
    step = report(kernel(1), first[0], second[0], second[1], statistics[0], first[1], kernel(5), statistics[1])
    (row,) = forecast(step, SLOW, [2])
    # The buckets are sent at 4 and 5. A kernel runs from 5.5 on, and everything has arrived when it ends.
    assert row.seconds == 10.5


def test_a_forecast_of_a_job_is_of_its_ranks_in_the_mean() -> None:
    reports = [report(kernel(seconds), START, WAIT, other=seconds / 2) for seconds in (1.0, 3.0)]
    job = job_report.JobReport("", "", [], reports, {}, [])
    mean = mean_of_ranks(job)
    assert (mean.compute, mean.other) == (2, 1)
    assert [seconds for _, seconds in mean.steps] == [2, 7, 7]


def test_data_moves_in_the_order_of_the_starts() -> None:
    first, second = (collective("all_reduce", f"bucket {i}", 3) for i in range(2))
    step = report(kernel(1), first[0], kernel(1), second[0], second[1], first[1])
    (row,) = forecast(step, SLOW, [2])
    # The first one's data has been sent at 4, when the second one's begins.
    assert (row.seconds, row.exposed) == (7.5, 5.5)


def test_moving_takes_its_share_of_the_core_from_kernels_and_from_nobody_who_waits() -> None:
    machine = Machine(between=Link(0.5, 1.0), processor=0.25)
    (row,) = forecast(report(kernel(1), START, kernel(1.5), WAIT, kernel(1)), machine, [2])
    assert (row.compute, row.exposed, row.seconds) == (4, 1.5, 5.5), "a kernel of 1.5 s takes 2 s during the transfer"
    (row,) = forecast(report(kernel(1), START, kernel(6), WAIT), machine, [2])
    assert row.seconds == 7.75, "a quarter of 3 s more"
    # Three bytes take 6 s of the core, independent of the wire; a kernel continues when they have arrived.
    (row,) = forecast(report(kernel(1), START, kernel(1), WAIT), Machine(between=Link(0.5, 1.0), processor=2.0), [2])
    assert (row.compute, row.seconds) == (8, 8)


def test_ranks_of_a_host_move_data_when_they_wait_for_it_and_before_it_goes_to_others() -> None:
    within = Machine(ranks=2, within=Link(latency=0.125, bandwidth=2.0))
    (row,) = forecast(report(kernel(1), START, kernel(5), WAIT), within, [1])
    assert (row.seconds, row.exposed, row.ranks) == (7.625, 1.625, 2)
    both = Machine(ranks=2, within=Link(0.125, 2.0), between=Link(0.5, 1e9))
    (row,) = forecast(report(kernel(1), START, WAIT), both, [2])
    assert row.seconds == 1 + 1.625 + 0.5, "memory is slower than this wire"


def test_hosts_share_what_travels() -> None:
    size = 4_000_000
    step = report(kernel(1), *collective("all_reduce", "bucket 0", size))
    rows = forecast(step, Machine(between=Link(0.01, size)), [2, 4, 1000])
    assert [row.sent for row in rows] == [size, 2 * size * 3 // 4, 2 * size * 999 // 1000]
    assert [row.seconds for row in rows] == pytest.approx([2.01, 2.52, 3.018]), "one message, then two"
    assert _lockstep._travel("all_gather", size, 4, 1) == (1, size * 3 // 4)
    with raises("there is no collective sum"):
        _lockstep._travel("sum", size, 4, 1)


def test_collectives_go_by_the_route_that_is_quickest_on_the_link() -> None:
    size = 64 << 10
    assert _lockstep._travel("all_reduce", size, 1024, 1) == (20, 2 * size * 1023 // 1024), "by halving"
    assert _lockstep._travel("all_reduce", size, 1024, 1, latency=10.0) == (1, size * 1023), "to all"
    assert _lockstep._travel("all_reduce", size, 1024, 1, bandwidth=1e3) == (2, 2 * (size * 1023 // 1024)), "by owners"


def test_a_forecast_says_what_it_lacks() -> None:
    step = report(kernel(1), START, WAIT)
    with raises("forecast: the machine has no link between hosts", "one rank on each of two hosts") as error:
        forecast(step, Machine(), [1, 2])
    assert str(error.value).endswith(
        "\n\n[between]  # a message between two hosts, while all hosts send and receive as much\nlatency = 2e-05\n"
        "bandwidth = 1250000000.0"
    )
    with raises("forecast: the machine has no link of the 4 ranks within a host", "all ranks on") as error:
        forecast(step, Machine(ranks=4, between=Link(0, 1)), [2])
    assert "\n\n[within]  # an all_reduce of a host's ranks: latency + bytes / bandwidth\n" in str(error.value)
    with raises("forecast: @step has no collectives; compile it for several ranks"):
        forecast(report(kernel(1)), SLOW, [2])
    with raises("forecast: hosts is 0, expected at least 1"):
        forecast(step, SLOW, [0])
    for hosts, ranks in [(2**21, 1), (65536, 65536), (2**33, 1), (2**62, 2**62)]:  # the second product is 2**32
        for name in ("all_reduce", "all_gather"):
            step_of = report(kernel(1), *collective(name, "bucket 0", 3))
            with raises(f"{hosts} hosts of {ranks} ranks, expected 1 to 1048576 ranks in total"):
                forecast(step_of, Machine(ranks, Link(0, 1), Link(0, 1)), [hosts])
    (row,) = forecast(step, SLOW, [2**20])
    assert row.ranks == 2**20
    at_once = _report.Report(0, "step", 1, 9.0, 9.0, 0.0, 0.0, {}, 0.0, 0.0, 0.0, [kernel(0), START, WAIT])
    with raises("forecast: the steps of @step ran as one, so no step has a time; compile with profile=True"):
        forecast(at_once, SLOW, [2])


def test_a_table_and_a_picture(tmp_path: Path) -> None:
    rows = forecast(report(kernel(1), START, WAIT), SLOW, [1, 2])
    assert table(rows).splitlines()[2].split() == (
        ["2", "2", "4500.000", "ms", "1000.000", "ms", "3500.000", "ms", "0.000", "MB", "22.2%"]
    )
    for name in ("plot.svg", "plot.png"):
        picture(rows, str(tmp_path / name), "@step")
        assert (tmp_path / name).stat().st_size > 1000
    with raises("plot.what cannot be written: "):
        picture(rows, str(tmp_path / "plot.what"), "@step")


def test_a_machine_is_what_its_file_says(tmp_path: Path) -> None:
    path = str(tmp_path / "machine.toml")
    for machine in (
        Machine(),
        SLOW,
        Machine(operations=1e11, memory=2e10),
        Machine(4, Link(1e-6, 8e9), Link(2.5e-5, 1.2e8), 4e-10),
    ):
        machine.write(path)
        assert Machine.read(path) == machine
    for text, error in [
        ("ranks = 0", "ranks is 0, expected at least 1"),
        ("processor = -1", "processor is -1, expected a finite number of at least 0"),
        ("processor = nan", "processor is nan, expected a finite number of at least 0"),
        ('processor = "much"', "processor is 'much', expected a number"),
        ("rank = 2", "rank is not known, expected ranks, within, between, operations, memory, processor"),
        ("operations = 0", "operations is 0, expected a finite number above 0"),
        ('memory = "much"', "memory is 'much', expected a number"),
        ("[between]\nlatency = 1", "between is {'latency': 1}, expected latency and bandwidth"),
        ("[within]\nlatency = -1\nbandwidth = 2", "within.latency is -1, expected a finite number of at least 0"),
        ("[between]\nlatency = nan\nbandwidth = 2", "between.latency is nan, expected a finite number"),
        ("[between]\nlatency = inf\nbandwidth = 2", "between.latency is inf, expected a finite number"),
        ("[between]\nlatency = 0\nbandwidth = nan", "between.bandwidth is nan, expected a finite number above 0"),
        ("[between]\nlatency = 0\nbandwidth = inf", "between.bandwidth is inf, expected a finite number above 0"),
        ("ranks = true", "ranks is True, expected a whole number"),
        ("ranks = 1.5", "ranks is 1.5, expected a whole number"),
        ("[within]\nlatency = 1\nbandwidth = 0", "within.bandwidth is 0"),
        ("ranks =", "Invalid value"),
    ]:
        Path(path).write_text(text)
        with raises(f"{path}: {error}"):
            Machine.read(path)
    with raises(f"{tmp_path}/none.toml cannot be read: No such file"):
        Machine.read(str(tmp_path / "none.toml"))
    with raises(f"{tmp_path}/no/machine.toml cannot be written: No such file"):
        SLOW.write(str(tmp_path / "no" / "machine.toml"))


def world_of(*hosts: str) -> Any:
    return SimpleNamespace(size=len(hosts), host=hosts.__getitem__)


def test_a_link_is_what_explains_both_times(monkeypatch: pytest.MonkeyPatch) -> None:
    """On three hosts, between which more bytes travel than an all_reduce has."""

    def on(latency: float) -> Machine:
        def time(_: Any, size: int) -> _machine._Timed:
            messages, sent = _lockstep._travel("all_reduce", size, 3, 1)
            return _machine._Timed(messages * latency + sent / 1e8, sent * 2e-9)

        monkeypatch.setattr(_machine, "_time", time)
        return _machine.measure(world_of("a", "b", "c"), Machine(ranks=2, within=Link(1e-6, 8e9)))

    measured = on(3e-5)
    assert (measured.ranks, measured.within) == (2, Link(1e-6, 8e9)), "what was known stays"
    assert measured.between is not None
    assert measured.between.latency == pytest.approx(3e-5)
    assert measured.between.bandwidth == pytest.approx(1e8)
    assert measured.processor == pytest.approx(2e-9)
    disturbed = on(-1e-6)  # the large message was fast by chance
    assert disturbed.between is not None and disturbed.between.latency == 0


def test_some_ranks_on_some_hosts_measure_nothing() -> None:
    with raises("3 ranks on 2 hosts: measure within a host with all ranks on one, and between hosts with one rank on"):
        _machine.measure(world_of("a", "a", "b"), Machine())


def test_a_call_takes_what_the_slowest_rank_needs_and_all_calls_cost(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[int] = []

    def times(_world: Any, _size: int, count: int) -> list[float]:
        calls.append(count)
        return [0.01] * count

    processor = iter([1.0, 3.0])  # processor seconds of the process, before and after
    monkeypatch.setattr(_machine._lockstep, "_time_all_reduce", times)
    monkeypatch.setattr(_machine, "_processor_seconds", lambda: next(processor))
    # Another rank takes twice as long, and twice as much of its core.
    world = SimpleNamespace(gather_bytes=lambda mine, _: [mine, bytes(2 * np.frombuffer(mine))])
    timed = _machine._time(world, 64)
    assert calls == [1, 100], "two seconds of the slowest rank"
    assert timed.seconds == 0.02
    assert timed.processor == pytest.approx((2.0 + 4.0) / 2 / 101), "over the timed calls and the one before them"


def test_one_rank_has_nothing_to_measure(tmp_path: Path) -> None:
    done = command("doctor", "--measure", tmp_path / "machine.toml")
    assert done.returncode == 1
    assert done.stderr.startswith("lockstep doctor: one rank cannot measure communication: start several ranks")
    assert not (tmp_path / "machine.toml").exists()


def test_a_job_on_a_host_is_measured_traced_and_forecast(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    machine, traces = tmp_path / "machine.toml", tmp_path / "traces"
    done = mpirun(2, HERE.parents[1] / "python_bindings/lockstep/_command.py", "doctor", "--measure", machine)
    assert done.returncode == 0, done.stderr
    measured = Machine.read(str(machine))
    assert measured.ranks == 2
    assert measured.within is not None and measured.within.bandwidth > 1e7 and measured.within.latency < 0.1
    assert measured.between is None
    monkeypatch.setenv("LOCKSTEP_TRACE", str(traces))
    assert mpirun(2, HERE / "mpi_record.py", "run", "4").returncode == 0
    monkeypatch.delenv("LOCKSTEP_TRACE")
    done = command("forecast", traces, machine)
    assert done.stderr.startswith("lockstep forecast: forecast: the machine has no link between hosts. ")
    machine.write_text(machine.read_text() + done.stderr[done.stderr.index("[between]") :])
    done = command("forecast", traces, machine, "--hosts", "1,8", "--picture", tmp_path / "plot.svg")
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0].startswith("@work as on 2 ranks of ")
    assert [line.split()[:2] for line in lines[2:4]] == [["1", "2"], ["8", "16"]]
    assert lines[-1] == f"the same as a picture: {tmp_path / 'plot.svg'}"


@pytest.mark.skipif(bool(why_not()), reason=f"no hosts: {why_not()}")
def test_the_link_between_hosts_is_measured(tmp_path: Path) -> None:
    machine = tmp_path / "machine.toml"
    Machine(ranks=2, within=Link(1e-6, 8e9)).write(str(machine))
    with Hosts(2, rate="200mbit") as hosts:
        done = hosts.mpirun(
            [1, 1],
            sys.executable,
            HERE.parents[1] / "python_bindings/lockstep/_command.py",
            "doctor",
            "--measure",
            machine,
        )
    assert done.returncode == 0, done.stderr
    measured = Machine.read(str(machine))
    assert (measured.ranks, measured.within) == (2, Link(1e-6, 8e9)), "what was known stays"
    assert measured.between is not None
    assert 10e6 < measured.between.bandwidth < 30e6, "25 MB/s, in each direction"
    assert 0 <= measured.between.latency < 0.05
    assert 0 < measured.processor < 1e-6
