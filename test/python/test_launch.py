"""`lockstep launch`: what each launcher would run, to the letter; jobs on this host: output, exit codes, signals, errors."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from lockstep import Error, _command
from lockstep._launch import hosts, ssh
from lockstep._launch.command import plan_of
from lockstep._launch.mpirun import RANK
from lockstep._launch.output import Lines
from lockstep._launch.rank import padded
from ranks import MPI_ENVIRONMENT

ROOT = Path(__file__).parents[2]
LOCKSTEP = ROOT / "tools" / "lockstep"
ENVIRONMENT = {**os.environ, **MPI_ENVIRONMENT, "PYTHONPATH": str(ROOT / "python_bindings")}
ALLOWED = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
KEEP_ALIVE = (
    "OMPI_MCA_oob_tcp_keepalive_time=10 OMPI_MCA_oob_tcp_keepalive_intvl=2 OMPI_MCA_oob_tcp_keepalive_probes=10"
)


def dry_run(*arguments: str, environment: Mapping[str, str] = ALLOWED) -> str:
    """What --dry-run prints, PYTHON for this interpreter and RANK for what runs a program."""
    parsed = _command._parser().parse_args(["launch", *arguments])
    text = str(plan_of(parsed, environment, "/home/me/work"))
    return text.replace(sys.executable, "PYTHON").replace(RANK, "RANK")


def launch(*arguments: Any, environment: Mapping[str, str] = ENVIRONMENT, cwd: Path | None = None) -> Any:
    command = [LOCKSTEP, "launch", *map(str, arguments)]
    return subprocess.run(command, env=environment, cwd=cwd, capture_output=True, text=True, timeout=120, check=False)


@pytest.fixture
def hosts_file(tmp_path: Path) -> str:
    path = tmp_path / "hosts"
    path.write_text("# two hosts\nh0 slots=2\n\nh1  slots = 2  # the second\n")
    return str(path)


def test_local() -> None:
    assert dry_run("-n", "2", "python", "train.py", "--lr", "0.1", "-n") == (
        "mpirun --tag-output --bind-to none --oversubscribe -n 2 PYTHON RANK python train.py --lr 0.1 -n\n"
    )


def test_servers_are_a_second_context_behind_the_workers() -> None:
    roles = "-x LOCKSTEP_WORKERS=2 -x LOCKSTEP_SERVERS=1"
    assert dry_run("-n", "2", "-s", "1", "--env-worker", "A=1", "--env-server", "B:2", "--", "./train") == (
        f"mpirun --tag-output --bind-to none --oversubscribe -x A=1 {roles} -n 2 PYTHON RANK ./train "
        f": -x B=2 {roles} -n 1 PYTHON RANK PYTHON -m lockstep serve\n"
    )


def test_mpi_places_workers_by_slots_and_servers_on_all_hosts(hosts_file: str) -> None:
    environment = {**ALLOWED, "PATH": "/bin", "LOCKSTEP_TRACE": "t", "LOCKSTEP_WORKERS": "7", "HOME": "/root"}
    settings = "-x PATH -x LOCKSTEP_TRACE -x LOCKSTEP_WORKERS=3 -x LOCKSTEP_SERVERS=2"
    command = ("-n", "3", "-s", "2", "-H", hosts_file, "--launcher", "mpi", "train")
    assert dry_run(*command, environment=environment) == (
        f"{KEEP_ALIVE} mpirun --tag-output --oversubscribe --bind-to none "
        f"--host h0:2 {settings} -n 2 PYTHON RANK train : --host h1:1 {settings} -n 1 PYTHON RANK train "
        f": --host h0:1 {settings} -n 1 PYTHON RANK PYTHON -m lockstep serve "
        f": --host h1:1 {settings} -n 1 PYTHON RANK PYTHON -m lockstep serve\n"
    )


def test_mpi_without_hosts_leaves_them_to_mpirun() -> None:
    bound = {**ALLOWED, "OMPI_MCA_hwloc_base_binding_policy": "core"}
    assert dry_run("-n", "3", "--launcher", "mpi", "train", environment=bound) == (
        f"{KEEP_ALIVE} mpirun --tag-output -n 3 PYTHON RANK train\n"
    )


def test_ssh_asks_each_host_first(hosts_file: str) -> None:
    agent = "ssh -o BatchMode=yes -o ConnectTimeout=10"
    assert dry_run("-n", "4", "-H", hosts_file, "train") == (
        f"{agent} h0 true\n{agent} h1 true\n"
        f"{KEEP_ALIVE} mpirun --tag-output --oversubscribe --bind-to none --mca plm rsh --mca plm_rsh_agent '{agent}' "
        "--host h0:2 -n 2 PYTHON RANK train : --host h1:2 -n 2 PYTHON RANK train\n"
    )


def test_ssh_copies_the_working_directory(hosts_file: str) -> None:
    environment = {**ALLOWED, "OMPI_MCA_plm_rsh_agent": "ssh -p 2222"}
    arguments = ("-n", "1", "-H", hosts_file, "--sync-dst-dir", "/scratch/my job/", "train")
    assert dry_run(*arguments, environment=environment) == (
        "ssh -p 2222 h0 'mkdir -p '\"'\"'/scratch/my job'\"'\"''\n"
        "rsync -az --protect-args '--rsh=ssh -p 2222' /home/me/work/ 'h0:/scratch/my job/'\n"
        "ssh -p 2222 h1 'mkdir -p '\"'\"'/scratch/my job'\"'\"''\n"
        "rsync -az --protect-args '--rsh=ssh -p 2222' /home/me/work/ 'h1:/scratch/my job/'\n"
        f"{KEEP_ALIVE} mpirun --tag-output --oversubscribe --bind-to none --mca plm rsh --mca plm_rsh_agent 'ssh -p 2222' "
        "--wdir '/scratch/my job' --host h0:1 -n 1 PYTHON RANK train\n"
    )


def test_this_host_needs_no_ssh(hosts_file: str) -> None:
    parsed = _command._parser().parse_args(["launch", "-n", "1", "-H", hosts_file, "--sync-dst-dir", "/work", "train"])
    from lockstep._launch.command import _job

    job = _job("ssh", parsed, ALLOWED)
    is_first = "h0".__eq__
    copied = ssh.plan(job, source="/src", is_here=is_first)
    assert [step.command[0] for step in copied.steps] == ["mkdir", "rsync", "ssh", "rsync"]
    assert copied.steps[1].command == ("rsync", "-a", "/src/", "/work/")
    in_place = ssh.plan(job, source="/work", is_here=is_first)
    assert [step.command[0] for step in in_place.steps] == ["ssh", "rsync"], "there is nothing to copy"
    assert [step.host for step in ssh.plan(job, is_here=is_first).steps] == ["h1"]
    assert ssh.is_this_host("localhost") and ssh.is_this_host("127.0.0.1")
    assert not ssh.is_this_host("192.0.2.1"), "an address for documents"
    assert not ssh.is_this_host("no-such-host.invalid")


@pytest.mark.parametrize(
    ("arguments", "environment", "interface"),
    [
        (("--interface", "ib0"), {}, "ib0"),
        ((), {"DMLC_INTERFACE": "eth1"}, "eth1"),
        (("--interface", "ib0"), {"DMLC_INTERFACE": "eth1"}, "ib0"),
    ],
)
def test_the_interface_reaches_all_who_talk(
    arguments: tuple[str, ...], environment: dict[str, str], interface: str
) -> None:
    names = ("LOCKSTEP_INTERFACE", "UCX_NET_DEVICES", "GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME")
    text = dry_run("-n", "1", *arguments, "train", environment={**ALLOWED, **environment})
    assert f"--mca btl_tcp_if_include {interface} --mca oob_tcp_if_include {interface} " in text
    assert " ".join(f"-x {name}={interface}" for name in names) in text


def test_who_names_a_card_for_one_of_them_is_right() -> None:
    text = dry_run("-n", "1", "--interface", "ib0", "--env", "UCX_NET_DEVICES=mlx5_0:1", "train")
    assert "-x UCX_NET_DEVICES=mlx5_0:1" in text
    assert "UCX_NET_DEVICES=ib0" not in text


def test_workers_that_may_die() -> None:
    assert dry_run("-n", "2", "--tolerate-workers", "train") == (
        "mpirun --tag-output --enable-recovery --bind-to none --oversubscribe -x LOCKSTEP_TOLERATE_WORKERS=1 -n 2 PYTHON RANK train\n"
    )


@pytest.mark.skipif(os.geteuid() != 0, reason="not root")
def test_root_is_allowed_by_an_option_where_it_is_not_yet() -> None:
    assert dry_run("-n", "1", "train", environment={}).startswith("mpirun --tag-output --allow-run-as-root ")
    done = launch("-n", "1", "--dry-run", "x", environment={**os.environ, "OMPI_ALLOW_RUN_AS_ROOT": "0"})
    assert done.stderr == "lockstep launch: this is root, which mpirun is told to allow (--allow-run-as-root)\n"


def test_slurm() -> None:
    arguments = ("-n", "4", "-s", "2", "--interface", "ib0", "--env", "A=1 2", "--submit-option=--time=10")
    assert dry_run(*arguments, "--launcher", "slurm", "python", "Train_Me.py", "$HOME") == (
        "#!/bin/bash\n"
        "#SBATCH --job-name=train-me\n"
        "#SBATCH --ntasks=4\n"
        "#SBATCH --output=lockstep-train-me-%j.out\n"
        "# The workers of each host: srun runs this once for each task.\n"
        "exec PYTHON -m lockstep launch --launcher mpi -n 4 -s 2 -H <(srun printenv SLURMD_NODENAME | sort) "
        "--interface ib0 --env 'A=1 2' -- python Train_Me.py '$HOME'\n"
        "# sbatch --time=10 lockstep-train-me.slurm\n"
    )


def test_sge() -> None:
    assert dry_run("-n", "4", "--env-worker", "A=1", "--tolerate-workers", "--launcher", "sge", "./train") == (
        "#!/bin/bash\n"
        "#$ -S /bin/bash\n"
        "#$ -N train\n"
        "#$ -cwd\n"
        "#$ -V\n"
        "#$ -j y\n"
        "#$ -o lockstep-train-$JOB_ID.out\n"
        "#$ -pe orte 4\n"
        "# The workers of each host are in a file of Grid Engine: HOST SLOTS QUEUE PROCESSORS.\n"
        'exec PYTHON -m lockstep launch --launcher mpi -n 4 -H <(awk \'{print $1 " slots=" $2}\' "$PE_HOSTFILE") '
        "--env-worker A=1 --tolerate-workers -- ./train\n"
        "# qsub lockstep-train.sge\n"
    )


def test_kubernetes() -> None:
    arguments = ("-n", "2", "-s", "1", "--launcher", "kubernetes", "--image", "registry/train:1")
    assert dry_run(*arguments, "python", "train.py", "a: b") == (
        'apiVersion: "kubeflow.org/v2beta1"\n'
        'kind: "MPIJob"\n'
        "metadata:\n"
        '  name: "train"\n'
        "spec:\n"
        "  slotsPerWorker: 1\n"
        '  launcherCreationPolicy: "WaitForWorkersReady"\n'
        "  runPolicy:\n"
        '    cleanPodPolicy: "Running"\n'
        "    backoffLimit: 0\n"
        "  mpiReplicaSpecs:\n"
        "    Launcher:\n"
        "      replicas: 1\n"
        '      restartPolicy: "Never"\n'
        "      template:\n"
        "        spec:\n"
        "          containers:\n"
        '            - name: "launcher"\n'
        '              image: "registry/train:1"\n'
        "              command:\n"
        + "".join(
            f'                - "{word}"\n'
            for word in (
                *("python3", "-m", "lockstep", "launch", "--launcher", "mpi", "-n", "2", "-s", "1"),
                *("-H", "/etc/mpi/hostfile", "--", "python", "train.py", "a: b"),
            )
        )
        + "    Worker:\n"
        "      replicas: 2\n"
        '      restartPolicy: "Never"\n'
        "      template:\n"
        "        spec:\n"
        "          containers:\n"
        '            - name: "worker"\n'
        '              image: "registry/train:1"\n'
    )


def test_a_manifest_is_written(tmp_path: Path) -> None:
    done = launch("-n", "2", "--launcher", "kubernetes", "--image", "i", "python", "train.py", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "lockstep launch: written to lockstep-train.yaml\n")
    assert 'kind: "MPIJob"\n' in (tmp_path / "lockstep-train.yaml").read_text()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("h0\nh1 slots=two\n", ":2: 'h1 slots=two' is not HOST or HOST slots=N, N at least 1"),
        ("h0 slots=0\n", ":1: 'h0 slots=0' is not HOST or HOST slots=N, N at least 1"),
        ("h0 h1\n", ":1: 'h0 h1' is not HOST"),
        (
            "\n\nh0:2222\n",
            ":3: 'h0:2222' is not HOST or HOST slots=N, N at least 1; a port or a user of a host belongs",
        ),
        ("me@h0\n", "; a port or a user of a host belongs into ~/.ssh/config"),
        ("h0 max_slots=3\n", ":1: 'h0 max_slots=3' is not HOST"),
        ("-oProxyCommand=x\n", ":1: '-oProxyCommand=x' is not HOST"),
        ("# h0\n\n", " has no hosts"),
        ("h0\nh1\n", "-n is 3, and the 2 hosts of"),
    ],
)
def test_bad_hosts_files(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "hosts"
    path.write_text(text)
    with pytest.raises(Error, match=re.escape(message)):
        dry_run("-n", "3", "-H", str(path), "train")


def test_a_hosts_file_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(Error, match="hosts cannot be read: No such file or directory"):
        dry_run("-n", "3", "-H", str(tmp_path / "hosts"), "train")
    (tmp_path / "hosts").write_bytes(b"\xff\xfe")
    with pytest.raises(Error, match="hosts cannot be read: 'utf-8' codec"):
        dry_run("-n", "3", "-H", str(tmp_path / "hosts"), "train")


def test_slots_of_a_host_are_added_and_servers_go_round(tmp_path: Path) -> None:
    (tmp_path / "hosts").write_text("h0\nh1\nh0 slots=2 # more\n10.0.0.7\n")
    read = hosts.read(str(tmp_path / "hosts"))
    assert [(host.name, host.slots) for host in read] == [("h0", 3), ("h1", 1), ("10.0.0.7", 1)]
    assert hosts.place_workers(read, 4, "") == {"h0": 3, "h1": 1}
    assert hosts.place_servers(read, 1) == {"h0": 1}
    assert hosts.place_servers(read, 5) == {"h0": 2, "h1": 2, "10.0.0.7": 1}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["-n", "0", "x"], "-n is 0, expected at least 1 worker"),
        (["-n", "1", "-s", "-1", "x"], "-s is -1, expected at least 0 servers"),
        (["-n", "1"], "there is no program after the options"),
        (["-n", "1", "--"], "there is no program after the options"),
        (["-n", "1", "--launcher", "yarn", "x"], "--launcher yarn: launching on YARN is gone"),
        (
            ["-n", "1", "--launcher", "pbs", "x"],
            "--launcher is pbs, expected one of local, mpi, ssh, slurm, sge, kubernetes",
        ),
        (["-n", "1", "--launcher", "ssh", "x"], "--launcher ssh: -H FILE says which hosts there are"),
        (["-n", "1", "--launcher", "local", "-H", "h", "x"], "--launcher local runs on this host alone: leave out -H"),
        (
            ["-n", "1", "--launcher", "slurm", "-H", "h", "x"],
            "--launcher slurm gets its hosts from slurm: leave out -H",
        ),
        (["-n", "1", "--sync-dst-dir", "/d", "x"], "--sync-dst-dir is for --launcher ssh, not for local"),
        (["-n", "1", "-H", "h", "--sync-dst-dir", "d", "x"], "--sync-dst-dir is d, expected a whole path"),
        (["-n", "1", "--image", "i", "x"], "--image is for --launcher kubernetes, not for local"),
        (["-n", "1", "--submit-option=-q", "x"], "--submit-option is for --launcher slurm and sge, not for local"),
        (["-n", "1", "--launcher", "kubernetes", "x"], "--launcher kubernetes: --image says what its containers"),
        (["-n", "1", "--env", "1A=2", "x"], "--env: '1A=2' is not NAME=VALUE or NAME"),
        (
            ["-n", "1", "--env-worker", "NOT_SET_HERE", "x"],
            "--env-worker: NOT_SET_HERE has no value, and is not set here",
        ),
        (["-n", "1", "--interface", "ib0 eth0", "x"], "--interface is 'ib0 eth0', expected names of network cards"),
    ],
)
def test_wrong_arguments(arguments: list[str], message: str) -> None:
    with pytest.raises(Error) as caught:
        dry_run(*arguments)
    assert str(caught.value).startswith(message)


def test_errors_go_to_stderr(tmp_path: Path) -> None:
    done = launch("-n", "2", "-H", tmp_path / "none", "x")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == f"lockstep launch: the hosts file {tmp_path}/none cannot be read: No such file or directory\n"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--launcher", "slurm", "x"), "there is no program sbatch on this host: install Slurm's commands"),
        (("--launcher", "sge", "x"), "there is no program qsub on this host: install Grid Engine's commands"),
        (("x",), "there is no program mpirun on this host: install Open MPI"),
        (("-H", "HOSTS", "x"), "there is no program ssh on this host: install OpenSSH"),
        (("-H", "HOSTS", "--sync-dst-dir", "/d", "x"), "there is no program rsync on this host: install rsync"),
    ],
)
def test_missing_programs(tmp_path: Path, arguments: tuple[str, ...], message: str) -> None:
    """The folder of programs has what the launcher itself is made of, and ssh where it is not the one that is missing."""
    (tmp_path / "hosts").write_text("192.0.2.1\n")
    here = {"env", "bash", "dirname", "readlink", *(["ssh"] if "rsync" in message else [])}
    for program in here:
        (tmp_path / program).symlink_to(Path(shutil.which(program) or ""))
    words = [str(tmp_path / "hosts") if word == "HOSTS" else word for word in arguments]
    done = launch("-n", "1", *words, environment={**ENVIRONMENT, "PATH": str(tmp_path)}, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith(f"lockstep launch: {message}"), done.stderr
    assert not list(tmp_path.glob("lockstep-*")), "and no script is left"


@pytest.mark.parametrize("workers", [1, 2, 3])
def test_output_has_the_rank_before_each_line(workers: int) -> None:
    script = "echo to stdout; echo to stderr >&2; printf '10%%\\r20%%\\n'; printf 'no end'"
    done = launch("-n", workers, "sh", "-c", script)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.replace("\r", "\r\n").splitlines()
    for rank in range(workers):
        mine = [line.partition("] ")[2] for line in lines if line.startswith(f"[worker {rank}] ")]
        assert mine == ["to stdout", "10%", "20%", "no end"]
    assert len(lines) == 4 * workers
    assert sorted(done.stderr.splitlines()) == [f"[worker {rank}] to stderr" for rank in range(workers)]


def test_no_line_is_lost_or_torn() -> None:
    """Open MPI's own tags lose two lines of three here."""
    program = "import sys\nfor i in range(9000): print(i % 7); print('e', i, 'x' * (i % 90), file=sys.stderr)"
    done = launch("-n", "3", sys.executable, "-c", program)
    assert done.returncode == 0
    for rank in range(3):
        prefix = f"[worker {rank}] "
        mine = [line.removeprefix(prefix) for line in done.stdout.splitlines() if line.startswith(prefix)]
        assert mine == [str(i % 7) for i in range(9000)]
        mine = [line.removeprefix(prefix) for line in done.stderr.splitlines() if line.startswith(prefix)]
        assert mine == [f"e {i} {'x' * (i % 90)}".rstrip() if i % 90 else f"e {i} " for i in range(9000)]


