"""`lockstep launch`: the exact commands of each launcher; wrong arguments and hosts files."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from lockstep import Error, _command
from lockstep._launch import hosts, ssh
from lockstep._launch.command import plan_of
from lockstep._launch.direct import STARTER
from lockstep._launch.mpirun import RANK

ALLOWED = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
KEEP_ALIVE = (
    "OMPI_MCA_oob_tcp_keepalive_time=10 OMPI_MCA_oob_tcp_keepalive_intvl=2 OMPI_MCA_oob_tcp_keepalive_probes=10"
)


def dry_run(*arguments: str, environment: Mapping[str, str] = ALLOWED) -> str:
    """The output of --dry-run, with PYTHON for this interpreter and RANK for the program that runs a rank."""
    parsed = _command._parser().parse_args(["launch", *arguments])
    text = str(plan_of(parsed, environment, "/home/me/work"))
    return text.replace(sys.executable, "PYTHON").replace(RANK, "RANK").replace(STARTER, "STARTER")


@pytest.fixture
def hosts_file(tmp_path: Path) -> str:
    path = tmp_path / "hosts"
    path.write_text("# two hosts\nh0 slots=2\n\nh1  slots = 2  # the second\n")
    return str(path)


def test_local() -> None:
    assert dry_run("-n", "2", "python", "train.py", "--lr", "0.1", "-n") == (
        "mpirun --tag-output --bind-to none --oversubscribe -n 2 PYTHON RANK python train.py --lr 0.1 -n\n"
    )


def test_without_mpi(hosts_file: str) -> None:
    """This host is `localhost`; the program may have an argument `:`."""
    assert dry_run("-n", "2", "--launcher", "direct", "python", "train.py", ":") == (
        "PYTHON STARTER --ranks 2 -- python train.py :\n"
    )
    Path(hosts_file).write_text("localhost slots=2\nh1\n")
    environment = {"PATH": "/bin", "LOCKSTEP_TRACE": "t", "HOME": "/root"}
    command = ("-n", "3", "-H", hosts_file, "--launcher", "direct", "--env", "A=1", "--interface", "eth0", "train")
    ssh = "ssh -o BatchMode=yes -o ConnectTimeout=10"
    names = ("LOCKSTEP_INTERFACE", "UCX_NET_DEVICES", "GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME")
    assert dry_run(*command, environment=environment) == (
        f"{ssh} h1 true\n"
        f"PYTHON STARTER --ranks 2 --ranks 1@h1 --agent '{ssh} -o ServerAliveInterval=5 -o ServerAliveCountMax=3' "
        f"-x PATH -x LOCKSTEP_TRACE {' '.join(f'-x {name}=eth0' for name in names)} -x A=1 -- train\n"
    )


def test_where_there_is_no_mpirun_ranks_start_without_it(tmp_path: Path, hosts_file: str) -> None:
    nothing = {"PATH": str(tmp_path)}
    for options in ((), ("-H", hosts_file)):
        assert "PYTHON STARTER --ranks 2" in dry_run("-n", "2", *options, "train", environment=nothing)
    assert "mpirun" in dry_run("-n", "2", "-s", "1", "train", environment=nothing), "servers need it"


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
    assert not ssh.is_this_host("192.0.2.1"), "an address reserved for documentation"
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


def test_no_card_may_be_named_whatever_the_environment_says() -> None:
    environment = {**ALLOWED, "DMLC_INTERFACE": "eth1"}
    assert dry_run("-n", "1", "--interface", "", "train", environment=environment) == dry_run("-n", "1", "train")


def test_a_value_may_be_empty_or_that_of_the_environment() -> None:
    environment = {**ALLOWED, "A": "1", "B": "2 3"}
    text = dry_run("-n", "1", "--env", "A=", "--env", "B", "train", environment=environment)
    assert " -x A= -x 'B=2 3' -n 1 " in text


def test_who_names_a_card_for_one_of_them_is_right() -> None:
    text = dry_run("-n", "1", "--interface", "ib0", "--env", "UCX_NET_DEVICES=mlx5_0:1", "train")
    assert "-x UCX_NET_DEVICES=mlx5_0:1" in text
    assert "UCX_NET_DEVICES=ib0" not in text


def test_what_a_role_is_given_goes_before_what_all_are_given() -> None:
    both = ("--env", "A=1", "--env-worker", "A=2", "--env-server", "A=3")
    worker, server = dry_run("-n", "1", "-s", "1", *both, "train").split(" : ")
    assert " -x A=2 " in worker and "-x A=3 " in server
    assert "A=1" not in worker + server


def test_what_is_passed_on_is_named_once_and_not_of_another_job(hosts_file: str) -> None:
    environment = {**ALLOWED, "PATH": "/bin", "LOCKSTEP_TRACE": "t"}
    environment |= {"LOCKSTEP_WORKERS": "7", "LOCKSTEP_SERVERS": "2", "LOCKSTEP_TOLERATE_WORKERS": "1"}
    arguments = ("-n", "1", "--env", "LOCKSTEP_TRACE=u", "train")
    for launcher, settings in (
        (("--launcher", "mpi"), " -x PATH -x LOCKSTEP_TRACE=u"),
        (("-H", hosts_file), " -x PATH -x LOCKSTEP_TRACE=u"),
        ((), " -x LOCKSTEP_TRACE=u"),  # ranks of this host inherit its environment
    ):
        text = dry_run(*launcher, *arguments, environment=environment)
        assert re.findall("(?: -x [^ ]+)+", text) == [settings] and text.endswith(" -n 1 PYTHON RANK train\n")


def test_workers_that_may_die() -> None:
    assert dry_run("-n", "2", "--tolerate-workers", "train") == (
        "mpirun --tag-output --enable-recovery --bind-to none --oversubscribe -x LOCKSTEP_TOLERATE_WORKERS=1 -n 2 PYTHON RANK train\n"
    )


@pytest.mark.skipif(os.geteuid() != 0, reason="not root")
def test_root_is_allowed_by_an_option_where_it_is_not_yet() -> None:
    assert dry_run("-n", "1", "train", environment={}).startswith("mpirun --tag-output --allow-run-as-root ")
    for name in ALLOWED:  # mpirun requires both
        assert "--allow-run-as-root" in dry_run("-n", "1", "train", environment={name: "1"})


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


def test_batch_scripts_pass_on_what_each_role_is_given() -> None:
    settings = "--env A=1 --env-worker B=2 --env-server C=3"
    text = dry_run("-n", "1", "-s", "1", *settings.split(), "--launcher", "slurm", "train")
    assert f" {settings} -- train\n" in text


@pytest.mark.parametrize(
    ("script", "name"),
    [
        (f"{'a' * 39}-b.py", "a" * 39),
        ("3d.py", "job-3d"),
        ("/data/2024_Run.py", "job-2024-run"),
        ("_a.b c.py", "a-b-c"),
        ("7" * 50, f"job-{'7' * 36}"),
        ("Größe.py", "gr-e"),
        ("学习.py", "job"),
        ("..", "job"),
    ],
)
def test_a_name_is_what_all_queues_and_kubernetes_take(script: str, name: str) -> None:
    """Grid Engine allows no digit first; a Service of Kubernetes needs a letter first, and 63 characters with the
    suffix for pods.
    """
    assert re.fullmatch("[a-z]([a-z0-9-]{0,38}[a-z0-9])?", name)
    for launcher, line in (
        (("slurm",), f"#SBATCH --job-name={name}\n"),
        (("sge",), f"#$ -N {name}\n"),
        (("kubernetes", "--image", "i"), f'  name: "{name}"\n'),
    ):
        assert line in dry_run("-n", "1", "--launcher", *launcher, script)


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


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("h0\nh1 slots=two\n", ":2: 'h1 slots=two' is not HOST or HOST slots=N, N at least 1"),
        ("h0 slots=0\n", ":1: 'h0 slots=0' is not HOST or HOST slots=N, N at least 1"),
        ("h0 h1\n", ":1: 'h0 h1' is not HOST"),
        (
            "\n\nh0:2222\n",
            ":3: 'h0:2222' is not HOST or HOST slots=N, N at least 1; put the port or user of a host",
        ),
        ("me@h0\n", "; put the port or user of a host into ~/.ssh/config"),
        ("h0 max_slots=3\n", ":1: 'h0 max_slots=3' is not HOST"),
        ("-oProxyCommand=x\n", ":1: '-oProxyCommand=x' is not HOST"),
        ("# h0\n\n", " has no hosts"),
        ("h0\nh1\n", "-n is 3, but the 2 hosts of"),
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
        (["-n", "1", "--launcher", "yarn", "x"], "--launcher yarn: YARN is not supported"),
        (
            ["-n", "1", "--launcher", "pbs", "x"],
            "--launcher is pbs, expected one of local, direct, mpi, ssh, slurm, sge, kubernetes",
        ),
        (["-n", "1", "--launcher", "ssh", "x"], "--launcher ssh requires the hosts: -H FILE"),
        (["-n", "1", "--launcher", "local", "-H", "h", "x"], "--launcher local runs on this host alone: leave out -H"),
        (
            ["-n", "1", "--launcher", "slurm", "-H", "h", "x"],
            "--launcher slurm gets its hosts from slurm: leave out -H",
        ),
        (["-n", "1", "--sync-dst-dir", "/d", "x"], "--sync-dst-dir is for --launcher ssh and direct, not for local"),
        (["-n", "1", "-H", "h", "--sync-dst-dir", "d", "x"], "--sync-dst-dir is d, expected an absolute path"),
        (
            ["-n", "1", "-H", "h", "--sync-dst-dir", "/", "x"],
            "--sync-dst-dir is /, expected an absolute path of a",
        ),
        (
            ["-n", "1", "--launcher", "direct", "--sync-dst-dir", "/d", "x"],
            "--sync-dst-dir copies to the hosts of a file: -H FILE",
        ),
        (
            ["-n", "1", "-s", "1", "--launcher", "direct", "x"],
            "--launcher direct starts no servers, which need mpirun: leave out -s, or use local or ssh",
        ),
        (["-n", "1", "--image", "i", "x"], "--image is for --launcher kubernetes, not for local"),
        (["-n", "1", "--submit-option=-q", "x"], "--submit-option is for --launcher slurm and sge, not for local"),
        (["-n", "1", "--launcher", "kubernetes", "x"], "--launcher kubernetes requires the image of its containers"),
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
