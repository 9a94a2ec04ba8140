"""Optimizers: the rules by which a training step updates the trained states.

The formulas and the results are PyTorch's, or those of the papers for optimizers that PyTorch does not have.

There is one class for each optimizer. PyTorch's names of the options `lr`, `betas` and `eps` are accepted too. A value
out of range raises an `Error` immediately. None stands for an option's default. A number that may change between steps
can be given as a function of the step, such as one of `lockstep.schedule`.

Example:
  >>> lockstep.optim.SGD(0.05, momentum=0.9)
"""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

from . import _lockstep
from ._base import checks, choices
from ._base import names as _names
from ._base.errors import Error

# Other spellings of one option, or of several options that are given together. A spelling applies to the optimizers
# that have all of its options.
_SPELLINGS: list[tuple[str, tuple[str, ...]]] = [
    ("lr", ("learning_rate",)),
    ("betas", ("beta1", "beta2")),
    ("eps", ("epsilon",)),
    ("eps", ("epsilon1", "epsilon2")),
    ("ns_coefficients", ("ns_a", "ns_b", "ns_c")),
]


class Optimizer:
    """The base of this module's classes: frozen values, equal if their options are equal."""

    _definition: ClassVar[choices.Definition]

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        kind = type(self)
        name = kind.__name__
        if kind is Optimizer:
            raise Error(f"{name} is no optimizer; lockstep.optim has {', '.join(_CLASSES)}")
        given = choices.bind(name, inspect.signature(kind), args, kwargs)
        given = {key: value for key, value in given.items() if value is not None}
        for spelling, meant in _spellings(self._definition["options"]).items():
            _respell(name, spelling, meant, given)
        schedules = {option: value for option, value in given.items() if callable(value)}
        given |= {option: schedule(0) for option, schedule in schedules.items()}
        values = choices.options(name, self._definition["options"], given)
        _lockstep._check_optimizer(name, values, list(schedules))
        for option, value in (values | schedules).items():
            object.__setattr__(self, option, value)

    def _schedules(self) -> dict[str, Callable[[int], float]]:
        """The options that follow a schedule."""
        options = {each["name"]: getattr(self, each["name"]) for each in self._definition["options"]}
        return {name: value for name, value in options.items() if callable(value)}

    def _choice(self) -> tuple[str, dict[str, Any], list[str]]:
        """The name, the options in the first step, and the scheduled options, as the extension module takes them."""
        names = [each["name"] for each in self._definition["options"]]
        schedules = self._schedules()
        values = {name: schedules[name](0) if name in schedules else getattr(self, name) for name in names}
        return self._definition["name"], values, list(schedules)


def _groups(optimizer: Any, groups: Any) -> dict[str, Optimizer]:
    """Returns the optimizers of groups by pattern. That of all other states is under the empty text."""
    if groups is not None and not isinstance(groups, Mapping):
        raise Error(f"groups is {groups!r}, expected optimizers by name or pattern of states")
    every = {"": optimizer}
    for states, each in (groups or {}).items():
        for pattern in states if isinstance(states, tuple) else [states]:
            if checks.text("groups: a pattern", pattern) == "":
                raise Error("groups: a pattern is empty; the optimizer of all other states is the argument `optimizer`")
            if pattern in every:
                raise Error(f"groups: {pattern!r} is in two keys")
            every[pattern] = each
    for states, each in every.items():
        if not isinstance(each, Optimizer):
            if each is None and not states and groups:
                raise Error(
                    "groups give states an optimizer of their own, but there is no optimizer for the other states"
                )
            of = f" of group {states!r}" if states else ""
            if isinstance(each, type) and issubclass(each, Optimizer):
                raise Error(
                    f"the optimizer{of} is the class {each.__name__}, expected one with its options, such as "
                    f"{each.__name__}()"
                )
            name = each if isinstance(each, str) else type(each).__name__
            meant = _names.suggest(name, _CLASSES, _MEANT)
            raise Error(f"unknown optimizer {checks.shown(each)}{of}{meant} lockstep.optim has {', '.join(_CLASSES)}")
    return every


def _spellings(options: Sequence[choices.Definition]) -> dict[str, tuple[str, ...]]:
    """Returns the other spellings of these options."""
    names = {each["name"] for each in options}
    return {spelling: meant for spelling, meant in _SPELLINGS if set(meant) <= names}


def _respell(kind: str, spelling: str, names: tuple[str, ...], given: dict[str, Any]) -> None:
    """Replaces a spelling in `given` by the options that it stands for."""
    if spelling not in given:
        return
    value = given.pop(spelling)
    values = [value] if len(names) == 1 else _several(kind, spelling, value, len(names))
    for name, each in zip(names, values, strict=True):
        if each is None:
            continue
        if name in given:
            raise Error(f"{kind}: {name} and {spelling} are both given, but mean the same")
        given[name] = each


def _several(kind: str, spelling: str, value: Any, count: int) -> Sequence[Any]:
    try:
        values = tuple(value)
    except TypeError:
        values = ()
    if len(values) != count:
        raise Error(f"{kind}: {spelling} is {value!r}, expected {['two', 'three'][count - 2]} numbers")
    return values


def _states(definition: Mapping[str, Any]) -> list[str]:
    """Returns the sentence of help() about the states that the optimizer keeps."""
    texts = []
    for variables, states in definition["states"]:
        names = [f"`w/{suffix}`" + (f" ({shape})" if shape else "") for suffix, shape in states]
        if names:
            listed = ", ".join(names[:-1]) + (" and " if names[1:] else "") + names[-1]
            texts.append(f"Of a state `w`{f' of {variables}' if variables else ''} it keeps {listed}")
    steps = (
        ["the steps of the program, not of each state, are counted in `optimizer/step`"]
        if texts and definition["counts_steps"]
        else []
    )
    return ["; ".join(texts + steps) + "."] if texts else []


def _signature(options: Sequence[choices.Definition]) -> inspect.Signature:
    """The options in order, then their other spellings. A required option may be given under either name."""
    spelt = _spellings(options)
    either = {name for meant in spelt.values() if len(meant) == 1 for name in meant}
    parameters = [
        each.replace(default=None, annotation=float | None)
        if each.name in either and each.default is inspect.Parameter.empty
        else each
        for each in choices.parameters(options)
    ]
    for spelling, meant in spelt.items():
        annotation = (float if len(meant) == 1 else tuple[(float,) * len(meant)]) | None
        keyword = inspect.Parameter(spelling, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation)
        parameters.append(keyword)
    return inspect.Signature(parameters)


def _class_of(definition: choices.Definition) -> type[Optimizer]:
    options = definition["options"]
    return dataclasses.make_dataclass(
        definition["name"],
        [(each["name"], choices.type_of(each)) for each in options],
        bases=(Optimizer,),
        namespace={
            "__doc__": choices.docstring(definition["doc"], options, _states(definition)),
            "__module__": __name__,
            "__signature__": _signature(options),
            "_definition": definition,
        },
        frozen=True,
        init=False,
    )


_CLASSES = {each["name"]: _class_of(each) for each in _lockstep._optimizers()}
globals().update(_CLASSES)
__all__ = ["Optimizer"]
__all__.extend(_CLASSES)
_MEANT = {"momentum": "SGD", "nag": "SGD", "nesterov": "SGD"}
_names.guard(globals(), _MEANT)
