"""What a job is: `Job`, which no way of starting it changes, and `Plan`, what a way of starting it would do."""

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
    """Workers, perhaps servers, what they run and where."""

    program: tuple[str, ...]  # of the workers, with its arguments
    workers: int
    servers: int = 0
    hosts: tuple[Host, ...] = ()  # none: this host, or whatever the launcher has
    hosts_file: str = ""  # from which they are, for messages
    directory: str = ""  # in which the ranks run, on each host; "": that of the launcher
    interface: str = ""  # the network card, "ib0", or several with commas
    environment: Mapping[str, str] = field(default_factory=dict)  # of all ranks, beside what they get from here
    worker_environment: Mapping[str, str] = field(default_factory=dict)
    server_environment: Mapping[str, str] = field(default_factory=dict)
    passed: tuple[str, ...] = ()  # names in this process's environment whose values all ranks get
    tolerate_workers: bool = False
    as_root: bool = False  # mpirun is run by root, which it refuses unless it is told to
    bind: bool = False  # mpirun binds ranks to cores, because its user has said how
    python: str = sys.executable  # on all hosts

    @property
    def name(self) -> str:
        """A name for files, queues and hosts, such as "train" for `python train.py`: a letter, then letters, digits and dashes."""
        scripts = (part for part in self.program if part.endswith(".py"))
        stem = Path(next(scripts, self.program[0])).stem
        name = re.sub(r"[^a-z0-9]+", "-", stem.lower()).strip("-")
        if not name[:1].isalpha():
            name = f"job-{name}"
        return name[:40].strip("-")


@dataclass(frozen=True)
class Step:
    """A command that prepares a host. `what` is what failed if it fails."""

    host: str
    what: str
    command: tuple[str, ...]
    seconds: float = 3600.0  # that it may take; a copy may be of much


@dataclass(frozen=True)
class Plan:
    """What starts a job: steps, of different hosts at once; then a file is written; then the command runs."""

    steps: tuple[Step, ...] = ()
    file: str = ""  # its name; "": there is none
    text: str = ""
    command: tuple[str, ...] = ()  # none: a file is all
    environment: Mapping[str, str] = field(default_factory=dict)  # of the command, beside this process's
    supervised: bool = False  # the command is mpirun, whose ranks end with this process

    def __str__(self) -> str:
        """What `--dry-run` prints: commands for a shell; or the file, in which the command is a comment."""
        settings = [f"{name}={shlex.quote(value)}" for name, value in self.environment.items()]
        command = " ".join([*settings, shlex.join(self.command)])
        if self.file:
            return self.text + (f"# {command}\n" if self.command else "")
        return "".join(f"{line}\n" for line in (*(shlex.join(step.command) for step in self.steps), command))
