"""MXNet's KVStore on this engine: values by key, which workers push to and pull from.

    store = lockstep.kv.create("dist_sync")
    store.init(names, weights)
    store.set_optimizer(lockstep.optim.SGD(0.1), rescale_grad=1 / 256)
    for gradients in steps:
        store.push(names, gradients)
        store.pull(names, out=weights)

docs/kvstore.md describes each call, and the differences from MXNet.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .._base import checks, copies, names
from .._base.errors import Error
from .._reports.staleness import Staleness
from ._async import AsyncStore
from ._devices import Devices
from ._local import LocalStore
from ._store import KVStore
from ._synchronous import SynchronousStore
from ._values import RowSparse

if TYPE_CHECKING:
    from .._lockstep import Communicator

__all__ = ["Devices", "KVStore", "RowSparse", "Staleness", "create"]

_KINDS: dict[str, type[LocalStore | SynchronousStore | AsyncStore]] = {
    "local": LocalStore,
    "device": LocalStore,
    "dist_sync": SynchronousStore,
    "dist_device_sync": SynchronousStore,
    "dist": SynchronousStore,
    "dist_async": AsyncStore,
}

# Names of MXNet, with their counterparts here.
_ELSEWHERE = {
    "nccl": '"device": reduces on the host; GPUs are reached by compile(backend="cuda"), whose ranks use NCCL',
    "horovod": '"dist_sync" adds up as Horovod does; lockstep.horovod.torch has its calls',
    "byteps": '"dist_sync"',
    "teststore": '"local"',
    "p3": '"dist_sync", with the priorities of push: keys travel in pieces, urgent ones first',
    "dist_sync_device": '"dist_device_sync"',
    "dist_async_device": '"dist_async"',
    "local_update_cpu": '"local"',
    "local_allreduce_cpu": '"local"',
    "local_allreduce_device": '"device"',
}


def create(kind: str = "local", world: Communicator | None = None) -> KVStore:
    """Makes a store of values by key.

    Args:
      kind: "local" or "device": a store of this process alone, whose devices are arrays. "dist_sync",
        "dist_device_sync" or "dist": a store of all workers of `world`, which wait for each other. Pushed values are
        summed, so n workers with a batch of b compute the same as one with n * b. "dist_async": a store of all workers
        of a job with parameter servers, which apply each push at once.
      world: the workers of a dist kind. None is `Communicator.from_environment()`.

    Raises:
      Error: the kind is unknown. The message lists the kinds.

    Example:
      >>> store = lockstep.kv.create("local")
      >>> store.init(3, 2 * np.ones((2, 3), np.float32))
      >>> store.pull(3)
      array([[2., 2., 2.],
             [2., 2., 2.]], dtype=float32)
    """
    name = checks.text("create: the kind", kind).lower()
    if name in _ELSEWHERE:
        raise Error(f"create: there is no store of the kind {kind!r} here; use {_ELSEWHERE[name]}")
    if name not in _KINDS:
        raise Error(f"create: there is no store of the kind {kind!r}; there are {', '.join(_KINDS)}")
    if _KINDS[name] is LocalStore and world is not None and world.size > 1:
        raise Error(
            f'create: a store of the kind {kind!r} is for one process, but world has {world.size}; use "dist_sync"'
        )
    return _KINDS[name](name, world)


for _kind in set(_KINDS.values()):
    copies.refuse(_kind, "lockstep.kv.KVStore", "each process makes its own: lockstep.kv.create()")

names.guard(globals(), {"store": "create"})
