"""`--launcher local`: mpirun, on this host alone."""

from __future__ import annotations

from .job import Job, Plan
from .mpirun import mpirun


def plan(job: Job) -> Plan:
    # A trial of a job often has more ranks than cores.
    return Plan(command=mpirun(job, ("--oversubscribe",)), supervised=True)
