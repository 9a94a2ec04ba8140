"""The options of compile, from the extension module's table: their signature, documentation, and conversion to texts.

Most options are converted by their type. `_OF_OPTIONS` has the options with their own conversion.
"""

from __future__ import annotations

import ast
import inspect
import os
import re
import textwrap
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from numbers import Real
from typing import Any

from .. import _lockstep
from .._base import checks
from .._base.errors import Error
from .._lockstep import Communicator
from .._reports.report import Report
from .placements import choices
from .plan import Plan

TABLE: dict[str, Mapping[str, Any]] = {each["name"]: each for each in _lockstep._compile_options()}
OF_STRATEGY = [name for name, option in TABLE.items() if option["is_of_strategy"]]
_WIDTH = 114


def parameters(names: Iterable[str]) -> list[inspect.Parameter]:
    """Returns the options as keyword parameters of a signature."""
    return [
        inspect.Parameter(
            name,
            inspect.Parameter.KEYWORD_ONLY,
            default=ast.literal_eval(TABLE[name]["default"]),
            annotation=TABLE[name]["type"],
        )
        for name in names
    ]


def documentation(names: Iterable[str]) -> str:
    """Returns the documentation of options as lines for the section "Args:" of a docstring."""
    return "\n".join(
        textwrap.fill(
            f"{name}: {' '.join(TABLE[name]['doc'].split())}",
            _WIDTH,
            initial_indent="  ",
            subsequent_indent="    ",
            break_on_hyphens=False,
            break_long_words=False,
        )
        for name in names
    )


# --- From values to texts ---------------------------------------------------------------------------------------------


def texts_of(given: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Returns the names and texts of the given options. Omits an option that is None if its default is None."""
    texts = []
    for name, value in given.items():
        option = TABLE[name]
        if value is not None or option["default"] != "None":
            convert = _OF_OPTIONS.get(name) or _OF_TYPES[option["type"]]
            texts.append((name, convert(name, value)))
    return texts


def _flag(name: str, value: Any) -> str:
    return "true" if checks.flag(f"compile: {name}", value) else "false"


def _integer(name: str, value: Any) -> str:
    return str(checks.integer(f"compile: {name}", value))


def _text(name: str, value: Any) -> str:
    return _quoted(checks.text(f"compile: {name}", value))


def _choice(name: str, value: Any) -> str:
    option = TABLE[name]
    none = (None,) if option["default"] == "None" else ()
    return checks.choice(f"compile: {name}", value, (*none, *option["choices"]))


def _quoted(text: str) -> str:
    return _lockstep._print_named_texts([(text, "")]).removesuffix("=")


def _braces(texts: Mapping[str, Any]) -> str:
    """Returns the text form of a mapping."""
    parts = [(name, _braces(each) if isinstance(each, Mapping) else str(each)) for name, each in texts.items()]
    return "{" + _lockstep._print_named_texts(parts) + "}"


def _mesh(name: str, value: Any) -> str:
    return _braces(checks.extents(name, value))


def _split(name: str, value: Any) -> str:
    return _braces(checks.splits(name, value))


def _placements(name: str, value: Any) -> str:
    return _braces(dict(choices(None, value)))


def _factors(name: str, value: Any) -> str:
    if type(value).__name__ in ("bool", "bool_"):
        return _flag(name, value)
    if not isinstance(value, Real) or not value > 0:
        raise Error(f"compile: factors is {value!r}, expected True, False, or operations per byte, more than 0")
    return repr(float(value))


def _shares(name: str, value: Any) -> str:
    if isinstance(value, (str, bytes, Mapping)) or not isinstance(value, Iterable):
        raise Error(f"compile: shares is {value!r}, expected the rows of each rank, such as [96, 32]")
    shares = [checks.integer(f"compile: {name}[{i}]", each, 1) for i, each in enumerate(value)]
    if not shares:
        raise Error("compile: shares is empty, expected the rows of each rank, such as [96, 32]")
    return "|".join(map(str, shares))


class Measured(str):
    """The option `buckets` of a strategy: the text of measurements on which ranks have agreed."""


def _buckets(name: str, value: Any) -> str:
    """Returns the text of measurements; "{}" for a report, which ranks complete with measurements later."""
    if isinstance(value, Measured):
        return value
    if not isinstance(value, Report):
        raise Error(f"compile: {name} is {value!r}, expected a report() of an executable of this step")
    return "{}"


_Conversion = Callable[[str, Any], str]
_OF_TYPES: dict[str, _Conversion] = {"bool": _flag, "int": _integer, "int | None": _integer, "str": _text}
_OF_OPTIONS: dict[str, _Conversion] = {
    "mesh": _mesh,
    "split": _split,
    "placements": _placements,
    "shares": _shares,
    "strategy": _choice,
    "buckets": _buckets,
    "wire": _choice,
    "factors": _factors,
}


# --- From texts to values ---------------------------------------------------------------------------------------------


def values_of(texts: Iterable[tuple[str, str]]) -> dict[str, Any]:
    """Returns the options of a strategy's texts as keyword arguments of compile."""
    special = {"buckets": Measured, "shares": lambda text: [int(each) for each in text.split("|")]}
    return {name: special.get(name, _value)(text) for name, text in texts}


def _value(text: str) -> Any:
    if text.startswith("{"):
        return {name: _value(each) for name, each in _lockstep._named_texts(text[1:-1])}
    if text in ("true", "false"):
        return text == "true"
    if re.fullmatch(r"-?\d+", text):
        return int(text)
    return float(text) if text[0].isdigit() else text


# --- Options that depend on the ranks ---------------------------------------------------------------------------------


def with_defaults_of(world: Communicator, given: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the options with the defaults that depend on the ranks, the environment or other options."""
    options = dict(given)
    if options.get("threads") is None:
        options["threads"] = default_threads(world)
    if options.get("factors") is None and getattr(world, "_in_rank_order", False):
        options["factors"] = False
    return with_mesh_of_plan(options)


def with_mesh_of_plan(given: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the options. If `placements` is a plan, adds its mesh; raises an Error if `mesh` differs."""
    plan, mesh = given.get("placements"), given.get("mesh")
    if not isinstance(plan, Plan):
        return dict(given)
    if mesh is not None and list(checks.extents("mesh", mesh).items()) != list(plan.mesh.items()):
        raise Error(f"compile: mesh is {mesh}, but placements is a plan for the mesh {plan.mesh}")
    return {**given, "mesh": plan.mesh}


def check_on_one_host(world: Communicator) -> None:
    """Raises an Error if the ranks are on several hosts, where they cannot share weights."""
    other = next((rank for rank in range(world.size) if world.host(rank) != world.host(0)), None)
    if other is not None:
        raise Error(
            f"compile: shared_weights requires ranks on one host, but rank 0 is on {world.host(0)} and rank {other} on "
            f"{world.host(other)}; shard_optimizer=True splits the optimizer's states, on any hosts"
        )


def default_threads(world: Communicator) -> int:
    setting = os.environ.get("OMP_NUM_THREADS", "")
    if not setting:
        ranks = Counter(world.host(rank) for rank in range(world.size))
        return max(1, len(os.sched_getaffinity(0)) // max(ranks.values()))  # must be equal on all hosts
    outermost = setting.split(",")[0]  # OpenMP allows a list, for nested parallel regions
    if not outermost.strip().isdecimal() or int(outermost) < 1:
        raise Error(f"the environment's OMP_NUM_THREADS is {setting!r}, expected a number of at least 1")
    return int(outermost)
