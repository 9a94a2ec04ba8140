"""`lockstep launch` between hosts: by ssh, with an sshd on each of two hosts, and by Slurm, with this machine as a
node.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from ranks import MPI_ENVIRONMENT
from test_launch import LOCKSTEP, RANK, ROOT, processes_with
from test_launch_killed import mpirun_of

sys.path.insert(0, str(ROOT / "test" / "hosts"))

import slurm
import ssh_hosts

needs_ssh = pytest.mark.skipif(bool(ssh_hosts.why_not()), reason=f"no sshds here: {ssh_hosts.why_not()}")
needs_slurm = pytest.mark.skipif(bool(slurm.why_not()), reason=f"no Slurm here: {slurm.why_not()}")


@pytest.fixture
def two() -> Iterator[ssh_hosts.SshHosts]:
    with ssh_hosts.SshHosts(2) as hosts:
        yield hosts


@pytest.fixture
def hosts_file(two: ssh_hosts.SshHosts, tmp_path: Path) -> str:
    path = tmp_path / "hosts"
    path.write_text(f"{two.names[0]} slots=2  # the first\n{two.names[1]}\n")
    return str(path)


def started(two: ssh_hosts.SshHosts, *arguments: str, mark: str = "", cwd: Path | None = None) -> subprocess.Popen[str]:
    """`lockstep launch` on the first host."""
    environment = {**two.environment(), "PYTHONPATH": str(ROOT / "python_bindings"), "MARK_OF_JOB": mark}
    command = two.on_first(LOCKSTEP, "launch", *arguments)
    pipe = subprocess.PIPE
    return subprocess.Popen(command, env=environment, cwd=cwd, stdout=pipe, stderr=pipe, text=True)


@pytest.fixture(params=["ssh", "direct"])
def how(request: pytest.FixtureRequest) -> tuple[str, str]:
    """The ways to start ranks by ssh: through mpirun, and without it."""
    return ("--launcher", request.param)


def launch(two: ssh_hosts.SshHosts, *arguments: str, cwd: Path | None = None) -> tuple[int, str, str]:
    job = started(two, *arguments, cwd=cwd)
    stdout, stderr = job.communicate(timeout=120)
    return job.returncode, stdout, stderr


@needs_ssh
def test_ranks_are_on_their_hosts_and_talk(two: ssh_hosts.SshHosts, hosts_file: str, how: tuple[str, str]) -> None:
    program = (
        "import os, lockstep as ls; w = ls.Communicator.from_environment(); w.barrier(); "
        "print(w.size, *map(w.host, range(3)), os.environ['A'], os.environ['NCCL_SOCKET_IFNAME'])"
    )
    arguments = (
        *how,
        "-n",
        "3",
        "-H",
        hosts_file,
        "--env",
        "A=1 2",
        "--interface",
        "eth0",
        sys.executable,
        "-c",
        program,
    )
    code, stdout, stderr = launch(two, *arguments)
    assert code == 0, stderr
    said = f"3 {two.names[0]} {two.names[0]} {two.names[1]} 1 2 eth0"
    assert sorted(stdout.splitlines()) == [f"[worker {rank}] {said}" for rank in range(3)]


@needs_ssh
def test_the_working_directory_is_copied(
    two: ssh_hosts.SshHosts, hosts_file: str, tmp_path: Path, how: tuple[str, str]
) -> None:
    """Into a folder that exists on neither host, and is a separate one on each."""
    source, there = tmp_path / "work", two.own / "deep" / "a b"
    (source / "data").mkdir(parents=True)
    (source / "data" / "file").write_text("content")
    script = f"pwd; cat data/file; echo; touch mine-{RANK}; ls | tr '\\n' ' '"
    arguments = (*how, "-n", "3", "-H", hosts_file, "--sync-dst-dir", str(there), "--", "sh", "-c", script)
    code, stdout, stderr = launch(two, *arguments, cwd=source)
    assert code == 0, stderr
    last = [line.removeprefix("[worker 2] ").rstrip() for line in stdout.splitlines() if line.startswith("[worker 2]")]
    assert last == [str(there), "content", "data mine-2"], "the others are on another host"
    assert stdout.count("content\n") == 3


@needs_ssh
def test_servers_are_on_all_hosts(two: ssh_hosts.SshHosts, hosts_file: str, tmp_path: Path) -> None:
    (tmp_path / "fake" / "lockstep").mkdir(parents=True)
    (tmp_path / "fake" / "lockstep" / "__init__.py").touch()
    (tmp_path / "fake" / "lockstep" / "__main__.py").write_text("import socket; print(socket.gethostname())")
    arguments = ("-n", "3", "-s", "3", "-H", hosts_file, "--env-server", f"PYTHONPATH={tmp_path}/fake", "hostname")
    code, stdout, stderr = launch(two, *arguments)
    assert code == 0, stderr
    places = {"worker 0": 0, "worker 1": 0, "worker 2": 1, "server 0": 0, "server 1": 0, "server 2": 1}
    assert sorted(stdout.splitlines()) == sorted(f"[{rank}] {two.names[host]}" for rank, host in places.items())


@needs_ssh
def test_workers_and_servers_talk_between_hosts(two: ssh_hosts.SshHosts, hosts_file: str, tmp_path: Path) -> None:
    """All pushes of three workers arrive at two servers. Each worker has one server on its own host and one on the
    other.
    """
    program = (sys.executable, str(ROOT / "test/python/mpi_servers.py"), "lost", str(tmp_path))
    code, _, stderr = launch(two, "-n", "3", "-s", "2", "-H", hosts_file, "--interface", "eth0", *program)
    assert code == 0, stderr
    reports = [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(3)]
    assert [report["size"] for report in reports] == [3, 3, 3]
    assert "on average, at most" in reports[0]["staleness"]


@needs_ssh
@pytest.mark.parametrize(("script", "code"), [("exit 9", 9), ("kill -9 $$", 137)])
def test_exit_codes_come_from_other_hosts(
    two: ssh_hosts.SshHosts, hosts_file: str, how: tuple[str, str], script: str, code: int
) -> None:
    script = f"[ {RANK} = 2 ] || sleep 60; {script}"
    returned, _, stderr = launch(two, *how, "-n", "3", "-H", hosts_file, "--", "sh", "-c", script)
    assert returned == code
    assert "[worker 2] lockstep launch: ended " in stderr
    last = f"lockstep launch: the job has failed with exit code {code}: worker 2 on host {two.names[1]} ended "
    assert stderr.splitlines()[-1].startswith(last), stderr


@needs_ssh
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_leaves_nothing_on_other_hosts(
    two: ssh_hosts.SshHosts, hosts_file: str, how: tuple[str, str], number: int
) -> None:
    mark = f"launch-{os.getpid()}-hosts-{number}"
    script = f"trap '' INT TERM; export MARK_OF_JOB={mark}; sleep 100 & echo ready; sleep 100; sleep 100"
    job = started(two, *how, "-n", "3", "-H", hosts_file, "--", "sh", "-c", script, mark=mark)
    assert job.stdout is not None
    for _ in range(3):
        assert job.stdout.readline().endswith("ready\n")
    assert len(processes_with(mark)) > 6, "includes the second host's: all namespaces share one /proc"
    job.send_signal(number)
    assert job.wait(30) == 128 + number
    await_none(mark)


@needs_ssh
@pytest.mark.parametrize("mpirun_too", [True, False])
def test_ranks_on_other_hosts_do_not_outlive_a_launcher_that_is_killed(
    two: ssh_hosts.SshHosts, hosts_file: str, how: tuple[str, str], mpirun_too: bool
) -> None:
    mark = f"launch-{os.getpid()}-hosts-killed"
    script = f"trap '' TERM; export MARK_OF_JOB={mark}; echo ready; sleep 100; sleep 100"
    job = started(two, *how, "-n", "3", "-H", hosts_file, "--", "sh", "-c", script, mark=mark)
    assert job.stdout is not None
    for _ in range(3):
        job.stdout.readline()
    mpirun = mpirun_of(job.pid)
    job.kill()
    if mpirun_too:
        os.kill(mpirun, signal.SIGKILL)
    job.wait(30)
    await_none(mark)


def await_none(mark: str) -> None:
    """Daemons on other hosts notice a little later that mpirun has ended."""
    end = time.monotonic() + 10
    while processes_with(mark):
        assert time.monotonic() < end, [Path(f"/proc/{each}/cmdline").read_bytes() for each in processes_with(mark)]
        time.sleep(0.1)


@needs_ssh
@pytest.mark.parametrize("options", [(), ("--sync-dst-dir", "/tmp/never")])
def test_hosts_that_cannot_be_reached(two: ssh_hosts.SshHosts, hosts_file: str, options: tuple[str, ...]) -> None:
    two.stop_sshd(1)
    code, stdout, stderr = launch(
        two, "-n", "3", "-H", hosts_file, *options[:1], *(str(two.own) for _ in options[1:]), "hostname"
    )
    assert (code, stdout) == (1, "")
    assert stderr.startswith(f"lockstep launch: host {two.names[1]} cannot be reached by ssh "), stderr
    assert stderr.rstrip().endswith("Connection refused")
    two.set_link(1, "down")
    assert launch(two, "-n", "3", "-H", hosts_file, "hostname")[2].rstrip().endswith("Connection timed out")


@needs_ssh
def test_a_folder_that_cannot_be_made_there(two: ssh_hosts.SshHosts, hosts_file: str) -> None:
    code, _, stderr = launch(two, "-n", "3", "-H", hosts_file, "--sync-dst-dir", "/proc/no", "hostname")
    assert code == 1
    assert f"the working directory cannot be copied to {two.names[0]}:/proc/no: exit code 1, mkdir: cannot" in stderr
    assert two.names[1] in stderr


@needs_ssh
def test_rank_0_on_another_host_is_found_without_mpirun(two: ssh_hosts.SshHosts, tmp_path: Path) -> None:
    """At the address by which ssh has reached it, as its name is known to ssh alone. It gets the input."""
    (tmp_path / "hosts").write_text(f"{two.names[1]}\n{two.names[0]}\n")
    program = (
        "import sys, lockstep as ls; w = ls.Communicator.from_environment(); w.barrier(); "
        "print(w.size, w.host(w.rank), sys.stdin.read().strip())"
    )
    command = two.on_first(
        LOCKSTEP, "launch", "--launcher", "direct", "-n", "2", "-H", tmp_path / "hosts", sys.executable, "-c", program
    )
    environment = {**two.environment(), "PYTHONPATH": str(ROOT / "python_bindings")}
    done = subprocess.run(
        command, env=environment, input="a word\n", capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    assert [line.rstrip() for line in sorted(done.stdout.splitlines())] == [
        f"[worker 0] 2 {two.names[1]} a word",
        f"[worker 1] 2 {two.names[0]}",
    ]


@needs_ssh
def test_a_host_that_is_lost_fails_the_job_without_mpirun(two: ssh_hosts.SshHosts, hosts_file: str) -> None:
    """Its ssh is killed. The rank there ends, too."""
    mark = f"launch-{os.getpid()}-hosts-lost"
    script = f"export MARK_OF_JOB={mark}; echo ready; sleep 100; sleep 100"
    job = started(two, "--launcher", "direct", "-n", "3", "-H", hosts_file, "--", "sh", "-c", script, mark=mark)
    assert job.stdout is not None
    for _ in range(3):
        job.stdout.readline()
    starter = mpirun_of(job.pid)
    children = Path(f"/proc/{starter}/task/{starter}/children").read_text().split()
    (ssh,) = (each for each in children if Path(f"/proc/{each}/comm").read_text() == "ssh\n")
    os.kill(int(ssh), signal.SIGKILL)
    stderr = job.communicate(timeout=30)[1]
    assert job.returncode == 137
    last = f"lockstep launch: the job has failed with exit code 137: worker 2 on host {two.names[1]} ended by signal 9"
    assert stderr.splitlines()[-1] == f"{last}: host {two.names[1]} is lost"
    await_none(mark)


@needs_slurm
def test_slurm_runs_what_was_written(tmp_path: Path) -> None:
    program = "import os, sys, lockstep as ls; w = ls.Communicator.mpi(); w.barrier(); print(w.rank, w.size, os.environ['A']); sys.exit(3 * (w.rank == 1))"
    (tmp_path / "train.py").write_text(program)
    with slurm.Slurm() as cluster:
        environment = {**cluster.environment(), **MPI_ENVIRONMENT, "PYTHONPATH": str(ROOT / "python_bindings")}
        arguments = ("-n", "2", "--env", "A=x y", "--submit-option=--wait", sys.executable, "train.py")
        command = [LOCKSTEP, "launch", "--launcher", "slurm", *arguments]
        done = subprocess.run(
            command, env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False
        )
    assert done.stdout.startswith("Submitted batch job 1\n"), done.stderr
    output = (tmp_path / "lockstep-train-1.out").read_text()
    assert {"[worker 0] 0 2 x y", "[worker 1] 1 2 x y"} <= set(output.splitlines()), output
    assert done.returncode == 3, "sbatch --wait ends with the job's exit code"


@needs_slurm
def test_tasks_of_slurm_meet_without_mpi_and_by_either() -> None:
    program = (
        "import os, lockstep as ls; w = ls.Communicator.from_environment(timeout=60); w.barrier(); "
        "os.write(1, f'{w.rank} {w.size} {w.transport}\\n'.encode())"
    )
    with slurm.Slurm() as cluster:
        environment = {**cluster.environment(), "PYTHONPATH": str(ROOT / "python_bindings")}
        for plugin, library, transport in [
            ("none", "", "rendezvous"),
            ("pmix", "libmpi.so.40", "mpi"),  # Open MPI
            ("pmi2", str(ROOT / ".venv/src/mpich/lib/libmpi.so.12"), "mpi"),
        ]:
            command = ["srun", f"--mpi={plugin}", "--ntasks", "2", "--overcommit", sys.executable, "-c", program]
            given = {**environment, **({"LOCKSTEP_MPI_LIBRARY": library} if library else {})}
            done = subprocess.run(command, env=given, capture_output=True, text=True, timeout=120, check=False)
            assert sorted(done.stdout.splitlines()) == [f"0 2 {transport}", f"1 2 {transport}"], (plugin, done.stderr)


@needs_slurm
def test_nothing_is_left_of_a_job_that_slurm_cancels(tmp_path: Path) -> None:
    mark = f"launch-{os.getpid()}-slurm"
    with slurm.Slurm() as cluster:
        environment = {**cluster.environment(), **MPI_ENVIRONMENT, "PYTHONPATH": str(ROOT / "python_bindings")}
        environment |= {"MARK_OF_JOB": mark}
        script = "trap '' TERM; touch begun; sleep 100; sleep 100"
        command = [LOCKSTEP, "launch", "--launcher", "slurm", "-n", "2", "--", "sh", "-c", script]
        subprocess.run(command, env=environment, cwd=tmp_path, check=True, capture_output=True)
        end = time.monotonic() + 60
        while not (tmp_path / "begun").exists():
            assert time.monotonic() < end
            time.sleep(0.1)
        assert len(processes_with(mark)) > 4
        subprocess.run(["scancel", "1"], env=environment, check=True)
        end = time.monotonic() + 30
        while len(processes_with(mark)) > 0:
            assert time.monotonic() < end
            time.sleep(0.1)
