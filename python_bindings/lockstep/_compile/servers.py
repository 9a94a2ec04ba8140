"""The connection of a worker to the parameter servers that update its trained states."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .. import _lockstep
from .._base.errors import Error
from .._reports.staleness import Staleness

if TYPE_CHECKING:
    from .._lockstep import Communicator, Executable, _ServerClient


def client_of(world: Communicator) -> _ServerClient:
    """Returns the connection of this worker to the servers of the job. Raises an Error if there are none."""
    if world.transport != "mpi":
        raise Error(
            'compile: strategy="parameter_server" requires the workers of a job, world=Communicator.from_environment(), but this '
            f'world has the transport "{world.transport}"; a job with servers is started by `lockstep launch -n N -s S PROGRAM`'
        )
    servers = _lockstep._servers()
    if servers is None:
        raise Error(
            'compile: strategy="parameter_server" needs parameter servers, but this job has none: start it by '
            '`lockstep launch -n N -s S PROGRAM`; strategy="all_reduce" needs none'
        )
    if servers.workers != world.size:
        raise Error(f"compile: world has {world.size} ranks, but the servers have {servers.workers} workers")
    return servers


def staleness_of(executable: Executable) -> Staleness:
    """Implements Executable.staleness()."""
    return Staleness(executable._staleness())
