"""Checks of user arguments. Each function returns its value, or raises an Error that names the option `what`."""

from __future__ import annotations

import math
import operator
import os
from collections.abc import Iterable, Mapping
from typing import Any

from .._lockstep import Graph
from .errors import Error
from .names import FROM_TORCH, is_torch_module

_INT64 = range(-(2**63), 2**63)


def text(what: str, value: Any) -> str:
    """A string that is valid in UTF-8 and has no NUL character."""
    if not isinstance(value, str):
        raise Error(f"{what} is {value!r}, expected text")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise Error(f"{what} is {value!a}, which is not valid Unicode") from None
    if "\0" in value:
        raise Error(f"{what} is {value!r}, which has a NUL character")
    return value


def path(value: Any) -> str:
    try:
        return text("the path", os.fsdecode(value))
    except TypeError:
        raise Error(f"the path is {value!r}, expected text or a path") from None


def names(what: str, value: Any) -> list[str]:
    if isinstance(value, str):
        raise Error(f"{what} is the text {value!r}, expected a list of names")
    if not isinstance(value, Iterable):
        raise Error(f"{what} is {value!r}, expected a list of names")
    return [text(f"a name in {what}", name) for name in value]


def integer(what: str, value: Any, low: int | None = None) -> int:
    """A whole number of 64 bits, at least `low`."""
    try:
        number = operator.index(value)
        if isinstance(value, bool):
            raise TypeError
    except TypeError:
        raise Error(f"{what} is {value!r}, expected a whole number") from None
    if number not in _INT64:
        raise Error(f"{what} is {number}, which does not fit into 64 bits")
    if low is not None and number < low:
        raise Error(f"{what} is {number}, expected at least {low}")
    return number


def flag(what: str, value: Any) -> bool:
    # NumPy's booleans are accepted; texts such as "no", which count as true, are not.
    if type(value).__name__ not in ("bool", "bool_"):
        raise Error(f"{what} is {value!r}, expected True or False")
    return bool(value)


def extents(what: str, value: Any) -> dict[str, int]:
    """A mapping from names to whole numbers."""
    if not isinstance(value, Mapping):
        raise Error(f"{what} is {value!r}, expected names with whole numbers")
    for extent in value.values():
        if not hasattr(extent, "__index__"):
            raise Error(f"{what} is {value!r}, expected names with whole numbers")
    return {text(f"a name in {what}", name): integer(f"{what}: {name!r}", extent) for name, extent in value.items()}


def splits(what: str, value: Any) -> dict[str, dict[str, int]]:
    """A mapping from names to mappings from axes to dimensions."""
    if not isinstance(value, Mapping):
        raise Error(
            f'{what} is {value!r}, expected names with axes and dimensions, such as {{"fc1.weight": {{"model": 0}}}}'
        )
    return {text(f"a name in {what}", name): extents(f"{what}: {name!r}", dims) for name, dims in value.items()}


def choice(what: str, value: Any, choices: tuple[str | None, ...]) -> Any:
    if not (value is None or isinstance(value, str)) or value not in choices:
        shown = " or ".join(f'"{each}"' if each else "None" for each in choices)
        raise Error(f"{what} is {value!r}, expected {shown}")
    return value


def instance(what: str, value: Any, kind: type, expected: str) -> Any:
    if not isinstance(value, kind):
        raise Error(f"{what} is {shown(value)}, expected {expected}")
    return value


def shown(value: Any) -> str:
    """The repr of a value; its type if the repr is long, as for a PyTorch module."""
    text = repr(value)
    return text if len(text) <= 200 and "\n" not in text else f"of type {_type_of(value)}"


def graph(what: str, value: Any) -> Graph:
    return instance(what, value, Graph, f"a lockstep.Graph, which {_maker_of_graph(value)} makes")


def _maker_of_graph(value: Any) -> str:
    """The call that makes a graph of the value that was given instead of one."""
    if is_torch_module(value):
        return FROM_TORCH
    if isinstance(value, (str, bytes, os.PathLike)) or _type_of(value).endswith("ModelProto"):
        return "lockstep.load_onnx(file)"
    return "load_onnx(), from_torch() or parse()"


def _type_of(value: Any) -> str:
    kind = value if isinstance(value, type) else type(value)
    return f"{kind.__module__}.{kind.__qualname__}"


def number(what: str, value: Any) -> float:
    """A number, which may be any float."""
    # A text is not a number, even if float() can read it.
    try:
        number = math.nan if isinstance(value, (str, bytes)) else float(value)
    except (TypeError, ValueError, OverflowError):
        number = math.nan
    if isinstance(value, (str, bytes)) or (math.isnan(number) and not isinstance(value, float)):
        raise Error(f"{what} is {shown(value)}, expected a number{_advice_on_schedules(value)}")
    return number


def _advice_on_schedules(value: Any) -> str:
    """Of a schedule of PyTorch in the place of a number."""
    if not any(kind.__module__ == "torch.optim.lr_scheduler" for kind in type(value).__mro__):
        return ""
    return (
        " or a function of the step; lockstep.schedule has PyTorch's, such as lockstep.schedule.cosine(0.1, steps=1000), and "
        "exe.set(learning_rate=0.01) between calls is what ReduceLROnPlateau does"
    )


def numbers(what: str, value: Any) -> list[float]:
    """A list of numbers, each of which may be any float. An array of one dimension is accepted too."""
    if isinstance(value, (str, bytes, Mapping)) or not isinstance(value, Iterable):
        raise Error(f"{what} is {value!r}, expected a list of numbers")
    try:
        elements = list(value)
    except TypeError:  # such as an array without dimensions
        raise Error(f"{what} is {value!r}, expected a list of numbers") from None
    return [number(f"{what}[{i}]", each) for i, each in enumerate(elements)]


def positive(what: str, value: Any) -> float:
    """A finite number above 0."""
    checked = number(what, value)
    if not (checked > 0 and math.isfinite(checked)):
        raise Error(f"{what} is {value!r}, expected a finite number above 0")
    return checked