def test_lines_come_as_they_are_written() -> None:
    """Not when a buffer is full: the program waits for the answer to its first."""
    program = "import sys; print('question'); print('got', input())"
    job = subprocess.Popen(
        [LOCKSTEP, "launch", "-n", "1", sys.executable, "-c", program],
        env=ENVIRONMENT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert job.stdout is not None and job.stdin is not None
    assert job.stdout.readline() == "[worker 0] question\n"
    assert job.communicate("answer\n", timeout=60)[0] == "[worker 0] got answer\n"
    assert job.returncode == 0


def test_parts_of_lines_find_together() -> None:
    failures: list[tuple[int, int]] = []
    lines = Lines(2, lambda *failure: failures.append(failure))
    assert lines.take(b"mpirun says\n") == b"mpirun says\n"
    assert lines.take(b"[1,0]<stdout>:one and [1,2]<stdout>:three\0\0\n") == b"[server 0] three\n"
    assert lines.take(b"[12,0]<stdout>:two\n") == b"[worker 0] one and two\n"
    assert lines.take(b"[1,1]<stderr>:50%\0\0\r\n") == b"[worker 1] 50%\r"
    assert lines.take(b"[1,1]<stderr>:lockstep launch: ended by signal 9\0\0\n").startswith(b"[worker 1] lockstep")
    assert failures == [(1, 137)]
    assert lines.take(b"[1,1]<stdout>:begun[1,0]<stdout>:x\n") == b"[worker 0] x\n"
    assert lines.rest() == b"[worker 1] begun\n"


@pytest.mark.parametrize("line", [b"\n", b"x\n", b"\xc3\xbc\n", b"10%\r", b"dos\r\n", b"no end", b"y" * 50 + b"\n"])
def test_no_line_is_shorter_than_a_tag(line: bytes) -> None:
    whole = padded(line)
    assert len(whole) >= len("[12345,123456]<stdout>:")
    shown = Lines(1, pytest.fail).take(b"[1,0]<stdout>:" + whole)
    assert shown == b"[worker 0] " + line.rstrip(b"\r\n") + (b"\r" if line.endswith(b"\r") else b"\n")


@pytest.mark.parametrize(
    ("script", "code", "said"),
    [
        ("exit 7", 7, "[worker 1] lockstep launch: ended with exit code 7"),
        ("kill -9 $$", 137, "[worker 1] lockstep launch: ended by signal 9"),
        ("exec no-such-program", 127, "[worker 1] lockstep launch: ended with exit code 127"),
    ],
)
def test_exit_codes(script: str, code: int, said: str) -> None:
    done = launch("-n", "3", "sh", "-c", f"[ $OMPI_COMM_WORLD_RANK = 1 ] || sleep 60; {script}")
    assert done.returncode == code
    assert said in done.stderr.splitlines()
    assert "[worker 0] lockstep launch: ended" not in done.stderr, "mpirun has ended these"


def test_a_program_that_is_not_there() -> None:
    done = launch("-n", "1", "no-such-program")
    assert done.returncode == 127
    assert "[worker 0] lockstep launch: no-such-program cannot be run: No such file or directory\n" in done.stderr


@pytest.mark.parametrize(
    ("script", "code"),
    [
        ("[ $OMPI_COMM_WORLD_RANK = 1 ] && kill -9 $$; sleep 1; echo goes on", 0),
        ("sleep 0.$OMPI_COMM_WORLD_RANK; exit 5", 5),
    ],
)
def test_workers_that_die_are_tolerated_while_one_succeeds(script: str, code: int) -> None:
    done = launch("-n", "3", "--tolerate-workers", "sh", "-c", script)
    assert done.returncode == code, done.stderr
    if code == 0:
        assert sorted(done.stdout.splitlines()) == ["[worker 0] goes on", "[worker 2] goes on"]


@pytest.fixture
def server(tmp_path: Path) -> str:
    """A folder in which `python -m lockstep serve` is a program that says its environment and ends with that of EXIT."""
    (tmp_path / "lockstep").mkdir()
    (tmp_path / "lockstep" / "__init__.py").touch()
    program = "import os, sys\ne = os.environ\nprint(sys.argv[1], e['LOCKSTEP_WORKERS'], e['LOCKSTEP_SERVERS'], e['A'])\nsys.exit(int(e['EXIT']))\n"
    (tmp_path / "lockstep" / "__main__.py").write_text(program)
    return str(tmp_path)


@pytest.mark.parametrize(("code", "options"), [(0, []), (3, []), (3, ["--tolerate-workers"])])
def test_servers(server: str, code: int, options: list[str]) -> None:
    settings = ["--env", "A=both", "--env-server", f"PYTHONPATH={server}", "--env-server", f"EXIT={code}"]
    script = "echo worker $LOCKSTEP_WORKERS $LOCKSTEP_SERVERS $A"
    done = launch("-n", "2", "-s", "1", *settings, *options, "sh", "-c", script)
    assert done.returncode == code, done.stderr
    assert sorted(done.stdout.splitlines()) == [
        "[server 0] serve 2 1 both",
        "[worker 0] worker 2 1 both",
        "[worker 1] worker 2 1 both",
    ]


def test_a_job_without_a_server_is_lost(server: str) -> None:
    """Where workers may die mpirun ends nobody, and workers that still begin wait for ever."""
    mark = f"launch-{os.getpid()}-lost"
    settings = ["--env", "A=1", "--env-server", f"PYTHONPATH={server}", "--env-server", "EXIT=3"]
    command = ["launch", "-n", "1", "-s", "1", "--tolerate-workers", *settings, "sleep", "100"]
    program = f"""
from lockstep import _command
from lockstep._launch import output
output.LOST_SECONDS = 1
raise SystemExit(_command.main({command}))
"""
    environment = {**ENVIRONMENT, "MARK_OF_JOB": mark}
    done = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 3, done.stderr
    assert "[server 0] lockstep launch: ended with exit code 3" in done.stderr
    assert not processes_with(mark)


def await_lines(job: subprocess.Popen[str], count: int) -> None:
    assert job.stdout is not None
    for _ in range(count):
        assert job.stdout.readline().endswith("ready\n")


def processes_with(mark: str) -> list[int]:
    """Those that have the mark in their environment."""
    found = []
    for environ in Path("/proc").glob("[0-9]*/environ"):
        try:
            if mark.encode() in environ.read_bytes():
                found.append(int(environ.parent.name))
        except OSError:
            continue  # it has ended
    return found


def start_waiting(mark: str, script: str, new_group: bool = False) -> subprocess.Popen[str]:
    command = [LOCKSTEP, "launch", "-n", "2", "--", "sh", "-c", script]
    pipe = subprocess.PIPE
    environment = {**ENVIRONMENT, "MARK_OF_JOB": mark}
    job = subprocess.Popen(command, env=environment, stdout=pipe, text=True, process_group=0 if new_group else None)
    await_lines(job, 2)
    return job


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_leaves_nothing_behind(number: signal.Signals) -> None:
    """Nor do children of ranks stay, nor ranks that do not want to end."""
    mark = f"launch-{os.getpid()}-{number}"
    job = start_waiting(mark, "trap '' INT TERM HUP; sleep 100 & echo ready; sleep 100; sleep 100")
    assert len(processes_with(mark)) >= 8
    job.send_signal(number)
    assert job.wait(30) == 128 + number
    assert not processes_with(mark)


def test_control_c_of_a_terminal_goes_to_all() -> None:
    """That is, to mpirun too."""
    mark = f"launch-{os.getpid()}-group"
    job = start_waiting(mark, "echo ready; sleep 100", new_group=True)
    os.killpg(job.pid, signal.SIGINT)
    assert job.wait(30) == 128 + signal.SIGINT
    assert not processes_with(mark)


def test_ranks_do_not_outlive_an_mpirun_that_is_killed() -> None:
    mark = f"launch-{os.getpid()}-killed"
    job = start_waiting(mark, "trap '' TERM; echo ready; sleep 100; sleep 100")
    (mpirun,) = (int(each) for each in Path(f"/proc/{job.pid}/task/{job.pid}/children").read_text().split())
    os.kill(mpirun, signal.SIGKILL)
    assert job.wait(30) == 137
    assert not processes_with(mark)


def test_signals_for_programs_reach_them() -> None:
    script = "trap 'echo got it; exit 0' USR1; echo ready; while :; do sleep 0.05; done"
    job = start_waiting("launch", script)
    job.send_signal(signal.SIGUSR1)
    stdout = job.communicate(timeout=30)[0]
    assert job.returncode == 0
    assert sorted(stdout.splitlines()) == ["[worker 0] got it", "[worker 1] got it"]


def test_who_stops_reading_ends_the_job() -> None:
    mark = f"launch-{os.getpid()}-pipe"
    job = subprocess.Popen(
        [LOCKSTEP, "launch", "-n", "2", "yes"], env={**ENVIRONMENT, "MARK_OF_JOB": mark}, stdout=subprocess.PIPE
    )
    assert job.stdout is not None
    assert job.stdout.readline().endswith(b"] y\n")
    job.stdout.close()
    assert job.wait(30) == 128 + signal.SIGTERM
    end = time.monotonic() + 5
    while processes_with(mark):
        assert time.monotonic() < end


@pytest.mark.parametrize("workers", [1, 2, 3])
def test_ranks_are_those_of_the_program(workers: int) -> None:
    program = "import lockstep as ls; w = ls.Communicator.mpi(); w.barrier(); print(w.rank, w.size)"
    done = launch("-n", workers, sys.executable, "-c", program)
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == [f"[worker {rank}] {rank} {workers}" for rank in range(workers)]
