"""Several devices of one worker. Each computes the gradients of its part of the batch."""

from __future__ import annotations

import re
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import numpy as np

from .._base import checks, copies
from .._base.errors import Error
from .._compile.compile import compile
from .._compile.options import default_threads
from .._lockstep import Graph
from ._store import KVStore
from ._values import aligned_array

if TYPE_CHECKING:
    from .._lockstep import Executable

_GRADIENT = "grad/"  # the prefix of gradients among the results of a step


class Devices:
    """Devices of this worker. Each computes the gradients of its part of the rows, in its own thread, from the store's
    weights, of which there is one copy. The store sums their gradients first within the worker, and then over the
    workers.

    On CPUs a device is a share of the process' threads. One device with all threads computes the same, with less to
    sum. A GPU is the device of its own rank (docs/kvstore.md).

    Only one thread may use it at a time. With several workers, each makes one with the same number of devices.

    Example:
      >>> step = lockstep.train_step(model, loss, optimizer=None)  # of the rows of one device
      >>> devices = lockstep.kv.Devices(step, ["cpu:0", "cpu:1"], store)
      >>> for image, label in batches:  # of this worker
      ...     results = devices(image=image, label=label)
      ...     store.push(devices.names, devices.gradients)
      ...     store.pull(devices.names, out=devices.weights)
    """

    def __init__(self, step: Graph, devices: Sequence[str], store: KVStore, *, threads: int | None = None) -> None:
        """
        Args:
          step: from `train_step` without an optimizer, for the rows of one device.
          devices: "cpu:0", "cpu:1" and so on, each once.
          store: has first values (`init`) of the states for which the step has gradients, under their names.
          threads: of each device. None divides the default of `compile` among the devices.

        Raises:
          Error: a device is unknown, or a key is not in the store or has another type.
        """
        checks.instance("Devices: step", step, Graph, "what train_step makes")
        checks.instance("Devices: store", store, KVStore, "a store of lockstep.kv")
        self._devices = _checked(devices)
        count = len(self._devices)
        self._names = [each.name.removeprefix(_GRADIENT) for each in step.results if each.name.startswith(_GRADIENT)]
        if not self._names:
            raise Error(
                "Devices: the step has no gradients among its results; make it with train_step(..., optimizer=None)"
            )
        share = max(1, default_threads(store._world) // count)
        share = share if threads is None else checks.integer("Devices: threads", threads, 1)
        self._inputs = step.inputs
        self._executables = [compile(step, threads=share) for _ in self._devices]
        self._weights = store.data(self._names)
        # The first device's gradients are computed in the memory in which the store sums.
        self._gradients = [
            [first, *(aligned_array(first.shape, first.dtype) for _ in self._devices[1:])]
            for first in store.grad(self._names)
        ]
        for i, executable in enumerate(self._executables):
            executable.bind(
                states=dict(zip(self._names, self._weights, strict=True)),
                results={_GRADIENT + name: of[i] for name, of in zip(self._names, self._gradients, strict=True)},
            )
        self._threads = ThreadPoolExecutor(count, "lockstep device")

    @property
    def names(self) -> list[str]:
        """The keys: the states for which the step has gradients."""
        return list(self._names)

    @property
    def weights(self) -> list[np.ndarray]:
        """The store's arrays of the values, `store.data(names)`, which all devices read."""
        return list(self._weights)

    @property
    def gradients(self) -> list[list[np.ndarray]]:
        """The gradients of the devices in order, for each key, as `push` takes them. Each call overwrites them."""
        return [list(each) for each in self._gradients]

    @property
    def executables(self) -> list[Executable]:
        """The step on each device, for states that are not keys, such as each device's batch statistics."""
        return list(self._executables)

    def __call__(self, **inputs: Any) -> list[dict[str, np.ndarray]]:
        """Runs the step on all devices. Returns the results of each.

        Args:
          inputs: by name, with this worker's rows: for each device the number of rows of the step, in the devices'
            order. An input that is not split along the batch is passed whole to all devices.

        Raises:
          Error: names the input, or the device that failed. The other devices have finished.
        """
        parts = self._parts(inputs)
        runs: list[Future[dict[str, np.ndarray]]] = [
            self._threads.submit(executable, **part) for executable, part in zip(self._executables, parts, strict=True)
        ]
        failed = [(device, run.exception()) for device, run in zip(self._devices, runs, strict=True)]
        for device, error in failed:
            if isinstance(error, Error):
                raise Error(f"{device}: {error}") from error
            if error is not None:
                raise error
        return [run.result() for run in runs]

    def _parts(self, inputs: dict[str, Any]) -> list[dict[str, Any]]:
        """Returns the inputs of each device."""
        count = len(self._devices)
        parts: list[dict[str, Any]] = [dict(inputs) for _ in range(count)]
        for each in self._inputs:
            if each.name not in inputs or each.placements.get("data") != "split(0)":
                continue
            whole, rows = inputs[each.name], each.shape[0]
            found = np.shape(whole)[0] if np.ndim(whole) else 0
            if found != count * rows:
                raise Error(
                    f"Devices: input {each.name} has {found} rows, expected {count * rows}, {rows} for each of {count} devices"
                )
            for i, part in enumerate(parts):
                part[each.name] = whole[i * rows : (i + 1) * rows]
        return parts

    def __repr__(self) -> str:
        return f"<lockstep.kv.Devices {', '.join(self._devices)}, {len(self._names)} keys>"


def _checked(devices: Any) -> list[str]:
    if isinstance(devices, str) or not isinstance(devices, Sequence) or not devices:
        raise Error(f'Devices: devices is {devices!r}, expected a list such as ["cpu:0", "cpu:1"]')
    for each in devices:
        name = checks.text("Devices: a device", each)
        if re.fullmatch(r"(cuda|gpu):\d+", name):
            raise Error(
                f"Devices: {name}: a process has one GPU, that of its rank on its host. Start a rank for each, by `mpirun -n N`: "
                "each is a worker of the store, and those of a host add up first"
            )
        if not re.fullmatch(r"cpu:\d+", name):
            raise Error(f'Devices: there is no device {name!r}, expected one such as "cpu:0"')
    if len(set(devices)) < len(devices):
        raise Error(f"Devices: devices has one twice: {', '.join(devices)}")
    return list(devices)


copies.refuse(Devices, "lockstep.kv.Devices", "make others from the step and the store")
