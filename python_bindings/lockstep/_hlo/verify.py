"""Compares a program that XLA partitioned with the program of one device that it was made of."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass

import numpy as np

from .._base import checks
from .._base.errors import Error
from . import exact, shardings
from .integers import far_limit, limits
from .program import Program, Values
from .shardings import Sharding
from .text import Array, Instruction, Module, read

_MOST_SHOWN = 12


@dataclass
class _Pair:
    """Both programs, and the devices of the second."""

    before: Program
    after: Program
    devices: int


_RUNS = 8  # with other numbers each, and as many with integers out of bounds


def verify_hlo(before: str | os.PathLike[str], after: str | os.PathLike[str]) -> tuple[str, ...]:
    """Proves that a program that XLA's SPMD partitioner wrote computes what the program of one device does.

    Args:
      before: the path of the HLO text before the pass spmd-partitioning: `….before_spmd-partitioning.txt`, with global
        shapes and shardings.
      after: the path of the HLO text after that pass: `….after_spmd-partitioning.….txt`, with shapes of one device.

    Returns:
      What the comparison takes for granted: sentences. Inputs are random: what follows from comparisons of floats and
      from integer inputs is tried, not proved.

    Raises:
      Error: the programs differ. The message names the first result that does, the devices, the first instruction of
        the first program that the second one computes wrongly, and instructions of both. Or a file cannot be read, or
        an instruction is wrong or not supported: the message then names the file, and the line and the instruction if
        there is one.

    >>> lockstep.verify_hlo("step.before_spmd-partitioning.txt", "step.after_spmd-partitioning.txt")
    ('instructions of XLA compute what they mean, without rounding',
     'outcomes of comparisons of floats, and integer inputs, are tried 8 times, not proved')
    """
    one, many = read(str(checks.path(before))), read(str(checks.path(after)))
    for module in (one, many):
        if module.replicas != 1:
            raise Error(f"{module.file} is for {module.replicas} replicas; only partitions are supported")
    pair = _Pair(Program(one), Program(many), many.partitions)
    notes = {
        "instructions of XLA compute what they mean, without rounding",
        f"outcomes of comparisons of floats, and integer inputs, are tried {_RUNS} times, not proved",
    }
    has_integers = any(each.array.dtype not in exact.FLOATS for each in one.entry.parameters)
    for seed in range(1, 1 + _RUNS * (1 + has_integers)):
        inputs, parts = _inputs(one, many, seed)
        expected = pair.before.run([[each] * pair.devices for each in inputs], pair.devices)
        found = _check(pair, expected, pair.after.run(parts, pair.devices))
        notes.update(found if seed <= _RUNS else [])  # JAX makes NaNs of elements out of bounds
    return tuple(sorted(notes))


def _check_reduced(*instructions: Instruction) -> None:
    for i in instructions:
        if "unreduced" in i.attributes.get("sharding", ""):
            raise i.error("is unreduced: a sum that is not made, which is not supported as an input or a result")


def _sharding(i: Instruction, text: str | None, dims: tuple[int, ...], devices: int) -> Sharding:
    try:
        return shardings.parse(text, len(dims), devices)
    except ValueError as error:
        raise i.error(f"has a wrong sharding: {error}") from None


def _inputs(before: Module, after: Module, seed: int) -> tuple[list[np.ndarray], list[Values]]:
    """Random inputs of the program of one device, and the parts of the other one's devices; padding is random."""
    if len(before.entry.parameters) != len(after.entry.parameters):
        raise Error(f"{after.file} has {len(after.entry.parameters)} parameters, and {before.file} "
                    f"{len(before.entry.parameters)}")  # fmt: skip
    inputs, parts = list[np.ndarray](), list[Values]()
    ranges = _ranges(before, seed)
    for k, (one, many) in enumerate(zip(before.entry.parameters, after.entry.parameters, strict=True)):
        _check_reduced(one, many)
        type = one.array
        sharding = _sharding(
            one, many.attributes.get("sharding", one.attributes.get("sharding")), type.dims, after.partitions
        )
        if many.array != Array(type.dtype, sharding.local(type.dims)):
            raise many.error(f"is {many.array}, which is no part of {type} {one.attributes.get('sharding', '')}")
        if type.dtype not in exact.DTYPES:
            raise one.error(f"is {type}, which is not supported")
        inputs.append(exact.draw(type, *ranges[k], seed * 1000003 + k))
        parts.append(_parts(inputs[-1], sharding, many.array, after.partitions, seed * 1000003 + k))
    return inputs, parts


def _ranges(before: Module, seed: int) -> list[tuple[int, int]]:
    """The range of each parameter, if it has integers. First it is in bounds; for later seeds integers are negative,
    large, or both."""
    if seed <= _RUNS:
        return [(0, most) for most in limits(before)]
    far = far_limit(before)
    choices = [(-2 * far, 2 * far), (-2 * far, -far), (far, 2 * far)]
    return [choices[(seed + k) % len(choices)] for k in range(len(before.entry.parameters))]


def _parts(whole: np.ndarray, sharding: Sharding, type: Array, devices: int, seed: int) -> Values:
    if not sharding:
        return [whole] * devices
    parts: Values = []
    for device in range(devices):
        part = exact.draw(type, 0, 2**31 - 1, (seed << 20) + device)
        valid = whole[sharding.slices(device, whole.shape)]
        part[tuple(slice(0, extent) for extent in valid.shape)] = valid
        parts.append(part)
    return parts


