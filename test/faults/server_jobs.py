"""Jobs with parameter servers for faults.py: their start, the processes of each role, and the judgement of what workers
report.
"""

from __future__ import annotations

import contextlib
import re
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from hosts import Hosts
from job import ROOT, Job, Outcome

from lockstep._launch.supervise import wait_until

if TYPE_CHECKING:
    from faults import Kind

SERVERS = 2
GO_ON_SECONDS = 2.0  # training time after a fault that the job tolerates
NAMED_SECONDS = 20.0  # until workers must have named a stopped culprit


class ServerJob(Job):
    """`lockstep launch -n … -s 2 … store_rank.py`. A culprit is a number in its role."""

    def __init__(self, hosts: Hosts, workers: Sequence[int], folder: Path, kind: Kind) -> None:
        self.kind, self.workers = kind, sum(workers)
        lines = "".join(f"{name} slots={count}\n" for name, count in zip(hosts.names, workers, strict=True))
        (folder / "hosts").write_text(lines)
        options = ["--tolerate-workers"] if kind.tolerant else []
        where = ["-H", folder / "hosts", "--interface", "eth0"] if len(workers) > 1 else []
        program = (sys.executable, Path(__file__).with_name("store_rank.py"), folder, kind.timeout)
        count = ("-n", self.workers, "-s", SERVERS)
        super().__init__(
            hosts, workers, folder, [ROOT / "tools" / "lockstep", "launch", *count, *where, *options, "--", *program]
        )

    def pid(self, culprit: int) -> int:
        if self.kind.role == "worker":
            return super().pid(culprit)
        for process in self.processes():
            with contextlib.suppress(OSError):
                command = Path(f"/proc/{process}/cmdline").read_bytes().split(b"\0")
                environment = Path(f"/proc/{process}/environ").read_bytes().split(b"\0")
                is_server = command[1:4] == [b"-m", b"lockstep", b"serve"]
                if is_server and b"OMPI_COMM_WORLD_RANK=%d" % (self.workers + culprit) in environment:
                    return process
        raise LookupError(f"there is no server {culprit}")

    def after_fault(self, culprit: int) -> None:
        """Tells a job that tolerates its fault to end, after it has continued. A stopped culprit is resumed here,
        because nothing else would.
        """
        if not self.kind.goes_on:
            return
        if self.kind.survives:
            wait_until(lambda: len(self.errors()) == self.workers - 1, NAMED_SECONDS)
            self.kind.mend(self, culprit)
        else:
            time.sleep(GO_ON_SECONDS)
        (self.folder / "finish").touch()

    def judge(self, outcome: Outcome, fault: float) -> None:
        """Checks that all workers that can have named the culprit, or have continued without it."""
        role, errors, output = self.kind.role, self.errors(), self.output()
        outcome.by_mpirun = f"[{role} {outcome.culprit}] lockstep launch: ended by signal 9" in output
        finished = {rank for rank in range(self.workers) if (self.folder / f"{rank}.finished").exists()}
        for rank in range(self.workers):
            if role == "worker" and rank == outcome.culprit:
                continue
            if self.kind.is_survived:
                if rank not in finished:
                    outcome.problems.append(f"worker {rank} has not gone on: {errors.get(rank, output[-2000:])}")
                continue
            if rank not in errors:
                outcome.silent += 1
                continue
            message = str(errors[rank]["message"])
            outcome.messages.append(f"worker {rank}: {message}")
            if blamed(message) == (role, outcome.culprit):
                outcome.named.append(float(errors[rank]["time"]) - fault)
            else:
                outcome.problems.append(f"worker {rank} does not name it: {message}")


def blamed(message: str) -> tuple[str, int] | None:
    """The role and number that a store's error message blames: the first named process that is not the one that
    reports.
    """
    found = re.search(r"(worker|server) (\d+) \([^()]*\)(?! says)", message)
    return (found[1], int(found[2])) if found else None
