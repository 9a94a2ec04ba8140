"""`lockstep elastic`: jobs that lose a rank or a host continue from their last checkpoint, and end as if nothing had
happened.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lockstep._launch import elastic as _elastic
from lockstep._launch import supervise
from mpi_elastic import BATCH, PER_EPOCH, SAVE_EVERY, STEPS
from ranks import MPI_ENVIRONMENT
from test_launch_killed import mpirun_of

HERE = Path(__file__).parent
LOCKSTEP = HERE.parents[1] / "tools" / "lockstep"
PROGRAM = HERE / "mpi_elastic.py"
sys.path.insert(0, str(HERE.parent / "hosts"))

from hosts import Hosts, why_not

ENVIRONMENT = {**os.environ, **MPI_ENVIRONMENT}


def elastic(folder: Path, *faults: str, ranks: int = 2, restarts: int = 3) -> subprocess.CompletedProcess[str]:
    command = ["mpirun", "-np", ranks, sys.executable, PROGRAM, folder, *faults]
    return run([LOCKSTEP, "elastic", "--restart", restarts, "--", *command])


def run(command: list[Any], environment: Mapping[str, str] = ENVIRONMENT) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        list(map(str, command)), env=environment, capture_output=True, text=True, timeout=240, check=False
    )


def reports_of(folder: Path, ranks: int) -> list[dict[str, Any]]:
    reports = [json.loads((folder / f"{rank}.json").read_text()) for rank in range(ranks)]
    assert [report["size"] for report in reports] == [ranks] * ranks
    return reports


def trained_by(folder: Path) -> dict[int, dict[int, list[int]]]:
    """The samples that all ranks together trained, by attempt and step."""
    trained: dict[int, dict[int, list[int]]] = {}
    for path in sorted(folder.glob("*.trained")):
        for line in path.read_text().splitlines():
            attempt, step, *rows = map(int, line.split())
            trained.setdefault(attempt, {}).setdefault(step, []).extend(rows)
    return trained


def assert_trained_once(folder: Path, begins: list[int]) -> None:
    """Asserts that the attempts began after these steps, and that the final states have seen every batch of the epochs
    once.
    """
    trained = trained_by(folder)
    assert sorted(trained) == list(range(len(begins)))
    counts: dict[int, list[int]] = {}
    for attempt, begin in enumerate(begins):
        steps = sorted(trained[attempt])
        assert steps[0] == begin + 1
        end = begins[attempt + 1] if attempt + 1 < len(begins) else STEPS
        assert end <= steps[-1], "no step before the checkpoint is missing"
        counts |= {step: trained[attempt][step] for step in range(begin + 1, end + 1)}
    assert sorted(counts) == list(range(1, STEPS + 1))
    for first in range(0, STEPS - PER_EPOCH + 1, PER_EPOCH):
        epoch = [row for step in range(first + 1, first + PER_EPOCH + 1) for row in counts[step]]
        assert sorted(epoch) == list(range(BATCH * PER_EPOCH))


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The states after a run without faults."""
    folder = tmp_path_factory.mktemp("uninterrupted")
    done = elastic(folder)
    assert done.returncode == 0, done.stderr
    assert "lockstep elastic" not in done.stderr, "there is no output without a fault"
    assert_trained_once(folder, [0])
    return reports_of(folder, 2)[0]["state"]


