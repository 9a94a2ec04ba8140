"""Classes and functions that are made from definitions: the common part of `lockstep.optim` and `lockstep.loss`.

The extension module provides the list, with options, defaults and documentation. Nothing is listed in Python.
"""

from __future__ import annotations

import inspect
import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

from . import checks, names
from .errors import Error

Definition = Mapping[str, Any]
_TYPES: dict[str, Any] = {"float": float, "bool": bool, "int": int, "string": str, "list of floats": Sequence[float]}
_WIDTH = 114


def parameters(definitions: Sequence[Definition]) -> list[inspect.Parameter]:
    """The parameters of a signature for these arguments or options, in order."""
    return [
        inspect.Parameter(
            each["name"],
            inspect.Parameter.POSITIONAL_OR_KEYWORD,
            default=each.get("default", inspect.Parameter.empty),
            annotation=_annotation(each),
        )
        for each in definitions
    ]


def type_of(definition: Definition) -> Any:
    """The type of an option, or text for an argument, which has no type."""
    return _TYPES[definition["type"]] if "type" in definition else str


def _annotation(definition: Definition) -> Any:
    kind = type_of(definition)
    return kind | None if definition.get("default", kind) is None else kind


def bind(name: str, signature: inspect.Signature, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    """Returns the given arguments of a call by name.

    Raises:
      TypeError: as for any function. It names the signature of `name`.
    """
    names.check_options(name, kwargs, signature.parameters)
    try:
        return dict(signature.bind(*args, **kwargs).arguments)
    except TypeError as error:
        raise TypeError(f"{name}{signature}: {error}") from None


_CHECKS: dict[str, Any] = {
    "float": checks.number,
    "bool": checks.flag,
    "int": checks.integer,
    "string": checks.text,
    "list of floats": checks.numbers,
}


def options(owner: str, definitions: Sequence[Definition], given: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the options with defaults filled in, each checked for its type. The extension module checks ranges.

    An optional option whose value is None is omitted.
    """
    values = {}
    for definition in definitions:
        name = definition["name"]
        if name not in given and "default" not in definition:
            raise Error(f"{owner}: {name} is missing")
        value = given.get(name, definition.get("default"))
        may_be_absent = "default" in definition and definition["default"] is None
        if value is not None or not may_be_absent:
            values[name] = _CHECKS[definition["type"]](f"{owner}: {name}", value)
    return values


def docstring(doc: str, arguments: Sequence[Definition], more: Sequence[str] = ()) -> str:
    """Returns the text of help(): the description, further paragraphs and the arguments."""
    paragraphs = [textwrap.fill(paragraph, _WIDTH) for paragraph in doc.split("\n\n")]
    paragraphs += [textwrap.fill(paragraph, _WIDTH) for paragraph in more]
    if arguments:
        paragraphs.append("\n".join(["Args:", *map(_argument, arguments)]))
    return "\n\n".join(paragraphs) + "\n"


def _argument(definition: Definition) -> str:
    text = definition["doc"] + (f"; {definition['range']}" if definition.get("range") else "")
    return textwrap.fill(
        f"{definition['name']}: {text}.",
        _WIDTH,
        initial_indent="  ",
        subsequent_indent="    ",
    )
