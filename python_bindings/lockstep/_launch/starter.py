"""Starts the ranks of a job on this host and on others, as mpirun does, for `--launcher direct`.

    python starter.py --ranks 2 --ranks 1@HOST [--agent SSH] [--directory DIR] [-x NAME=VALUE] [--tolerate] PROGRAM …

On each host agent.py starts the ranks of that host. Where they meet, and a random secret by which they prove to each
other that they belong together, are in their environment (docs/launcher.md). The secret is in no command line.

It passes on its input to rank 0, the signals USR1 and USR2 to all ranks, and the lines of ranks with mpirun's tags. A
rank that fails ends the job, unless failures are tolerated, and its exit code is that of this process. It runs as a
file, so that it starts at once.
"""

from __future__ import annotations

import argparse
import json
import os
import queue
import secrets
import shlex
import signal
import socket
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO

from agent import write

_AGENT = str(Path(__file__).with_name("agent.py"))
# After a failure: for the other ranks to say what they know of it.
_WORDS_SECONDS = 0.5


class Host:
    """A host with its agent and its ranks."""

    def __init__(self, name: str, first: int, count: int, agent: str, events: queue.SimpleQueue[Any]) -> None:
        """
        Args:
          name: of another host; "" for this one.
          first, count: its ranks.
          agent: the command that runs a command on another host.
          events: gets (this, words) for each report of the agent, and (this, ["lost"]) when it has ended.
        """
        self.name, self.first, self.left = name, first, set(range(first, first + count))
        self._count, self._events = count, events
        self.may_send = threading.Semaphore(0)  # input to rank 0
        command = [sys.executable, _AGENT]
        if name:
            command = [*shlex.split(agent), name, shlex.join(command)]
        pipe = subprocess.PIPE
        # Not in our group: the terminal's signals are for this process, which ends the others.
        self.process = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, start_new_session=True)
        self._send_lock = threading.Lock()
        threading.Thread(target=self._listen, daemon=True).start()

    def describe(self, job: dict[str, Any]) -> None:
        self.send(json.dumps({**job, "first": self.first, "count": self._count}).encode() + b"\n")

    def send(self, data: bytes) -> None:
        with self._send_lock, suppress(BrokenPipeError, ValueError):  # it has ended, or its input
            self._stdin.write(data)
            self._stdin.flush()

    def end(self) -> None:
        with suppress(BrokenPipeError):
            self._stdin.close()

    @property
    def _stdin(self) -> BinaryIO:
        assert self.process.stdin is not None
        return self.process.stdin

    def _listen(self) -> None:
        errors = threading.Thread(target=_copy, args=(self.process.stderr,))
        errors.start()
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.startswith(b"[1,"):
                write(1, line)
            elif line == b"more\n":
                self.may_send.release()
            else:
                self._events.put((self, line.decode().split()))
        errors.join()
        self.process.wait()
        self._events.put((self, ["lost"]))


def _copy(source: BinaryIO) -> None:
    for line in source:
        write(2, line)


class Job:
    """The hosts of a job, from the start of their agents to their ends."""

    def __init__(self, hosts: list[Host], events: queue.SimpleQueue[Any], tolerates: bool) -> None:
        self._hosts, self._events, self._tolerates = hosts, events, tolerates
        self._ports: dict[Host, list[str]] = {}
        self._code, self._ends_at = 0, float("inf")

    def run(self) -> int:
        """Returns the exit code of the first rank that failed, or 0."""
        running = set(self._hosts)
        while running:
            if time.monotonic() >= self._ends_at or not any(host.left for host in running):
                for host in running:
                    host.end()
            try:
                host, (what, *words) = self._events.get(timeout=1.0 if self._ends_at == float("inf") else 0.1)
            except queue.Empty:
                continue
            if what == "stop":
                self._ends_at = 0.0
            elif what == "signal":
                for each in running:
                    each.send(f"signal {words[0]}\n".encode())
            elif what == "port":
                self._ports[host] = words
                if len(self._ports) == len(self._hosts):
                    self._begin()
            elif what == "end":
                host.left.discard(int(words[0]))
                self._note(int(words[1]))
            elif what == "lost":
                running.discard(host)
                self._lose(host)
        return self._code

    def _begin(self) -> None:
        """Starts the ranks: their hosts are there."""
        port, *there = self._ports[self._hosts[0]]
        for host in self._hosts:
            host.send(f"begin {self._address(host, there)} {port}\n".encode())
        threading.Thread(target=_feed, args=(self._hosts[0],), daemon=True).start()

    def _address(self, host: Host, there: list[str]) -> str:
        """Returns an address of rank 0's host for `host`: one by which ssh has already connected the two, as names may
        be known to ssh alone. `there` is SSH_CONNECTION on rank 0's host: address and port here, and there."""
        first = self._hosts[0]
        if host is first:
            return "127.0.0.1"
        if first.name:
            return there[2] if len(there) == 4 else first.name
        here = self._ports[host][1:]
        return here[0] if len(here) == 4 else socket.gethostname()

    def _note(self, code: int) -> None:
        if code != 0 and not self._tolerates:
            self._code = self._code or code
            self._ends_at = min(self._ends_at, time.monotonic() + _WORDS_SECONDS)

    def _lose(self, host: Host) -> None:
        """Reports the ranks of a host whose agent has ended before them, as rank.py would."""
        code = host.process.wait()
        name = host.name or os.uname().nodename
        for rank in host.left if self._ends_at > time.monotonic() else ():
            how = f"with exit code {code}" if code >= 0 else f"by signal {-code}"
            write(2, f"[1,{rank}]<stderr>:host {name} is lost\n".encode())
            write(2, f"[1,{rank}]<stderr>:lockstep launch: ended {how} on host {name}\n".encode())
            self._note(code if code >= 0 else 128 - code)
        host.left.clear()


def _feed(host: Host) -> None:
    """Passes this process's input to rank 0."""
    with suppress(OSError):
        if os.isatty(0) and os.tcgetpgrp(0) != os.getpgrp():
            return  # reading would stop this process
        while data := os.read(0, 65536):
            host.send(b"input %d\n%s" % (len(data), data))
            host.may_send.acquire()
        host.send(b"input 0\n")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(allow_abbrev=False)
    parser.add_argument("--ranks", action="append", required=True, metavar="N[@HOST]")
    parser.add_argument("--agent", default="ssh")
    parser.add_argument("--directory", default=os.getcwd())
    parser.add_argument("-x", action="append", default=[], metavar="NAME[=VALUE]")
    parser.add_argument("--tolerate", action="store_true")
    parser.add_argument("program", nargs=argparse.REMAINDER)
    return parser


def main() -> int:
    arguments = _parser().parse_args()
    events: queue.SimpleQueue[Any] = queue.SimpleQueue()
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda *_: events.put((None, ["stop"])))
    for number in (signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(number, lambda which, _: events.put((None, ["signal", which])))
    settings = (text.partition("=") for text in arguments.x)
    job = {
        "program": arguments.program[arguments.program[:1] == ["--"] :],
        "directory": arguments.directory,
        "environment": {name: value if equals else os.environ[name] for name, equals, value in settings},
        "secret": secrets.token_hex(32),
    }
    hosts: list[Host] = []
    size = 0
    for text in arguments.ranks:
        count, _, name = text.partition("@")
        hosts.append(Host(name, size, int(count), arguments.agent, events))
        size += int(count)
    for host in hosts:
        host.describe({**job, "size": size})
    return Job(hosts, events, arguments.tolerate).run()


if __name__ == "__main__":
    sys.exit(main())
