"""Reads HLO text, as XLA dumps it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from .._base.errors import Error


@dataclass(frozen=True)
class Array:
    """The type of an array, such as `f32[2,3]`."""

    dtype: str
    dims: tuple[int, ...]
    order: tuple[int, ...] = field(default=(), compare=False)  # the dimensions in memory, the outermost first

    def __str__(self) -> str:
        return f"{self.dtype}[{','.join(map(str, self.dims))}]"


Type = Array | tuple["Type", ...]


@dataclass(frozen=True, eq=False)
class Instruction:
    """One line of a computation: `%name = type opcode(argument), attribute=value, …`."""

    name: str
    opcode: str
    type: Type
    argument: str
    attributes: dict[str, str]
    file: str
    line: int
    text: str

    @cached_property
    def operands(self) -> list[str]:
        if self.opcode in ("constant", "parameter", "iota"):
            return []
        return [_name(each.split()[-1]) for each in split(self.argument)]

    @property
    def array(self) -> Array:
        if not isinstance(self.type, Array):
            raise self.error("is a tuple, which is not supported here")
        return self.type

    @property
    def arrays(self) -> tuple[Array, ...]:
        """The types of the result, or of the parts of the tuple that is the result."""
        types = self.type if isinstance(self.type, tuple) else (self.type,)
        return tuple(each for each in types if isinstance(each, Array))

    def numbers(self, attribute: str, text: str | None = None) -> list[int]:
        """The integers in the text of an attribute; none if the instruction does not have it."""
        return [int(number) for number in re.findall(r"-?\d+", text or self.attributes.get(attribute, ""))]

    def callee(self, attribute: str) -> str:
        """The computation that an attribute names."""
        if attribute not in self.attributes:
            raise self.error(f"has no {attribute}")
        return _name(self.attributes[attribute])

    def callees(self, attribute: str) -> list[str]:
        """The computations that an attribute names, such as `{%a, %b}`; none if the instruction does not have it."""
        return [_name(each) for each in self.attributes.get(attribute, "").strip("{}").split(",") if each.strip()]

    @contextmanager
    def naming(self) -> Iterator[None]:
        """Makes errors of Python in a block, which evaluates the instruction, an Error that names it."""
        try:
            yield
        except KeyError as error:
            raise self.error(f"has no {error}, or an unknown one") from None
        except (ValueError, IndexError, AssertionError, TypeError) as error:
            raise self.error(f"cannot be evaluated: {error}") from error

    def error(self, message: str) -> Error:
        return Error(f"{self.file}:{self.line}: {self.opcode} %{self.name} {message}")


@dataclass
class Computation:
    name: str
    instructions: list[Instruction] = field(default_factory=list)
    types: dict[str, Type] = field(default_factory=dict)
    root: str = ""

    @cached_property
    def by_name(self) -> dict[str, Instruction]:
        return {each.name: each for each in self.instructions}

    @cached_property
    def parameters(self) -> list[Instruction]:
        found = [each for each in self.instructions if each.opcode == "parameter"]
        return sorted(found, key=lambda each: int(each.argument))


@dataclass
class Module:
    file: str
    partitions: int
    replicas: int
    entry: Computation
    computations: dict[str, Computation]


_MARKS = re.compile(r'"(?:\\.|[^"\\])*"|[()\[\]{},]')


def _marks(text: str, start: int = 0) -> Iterator[tuple[str, int, int]]:
    """The brackets and commas that are in no string: each with its position, and with the depth of brackets after it."""
    depth = 0
    for found in _MARKS.finditer(text, start):
        if not found[0].startswith('"'):
            depth += (found[0] in "([{") - (found[0] in ")]}")
            yield found[0], found.start(), depth


def split(text: str) -> list[str]:
    """The parts of a text between the commas that are in no bracket and no string."""
    parts, start = [], 0
    for mark, at, depth in _marks(text):
        if mark == "," and depth == 0:
            parts.append(text[start:at].strip())
            start = at + 1
    last = text[start:].strip()
    return [*parts, last] if last else parts


def _name(text: str) -> str:
    return text.strip().removeprefix("%")


def _closing(text: str, opening: int) -> int:
    """The position of the bracket that closes the one at `opening`."""
    for _, at, depth in _marks(text, opening):
        if depth == 0:
            return at
    raise ValueError


def _type(text: str) -> Type:
    if text.startswith("("):
        return tuple(_type(each) for each in split(text[1 : _closing(text, 0)]))
    match = re.match(r"([a-z]\w*)\[([\d,]*)\](?:\{([\d,]*))?", text)
    if match is None:
        raise ValueError
    dims, layout = (tuple(int(each) for each in (part or "").split(",") if each) for part in match.groups()[1:])
    return Array(match[1], dims, layout[::-1] or tuple(range(len(dims))))


_LINE = re.compile(r"(ROOT )?(%?[\w.\-]+) = (.*)")


def _attributes(text: str) -> dict[str, str]:
    found: dict[str, str] = {}
    for key, value in (each.split("=", 1) for each in split(text) if "=" in each):
        if key == "device_ids":  # of replica_groups=mesh['x'=2], device_ids=([2]) {'x'}
            found["replica_groups"] += f", {key}={value}"
        else:
            found[key] = value
    return found


def _instruction(file: str, line: int, text: str) -> Instruction:
    match = _LINE.match(text)
    assert match is not None
    rest = match[3]
    end = _closing(rest, 0) + 1 if rest.startswith("(") else rest.index(" ")
    opening = rest.index("(", end)
    closing = _closing(rest, opening)
    attributes = _attributes(rest[closing + 1 :].lstrip(", "))
    shown = re.sub(r", (metadata|backend_config|frontend_attributes)=\{.*", "", text.removeprefix("ROOT "))
    opcode = rest[end:opening].split()[-1]
    argument = rest[opening + 1 : closing]
    return Instruction(_name(match[2]), opcode, _type(rest), argument, attributes, file, line, shown)


def _add(computation: Computation, i: Instruction) -> None:
    """Adds an instruction, and before it a get-tuple-element for each operand of the form `%tuple#1`, with this name."""
    known = computation.types
    for operand in i.operands:
        whole, _, index = operand.partition("#")
        if whole not in known:
            raise i.error(f"uses %{whole}, which is not defined")
        if operand not in known:
            known[operand] = known[whole][int(index)]  # type: ignore[index, assignment]
            attributes = {"index": index}
            part = Instruction(operand, "get-tuple-element", known[operand], whole, attributes, i.file, i.line, i.text)
            computation.instructions.append(part)
    known[i.name] = i.type
    computation.instructions.append(i)


_CALLEES = (
    "to_apply", "calls", "condition", "body", "select", "scatter", "branch_computations", "true_computation",
    "false_computation",
)  # fmt: skip


def _check(file: str, computation: Computation, known: set[str]) -> None:
    """Raises Error unless the computation has a root and numbered parameters, and calls only those known."""
    if not computation.root:
        raise Error(f"{file}: the computation %{computation.name} has no ROOT")
    parameters = [i for i in computation.instructions if i.opcode == "parameter"]
    for i in parameters:
        if i.argument not in map(str, range(len(parameters))) or [j.argument for j in parameters].count(i.argument) > 1:
            raise i.error(f"has a wrong number: {len(parameters)} parameters count from 0")
    for i in computation.instructions:
        for attribute in _CALLEES:
            for callee in i.callees(attribute):
                if callee not in known:
                    raise i.error(f"calls %{callee}, which is not defined before it")


def _count(file: str, header: dict[str, str], key: str) -> int:
    text = header.get(key, "1")
    if not re.fullmatch(r"[1-9]\d*", text):
        raise Error(f"{file}: {key} is {text}, which is no positive integer")
    return int(text)


def read(file: str) -> Module:
    """Returns the module in a file.

    Raises:
      Error: the file cannot be read, or is not HLO text. The message names the line.
    """
    try:
        text = Path(file).read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise Error(f"cannot read {file}: {error}") from None
    computations: dict[str, Computation] = {}
    entry, current, header = None, None, dict[str, str]()
    for number, full in enumerate(text.splitlines(), 1):
        line = re.sub(r"/\*.*?\*/", "", full).strip()
        if line.startswith("HloModule"):
            header = _attributes(line)
        elif current is None and re.match(r"(ENTRY )?%?[\w.\-]+ .*\{$", line):
            is_entry = line.startswith("ENTRY ")
            current = Computation(_name(line.removeprefix("ENTRY ").split()[0]))
            computations[current.name] = current
            entry = current if is_entry else entry
        elif current is not None and line.startswith("}"):
            current = None
        elif current is not None and line:
            try:
                instruction = _instruction(file, number, line)
                _add(current, instruction)
            except (ValueError, AssertionError, IndexError, KeyError, TypeError):
                raise Error(f"{file}:{number}: this is no HLO instruction: {line[:100]}") from None
            if line.startswith("ROOT "):
                current.root = instruction.name
    if entry is None or not entry.root:
        raise Error(f"{file} is not the text of an HLO module: it has no ENTRY computation with a ROOT")
    known = set[str]()
    for computation in computations.values():
        _check(file, computation, known)
        known.add(computation.name)
    counts = [_count(file, header, key) for key in ("num_partitions", "replica_count")]
    return Module(file, counts[0], counts[1], entry, computations)
