"""`save`, `saved` and `load` of an executable: all ranks together write or read one file with all states."""

from __future__ import annotations

import difflib
import json
import math
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from .._base import checks
from .._base.errors import Error
from .._base.log import warn_once
from .._base.tensor_file import in_file_order
from ..schedule import Schedule
from . import residuals
from .checkpoint_file import CheckpointFile, Metadata
from .thread import Elsewhere, Writing, naming

if TYPE_CHECKING:
    from .._base.values import ValueInfo
    from .._lockstep import Communicator, Executable

_SAVE, _LOAD = "save() of an executable", "load() of an executable"  # the collective calls in messages


def on_all_ranks(world: Communicator, caller: str, body: Callable[[], str]) -> list[str]:
    """Returns the results of body() by rank. Collective. An Error on one rank is raised on all, and names that rank.

    A rank that makes another call instead gets an error that the others are in `caller`."""
    own, failure = "", None
    try:
        own = body()
    except Error as error:
        failure = error
    except BaseException as error:
        _abort(world, error)
        raise
    if world.size == 1 and failure is not None:
        raise failure
    try:
        told = world.gather_bytes((f"!{failure}" if failure else f" {own}").encode(errors="backslashreplace"), caller)
    except Error:
        if failure is not None:
            # The other ranks got the message before, or have ended.
            raise Error(f"{_name(world, world.rank)}: {failure}") from failure
        raise
    texts = [each.decode() for each in told]
    for rank, text in enumerate(texts):
        if text.startswith("!"):
            # A rank that raises may end at once. A second exchange lets the others leave the first one before, so that
            # they do not blame it.
            with suppress(Error):
                world.gather_bytes(b"", caller)
            raise Error(f"{_name(world, rank)}: {text[1:]}") from failure
    return [text[1:] for text in texts]


def slowly_on_all_ranks(world: Communicator, caller: str, body: Callable[[], str]) -> list[str]:
    """Does the same as on_all_ranks for work that may take longer than ranks wait for each other, such as reading a
    file. It runs in a thread, while the ranks exchange its progress."""
    done: list[str] = []
    failures: list[BaseException] = []

    def run() -> None:
        try:
            done.append(body())
        except BaseException as error:  # noqa: BLE001 (raised by progress())
            failures.append(error)

    thread = threading.Thread(target=run, name="lockstep.load", daemon=True)
    thread.start()
    wait = 0.01

    def progress() -> str:
        thread.join(wait)
        if failures:
            raise failures[0]
        return f"done {done[0]}" if done else "working"

    try:
        while True:
            told = on_all_ranks(world, caller, progress)
            if "working" not in told:
                return [each.removeprefix("done ") for each in told]
            wait = min(2 * wait, 1.0)
    finally:
        thread.join()  # it reads a file that the caller closes


def save(
    exe: Executable,
    path: Any,
    step: Any = None,
    metadata: Any = None,
    background: Any = False,
    *,
    before: Callable[[], None] = lambda: None,
    after: Callable[[], None] = lambda: None,
) -> None:
    """Implements Executable.save. Rank 0 calls `before` after checking the arguments, and `after` after writing."""
    saved(exe)
    world = exe._world()
    request: dict[str, Any] = {}
    own_step, own_settings = _present(exe)

    def check() -> str:
        request["path"] = checks.path(path)
        request["background"] = checks.flag("save: background", background)
        request["metadata"] = _checked_metadata(own_step if step is None else step, metadata)
        request["settings"] = own_settings
        exe._check_usable()
        _check_whole(exe)
        return json.dumps(request)

    _check_equal(on_all_ranks(world, _SAVE, check), world)

    def begin() -> str:
        if world.rank == 0:
            naming(request["path"], before)
        return ""

    on_all_ranks(world, _SAVE, begin)
    writing = _gather(exe, request, after)
    exe._set_saving(writing)
    if not request["background"]:
        saved(exe)


def _present(exe: Executable) -> tuple[int, dict[str, float]]:
    """Returns exe.step and the settings; those of rank 0 if each rank has its own program (asynchronous servers)."""
    present = exe.step, dict(exe.settings)
    world = exe._world()
    if world.size == 1 or exe._program()["mesh"] != "{}":
        return present
    step, settings = json.loads(on_all_ranks(world, _SAVE, lambda: json.dumps(present))[0])
    return step, settings


def saved(exe: Executable) -> None:
    """Implements Executable.saved."""
    writing = exe._saving()
    if writing is None:
        return
    try:
        _wait(exe._world(), "saved() of an executable", writing.progress)
    except Error:
        exe._set_saving(None)
        raise
    exe._set_saving(None)


