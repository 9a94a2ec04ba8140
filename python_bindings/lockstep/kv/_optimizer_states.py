"""The optimizer's states of a store in a file: a checkpoint with the states <key>/<state>."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np

from .. import optim
from .._base import atomic
from .._base.errors import Error
from .._base.tensor_file import in_file_order
from .._base.values import ValueInfo
from .._checkpoint.checkpoint import on_all_ranks, slowly_on_all_ranks
from .._checkpoint.checkpoint_file import CheckpointFile, write
from . import _keys
from ._values import dtype_name

if TYPE_CHECKING:
    from ._store import KVStore

_SAVE, _LOAD = (
    "save_optimizer_states() of a store",
    "load_optimizer_states() of a store",
)  # the collective calls in messages


def save(store: KVStore, path: str, dump_optimizer: bool) -> None:
    """Implements KVStore.save_optimizer_states. Requires an optimizer, and that all pushes have been applied."""
    updates = store._updates()
    optimizer = on_all_ranks(store._world, _SAVE, lambda: _text_of(store) if dump_optimizer else "")[0]
    # Reads them before another thread writes, because only one thread may use a communicator at a time.
    values = (
        {} if store.rank else {f"{key}/{name}": v for key, each in updates.items() for name, v in each.states().items()}
    )
    steps = {str(key): update.executable.step for key, update in updates.items()}
    about = {
        "program": {"name": "kv", "kind": store.type, "optimizer": type(store._optimizer).__name__},
        "settings": {},
        "schedules": {},
        "metadata": {"step": max(steps.values(), default=0), "steps": json.dumps(steps), "optimizer": optimizer},
    }

    def write_file() -> str:
        if store.rank == 0:
            try:
                atomic.write(path, lambda file: _write(file, values, about))
            except OSError as error:
                raise Error(f"{path}: {error.strerror or error}") from error
        return ""

    slowly_on_all_ranks(store._world, _SAVE, write_file)


def _write(file: Any, values: dict[str, np.ndarray], about: dict[str, dict[str, Any]]) -> None:
    states = in_file_order([ValueInfo(name, dtype_name(each.dtype), each.shape) for name, each in values.items()])
    write(file, states, (values[state.name].reshape(-1).view(np.uint8) for state in states), about)


def _text_of(store: KVStore) -> str:
    """The optimizer as text, with the numbers that were set later."""
    optimizer = store._optimizer
    assert optimizer is not None
    schedules = optimizer._schedules()
    if schedules or any(callable(value) for value in store._settings.values()):
        raise Error(
            f"save_optimizer_states: the optimizer follows a schedule of {', '.join(schedules or store._settings)}, which a file cannot "
            "represent: leave out dump_optimizer, and set the optimizer of the store before load_optimizer_states"
        )
    options = {each["name"]: getattr(optimizer, each["name"]) for each in optimizer._definition["options"]}
    return json.dumps(
        {"name": type(optimizer).__name__, "options": options, "rescale_grad": store._rescale, "set": store._settings}
    )


def load(store: KVStore, path: str) -> None:
    """Implements KVStore.load_optimizer_states. Requires that all pushes have been applied."""
    read: dict[str, np.ndarray] = {}
    files: list[CheckpointFile] = []

    def read_file() -> str:
        file = CheckpointFile(path)
        files.append(file)
        if file.program.get("name") != "kv":
            raise Error(
                f"{path}: a checkpoint of {file.program.get('name')}, expected a file of save_optimizer_states()"
            )
        read.update({name: file.read(name) for name in file.states})
        return file.digest

    try:
        digests = slowly_on_all_ranks(store._world, _LOAD, read_file)
    finally:
        for file in files:
            file.close()
    other = next((rank for rank, digest in enumerate(digests) if digest != digests[0]), None)
    if other is not None:
        raise Error(f"{path}: rank {other} has another file than rank 0")
    _take(store, files[0], read)


def _take(store: KVStore, file: CheckpointFile, read: dict[str, np.ndarray]) -> None:
    _check_keys(file, store)
    described = file.metadata.get("optimizer")
    if described:
        about = json.loads(str(described))
        store.set_optimizer(getattr(optim, about["name"])(**about["options"]), about["rescale_grad"])
        if about["set"] and store._entries:
            store.set(**about["set"])
    store._need_optimizer("load_optimizer_states")
    updates = store._updates()
    wanted = {
        f"{key}/{name}": value.dtype for key, update in updates.items() for name, value in update.states().items()
    }
    _check_names(file, wanted, store)
    for key, update in updates.items():
        types = update.states()
        for name, value in types.items():
            info = file.states[f"{key}/{name}"]
            if (info.dtype, info.shape) != (dtype_name(value.dtype), value.shape):
                found = f"{info.dtype}{list(info.shape)}"
                expected = f"{dtype_name(value.dtype)}{list(value.shape)}"
                raise Error(f"{file.path}: key {key!r}: the state {name} is {found}, expected {expected}")
    steps = json.loads(str(file.metadata["steps"]))
    for key, update in updates.items():
        update.assign_states(
            {name: read[f"{key}/{name}"].view(v.dtype).reshape(v.shape) for name, v in update.states().items()}
        )
        update.executable.step = steps[str(key)]


def _check_keys(file: CheckpointFile, store: KVStore) -> None:
    """Checks the keys before the file's optimizer replaces the store's, which discards the store's states."""
    own, others = {str(key) for key in store._entries}, set(json.loads(str(file.metadata["steps"])))
    if own != others:
        lacks = sorted(own - others)
        first = (
            f"it lacks the key {lacks[0]!r}"
            if lacks
            else f"it has the key {min(others - own)!r}, which the store does not have"
        )
        raise Error(f"{file.path}: {first}")


def _check_names(file: CheckpointFile, wanted: dict[str, Any], store: KVStore) -> None:
    missing, unknown = sorted(wanted.keys() - file.states.keys()), sorted(file.states.keys() - wanted.keys())
    if missing or unknown:
        optimizer = type(store._optimizer).__name__
        first = f"it lacks the state {missing[0]}" if missing else f"it has the state {unknown[0]}"
        raise Error(
            f"{file.path}: {first}; it is from the optimizer {file.program['optimizer']}, but the store's optimizer {optimizer} keeps "
            f"{_keys.shown(sorted(wanted))}"
        )
