"""Classes and functions made of data: what optimizers and losses of `lockstep.optim` and `lockstep.loss` have in common.

The extension module says what there is, with options, defaults and documentation; nothing in Python lists any of it.
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
    """Of a signature: the arguments or options, in order."""
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
    """The type of an option; of an argument, which has none, text."""
    return _TYPES[definition["type"]] if "type" in definition else str


def _annotation(definition: Definition) -> Any:
    kind = type_of(definition)
    return kind | None if definition.get("default", kind) is None else kind


def bind(name: str, signature: inspect.Signature, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    """The arguments of a call by name: those that are given.

    Raises:
      TypeError: as for any function; it names what `name` takes.
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
    """The options with defaults filled in, each of its type; ranges are for the extension module to check.

    An option that may be absent, and is None, is not among them.
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
    """The text of help(): what it is, its arguments, and further paragraphs."""
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