def load(exe: Executable, path: Any, expected: Any = None) -> Metadata:
    """Implements Executable.load. The file's metadata must have the `expected` values."""
    saved(exe)
    world = exe._world()
    opened: list[CheckpointFile] = []

    def check() -> str:
        file = CheckpointFile(checks.path(path))
        opened.append(file)
        _check_expected(file, _names_with_values("restore: expected", expected))
        _check_fits(file, exe)
        naming(file.path, exe._check_assignable)
        for name in _settings_to_assign(file, exe):
            naming(file.path, partial(exe._check_setting, name, file.settings[name]))
        return ""

    def verify() -> str:
        for name in opened[0].states:
            opened[0].read(name)
        return opened[0].digest

    def assign(name: str) -> None:
        value: list[np.ndarray] = []

        def read() -> str:
            value.append(_value_for(exe, opened[0], name))
            return ""

        slowly_on_all_ranks(world, _LOAD, read)
        on_all_ranks(world, _LOAD, lambda: exe._assign_whole(name, value[0]) or "")

    try:
        on_all_ranks(world, _LOAD, check)
        digests = slowly_on_all_ranks(world, _LOAD, verify)
        for rank, digest in enumerate(digests):
            if digest != digests[0]:
                ranks = f"{_name(world, 0)} and {_name(world, rank)}"
                raise Error(f"{opened[0].path}: {ranks} see different files under this name")
        exe._doubt_states(f"{opened[0].path}: not all states were loaded")
        for state in exe._whole_states():
            assign(state.name)
        if world.rank == 0:
            _warn_of_residuals(opened[0], exe)
        for name in _settings_to_assign(opened[0], exe):
            exe._set(name, opened[0].settings[name])
        exe.step = opened[0].metadata["step"]
        return opened[0].metadata
    finally:
        for file in opened:
            file.close()


def _gather(exe: Executable, request: Mapping[str, Any], after: Callable[[], None]) -> Writing | Elsewhere:
    """Passes the states to a thread of rank 0, and returns that thread."""
    world = exe._world()
    writing: Writing | Elsewhere = Elsewhere()
    try:
        states = in_file_order(exe._whole_states())
        about = {
            "program": exe._program(),
            "settings": request["settings"],
            "schedules": {name: _described(schedule) for name, schedule in exe._schedules.items()},
            "metadata": request["metadata"],
        }
        if world.rank == 0:
            writing = Writing(request, states, about, after)
        for state in states:
            value = exe._read_whole(state.name)
            _wait(world, _SAVE, partial(writing.put, value))
    except BaseException as error:
        writing.give_up()
        _abort(world, error)
        raise
    return writing


def _wait(world: Communicator, caller: str, progress: Callable[[], str]) -> None:
    """Waits until rank 0 is no longer "writing". Its disk may take longer than ranks wait for each other in a call."""
    while on_all_ranks(world, caller, progress)[0] == "writing":
        pass


def _checked_metadata(step: Any, metadata: Any) -> Metadata:
    checked: Metadata = {"step": checks.integer("save: step", step, 0)}
    if isinstance(metadata, Mapping) and "step" in metadata:
        raise Error("save: metadata has a step; pass it as the argument step")
    return checked | _names_with_values("save: metadata", metadata)


def _names_with_values(what: str, given: Any) -> Metadata:
    """Returns checked metadata that JSON can represent; none for None."""
    if not isinstance(given, (Mapping, type(None))):
        raise Error(f"{what} is {given!r}, expected names with text or numbers")
    checked: Metadata = {}
    for key, value in (given or {}).items():
        name = checks.text(f"{what.replace(': ', ': a name in ')}", key)
        which = f"{what}'s {name}"
        if isinstance(value, (np.generic, np.ndarray)) and value.ndim == 0:
            value = value.item()
        if isinstance(value, str):
            checked[name] = checks.text(which, value)
        elif isinstance(value, bool):
            checked[name] = value
        elif hasattr(value, "__index__"):
            checked[name] = checks.integer(which, value)
        else:
            checked[name] = _metadata_number(which, value)
    return checked


def _metadata_number(which: str, value: Any) -> float:
    try:
        return checks.number(which, value)
    except Error:
        raise Error(f"{which} is {value!r}, expected text, a number, True or False") from None


