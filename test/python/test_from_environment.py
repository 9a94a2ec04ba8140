"""Ranks without MPI: Communicator.from_environment."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest

import lockstep as ls
from ranks import run_in_threads

PROGRAM = """
import os, sys, time
import numpy as np
import lockstep as ls

world = ls.Communicator.from_environment(timeout=20)
step = ls.parse(open(sys.argv[1]).read())
exe = ls.compile(step, world=world, threads=1)
x = np.arange(24, dtype=np.float32).reshape(12, 2) / 24
rows = slice(world.rank * 12 // world.size, (world.rank + 1) * 12 // world.size)
for number in range(int(sys.argv[2])):
    exe(x=x[rows])
    if number == 2:
        open(f"{sys.argv[1]}.{world.rank}", "w").close()
line = f"{world.rank} {world.size} {world.transport} {exe.state['w'].tobytes().hex()}\\n"
os.write(1, line.encode())  # whole, as ranks may share the output
"""

STEP = """
graph @step(%x: f32[12,2] split(0), state %w: f32[2]) -> (%w: f32[2]) {
  %s = reduce_sum %x {dims=[0]} : f32[2]
  %w1 = sgd %w, %s {learning_rate=0.5} : f32[2]
  return %w1
}
"""


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def start(step: Path, steps: int, variables: Mapping[str, object]) -> subprocess.Popen[str]:
    environment = {**os.environ, **{name: str(value) for name, value in variables.items()}}
    command = [sys.executable, "-c", PROGRAM, str(step), str(steps)]
    return subprocess.Popen(command, env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE)


def start_all(step: Path, steps: int, size: int) -> list[subprocess.Popen[str]]:
    port = free_port()
    return [
        start(step, steps, {"RANK": rank, "WORLD_SIZE": size, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port})
        for rank in range(size)
    ]


@pytest.fixture
def step(tmp_path: Path) -> Path:
    file = tmp_path / "step.ir"
    file.write_text(STEP)
    return file


def expected_state(steps: int, ranks: int) -> str:
    def train(world: ls.Communicator) -> str:
        exe = ls.compile(ls.parse(STEP), world=world, threads=1)
        x = np.arange(24, dtype=np.float32).reshape(12, 2) / 24
        for _ in range(steps):
            exe(x=x[world.rank * 12 // ranks : (world.rank + 1) * 12 // ranks])
        return exe.state["w"].tobytes().hex()

    return run_in_threads(ranks, train)[0]


@pytest.mark.parametrize("size", [2, 3])
def test_processes_train_as_threads_do(step: Path, size: int) -> None:
    state = expected_state(5, size)
    for rank, process in enumerate(start_all(step, 5, size)):
        stdout, stderr = process.communicate(timeout=60)
        assert stdout.split() == [str(rank), str(size), "rendezvous", state], stderr


def test_without_variables_this_is_one_rank(step: Path) -> None:
    stdout, stderr = start(step, 5, {}).communicate(timeout=60)
    assert stdout.split()[:2] == ["0", "1"], stderr


def outputs_of(program: str, variables: Mapping[str, str], size: int = 2) -> list[subprocess.CompletedProcess[str]]:
    """Runs a program as ranks that meet as the variables say."""
    processes = []
    for rank in range(size):
        environment = {**os.environ, **variables, "RANK": str(rank), "WORLD_SIZE": str(size)}
        pipe = subprocess.PIPE
        processes.append(
            subprocess.Popen([sys.executable, "-c", program], env=environment, stdout=pipe, stderr=pipe, text=True)
        )
    outputs = [process.communicate(timeout=60) for process in processes]
    return [
        subprocess.CompletedProcess(process.args, process.returncode, *output)
        for process, output in zip(processes, outputs, strict=True)
    ]


def test_ranks_meet_by_a_file_and_a_secret(tmp_path: Path) -> None:
    """Several times. A store makes its own communicator in the same way."""
    secret, place = tmp_path / "secret", tmp_path / "place"
    secret.write_text("a word\n")
    secret.chmod(0o600)
    program = (
        "import lockstep as ls\n"
        "for _ in range(3): world = ls.Communicator.from_environment(); world.barrier()\n"
        "store = ls.kv.create('dist_sync'); print(world.rank, store.rank, store.num_workers)"
    )
    variables = {
        "LOCKSTEP_SECRET_FILE": str(secret),
        "LOCKSTEP_RENDEZVOUS_FILE": str(place),
        "MASTER_ADDR": "127.0.0.1",
    }
    for rank, done in enumerate(outputs_of(program, variables)):
        assert done.stdout.split() == [str(rank), str(rank), "2"], done.stderr
    assert not place.exists()
    secret.chmod(0o640)
    for done in outputs_of(program, variables):
        assert f"the file {secret} is open to other users" in done.stderr


@pytest.mark.parametrize("has_mpi", [True, False])
def test_mpi_is_an_error_where_ranks_meet_without_it(has_mpi: bool, tmp_path: Path) -> None:
    """Each would be a world of its own. The dynamic linker finds MPI, or a file that is no library."""
    program = "import lockstep as ls; print(ls.Communicator.mpi().size)"
    variables = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}
    if not has_mpi:
        (tmp_path / "libmpi.so.40").touch()
        variables["LD_LIBRARY_PATH"] = str(tmp_path)
    for rank, done in enumerate(outputs_of(program, variables)):
        assert done.returncode != 0
        assert f"this process is rank {rank} of 2 according to its environment" in done.stderr
        assert "the ranks meet by Communicator.from_environment(), not by mpi()" in done.stderr


def test_torchrun_starts_ranks(step: Path, tmp_path: Path) -> None:
    pytest.importorskip("torch")
    (tmp_path / "program.py").write_text(PROGRAM)
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2", f"--master-port={free_port()}"]
    command += [str(tmp_path / "program.py"), str(step), "5"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    state = expected_state(5, 2)
    for rank in range(2):
        assert f"{rank} 2 rendezvous {state}" in done.stdout, done.stderr


def test_a_killed_rank_is_named_by_the_others(step: Path) -> None:
    processes = start_all(step, 10**9, 3)
    while not all(Path(f"{step}.{rank}").exists() for rank in range(3)):
        assert all(process.poll() is None for process in processes)
        time.sleep(0.02)
    killed = time.monotonic()
    processes[1].send_signal(signal.SIGKILL)
    for process in (processes[0], processes[2]):
        stderr = process.communicate(timeout=60)[1]
        assert "rank 1 on host " in stderr
        assert f"(process {processes[1].pid})" in stderr
        assert process.returncode != 0
    assert time.monotonic() - killed < 20  # within 5 s on a machine that does nothing else
    processes[1].communicate()


def test_an_exception_of_a_rank_reaches_the_others(step: Path) -> None:
    port = free_port()
    variables = {"WORLD_SIZE": 2, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    other = start(step, 10**9, {"RANK": 0, **variables})
    failing = start(step, "seven", {"RANK": 1, **variables})  # type: ignore[arg-type]
    failing.communicate(timeout=60)
    stderr = other.communicate(timeout=60)[1]
    assert "rank 1 on host " in stderr
    assert "invalid literal for int()" in stderr


def test_what_is_wrong_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "1")
    with pytest.raises(ls.Error, match="WORLD_SIZE is not set"):
        ls.Communicator.from_environment()
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    monkeypatch.setenv("MASTER_PORT", str(free_port()))
    with pytest.raises(ls.Error, match=r"rank 1 has not met rank 0 at 127\.0\.0\.1:\d+ within 500ms: .*refused"):
        ls.Communicator.from_environment(timeout=0.5)
    monkeypatch.setenv("LOCKSTEP_WORKERS", "1")
    monkeypatch.setenv("LOCKSTEP_SERVERS", "1")
    with pytest.raises(ls.Error, match="parameter servers need mpirun"):
        ls.Communicator.from_environment()


def test_status_shows_the_ranks_of_a_job_together(step: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOCKSTEP_RECORD", str(tmp_path / "records"))
    ranks = start_all(step, 10**7, 2)
    try:
        end = time.monotonic() + 60
        while not all(Path(f"{step}.{rank}").exists() for rank in range(2)):
            assert time.monotonic() < end
            time.sleep(0.05)
        shown = subprocess.run([sys.executable, "-m", "lockstep", "status"], text=True, capture_output=True, check=True)
    finally:
        for rank in ranks:
            rank.kill()
            rank.communicate()
    job, world, *lines = shown.stdout.splitlines()
    assert job.endswith(f"-{ranks[0].pid}")
    assert world == "rendezvous, 2 ranks"
    assert [line.split()[:2] for line in lines] == [["rank", "0"], ["rank", "1"]]