def test_a_job_that_loses_ranks_ends_as_if_it_had_not(uninterrupted: dict[str, Any], tmp_path: Path) -> None:
    done = elastic(tmp_path, "die 0 1 12", "die 1 0 17")
    assert done.returncode == 0, done.stderr
    assert "restart 1 of 3" in done.stderr
    assert "restart 2 of 3" in done.stderr
    assert "restart 3" not in done.stderr
    begins = [0, SAVE_EVERY * (12 // SAVE_EVERY), SAVE_EVERY * (17 // SAVE_EVERY)]
    assert_trained_once(tmp_path, begins)
    for report in reports_of(tmp_path, 2):
        assert (report["attempt"], report["begin"]) == (2, begins[2])
        assert report["state"] == uninterrupted, "bit by bit"


def test_a_job_that_fails_always_is_given_up(tmp_path: Path) -> None:
    done = elastic(tmp_path, "raise 0 1 2", "raise 1 1 4", restarts=1)
    assert done.returncode not in (0, 2), done.stderr
    assert done.stderr.count("the job failed after") == 2
    assert done.stderr.count("ValueError: no more data\n") >= 2
    assert sorted(trained_by(tmp_path)) == [0, 1]
    assert not list(tmp_path.glob("*.json"))


def test_what_a_job_leaves_is_ended_first(tmp_path: Path) -> None:
    """mpirun itself is killed, so it cannot end its ranks."""
    command = ["mpirun", "-np", "2", sys.executable, PROGRAM, tmp_path, "wait 0 1 7"]
    supervisor = subprocess.Popen(
        [LOCKSTEP, "elastic", "--restart", "1", "--", *command], env=ENVIRONMENT, stderr=subprocess.PIPE, text=True
    )
    await_file(tmp_path / "waits")
    before = below(supervisor.pid)
    assert len(before) >= 3
    os.kill(mpirun_of(supervisor.pid), signal.SIGKILL)
    stderr = supervisor.communicate(timeout=240)[1]
    assert supervisor.returncode == 0, stderr
    assert "exit code 137" in stderr
    assert ended(before)
    assert_trained_once(tmp_path, [0, 5])


def test_who_is_told_to_end_ends_the_job(tmp_path: Path) -> None:
    command = ["mpirun", "-np", "2", sys.executable, PROGRAM, tmp_path, "wait 0 0 3"]
    supervisor = subprocess.Popen([LOCKSTEP, "elastic", "--", *command], env=ENVIRONMENT)
    await_file(tmp_path / "waits")
    before = below(supervisor.pid)
    supervisor.terminate()
    assert supervisor.wait(timeout=60) == 128 + signal.SIGTERM
    assert ended(before)
    assert sorted(trained_by(tmp_path)) == [0], "the job is not restarted"


@pytest.mark.skipif(bool(why_not()), reason=f"no hosts here: {why_not()}")
def test_a_job_goes_on_without_a_host_that_is_gone(uninterrupted: dict[str, Any], tmp_path: Path) -> None:
    with Hosts(3) as hosts:
        places = ",".join(f"{name}:1" for name in hosts.names)
        command = [
            *(LOCKSTEP, "elastic", "--restart", "2", "--hosts", places, "--min-ranks", "2", "--"),
            *("mpirun", "-x", "PYTHONPATH", sys.executable, PROGRAM, tmp_path, "wait 0 2 13"),
        ]
        environment = {**hosts.environment(), "PYTHONPATH": str(HERE.parents[1] / "python_bindings")}
        supervisor = subprocess.Popen(
            hosts.on_first(*command), env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
        )
        await_file(tmp_path / "waits")
        hosts.set_link(2, "down")
        stderr = supervisor.communicate(timeout=240)[1]
        assert supervisor.returncode == 0, stderr
        assert f"rank 2 on host {hosts.names[2]}" in stderr
        assert f"host {hosts.names[2]} does not answer" in stderr
        assert f"restart 1 of 2 on {hosts.names[0]}:1,{hosts.names[1]}:1\n" in stderr
        assert_trained_once(tmp_path, [0, 10])
        reports = reports_of(tmp_path, 2)
        assert [report["host"] for report in reports] == hosts.names[:2]
    for name, value in uninterrupted.items():
        np.testing.assert_allclose(reports[0]["state"][name], value, rtol=1e-4, atol=1e-6, err_msg=name)


@pytest.mark.skipif(bool(why_not()), reason=f"no hosts here: {why_not()}")
def test_too_few_ranks_are_left(tmp_path: Path) -> None:
    with Hosts(2) as hosts:
        hosts.set_link(1, "down")
        places = ",".join(f"{name}:1" for name in hosts.names)
        command = [LOCKSTEP, "elastic", "--restart", "1", "--hosts", places, "--", "mpirun", sys.executable, PROGRAM]
        done = run(hosts.on_first(*command, tmp_path), hosts.environment())
    assert done.returncode not in (0, 2)
    assert f"host {hosts.names[1]} does not answer" in done.stderr
    assert "restart 1 of 1: 1 ranks are left, 2 are needed" in done.stderr
    assert not trained_by(tmp_path)


def test_all_hosts_are_asked_before_each_restart(monkeypatch: pytest.MonkeyPatch) -> None:
    hosts, answers = {"h0": 1, "h1": 2}, [{"h0": 1}, {"h0": 1, "h1": 2}, {"h0": 1}]
    asked: list[Mapping[str, int]] = []
    pauses: list[float] = []
    ran: list[str] = []
    monkeypatch.setattr(_elastic, "_hosts_that_answer", lambda _, of: asked.append(of) or answers[len(asked) - 1])
    monkeypatch.setattr(
        _elastic.supervise, "run", lambda command, *_: ran.append(command[command.index("--host") + 1]) or 5
    )
    monkeypatch.setattr(_elastic.time, "sleep", pauses.append)
    assert _elastic._attempts(["mpirun", "program"], 3, hosts, 2) == 5
    assert asked == [hosts] * 3, "a host that did not answer is asked again"
    assert ran == ["h0:1,h1:2"] * 2, "the job does not run with one of two ranks"
    assert pauses == [_elastic.PAUSE_SECONDS, 0], "there is no pause after the last attempt"


def test_who_has_set_how_soon_a_lost_host_is_noticed_is_right(monkeypatch: pytest.MonkeyPatch) -> None:
    name = "OMPI_MCA_oob_tcp_keepalive_time"
    monkeypatch.delenv(name, raising=False)
    assert _elastic._environment(1)[name] == "10"
    monkeypatch.setenv(name, "30")
    assert _elastic._environment(1)[name] == "30"


@pytest.mark.parametrize(("linger", "code"), [(0.5, 137), (30, 3)])
def test_mpirun_is_ended_if_it_stays_long_after_its_ranks(linger: float, code: int) -> None:
    """mpirun may end by itself a little later than its ranks, with its own exit code."""
    mpirun = "env OMPI_COMM_WORLD_RANK=0 sleep 1.5; sleep 3; exit 3"
    program = f"""
from lockstep._launch import supervise
supervise.LINGER_SECONDS = {linger}
print(supervise.run(["bash", "-c", {mpirun!r}], {{}}, lambda text: None))
"""
    environment = {**ENVIRONMENT, "PYTHONPATH": str(HERE.parents[1] / "python_bindings")}
    done = run([sys.executable, "-c", program], environment)
    assert done.stdout == f"{code}\n", done.stderr


@pytest.mark.parametrize(
    ("ends", "code", "said"),
    [
        (["with exit code 0", "with exit code 0"], 0, "the job has not ended within 1 s after all ranks"),
        (["with exit code 3"], 3, "the job has not ended within 1 s after rank 0 failed"),
    ],
)
def test_mpirun_has_a_time_wherever_the_ranks_are(tmp_path: Path, ends: list[str], code: int, said: str) -> None:
    """All ranks are on other hosts, and mpirun does not notice that they have ended."""
    notes = [
        f"[1,{rank}]<stderr>:lockstep launch: ended {how} on host far, one of 2 ranks" for rank, how in enumerate(ends)
    ]
    fake = tmp_path / "mpirun"
    fake.write_text("#!/bin/sh\n" + "".join(f"echo '{note}' >&2\n" for note in notes) + "exec sleep 100\n")
    fake.chmod(0o755)
    program = f"""
from lockstep import _command
from lockstep._launch import ends
ends.LINGER_SECONDS = ends.LOST_SECONDS = 1
raise SystemExit(_command.main(["elastic", "--restart", "1", "--", {str(fake)!r}, "train"]))
"""
    done = run([sys.executable, "-c", program], {**ENVIRONMENT, "PYTHONPATH": str(HERE.parents[1] / "python_bindings")})
    assert done.returncode == code, done.stderr
    lines = done.stderr.splitlines()
    assert lines[0] == f"lockstep elastic: {said}"
    assert lines.count("lockstep elastic: rank 0 on host far ended with exit code 3") == (2 if code else 0)
    assert ("lockstep elastic: restart 1 of 1" in lines) == bool(code)


def test_ranks_write_what_they_would_under_mpirun() -> None:
    """Ranks' output has no notes about their end, and no rank's name in front."""
    script = "echo from $LOCKSTEP_ATTEMPT; [ -t 1 ] && echo terminal; echo words >&2; exit 4"
    done = run([LOCKSTEP, "elastic", "--restart", "0", "--", "mpirun", "-np", "1", "sh", "-c", script])
    assert (done.returncode, done.stdout) == (4, "from 0\nterminal\n")
    assert done.stderr.startswith("words\n") and "lockstep launch" not in done.stderr
    last = done.stderr.splitlines()[-1]
    assert re.fullmatch(r"lockstep elastic: rank 0 on host \S+ ended with exit code 4: words", last), last


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "the command after -- is missing, expected mpirun"),
        (["--", "python", "train.py"], "the command after -- is python, expected mpirun"),
        (["--restart", "-1", "--", "mpirun"], "--restart is -1, expected at least 0"),
        (["--hosts", "h0:2,h1:0", "--", "mpirun"], "--hosts: 'h1:0' is not HOST or HOST:N"),
        (["--hosts", "h0,,h1", "--", "mpirun"], "--hosts: '' is not HOST or HOST:N"),
        (["--hosts", "h0,h0:2", "--", "mpirun"], "--hosts: h0 is there twice"),
        (["--hosts", "h0", "--", "mpirun", "-x", "A", "-np", "2", "true"], "the command after -- has -np, but --hosts"),
        (["--hosts", "h0", "--", "mpirun", "--host", "h1", "true"], "the command after -- has --host, but --hosts"),
        (["--min-ranks", "2", "--", "mpirun"], "--min-ranks requires --hosts"),
        (["--hosts", "h0:2,h1", "--min-ranks", "4", "--", "mpirun"], "--min-ranks is 4, expected 1 to 3, the ranks"),
    ],
)
def test_wrong_arguments(arguments: list[str], message: str) -> None:
    done = run([LOCKSTEP, "elastic", *arguments])
    assert done.returncode == 1
    assert done.stderr.startswith(f"lockstep elastic: {message}"), done.stderr


def test_options_of_the_program_are_its_own() -> None:
    _elastic._check_leaves_places(["mpirun", "-x", "A", "env", "-n", "--host", "h"])


def ended(processes: Sequence[int]) -> bool:
    """Returns True if these processes are gone within seconds; a killed one may be visible until the system has cleaned
    up.
    """
    return supervise.wait_until(lambda: not any(Path(f"/proc/{each}").exists() for each in processes), 10)


def await_file(path: Path) -> None:
    end = time.monotonic() + 120
    while not path.exists():
        assert time.monotonic() < end, f"there is no {path}"
        time.sleep(0.02)


def below(process: int) -> dict[int, int]:
    """The processes below this one, with the parent of each."""
    parents = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            parents[int(stat.parent.name)] = int(stat.read_text().rpartition(")")[2].split()[1])
        except OSError:
            continue  # the process has ended
    found = [process]
    for each in found:
        found += [child for child, parent in parents.items() if parent == each]
    return {each: parents[each] for each in found[1:]}
