"""Initial values of states, as torch.nn.init has them: functions for `init` of `Builder.state`.

w = g.state("conv1.weight", (20, 1, 5, 5), init=lockstep.graph.init.kaiming_uniform(math.sqrt(5)))
"""

from __future__ import annotations

import math

import numpy as np

from .._base import checks, names
from .._base.errors import Error
from ._builder import Initializer

__all__ = ["constant", "kaiming_normal", "kaiming_uniform", "normal", "uniform", "xavier_normal", "xavier_uniform"]


def constant(value: float) -> Initializer:
    """All elements are `value`."""
    number = checks.number("constant: value", value)
    return lambda shape, random: np.full(shape, number)


def normal(mean: float = 0.0, std: float = 1.0) -> Initializer:
    """Draws from a normal distribution."""
    centre, deviation = checks.number("normal: mean", mean), checks.number("normal: std", std)
    if not deviation >= 0:
        raise Error(f"normal: std is {deviation}, expected at least 0")
    return lambda shape, random: centre + deviation * random.standard_normal(shape)


def uniform(low: float = 0.0, high: float = 1.0) -> Initializer:
    """Draws uniformly from [low, high)."""
    least, most = checks.number("uniform: low", low), checks.number("uniform: high", high)
    if not least <= most:
        raise Error(f"uniform: low is {least} and high is {most}, expected low to be at most high")
    return lambda shape, random: random.uniform(least, most, shape)


def kaiming_uniform(a: float = 0.0) -> Initializer:
    """Draws uniformly for a weight [outputs, inputs, ...] before a leaky ReLU with the slope `a` (He et al., 2015).

    The bound is sqrt(6 / ((1 + a²) inputs)), with the inputs of one output. `a=math.sqrt(5)` is the default of
    PyTorch's Linear and Conv layers.
    """
    return _scaled("kaiming_uniform", 6 / (1 + checks.number("kaiming_uniform: a", a) ** 2), of_both=False)


def kaiming_normal(a: float = 0.0) -> Initializer:
    """Draws as kaiming_uniform, from a normal distribution of the same variance."""
    return _scaled("kaiming_normal", 2 / (1 + checks.number("kaiming_normal: a", a) ** 2), of_both=False)


def xavier_uniform() -> Initializer:
    """Draws uniformly for a weight [outputs, inputs, ...], within sqrt(6 / (inputs + outputs)) (Glorot, 2010)."""
    return _scaled("xavier_uniform", 6.0, of_both=True)


def xavier_normal() -> Initializer:
    """Draws as xavier_uniform, from a normal distribution of the same variance."""
    return _scaled("xavier_normal", 2.0, of_both=True)


def _scaled(name: str, numerator: float, of_both: bool) -> Initializer:
    def draw(shape: tuple[int, ...], random: np.random.Generator) -> np.ndarray:
        if len(shape) < 2 or 0 in shape:
            raise Error(f"{name}: the shape is {shape}, expected that of a weight [outputs, inputs, ...]")
        taps = math.prod(shape[2:])
        scale = math.sqrt(numerator / (taps * (shape[1] + (shape[0] if of_both else 0))))
        if name.endswith("normal"):
            return scale * random.standard_normal(shape)
        return random.uniform(-scale, scale, shape)

    return draw


names.guard(globals())
