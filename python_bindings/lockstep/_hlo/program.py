"""Runs a module of HLO in exact arithmetic: all devices in lock step."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import numpy as np

from . import shardings
from .collectives import COLLECTIVES
from .exact import DTYPES
from .ops import OPS
from .text import Array, Computation, Instruction, Module, Type

# The value of an instruction on one device: an array, or a tuple of values; and on all devices. Where all devices have
# the same object, what follows from it is computed once.
Value = object
Values = list[Value]

_MOST_TURNS = 10000  # of all loops in a run


def _is_shared(values: Values) -> bool:
    return all(each is values[0] for each in values)


def _arrays(value: Value) -> list[np.ndarray]:
    """The array, or those in a tuple."""
    return [x for each in value for x in _arrays(each)] if isinstance(value, tuple) else [value]  # type: ignore


def _types(type: Type) -> list[Array]:
    return [type] if isinstance(type, Array) else [x for each in type for x in _types(each)]


def _check(i: Instruction, values: Values, has_shape: bool) -> None:
    """Raises Error unless the value on each device has the instruction's dtypes and, if `has_shape`, its shapes."""
    wanted = _types(i.type)
    dtypes, shapes = [DTYPES[each.dtype] for each in wanted], [each.dims for each in wanted]
    for value in values[:1] if _is_shared(values) else values:
        found = _arrays(value)
        if has_shape and [each.shape for each in found] != shapes:
            raise i.error(
                f"has the shape {_listed(shapes)}, but its operands give {_listed(each.shape for each in found)}"
            )
        if [each.dtype for each in found] != dtypes:
            raise i.error(f"is {_listed(wanted)}, but its operands give other dtypes")


def _listed(values: Iterable[object]) -> str:
    return ", ".join(map(str, values))


