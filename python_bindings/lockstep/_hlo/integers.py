"""The integers that a program accepts as inputs."""

from __future__ import annotations

from collections.abc import Sequence

from .text import Computation, Instruction, Module

_LEAST = 8  # more integers than that of an input that no gather or scatter uses


def limits(module: Module) -> list[int]:
    """For each parameter, one more than the largest integer to draw: all gathers and scatters that use it, or integers
    made of it, have an element there."""
    found: dict[int, int] = {}
    _trace(module, module.entry, [{k} for k in range(len(module.entry.parameters))], found)
    iotas = [i.array.dims[i.numbers("iota_dimension")[0]]
             for each in module.computations.values() for i in each.instructions if i.opcode == "iota"]  # fmt: skip
    return [found.get(k, max([_LEAST, *iotas])) for k in range(len(module.entry.parameters))]


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
        operands = [made_of[each] for each in i.operands]
        made_of[i.name] = set().union(*operands)
        if i.opcode == "parameter":
            made_of[i.name] = arguments[int(i.argument)]
        elif i.opcode == "call":
            made_of[i.name] = _trace(module, module.computations[i.callee("to_apply")], operands, found)
        elif i.opcode == "while":
            made_of[i.name] = _trace(module, module.computations[i.callee("body")], operands, found)
        elif i.opcode == "gather" or (i.opcode == "scatter" and len(operands) == 3):
            for k in operands[1]:
                found[k] = min(found.get(k, 1 << 30), _extent(computation, i))
        if not any(each.dtype[0] in "su" for each in i.arrays):
            made_of[i.name] = set()
    return made_of[computation.root]
