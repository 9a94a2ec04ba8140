"""`--launcher mpi`: mpirun, as it is configured here; without a hosts file on the hosts that it knows of, such as those of an allocation."""

from __future__ import annotations

from .._supervise import KEEP_ALIVE
from .job import Job, Plan
from .mpirun import mpirun


def plan(job: Job) -> Plan:
    return Plan(command=mpirun(job), environment=KEEP_ALIVE, supervised=True)
