"""`--launcher ssh`: mpirun with daemons started by ssh, after hosts have answered or got the working directory."""

from __future__ import annotations

import shlex
import socket
from collections.abc import Callable

from .job import Job, Plan, Step
from .mpirun import mpirun
from .supervise import KEEP_ALIVE

AGENT = "ssh -o BatchMode=yes -o ConnectTimeout=10"  # asks for no password, and has a time limit
ASK_SECONDS = 60.0  # for a host to answer; ssh's own limit covers only the connection


def plan(job: Job, agent: str = AGENT, source: str = "", is_here: Callable[[str], bool] = lambda _: False) -> Plan:
    """
    Args:
      agent: the command that runs a command on another host, mpirun's setting plm_rsh_agent.
      source: the directory that is copied to `job.directory` on all hosts; "" for none.
      is_here: true for names of this host, which needs no ssh.
    """
    options = ("--mca", "plm", "rsh", "--mca", "plm_rsh_agent", agent)
    steps = prepare(job, agent, source, is_here)
    return Plan(command=mpirun(job, options), environment=KEEP_ALIVE, steps=steps, supervised=True)


def prepare(job: Job, agent: str, source: str, is_here: Callable[[str], bool]) -> tuple[Step, ...]:
    """Returns steps that ask all hosts of the job to answer, or copy the directory there. Arguments are as of `plan`."""
    steps: list[Step] = []
    for host in job.hosts:
        steps += _copy(host.name, job, agent, source, is_here(host.name)) if source else _ask(host.name, agent, is_here)
    return tuple(steps)


def is_this_host(name: str) -> bool:
    """True if a name or address belongs to this host."""
    if name in ("localhost", socket.gethostname(), socket.gethostname().partition(".")[0]):
        return True
    try:
        addresses = {entry[4][0] for entry in socket.getaddrinfo(name, None)}
    except OSError:
        return False  # a name that only ssh knows
    return any(map(_is_own_address, addresses))


def _is_own_address(address: str) -> bool:
    """True if the address can be bound, which is possible only on its host."""
    try:
        with socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET) as tried:
            tried.bind((address, 0))
    except OSError:
        return False
    return True


def _ask(host: str, agent: str, is_here: Callable[[str], bool]) -> list[Step]:
    if is_here(host):
        return []
    return [Step(host, f"host {host} cannot be reached by {agent}", (*shlex.split(agent), host, "true"), ASK_SECONDS)]


def _copy(host: str, job: Job, agent: str, source: str, is_here: bool) -> list[Step]:
    """Steps that make the directory, because rsync makes no parents, and copy into it. A separate step also tells an
    unreachable host from a host without rsync."""
    what = f"the working directory cannot be copied to {host}:{job.directory}"
    here = source.rstrip("/") + "/"
    if is_here:
        if here == job.directory.rstrip("/") + "/":
            return []
        make = Step(host, what, ("mkdir", "-p", job.directory))
        return [make, Step(host, what, ("rsync", "-a", here, job.directory + "/"))]
    make_there = (*shlex.split(agent), host, f"mkdir -p {shlex.quote(job.directory)}")
    copy = ("rsync", "-az", "--protect-args", f"--rsh={agent}", here, f"{host}:{job.directory}/")
    return [Step(host, f"host {host} cannot be reached by {agent}", make_there, ASK_SECONDS), Step(host, what, copy)]
