"""The ops of docs/ops.md as functions of values, made from the definitions that are compiled in.

Operands are positional, attributes are keywords. Names that are words of Python end in an underscore: `not_`, `and_`,
`or_`. An elementwise op of several operands broadcasts their shapes, and a number or an array becomes a constant in the
dtype of the other operand. An op without operands takes the graph first: `iota(g, shape=[4], dtype="i64", dim=0)`. An
op with several results returns a tuple; a collective returns one if it has several operands.
"""

# A function is made when its name is first used: the signatures and docstrings of all take about 50 ms.

from __future__ import annotations

import inspect
import keyword
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from .. import _lockstep
from .._base import checks, choices
from .._base.errors import Error
from .._lockstep import Graph
from . import _values
from ._builder import Builder
from ._values import Value

TYPES = {
    "bool": "bool",
    "int": "int",
    "float": "float",
    "string": "str",
    "ints": "Sequence[int]",
    "dtype": "str | type | np.dtype[Any]",
    "tensor": "np.ndarray | np.generic | float",
    "region": "Graph",
}


def _integers(what: str, value: Any) -> list[int]:
    if not isinstance(value, (Sequence, np.ndarray)) or isinstance(value, (str, bytes)):
        raise Error(f"{what} is {checks.shown(value)}, expected a list of whole numbers")
    return [checks.integer(what, each) for each in value]


def _region(what: str, value: Any) -> Graph:
    return checks.instance(what, value, Graph, "a lockstep.Graph, such as Builder.finish returns")


_CHECKS: dict[str, Callable[[str, Any], Any]] = {
    "bool": checks.flag,
    "int": checks.integer,
    "float": checks.number,
    "string": checks.text,
    "ints": _integers,
    "dtype": _values.dtype_named,
    "tensor": _values.as_array,
    "region": _region,
}


def _parameters(definition: choices.Definition) -> list[inspect.Parameter]:
    kinds = [inspect.Parameter.POSITIONAL_OR_KEYWORD] * len(definition["operands"])
    if definition["is_variadic"]:
        kinds[-1] = inspect.Parameter.VAR_POSITIONAL
    annotations = {inspect.Parameter.VAR_POSITIONAL: "Operand | Sequence[Operand]"}
    operands = [
        inspect.Parameter(name, kind, annotation=annotations.get(kind, "Operand"))
        for name, kind in zip(definition["operands"], kinds, strict=True)
    ]
    if not operands:
        operands = [inspect.Parameter("graph", inspect.Parameter.POSITIONAL_OR_KEYWORD, annotation="Builder")]
    return operands + [_attribute(each) for each in definition["attributes"]]


def _attribute(definition: choices.Definition) -> inspect.Parameter:
    annotation = TYPES[definition["type"]] + (" | Value" if definition["may_be_operand"] else "")
    default = definition.get("default", inspect.Parameter.empty)
    return inspect.Parameter(definition["name"], inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


def _returns(definition: choices.Definition) -> str:
    if len(definition["results"]) > 1:
        return f"tuple[{', '.join(['Value'] * len(definition['results']))}]"
    return "Any" if definition["is_collective"] and definition["is_variadic"] else "Value"


def _docstring(definition: choices.Definition) -> str:
    results = definition["results"]
    more = [f"Returns the values {', '.join(results)}."] if len(results) > 1 else []
    more += [f"({name}) {text}." for name, text in definition["constraints"]]
    if definition["no_gradient"]:
        more.append(f"No gradient: {definition['no_gradient']}.")
    attributes = [{**each, "doc": each["doc"] or each["type"]} for each in definition["attributes"]]
    return choices.docstring(definition["doc"], attributes, more)


def _checked(op: str, definition: choices.Definition, value: Any) -> Any:
    name, allowed = definition["name"], definition["choices"]
    value = _CHECKS[definition["type"]](f"{op}: {name}", value)
    if allowed and value not in allowed:
        raise Error(f"{op}: {name} is {value!r}, expected one of {', '.join(allowed)}")
    return value


def _name_of(definition: choices.Definition) -> str:
    op: str = definition["name"]
    return op + "_" if keyword.iskeyword(op) else op


def _function_of(definition: choices.Definition) -> Callable[..., Any]:
    op, attributes = definition["name"], definition["attributes"]
    signature = inspect.Signature(_parameters(definition), return_annotation=_returns(definition))
    broadcast = definition["is_elementwise"] and len(definition["operands"]) > 1
    name = _name_of(definition)

    def call(*args: Any, **kwargs: Any) -> Any:
        given = choices.bind(name, signature, args, kwargs)
        graph, operands = None, [given[each] for each in definition["operands"] if each in given]
        if not definition["operands"]:
            graph = checks.instance(f"{op}: the graph", given["graph"], Builder, "a lockstep.graph.Builder")
            graph._check_open(op)
        if definition["is_variadic"] and len(operands) == len(definition["operands"]):
            last = operands.pop()
            operands += last[0] if len(last) == 1 and isinstance(last[0], (list, tuple)) else last
        refs = {each["name"]: given[each["name"]] for each in attributes if isinstance(given.get(each["name"]), Value)}
        values = {
            each["name"]: _checked(op, each, given[each["name"]])
            for each in attributes
            if each["name"] in given and each["name"] not in refs
        }
        results = _values.insert(op, operands, refs, graph, broadcast, **values)
        return results[0] if len(results) == 1 else tuple(results)

    call.__name__ = call.__qualname__ = name
    call.__module__ = "lockstep.graph"
    call.__doc__ = _docstring(definition)
    call.__signature__ = signature  # type: ignore[attr-defined]
    return call


_DEFINITIONS = {_name_of(each): each for each in _lockstep._ops()}
__all__ = list(_DEFINITIONS)


def __getattr__(name: str) -> Callable[..., Any]:
    if name not in _DEFINITIONS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    made: Callable[..., Any] = globals().setdefault(name, _function_of(_DEFINITIONS[name]))
    return made
