"""Hosts on one machine: network namespaces with names of their own, joined by a switch whose links have a given rate.

    with Hosts(2, rate="1gbit") as hosts:
        hosts.mpirun([1, 1], "program", "argument")

or, from a shell,

    python test/hosts/hosts.py --hosts 2 --rate 1gbit --ranks 1 PROGRAM ARGUMENTS...

Each host's link carries `rate` in each direction at once, as a network card does. Needs root, iproute2 and mpirun.
"""

from __future__ import annotations

import argparse
import itertools
import os
import shlex
import shutil
import string
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

NETWORK = "10.77.0"
# BURST is the traffic of a network card in 2 ms at 1 Gb/s, and more than one segment at any rate.
BURST = "256k"
ENVIRONMENT = {
    "OMPI_ALLOW_RUN_AS_ROOT": "1",
    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    "OMPI_MCA_rmaps_base_oversubscribe": "1",
    "OMPI_MCA_hwloc_base_binding_policy": "none",
    "OMPI_MCA_btl_vader_single_copy_mechanism": "none",
    "OMPI_MCA_btl_tcp_if_include": f"{NETWORK}.0/24",
    "OMPI_MCA_oob_tcp_if_include": f"{NETWORK}.0/24",
}

# A replacement for ssh: skips ssh's options and runs the command in the namespace of that host, under its name.
_AGENT = """#!/bin/sh
while [ "${{1#-}}" != "$1" ]; do shift; done
host=$1; shift
connection="SSH_CONNECTION='{client} 0 '\\$(hostname -I)'22'"  # as sshd sets it
exec ip netns exec "$host" unshare --uts sh -c "hostname $host; export $connection; $*"
"""


def why_not() -> str:
    """The reason why this machine cannot have such hosts; empty if it can."""
    if os.geteuid() != 0:
        return "not root"
    for program in ("ip", "tc", "mpirun", "unshare"):
        if shutil.which(program) is None:
            return f"there is no {program}"
    name = f"ls{os.getpid()}try"
    try:
        _call("ip", "netns", "add", name)
        _call("ip", "netns", "exec", name, "unshare", "--uts", "true")
    except RuntimeError as error:  # a container without the capability, or a root that is no mount point
        return str(error)
    finally:
        subprocess.run(["ip", "netns", "delete", name], capture_output=True, check=False)
    return ""


def skipped(test: str, reason: str) -> int:
    """Ends a Bazel test that needs hosts where there are none: reports it as skipped and returns its exit code."""
    print(f"SKIPPED: {reason}")
    # Bazel knows only passed and failed. bazel/run_tests.py reads from this report that the test was skipped.
    report = os.environ.get("XML_OUTPUT_FILE")
    if report:
        Path(report).write_text(
            f'<?xml version="1.0" encoding="UTF-8"?>\n<testsuites><testsuite name="{test}" tests="1" skipped="1">'
            f'<testcase name="{test}" status="run" result="skipped"><skipped/></testcase></testsuite></testsuites>\n'
        )
    return 0


# One letter for each `Hosts` of a process; names of network devices have at most 15 characters.
_letters = itertools.cycle(string.ascii_lowercase)


