"""A process's connection to `lockstep elastic` (_launch/stay.py), which tells it the worlds that it belongs to.

Each message is a line of JSON. A thread receives them, because a world that is broken must be aborted while the rank
waits in it for a rank that is gone.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import socket
import threading
import time
from typing import Any

from .. import _lockstep
from .._base.errors import Error
from .._base.excepthook import abort_on_exception
from .._launch.line import keep_alive, proof_of
from .._lockstep import Communicator
from ._copies import Copies

SET = "LOCKSTEP_ELASTIC"  # in the environment of the members
CONNECT_SECONDS = 60.0
_PAUSE_SECONDS = 0.5
_LOOK_SECONDS = 0.1  # between two looks at whether the world is broken while it is made
_LEAVE_SECONDS = 1.0  # for the making of a world to fail by itself when it is broken

Message = dict[str, Any]


class BrokenError(Error):
    """The world, or the one that was to be made, is broken."""


class Member:
    """This process as a member of a job. Only the main thread calls it."""

    def __init__(self) -> None:
        self._socket = _connected()
        self._messages: queue.SimpleQueue[Message] = queue.SimpleQueue()
        self._lock = threading.Lock()  # of the next two
        self._world: Communicator | None = None
        self._broken = 0  # the newest generation that is broken
        self._generation, self.collects = 0, False
        threading.Thread(target=self._listen, name="lockstep.elastic", daemon=True).start()

    def next_world(self, copies: Copies, shares: int, timeout: float) -> Communicator | None:
        """Returns the next world to which this process belongs, or None if the job is over. If `collects` is true, the
        world is only for Copies.collect, after which the next one is asked for.

        Args:
          copies: of this process.
          shares: the number of ranks must divide this; 0: any number.
          timeout: of the world, in seconds.

        Raises:
          Error: `lockstep elastic` is gone.
        """
        while True:
            self._send("ready", shares=shares, **_about(copies))
            offer = self._await("world", "over")
            if offer["what"] == "over":
                return None
            try:
                return self._meet(offer, timeout)
            except BrokenError:
                continue
            except Error as error:
                if not self.has_lost(copies, shares, str(error)):
                    raise

    def has_lost(self, copies: Copies, shares: int, error: str) -> bool:
        """Reports that the present world has failed. Returns true if it was broken, so that there will be another
        one, and false if the error is this program's."""
        with self._lock:
            world, self._world = self._world, None
        if world is not None:
            world.abort(error)
        self._send("failed", shares=shares, **_about(copies))
        with self._lock:
            if self._broken >= self._generation:
                return True
        return self._await("broken", "stands")["what"] == "broken"

    def is_over(self, copies: Copies, shares: int) -> bool:
        """Reports that the program has returned. Returns true if it has on all ranks, and false if the world was broken
        before."""
        self._send("done", shares=shares, **_about(copies))
        is_over = self._await("over", "broken")["what"] == "over"
        with self._lock:
            self._world = None
        return is_over

    def stepped(self) -> None:
        """Reports the first step in a world."""
        self._send("stepped")

    def _meet(self, offer: Message, timeout: float) -> Communicator:
        self._generation, self.collects = offer["generation"], offer["collects"]
        calls = iter(range(1 << 30))
        outcome: queue.SimpleQueue[Communicator | Error] = queue.SimpleQueue()
        is_given_up = threading.Event()

        def gather(mine: bytes) -> list[bytes]:
            if is_given_up.is_set():
                raise BrokenError("this world was given up")
            call = next(calls)
            self._send("gather", call=call, bytes=mine.hex())
            answer = self._await("gathered", "broken")
            if answer["what"] == "broken":
                raise BrokenError(answer["why"])
            return [bytes.fromhex(each) for each in answer["all"]]

        def meet() -> None:
            try:
                outcome.put(_lockstep._meet(offer["rank"], offer["size"], gather, timeout, "elastic"))
            except Error as error:
                outcome.put(error)

        # A rank that dies before it has joined its host's group is waited for until the timeout. A thread can be left.
        threading.Thread(target=meet, name="lockstep.elastic.meet", daemon=True).start()
        world = self._met(outcome, is_given_up)
        abort_on_exception(world)
        with self._lock:
            self._world = world
            if self._broken >= self._generation:
                world.abort("the world is broken")
        return world

    def _met(self, outcome: queue.SimpleQueue[Communicator | Error], is_given_up: threading.Event) -> Communicator:
        """Returns the world that a thread makes, or leaves the thread if the world is broken meanwhile."""
        broken_at = float("inf")
        while True:
            with self._lock:
                is_broken = self._broken >= self._generation
            if is_broken:
                broken_at = min(broken_at, time.monotonic())
            try:
                world = outcome.get(timeout=_LOOK_SECONDS)
            except queue.Empty:
                if time.monotonic() - broken_at > _LEAVE_SECONDS:
                    is_given_up.set()
                    raise BrokenError("this world was given up while its ranks met") from None
                continue
            if isinstance(world, Error):
                raise BrokenError(str(world)) if is_broken else world
            return world

    def _await(self, *kinds: str) -> Message:
        """Returns the next message of one of these kinds, about the present generation or a later one."""
        while True:
            message = self._messages.get()
            if message["what"] == "lost":
                self._messages.put(message)
                raise Error(f"the connection to lockstep elastic is lost: {message['why']}")
            if message["what"] in kinds and message.get("generation", self._generation) >= self._generation:
                return message

    def _send(self, what: str, **values: Any) -> None:
        line = json.dumps({"what": what, "generation": self._generation, **values}).encode() + b"\n"
        with contextlib.suppress(OSError):  # _await says that the connection is lost
            self._socket.sendall(line)

    def _listen(self) -> None:
        why = "it has ended"
        try:
            with self._socket.makefile("rb") as lines:
                for line in lines:
                    message = json.loads(line)
                    if message["what"] == "broken":
                        self._note_broken(message["generation"], message["why"])
                    self._messages.put(message)
        except OSError as error:
            why = str(error.strerror or error)
        self._note_broken(1 << 30, "lockstep elastic is gone")
        self._messages.put({"what": "lost", "why": why})

    def _note_broken(self, generation: int, why: str) -> None:
        with self._lock:
            self._broken = max(self._broken, generation)
            if self._world is not None and generation >= self._generation:
                self._world.abort(f"this world is given up: {why}")


def _about(copies: Copies) -> Message:
    return {"step": copies.step, "parts": copies.is_in_parts}


def _connected() -> socket.socket:
    address, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    deadline = time.monotonic() + CONNECT_SECONDS
    while True:
        try:
            connection = socket.create_connection((address, port), timeout=10.0)
            break
        except OSError as error:
            if time.monotonic() > deadline:
                raise Error(f"lockstep elastic does not answer at {address}:{port}: {error}") from None
            time.sleep(_PAUSE_SECONDS)
    keep_alive(connection)
    with connection.makefile("rb") as lines:  # nothing else is said before the answer
        nonce = lines.readline().strip()
    number = os.environ["RANK"]
    proof = proof_of(os.environ["LOCKSTEP_SECRET"], nonce, number)
    connection.sendall(json.dumps({"member": int(number), "proof": proof}).encode() + b"\n")
    connection.settimeout(None)
    return connection
