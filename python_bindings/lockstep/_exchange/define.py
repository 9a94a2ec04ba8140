"""Exchanges: how the ranks bring a gradient together, written in Python as the program of one rank."""

from __future__ import annotations

import ast
import inspect
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Concatenate, Generic, ParamSpec

from .. import graph as _graph
from .._base import checks
from .._base.errors import Error
from .._lockstep import Graph
from .ranks import Ranks, RanksWithWeights, where

P = ParamSpec("P")
Body = Callable[Concatenate[_graph.Value, Ranks, P], _graph.Value]
BodyOfWeights = Callable[Concatenate[_graph.Value, RanksWithWeights, P], _graph.Value]

_DEFINITIONS: dict[str, Definition[Any]] = {}


class Definition(Generic[P]):
    """A function that `lockstep.exchange` has made an exchange. A call with its options returns an Exchange."""

    def __init__(
        self, function: Callable[Concatenate[_graph.Value, Any, P], _graph.Value], of_weights: bool = False
    ) -> None:
        if not inspect.isfunction(function):
            raise Error(f"exchange: {checks.shown(function)} is no function")
        self.function, self.of_weights = function, of_weights
        self.__doc__, self.__name__ = function.__doc__, function.__name__
        module = function.__module__
        package = f"{__package__.partition('.')[0]}.exchanges."
        self.name = f"{'lockstep.exchange' if module.startswith(package) else module}.{function.__qualname__}"
        parameters = list(inspect.signature(function).parameters.values())
        if len(parameters) < 2 or any(each.kind is each.KEYWORD_ONLY for each in parameters[:2]):
            raise Error(
                f"exchange {self.name}: the function takes the gradient or the weights, and the ranks, and then its options"
            )
        for each in parameters[2:]:
            if each.default is each.empty or each.kind in (each.VAR_POSITIONAL, each.VAR_KEYWORD):
                raise Error(f"exchange {self.name}: the option {each.name} has no default")
        self.__signature__ = inspect.Signature(parameters[2:])
        _DEFINITIONS[self.name] = self

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> Exchange:
        try:
            bound = self.__signature__.bind(*args, **kwargs)
        except TypeError as error:
            raise TypeError(f"{self.name}: {error}") from None
        bound.apply_defaults()
        return Exchange(self, dict(bound.arguments))

    def __repr__(self) -> str:
        return f"<lockstep.exchange {self.name}{self.__signature__}>"


class Exchange:
    """An exchange with its options, for `lockstep.train_step(..., exchange=...)`."""

    def __init__(self, definition: Definition[Any], options: dict[str, Any]) -> None:
        self.definition, self.options = definition, options
        for name, value in options.items():
            try:
                same = ast.literal_eval(repr(value)) == value
            except (ValueError, SyntaxError):
                same = False
            if not same:
                raise Error(
                    f"exchange {definition.name}: {name} is {checks.shown(value)}, expected a number, a text, a bool, "
                    "None, or a tuple of these, which the text of the program can have"
                )

    def __str__(self) -> str:
        return f"{self.definition.name}({', '.join(f'{name}={value!r}' for name, value in self.options.items())})"

    def __repr__(self) -> str:
        return f"<lockstep.exchange {self}>"

    def body(
        self,
        dtype: str,
        shape: tuple[int, ...],
        axis: str = "data",
        count: int = 2,
        number: int = 0,
        others: int = 1,
    ) -> Graph:
        """The program that stands for the exchange of one gradient, or of one weight: the placed graph of `count` ranks.

        Args:
          dtype, shape: of the gradient or the weight.
          axis, count: of the mesh.
          number, others: the number of a weight among those with this exchange, and how many there are.
        """
        name, of_weights = self.definition.__name__, self.definition.of_weights
        builder = _graph.Builder(name, mesh={axis: count})
        given = builder._of_ranks("weights" if of_weights else "gradient", dtype, shape, axis, terms=not of_weights)
        if of_weights:
            agreed = builder.input("agreed", dtype, shape)
            ranks: Ranks = RanksWithWeights(builder, axis, count, agreed, number, others)
        else:
            ranks = Ranks(builder, axis, count)
        with builder.scope(name), _located(self.definition):
            result = self.definition.function(given if of_weights else ranks._own(given), ranks, **self.options)
            self._check(result, given, axis)
            for state in ranks._states.values():
                state._finish(builder)
            if isinstance(ranks, RanksWithWeights):
                ranks._finish(result)
            else:
                builder.result("sum", result)
        return builder.finish()

    def _check(self, result: Any, terms: _graph.Value, axis: str) -> None:
        what = "the function returned"
        if not isinstance(result, _graph.Value):
            raise Error(f"{what} {checks.shown(result)}, expected a lockstep.graph.Value")
        if (result.dtype, result.shape) != (terms.dtype, terms.shape):
            raise Error(f"{what} {result._type()}, expected {terms._type()}")
        if result.placements and not self.definition.of_weights:
            raise Error(
                f"{what} a value that is {result.placements[axis]}, made at {where(result)}: the ranks would update their weights "
                "differently; bring it together, such as by ranks.sum"
            )


