"""`--launcher mpi`: mpirun as configured here. Without a hosts file it uses its own, such as an allocation."""

from __future__ import annotations

from .job import Job, Plan
from .mpirun import mpirun
from .supervise import KEEP_ALIVE


def plan(job: Job) -> Plan:
    return Plan(command=mpirun(job), environment=KEEP_ALIVE, supervised=True)
