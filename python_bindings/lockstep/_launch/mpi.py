"""`--launcher mpi`: mpirun as configured on this host. Without a hosts file it uses the hosts that it knows, such as an
allocation."""

from __future__ import annotations

from .job import Job, Plan
from .mpirun import mpirun
from .supervise import KEEP_ALIVE


def plan(job: Job) -> Plan:
    return Plan(command=mpirun(job), environment=KEEP_ALIVE, supervised=True)
