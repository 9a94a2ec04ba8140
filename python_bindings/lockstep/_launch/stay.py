"""`lockstep elastic` for programs that call `lockstep.elastic.run`: ranks without MPI, which remain when one of them dies.

This process starts the members of the job by agents (agent.py), one for the first members of each host and one for each
process that is started again. Members connect to it (elastic/_member.py), and it tells them their worlds
(generations.py). When it ends, agents end all processes of the job.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import secrets
import shlex
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO

from .._base.errors import Error
from . import ssh, supervise
from .command import _passed
from .direct import _KEEP_ALIVE
from .ends import Ends
from .generations import Generations, Message
from .line import keep_alive, proof_of
from .output import Lines

SET = "LOCKSTEP_ELASTIC"
AGAIN_SECONDS = 5.0  # before a lost host is tried again
WORLDLESS_SECONDS = 600.0  # without a world, as there are fewer ranks than are needed
REPORT_SECONDS = 3.0  # from the loss of a member until the end of its process is reported
SPARE_SECONDS = 10.0  # for processes that were no ranks to end after the ranks of a job that is over
MOST_FRUITLESS = 20  # worlds in a row in which no step was completed
_HELLO_SECONDS = 10.0
_SEND_SECONDS = 5
_END_SECONDS = 8.0  # for agents to end their ranks
_AGENT = str(Path(__file__).with_name("agent.py"))


def run(program: Sequence[str], hosts: Mapping[str, int], least: int, restarts: int) -> int:
    """Runs the job until it is over or has failed. Call once, in a process that does nothing else.

    Args:
      program: of each member, with its arguments.
      hosts: their numbers of ranks; "" is this host.
      least: the smallest number of ranks with which the job continues.
      restarts: the largest number of times that processes are started again.

    Returns:
      0, or the exit code of the first process that failed after the job was over, or with which the job failed.
    """
    supervise.prepare_process()
    keeper = Keeper(program, hosts, least, restarts)
    try:
        return keeper.run()
    finally:
        keeper.end()


class _Members(Ends):
    """The ends of members, which have no ranks for good."""

    def name(self, rank: int) -> str:
        return f"member {rank}"


class Agent:
    """An agent, and the members that it has started: the numbers from `first` on."""

    def __init__(self, host: str, first: int, count: int, command: Sequence[str], is_first: bool) -> None:
        self.host, self.first, self.count, self.is_first = host, first, count, is_first
        self.is_lost = False
        pipe = subprocess.PIPE
        # Not in our group: the terminal's signals are for this process, which ends the others.
        self.process = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, start_new_session=True)

    @property
    def members(self) -> range:
        return range(self.first, self.first + self.count)

    def send(self, data: bytes) -> None:
        assert self.process.stdin is not None
        with contextlib.suppress(BrokenPipeError, ValueError):  # it has ended
            self.process.stdin.write(data)
            self.process.stdin.flush()

    def end(self) -> None:
        assert self.process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.close()


class Keeper:
    """A job: its hosts, their agents, the processes and their worlds."""

    def __init__(self, program: Sequence[str], hosts: Mapping[str, int], least: int, restarts: int) -> None:
        self._program, self._hosts, self._restarts = list(program), dict(hosts), restarts
        self._places = {host: index for index, host in enumerate(hosts)}
        self._generations = Generations(least, time.monotonic())
        self._secret = secrets.token_hex(32)
        self._events: queue.SimpleQueue[tuple[str, Any, Any]] = queue.SimpleQueue()
        self._ends = _Members()
        self._show_lock = threading.Lock()
        self._lines = {
            to: Lines(self._ends, keeps_words=to is sys.stderr.buffer, is_terminal=to.isatty())
            for to in (sys.stdout.buffer, sys.stderr.buffer)
        }
        self._agents: list[Agent] = []
        self._running: dict[int, Agent] = {}  # by member
        self._due: list[tuple[float, str]] = []  # times at which a host may get processes again
        self._lost_hosts: set[str] = set()  # that have not answered since
        self._next = 0  # the number of the next member
        self._connections: dict[int, socket.socket] = {}
        self._codes: dict[bool, list[int]] = {False: [], True: []}  # of processes, by whether the job was over
        self._failed, self._was_heard = "", False
        self._worldless_since = self._ranks_seen_at = self._enough_at = time.monotonic()
        self._said = 0  # the last generation that was told to the user
        self._server = _server()
        threading.Thread(target=self._accept, daemon=True).start()

    def run(self) -> int:
        for host, count in self._hosts.items():
            self._start(host, count, is_first=True)
        while self._is_running():
            with contextlib.suppress(queue.Empty):
                what, who, words = self._events.get(timeout=0.1)
                getattr(self, f"_on_{what}")(who, words)
            now = time.monotonic()
            self._start_due(now)
            self._generations.tick(now)
            self._send()
            self._describe()
            if self._has_failed(now):
                break
        return self._exit_code()

    def _is_running(self) -> bool:
        """True while there are processes, or some will be started. When the job is over, only ranks are waited for."""
        if not self._generations.over:
            return bool(self._running or self._due)
        now = time.monotonic()
        if any(number in self._running for number in self._generations.ranks):
            self._ranks_seen_at = now
        return bool(self._running) and now - self._ranks_seen_at < SPARE_SECONDS

    def end(self) -> None:
        """Ends all processes of the job."""
        for agent in self._agents:
            agent.end()
        left = [agent.process for agent in self._agents]
        supervise.wait_until(lambda: all(process.poll() is not None for process in left), _END_SECONDS)
        for process in left:
            process.kill()
        supervise.kill_descendants()
        self._server.close()

    # --- Processes

    def _start(self, host: str, count: int, is_first: bool) -> None:
        """Starts members on a host."""
        command = [sys.executable, _AGENT]
        if host and not ssh.is_this_host(host):
            words = shlex.split(os.environ.get("OMPI_MCA_plm_rsh_agent", ssh.AGENT))
            keep = _KEEP_ALIVE if os.path.basename(words[0]) == "ssh" else ()
            command = [*words, *keep, host, shlex.join(command)]
        agent = Agent(host, self._next, count, command, is_first)
        self._next += count
        self._agents.append(agent)
        for number in agent.members:
            self._running[number] = agent
            self._generations.add(number, (self._places[host], number))
        job = {
            "program": self._program,
            "directory": os.getcwd(),
            "environment": {name: os.environ[name] for name in _passed(os.environ)} | {SET: "1"},
            "secret": self._secret,
            "size": sum(self._hosts.values()),
            "first": agent.first,
            "count": count,
        }
        agent.send(json.dumps(job).encode() + b"\n")
        threading.Thread(target=self._listen, args=(agent,), daemon=True).start()

    def _listen(self, agent: Agent) -> None:
        errors = threading.Thread(target=self._copy, args=(agent, agent.process.stderr, sys.stderr.buffer), daemon=True)
        errors.start()
        self._copy(agent, agent.process.stdout, sys.stdout.buffer)
        errors.join()
        self._events.put(("lost", agent, agent.process.wait()))

    def _copy(self, agent: Agent, source: BinaryIO | None, to: BinaryIO) -> None:
        """Shows the lines of members, and passes on what the agent says."""
        assert source is not None
        for line in source:
            if line.startswith(b"[1,") or to is sys.stderr.buffer:
                with self._show_lock, contextlib.suppress(BrokenPipeError):
                    to.write(self._lines[to].take(line))
                    to.flush()
            else:
                what, *words = line.decode().split()
                self._events.put((what, agent, words))

    def _on_port(self, agent: Agent, words: list[str]) -> None:
        """The host has answered, and starts the members."""
        self._lost_hosts.discard(agent.host)
        if not agent.is_first:
            self._restarts -= 1
        of_ssh = words[1:]
        is_here = not agent.host or ssh.is_this_host(agent.host)
        address = "127.0.0.1" if is_here else of_ssh[0] if len(of_ssh) == 4 else socket.gethostname()
        agent.send(f"begin {address} {self._server.getsockname()[1]}\n".encode() + b"input 0\n")

    def _on_more(self, agent: Agent, words: list[str]) -> None:
        pass  # no input follows

    def _on_end(self, agent: Agent, words: list[str]) -> None:
        number, code = map(int, words)
        self._note_end(number, code)
        if code != 0 and not self._generations.over and number not in self._generations.blamed:
            self._due.append((time.monotonic(), agent.host))
        if not any(each in self._running for each in agent.members):
            agent.end()

    def _on_lost(self, agent: Agent, code: int) -> None:
        """The agent has ended. If it has before its members, its host is lost."""
        self._agents.remove(agent)
        lost = [number for number in agent.members if number in self._running]
        if not lost:
            return
        if not self._generations.over:
            if agent.host not in self._lost_hosts:
                _say(f"host {agent.host or os.uname().nodename} is lost")
            self._lost_hosts.add(agent.host)
            self._due.append((time.monotonic() + AGAIN_SECONDS, agent.host))
        for number in lost:
            self._note_end(number, code or 1)

    def _note_end(self, number: int, code: int) -> None:
        self._running.pop(number, None)
        if not self._generations.over or number in self._generations.ranks:
            self._codes[self._generations.over].append(code)
        self._lose(number, f"member {number} has ended")

    def _start_due(self, now: float) -> None:
        """Starts the processes that hosts lack, where it is time for that."""
        if self._generations.over or self._restarts <= 0:
            self._due.clear()
        due = [host for at, host in self._due if at <= now]
        self._due = [(at, host) for at, host in self._due if at > now]
        for host in dict.fromkeys(due):
            missing = self._hosts[host] - sum(agent.host == host for agent in self._running.values())
            if missing > 0:
                self._start(host, missing, is_first=False)

    # --- Members

    def _accept(self) -> None:
        with contextlib.suppress(OSError):  # the server is closed
            while True:
                connection, _ = self._server.accept()
                threading.Thread(target=self._hear, args=(connection,), daemon=True).start()

    def _hear(self, connection: socket.socket) -> None:
        """Lets a process prove that it belongs to the job, and passes on what it says."""
        nonce = secrets.token_hex(32).encode()
        number, why = None, "it has ended"
        try:
            keep_alive(connection)
            connection.settimeout(_HELLO_SECONDS)
            connection.sendall(nonce + b"\n")
            with connection.makefile("rb") as lines:
                hello = json.loads(lines.readline(1000))
                if not secrets.compare_digest(hello["proof"], proof_of(self._secret, nonce, str(hello["member"]))):
                    return
                number = hello["member"]
                connection.settimeout(None)
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("ll", _SEND_SECONDS, 0))
                self._events.put(("hello", number, connection))
                for line in lines:
                    self._events.put(("said", number, json.loads(line)))
        except OSError as error:
            why = error.strerror or str(error)
        except (ValueError, KeyError, TypeError, AttributeError):
            return  # something else than a member
        finally:
            if number is None:
                connection.close()
            else:
                self._events.put(("gone", number, why))

    def _on_hello(self, number: int, connection: socket.socket) -> None:
        self._connections[number] = connection

    def _on_said(self, number: int, message: Message) -> None:
        self._was_heard = True
        self._generations.hear(number, message, time.monotonic())

    def _on_gone(self, number: int, why: str) -> None:
        self._lose(number, f"the connection to member {number} is closed: {why}")

    def _lose(self, number: int, why: str) -> None:
        if not self._generations.over:
            self._generations.lose(number, time.monotonic(), why)
        connection = self._connections.pop(number, None)
        if connection is not None:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
            connection.close()

    def _send(self) -> None:
        for number, message in self._generations.take_messages():
            if (connection := self._connections.get(number)) is not None:
                try:
                    connection.sendall(json.dumps(message).encode() + b"\n")
                except OSError as error:
                    self._lose(number, f"member {number} takes no messages: {error.strerror}")

    # --- The job

    def _describe(self) -> None:
        """Tells the user about worlds after the first one."""
        generations = self._generations
        if generations.number > max(1, self._said) and not generations.collects:
            spare = f", and {len(generations.waiting)} wait" if generations.waiting else ""
            ranks = ", ".join(map(str, generations.ranks))
            _say(f"world {generations.number} has {len(generations.ranks)} ranks, members {ranks}{spare}")
        self._said = generations.number

    def _has_failed(self, now: float) -> bool:
        generations = self._generations
        if generations.over:
            return False
        if not generations.is_broken:
            self._worldless_since = now
        left = len(generations.members)
        if left >= generations.least or self._due:
            self._enough_at = now
        if self._was_heard and left < generations.least and not self._may_come(now):
            self._failed = f"{left} ranks are left, and {generations.least} are needed"
        elif now - self._worldless_since > WORLDLESS_SECONDS:
            self._failed = f"the ranks have formed no world for {WORLDLESS_SECONDS:.0f} s"
        elif generations.fruitless > MOST_FRUITLESS:
            self._failed = f"{generations.fruitless} worlds in a row have not completed a step"
        return bool(self._failed)

    def _may_come(self, now: float) -> bool:
        """True if too few ranks are left, but others may be started, or the end of a process is still to be reported."""
        is_unreported = any(number not in self._generations.members for number in self._running)
        is_soon = now - self._enough_at < REPORT_SECONDS
        return bool(self._due) or (is_unreported and (self._restarts > 0 or is_soon))

    def _exit_code(self) -> int:
        code = next(filter(None, self._codes[self._generations.over]), 0)
        if self._generations.over:
            return code
        if not self._was_heard and code == 0:
            self._failed = "the program has ended without a call of lockstep.elastic.run"
        _say(f"the job has failed: {self._failed or 'no rank is left'}")
        for failure in self._ends.failures():
            _say(failure)
        return code or 1


def _server() -> socket.socket:
    if socket.has_dualstack_ipv6():
        with contextlib.suppress(OSError):  # a kernel without IPv6
            return socket.create_server(("", 0), family=socket.AF_INET6, dualstack_ipv6=True)
    try:
        return socket.create_server(("", 0))
    except OSError as error:
        raise Error(f"no port can be listened at: {error.strerror}") from None


def _say(text: str) -> None:
    print(f"lockstep elastic: {text}", file=sys.stderr, flush=True)
