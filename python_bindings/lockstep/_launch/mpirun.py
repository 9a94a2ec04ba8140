"""mpirun's command line for a job. Workers are the first ranks. Workers and servers have separate contexts.

There is one context for each host, because mpirun sums the slots that several contexts give for a host, and would place
ranks by the sum.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from .hosts import place_servers, place_workers
from .job import Job

RANK = str(Path(__file__).with_name("rank.py"))  # the wrapper of each program


def mpirun(job: Job, options: tuple[str, ...] = ()) -> tuple[str, ...]:
    """Returns the command, which can run on one of the hosts or on another one.

    Args:
      options: of mpirun, for all ranks.

    Raises:
      Error: the hosts have too few slots.
    """
    workers = place_workers(job.hosts, job.workers, job.hosts_file) if job.hosts else {"": job.workers}
    contexts = [_context(job, host, ranks, job.worker_environment, job.program) for host, ranks in workers.items()]
    if job.servers > 0:
        serve = (job.python, "-m", "lockstep", "serve")
        servers = place_servers(job.hosts, job.servers) if job.hosts else {"": job.servers}
        contexts += [_context(job, host, ranks, job.server_environment, serve) for host, ranks in servers.items()]
    first, *others = contexts
    command = ["mpirun", *_general_options(job), *options, *first]
    for context in others:
        command += [":", *context]
    return tuple(command)


def network_environment(interface: str) -> dict[str, str]:
    """The variables that tell Lockstep, UCX, gloo and NCCL the network card. Open MPI gets it as options."""
    names = ("LOCKSTEP_INTERFACE", "UCX_NET_DEVICES", "GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME")
    return dict.fromkeys(names, interface) if interface else {}


def is_bound_by(environment: Mapping[str, str]) -> bool:
    """True if the environment tells mpirun how to bind ranks to cores."""
    return "OMPI_MCA_hwloc_base_binding_policy" in environment


def is_allowed_root(environment: Mapping[str, str]) -> bool:
    """True if mpirun needs no option to run as this user: the user is not root, or the environment allows root."""
    names = ("OMPI_ALLOW_RUN_AS_ROOT", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM")
    return os.geteuid() != 0 or all(environment.get(name) == "1" for name in names)


def _general_options(job: Job) -> list[str]:
    options = ["--tag-output"]  # for output.py
    if job.as_root:
        options += ["--allow-run-as-root"]
    if job.tolerate_workers:
        options += ["--enable-recovery"]
    if job.hosts or job.directory:
        options += ["--oversubscribe"]  # ranks are already placed, and servers need no slots
    if not job.bind:
        options += [
            "--bind-to",
            "none",
        ]  # the threads of a rank may use all cores of the host, together with its other ranks
    if job.interface:
        for layer in ("btl", "oob"):
            options += ["--mca", f"{layer}_tcp_if_include", job.interface]
    return options


def _context(job: Job, host: str, ranks: int, environment: Mapping[str, str], program: tuple[str, ...]) -> list[str]:
    """Returns one application context. Options of one context do not apply to others, so each repeats all of them."""
    context = ["--wdir", job.directory] if job.directory else []
    if host:
        context += ["--host", f"{host}:{ranks}"]
    settings = {**environment, **_roles(job)}
    return [*context, *exports(job, settings), "-n", str(ranks), job.python, RANK, *program]


def exports(job: Job, settings: Mapping[str, str]) -> list[str]:
    """Returns options with the variables of ranks: those of the job and `settings`, which take precedence."""
    settings = {**network_environment(job.interface), **job.environment, **settings}
    passed = [name for name in job.passed if name not in settings]
    return [word for text in (*passed, *map("=".join, settings.items())) for word in ("-x", text)]


def _roles(job: Job) -> dict[str, str]:
    roles = {"LOCKSTEP_WORKERS": str(job.workers), "LOCKSTEP_SERVERS": str(job.servers)} if job.servers > 0 else {}
    return {**roles, "LOCKSTEP_TOLERATE_WORKERS": "1"} if job.tolerate_workers else roles
