"""`find_nan`, and the warning of a loss that is not finite."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from .._base import checks
from .._base.log import log
from .._lockstep import Executable

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True)
class Range:
    """The elements of a value on one rank: how many there are, how many of them are NaN or infinite, and the range of
    the others, which is 0 to 0 for integers and if there are no others. Of an input, without rows that pad a batch.
    """

    name: str
    elements: int
    nans: int
    infinities: int
    least: float
    most: float


@dataclass(frozen=True)
class NonFinite:
    """What `find_nan` has found: the op that made a NaN or an infinity, or the input or state that had one."""

    op: str  # "log"; "input", "state" or "constant"
    value: Range  # its result
    first: tuple[int, ...]  # the index of its first NaN, or else infinity, among that rank's elements; () if unknown
    layer: str  # its source in the model, such as "onnx:/fc1/Gemm"; "" of an input or a state
    iteration: str  # of a loop, such as that over micro-batches, from 0: "iteration 1 of 2"; "" outside of loops
    rank: int  # the lowest rank on which it made one
    step: int  # the number of the step
    operands: tuple[Range, ...]
    becomes_nan: str  # the op in which an infinity became a NaN, such as "sub %7, at onnx:/norm"; "" if none did
    infinite_since: str  # what gave its infinite operands if no op made them: "input %x on rank 1: 1 infinite of 24"
    has_no_effect: bool  # True if all results and next states are finite: a loss scale skips the step
    only_optimized: bool  # True if the value is finite with optimize=False
    fused: str  # then, of a kernel of several ops: these, such as "mul at /square, add at /sum"
    text: str = field(repr=False)  # all of this, in lines

    def __str__(self) -> str:
        return self.text


def find_nan(exe: Executable, **inputs: Any) -> NonFinite | None:
    """Finds the op that made a NaN or an infinity in a result or in the next value of a state. Collective: all ranks
    call it, with the inputs of the step, and get the same answer. It helps with the states of before the step that made
    the first NaN, as after an error of `compile(check_numerics=True)`, or from a checkpoint.

    The step is compiled again without optimization and runs once with the present states and settings of `exe`, which
    stay as they are. Every value of it is looked at. This takes the time of a compilation and of a slow step.

    A result or state that is not finite is followed back through its operands, to the op that made a NaN or an infinity
    from finite operands, or to the input or state that had one. An infinity that is an input, a constant, or a state
    that the program does not update is intended, such as the mask of an attention, and so is one that is computed from
    constants alone. A gradient that overflows in f16 is named, although a loss scale skips its step. If all is finite
    without optimization, the program as it was compiled is looked at, too.

    Args:
      exe: a program from `compile`. Programs for parameter servers, and with an axis "stage", are errors.
      inputs: the inputs by name, as for `exe(...)`: this rank's rows.

    Returns:
      The op with its layer, rank and operands, which prints as text; None if all values are as they should be.

    Raises:
      Error: on all ranks if inputs of one do not fit, after which the program is still usable; or the step cannot be
        run again.

    Example:
      >>> print(lockstep.find_nan(exe, image=image, label=label))
      step 12, rank 1: log makes %7: 3 NaN of 128, first at [5, 0], the others -4.60517 to 0.0, at onnx:/head/Log
        from %6: -0.25 to 1.0
    """
    checks.instance("find_nan: exe", exe, Executable, "a lockstep.Executable")
    found = exe._find_nan(**inputs)
    return None if found is None else _found(found, exe.step)


def _found(found: Mapping[str, Any], step: int) -> NonFinite:
    value, *operands = (Range(**each) for each in (found["value"], *found["operands"]))
    rest = {name: of for name, of in found.items() if name not in ("value", "operands")}
    return NonFinite(value=value, step=step, operands=tuple(operands), **rest)


def warn_of_loss(program: str, step: int, loss: float) -> None:
    """Logs that the loss of a step is not finite. The extension module calls it once for an executable, on rank 0."""
    log.warning(
        f"@{program}: the loss of step {step} is {loss}; with compile(check_numerics=True) the step is an error that "
        "names the op, and the states stay finite. By now they may have NaNs: lockstep.find_nan(exe, …) needs those from "
        "before the step (docs/numerics.md)"
    )
