"""A Slurm of one node on this machine, from Debian's munge, slurmctld and slurmd, while this context is entered.

    with Slurm() as slurm:
        subprocess.run(["sbatch", "--wait", "job.slurm"], env=slurm.environment())

or, from a shell, `python test/hosts/slurm.py COMMAND ARGUMENTS...`. Needs root. Listens only on this host's loopback
interface.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Self

_CONFIGURATION = """ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={controller_port}
SlurmdPort={node_port}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
CredType=cred/munge
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SchedulerType=sched/builtin
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
MpiDefault=none
ReturnToService=2
KillWait=5
NodeName={host} NodeAddr=127.0.0.1 CPUs={cores} State=UNKNOWN
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP OverSubscribe=YES
"""


def why_not() -> str:
    """The reason why this machine cannot run Slurm; empty if it can."""
    if os.geteuid() != 0:
        return "not root"
    missing = [program for program in ("munged", "slurmctld", "slurmd", "sbatch") if shutil.which(program) is None]
    return f"there is no {', '.join(missing)}" if missing else ""


class Slurm:
    def __init__(self) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="lockstep-slurm-"))
        self._daemons: list[subprocess.Popen[bytes]] = []

    def environment(self) -> dict[str, str]:
        return {**os.environ, "SLURM_CONF": str(self._folder / "slurm.conf")}

    def __enter__(self) -> Self:
        try:
            self._start()
        except BaseException:
            self._stop()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._stop()

    def _start(self) -> None:
        folder = self._folder
        for name in ("state", "spool"):
            (folder / name).mkdir()
        (folder / "munge.key").write_bytes(os.urandom(128))
        (folder / "munge.key").chmod(0o600)
        ports = {"controller_port": _free_port(), "node_port": _free_port()}
        configuration = _CONFIGURATION.format(
            host=socket.gethostname(), folder=folder, cores=len(os.sched_getaffinity(0)), **ports
        )
        (folder / "slurm.conf").write_text(configuration)
        files = [f"--{name}={folder}/munge.{name.partition('-')[0]}" for name in ("key-file", "pid-file", "seed-file")]
        self._run("munged", "--foreground", "--force", f"--socket={folder}/munge.socket", *files)
        self._await(lambda: (folder / "munge.socket").exists(), "munged")
        self._run("slurmctld", "-D", "-c")
        self._await(lambda: self._say("scontrol", "ping").find("UP") >= 0, "slurmctld")
        self._run("slurmd", "-D")
        self._await(lambda: self._say("sinfo", "-h", "-o", "%T").strip() == "idle", "slurmd")

    def _end_jobs(self) -> None:
        """The processes that run a job's steps do not end with slurmd, so they are ended here."""
        self._say("scancel", "--user=root")
        end = time.monotonic() + 20
        while self._say("squeue", "-h").strip() and time.monotonic() < end:
            time.sleep(0.1)

    def _run(self, *command: str) -> None:
        with (self._folder / f"{command[0]}.log").open("wb") as log:
            daemon = subprocess.Popen(command, env=self.environment(), stdout=log, stderr=log)
        self._daemons.append(daemon)

    def _say(self, *command: str) -> str:
        return subprocess.run(command, env=self.environment(), capture_output=True, text=True, check=False).stdout

    def _await(self, is_there: Callable[[], bool], what: str) -> None:
        end = time.monotonic() + 30
        while not is_there():
            if time.monotonic() > end or self._daemons[-1].poll() is not None:
                raise RuntimeError(f"{what} does not start: {(self._folder / f'{what}.log').read_text()}")
            time.sleep(0.1)

    def _stop(self) -> None:
        if len(self._daemons) == 3:
            self._end_jobs()
        for daemon in reversed(self._daemons):
            daemon.terminate()
            try:
                daemon.wait(10)
            except subprocess.TimeoutExpired:
                daemon.kill()
                daemon.wait()
        shutil.rmtree(self._folder)


def _free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    with Slurm() as slurm:
        sys.exit(subprocess.run(sys.argv[1:], env=slurm.environment(), check=False).returncode)
