"""The integers that a program accepts as inputs."""

from __future__ import annotations

import re
from collections.abc import Sequence

from .text import Computation, Instruction, Module

_LEAST = 8  # more integers than that of an input that no gather or scatter uses
_FAR = 1000


def limits(module: Module) -> list[int]:
    """For each parameter, one more than the largest integer to draw: all gathers and scatters that use it, or integers
    made of it, have an element there."""
    found: dict[int, int] = {}
    _trace(module, module.entry, [{k} for k in range(len(module.entry.parameters))], found)
    most = max([_LEAST, *(_iota_extent(i) for i in _all(module) if i.opcode == "iota")])
    return [found.get(k, most) for k in range(len(module.entry.parameters))]


def far_limit(module: Module) -> int:
    """A number above all integers, up to `_FAR`, with which a program may compare inputs: extents and constants."""
    texts = [each for i in _all(module) if i.opcode == "constant" for each in re.findall(r"-?\b\d+\b", i.argument)]
    extents = [extent for i in _all(module) for each in i.arrays for extent in each.dims]
    return 1 + max(each for each in [_LEAST, *map(abs, map(int, texts)), *extents] if each <= _FAR)


def _all(module: Module) -> list[Instruction]:
    return [i for computation in module.computations.values() for i in computation.instructions]


def _iota_extent(i: Instruction) -> int:
    with i.naming():
        return i.array.dims[i.numbers("iota_dimension")[0]]


def _extent(computation: Computation, i: Instruction) -> int:
    """The least extent along which the indices of a gather or scatter select."""
    name = "start_index_map" if i.opcode == "gather" else "scatter_dims_to_operand_dims"
    dims = computation.by_name[i.operands[0]].array.dims
    return min((dims[d] for d in i.numbers(name)), default=_LEAST)


def _trace(module: Module, computation: Computation, arguments: Sequence[set[int]], found: dict[int, int]) -> set[int]:
    """Adds the limits of parameters to `found`, and returns those of which the root is made. arguments[k] are the
    parameters of which integers of this computation's parameter k are made."""
    made_of: dict[str, set[int]] = {}
    for i in computation.instructions:
        with i.naming():
            made_of[i.name] = _source(module, computation, i, [made_of[each] for each in i.operands], arguments, found)
    return made_of[computation.root]


def _source(
    module: Module,
    computation: Computation,
    i: Instruction,
    operands: Sequence[set[int]],
    arguments: Sequence[set[int]],
    found: dict[int, int],
) -> set[int]:
    made_of = set[int]().union(*operands)
    if i.opcode == "parameter":
        made_of = arguments[int(i.argument)]
    elif i.opcode == "call":
        made_of = _trace(module, module.computations[i.callee("to_apply")], operands, found)
    elif i.opcode == "while":
        made_of = _trace(module, module.computations[i.callee("body")], operands, found)
    elif i.opcode == "gather" or (i.opcode == "scatter" and len(operands) == 3):
        for k in operands[1]:
            found[k] = min(found.get(k, 1 << 30), _extent(computation, i))
    return made_of if any(each.dtype[0] in "su" for each in i.arrays) else set()
