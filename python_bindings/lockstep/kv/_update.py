"""The update of a value by an optimizer: a program, compiled for the value's type, with the optimizer's states."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from .. import _lockstep
from .._base.errors import Error
from .._lockstep import Communicator
from ..optim import Optimizer
from ._values import dtype_name

if TYPE_CHECKING:
    from .._lockstep import Executable

_VALUE = "value"


class Update:
    """The optimizer's states for a value, and its step, as an executable of this process alone. With several workers,
    each makes the same step with the same gradient. The store compares that they can.
    """

    def __init__(self, optimizer: Optimizer, rescale_grad: float, value: np.ndarray, threads: int) -> None:
        """`value` belongs to the store. Each step changes it in place."""
        from .. import compile  # here, because it imports this package

        graph = graph_of(optimizer, rescale_grad, value.dtype, value.shape)
        self.executable: Executable = compile(graph, world=Communicator.single(), threads=threads)
        self.executable.bind(states={_VALUE: value})

    def __call__(self, gradient: np.ndarray) -> None:
        """Makes a step with the gradient, which has the value's type and is not changed."""
        self.executable(gradient=gradient)

    def states(self) -> dict[str, np.ndarray]:
        """Copies of the optimizer's states, by names such as momentum and optimizer/step."""
        states = self.executable.state
        return {name.removeprefix("value/"): states[name] for name in states if name != _VALUE}

    def assign_states(self, values: dict[str, np.ndarray]) -> None:
        """Assigns the result of states(). Raises an Error if the names differ."""
        states = self.executable.state
        names = {name.removeprefix("value/"): name for name in states if name != _VALUE}
        if names.keys() != values.keys():
            raise Error(f"there are the states {_listed(values)}, expected {_listed(names)}")
        for name, value in values.items():
            states[names[name]] = value


def graph_of(optimizer: Optimizer, rescale_grad: float, dtype: np.dtype[Any], shape: tuple[int, ...]) -> Any:
    """Returns the program of an update. Raises an Error if the optimizer cannot update values of this type."""
    graph = _lockstep._update_step(("", *optimizer._choice()), dtype_name(dtype), list(shape), rescale_grad)
    schedules = {f"optimizer/{option}": each for option, each in optimizer._schedules().items()}
    graph._schedules = {name: each for name, each in schedules.items() if name in graph.settings}
    return graph


def _listed(names: Any) -> str:
    return ", ".join(sorted(names)) or "none"