class Hosts:
    """Network namespaces that exist while this context is entered. `names` are the names of hosts and namespaces."""

    def __init__(self, count: int, rate: str | None = None) -> None:
        """
        Args:
          count: the number of hosts, at most 250.
          rate: the rate of each host's link in the notation of tc: "1gbit", "100mbit"; None for no limit.
        """
        self._prefix = f"ls{os.getpid()}{next(_letters)}"
        self.names = [f"{self._prefix}h{i}" for i in range(count)]
        self._switch = f"{self._prefix}s"
        self._rate = rate
        self._folder: Path | None = None

    def address(self, host: int) -> str:
        return f"{NETWORK}.{host + 1}"

    def __enter__(self) -> Self:
        try:
            self._make()
        except BaseException:
            self._remove()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._remove()

    def set_rate(self, host: int, rate: str, burst: str = BURST) -> None:
        """Gives the host's link another rate, in both directions, which takes effect after `burst` bytes."""
        for namespace, device in ((self.names[host], "eth0"), (self._switch, f"p{host}")):
            _call(
                "ip",
                "netns",
                "exec",
                namespace,
                "tc",
                "qdisc",
                "replace",
                "dev",
                device,
                "root",
                *_limited(rate, burst),
            )

    def set_link(self, host: int, state: str) -> None:
        """Cuts the link of a host ("down") or restores it ("up"). The hosts see only silence."""
        _call("ip", "-n", self._switch, "link", "set", f"p{host}", state)

    def set_switch(self, host: int, carries: bool) -> None:
        """Sets whether the switch forwards the host's traffic. If it does not, the host's network card still shows a
        link.
        """
        _call("ip", "-n", self._switch, "link", "set", f"p{host}", *(["master", "switch"] if carries else ["nomaster"]))

    def sent_bytes(self, host: int) -> int:
        """The number of bytes that the host has sent through its link, headers included."""
        path = "/sys/class/net/eth0/statistics/tx_bytes"
        return int(_call("ip", "netns", "exec", self.names[host], "cat", path))

    def command(self, ranks: Sequence[int], *command: str | Path, options: Sequence[str] = ()) -> list[str]:
        """The command line that runs `command` under mpirun, with `ranks[i]` ranks on host i."""
        assert self._folder is not None, "the hosts are not there"
        places = ",".join(f"{name}:{n}" for name, n in zip(self.names, ranks, strict=True))
        return self.on_first("mpirun", "-np", str(sum(ranks)), "--host", places, *options, *command)

    def on_first(self, *command: str | Path) -> list[str]:
        """The command line that runs `command` on the first host."""
        here = f"hostname {self.names[0]}; exec {shlex.join(map(str, command))}"
        return ["ip", "netns", "exec", self.names[0], "unshare", "--uts", "sh", "-c", here]

    def environment(self) -> dict[str, str]:
        """The environment of that command. Its cache is deleted with these hosts."""
        assert self._folder is not None, "the hosts are not there"
        own = {"OMPI_MCA_plm_rsh_agent": str(self._folder / "agent"), "XDG_CACHE_HOME": str(self._folder / "cache")}
        return {**os.environ, **ENVIRONMENT, **own}

    def mpirun(
        self, ranks: Sequence[int], *command: str | Path, options: Sequence[str] = (), **how: Any
    ) -> subprocess.CompletedProcess[str]:
        command = self.command(ranks, *command, options=options)
        return subprocess.run(command, env=self.environment(), check=False, **how)

    def _make(self) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="lockstep-hosts-"))
        agent = self._folder / "agent"
        agent.write_text(_AGENT.format(client=self.address(0)))
        agent.chmod(0o755)
        _call("ip", "netns", "add", self._switch)
        _call("ip", "-n", self._switch, "link", "add", "switch", "type", "bridge")
        _call("ip", "-n", self._switch, "link", "set", "switch", "up")
        for i, name in enumerate(self.names):
            _call("ip", "netns", "add", name)
            _call(
                "ip",
                "link",
                "add",
                "eth0",
                "netns",
                name,
                "type",
                "veth",
                "peer",
                "name",
                f"p{i}",
                "netns",
                self._switch,
            )
            _call("ip", "-n", self._switch, "link", "set", f"p{i}", "master", "switch", "up")
            _call("ip", "-n", name, "addr", "add", f"{self.address(i)}/24", "dev", "eth0")
            for device in ("eth0", "lo"):
                _call("ip", "-n", name, "link", "set", device, "up")
            if self._rate is not None:
                self.set_rate(i, self._rate)

    def _remove(self) -> None:
        for name in (*self.names, self._switch):
            subprocess.run(["ip", "netns", "delete", name], check=False, capture_output=True)
        if self._folder is not None:
            shutil.rmtree(self._folder)
            self._folder = None


def bits_per_second(rate: str) -> float:
    """Converts a rate in the notation of tc: "1gbit", "100mbit"."""
    units = {"gbit": 1e9, "mbit": 1e6, "kbit": 1e3}
    for unit, bits in units.items():
        if rate.endswith(unit):
            return float(rate.removesuffix(unit)) * bits
    raise ValueError(f"rate is {rate!r}, expected a number and one of {', '.join(units)}")


def _limited(rate: str, burst: str) -> list[str]:
    return ["tbf", "rate", rate, "burst", burst, "latency", "50ms"]


def _call(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"{shlex.join(command)}: {done.stderr.strip()}")
    return done.stdout


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__.splitlines()[0],
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
        allow_abbrev=False,  # else argparse takes options of PROGRAM for abbreviations of its own
    )
    parser.add_argument("--hosts", type=int, default=2)
    parser.add_argument("--rate", help="rate of each host's link, such as 1gbit (default: unlimited)")
    parser.add_argument("--ranks", type=int, default=1, help="number of ranks on each host")
    parser.add_argument("command", nargs=argparse.REMAINDER, metavar="PROGRAM ...")
    arguments = parser.parse_args()
    if not arguments.command:
        parser.error("the program is missing")
    with Hosts(arguments.hosts, arguments.rate) as hosts:
        return hosts.mpirun([arguments.ranks] * arguments.hosts, *arguments.command).returncode


if __name__ == "__main__":
    sys.exit(main())