class AllReduce(Exchange):
    """The sum of the gradients, by an all_reduce.

    Args:
      wire: the dtype in which gradients of f32 travel, as for `lockstep.compile`: "" as they are, "bf16" or "int8".
    """

    def __init__(self, wire: str = "") -> None:
        self.wire = checks.choice("all_reduce: wire", wire, ("", "bf16", "int8"))

    def __str__(self) -> str:
        return f"all_reduce(wire={self.wire!r})"

    def body(self, *args: Any, **kwargs: Any) -> Graph:
        raise Error("all_reduce has no body: it is one op, which the compiler knows")


def checked(exchange: Any) -> list[tuple[str, str, str, bool]]:
    """Returns the states or patterns, the text and the wire of the exchanges that train_step was given, and whether they
    are of weights."""
    entries = exchange if isinstance(exchange, Mapping) else {"*": exchange}
    found = []
    for states, each in entries.items():
        states = checks.text("exchange: the name of a state", states)
        made = each() if isinstance(each, (Definition, type)) and each in (*_DEFINITIONS.values(), AllReduce) else each
        checks.instance(
            f"exchange: of {states}", made, Exchange, "one of lockstep.exchange, such as lockstep.exchange.top_k(0.01)"
        )
        wire = made.wire if isinstance(made, AllReduce) else ""
        by = "" if isinstance(made, AllReduce) and not wire else str(made)
        found.append((states, by, wire, not isinstance(made, AllReduce) and made.definition.of_weights))
    return found


@contextmanager
def _located(definition: Definition[Any]) -> Iterator[None]:
    """Errors of the function become Errors that name the exchange and the function's line."""
    try:
        yield
    except Exception as error:
        file = definition.function.__code__.co_filename
        lines = [each.lineno for each in traceback.extract_tb(error.__traceback__) if each.filename == file]
        line = lines[-1] if lines else definition.function.__code__.co_firstlineno  # of the function as a whole
        told = str(error) if isinstance(error, Error) else f"{type(error).__name__}: {error}"
        raise Error(f"exchange {definition.name}, {Path(file).name}:{line}: {told}") from error


def parse(text: str) -> Exchange:
    """Returns the exchange of the text that `str` makes of one."""
    name, _, rest = text.partition("(")
    definition = _DEFINITIONS.get(name)
    if definition is None:
        raise Error(
            f"the step has the exchange {text}, but {name} is not defined here: import the module that defines it"
        )
    try:
        call = ast.parse(f"f({rest}", mode="eval").body
        options = {str(each.arg): ast.literal_eval(each.value) for each in getattr(call, "keywords", ())}
    except (SyntaxError, ValueError) as error:
        raise Error(f"the step has the exchange {text}, which is no call with literal options: {error}") from None
    try:
        return definition(**options)
    except TypeError as error:
        raise Error(f"the step has the exchange {text}, which another version of {name} made: {error}") from None
