"""`--launcher local`: mpirun, on this host alone."""

from __future__ import annotations

from .job import Job, Plan
from .mpirun import mpirun


def plan(job: Job) -> Plan:
    # More ranks than cores are what somebody tries a job with.
    return Plan(command=mpirun(job, ("--oversubscribe",)), supervised=True)
