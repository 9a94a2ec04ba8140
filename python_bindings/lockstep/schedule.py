"""Schedules: functions from the step to a number such as the learning rate. The formulas and the numbers are PyTorch's.

The step is the number of calls so far: 0 for the first call. Any function of the step works. The schedules of this
module can also be compared, printed, copied and pickled. A schedule is given instead of a number, to an optimizer or to
`Executable.set`.

Example:
  >>> rate = lockstep.schedule.cosine(0.1, steps=10_000).after_warmup(500)
  >>> step = lockstep.train_step(model, loss=..., optimizer=lockstep.optim.SGD(rate, momentum=0.9))
"""

from __future__ import annotations

import bisect
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

from ._base import checks, names
from ._base.errors import Error

__all__ = [
    "Schedule", "constant", "cosine", "cosine_with_restarts", "exponential", "linear", "multi_step", "one_cycle", "polynomial",
    "step",
]  # fmt: skip


@dataclass(frozen=True)
class Schedule:
    """A number that depends on the step. Calling the schedule with a step returns the number."""

    description: str
    _function: Callable[[int], float] = field(repr=False, compare=False)

    def __call__(self, step: int) -> float:
        try:
            return self._function(step)
        except ArithmeticError as error:
            raise Error(f"{self.description} has no value at step {step}: {error}") from None

    def __repr__(self) -> str:
        return f"lockstep.{self.description}"

    def after_warmup(self, steps: int, start: float = 0.0) -> Schedule:
        """This schedule after a linear warm-up of `steps` steps (0 is none) from `start` times its first value.

        The step of this schedule is 0 when the warm-up ends: `cosine(1e-3, steps=88_000).after_warmup(2000)` ends after
        90,000 steps. In PyTorch this is a `SequentialLR` of `LinearLR` and the other schedule, if `start` is above 0.
        With 0 the first step changes no weight.
        """
        steps = checks.integer("schedule.after_warmup: steps", steps, low=0)
        start = _number("after_warmup", "start", start)
        first = self(0)
        return Schedule(
            f"{self.description}.after_warmup({steps}, {start})", partial(_after_warmup, self, first, steps, start)
        )


# The values of schedules at the step `at`. These are functions of the module, so that they can be pickled.


def _after_warmup(schedule: Schedule, first: float, steps: int, start: float, at: int) -> float:
    return first * (start + (1 - start) * at / steps) if at < steps else schedule(at - steps)


def _constant(value: float, at: int) -> float:
    return value