def _differing(whole: Values, parts: Values, sharding: Sharding) -> list[int]:
    """The devices whose part is not that of the whole."""
    devices = []
    for device, (one, part) in enumerate(zip(whole, parts, strict=True)):
        valid = one[sharding.slices(device, one.shape)]  # type: ignore
        if not exact.equal(valid, part[tuple(slice(0, extent) for extent in valid.shape)]).all():  # type: ignore
            devices.append(device)
    return devices


def _check(pair: _Pair, expected: Values, found: Values) -> list[str]:
    """Compares results; returns assumptions."""
    one, many = (program.module.entry.by_name[program.module.entry.root] for program in (pair.before, pair.after))
    _check_reduced(one)
    for i in (one, many):
        if isinstance(i.type, tuple) and len(i.arrays) != len(i.type):
            raise i.error("has tuples in a tuple, which is not supported")
    as_tuple = lambda i, values: values if isinstance(i.type, tuple) else [(each,) for each in values]
    wholes = list(zip(*as_tuple(one, expected), strict=True))
    parts = list(zip(*as_tuple(many, found), strict=True))
    if len(wholes) != len(parts):
        raise many.error(f"has {len(parts)} results, and the root of {pair.before.module.file} {len(wholes)}")
    notes = []
    sharded = _result_shardings(one, [each[0].ndim for each in wholes], pair.devices)
    for k, (whole, part, sharding) in enumerate(zip(wholes, parts, sharded, strict=True)):
        wanted = Array(one.arrays[k].dtype, sharding.local(whole[0].shape))
        if many.arrays[k] != wanted:
            raise many.error(f"has a result {k} of the type {many.arrays[k]}, not {wanted}")
        if devices := _differing(list(whole), list(part), sharding):
            what = f"result {k}, {one.arrays[k]}, of {pair.after.module.file} differs {_on(devices, pair.devices)} "
            raise Error(what + f"from that of one device{_first_difference(pair, one, many, k)}")
        if whole[0].dtype == exact.EXACT and exact.is_nan(whole[0]).any():
            notes.append(f"result {k} has NaN for random inputs, of which nothing else is known")
    return notes


def _result_shardings(root: Instruction, ranks: list[int], devices: int) -> list[Sharding]:
    try:
        return shardings.parse_all(root.attributes.get("sharding"), ranks, devices)
    except ValueError as error:
        raise root.error(f"has a wrong sharding: {error}") from None


def _on(devices: list[int], count: int) -> str:
    if len(devices) == count:
        return f"on all {count} devices"
    return f"on device{'s' * (len(devices) > 1)} {', '.join(map(str, devices))}"


def _ancestors(module: Module, name: str) -> list[Instruction]:
    """The instruction and all that it follows from, in order."""
    wanted = {name}
    for i in reversed(module.entry.instructions):
        if i.name in wanted:
            wanted.update(i.operands)
    return [i for i in module.entry.instructions if i.name in wanted]


def _first_difference(pair: _Pair, one: Instruction, many: Instruction, result: int) -> str:
    """The part of the message after the result, with the first instruction that the second program computes wrongly."""
    names = [i.operands[result] if i.opcode == "tuple" else i.name for i in (one, many)]
    wanted = [i for i in _ancestors(pair.before.module, names[0]) if isinstance(i.type, Array)]
    given = [i for i in _ancestors(pair.after.module, names[1]) if isinstance(i.type, Array)]
    equal_one, equal_many = set[str](), set[str]()
    for i in wanted:
        for j in given:
            if _computes(pair, i, j):
                equal_one.add(i.name)
                equal_many.add(j.name)
    different = [i for i in wanted if i.name not in equal_one]
    first = next((i for i in different if _has_counterpart(i, given)), (different or wanted)[-1])
    wrong = [j for j in given if j.name not in equal_many]
    wrong = [j for j in wrong if j.array.dtype == first.array.dtype and j.opcode != "constant"] or wrong
    about = [j for j in wrong if _source(j) == _source(first)] or wrong
    lines = [
        f"; the first value that not all devices compute is %{first.name}, line {first.line}",
        "  each device computes",
    ]
    lines += [f"    line {j.line}: {j.text}" for j in about[:_MOST_SHOWN]]
    return "\n".join([*lines, "  one device computes", f"    line {first.line}: {first.text}"])


def _source(i: Instruction) -> str:
    """The op of the user's program that an instruction belongs to."""
    found = re.search(r'op_name="([^"]*)', i.attributes.get("metadata", ""))
    return found[1] if found else ""


def _has_counterpart(i: Instruction, given: list[Instruction]) -> bool:
    return bool(_source(i)) and any(_source(j) == _source(i) for j in given)


def _computes(pair: _Pair, i: Instruction, j: Instruction) -> bool:
    """True if each device's value of j is its part of i, or all of it."""
    if i.array.dtype != j.array.dtype or len(i.array.dims) != len(j.array.dims):
        return False
    texts = (i.attributes.get("sharding"), None)
    candidates = [_sharding(i, text, i.array.dims, pair.devices) for text in texts]
    return any(
        sharding.local(i.array.dims) == j.array.dims
        and not _differing(pair.before.values[i.name], pair.after.values[j.name], sharding)
        for sharding in candidates
    )