class Program:
    """A module, and the values of the instructions of its entry computation after a run."""

    def __init__(self, module: Module) -> None:
        self.module = module
        self.values: dict[str, Values] = {}
        self._turns = 0  # of all loops

    def run(self, arguments: Sequence[Values], devices: int) -> Values:
        """The value of the root on each device. arguments[k][device] is that of parameter k.

        Raises:
          Error: an instruction is not supported, or wrong. The message names the file, the line and the instruction.
        """
        self._turns = 0
        self.values = self._values(self.module.entry, arguments, devices)
        return self.values[self.module.entry.root]

    def _values(self, computation: Computation, arguments: Sequence[Values], devices: int) -> dict[str, Values]:
        values: dict[str, Values] = {}
        for i in computation.instructions:
            with i.naming():
                if i.opcode == "parameter":
                    values[i.name] = arguments[int(i.argument)]
                else:
                    values[i.name] = self._evaluate(computation, i, [values[each] for each in i.operands], devices)
                _check(i, values[i.name], has_shape=computation is self.module.entry)
        return values

    def _call(self, name: str, arguments: Sequence[Values], devices: int) -> Values:
        computation = self.module.computations[name]
        return self._values(computation, arguments, devices)[computation.root]

    def _region(self, name: str) -> Callable[..., tuple[np.ndarray, ...]]:
        """A computation of scalars on one device, applied to each element of arrays."""

        def apply(*arrays: np.ndarray) -> tuple[np.ndarray, ...]:
            result = self._call(name, [[array] for array in arrays], 1)[0]
            return result if isinstance(result, tuple) else (result,)  # type: ignore[return-value]

        return apply

    def _evaluate(self, computation: Computation, i: Instruction, operands: list[Values], devices: int) -> Values:
        if i.opcode in COLLECTIVES:
            return COLLECTIVES[i.opcode](i, self._region, list(zip(*operands, strict=True)))
        if i.opcode in _LOCK_STEP:
            return _LOCK_STEP[i.opcode](self, i, operands, devices)
        if i.opcode == "bitcast":
            return self._each_device(lambda x: _bitcast(computation, i, x), operands, devices)
        if i.opcode == "custom-call":
            return self._custom_call(computation, i, operands, devices)
        if i.opcode not in OPS:
            raise i.error("is not supported")
        return self._each_device(lambda *x: OPS[i.opcode](i, self._region, *x), operands, devices)

    @staticmethod
    def _each_device(function: Callable[..., Value], operands: list[Values], devices: int) -> Values:
        def of_one(of_device: Sequence[Value]) -> Value:
            found = function(*of_device)
            return found if isinstance(found, tuple) else np.asarray(found)

        if all(_is_shared(each) for each in operands):
            return [of_one([each[0] for each in operands])] * devices
        return [of_one(of_device) for of_device in zip(*operands, strict=True)]

    def _call_of(self, i: Instruction, operands: list[Values], devices: int) -> Values:
        return self._call(i.callee("to_apply" if "to_apply" in i.attributes else "calls"), operands, devices)

    def _while(self, i: Instruction, operands: list[Values], devices: int) -> Values:
        state = operands[0]
        while self._same_choice(i, self._call(i.callee("condition"), [state], devices)):
            self._turns += 1
            if self._turns > _MOST_TURNS:
                raise i.error(f"has not ended after {_MOST_TURNS} turns of all loops")
            state = self._call(i.callee("body"), [state], devices)
        return state

    def _conditional(self, i: Instruction, operands: list[Values], devices: int) -> Values:
        choice = self._same_choice(i, operands[0])
        if "branch_computations" in i.attributes:
            names = i.callees("branch_computations")
            choice = choice if 0 <= choice < len(names) else len(names) - 1
        else:
            names = [i.callee("true_computation"), i.callee("false_computation")]
            choice = 0 if choice else 1
        return self._call(names[choice], [operands[1 + choice]], devices)

    @staticmethod
    def _same_choice(i: Instruction, values: Values) -> int:
        choices = {int(each) for each in values}  # type: ignore[call-overload]
        if len(choices) > 1:
            raise i.error("goes different ways on different devices, which is not supported")
        return choices.pop()

    def _custom_call(self, computation: Computation, i: Instruction, operands: list[Values], devices: int) -> Values:
        target = i.attributes["custom_call_target"].strip('"')
        if target == "Sharding":
            return operands[0]
        if target == "SPMDFullToShardShape":
            dims, local = computation.by_name[i.operands[0]].array.dims, i.array.dims
            text = computation.by_name[i.operands[0]].attributes.get("sharding")
            sharding = self._sharding(i, text, dims, local, devices)
            return [each[sharding.slices(device, dims)] for device, each in enumerate(operands[0])]  # type: ignore
        if target == "SPMDShardToFullShape":
            dims, local = i.array.dims, computation.by_name[i.operands[0]].array.dims
            sharding = self._sharding(i, i.attributes.get("sharding"), dims, local, devices)
            if not sharding:
                return operands[0]
            whole = np.empty(dims, operands[0][0].dtype)  # type: ignore[attr-defined]
            for device in reversed(range(devices)):
                whole[sharding.slices(device, dims)] = operands[0][device]
            return [whole] * devices
        raise i.error(f"of {target} is not supported")

    @staticmethod
    def _sharding(
        i: Instruction, text: str | None, dims: tuple[int, ...], local: tuple[int, ...], devices: int
    ) -> shardings.Sharding:
        """The sharding between the types outside and inside of a manual computation."""
        sharding = shardings.parse(text if dims != local else None, len(dims), devices)
        if sharding.local(dims) != local:
            raise i.error(f"between {dims} and {local} by {text} is not supported")
        return sharding


def _bitcast(computation: Computation, i: Instruction, x: np.ndarray) -> np.ndarray:
    """The same memory as another array."""
    given, wanted = computation.types[i.operands[0]], i.array
    if not isinstance(given, Array) or given.dtype != wanted.dtype:
        raise i.error("between dtypes is not supported")
    memory = x.transpose(given.order).reshape([wanted.dims[d] for d in wanted.order])
    return memory.transpose(np.argsort(wanted.order, kind="stable") if wanted.order else ())


def _tuple(program: Program, i: Instruction, operands: list[Values], devices: int) -> Values:
    return Program._each_device(lambda *x: x, operands, devices)


def _part(program: Program, i: Instruction, operands: list[Values], devices: int) -> Values:
    index = int(i.attributes["index"])
    return [each[index] for each in operands[0]]  # type: ignore[index]


def _device(program: Program, i: Instruction, operands: list[Values], devices: int) -> Values:
    return [np.array(device, np.uint32) for device in range(devices)]


def _replica(program: Program, i: Instruction, operands: list[Values], devices: int) -> Values:
    return [np.array(0, np.uint32)] * devices


def _barrier(program: Program, i: Instruction, operands: list[Values], devices: int) -> Values:
    return operands[0]


_LOCK_STEP: dict[str, Callable[..., Values]] = {
    "tuple": _tuple,
    "get-tuple-element": _part,
    "partition-id": _device,
    "replica-id": _replica,
    "optimization-barrier": _barrier,
    "copy": _barrier,
    "call": Program._call_of,
    "fusion": Program._call_of,
    "while": Program._while,
    "conditional": Program._conditional,
}
