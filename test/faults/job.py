"""A job that faults.py disturbs: its start on hosts, the errors that its ranks got, and the outcome of a fault."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "test" / "hosts"), str(ROOT / "python_bindings")]

from hosts import Hosts


@dataclasses.dataclass
class Outcome:
    """The outcome of one fault."""

    kind: str
    place: str  # a key of PLACES
    seed: int
    culprit: int  # a rank; a host, for links; or a number in a role
    delay: float  # seconds of training before the fault
    problems: list[str] = dataclasses.field(default_factory=list)
    named: list[float] = dataclasses.field(default_factory=list)  # seconds after the fault, by each rank that named it
    silent: int = 0  # ranks that should have named it, but mpirun killed them before
    by_mpirun: bool = False  # mpirun or the launcher named the culprit
    ended: float = 0.0  # seconds until the job had ended
    gone: float = 0.0  # seconds until nothing of it was left
    messages: list[str] = dataclasses.field(default_factory=list)


class Job:
    """A training job on these hosts."""

    def __init__(self, hosts: Hosts, ranks: Sequence[int], folder: Path, command: Sequence[object]) -> None:
        """
        Args:
          ranks: the number of ranks on each host.
          folder: the folder in which ranks write the errors that they get.
          command: starts the ranks, on the first host.
        """
        self.hosts, self.ranks, self.folder = hosts, ranks, folder
        self.host_of = [host for host, count in enumerate(ranks) for _ in range(count)]
        environment = {
            **hosts.environment(),
            "PYTHONPATH": str(ROOT / "python_bindings"),
            "LOCKSTEP_RECORD": str(folder / "record"),
            "OMP_NUM_THREADS": "1",
        }
        with (folder / "output").open("w") as output:
            self.process = subprocess.Popen(
                hosts.on_first(*map(str, command)), env=environment, stdout=output, stderr=subprocess.STDOUT
            )

    def output(self) -> str:
        return (self.folder / "output").read_text(errors="replace")

    def has_begun(self) -> bool:
        return all((self.folder / f"{rank}.begun").exists() for rank in range(len(self.host_of)))

    def pid(self, rank: int) -> int:
        return json.loads((self.folder / f"{rank}.begun").read_text())

    def order(self, rank: int, what: str) -> None:
        (self.folder / f"{rank}.do").write_text(what)

    def errors(self) -> dict[int, dict[str, float | str]]:
        """The errors that ranks got, by rank."""
        paths = {rank: self.folder / f"{rank}.error" for rank in range(len(self.host_of))}
        return {rank: json.loads(path.read_text()) for rank, path in paths.items() if path.exists()}

    def processes(self) -> list[int]:
        """The processes on the hosts: ranks, mpirun, its daemons."""
        found: list[int] = []
        for name in self.hosts.names:
            done = subprocess.run(["ip", "netns", "pids", name], capture_output=True, text=True, check=True)
            found += map(int, done.stdout.split())
        return found

    def after_fault(self, culprit: int) -> None:
        """Called after the fault."""

    def judge(self, outcome: Outcome, fault: float) -> None:
        """Adds to the outcome who named the culprit, and what is wrong. `fault` is the time of the fault."""
        raise NotImplementedError