def _check_whole(exe: Executable) -> None:
    for state in exe._whole_states():
        for axis, placement in state.placements.items():
            if not placement.startswith(("split", "at")):
                raise Error(
                    f"save: state {state.name} is {placement} along {axis}, so ranks do not hold parts of one value"
                )


def _check_equal(requests: list[str], world: Communicator) -> None:
    first, *others = map(json.loads, requests)
    for rank, other in enumerate(others, 1):
        parts = {"metadata": "metadata's ", "settings": "setting "}
        for part, what in ("", ""), *parts.items():
            one, two = (each.get(part, each) for each in (first, other))
            for key in [*one, *two]:
                on_one, on_two = (json.dumps(each.get(key)) for each in (one, two))
                if key not in parts and on_one != on_two:
                    raise Error(f"save: {what}{key} is {on_one} on rank 0, and {on_two} on {_name(world, rank)}")


def _check_expected(file: CheckpointFile, expected: Metadata) -> None:
    for name, value in expected.items():
        if name not in file.metadata:
            raise Error(f"{file.path}: its metadata has no {name}, expected {value}{_near(name, file.metadata)}")
        both_nan = all(isinstance(each, float) and math.isnan(each) for each in (file.metadata[name], value))
        if file.metadata[name] != value and not both_nan:
            raise Error(f"{file.path}: {name} was {file.metadata[name]} when it was saved, and is {value}")


def _check_fits(file: CheckpointFile, exe: Executable) -> None:
    program = f"the program @{exe._program()['name']}"
    states = {state.name: state for state in exe._whole_states()}
    for name, state in states.items():
        found = file.states.get(name)
        if residuals.is_kept(name, states, exe) and (found is None or residuals.fits(found, state)):
            continue
        if found is None:
            raise Error(f"{file.path}: there is no state {name}, which {program} has{_near(name, file.states)}")
        if (found.dtype, found.shape) != (state.dtype, state.shape):
            raise Error(f"{file.path}: state {name} is {_type(found)}, and {_type(state)} in {program}")
    for name in file.states:
        if name not in states and not residuals.is_kept(name, states, exe):
            raise Error(f"{file.path}: there is a state {name}, which {program} does not have{_near(name, states)}")


def _value_for(exe: Executable, file: CheckpointFile, name: str) -> np.ndarray:
    """Returns the bytes of a state in the form of the program."""
    states = {state.name: state for state in exe._whole_states()}
    if not residuals.is_kept(name, states, exe):
        return file.read(name)
    if name not in file.states:  # that run did not exchange gradients so, or had one rank
        return residuals.initial(name, states[name], exe)
    found, wanted = file.states[name], states[name]
    if found.shape == wanted.shape:
        return file.read(name)
    return residuals.for_ranks(file.read(name), found, wanted.shape[0], name, states)


def _warn_of_residuals(file: CheckpointFile, exe: Executable) -> None:
    states = {state.name for state in exe._whole_states()}
    left = [name for name in file.states if name not in states]
    rounded = [name for name in left if residuals.is_residual(name, states)]
    if rounded:
        warn_once(
            f"{file.path}: gradients travelled as int8 when this was saved, and do not now: their rounding errors are dropped, "
            f"each less than the rounding of one step; {rounded[0]} is the first of {len(rounded)} such states"
        )
    kept = [name for name in left if name not in rounded]
    if kept:
        warn_once(
            f"{file.path}: ranks exchanged gradients when this was saved, and do not now: what they kept for later steps is "
            f"dropped; {kept[0]} is the first of {len(kept)} such states"
        )


def _settings_to_assign(file: CheckpointFile, exe: Executable) -> list[str]:
    """Returns the settings of both the file and the executable, without those that follow a schedule."""
    return [name for name in exe._setting_names() if name in file.settings and name not in exe._schedules]


def _described(schedule: Callable[[int], float]) -> str:
    return (
        repr(schedule) if isinstance(schedule, Schedule) else getattr(schedule, "__qualname__", type(schedule).__name__)
    )


def _near(name: str, names: Mapping[str, Any]) -> str:
    near = difflib.get_close_matches(name, names, n=1)
    return f"; there is {near[0]}" if near else ""


def _type(state: ValueInfo) -> str:
    return f"{state.dtype}[{','.join(map(str, state.shape))}]"


def _name(world: Communicator, rank: int) -> str:
    return f"rank {rank} on host {world.host(rank)}"


def _abort(world: Communicator, error: BaseException) -> None:
    """Aborts the world, because the other ranks wait for this one."""
    if world.size > 1:
        world.abort(ascii(error))
