"""The command in batch scripts and MPIJobs: `lockstep launch --launcher mpi` on the hosts of the job."""

from __future__ import annotations

import shlex

from .job import Job


def launch_there(job: Job, hosts: str) -> list[str]:
    """Returns the command that starts the same job by mpirun where it runs.

    Args:
      hosts: the path of the hosts file there.
    """
    command = [job.python, "-m", "lockstep", "launch", "--launcher", "mpi", "-n", str(job.workers)]
    if job.servers > 0:
        command += ["-s", str(job.servers)]
    command += ["-H", hosts]
    if job.interface:
        command += ["--interface", job.interface]
    for option, settings in (
        ("--env", job.environment),
        ("--env-worker", job.worker_environment),
        ("--env-server", job.server_environment),
    ):
        for name, value in settings.items():
            command += [option, f"{name}={value}"]
    if job.tolerate_workers:
        command += ["--tolerate-workers"]
    return [*command, "--", *job.program]


def shell_line(job: Job, hosts: str) -> str:
    """Returns this command for bash. The hosts file is the output of the command `hosts`, such as `sort nodes`."""
    mark = "@hosts@"
    return " ".join(f"<({hosts})" if part == mark else _word(part) for part in launch_there(job, mark))


def _word(text: str) -> str:
    """Quotes a word for bash on one line, because Grid Engine reads options at the beginning of every line."""
    if "\n" not in text:
        return shlex.quote(text)
    return "$'" + text.replace("\\", r"\\").replace("'", r"\'").replace("\n", r"\n") + "'"
