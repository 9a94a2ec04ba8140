"""The session that `init` makes and every call uses: this rank's communicator, and the order of its calls.

All ranks make the same calls in the same order on one communicator. Each call first gathers its *description* from all
ranks, a record of fixed size. It shows if ranks make the same call, and how many rows each has. It tells a rank that
has joined which call the others make. It is started and waited for with the call itself, so an asynchronous call stays
asynchronous.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from .. import _lockstep
from .._base import checks
from .._base.errors import Error
from .._lockstep import Communicator
from ._calls import RECORD_BYTES, Call, Record, shadow_of

if TYPE_CHECKING:
    from ._buckets import Buckets

_session: Session | None = None


class Session:
    """The session of one `init`. Any thread may call: a lock admits one at a time to the communicators."""

    def __init__(self, world: Communicator) -> None:
        self.world = world
        self.lock = threading.RLock()
        self.optimizers: list[weakref.ref[Buckets]] = []  # all optimizers made so far, by number
        self._deferred: Call | None = None  # its data follows when its description is known
        self._names: dict[str, int] = {}

    def name(self, op: str, name: str | None) -> str:
        """Returns the call's name. A generated name is the same on all ranks if they make the same calls."""
        if name is not None:
            return checks.text(f"{op}: name", name)
        self._names[op] = self._names.get(op, -1) + 1
        return f"{op}.noname.{self._names[op]}"

    def start(self, call: Call) -> Call:
        """Starts the call, after all earlier calls."""
        with self.lock:
            self.flush()
            self._describe(call, call.record)
            if call.needs_records:
                self._deferred = call
            else:
                call.start(self.world)
            return call

    def finish(self, call: Call) -> None:
        """Waits until the call is complete. May be called again."""
        with self.lock:
            if call.complete:
                return
            self.flush()
            if call.records is None:
                call.wait_first(self.world)
                self._read(call)
            call.finish(self.world)
            call.complete = True

    def flush(self) -> None:
        """Starts the call that is deferred, if there is one."""
        call, self._deferred = self._deferred, None
        if call is not None:
            self._read(call)
            call.start(self.world)

    def join(self) -> int:
        """Takes part in the calls of others, without data, until all ranks have joined. Returns the highest of the
        ranks that joined last."""
        with self.lock:
            if any(buckets.is_filling() for buckets in filter(None, (each() for each in self.optimizers))):
                raise Error("hvd.join: there was a backward pass without a later step() of its optimizer")
            self.flush()
            before: set[int] = set()
            while True:
                call = Call({"op": "join"})
                self._describe(call, call.record)
                records = self._gathered(call)
                joined = {rank for rank, record in enumerate(records) if record["op"] == "join"}
                if len(joined) == len(records):
                    self._names.clear()  # their counts are lower on ranks that joined early
                    return max(joined - before)
                before = joined
                self._stand_in(records)

    def _stand_in(self, records: list[Record]) -> None:
        called = next(record for record in records if record["op"] != "join")
        call = self._step_of(called["number"]) if called["op"] == "step" else shadow_of(called)
        call.records = records
        self._check(call)
        call.start(self.world)
        call.finish(self.world)

    def _step_of(self, number: int) -> Call:
        buckets = self.optimizers[number]()
        if buckets is None:
            raise Error(f"hvd.join: other ranks step with optimizer {number}, which this rank no longer has")
        return buckets.stand_in()

    def _describe(self, call: Call, record: Record) -> None:
        call.described = np.zeros((self.world.size, RECORD_BYTES), np.uint8)
        own = np.frombuffer(call.packed(record), np.uint8)
        call.description = _lockstep._start_all_gather(self.world, own, call.described, "u8", "horovod: next call")

    def _gathered(self, call: Call) -> list[Record]:
        _lockstep._wait(self.world, call.description)
        return [call.unpacked(row.tobytes()) for row in call.described]

    def _read(self, call: Call) -> None:
        call.records = self._gathered(call)
        self._check(call)

    def _check(self, call: Call) -> None:
        """Checks that ranks make the same call. Otherwise all of them raise the same message here."""
        try:
            call.check()
        except Error as error:
            self.world.abort(str(error))
            raise


def session() -> Session:
    if _session is None:
        raise Error("hvd.init() has not been called, or hvd.shutdown() has")
    return _session


def init(comm: Communicator | None = None, process_sets: Any = None) -> None:
    """Joins the ranks that `mpirun` started; without mpirun there is one rank. A second call does nothing.

    Args:
      comm: the communicator to use instead of `lockstep.Communicator.from_environment()`.
      process_sets: not supported; anything but None is an Error.
    """
    global _session
    if process_sets:
        raise Error("hvd.init: process_sets: Lockstep has no process sets; every call is for all ranks")
    if comm is not None:
        checks.instance("hvd.init: comm", comm, Communicator, "a lockstep.Communicator, or None for that of mpirun")
    if _session is None:
        _session = Session(Communicator.from_environment() if comm is None else comm)


def shutdown() -> None:
    """Leaves the job. Calls of other ranks that wait for this one fail. Handles that are not synchronized are lost."""
    global _session
    _session = None


def is_initialized() -> bool:
    return _session is not None


def rank() -> int:
    """This rank's number, from 0."""
    return session().world.rank


def size() -> int:
    """The number of ranks."""
    return session().world.size


def _hosts() -> list[str]:
    world = session().world
    return [world.host(rank) for rank in range(world.size)]


def _local_ranks() -> list[int]:
    """The number of each rank among the ranks of its host."""
    hosts = _hosts()
    return [hosts[:rank].count(host) for rank, host in enumerate(hosts)]


def local_rank() -> int:
    """This rank's number among the ranks of its host."""
    return _local_ranks()[rank()]


def local_size() -> int:
    """The number of ranks on this host."""
    return session().world.ranks_on_this_host


def cross_rank() -> int:
    """This rank's number among the ranks with the same local_rank."""
    locals_ = _local_ranks()
    return locals_[: rank()].count(locals_[rank()])


def cross_size() -> int:
    """The number of hosts that have a rank with this local_rank."""
    locals_ = _local_ranks()
    return locals_.count(locals_[rank()])


def is_homogeneous() -> bool:
    """True if every host has the same number of ranks."""
    hosts = _hosts()
    return len({hosts.count(host) for host in hosts}) == 1


FACTS: Mapping[str, bool] = {
    "mpi_built": True, "mpi_enabled": True, "mpi_threads_supported": True, "gloo_built": False, "gloo_enabled": False,
    "nccl_built": False, "ddl_built": False, "ccl_built": False, "cuda_built": False, "rocm_built": False,
}  # fmt: skip
