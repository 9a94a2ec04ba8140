"""`Job`, a description that does not depend on the launcher, and `Plan`, the actions of a launcher for it."""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from .hosts import Host


@dataclass(frozen=True)
class Job:
    """The workers and servers of a job, their programs and their hosts."""

    program: tuple[str, ...]  # of the workers, with its arguments
    workers: int
    servers: int = 0
    hosts: tuple[Host, ...] = ()  # empty: this host, or the hosts of the launcher
    hosts_file: str = ""  # the file of `hosts`, for messages
    directory: str = ""  # of the ranks on each host; "": that of the launcher
    interface: str = ""  # the network card, "ib0", or several with commas
    environment: Mapping[str, str] = field(default_factory=dict)  # of all ranks, in addition to passed variables
    worker_environment: Mapping[str, str] = field(default_factory=dict)
    server_environment: Mapping[str, str] = field(default_factory=dict)
    passed: tuple[str, ...] = ()  # variables of this process that are passed to all ranks
    tolerate_workers: bool = False
    as_root: bool = False  # mpirun runs as root, which needs an option
    bind: bool = False  # mpirun binds ranks to cores, as its user has configured
    python: str = sys.executable  # on all hosts

    @property
    def name(self) -> str:
        """A name for files, queues and hosts, such as "train" for `python train.py`: [a-z][a-z0-9-]*."""
        scripts = (part for part in self.program if part.endswith(".py"))
        stem = Path(next(scripts, self.program[0])).stem
        name = re.sub(r"[^a-z0-9]+", "-", stem.lower()).strip("-")
        if not name[:1].isalpha():
            name = f"job-{name}"
        return name[:40].strip("-")


@dataclass(frozen=True)
class Step:
    """A command that prepares a host. `what` describes its failure."""

    host: str
    what: str
    command: tuple[str, ...]
    seconds: float = 3600.0  # time limit; a copy may be large


@dataclass(frozen=True)
class Plan:
    """The actions that start a job: steps, on several hosts at once; then writing a file; then a command."""

    steps: tuple[Step, ...] = ()
    file: str = ""  # the path; "" for no file
    text: str = ""
    command: tuple[str, ...] = ()  # empty: only the file
    environment: Mapping[str, str] = field(default_factory=dict)  # of the command, in addition to this process's
    supervised: bool = False  # the command is mpirun, whose ranks end with this process

    def __str__(self) -> str:
        """The output of `--dry-run`: commands for a shell, or the file, in which the command is a comment."""
        settings = [f"{name}={shlex.quote(value)}" for name, value in self.environment.items()]
        command = " ".join([*settings, shlex.join(self.command)])
        if self.file:
            return self.text + (f"# {command}\n" if self.command else "")
        return "".join(f"{line}\n" for line in (*(shlex.join(step.command) for step in self.steps), command))
