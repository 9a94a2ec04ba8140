"""`Strategy`: the options that are equal on all ranks, as one value."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from .. import _lockstep
from .._base import checks, names
from .._base.errors import Error
from . import options as _options


@dataclass(frozen=True, init=False, repr=False)
class Strategy:
    """The options of `compile` that are equal on all ranks, as one immutable value.

    The text lists the options that differ from their defaults, as `name=value`. Strategies with the same text are equal.
    It can be parsed:

    >>> strategy = lockstep.Strategy(mesh={"data": 2, "model": 2}, split={"fc1.weight": {"model": 0}}, wire="bf16")
    >>> str(strategy)
    'mesh={data=2,model=2},split={fc1.weight={model=0}},wire=bf16'
    >>> strategy == lockstep.Strategy.parse(str(strategy))
    True

    `compile(graph, strategy=strategy)` takes a strategy or its text. `Executable.strategy` is the strategy of a program.

    Args:
    """

    _text: str

    def __init__(self, **options: Any) -> None:
        names.check_options("Strategy", options, _options.OF_STRATEGY)
        if isinstance(options.get("buckets"), _options.Report):
            raise Error("Strategy: buckets cannot be a report, because ranks must measure with it: pass it to compile")
        texts = _options.texts_of(_options.with_mesh_of_plan(options))
        object.__setattr__(self, "_text", _lockstep._strategy(texts))

    @classmethod
    def parse(cls, text: str) -> Strategy:
        """Returns the strategy of a text such as `str` returns, with the options in any order.

        Raises:
          Error: names the wrong part of the text, and the nearest option for an unknown name.
        """
        strategy = cls()
        texts = _lockstep._named_texts(checks.text("strategy", text))
        object.__setattr__(strategy, "_text", _lockstep._strategy(texts))
        return strategy

    @property
    def options(self) -> dict[str, Any]:
        """The options that differ from their defaults, by name, as keyword arguments of `compile`."""
        return _options.values_of(_lockstep._named_texts(self._text))

    def __str__(self) -> str:
        return self._text

    def __repr__(self) -> str:
        return f"Strategy.parse({self._text!r})"


Strategy.__doc__ = f"{inspect.getdoc(Strategy)}\n{_options.documentation(_options.OF_STRATEGY)}\n"
Strategy.__signature__ = inspect.Signature(_options.parameters(_options.OF_STRATEGY))  # type: ignore[attr-defined]


def expanded(given: Mapping[str, Any]) -> dict[str, Any]:
    """Returns options of compile in which a `Strategy`, or its text, is replaced by its options."""
    choices = _options.TABLE["strategy"]["choices"]
    strategy = given.get("strategy", choices[0])
    if isinstance(strategy, str) and strategy in choices:
        return dict(given)
    if isinstance(strategy, str) and ("=" in strategy or not strategy):
        strategy = Strategy.parse(strategy)
    if not isinstance(strategy, Strategy):
        expected = " or ".join(f'"{each}"' for each in choices)
        raise Error(
            f'compile: strategy is {strategy!r}, expected {expected}, or options such as "mesh={{data=2}},wire=bf16"'
        )
    rest = {name: value for name, value in given.items() if name != "strategy" and value is not None}
    of_strategy = strategy.options
    for name, value in rest.items():
        other = "split" if name == "placements" else name
        if other in of_strategy:
            raise Error(
                f"compile: {name}={value!r} is given, and strategy={str(strategy)!r} also sets {other}: give it once"
            )
    return of_strategy | rest
