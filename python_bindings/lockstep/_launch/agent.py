"""Starts the ranks of one host and passes their output on, for starter.py, which runs it, by ssh on other hosts.

    python agent.py

Its input is a line of JSON, the host's part of the job, and then commands:

    begin ADDRESS PORT      starts the ranks, which meet there
    signal N                sends the signal to all ranks
    input N                 passes the N bytes that follow to rank 0; 0 ends its input

At the end of its input, because of starter.py or of the connection, it ends the ranks and all processes that they have
started. It writes the lines of ranks with mpirun's tags, such as [1,0]<stdout>:, and between them

    port PORT CONNECTION    a free port, and SSH_CONNECTION of this environment: this host is ready
    end RANK CODE           the end of a rank; 128 + n for signal n
    more                    rank 0 has taken its input

It runs as a file and imports only files beside it, so that it starts at once.
"""

from __future__ import annotations

import ctypes
import json
import os
import queue
import signal
import socket
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO

from guard import descendants

_PR_SET_CHILD_SUBREAPER = 36
_GRACE_SECONDS = 3.0  # between SIGTERM and SIGKILL
_RANK = str(Path(__file__).with_name("rank.py"))
# Variables of another job, within which this one is started, that would change where the ranks meet.
_OF_OTHERS = ("LOCKSTEP_SECRET_FILE", "LOCKSTEP_RENDEZVOUS_FILE", "TORCHELASTIC_USE_AGENT_STORE")
_locks = {1: threading.Lock(), 2: threading.Lock()}


def write(to: int, data: bytes) -> None:
    """Writes whole lines to stdout (1) or stderr (2), from any thread."""
    with _locks[to]:
        while data:
            data = data[os.write(to, data) :]


class Ranks:
    """The ranks of this host. Only the main thread starts them, as they end with the thread that started them."""

    def __init__(self, job: dict[str, Any], address: str, port: str) -> None:
        self._input: queue.SimpleQueue[bytes] = queue.SimpleQueue()
        self._ranks: list[subprocess.Popen[bytes]] = []
        self._threads: list[threading.Thread] = []
        asked = {**os.environ, **job["environment"]}
        environment = {name: value for name, value in asked.items() if name not in _OF_OTHERS}
        environment |= {"MASTER_ADDR": address, "MASTER_PORT": port}
        environment |= {"WORLD_SIZE": str(job["size"]), "LOCAL_WORLD_SIZE": str(job["count"])}
        environment |= {"LOCKSTEP_SECRET": job["secret"]}
        for local in range(job["count"]):
            rank = job["first"] + local
            here = {**environment, "RANK": str(rank), "LOCAL_RANK": str(local)}
            self._start(rank, [sys.executable, _RANK, *job["program"]], here)

    def _start(self, rank: int, command: list[str], environment: dict[str, str]) -> None:
        pipe, null = subprocess.PIPE, subprocess.DEVNULL
        stdin = pipe if rank == 0 else null
        # A group of its own, which rank.py kills if this process is killed.
        process = subprocess.Popen(
            command, env=environment, stdin=stdin, stdout=pipe, stderr=pipe, start_new_session=True
        )
        self._ranks.append(process)
        self._threads.append(threading.Thread(target=_attend, args=(rank, process)))
        self._threads[-1].start()
        if rank == 0:
            threading.Thread(target=self._feed, args=(process.stdin,), daemon=True).start()

    def give(self, data: bytes) -> None:
        """Passes input to rank 0; the empty one is its end."""
        self._input.put(data)

    def _feed(self, stdin: BinaryIO) -> None:
        with suppress(BrokenPipeError), stdin:
            while data := self._input.get():
                stdin.write(data)
                stdin.flush()
                write(1, b"more\n")

    def signal(self, number: int) -> None:
        for process in self._ranks:
            if process.returncode is None:
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, number)

    def end(self) -> None:
        """Ends the ranks and all that they have started."""
        self.signal(signal.SIGTERM)
        deadline = time.monotonic() + _GRACE_SECONDS
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))
        while left := descendants(os.getpid()):
            for process in left:
                with suppress(ProcessLookupError):
                    os.kill(process, signal.SIGKILL)
            time.sleep(0.02)
        for thread in self._threads:
            thread.join()


def _attend(rank: int, process: subprocess.Popen[bytes]) -> None:
    """Passes on a rank's output, and reports its end after that."""
    errors = threading.Thread(target=_copy, args=(process.stderr, 2, f"[1,{rank}]<stderr>:".encode()))
    errors.start()
    _copy(process.stdout, 1, f"[1,{rank}]<stdout>:".encode())
    errors.join()
    code = process.wait()
    write(1, f"end {rank} {code if code >= 0 else 128 - code}\n".encode())


def _copy(source: BinaryIO | None, to: int, tag: bytes) -> None:
    assert source is not None
    for line in source:
        write(to, tag + line)


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("", 0))
        return listener.getsockname()[1]


def main() -> None:
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)  # so that orphans are found at the end
    commands = sys.stdin.buffer
    job = json.loads(commands.readline())
    try:
        os.chdir(job["directory"])
    except OSError as error:
        sys.exit(f"lockstep launch: {job['directory']} on host {os.uname().nodename}: {error.strerror}")
    write(1, f"port {_free_port()} {os.environ.get('SSH_CONNECTION', '')}\n".encode())
    begin = commands.readline().decode().split()
    if not begin:
        return
    ranks = Ranks(job, address=begin[1], port=begin[2])
    try:
        while line := commands.readline():
            what, number = line.split()
            if what == b"signal":
                ranks.signal(int(number))
            else:
                ranks.give(commands.read(int(number)))
    finally:
        ranks.end()


if __name__ == "__main__":
    main()
