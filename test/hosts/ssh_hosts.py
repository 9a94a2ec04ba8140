"""The hosts of hosts.py, with an sshd on each and a folder that is separate on each.

    with SshHosts(2) as hosts:
        subprocess.run(hosts.on_first("ssh", *hosts.ssh_options(), hosts.names[1], "hostname"))

Needs the programs that hosts.py needs, and sshd.
"""

from __future__ import annotations

import shlex
import shutil
import subprocess
import time
from pathlib import Path
from types import TracebackType
from typing import Self

import hosts

_SSHD = "/usr/sbin/sshd"
_SSHD_CONFIGURATION = """HostKey {folder}/key
AuthorizedKeysFile {folder}/key.pub
PidFile none
StrictModes no
UsePAM no
PermitRootLogin prohibit-password
"""
_SSH_CONFIGURATION = """IdentityFile {folder}/key
UserKnownHostsFile /dev/null
StrictHostKeyChecking no
LogLevel ERROR
BatchMode yes
ConnectTimeout 5
"""


def why_not() -> str:
    """The reason why this machine cannot have such hosts; empty if it can."""
    missing = [program for program in (_SSHD, "ssh", "ssh-keygen") if shutil.which(program) is None]
    return f"there is no {', '.join(missing)}" if missing else hosts.why_not()


class SshHosts(hosts.Hosts):
    """Hosts that answer to ssh by their names, while this context is entered."""

    def __init__(self, count: int) -> None:
        super().__init__(count)
        self._daemons: list[subprocess.Popen[bytes]] = []

    @property
    def own(self) -> Path:
        """A folder with the same path on all hosts and separate contents on each."""
        assert self._folder is not None, "the hosts are not there"
        return self._folder / "own"

    def ssh_options(self) -> list[str]:
        assert self._folder is not None, "the hosts are not there"
        return ["-F", str(self._folder / "ssh")]

    def on_first(self, *command: str | Path) -> list[str]:
        """The command line that runs `command` on the first host, where the folder `own` is then empty."""
        return self._on(0, f"exec {shlex.join(map(str, command))}")

    def environment(self) -> dict[str, str]:
        return {**super().environment(), "OMPI_MCA_plm_rsh_agent": shlex.join(["ssh", *self.ssh_options()])}

    def stop_sshd(self, host: int) -> None:
        self._daemons[host].terminate()
        self._daemons[host].wait()

    def __enter__(self) -> Self:
        super().__enter__()
        try:
            self._start_daemons()
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        for daemon in self._daemons:
            daemon.kill()
            daemon.wait()
        super().__exit__(kind, error, at)

    def _on(self, host: int, script: str) -> list[str]:
        name = self.names[host]
        before = f"mount -t tmpfs own {shlex.quote(str(self.own))}; hostname {name}; "
        return ["ip", "netns", "exec", name, "unshare", "--uts", "--mount", "sh", "-c", before + script]

    def _start_daemons(self) -> None:
        assert self._folder is not None
        self.own.mkdir()
        Path("/run/sshd").mkdir(exist_ok=True)  # sshd needs this folder
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", self._folder / "key"], check=True)
        (self._folder / "sshd").write_text(_SSHD_CONFIGURATION.format(folder=self._folder))
        addresses = [f"Host {name}\nHostName {self.address(i)}\n" for i, name in enumerate(self.names)]
        (self._folder / "ssh").write_text(_SSH_CONFIGURATION.format(folder=self._folder) + "".join(addresses))
        for host in range(len(self.names)):
            command = self._on(host, f"exec {_SSHD} -D -f {self._folder}/sshd")
            self._daemons.append(subprocess.Popen(command, stderr=subprocess.DEVNULL))
        for name in self.names:
            self._await_answer(name)

    def _await_answer(self, name: str) -> None:
        end = time.monotonic() + 20
        command = ["ip", "netns", "exec", self.names[0], "ssh", *self.ssh_options(), name, "true"]
        while subprocess.run(command, capture_output=True, check=False).returncode != 0:
            if time.monotonic() > end:
                raise RuntimeError(f"sshd does not answer on {name}")
            time.sleep(0.1)
