"""mpirun's command line for a job: workers are its first ranks, servers those after them, each in application contexts of their own.

There is a context for each host, because mpirun adds up what several contexts say of the slots of a host, and would place ranks by the sum.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from .hosts import place_servers, place_workers
from .job import Job

RANK = str(Path(__file__).with_name("rank.py"))  # what runs each program


def mpirun(job: Job, options: tuple[str, ...] = ()) -> tuple[str, ...]:
    """The command, which runs on one of the hosts or beside them.

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
    """What names the network card to Lockstep, UCX, gloo and NCCL; Open MPI gets it as options."""
    names = ("LOCKSTEP_INTERFACE", "UCX_NET_DEVICES", "GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME")
    return dict.fromkeys(names, interface) if interface else {}


def is_bound_by(environment: Mapping[str, str]) -> bool:
    """Whether somebody has told mpirun how ranks are bound to cores."""
    return "OMPI_MCA_hwloc_base_binding_policy" in environment


def is_allowed_root(environment: Mapping[str, str]) -> bool:
    """Whether mpirun runs as root without being told so on its command line."""
    names = ("OMPI_ALLOW_RUN_AS_ROOT", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM")
    return os.geteuid() != 0 or all(environment.get(name) == "1" for name in names)


def _general_options(job: Job) -> list[str]:
    options = ["--tag-output"]  # which output.py reads
    if job.as_root:
        options += ["--allow-run-as-root"]
    if job.tolerate_workers:
        options += ["--enable-recovery"]
    if job.hosts or job.directory:
        options += ["--oversubscribe"]  # who runs where has been decided, and servers need no slots
    if not job.bind:
        options += [
            "--bind-to",
            "none",
        ]  # a rank has threads; its cores are those of its host, shared with its other ranks
    if job.interface:
        for layer in ("btl", "oob"):
            options += ["--mca", f"{layer}_tcp_if_include", job.interface]
    return options


def _context(job: Job, host: str, ranks: int, environment: Mapping[str, str], program: tuple[str, ...]) -> list[str]:
    """One application context. Its options are its own, so that each context has to have them all."""
    context = ["--wdir", job.directory] if job.directory else []
    if host:
        context += ["--host", f"{host}:{ranks}"]
    settings = {**network_environment(job.interface), **job.environment, **environment, **_roles(job)}
    for name in job.passed:
        if name not in settings:
            context += ["-x", name]
    for name, value in settings.items():
        context += ["-x", f"{name}={value}"]
    return [*context, "-n", str(ranks), job.python, RANK, *program]


def _roles(job: Job) -> dict[str, str]:
    roles = {"LOCKSTEP_WORKERS": str(job.workers), "LOCKSTEP_SERVERS": str(job.servers)} if job.servers > 0 else {}
    return {**roles, "LOCKSTEP_TOLERATE_WORKERS": "1"} if job.tolerate_workers else roles
