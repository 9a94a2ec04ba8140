"""The costs of collectives on hosts and the network between them: measured, read from a file, or assumed."""

from __future__ import annotations

import dataclasses
import math
import resource
import tomllib
from typing import Any, BinaryIO

import numpy as np

from .. import _lockstep
from .._base import atomic, checks
from .._base.errors import Error
from .._lockstep import Communicator

_SMALL, _LARGE = 4 << 10, 16 << 20  # bytes: dominated by latency, and by bandwidth
_SECONDS = 2.0  # the approximate time of all calls of one size
_CALLS = range(3, 200)
_HEAD = """\
# A machine, for `lockstep forecast`. Seconds, and bytes per second. Measured by `lockstep doctor --measure`. Any number
# may be changed to see its effect.
"""
_MEANING = {
    "ranks": "the number of ranks of a host",
    "within": "an all_reduce of a host's ranks: latency + bytes / bandwidth",
    "between": "a message between two hosts, while all hosts send and receive as much",
    "operations": "per second, of a rank's kernels: for lockstep.plan",
    "memory": "bytes per second that a rank's kernels read and write: for lockstep.plan",
    "processor": "seconds of a core for each byte that a host sends, taken from concurrent kernels",
}


def _not_negative(what: str, value: Any) -> None:
    number = checks.number(what, value)
    if number < 0 or not math.isfinite(number):
        raise Error(f"{what} is {value}, expected a finite number of at least 0")


@dataclasses.dataclass(frozen=True)
class Link:
    """A link on which n bytes take latency + n / bandwidth seconds."""

    latency: float
    bandwidth: float  # bytes a second

    def __post_init__(self) -> None:
        _not_negative("latency", self.latency)
        checks.positive("bandwidth", self.bandwidth)


@dataclasses.dataclass(frozen=True)
class Machine:
    """Hosts of `ranks` ranks each. A single rank needs no link `within`, and a single host none `between`."""

    ranks: int = 1
    within: Link | None = None
    between: Link | None = None
    processor: float = 0.0
    operations: float = 5e10  # of a core; assumed, as is `memory`
    memory: float = 1e10

    def __post_init__(self) -> None:
        checks.integer("ranks", self.ranks, 1)
        checks.positive("operations", self.operations)
        checks.positive("memory", self.memory)
        _not_negative("processor", self.processor)

    @classmethod
    def read(cls, path: str) -> Machine:
        """Reads a machine from a file in the format of `write`."""
        try:
            with open(checks.path(path), "rb") as file:
                values = tomllib.load(file)
        except OSError as error:
            raise Error(f"{path} cannot be read: {error.strerror}") from None
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise Error(f"{path}: {error}") from None
        try:
            return cls(**{name: _part(name, value) for name, value in values.items()})
        except Error as error:
            raise Error(f"{path}: {error}") from None

    def __str__(self) -> str:
        """Returns the text of the machine in a file."""
        said = [name for name in ("operations", "memory") if getattr(self, name) != getattr(Machine, name)]
        lines = [f"{name} = {getattr(self, name)!r}  # {_MEANING[name]}" for name in ("ranks", "processor", *said)]
        for name in ("within", "between"):
            link = getattr(self, name)
            if link is not None:
                lines += ["", lines_of(name, link)]
        return "\n".join(lines)

    def write(self, path: str) -> None:
        def content(file: BinaryIO) -> None:
            file.write(f"{_HEAD}{self}\n".encode())

        try:
            atomic.write(checks.path(path), content)
        except OSError as error:
            raise Error(f"{path} cannot be written: {error.strerror}") from None


def lines_of(name: str, link: Link) -> str:
    """Returns the text of a link in a file."""
    return "\n".join(
        [f"[{name}]  # {_MEANING[name]}", *(f"{key} = {value!r}" for key, value in dataclasses.asdict(link).items())]
    )


def _part(name: str, value: Any) -> Any:
    """Converts a value of a file to the type of Machine's field."""
    if name not in _MEANING:
        raise Error(f"{name} is not known, expected {', '.join(_MEANING)}")
    if name not in ("within", "between"):
        return value
    keys = {field.name for field in dataclasses.fields(Link)}
    if not isinstance(value, dict) or value.keys() != keys:
        raise Error(f"{name} is {value!r}, expected latency and bandwidth")
    try:
        return Link(**value)
    except Error as error:
        raise Error(f"{name}.{error}") from None


@dataclasses.dataclass(frozen=True)
class _Timed:
    seconds: float  # of a call on the slowest rank: the median of the calls
    processor: float  # seconds of a core that a call takes, the mean of the ranks


def _slowest(world: Communicator, times: list[float]) -> np.ndarray:
    """Returns, for each call, the time of the slowest rank."""
    of_ranks = world.gather_bytes(np.array(times).tobytes(), "measure")
    return np.max([np.frombuffer(each) for each in of_ranks], axis=0)


def _processor_seconds() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def _time(world: Communicator, size: int) -> _Timed:
    first = float(_slowest(world, _lockstep._time_all_reduce(world, size, 1))[0])
    calls = min(max(int(_SECONDS / first), _CALLS.start), _CALLS.stop)
    begin = _processor_seconds()
    times = _lockstep._time_all_reduce(world, size, calls)
    processor = (_processor_seconds() - begin) / (calls + 1)  # `times` omits one call
    of_ranks = world.gather_bytes(np.array(processor).tobytes(), "measure")
    return _Timed(float(np.median(_slowest(world, times))), float(np.mean([np.frombuffer(each) for each in of_ranks])))


def _link(small: _Timed, large: _Timed, travels: list[tuple[int, float]]) -> Link:
    """Returns the link that explains both measured times. `travels` has the messages and bytes of each."""
    latency, per_byte = np.linalg.solve(np.array(travels, float), [small.seconds, large.seconds])
    return Link(max(float(latency), 0.0), 1 / float(per_byte))


def measure(world: Communicator, known: Machine) -> Machine:
    """Returns `known` with the links that can be measured here: within a host if all ranks run on one host, or between
    hosts if each host has one rank. Collective."""
    hosts = {world.host(rank) for rank in range(world.size)}
    if world.size == 1:
        raise Error(
            "one rank cannot measure communication: start several ranks with mpirun, all on one host, or one on each host"
        )
    if len(hosts) not in (1, world.size):
        raise Error(
            f"{world.size} ranks on {len(hosts)} hosts: measure within a host with all ranks on one, and between hosts "
            f"with one rank on each"
        )
    small, large = _time(world, _SMALL), _time(world, _LARGE)
    if len(hosts) == 1:
        return dataclasses.replace(known, ranks=world.size, within=_link(small, large, [(1, _SMALL), (1, _LARGE)]))
    travels = [_lockstep._travel("all_reduce", size, world.size, 1) for size in (_SMALL, _LARGE)]
    return dataclasses.replace(known, between=_link(small, large, travels), processor=large.processor / travels[1][1])
