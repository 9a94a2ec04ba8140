"""`--launcher direct`: ranks without MPI, here or on hosts that answer to ssh. They meet by the environment."""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable
from pathlib import Path

from .hosts import place_workers
from .job import Job, Plan
from .mpirun import exports
from .ssh import AGENT, prepare

STARTER = str(Path(__file__).with_name("starter.py"))
# A host that is lost is noticed after 15 s, as ranks notice it.
_KEEP_ALIVE = ("-o", "ServerAliveInterval=5", "-o", "ServerAliveCountMax=3")


def plan(job: Job, agent: str = AGENT, source: str = "", is_here: Callable[[str], bool] = lambda _: False) -> Plan:
    """
    Args:
      agent, source, is_here: as of `ssh.plan`.

    Raises:
      Error: the hosts have too few slots.
    """
    placed = place_workers(job.hosts, job.workers, job.hosts_file) if job.hosts else {"": job.workers}
    command = [job.python, STARTER]
    for host, ranks in placed.items():
        command += ["--ranks", str(ranks) if not host or is_here(host) else f"{ranks}@{host}"]
    if job.hosts:
        words = shlex.split(agent)
        keep = _KEEP_ALIVE if os.path.basename(words[0]) == "ssh" else ()
        command += ["--agent", shlex.join([*words, *keep])]
    if job.directory:
        command += ["--directory", job.directory]
    if job.tolerate_workers:
        command += ["--tolerate"]
    command += exports(job, job.worker_environment)
    return Plan(command=(*command, "--", *job.program), steps=prepare(job, agent, source, is_here), supervised=True)
