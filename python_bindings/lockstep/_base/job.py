"""The job of this process, as the launcher describes it in the environment."""

from __future__ import annotations

import os

from .errors import Error

# Of Open MPI; of MPICH and Intel MPI; of Slurm's srun; of torchrun.
_SIZES = ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_STEP_NUM_TASKS", "WORLD_SIZE")


def size() -> int:
    """The number of ranks of the job; 1 if the environment does not say."""
    sizes = [os.environ.get(name, "") for name in _SIZES]
    return max([1, *(int(each) for each in sizes if each.isdecimal())])


def check_is_one(what: str, way: str) -> None:
    """Raises an Error if a program that trains alone runs in a job of several ranks.

    Args:
      what: the name of the program in the error.
      way: the way to train with all ranks of the job.
    """
    ranks = size()
    if ranks > 1:
        raise Error(
            f"{what}: this process is one of {ranks} ranks of a job, and each would train its own model; {way} trains one model "
            "with all of them, and replicated=True one on each"
        )
