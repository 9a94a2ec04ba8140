"""`--launcher slurm`: a batch script for sbatch. Slurm chooses hosts with a task for each worker.
Servers are spread over these hosts."""

from __future__ import annotations

from .batch import shell_line
from .job import Job, Plan

_SCRIPT = """#!/bin/bash
#SBATCH --job-name={name}
#SBATCH --ntasks={workers}
#SBATCH --output=lockstep-{name}-%j.out
# The workers of each host: srun runs this once for each task.
exec {launch}
"""


def plan(job: Job, options: tuple[str, ...] = ()) -> Plan:
    """
    Args:
      options: of sbatch. They override those in the script.
    """
    launch = shell_line(job, "srun printenv SLURMD_NODENAME | sort")
    file = f"lockstep-{job.name}.slurm"
    text = _SCRIPT.format(name=job.name, workers=job.workers, launch=launch)
    return Plan(command=("sbatch", *options, file), file=file, text=text)
