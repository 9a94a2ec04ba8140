"""Parameter servers as ranks of an mpirun job: their computations, refusals, and the names in errors when a process is
gone.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import lockstep as ls
from ranks import MPI_ENVIRONMENT

WORKER = Path(__file__).with_name("mpi_servers.py")
HOST = socket.gethostname()


class Job:
    """A job of `workers` workers and `servers` servers."""

    def __init__(
        self, folder: Path, mode: str, workers: int = 2, servers: int = 2, options: tuple[str, ...] = (), **env: str
    ) -> None:
        self.folder, self.workers = folder, workers
        roles = {"LOCKSTEP_WORKERS": str(workers), "LOCKSTEP_SERVERS": str(servers)}
        serve = (sys.executable, "-m", "lockstep", "serve", "--timeout", "60")
        command = ("mpirun", *options, "-n", str(workers), sys.executable, str(WORKER), mode, str(folder))
        command += (":", "-n", str(servers), *serve)
        self.process = subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env={**os.environ, **MPI_ENVIRONMENT, **roles, **env},
            start_new_session=True,
        )

    def end(self, timeout: float = 60) -> tuple[int, str, float]:
        """Returns the exit code, the output, and the time of the end."""
        output, _ = self.process.communicate(timeout=timeout)
        return self.process.returncode, output, time.time()

    def reports(self) -> list[dict[str, Any]]:
        return [json.loads(file.read_text()) for file in sorted(self.folder.glob("*.json"))]

    def processes(self, word: str) -> list[int]:
        """The processes of this job whose command contains the word, in the order of their starts."""
        found = []
        for child in Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split():
            with contextlib.suppress(OSError):
                if word in Path(f"/proc/{child}/cmdline").read_text().split("\0"):
                    found.append(int(child))
        return sorted(found)

    def await_start(self) -> None:
        end = time.monotonic() + 30
        while len(list(self.folder.glob("*.started"))) < self.workers:
            assert time.monotonic() < end, "the job does not start"
            assert self.process.poll() is None, self.end()[1]
            time.sleep(0.05)
        time.sleep(0.3)


@contextlib.contextmanager
def job(folder: Path, mode: str, **given: Any) -> Iterator[Job]:
    running = Job(folder, mode, **given)
    try:
        yield running
    finally:
        if running.process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(running.process.pid, signal.SIGKILL)
            running.process.wait()


def run(folder: Path, mode: str, **given: Any) -> list[dict[str, Any]]:
    with job(folder, mode, **given) as running:
        code, output, _ = running.end()
        reports = running.reports()
        assert code == 0 and len(reports) == running.workers, output
    return reports


# Computations


def test_one_worker_trains_as_a_local_store_bit_by_bit(tmp_path: Path) -> None:
    (report,) = run(tmp_path, "sequential", workers=1)
    assert report["staleness"] == {"0": 90}  # 18 steps; two keys are cut over both servers


def test_no_push_is_lost(tmp_path: Path) -> None:
    reports = run(tmp_path, "lost", workers=3)
    assert [report["size"] for report in reports] == [3, 3, 3]  # servers do not count as workers
    assert "on average, at most" in reports[0]["staleness"]


def test_optimizer_states_go_to_a_file_and_come_back(tmp_path: Path) -> None:
    for report in run(tmp_path, "states"):
        # Two workers' pushes of 1, scaled by a half: v = .5, then .95. Then two pushes of 0: v = .855, then .7695.
        assert [len(moved) for moved in report["moved"]] == [1, 1, 1] or all(
            max(moved) - min(moved) < 2e-4 for moved in report["moved"]
        )
        for moved in report["moved"]:
            assert moved[0] == pytest.approx(-0.1 * (0.855 + 0.7695), abs=2e-4)


# Refusals


def test_wrong_calls(tmp_path: Path) -> None:
    for rank, report in enumerate(run(tmp_path, "errors")):
        updater, compression, schedule, early, cut, setting, unknown, twice = report["errors"]
        assert "servers run no Python code of workers" in updater
        assert "compresses nothing" in compression
        assert "learning_rate follows a function" in schedule
        assert early.startswith(f"push on rank {rank} of 2: key 'small': ")
        assert "set an optimizer before the first push" in early
        assert f"on rank {rank} of 2: key 'wide' lies on 2 servers, and LAMB updates an array as a whole" in cut
        assert "set: the optimizer SGD has no bogus that can be set" in setting
        assert "key 'other' was not initialised" in unknown
        assert "key 'small' was initialised before" in twice
        keys, types, there, optimizer, optimizers, numbers, calls = report["of one"]
        assert keys == "init: workers have different keys: worker 0 key 'of 0', f32[3], worker 1 key 'of 1', f32[3]"
        assert types.endswith("worker 0 key 'typed', f32[3], worker 1 key 'typed', f64[3]")
        alone = ("key small is there already", "unknown optimizer 'none'")
        for found, expected, call in zip((there, optimizer), alone, ("init", "set_optimizer"), strict=True):
            assert found.startswith(expected if rank == 0 else f"{call} on worker 0: {expected}")
        assert re.search("set_optimizer: workers have different optimizers: worker 0 SGD.*worker 1 SGD", optimizers)
        assert numbers.endswith("worker 0 {'learning_rate': 0.5}, worker 1 {'learning_rate': 1.0}")
        assert re.search("workers make different calls: worker . (barrier|set), worker . (barrier|set)", calls)
        begins = "" if rank == 0 else "init on worker 0: "
        assert report["names"] == [f"{begins}key {key} is there already" for key in ("1", "'1'")]


def test_a_job_without_servers(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ls.Error, match="needs parameter servers, but this job has none"):
        ls.kv.create("dist_async", ls.Communicator.single())


@pytest.mark.parametrize(
    ("environment", "message"),
    [
        ({"LOCKSTEP_WORKERS": "2", "LOCKSTEP_SERVERS": "2"}, "LOCKSTEP_WORKERS=2 and LOCKSTEP_SERVERS=2 are 4 ranks"),
        ({"LOCKSTEP_SERVERS": "1"}, "LOCKSTEP_SERVERS=1 and no LOCKSTEP_WORKERS"),
        ({"LOCKSTEP_SERVERS": "one", "LOCKSTEP_WORKERS": "1"}, "LOCKSTEP_SERVERS is 'one', expected a number"),
        ({"LOCKSTEP_SERVERS": "1", "LOCKSTEP_WORKERS": "-1"}, "LOCKSTEP_WORKERS is '-1', expected a number"),
        ({"LOCKSTEP_SERVERS": "0", "LOCKSTEP_WORKERS": "5"}, None),
    ],
)
def test_wrong_counts(environment: dict[str, str], message: str | None) -> None:
    program = "import lockstep as ls; print('size', ls.Communicator.mpi().size)"
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, **MPI_ENVIRONMENT, **environment},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    if message is None:
        assert "size 1" in done.stdout, done.stderr
    else:
        assert done.returncode != 0 and message in done.stderr


def test_a_server_that_is_started_by_hand() -> None:
    command = [sys.executable, "-m", "lockstep", "serve"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1
    assert "lockstep serve: a server is a rank of a job whose environment has LOCKSTEP_WORKERS" in done.stderr


def test_ranks_in_the_wrong_places(tmp_path: Path) -> None:
    environment = {**os.environ, **MPI_ENVIRONMENT, "LOCKSTEP_WORKERS": "1", "LOCKSTEP_SERVERS": "1"}
    command = ["mpirun", "-n", "2", sys.executable, str(WORKER), "lost", str(tmp_path)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode != 0
    assert f"rank 1 on host {HOST} is a worker, but with LOCKSTEP_WORKERS=1 and LOCKSTEP_SERVERS=1" in done.stderr


# Names in errors when a process is gone


def test_a_worker_that_is_killed_ends_the_job(tmp_path: Path) -> None:
    with job(tmp_path, "fault") as running:
        running.await_start()
        begin = time.time()
        (tmp_path / "kill-worker").touch()
        code, output, end = running.end()
    assert code != 0 and end - begin < 10, output
    # mpirun ends the others at once; those that can still report name the worker.
    for report in running.reports():
        assert "worker 1 (process" in report["error"], output


def test_a_worker_that_is_killed_is_left_out_if_asked(tmp_path: Path) -> None:
    tolerant = {"LOCKSTEP_TOLERATE_WORKERS": "1", "TEST_SECONDS": "3", "TEST_VICTIM": "0"}
    with job(tmp_path, "fault", workers=3, options=("--enable-recovery",), **tolerant) as running:
        running.await_start()
        (tmp_path / "kill-worker").touch()
        code, output, _ = running.end()
        reports = running.reports()
    assert code == 0, output
    assert [report["rank"] for report in reports] == [1, 2]
    for report in reports:
        assert report["finished"] and report["steps"] > 50, output
        assert report["moved"] == pytest.approx(1.0, abs=1e-3), output  # by 0.5 for each of two workers' pushes


@pytest.mark.parametrize("options", [(), ("--enable-recovery",)])
def test_a_server_that_is_killed_ends_the_job(tmp_path: Path, options: tuple[str, ...]) -> None:
    with job(tmp_path, "fault", options=options) as running:
        running.await_start()
        victim = running.processes("serve")[1]
        begin = time.time()
        os.kill(victim, signal.SIGKILL)
        code, output, end = running.end()
    reports = running.reports()
    assert end - begin < 10, output
    if options:  # mpirun lets all workers report, and its exit code does not show theirs
        assert len(reports) == 2, output
    else:
        assert code != 0, output
    for report in reports:
        assert f"server 1 (rank 3 of the job, process {victim} on host {HOST}) died" in report["error"], output
        assert report["at"] - begin < 5


def test_a_server_that_is_stopped_is_named(tmp_path: Path) -> None:
    with job(tmp_path, "fault", TEST_TIMEOUT="4") as running:
        running.await_start()
        victim = running.processes("serve")[0]
        begin = time.time()
        os.kill(victim, signal.SIGSTOP)
        code, output, end = running.end()
    reports = running.reports()
    assert code != 0 and reports and end - begin < 20, output
    for report in reports:
        assert (
            f"server 0 (rank 2 of the job, process {victim} on host {HOST}) is stopped by a signal" in report["error"]
        )
        assert report["at"] - begin < 12


def test_a_server_that_is_stopped_keeps_no_job_from_its_end(tmp_path: Path) -> None:
    with job(tmp_path, "idle", TEST_TIMEOUT="4") as running:
        running.await_start()
        victim = running.processes("serve")[1]
        os.kill(victim, signal.SIGSTOP)
        begin = time.time()
        (tmp_path / "go").touch()
        code, output, end = running.end()
    assert code != 0 and end - begin < 20, output
    assert f"server 1 (rank 3 of the job, process {victim} on host {HOST}) is stopped by a signal" in output


def test_a_worker_that_is_stopped_is_named_by_who_waits_for_it(tmp_path: Path) -> None:
    with job(tmp_path, "fault", TEST_TIMEOUT="4") as running:
        running.await_start()
        begin = time.time()
        (tmp_path / "stop-worker").touch()
        code, output, end = running.end()
    report = running.reports()[0]  # the other one may wake up when mpirun ends it
    assert code != 0 and end - begin < 20, output
    assert report["rank"] == 0
    assert "a barrier waits for worker 1 (process" in report["error"]
    assert "which is stopped by a signal" in report["error"]
    assert report["at"] - begin < 12


def test_idle_servers_use_no_processor(tmp_path: Path) -> None:
    with job(tmp_path, "fault", TEST_TIMEOUT="20") as running:
        running.await_start()
        for worker in running.processes(str(WORKER)):
            os.kill(worker, signal.SIGSTOP)
        servers = running.processes("serve")
        assert len(servers) == 2
        time.sleep(0.5)
        begin = [_ticks(server) for server in servers]
        time.sleep(2)
        assert [_ticks(server) for server in servers] == pytest.approx(begin, abs=2)


def _ticks(process: int) -> int:
    """Processor time in hundredths of a second."""
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return int(fields[11]) + int(fields[12])
