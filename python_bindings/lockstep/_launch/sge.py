"""`--launcher sge`: a batch script for qsub. Grid Engine chooses hosts with a slot for each worker.
Servers are spread over these hosts."""

from __future__ import annotations

from .batch import shell_line
from .job import Job, Plan

_SCRIPT = """#!/bin/bash
#$ -S /bin/bash
#$ -N {name}
#$ -cwd
#$ -V
#$ -j y
#$ -o lockstep-{name}-$JOB_ID.out
#$ -pe orte {workers}
# The workers of each host are in a file of Grid Engine: HOST SLOTS QUEUE PROCESSORS.
exec {launch}
"""


def plan(job: Job, options: tuple[str, ...] = ()) -> Plan:
    """
    Args:
      options: of qsub. They override those in the script, such as another parallel environment: "-pe mpi 4".
    """
    launch = shell_line(job, 'awk \'{print $1 " slots=" $2}\' "$PE_HOSTFILE"')
    file = f"lockstep-{job.name}.sge"
    text = _SCRIPT.format(name=job.name, workers=job.workers, launch=launch)
    return Plan(command=("qsub", *options, file), file=file, text=text)