def _step(value: float, every: int, gamma: float, at: int) -> float:
    return value * gamma ** (at // every)


def _multi_step(value: float, milestones: Sequence[int], gamma: float, at: int) -> float:
    return value * gamma ** bisect.bisect_right(milestones, at)


def _exponential(value: float, gamma: float, at: int) -> float:
    return value * gamma**at


def _linear(start: float, end: float, steps: int, at: int) -> float:
    return start + (end - start) * min(at, steps) / steps


def _polynomial(value: float, steps: int, power: float, at: int) -> float:
    return value * (1 - min(at, steps) / steps) ** power


def _cosine(value: float, steps: int, minimum: float, at: int) -> float:
    return minimum + (value - minimum) * (1 + math.cos(math.pi * at / steps)) / 2


def _cosine_with_restarts(value: float, steps: int, growth: int, minimum: float, at: int) -> float:
    period = steps
    if growth == 1:
        at %= period
    while at >= period:
        at -= period
        period *= growth
    return _cosine(value, period, minimum, at)


def _one_cycle(maximum: float, steps: int, rising: float, start: float, end: float, at: int) -> float:
    at = min(at, steps - 1)
    peak = rising * steps - 1  # may lie between two steps
    if at <= peak:
        return _along_cosine(start, maximum, at / peak if peak > 0 else 1.0)
    return _along_cosine(maximum, end, (at - peak) / (steps - 1 - peak))


def _along_cosine(start: float, end: float, share: float) -> float:
    return end + (start - end) * (1 + math.cos(math.pi * share)) / 2


# Functions for users


def _number(what: str, name: str, value: float) -> float:
    number = checks.number(f"schedule.{what}: {name}", value)
    if not math.isfinite(number):
        raise Error(f"schedule.{what}: {name} is {number}, expected a finite number")
    return number


def _count(what: str, name: str, value: int) -> int:
    return checks.integer(f"schedule.{what}: {name}", value, low=1)


def _milestones(values: Sequence[int]) -> list[int]:
    """Returns the steps in order."""
    try:
        listed = None if isinstance(values, (str, bytes)) else list(values)
    except TypeError:
        listed = None
    if listed is None:
        raise Error(f"schedule.multi_step: milestones is {values!r}, expected a list of whole numbers")
    return sorted(_count("multi_step", "a milestone", each) for each in listed)


def constant(value: float) -> Schedule:
    """`value` at every step."""
    value = _number("constant", "value", value)
    return Schedule(f"schedule.constant({value})", partial(_constant, value))


def step(value: float, every: int, gamma: float = 0.1) -> Schedule:
    """`value`, multiplied by `gamma` after each `every` steps. PyTorch's `StepLR`."""
    value, every, gamma = (
        _number("step", "value", value),
        _count("step", "every", every),
        _number("step", "gamma", gamma),
    )
    return Schedule(f"schedule.step({value}, {every}, {gamma})", partial(_step, value, every, gamma))


def multi_step(value: float, milestones: Sequence[int], gamma: float = 0.1) -> Schedule:
    """`value`, multiplied by `gamma` from each of the steps in `milestones` on. PyTorch's `MultiStepLR`."""
    value, gamma = _number("multi_step", "value", value), _number("multi_step", "gamma", gamma)
    steps = _milestones(milestones)
    return Schedule(f"schedule.multi_step({value}, {steps}, {gamma})", partial(_multi_step, value, steps, gamma))


def exponential(value: float, gamma: float) -> Schedule:
    """`value`, multiplied by `gamma` after each step. PyTorch's `ExponentialLR`."""
    value, gamma = _number("exponential", "value", value), _number("exponential", "gamma", gamma)
    return Schedule(f"schedule.exponential({value}, {gamma})", partial(_exponential, value, gamma))


def linear(start: float, end: float, steps: int) -> Schedule:
    """A line from `start` to `end`, which is reached after `steps` steps and then kept. PyTorch's `LinearLR`."""
    start, end, steps = (
        _number("linear", "start", start),
        _number("linear", "end", end),
        _count("linear", "steps", steps),
    )
    return Schedule(f"schedule.linear({start}, {end}, {steps})", partial(_linear, start, end, steps))


def polynomial(value: float, steps: int, power: float = 1.0) -> Schedule:
    """`value * (1 - at / steps) ** power` at step `at`; 0 from step `steps` on. PyTorch's `PolynomialLR`."""
    value, power = _number("polynomial", "value", value), _number("polynomial", "power", power)
    steps = _count("polynomial", "steps", steps)
    return Schedule(f"schedule.polynomial({value}, {steps}, {power})", partial(_polynomial, value, steps, power))


def cosine(value: float, steps: int, minimum: float = 0.0) -> Schedule:
    """Half a cosine wave from `value` to `minimum`, reached after `steps` steps. PyTorch's `CosineAnnealingLR`.

    The wave continues: after another `steps` steps it is back at `value`.
    """
    value, minimum = _number("cosine", "value", value), _number("cosine", "minimum", minimum)
    steps = _count("cosine", "steps", steps)
    return Schedule(
        f"schedule.cosine({value}, {steps}, {minimum})",
        partial(_cosine, value, steps, minimum),
    )


def cosine_with_restarts(value: float, steps: int, growth: int = 1, minimum: float = 0.0) -> Schedule:
    """`cosine` that restarts at `value` after `steps` steps, then after `growth` times as many, and so on.

    Loshchilov and Hutter, "SGDR: Stochastic gradient descent with warm restarts", 2017; PyTorch's
    `CosineAnnealingWarmRestarts`.
    """
    what = "cosine_with_restarts"
    value, minimum = _number(what, "value", value), _number(what, "minimum", minimum)
    steps, growth = _count(what, "steps", steps), _count(what, "growth", growth)
    return Schedule(
        f"schedule.{what}({value}, {steps}, {growth}, {minimum})",
        partial(_cosine_with_restarts, value, steps, growth, minimum),
    )


def one_cycle(
    maximum: float, steps: int, rising: float = 0.3, start_divisor: float = 25.0, final_divisor: float = 1e4
) -> Schedule:
    """A rise from `maximum / start_divisor` to `maximum` in the share `rising` of the steps, then a fall to
    `maximum / start_divisor / final_divisor`.

    Both along a cosine. Smith and Topin, "Super-convergence", 2018; PyTorch's `OneCycleLR` without a third phase. After `steps`
    steps it stays at the end. OneCycleLR also cycles the momentum, unless cycle_momentum=False: `momentum=` of an optimizer follows
    `one_cycle(0.85, steps, start_divisor=0.85 / 0.95, final_divisor=1.0)` then.
    """
    what = "one_cycle"
    maximum, rising = _number(what, "maximum", maximum), _number(what, "rising", rising)
    start_divisor, final_divisor = (
        _number(what, "start_divisor", start_divisor),
        _number(what, "final_divisor", final_divisor),
    )
    steps = _count(what, "steps", steps)
    if not 0 <= rising <= 1:
        raise Error(f"schedule.{what}: rising is {rising}, expected at least 0 and at most 1")
    for name, divisor in (("start_divisor", start_divisor), ("final_divisor", final_divisor)):
        if divisor <= 0:
            raise Error(f"schedule.{what}: {name} is {divisor}, expected a number above 0")
    start = maximum / start_divisor
    end = start / final_divisor
    return Schedule(
        f"schedule.{what}({maximum}, {steps}, {rising}, {start_divisor}, {final_divisor})",
        partial(_one_cycle, maximum, steps, rising, start, end),
    )


names.guard(
    globals(),
    {
        "constantlr": "constant",
        "cosineannealinglr": "cosine",
        "cosineannealingwarmrestarts": "cosine_with_restarts",
        "cosinedecay": "cosine",
        "cosinedecayrestarts": "cosine_with_restarts",
        "cosinescheduler": "cosine",
        "exponentialdecay": "exponential",
        "exponentiallr": "exponential",
        "factorscheduler": "step",
        "linearlr": "linear",
        "multifactorscheduler": "multi_step",
        "multisteplr": "multi_step",
        "onecyclelr": "one_cycle",
        "piecewiseconstantdecay": "multi_step",
        "polynomialdecay": "polynomial",
        "polynomiallr": "polynomial",
        "polyscheduler": "polynomial",
        "steplr": "step",
        "warmup": "Schedule.after_warmup",
    },
)
