"""The inputs, states and results of a graph or an executable, as Python sees them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, MutableMapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from .errors import Error, NoSuchState, listed
from .names import suggest

if TYPE_CHECKING:
    import numpy as np

    from .._lockstep import Executable, _Started


_AVERAGE = "/average"  # passes/training/averaging.h


@dataclass(frozen=True)
class ValueInfo:
    """An input, a state or a result of a graph."""

    name: str
    dtype: str  # "f32", "i64", …
    shape: tuple[int, ...]  # of the whole value; in `Executable.graph`, of one rank's part
    placements: dict[str, str] = field(default_factory=dict)  # by mesh axis, such as {"data": "split(0)"}


class StartedCall(Mapping[str, "np.ndarray"]):
    """The results, by name, of a call that `Executable.start` began. Reading a result waits for the call.

    A failed call raises its Error at every read. If nobody reads a result, the next use of the executable raises the
    Error.

    Example:
      >>> before = None
      >>> for image, label in batches:
      ...     started = exe.start(image=image, label=label)
      ...     if before is not None:
      ...         print(before["loss"])  # while `started` computes
      ...     before = started
    """

    def __init__(self, started: _Started, names: tuple[str, ...]) -> None:
        self._started = started
        self._names = names

    def wait(self) -> dict[str, np.ndarray]:
        """Waits for the call, and returns what `exe(...)` would have returned."""
        return dict(self._started.wait())

    def __getitem__(self, name: str) -> np.ndarray:
        return self._started.wait()[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)

    def __repr__(self) -> str:
        return f"<lockstep.StartedCall with {', '.join(self._names) or 'no results'}>"


class State(MutableMapping[str, "np.ndarray"]):
    """The states of an executable on this rank, by name. Reading copies a state out, and assigning copies into it. A
    value that was read is read-only, because writing to it would not change the state.

    In a mesh with stages, each rank has the states of its own stage. Only these are listed and can be read. Assigning
    any other state has no effect, so all ranks may assign all states.

    Example:
      >>> exe.state["conv1.weight"].shape
      (20, 1, 5, 5)
      >>> exe.state["conv1.bias"] = np.zeros(20, np.float32)
    """

    def __init__(self, executable: Executable) -> None:
        self._executable = executable

    def __getitem__(self, name: str) -> np.ndarray:
        value = self._executable._read_state(self._known(name))
        value.setflags(write=False)
        return value

    def get(self, name: str, default: Any = None) -> Any:
        """Returns the state, or `default` if this rank has no state of that name."""
        if name not in self:
            return default
        return self[name]

    def __setitem__(self, name: str, value: Any) -> None:
        self._executable._assign_state(self._known(name), value)

    def __delitem__(self, name: str) -> None:
        raise TypeError("the states of an executable cannot be removed")

    def assign(self, values: Mapping[str, Any]) -> None:
        """Assigns each state its value in `values`, which may have further values, such as states of an optimizer.

        Example:
          >>> evaluation.state.assign(exe.state)

        Raises:
          Error: `values` has no value for a state. The message names it, and no state is changed.
        """
        if not isinstance(values, Mapping):
            raise Error(f"assign: values is {values!r}, expected values by name, such as exe.state")
        missing = next((name for name in self if name not in values), None)
        if missing is not None:
            raise Error(
                f"assign: there is no value for the state {missing}; there are {listed([str(name) for name in values])}"
            )
        for name in self:
            self[name] = values[name]

    def __repr__(self) -> str:
        shown = [
            f"{each.name} {each.dtype}[{','.join(map(str, each.shape))}]" for each in self._executable._whole_states()
        ]
        more = f" and {len(shown) - 4} more" if len(shown) > 4 else ""
        return f"<lockstep states {', '.join(shown[:4]) or 'none'}{more}>"

    def averaged(self) -> dict[str, np.ndarray]:
        """Returns all states by name, with averages in place of the states that have one (`train_step(average=…)`).

        Example:
          >>> evaluation.state.assign(exe.state.averaged())

        Raises:
          Error: if the step keeps no averages.
        """
        if "averaging/weight" not in self._executable._setting_names():
            raise Error("averaged: the step keeps no averages; make it with train_step(average=…)")
        averages = {name.removesuffix(_AVERAGE): name for name in self if name.endswith(_AVERAGE)}
        return {name: self[averages.get(name, name)] for name in self if not name.endswith(_AVERAGE)}

    def _known(self, name: str) -> str:
        names = self._executable._state_names()
        if isinstance(name, str) and name in names:
            return name
        shown = str(name).encode(errors="backslashreplace").decode()  # for lone surrogates
        raise NoSuchState(f"there is no state {shown}{suggest(name, names)} There are: {', '.join(names) or 'none'}")

    def __iter__(self) -> Iterator[str]:
        return iter(self._executable._own_state_names())

    def __len__(self) -> int:
        return len(self._executable._own_state_names())

    def __contains__(self, name: object) -> bool:
        return name in self._executable._own_state_names()
