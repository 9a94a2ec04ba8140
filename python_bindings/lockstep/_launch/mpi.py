"""`--launcher mpi`: mpirun, as it is configured here; without a hosts file on the hosts that it knows of, such as those of an allocation."""

from __future__ import annotations

from .job import Job, Plan
from .mpirun import mpirun
from .supervise import KEEP_ALIVE


def plan(job: Job) -> Plan:
    return Plan(command=mpirun(job), environment=KEEP_ALIVE, supervised=True)
