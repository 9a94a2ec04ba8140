"""Converts the arguments of `lockstep launch`, which `_command.py` defines, to a job and its plan."""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
from collections.abc import Iterable, Mapping

from .._base.errors import Error
from . import direct, hosts, kubernetes, local, mpi, sge, slurm, ssh
from .job import Job, Plan
from .mpirun import is_allowed_root, is_bound_by

# mpirun passes only the variables that it is told to pass to ranks on other hosts.
_PASSED = ("PATH", "PYTHONPATH", "LD_LIBRARY_PATH", "OMP_NUM_THREADS")
_OWN = (
    "LOCKSTEP_WORKERS",
    "LOCKSTEP_SERVERS",
    "LOCKSTEP_TOLERATE_WORKERS",
)  # describe the job that this process belongs to
_LAUNCHERS = ("local", "direct", "mpi", "ssh", "slurm", "sge", "kubernetes")
_BY_MPIRUN = ("local", "mpi", "ssh")  # with options of Open MPI's
_OPEN_MPI, _MPICH = "Open MPI", "MPICH"
_HOSTS_ARE_CHOSEN = ("local", "slurm", "sge", "kubernetes")
_SETTING = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)(?:[=:](.*))?", re.DOTALL)


def plan_of(arguments: argparse.Namespace, environment: Mapping[str, str], directory: str) -> Plan:
    """Returns the plan for the arguments.

    Args:
      arguments: from the parser.
      environment: of this process.
      directory: the current directory.

    Raises:
      Error: an argument or the hosts file is invalid.
    """
    mpirun = _mpirun(environment) if arguments.launcher in (None, *_BY_MPIRUN) else ""
    launcher = arguments.launcher or _default_launcher(arguments, mpirun)
    _check_launcher(launcher, arguments)
    if mpirun == _MPICH and launcher in _BY_MPIRUN:
        what = f"--launcher {launcher}" if arguments.launcher else "-s"
        raise Error(
            f"{what} needs Open MPI's mpirun, and the mpirun on this host is MPICH's or Intel's: use --launcher direct, "
            "or start the program by that mpirun itself"
        )
    job = _job(launcher, arguments, environment)
    if launcher == "local":
        return local.plan(job)
    if launcher == "mpi":
        return mpi.plan(job)
    if launcher == "slurm":
        return slurm.plan(job, tuple(arguments.submit_option))
    if launcher == "sge":
        return sge.plan(job, tuple(arguments.submit_option))
    if launcher == "kubernetes":
        return kubernetes.plan(job, arguments.image)
    agent = environment.get("OMPI_MCA_plm_rsh_agent", ssh.AGENT)
    plan = direct.plan if launcher == "direct" else ssh.plan
    return plan(job, agent, source=directory if job.directory else "", is_here=ssh.is_this_host)


