"""What `strategy` of compile chooses: who updates what is trained."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .. import _lockstep
from .._base import checks
from .._base.errors import Error
from .._reports.staleness import Staleness

if TYPE_CHECKING:
    from .._lockstep import Communicator, Executable, _ServerClient

_BIGARRAY_BOUND = 1_000_000  # elements, as of a store

Strategy = tuple[bool, int, int]  # synchronous, max_staleness, bigarray_bound


def servers_of(strategy: Any, asynchronous: Any, max_staleness: Any, bigarray_bound: Any) -> Strategy | None:
    """How servers update, None if ranks do."""
    checks.choice("compile: strategy", strategy, ("all_reduce", "parameter_server"))
    asynchronous = checks.flag("compile: asynchronous", asynchronous)
    staleness = -1 if max_staleness is None else checks.integer("compile: max_staleness", max_staleness, 0)
    bound = _BIGARRAY_BOUND if bigarray_bound is None else checks.integer("compile: bigarray_bound", bigarray_bound, 1)
    if strategy == "all_reduce":
        given = {"asynchronous": asynchronous, "max_staleness": staleness >= 0, "bigarray_bound": bigarray_bound}
        option = next((name for name, is_given in given.items() if is_given), None)
        if option is not None:
            raise Error(f'compile: {option} is of servers, with strategy="parameter_server"')
        return None
    if staleness >= 0 and not asynchronous:
        raise Error("compile: max_staleness is for asynchronous=True; other workers wait for each other in each step")
    return not asynchronous, staleness, bound


def client_of(world: Communicator) -> _ServerClient:
    """This worker's end of the servers of the job."""
    if world.transport != "mpi":
        raise Error(
            'compile: strategy="parameter_server" is of the workers of a job, world=Communicator.mpi(), and this world is of the '
            f'transport "{world.transport}"; a job with servers is started by `lockstep launch -n N -s S PROGRAM`'
        )
    servers = _lockstep._servers()
    if servers is None:
        raise Error(
            'compile: strategy="parameter_server" needs parameter servers, and this job has none: start it by '
            '`lockstep launch -n N -s S PROGRAM`; strategy="all_reduce" needs none'
        )
    if servers.workers != world.size:
        raise Error(f"compile: world has {world.size} ranks, and the servers have {servers.workers} workers")
    return servers


def staleness_of(executable: Executable) -> Staleness:
    """What Executable.staleness() does."""
    return Staleness(executable._staleness())
