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
    the others, which is 0 to 0 for integers and if there are no others.
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
    layer: str  # its source in the model, such as "onnx:/fc1/Gemm"; "" of an input or a state
    rank: int  # the lowest rank on which it made one
    step: int  # the number of the step
    operands: tuple[Range, ...]
    becomes_nan: str  # the op in which an infinity became a NaN, such as "sub %7, at onnx:/norm"; "" if none did
    only_optimized: bool  # True if the value is finite with optimize=False
    fused: str  # then, of a kernel of several ops: these, such as "mul at /square, add at /sum"
    text: str = field(repr=False)  # all of this, in lines

    def __str__(self) -> str:
        return self.text


def find_nan(exe: Executable, **inputs: Any) -> NonFinite | None:
    """Finds the op that made a NaN or an infinity in a result or in the next value of a state. Collective: all ranks
    call it, with the inputs of the step, and get the same answer.

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
      Error: as `exe(...)` does for inputs that do not fit; or the step cannot be run again.

    Example:
      >>> print(lockstep.find_nan(exe, image=image, label=label))
      step 12, rank 1: log makes %7: 3 NaN of 128, the others -4.60517 to 0, at onnx:/head/Log
        from %6: -0.25 to 1
    """
    checks.instance("find_nan: exe", exe, Executable, "a lockstep.Executable")
    found = exe._find_nan(**inputs)
    return None if found is None else _found(found, exe.step)


def _found(found: Mapping[str, Any], step: int) -> NonFinite:
    value, *operands = (Range(**each) for each in (found["value"], *found["operands"]))
    rest = {name: found[name] for name in ("op", "layer", "rank", "becomes_nan", "only_optimized", "fused", "text")}
    return NonFinite(value=value, step=step, operands=tuple(operands), **rest)


def warn_of_loss(program: str, step: int, loss: float) -> None:
    """Logs that the loss of a step is not finite. The extension module calls it once for an executable, on rank 0."""
    log.warning(
        f"@{program}: the loss of step {step} is {loss}; lockstep.find_nan(exe, …) with the inputs of a step names the "
        "op that made the first NaN, and compile(check_numerics=True) stops before the states have any (docs/numerics.md)"
    )
