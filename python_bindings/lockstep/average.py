"""Averages of weights over steps, for evaluation.

The functions of this module return a function of the step, as in `lockstep.schedule`: the share of the average that the
step replaces by the weight. Any other function with values from 0 to 1 works too. A step with `average=` keeps the
average of each trained state `w` in the state `w/average`.

Example:
  >>> step = lockstep.train_step(model, loss, optimizer, average=lockstep.average.exponential(0.999))
  >>> exe, evaluation = lockstep.compile(step), lockstep.compile(lockstep.evaluation(model, loss))
  >>> evaluation.state.assign(exe.state.averaged())
"""

from __future__ import annotations

from functools import partial

from ._base import checks, names
from ._base.errors import Error
from .schedule import Schedule

__all__ = ["exponential", "stochastic"]


def exponential(decay: float = 0.999) -> Schedule:
    """`average = decay * average + (1 - decay) * w`, from the first step's `w` on: an exponential moving average.

    The same as `torch.optim.swa_utils.AveragedModel` with `get_ema_multi_avg_fn(decay)`, updated after each step.
    """
    decay = checks.number("average.exponential: decay", decay)
    if not 0 <= decay < 1:
        raise Error(f"average.exponential: decay is {decay}, expected at least 0 and below 1")
    return Schedule(f"average.exponential({decay})", partial(_exponential, decay))


def stochastic(start: int, every: int = 1) -> Schedule:
    """The mean of the weights after the steps `start`, `start + every`, and so on: stochastic weight averaging
    (Izmailov et al., 2018). Before step `start` it equals the weight.

    The same as `torch.optim.swa_utils.AveragedModel`, updated after those steps. `every` is usually the number of steps
    of an epoch.
    """
    start = checks.integer("average.stochastic: start", start, low=0)
    every = checks.integer("average.stochastic: every", every, low=1)
    return Schedule(f"average.stochastic({start}, {every})", partial(_stochastic, start, every))


# The share that is replaced at a step. These are functions of the module, so that they can be pickled.


def _exponential(decay: float, at: int) -> float:
    return 1.0 if at == 0 else 1 - decay


def _stochastic(start: int, every: int, at: int) -> float:
    if at < start:
        return 1.0
    taken, since = divmod(at - start, every)
    return 1 / (taken + 1) if since == 0 else 0.0


names.guard(
    globals(),
    {
        "ema": "exponential",
        "exponentialmovingaverage": "exponential",
        "swa": "stochastic",
    },
)
