"""Writes the stubs of classes and functions that the package makes of what is compiled in: optimizers, losses, ops, and the options of compile.

    python tools/python_stubs.py        # `make docs` runs this; a test fails if the stubs are out of date

The stubs are for editors and type checkers, which do not run the package.
"""

from __future__ import annotations

import dataclasses
import inspect
import re
import sys
import textwrap
from pathlib import Path
from types import ModuleType

import lockstep


def written(annotation: object) -> str:
    if isinstance(annotation, str):
        return annotation
    return (
        annotation.__name__
        if annotation in (float, bool, str, int)
        else str(annotation).replace("collections.abc.", "")
    )


def parameters(signature: inspect.Signature) -> str:
    parts = []
    for each in signature.parameters.values():
        if each.kind is inspect.Parameter.KEYWORD_ONLY and not any(part.startswith("*") for part in parts):
            parts.append("*")
        star = "*" if each.kind is inspect.Parameter.VAR_POSITIONAL else ""
        default = "" if each.default is inspect.Parameter.empty else f" = {each.default!r}"
        parts.append(f"{star}{each.name}: {written(each.annotation)}{default}")
    return ", ".join(parts)


def docstring(doc: str) -> str:
    return textwrap.indent(f'"""{doc}"""', "    ", lambda line: bool(line.strip()))


def class_stub(kind: type) -> str:
    """Returns the stub of an optimizer, whose numbers may follow schedules."""
    lines = ["@dataclass(frozen=True, init=False)", f"class {kind.__name__}(Optimizer):", docstring(kind.__doc__), ""]
    lines += [f"    {each.name}: {scheduled(written(each.type))}" for each in dataclasses.fields(kind)]
    lines += ["", f"    def __init__(self, {scheduled(parameters(inspect.signature(kind)))}) -> None: ..."]
    return "\n".join(lines)


def scheduled(types: str) -> str:
    return re.sub(r": float\b", ": _Number", types)


def public(module: ModuleType) -> str:
    return f"__all__ = {list(module.__all__)!r}"


def function_stub(function: object, returns: str = "Loss") -> str:
    signature = parameters(inspect.signature(function))
    return f"def {function.__name__}({signature}) -> {returns}:\n{docstring(function.__doc__)}"


def optim_stub() -> str:
    module = lockstep.optim
    made = [getattr(module, name) for name in module.__all__ if name != "Optimizer"]
    base = f"class Optimizer:\n{docstring(module.Optimizer.__doc__)}"
    imports = "from collections.abc import Callable\nfrom dataclasses import dataclass"
    number = "_Number = float | Callable[[int], float]"
    return joined(module, imports, [public(module), number, base, *map(class_stub, made)])


def loss_stub() -> str:
    module = lockstep.loss
    made = [getattr(module, name) for name in module.__all__ if name not in ("Term", "Loss")]
    imports = "from collections.abc import Sequence\nfrom dataclasses import dataclass\nfrom typing import Any"
    operators = [operator_stub(each) for each in ("__add__", "__radd__", "__mul__", "__rmul__")]
    values = [value_stub(module.Term), "\n".join([value_stub(module.Loss), "", *operators])]
    return joined(module, imports, [public(module), *values, *map(function_stub, made)])


def ops_stub() -> str:
    module = sys.modules["lockstep.graph._ops"]
    imports = """from collections.abc import Sequence
from typing import Any

import numpy as np

from .._lockstep import Graph
from ._builder import Builder
from ._values import Operand, Value"""
    made = [getattr(module, name) for name in module.__all__]
    functions = [function_stub(each, inspect.signature(each).return_annotation) for each in made]
    return joined(module, imports, [public(module), *functions])


def compile_stub() -> str:
    module = sys.modules["lockstep._compile.compile"]
    imports = """from collections.abc import Mapping, Sequence

from .._lockstep import Communicator, Executable, Graph
from .._reports.report import Report
from ..graph import Pass
from .placements import Placement
from .strategy import Strategy"""
    return joined(module, imports, [function_stub(module.compile, "Executable")])


def strategy_stub() -> str:
    module = sys.modules["lockstep._compile.strategy"]
    imports = """from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from .._reports.report import Report
from .placements import Placement"""
    kind = module.Strategy
    lines = ["@dataclass(frozen=True, init=False, repr=False)", f"class Strategy:\n{docstring(kind.__doc__)}", ""]
    lines += [f"    def __init__(self, {parameters(inspect.signature(kind))}) -> None: ..."]
    lines += ["    @classmethod\n    def parse(cls, text: str) -> Strategy: ..."]
    lines += ["    @property\n    def options(self) -> dict[str, Any]: ..."]
    expanded = "def expanded(given: Mapping[str, Any]) -> dict[str, Any]: ..."
    return joined(module, imports, ["\n".join(lines), expanded])


def value_stub(kind: type) -> str:
    """Returns the stub of a frozen data class with its fields."""
    fields = "\n".join(f"    {each.name}: {each.type}{default(each)}" for each in dataclasses.fields(kind))
    return f"@dataclass(frozen=True)\nclass {kind.__name__}:\n{docstring(kind.__doc__)}\n\n{fields}"


def operator_stub(name: str) -> str:
    method = getattr(lockstep.loss.Loss, name)
    arguments = ", ".join(f"{key}: {method.__annotations__[key]}" for key in method.__annotations__ if key != "return")
    return f"    def {name}(self, {arguments}) -> {method.__annotations__['return']}: ..."


def default(field: dataclasses.Field) -> str:
    if field.default_factory is not dataclasses.MISSING:
        return " = ..."
    return "" if field.default is dataclasses.MISSING else f" = {field.default!r}"


def joined(module: ModuleType, imports: str, parts: list[str]) -> str:
    note = "# Generated by tools/python_stubs.py; `make docs` writes it anew."
    return "\n\n".join([f'{note}\n"""{module.__doc__}"""\n\n{imports}', *parts]) + "\n"


STUBS = {
    "optim.pyi": optim_stub,
    "loss.pyi": loss_stub,
    "graph/_ops.pyi": ops_stub,
    "_compile/compile.pyi": compile_stub,
    "_compile/strategy.pyi": strategy_stub,
}

if __name__ == "__main__":
    for name, stub in STUBS.items():
        (Path(lockstep.__file__).parent / name).write_text(stub())