def _mpirun(environment: Mapping[str, str]) -> str:
    """Returns "" if there is no mpirun, _MPICH if it is MPICH's or Intel's, and _OPEN_MPI otherwise."""
    path = shutil.which("mpirun", path=environment.get("PATH"))
    if path is None:
        return ""
    try:
        done = subprocess.run([path, "--version"], capture_output=True, text=True, timeout=20, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return _OPEN_MPI  # starting it will show what is wrong
    return _MPICH if any(name in done.stdout for name in ("HYDRA", "Intel(R) MPI")) else _OPEN_MPI


def _default_launcher(arguments: argparse.Namespace, mpirun: str) -> str:
    if arguments.num_servers == 0 and mpirun != _OPEN_MPI:
        return "direct"
    return "ssh" if arguments.hostfile else "local"


def _check_launcher(launcher: str, arguments: argparse.Namespace) -> None:
    if launcher == "yarn":
        raise Error(
            "--launcher yarn: YARN is not supported, because no MPI runs there any more; use kubernetes, slurm, or ssh with a "
            "hosts file"
        )
    if launcher not in _LAUNCHERS:
        raise Error(f"--launcher is {launcher}, expected one of {', '.join(_LAUNCHERS)}")
    if launcher == "ssh" and not arguments.hostfile:
        raise Error("--launcher ssh requires the hosts: -H FILE")
    if arguments.hostfile and launcher in _HOSTS_ARE_CHOSEN:
        where = "runs on this host alone" if launcher == "local" else f"gets its hosts from {launcher}"
        raise Error(f"--launcher {launcher} {where}: leave out -H")
    _check_only("--sync-dst-dir", arguments.sync_dst_dir, launcher, ("ssh", "direct"))
    _check_only("--image", arguments.image, launcher, ("kubernetes",))
    _check_only("--submit-option", arguments.submit_option, launcher, ("slurm", "sge"))
    if launcher == "direct" and arguments.num_servers > 0:
        raise Error("--launcher direct starts no servers, which need mpirun: leave out -s, or use local or ssh")
    if launcher == "direct" and arguments.sync_dst_dir and not arguments.hostfile:
        raise Error("--sync-dst-dir copies to the hosts of a file: -H FILE")
    if launcher == "kubernetes" and not arguments.image:
        raise Error("--launcher kubernetes requires the image of its containers: --image")
    if arguments.sync_dst_dir and not re.match("/+[^/]", arguments.sync_dst_dir):
        raise Error(f"--sync-dst-dir is {arguments.sync_dst_dir}, expected an absolute path of a folder below /")


def _check_only(option: str, value: object, launcher: str, launchers: tuple[str, ...]) -> None:
    if value and launcher not in launchers:
        raise Error(f"{option} is for --launcher {' and '.join(launchers)}, not for {launcher}")


def _job(launcher: str, arguments: argparse.Namespace, environment: Mapping[str, str]) -> Job:
    program = tuple(arguments.program[arguments.program[:1] == ["--"] :])
    if not program:
        raise Error("there is no program after the options, such as python train.py")
    if ":" in program and launcher != "direct":
        raise Error("an argument of the program is ':', with which mpirun begins another program")
    if arguments.num_workers < 1:
        raise Error(f"-n is {arguments.num_workers}, expected at least 1 worker")
    if arguments.num_servers < 0:
        raise Error(f"-s is {arguments.num_servers}, expected at least 0 servers")
    interface = arguments.interface if arguments.interface is not None else environment.get("DMLC_INTERFACE", "")
    return Job(
        program=program,
        workers=arguments.num_workers,
        servers=arguments.num_servers,
        hosts=hosts.read(arguments.hostfile) if arguments.hostfile else (),
        hosts_file=arguments.hostfile,
        directory=arguments.sync_dst_dir.rstrip("/"),
        interface=_interface(interface),
        environment=_settings("--env", arguments.env, environment),
        worker_environment=_settings("--env-worker", arguments.env_worker, environment),
        server_environment=_settings("--env-server", arguments.env_server, environment),
        passed=_passed(environment) if launcher in ("direct", "mpi", "ssh") else (),
        tolerate_workers=arguments.tolerate_workers,
        as_root=not is_allowed_root(environment),
        bind=is_bound_by(environment),
    )


def _interface(text: str) -> str:
    if text and not re.fullmatch(r"[A-Za-z0-9_.:-]+(,[A-Za-z0-9_.:-]+)*", text):
        raise Error(f"--interface is {text!r}, expected names of network cards separated by commas, such as ib0")
    return text


def _settings(option: str, texts: Iterable[str], environment: Mapping[str, str]) -> dict[str, str]:
    """Parses NAME=VALUE, or NAME:VALUE as in MXNet's launch.py. NAME alone takes the value in `environment`."""
    settings = {}
    for text in texts:
        match = _SETTING.fullmatch(text)
        if match is None:
            raise Error(f"{option}: {text!r} is not NAME=VALUE or NAME")
        name, value = match.groups()
        if value is None and name not in environment:
            raise Error(f"{option}: {name} has no value, and is not set here")
        settings[name] = environment[name] if value is None else value
    return settings


def _passed(environment: Mapping[str, str]) -> tuple[str, ...]:
    ours = sorted(name for name in environment if name.startswith("LOCKSTEP_") and name not in _OWN)
    return (*(name for name in _PASSED if name in environment), *ours)
